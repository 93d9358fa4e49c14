"""The pieces of work that are measured, each written once for every side that does it.

A side is a generator function of the size. What comes before its first ``yield`` is set-up; what lies between two
yields is a phase, and only phases are measured; what comes after the last one checks that the work was done. Loops
stand inline in each side, with methods bound to locals: a figure is the cost of store and loop, not of a harness.

Times are drawn evenly over an hour with a fixed seed, so all sides get the same ones in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from nextdue import Agenda, HeapqTimetable, Scheduler, Timetable
from nextdue.cli._plain_scheduler import PlainAgenda, PlainScheduler
from nextdue.testing import ManualClock

if TYPE_CHECKING:
    from numpy.typing import NDArray

Side = Callable[[int], Iterator[None]]
AnyTimetable: TypeAlias = Timetable | HeapqTimetable

NEVER = 2**63 - 1
HOUR = 3600
HOUR_NS = HOUR * 10**9
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What is done ``size`` times in each phase, and who does it; the first side is ours."""

    name: str
    phases: tuple[str, ...]
    sides: Mapping[str, Side]


def noop() -> None:
    """The item of every timer and the task of every job."""


def random_times(size: int, seed: int = 1) -> NDArray[np.int64]:
    """Return int64[size], nanoseconds, drawn evenly over an hour."""
    return np.random.default_rng(seed).integers(HOUR_NS, size=size)


def one_by_one(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add ``size`` timers, then pop them, one call each."""
    table, times = make(), random_times(size).tolist()
    yield
    add = table.add
    for at in times:
        add(at, noop)
    yield
    pop = table.pop
    for _ in times:
        pop()
    yield


def one_by_one_heapq(size: int) -> Iterator[None]:
    """The same on a heap of tuples."""
    heap: list[tuple[int, int, object]] = []
    times = random_times(size).tolist()
    yield
    for seq, at in enumerate(times):
        heappush(heap, (at, seq, noop))
    yield
    for _ in times:
        heappop(heap)
    yield


def hold(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Pop one and add one within the next hour, with ``size`` timers waiting all the time."""
    table, gaps = make(), random_times(size, seed=2).tolist()
    table.add_many(random_times(size), [noop] * size)
    yield
    add, pop = table.add, table.pop
    for gap in gaps:
        at, _, item = pop()
        add(at + gap, item)
    yield


def hold_heapq(size: int) -> Iterator[None]:
    """The same on a heap of tuples."""
    heap, gaps = _heap(size), random_times(size, seed=2).tolist()
    yield
    for seq, gap in enumerate(gaps, start=size):
        at, _, item = heappop(heap)
        heappush(heap, (at + gap, seq, item))
    yield


def bulk(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add ``size`` timers in one call, then pop all in one call, in order."""
    table, times = make(), random_times(size)
    yield
    table.add_many(times)
    yield
    popped = table.pop_due_ids(NEVER)
    yield
    _expect(len(popped), size)


def bulk_heapq(size: int) -> Iterator[None]:
    """The same on a heap of tuples: heapify, then pop one by one, since `heapq` has no bulk pop."""
    times = random_times(size).tolist()
    yield
    heap = [(at, seq, noop) for seq, at in enumerate(times)]
    heapify(heap)
    yield
    popped = [heappop(heap) for _ in times]
    yield
    _expect(len(popped), size)


def add_cancel(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add one and cancel it at once, beside ``size`` timers that wait."""
    table, times = make(), random_times(size, seed=2).tolist()
    table.add_many(random_times(size), [noop] * size)
    yield
    add, cancel = table.add, table.cancel
    for at in times:
        cancel(add(at, noop))
    yield
    _expect(len(table), size)


def add_cancel_heapq(size: int) -> Iterator[None]:
    """The same on a heap of tuples: a set of cancelled numbers, and a sweep when half of the heap is dead.

    Without the sweep the heap would grow for as long as the program runs.
    """
    heap, times = _heap(size), random_times(size, seed=2).tolist()
    cancelled: set[int] = set()
    yield
    for seq, at in enumerate(times, start=size):
        heappush(heap, (at, seq, noop))
        cancelled.add(seq)
        if 2 * len(cancelled) > len(heap):
            heap = [entry for entry in heap if entry[1] not in cancelled]
            heapify(heap)
            cancelled.clear()
    yield
    _expect(len(heap) - len(cancelled), size)


def inline(make: Callable[[ManualClock], Agenda | PlainAgenda], size: int) -> Iterator[None]:
    """Schedule ``size`` jobs within the next hour, then run all of them on this thread, on a simulated clock."""
    clock = ManualClock()
    agenda, delays = make(clock), (random_times(size) / 1e9).tolist()
    yield
    schedule = agenda.schedule
    for delay in delays:
        schedule(noop, delay)
    yield
    clock.advance(HOUR)
    ran = agenda.run_due()
    yield
    _expect(ran, size)


def end_to_end(make: Callable[..., Scheduler | PlainScheduler], size: int) -> Iterator[None]:
    """Schedule ``size`` jobs that are due at once, from this thread; the last has run when the phase ends.

    The task is a counter's bound ``__next__``: it counts inside the job and costs as little as a call can.
    """
    scheduler, counter = make(workers=WORKERS), itertools.count()
    task = counter.__next__
    yield
    schedule = scheduler.schedule
    for _ in range(size):
        schedule(task)
    scheduler.shutdown()
    yield
    _expect(next(counter), size)


def _heap(size: int) -> list[tuple[int, int, object]]:
    heap: list[tuple[int, int, object]] = [(at, seq, noop) for seq, at in enumerate(random_times(size).tolist())]
    heapify(heap)
    return heap


def _expect(done: int, size: int) -> None:
    if done != size:
        raise RuntimeError(f"a side did {done} of {size}: its figures mean nothing")


def _timetables(side: Callable[[Callable[[], AnyTimetable], int], Iterator[None]], raw: Side) -> dict[str, Side]:
    return {"nextdue": partial(side, Timetable), "HeapqTimetable": partial(side, HeapqTimetable), "heapq": raw}


ONE_BY_ONE = Work("one by one", ("add", "pop"), _timetables(one_by_one, one_by_one_heapq))
INLINE = Work(
    "inline",
    ("schedule", "run_due"),
    {"nextdue": partial(inline, Agenda), "plain scheduler": partial(inline, PlainAgenda)},
)
TIMETABLE_WORKS = (
    ONE_BY_ONE,
    Work("hold", ("hold",), _timetables(hold, hold_heapq)),
    Work("bulk", ("bulk add", "bulk pop"), _timetables(bulk, bulk_heapq)),
    Work("add + cancel", ("add + cancel",), _timetables(add_cancel, add_cancel_heapq)),
)
SCHEDULER_WORKS = (
    INLINE,
    Work(
        "end to end",
        ("end to end",),
        {"nextdue": partial(end_to_end, Scheduler), "plain scheduler": partial(end_to_end, PlainScheduler)},
    ),
)
SCHEDULERS: Mapping[str, Callable[..., Scheduler | PlainScheduler]] = {
    "nextdue": Scheduler,
    "plain scheduler": PlainScheduler,
}
