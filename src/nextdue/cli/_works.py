"""The pieces of work that are measured, each written once for every side that does it.

A side is a generator function of the size. What comes before its first ``yield`` is set-up; what lies between two
yields is a phase, and only phases are measured; what comes after the last one checks that the work was done. Loops
stand inline in each side, with methods bound to locals: a figure is the cost of store and loop, not of a harness.

Times are drawn evenly over an hour with a fixed seed, so all sides get the same ones in the same order.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nextdue import Agenda, HeapqTimetable, Scheduler, Status, Timetable
from nextdue.cli._plain_scheduler import PlainAgenda, PlainScheduler, State
from nextdue.testing import ManualClock

if TYPE_CHECKING:
    from numpy.typing import NDArray

Side = Callable[[int], Iterator[None]]
AnyTimetable: TypeAlias = Timetable | HeapqTimetable

NEVER = 2**63 - 1
HOUR = 3600
HOUR_NS = HOUR * 10**9
WORKERS = 2
MAX_DRAWN = 10**6  # times drawn for what is done while others wait; more operations use them in turn
_LOOP_EVERY = 1024  # operations between two turns of an asyncio loop, which sweeps out what was cancelled
_PATIENCE = 600.0  # seconds for jobs that should run in no time; then they are lost


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


def hold(make: Callable[[], AnyTimetable], size: int, holds: int | None = None) -> Iterator[None]:
    """Pop one and add one within the next hour, ``size`` times by default, with ``size`` timers waiting throughout."""
    table, gaps = make(), _drawn(size, holds)
    table.add_many(random_times(size), [noop] * size)
    yield
    add, pop = table.add, table.pop
    for gap in gaps:
        at, _, item = pop()
        add(at + gap, item)
    yield
    _expect(len(table), size)


def hold_heapq(size: int, holds: int | None = None) -> Iterator[None]:
    """The same on a heap of tuples."""
    heap, gaps = _heap(size), _drawn(size, holds)
    yield
    for seq, gap in enumerate(gaps, start=size):
        at, _, item = heappop(heap)
        heappush(heap, (at + gap, seq, item))
    yield


def bulk(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add ``size`` timers in one call, then pop all in one call, in order."""
    table, times = make(), random_times(size)
    yield
    ids = table.add_many(times)
    yield
    popped = table.pop_due_ids(NEVER)
    yield
    _expect(len(popped), size)
    _expect(int((popped == ids[np.argsort(times, kind="stable")]).sum()), size)


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


def bulk_argsort(size: int) -> Iterator[None]:
    """Put the same times in order, equal ones as they came, without a store to add them to."""
    times = random_times(size)
    yield
    order = np.argsort(times, kind="stable")
    yield
    _expect(len(order), size)


