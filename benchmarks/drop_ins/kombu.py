"""kombu's timer: entering, cancelling, and what cancelled entries leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from kombu.asynchronous import timer as theirs

from benchmarks.drop_ins import at_least, at_most, duel, memory_duel
from nextdue.cli._works import HOUR, noop
from nextdue.compat import kombu as ours


def add_and_cancel(make: type[Any], size: int) -> Iterator[None]:
    random = Random(1)
    timer, delays, entries = make(), [10 + random.random() * HOUR for _ in range(size)], []
    yield
    call_after, keep = timer.call_after, entries.append
    for delay in delays:
        keep(call_after(delay, noop))
    yield
    for entry in entries:
        entry.cancel()
    yield
    assert next(iter(timer))[1] is None


def add_and_fire(make: type[Any], size: int) -> Iterator[None]:
    random = Random(1)
    timer = make()
    for _ in range(size):
        timer.call_at(random.random(), noop)  # long ago
    entries, fired = iter(timer), 0
    yield
    while True:
        entry = next(entries)[1]
        if entry is None:
            break
        entry()
        fired += 1
    yield
    assert fired == size


def forget(make: type[Any], size: int) -> Iterator[None]:
    """Enter and cancel in turn: a timeout that never strikes."""
    timer = make()
    yield
    for _ in range(size):
        timer.call_after(HOUR, noop).cancel()
    yield
    assert next(iter(timer))[1] is None


GOALS = [
    duel(
        "{size} entries",
        partial(add_and_cancel, ours.Timer),
        partial(add_and_cancel, theirs.Timer),
        {"add": at_least(3), "cancel": None},
        peer="kombu",
    ),
    duel(
        "{size} entries: fire",
        partial(add_and_fire, ours.Timer),
        partial(add_and_fire, theirs.Timer),
        {"fire": at_least(1)},
        peer="kombu",
    ),
    memory_duel(
        "memory, {size} times add and cancel",
        partial(forget, ours.Timer),
        partial(forget, theirs.Timer),
        at_most(0.02),
        peer="kombu",
    ),
]
