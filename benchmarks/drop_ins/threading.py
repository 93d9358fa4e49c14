"""`nextdue.compat.threading` beside the standard library's timers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.drop_ins import at_least, duel
from nextdue.cli._goals import OURS, Bench, Goal, Line
from nextdue.cli._works import HOUR, noop
from nextdue.compat.threading import Timer

Make = Callable[..., Any]

SIZE = 10_000  # threads of the original's that start one after the other
WAITING = 100_000


def start_and_cancel(make: Make, size: int) -> Iterator[None]:
    """Start one and cancel it at once, when there have been timers before."""
    timer = make(0, noop)
    timer.start()
    timer.join()
    yield
    for _ in range(size):
        timer = make(HOUR, noop)
        timer.start()
        timer.cancel()
    yield
    timer.join()


def wait(make: Make, size: int) -> Iterator[None]:
    yield
    timers = [make(HOUR, noop) for _ in range(size)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    yield


def memory(bench: Bench) -> Iterator[Line]:
    """So many waiting. The original's threads are beyond what a system allows, so there is no other side."""
    size = max(1, WAITING * bench.size // 10**6)
    label = f"memory of {size:,} that wait"
    taken = bench.best(label, {OURS: bench.memory(partial(wait, Timer), size)})[OURS]["memory"]
    yield Line("", label, taken * size / 1e6, "MB", Goal("≤", 100 * size / WAITING, "MB"))


GOALS = [
    duel(
        "start and cancel",
        partial(start_and_cancel, Timer),
        partial(start_and_cancel, threading.Timer),
        {"pair": at_least(100)},
        peer="threading",
        size=SIZE,
    ),
    memory,
]
