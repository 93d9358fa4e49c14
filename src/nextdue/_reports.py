"""What an agenda tells about itself, for both stacks: snapshots, counts, events, and the run that a task is in."""

from __future__ import annotations

import numbers
import threading
from datetime import timedelta
from typing import Any, NamedTuple

from .status import Status


class JobInfo(NamedTuple):
    """A job as `jobs()` saw it; instants in nanoseconds on the agenda's clock."""

    id: str | int
    status: Status
    run_at: int  # of the next run, or of the one that is going
    attempts: int
    running_since: int | None
    paused: bool
    priority: int
    job: Any


class Event(NamedTuple):
    """What a listener is told."""

    name: str
    job: Any
    attempt: int
    error: BaseException | None  # of "failed", "retrying" and "timed_out"
    skipped: int  # of "skipped": how many slots; else 0


class Lags:
    """How late runs started, in nanoseconds: a histogram whose buckets are an eighth of their value wide at most."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts  # {greatest lag of a bucket: how many runs}

    def quantile(self, q: float) -> int:
        """The lag that the fraction q of the runs did not pass, 0..1, rounded up to its bucket; 0 without runs."""
        if isinstance(q, bool) or not isinstance(q, numbers.Real):
            raise TypeError(f"q must be a number from 0 to 1, got {q!r}")
        if not 0 <= q <= 1:
            raise ValueError(f"q must be a number from 0 to 1, got {q!r}")
        total = sum(self.counts.values())
        seen = 0
        for lag in sorted(self.counts):
            seen += self.counts[lag]
            if seen >= q * total:
                return lag
        return 0

    def __repr__(self) -> str:
        return f"<Lags p50={self.quantile(0.5)} p99={self.quantile(0.99)} max={self.quantile(1)} ns>"


class Stats(NamedTuple):
    """Counts of an agenda: of jobs that are there now, and since it was made."""

    waiting: int  # for their time
    ready: int  # due, and waiting for a worker or for their key
    running: int
    started: int  # runs
    succeeded: int  # jobs
    failed: int
    cancelled: int
    retried: int  # attempts after the first
    skipped: int  # slots
    timed_out: int  # runs
    lag: Lags


class Run:
    """One execution of a job, as its task sees it.

    id: the job's. attempt: 1-based number of the run. run_at: the nominal instant it was due at, nanoseconds on the
    agenda's clock. deadline: the instant of its time limit, or None.
    """

    __slots__ = ("_job", "attempt", "deadline", "id", "run_at")

    def __init__(self, job: Any, attempt: int, run_at: int, deadline: int | None) -> None:
        self._job = job
        self.id: str | int = job.id
        self.attempt = attempt
        self.run_at = run_at
        self.deadline = deadline

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the outcome any more: the job was cancelled, or the run has passed its limit."""
        return bool(self._job._is_stopped(self.attempt))

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until `cancelled`, at most `timeout` seconds of real time; whether it is. For tasks that would sleep."""
        return bool(self._job._wait_stopped(self.attempt, timeout))

    def __repr__(self) -> str:
        return f"<Run {self.attempt} of job {self.id!r}>"


class _Here(threading.local):
    round: Any = None  # the Round of the loop that runs tasks on this thread


here = _Here()


def current_job() -> Run | None:
    """Return the `Run` that the calling task is in, or None outside of one (and in another process's pool)."""
    run: Run | None = None if here.round is None else here.round.current()
    return run
