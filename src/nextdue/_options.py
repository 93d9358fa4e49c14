"""The options of a job, for type checkers: what `Scheduler` hands on to its agenda as it is."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from .retry import RetryPolicy

Seconds = float | timedelta


class JobOptions(TypedDict, total=False):
    """Of every job."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    id: str | None
    priority: int
    retry: RetryPolicy | None
    key: str | int | None
    key_limit: int
    after: Iterable[Any] | None
    on_upstream_failure: str
    timeout: Seconds | None
    is_failure: Callable[[Any], object] | None
    context: contextvars.Context | None
    jitter: Seconds


class RepeatOptions(JobOptions, total=False):
    """Of every repeating job."""

    until: int | None
    max_runs: int | None


class RateOptions(RepeatOptions, total=False):
    """Of a fixed-rate job."""

    on_missed: str
    overlap: str


class RecurringOptions(JobOptions, total=False):
    """Of a job whose slots a rule gives."""

    until: int | datetime | None
    max_runs: int | None
    on_missed: str
    overlap: str
