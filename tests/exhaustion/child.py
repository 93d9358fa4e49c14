"""Run one operation again and again, each time with another allocation failing, and look at what is left.

    LD_PRELOAD=allocator.so PYTHONMALLOC=malloc python child.py compiled|pure [OPERATION...]

Prints a line of JSON: for each operation how often it met a failed allocation, and what did not hold after it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import random
import sys
import threading
import traceback
from typing import Any

import numpy as np

import nextdue
import nextdue.pure
from nextdue import Scheduler, Status
from nextdue.testing import ManualClock

allocator = ctypes.CDLL(None)
allocator.exhaust.argtypes = [ctypes.c_long, ctypes.c_size_t, ctypes.c_long]
allocator.relent.restype = ctypes.c_long
allocator.exhaust_everywhere.argtypes = [ctypes.c_long]
allocator.relent_everywhere.restype = ctypes.c_long

MANY = 1400  # more than a chunk of slots, and than the heap alone takes
DUE = 500_000  # half of them
RUN_ATS = np.arange(MANY, dtype=np.int64)[::-1].copy()
ITEMS = [object() for _ in range(MANY)]
stack = nextdue.pure if sys.argv[1] == "pure" else nextdue


class Timers:
    """A timetable, and what has to be in it: its timers by id.

    What an operation did is noted in a list that needs no memory, since it is not this that is to fail.
    """

    def __init__(self, count: int = 0) -> None:
        self.rng = random.Random(7)
        self.table = stack.Timetable()
        self.model: dict[int, tuple[int, object]] = {}
        self.noted: list[tuple[int, int, object] | None] = [None] * MANY
        self.notes = 0
        self.popped: list[object] | np.ndarray | None = None  # what an operation took out
        for _ in range(count):
            self.add()
        self.settle()

    def add(self) -> None:
        run_at, item = self.rng.randrange(10**6), object()
        self.note(self.table.add(run_at, item), run_at, item)

    def note(self, timer_id: int, run_at: int, item: object) -> None:
        self.noted[self.notes] = timer_id, run_at, item
        self.notes += 1

    def settle(self) -> None:
        for timer_id, run_at, item in self.noted[: self.notes]:
            self.model[timer_id] = run_at, item
        self.notes = 0
        if self.popped is not None:  # all that was due, or the first that there was memory for
            due = sorted((run_at, timer_id) for timer_id, (run_at, _) in self.model.items() if run_at <= DUE)
            taken = {timer_id: self.model.pop(timer_id)[1] for _, timer_id in due[: len(self.popped)]}
            assert list(self.popped) == list(taken if isinstance(self.popped, np.ndarray) else taken.values())
            self.popped = None

    def verify(self) -> None:
        self.settle()
        assert self.table.cancel(self.table.add(0))  # a rebuild for which there was no memory is made up for
        self.table.check()
        assert len(self.table) == len(self.model), (len(self.table), len(self.model))
        for timer_id in self.model:
            assert timer_id in self.table
        for _ in range(MANY):  # it can be used on
            self.add()
        self.settle()
        self.table.check()
        drained = [self.table.pop() for _ in range(len(self.table))]
        assert [run_at for run_at, _, _ in drained] == sorted(run_at for run_at, _, _ in drained)
        assert {timer_id: (run_at, item) for run_at, timer_id, item in drained} == self.model


def add_one_by_one(timers: Timers) -> None:
    for _ in range(MANY):
        timers.add()


def add_many(timers: Timers) -> None:
    ids = timers.table.add_many(RUN_ATS, ITEMS)
    for timer_id, run_at, item in zip(ids, RUN_ATS, ITEMS, strict=True):
        timers.note(int(timer_id), int(run_at), item)


def reschedule(timers: Timers) -> None:
    for timer_id, (_, item) in timers.model.items():
        run_at = timers.rng.randrange(10**6)
        timers.table.reschedule(timer_id, run_at)
        timers.note(timer_id, run_at, item)


def cancel(timers: Timers) -> None:
    for timer_id in list(timers.model)[::2] + list(timers.model)[1::4]:
        assert timers.table.cancel(timer_id)
        del timers.model[timer_id]


def cancel_many(timers: Timers) -> None:
    ids = list(timers.model)[::2] + list(timers.model)[1::4]
    assert timers.table.cancel_many(ids) == len(ids)
    for timer_id in ids:
        del timers.model[timer_id]


def pop_due(timers: Timers) -> None:
    timers.popped = timers.table.pop_due(DUE)


def pop_due_ids(timers: Timers) -> None:
    timers.popped = timers.table.pop_due_ids(DUE)


def pop(timers: Timers) -> None:
    for _ in range(len(timers.table)):
        _, timer_id, _ = timers.table.pop()
        del timers.model[timer_id]


def clear(timers: Timers) -> None:
    timers.table.clear()
    timers.model.clear()


class Jobs:
    """An agenda, the jobs that it took, and how often each has run and should have."""

    def __init__(self, count: int = 0) -> None:
        self.rng = random.Random(7)
        self.clock = ManualClock()
        self.agenda = stack.Agenda(self.clock)
        self.jobs: list[object] = [None] * MANY
        self.runs = [0] * MANY
        self.expected = [0] * MANY
        self.count = 0
        for _ in range(count):
            self.schedule()

    def run(self, number: int) -> None:
        self.runs[number] += 1

    def schedule(self, **options: object) -> None:
        number = self.count
        self.count += 1
        self.jobs[number] = self.agenda.schedule(self.run, delay=self.rng.random(), args=(number,), **options)
        self.expected[number] = 1

    def verify(self) -> None:
        self.clock.advance(2)
        while self.agenda.run_due() or self.agenda.next_run_at() is not None:
            self.clock.advance(2)
        stats = self.agenda.stats()
        assert stats.waiting == stats.ready == stats.running == stats.failed == 0, stats
        wrong = [number for number in range(MANY) if self.runs[number] != self.expected[number]]
        assert not wrong, (len(wrong), wrong[0], self.runs[wrong[0]], self.jobs[wrong[0]])
        for job in self.jobs:
            assert job is None or job.status in (Status.SUCCEEDED, Status.CANCELLED), job


def schedule(jobs: Jobs) -> None:
    for _ in range(MANY):
        jobs.schedule()


def schedule_with_rules(jobs: Jobs) -> None:
    for k in range(40):
        after = [job for job in jobs.jobs[max(0, k - 2) : k] if job is not None]
        jobs.schedule(id=f"job {k}", key=k % 7, after=after, timeout=60, priority=k % 3)


def cancel_jobs(jobs: Jobs) -> None:
    for number in range(0, MANY, 2):
        assert jobs.jobs[number].cancel()
        jobs.expected[number] = 0


def run_due(jobs: Jobs) -> None:
    jobs.clock.advance(2)
    jobs.agenda.run_due()


def take_due(jobs: Jobs) -> None:
    jobs.clock.advance(2)
    for job in jobs.agenda.take_due():
        job.task(*job.args)
        jobs.agenda.finished(job)


class Workers(Jobs):
    """The same with a scheduler's threads; what fails, fails in the thread that schedules."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(workers=2)
        self.agenda = self.scheduler

    def verify(self) -> None:
        for job in self.jobs:
            assert job is None or job.wait(60), job
        assert self.scheduler.shutdown(timeout=60).complete
        self.agenda = self.scheduler._agenda
        super().verify()


