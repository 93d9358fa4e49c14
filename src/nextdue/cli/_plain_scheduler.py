"""The scheduler one writes in an afternoon, and the baseline of every comparison.

A heap of job objects with ``__lt__``, a dict by id, a `Condition` that is notified on every change, a thread that waits
for the head of the heap, and one ``ThreadPoolExecutor.submit`` for each job that is due. It is written with care, to be
right and to be read: it shows what the straightforward design costs, not what a bad one does. Its methods are named and
called as those of `nextdue.Agenda` and `nextdue.Scheduler`, so one piece of work drives both.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any


class State(Enum):
    """Where a job is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PlainJob:
    """A task, its arguments, and when it is due."""

    def __init__(self, job_id: int, run_at: int, seq: int, task: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.id = job_id
        self.run_at = run_at
        self.seq = seq
        self.task = task
        self.args = args
        self.state = State.WAITING
        self.error: Exception | None = None

    def __lt__(self, other: PlainJob) -> bool:
        return (self.run_at, self.seq) < (other.run_at, other.seq)


class PlainAgenda:
    """The jobs and their order, without threads: the owner calls `run_due`."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._heap: list[PlainJob] = []
        self._jobs: dict[int, PlainJob] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def schedule(
        self, task: Callable[..., object], delay: float = 0, *, at: int | None = None, args: tuple[Any, ...] = ()
    ) -> PlainJob:
        """Run ``task(*args)`` after ``delay`` seconds, or at the instant ``at`` in nanoseconds of the clock."""
        with self._changed:
            number = next(self._numbers)
            return self._push(PlainJob(number, self._run_at(delay, at), number, task, args))

    def cancel(self, job: PlainJob) -> bool:
        """Keep a waiting job from running; its entry leaves the heap when its time comes."""
        with self._changed:
            waiting = self._jobs.get(job.id)
            if waiting is None or waiting.state is not State.WAITING:
                return False
            waiting.state = State.CANCELLED
            del self._jobs[job.id]
            self._changed.notify()
            return True

    def reschedule(self, job: PlainJob, delay: float = 0, *, at: int | None = None) -> bool:
        """Give a waiting job another time; it keeps its id."""
        with self._changed:
            waiting = self._jobs.get(job.id)
            if waiting is None or waiting.state is not State.WAITING:
                return False
            waiting.state = State.CANCELLED
            self._push(PlainJob(job.id, self._run_at(delay, at), next(self._numbers), waiting.task, waiting.args))
            return True

    def run_due(self) -> int:
        """Run what is due, on the caller's thread; return how many ran."""
        now = self._clock()
        ran = 0
        while True:
            with self._changed:
                job = self._pop_due(now)
            if job is None:
                return ran
            self._run(job)
            ran += 1

    def _run_at(self, delay: float, at: int | None) -> int:
        return self._clock() + round(delay * 1e9) if at is None else at

    def _push(self, job: PlainJob) -> PlainJob:
        self._jobs[job.id] = job
        heapq.heappush(self._heap, job)
        self._changed.notify()
        return job

    def _head(self) -> PlainJob | None:
        while self._heap and self._heap[0].state is State.CANCELLED:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _pop_due(self, now: int) -> PlainJob | None:
        head = self._head()
        return heapq.heappop(self._heap) if head is not None and head.run_at <= now else None

    def _run(self, job: PlainJob) -> None:
        with self._changed:
            if job.state is not State.WAITING:
                return
            job.state = State.RUNNING
        try:
            job.task(*job.args)
        except Exception as error:
            job.error = error
            state = State.FAILED
        else:
            state = State.SUCCEEDED
        with self._changed:
            job.state = state
            del self._jobs[job.id]
            self._changed.notify()


class PlainScheduler(PlainAgenda):
    """The agenda with a thread that waits for the next job and a pool that runs it."""

    def __init__(self, *, workers: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(clock)
        self._closing = False
        self._pool = ThreadPoolExecutor(workers)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def shutdown(self) -> None:
        """Run what is due, drop what is not, and wait for the threads to end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._watcher.join()
        self._pool.shutdown()

    def _watch(self) -> None:
        with self._changed:
            while True:
                if (job := self._pop_due(self._clock())) is not None:
                    self._pool.submit(self._run, job)
                elif self._closing:
                    return
                elif (head := self._head()) is not None:
                    self._changed.wait((head.run_at - self._clock()) / 1e9)
                else:
                    self._changed.wait()
