"""How figures are taken: the arithmetic, the child processes, and that every side does its work."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextdue.cli._console import Progress
from nextdue.cli._measure import Row, Sampling, measure, percentile, phase_times, resident_bytes, run_in_child
from nextdue.cli._works import SCHEDULER_WORKS, TIMETABLE_WORKS, Side, Work

Report = Callable[[Any], object]
SIDES = [(work, side) for work in TIMETABLE_WORKS + SCHEDULER_WORKS for side in work.sides]


@pytest.mark.parametrize(("work", "side"), SIDES, ids=[f"{work.name}-{side}" for work, side in SIDES])
@pytest.mark.parametrize("size", [1, 50])
def test_side_when_run_then_does_its_work_in_as_many_phases(work: Work, side: str, size: int) -> None:
    assert len(phase_times(work.sides[side], size)) == len(work.phases)


def test_work_when_listed_then_our_side_comes_first() -> None:
    assert {next(iter(work.sides)) for work in TIMETABLE_WORKS + SCHEDULER_WORKS} == {"nextdue"}


def test_phase_times_when_a_side_did_less_then_raises() -> None:
    def side(size: int) -> Any:
        yield
        yield
        raise RuntimeError(f"{size} lost")

    lazy: Side = side
    with pytest.raises(RuntimeError, match=r"^7 lost$"):
        phase_times(lazy, 7)


def test_measure_when_sides_take_turns_then_all_samples_are_kept_in_order() -> None:
    turns: list[str] = []

    def sample(side: str, size: int) -> list[float]:
        turns.append(side)
        return [len(turns) * size, -len(turns)]

    sampling = Sampling(("up", "down"), "ns", ("ours", "theirs"), sample)
    up, down = measure([sampling], size=10, repeats=2, progress=Progress())
    assert turns == ["ours", "theirs", "ours", "theirs"]
    assert (up.name, up.samples) == ("up", {"ours": [10, 30], "theirs": [20, 40]})
    assert (down.name, down.samples) == ("down", {"ours": [-1, -3], "theirs": [-2, -4]})


def test_row_when_best_of_both_sides_count_then_ratio_is_theirs_over_ours() -> None:
    row = Row("hold", "ns", {"ours": [30.0, 20.0], "theirs": [100.0, 140.0]})
    assert (row.ours, row.others) == ("ours", ["theirs"])
    assert row.ratio("theirs") == 5


@given(st.lists(st.integers(), min_size=1).map(sorted), st.floats(0, 100))
def test_percentile_when_asked_then_covers_that_share(ordered: list[int], percent: float) -> None:
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= len(ordered) * percent / 100


def double_after_reporting(report: Report) -> int:
    report("half way")
    return 42


def test_run_in_child_when_it_returns_then_result_and_reports_arrive() -> None:
    reports: list[str] = []
    assert run_in_child(double_after_reporting, reports.append) == 42
    assert reports == ["half way"]


def die(report: Report) -> None:
    signal.raise_signal(signal.SIGKILL)


def test_run_in_child_when_it_dies_then_raises() -> None:
    with pytest.raises(RuntimeError, match=r"^the measuring process ended early, exit code -9$"):
        run_in_child(die)


def test_resident_bytes_when_asked_then_at_least_a_python() -> None:
    assert resident_bytes() > 1_000_000
