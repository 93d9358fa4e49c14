"""`nextdue.compat.sched` beside the standard library's."""

from __future__ import annotations

import sched
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.drop_ins import at_least, duel, memory_duel
from nextdue.cli._works import HOUR, noop, random_times
from nextdue.compat import sched as ours

Make = Callable[..., Any]

SIZE = 200_000
CANCELS = 100  # of the original's, each searches the whole queue


def times_of(size: int) -> list[float]:
    return [float(HOUR + ns / 1e9) for ns in random_times(size).tolist()]


def enter_and_run(make: Make, size: int) -> Iterator[None]:
    """Enter all, then run all, which are due, by the clock and the delay that are the default."""
    scheduler = make()
    times = [at - 2 * HOUR for at in times_of(size)]
    yield
    enter = scheduler.enterabs
    for at in times:
        enter(at, 1, noop)
    yield
    scheduler.run()
    yield
    if not scheduler.empty():
        raise RuntimeError("events were left")


def enter_and_simulate(make: Make, size: int) -> Iterator[None]:
    """The same in simulated time, where nothing but the queue costs anything."""
    now = [0.0]
    scheduler = make(lambda: now[0], lambda delay: now.__setitem__(0, now[0] + delay))
    times = times_of(size)
    yield
    enter = scheduler.enterabs
    for at in times:
        enter(at, 1, noop)
    scheduler.run()
    yield


def cancel(make: Make, size: int) -> Iterator[None]:
    """Cancel some of many that wait, in random order."""
    scheduler = make()
    events = [scheduler.enterabs(at, 1, noop) for at in times_of(size)]
    order = random_times(min(CANCELS, size), seed=2) * size // (HOUR * 10**9)
    chosen = [events[i] for i in dict.fromkeys(order.tolist())]
    yield
    for event in chosen:
        scheduler.cancel(event)
    yield
    if len(scheduler.queue) != size - len(chosen):
        raise RuntimeError("not those were cancelled that should have been")


def enter_and_cancel(make: Make, size: int) -> Iterator[None]:
    """Enter one and cancel it at once, as a timeout that does not come does."""
    scheduler = make()
    for at in times_of(size):
        scheduler.enterabs(at, 1, noop)
    yield
    for _ in range(CANCELS):
        scheduler.cancel(scheduler.enterabs(2.0 * HOUR, 1, noop))
    yield


def enter(make: Make, size: int) -> Iterator[None]:
    scheduler = make()
    times = times_of(size)
    yield
    for at in times:
        scheduler.enterabs(at, 1, noop)
    yield


def sides(work: Callable[[Make, int], Iterator[None]]) -> tuple[Any, Any]:
    return partial(work, ours.scheduler), partial(work, sched.scheduler)


GOALS = [
    duel(
        "cancel one of {size} events",
        *sides(cancel),
        {"cancel": at_least(1000)},
        peer="sched",
        size=SIZE,
        operations=CANCELS,
    ),
    duel(
        "enter one and cancel it, beside {size} events",
        *sides(enter_and_cancel),
        {"pair": at_least(1000)},
        peer="sched",
        size=SIZE,
        operations=CANCELS,
    ),
    duel("{size} events", *sides(enter_and_run), {"enter": at_least(1), "run": at_least(1)}, peer="sched", size=SIZE),
    duel(
        "{size} events entered and run in simulated time",
        *sides(enter_and_simulate),
        {"pair": None},
        peer="sched",
        size=SIZE,
    ),
    memory_duel("memory of an event, {size} waiting", *sides(enter), None, peer="sched", size=SIZE),
]