def schedule_on_workers(workers: Workers) -> None:
    for _ in range(50):
        workers.schedule()


def fail() -> None:
    raise ValueError


def again(attempt: int, error: BaseException) -> float | None:
    return 0.0001 if attempt < 3 else None


def slots(at: int) -> int:
    return at + 400_000


def hear(event: object) -> None:
    pass


class Threads:
    """A scheduler on the real clock, in any thread of which, or in this one, an allocation fails.

    What the operation hangs on a list has been added, and has to end; a run that meets the failure may fail.
    """

    def __init__(self) -> None:
        self.scheduler = Scheduler(workers=2, agenda=stack.Agenda())
        self.jobs: list[Any] = [None] * MANY
        self.count = 0

    def add(self, call: Any, *args: object, **options: object) -> None:
        """Nothing is lost between the call and the list: storing needs no memory."""
        try:
            self.jobs[self.count] = call(*args, **options)
        except MemoryError:
            return
        self.count += 1

    def verify(self) -> None:
        for job in self.jobs:
            assert job is None or job.wait(60), (job, self.scheduler.stats())
        assert self.scheduler.submit(pow, 2, 3).result(60) == 8
        assert self.scheduler.shutdown(timeout=60) == (True, 0, 0)
        stats = self.scheduler.stats()
        assert stats.waiting == stats.ready == stats.running == stats.cancelled == 0, stats
        assert stats.succeeded + stats.failed == self.count + 1, (stats, self.count)


def fail_everywhere(threads: Threads) -> None:
    for _ in range(10):
        threads.add(threads.scheduler.schedule, fail)
        threads.add(threads.scheduler.schedule, fail, retry=again)


