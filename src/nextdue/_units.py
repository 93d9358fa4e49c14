"""Durations as users give them, turned into nanoseconds once, by rounding to the nearest."""

from __future__ import annotations

import math
import numbers
import operator
from datetime import timedelta
from typing import Any

NEVER = 2**63 - 1
SECOND = 1_000_000_000


def index_of(value: Any) -> int | None:
    """Return an int, or what has an `__index__`, as an int; None for everything else, bool too."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:  # to have an `__index__` says nothing: numpy's arrays of floats have one
            pass
    return None


def duration_ns(value: Any, name: str) -> int:
    """Return `value`, seconds or a timedelta, in nanoseconds, saturating at both ends of int64.

    Raises: TypeError for another type (bool too), ValueError for NaN and infinity; both name the parameter.
    """
    if isinstance(value, timedelta):
        ns = (value.days * 86_400 + value.seconds) * SECOND + value.microseconds * 1_000
    elif isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be seconds (int or float) or a timedelta, got {value!r}")
    elif isinstance(value, numbers.Integral):
        ns = int(value) * SECOND
    else:
        try:
            seconds = float(value)
        except OverflowError:  # a Fraction, say: finite, and past every instant
            return NEVER if value > 0 else -NEVER  # type: ignore[operator]
        if not math.isfinite(seconds):
            raise ValueError(f"{name} must be a finite number of seconds, got {value!r}")
        ns = round(seconds * 1e9) if abs(seconds) < 1e10 else int(seconds) * SECOND
    return min(max(ns, -NEVER), NEVER)


def positive_ns(value: Any, name: str) -> int:
    """Return a duration that must be more than 0 ns after rounding."""
    ns = duration_ns(value, name)
    if ns <= 0:
        raise ValueError(f"{name} must be more than 0 ns, got {value!r}")
    return ns


def limit_ns(value: Any, name: str) -> int | None:
    """Return a limit in nanoseconds; None for None and for infinity: no limit."""
    if value is None or (isinstance(value, numbers.Real) and value == math.inf):
        return None
    return duration_ns(value, name)
