"""The drop-ins of `nextdue.compat` beside what they stand in for: ``python -m benchmarks.drop_ins [NAME...]``.

A module here without an underscore is about one drop-in. Its ``GOALS`` are functions of a `nextdue.cli._goals.Bench`
that yield lines of the table, as those of ``nextdue bench`` do; `duel` and `memory_duel` make the usual ones. Sides
are generator functions of the size with set-up, phases and checks apart (`nextdue.cli._works`), at module level, since
each sample is taken in a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nextdue.cli._goals import OURS, Bench, Goal, Line
from nextdue.cli._works import Side

FULL_SIZE = 10**6

Lines = Callable[[Bench], Iterator[Line]]


def at_least(factor: float) -> Goal:
    """So many times faster than the original; 1: not slower."""
    return Goal("≥", factor, "x")


def at_most(factor: float) -> Goal:
    """Ours over theirs."""
    return Goal("≤", factor, "x")


def duel(
    work: str,
    ours: Side,
    theirs: Side,
    goals: Mapping[str, Goal | None],
    *,
    peer: str,
    size: int = FULL_SIZE,
    operations: int | None = None,
) -> Lines:
    """Time the phases of two sides.

    Args:
        work: what is done, with ``{size}`` where the size stands.
        goals: for each phase, in their order; None: shown, not judged. ``"all"``, last, is for their sum.
        peer: the name of the other side.
        size: at full size; ``--size`` scales it.
        operations: in each phase, where they are not as many as the size; not scaled.
    """

    def lines(bench: Bench) -> Iterator[Line]:
        scaled = max(1, size * bench.size // FULL_SIZE)
        phases = [name for name in goals if name != "all"]
        label = work.format(size=f"{scaled:,}")
        sides = {
            name: bench.times(side, phases, operations or scaled, scaled)
            for name, side in ((OURS, ours), (peer, theirs))
        }
        figures = bench.best(label, sides)
        for name, goal in goals.items():
            what = f"{label}: {name}" if len(goals) > 1 else label
            yield Line("", what, figures[OURS][name], "ns", goal, peer, figures.get(peer, {}).get(name))

    return lines


def memory_duel(work: str, ours: Side, theirs: Side, goal: Goal | None, *, peer: str, size: int = FULL_SIZE) -> Lines:
    """Compare what the resident memory grows by in the first phase of two sides, an operation."""

    def lines(bench: Bench) -> Iterator[Line]:
        scaled = max(1, size * bench.size // FULL_SIZE)
        label = work.format(size=f"{scaled:,}")
        figures = bench.best(label, {OURS: bench.memory(ours, scaled), peer: bench.memory(theirs, scaled)})
        yield Line("", label, figures[OURS]["memory"], "B", goal, peer, figures.get(peer, {}).get("memory"))

    return lines