def order_everywhere(threads: Threads) -> None:
    for k in range(10):
        after = None if threads.count == 0 else [threads.jobs[threads.count - 1]]
        policy = "cancel" if after is None else "run"
        threads.add(
            threads.scheduler.schedule,
            int,
            id=f"job {k}",
            key=k % 3,
            after=after,
            on_upstream_failure=policy,
            jitter=1e-4,
        )


def repeat_everywhere(threads: Threads) -> None:
    for _ in range(4):
        threads.add(threads.scheduler.schedule_at_fixed_rate, int, 0, 0.0005, max_runs=4)
        threads.add(threads.scheduler.schedule_with_fixed_delay, fail, 0, 0.0005, max_runs=4)
        threads.add(threads.scheduler.schedule_recurring, int, slots, max_runs=4)


def hear_everywhere(threads: Threads) -> None:
    for event in ("started", "succeeded", "failed"):
        try:  # noqa: SIM105 (suppress() needs memory itself)
            threads.scheduler.on(event, hear)
        except MemoryError:
            pass
    for k in range(20):
        threads.add(threads.scheduler.schedule, fail if k % 4 == 0 else int, delay=k % 3 * 0.0005)


# Not with futures: their own lock is held for good where memory fails between its `__enter__` and its `__exit__`.
EVERYWHERE = [fail_everywhere, order_everywhere, repeat_everywhere, hear_everywhere]
STRIDE = 13  # of their allocations that fail, one in each turn


# operation, what it starts from, the least size of an allocation that fails, how many of them fail
SCENES = [
    (operation, prepare, least, times)
    for operation, prepare, least in [
        (add_one_by_one, Timers, 512),
        (add_many, Timers, 64),
        (add_many, lambda: Timers(MANY), 512),
        (reschedule, lambda: Timers(60), 256),
        (cancel, lambda: Timers(MANY), 512),
        (cancel_many, lambda: Timers(MANY), 512),
        (pop_due, lambda: Timers(MANY), 512),
        (pop_due_ids, lambda: Timers(MANY), 512),
        (pop, lambda: Timers(MANY), 512),
        (clear, lambda: Timers(MANY), 512),
        (schedule, Jobs, 512),
        (schedule_with_rules, Jobs, 256),
        (cancel_jobs, lambda: Jobs(MANY), 512),
        (run_due, lambda: Jobs(MANY), 512),
        (take_due, lambda: Jobs(MANY), 512),
        (schedule_on_workers, Workers, 512),
    ]
    for times in (1, 1_000_000)
]


def play(operation, prepare, least: int, times: int) -> tuple[int, list[str]]:
    """How many turns met a failure, and what did not hold after it."""
    met, faults = 0, []
    for nth in range(100):
        subject = prepare()
        gc.collect()
        raised: BaseException | None = None
        try:
            allocator.exhaust(nth, least, times)
            operation(subject)
        except MemoryError as error:
            raised = error
        failed = allocator.relent()
        met += failed > 0
        try:
            subject.verify()
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1].line
            faults.append(f"failure {nth}, {raised!r} raised: {error!r} at {place!r}")
        if not failed:
            break
    return met, faults


def play_everywhere(operation) -> tuple[int, list[str]]:
    """The same with one failure in any of the threads."""
    met, faults = 0, []
    for turn in range(60):
        threads = Threads()
        gc.collect()
        allocator.exhaust_everywhere(turn * STRIDE + turn % STRIDE)
        try:  # noqa: SIM105 (suppress() needs memory itself)
            operation(threads)
        except MemoryError:
            pass
        allocator.spare(1)  # to look at it is no part of it
        try:
            for job in threads.jobs:
                assert job is None or job.wait(60), (job, threads.scheduler.stats())
            met += allocator.relent_everywhere()
            threads.verify()
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1].line
            faults.append(f"failure {turn}: {error!r} at {place!r}")
        allocator.relent_everywhere()
        allocator.spare(0)
    return met, faults


def main() -> None:
    logging.disable(logging.CRITICAL)
    report = {}
    for operation, prepare, least, times in SCENES:
        name = f"{operation.__name__}, {'once' if times == 1 else 'from then on'}"
        if len(sys.argv) < 3 or operation.__name__ in sys.argv[2:]:
            report[name] = play(operation, prepare, least, times)
    for operation in EVERYWHERE:
        if operation.__name__ in sys.argv[2:]:
            report[operation.__name__] = play_everywhere(operation)
    assert not [thread for thread in threading.enumerate()[1:] if thread.is_alive()]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
