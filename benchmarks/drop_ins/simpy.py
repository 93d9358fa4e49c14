"""`compat.simpy.Environment` beside SimPy's: an event each time that one of many processes waits anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

import simpy

from benchmarks.drop_ins import at_least, duel
from nextdue.compat.simpy import Environment

EVENTS = 300_000


def waiting(environment: Callable[[], simpy.Environment], size: int) -> Iterator[None]:
    """Let ``size`` processes wait for random times, again and again."""
    env, delay = environment(), random.Random(1).random

    def process() -> simpy.events.ProcessGenerator:
        while True:
            yield env.timeout(delay())

    for _ in range(size):
        env.process(process())
    step = env.step
    for _ in range(size):
        step()
    before = env.now
    yield
    for _ in repeat(None, EVENTS):  # as `run` does
        step()
    yield
    assert env.now > before
    assert len(env._queue) == size


GOALS = [
    duel(
        "{size} processes that wait",
        partial(waiting, Environment),
        partial(waiting, simpy.Environment),
        {"an event": at_least(factor)},
        peer="simpy",
        size=size,
        operations=EVENTS,
    )
    for size, factor in ((100, 1), (10_000, 1), (100_000, 2))
]