def add_without_items(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add ``size`` timers that are nothing but an id."""
    table, times = make(), random_times(size).tolist()
    yield
    add = table.add
    for at in times:
        add(at)
    yield
    _expect(len(table), size)


def add_then_cancel(make: Callable[[], AnyTimetable], size: int) -> Iterator[None]:
    """Add ``size`` timers, then cancel them in the order in which they were added, one call each."""
    table, times = make(), random_times(size).tolist()
    yield
    add, cancel = table.add, table.cancel
    ids = [add(at, noop) for at in times]
    yield
    for timer_id in ids:
        cancel(timer_id)
    yield
    _expect(len(table), 0)


def add_then_cancel_asyncio(size: int) -> Iterator[None]:
    """The same on an event loop, with the turn in which it sweeps."""
    loop, delays = asyncio.new_event_loop(), (HOUR + random_times(size) / 1e9).tolist()
    yield
    call_later = loop.call_later
    handles = [call_later(delay, noop) for delay in delays]
    yield
    for handle in handles:
        handle.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    yield
    _expect(sum(handle.cancelled() for handle in handles), size)
    loop.close()


def add_cancel(make: Callable[[], AnyTimetable], size: int, pairs: int | None = None) -> Iterator[None]:
    """Add one and cancel it at once, beside ``size`` timers that wait; ``size`` times by default."""
    table, times = make(), _drawn(size, pairs)
    table.add_many(random_times(size), [noop] * size)
    yield
    add, cancel = table.add, table.cancel
    for at in times:
        cancel(add(at, noop))
    yield
    _expect(len(table), size)


def add_cancel_asyncio(size: int, pairs: int | None = None) -> Iterator[None]:
    """The same on an event loop that gets a turn now and then, as in a program that lives."""
    loop = asyncio.new_event_loop()
    delays = (HOUR + random_times(min(size, MAX_DRAWN), seed=2) / 1e9).tolist()
    handles = [loop.call_later(delay, noop) for delay in (HOUR + random_times(size) / 1e9).tolist()]

    async def add_and_cancel() -> None:
        call_later = loop.call_later
        for done, delay in enumerate(islice(cycle(delays), pairs or size)):
            call_later(delay, noop).cancel()
            if not done % _LOOP_EVERY:
                await asyncio.sleep(0)

    yield
    loop.run_until_complete(add_and_cancel())
    yield
    _expect(sum(not handle.cancelled() for handle in handles), size)
    loop.close()


def add_cancel_heapq(size: int) -> Iterator[None]:
    """The same on a heap of tuples: a set of cancelled numbers, and a sweep when half of the heap is dead.

    Without the sweep the heap would grow for as long as the program runs.
    """
    heap, times = _heap(size), _drawn(size, None)
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


def run_due(
    make: Callable[[Callable[[], int]], Agenda | PlainAgenda], succeeded: Callable[[Any], bool], size: int
) -> Iterator[None]:
    """The same by somebody who keeps every job and can ask for its state afterwards.

    The clock is a call into C, so a reading costs as much as one of the real clock, and less than one of `ManualClock`.
    """
    now = [0]
    agenda, delays = make(partial(now.__getitem__, 0)), (random_times(size) / 1e9).tolist()
    yield
    jobs = [agenda.schedule(noop, delay) for delay in delays]
    yield
    now[0] = HOUR_NS
    agenda.run_due()
    yield
    _expect(sum(map(succeeded, jobs)), size)


def job_succeeded(job: Any) -> bool:
    """Tell whether one of our jobs did."""
    return bool(job.status is Status.SUCCEEDED)


def plain_job_succeeded(job: Any) -> bool:
    """Tell whether a job of the plain scheduler did."""
    return bool(job.state is State.SUCCEEDED)


def bare_calls(size: int) -> Iterator[None]:
    """Call the tasks and do nothing else: what no scheduler can be faster than."""
    tasks = [noop] * size
    yield
    for task in tasks:
        task()
    yield


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


def many_producers(size: int, producers: int = 4, workers: int = 4, sleepers: int = 0) -> Iterator[None]:
    """The same from several threads at once; ``sleepers`` of the workers are held by tasks that do not end.

    With sleepers the phase ends when the last job has run on the one worker that is left, while they still sleep.
    """
    scheduler, counter = Scheduler(workers=workers), itertools.count()
    task = counter.__next__
    asleep, wake, done = threading.Barrier(sleepers + 1), threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.wait()
        wake.wait()

    def produce(count: int) -> None:
        schedule = scheduler.schedule
        for _ in range(count):
            schedule(task)

    for _ in range(sleepers):
        scheduler.schedule(sleep)
    asleep.wait()
    shares = [size // producers + (i < size % producers) for i in range(producers)]
    threads = [threading.Thread(target=produce, args=(share,)) for share in shares]
    yield
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sleepers:
        scheduler.schedule(done.set)
        done.wait(_PATIENCE)
    else:
        scheduler.shutdown()
    yield
    ran = next(counter)
    wake.set()
    scheduler.shutdown()
    _expect(ran, size)


def _drawn(size: int, count: int | None) -> Iterator[int]:
    return islice(cycle(random_times(min(size, MAX_DRAWN), seed=2).tolist()), size if count is None else count)


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
