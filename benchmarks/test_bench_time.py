"""Each phase of each piece of work, on every side: one group a phase and size, the sides side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from nextdue.cli._works import SCHEDULER_WORKS, TIMETABLE_WORKS, Work

ROUNDS = 3
PHASES = [
    pytest.param(work, phase, side, id=f"{work.phases[phase]}-{side}")
    for work in TIMETABLE_WORKS + SCHEDULER_WORKS
    for phase in range(len(work.phases))
    for side in work.sides
]


@pytest.mark.parametrize(("work", "phase", "side"), PHASES)
def test_phase(benchmark: BenchmarkFixture, work: Work, phase: int, side: str, size: int) -> None:
    def set_up() -> tuple[tuple[Iterator[None]], dict[str, object]]:
        steps = work.sides[side](size)
        for _ in range(phase + 1):  # the work's own set-up, then the phases before
            next(steps)
        return (steps,), {}

    benchmark.group = f"{work.phases[phase]}, {size:,}"
    benchmark.pedantic(next, setup=set_up, rounds=ROUNDS)
    benchmark.extra_info["ns an operation, best"] = benchmark.stats.stats.min / size * 1e9
