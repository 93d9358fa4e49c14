"""Faults seen in other schedulers that no other suite tries, and the page that lists them all."""

from __future__ import annotations

import random
import re
import threading
from ast import AsyncFunctionDef, FunctionDef, parse, walk
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nextdue import Status
from nextdue.testing import ManualClock

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
SECOND = 1_000_000_000
START = datetime(2025, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def test_slot_that_is_past_when_it_is_written_down_runs_late_and_stops_nothing(stack, clock):  # B55
    wall = ManualClock(int(START.timestamp()) * SECOND)

    class Slow:
        """A rule of each second that takes two to say so."""

        def next_after(self, after):
            clock.advance(2)
            wall.advance(2)
            return after + timedelta(seconds=1)

    agenda = stack.Agenda(clock, wall_clock=wall)
    ran: list[int] = []
    job = agenda.schedule_recurring(lambda: ran.append(clock()), Slow(), max_runs=5)
    other = agenda.schedule(print, 1)
    passes = 0
    while job.status is not Status.SUCCEEDED:
        agenda.run_due()
        passes += 1
        assert passes < 100
    assert len(ran) == 5
    assert ran == sorted(set(ran))
    assert other.status is Status.SUCCEEDED


@pytest.mark.parametrize("kind", ["fixed rate", "fixed delay", "one-off"])
def test_job_that_removes_itself_while_its_run_outlasts_its_slots_is_removed_once(stack, clock, kind):  # B94
    agenda = stack.Agenda(clock, history=0)
    answers: list[bool] = []

    def task():
        answers.append(agenda.cancel("a"))
        clock.advance(60)  # past its next slots
        answers.append(agenda.cancel("a"))

    if kind == "one-off":
        job = agenda.schedule(task, 1, id="a")
    elif kind == "fixed rate":
        job = agenda.schedule_at_fixed_rate(task, 1, period=5, id="a")
    else:
        job = agenda.schedule_with_fixed_delay(task, 1, delay=5, id="a")
    clock.advance(1)
    assert agenda.run_due() == 1
    assert answers == [True, False]
    for handle in (job, "a", job.id, 12345):
        assert agenda.cancel(handle) is False
    clock.advance(60)
    assert agenda.run_due() == 0
    assert (job.status, job.attempts) == (Status.CANCELLED, 1)
    assert agenda.schedule(print, 1, id="a").status is Status.SCHEDULED


def test_timers_that_all_come_due_within_a_second_come_in_order_and_none_is_lost(stack):  # B98
    count = 100_000
    chance = random.Random(98)
    table = stack.Timetable()
    times = [chance.randrange(SECOND) for _ in range(count)]
    table.add_many(times, range(count))
    expected = sorted(range(count), key=times.__getitem__)
    taken: list[int] = []
    for now in range(SECOND // 10, SECOND + 1, SECOND // 10):
        due = table.pop_due(now)
        assert all(now - SECOND // 10 < times[timer] <= now for timer in due[:1] + due[-1:])
        taken += due
    assert taken == expected
    assert len(table) == 0


def test_jobs_that_all_come_due_within_a_second_run_in_order_and_none_is_lost(agenda, clock):  # B98
    chance = random.Random(98)
    times = [chance.randrange(SECOND) for _ in range(20_000)]
    ran: list[int] = []
    for number, at in enumerate(times):
        agenda.schedule(ran.append, at=at, args=(number,))
    clock.advance(1)
    assert agenda.run_due() == len(times)
    assert ran == sorted(range(len(times)), key=times.__getitem__)


def test_jobs_that_were_taken_are_cancelled_once_by_ten_threads_and_no_count_goes_wrong(agenda):  # B104
    jobs = [agenda.schedule(int) for _ in range(200)]
    taken = agenda.take_due()
    won: list[int] = []
    counts: set[int] = set()

    def cancel():
        for job in jobs:
            if job.cancel():
                won.append(job.id)
            counts.update(agenda.stats()[:3])

    threads = [threading.Thread(target=cancel) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(job.id for job in jobs)
    assert min(counts) == 0
    for job in taken:
        agenda.finished(job)
    assert agenda.stats()[:3] == (0, 0, 0)
    assert {job.cancel() for job in jobs} == {False}


def test_job_that_arms_itself_again_keeps_its_pace_beside_many_others(stack, clock):  # B167
    # Enough of them, and far enough, for the tree; the hour crosses the borders of its levels.
    agenda = stack.Agenda(clock, history=0)
    chance = random.Random(167)
    others = [agenda.schedule(int, at=chance.randrange(7200 * SECOND)) for _ in range(20_000)]
    starts: list[int] = []

    def again():
        starts.append(clock())
        agenda.schedule(again, delay=10)

    agenda.schedule(again, delay=10)
    while len(starts) < 360:
        clock.set_ns(agenda.next_run_at())
        agenda.run_due()
    assert starts == [k * 10 * SECOND for k in range(1, 361)]
    assert all((job.status is Status.SUCCEEDED) == (job.run_at <= clock()) for job in others)


# ---------------------------------------------------------------- the page


def cases() -> dict[str, tuple[str, str]]:
    """What the page says of each case: the verdict, and who shows it, or why it does not apply."""
    rows = re.findall(r"^\| (B\d+) \|.*\| (\w[\w ]*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len({case for case, _, _ in rows})
    return {case: (verdict, shown) for case, verdict, shown in rows}


def carriers(case: str) -> Iterator[str]:
    """The tests that carry a case's id: in their source, or in a comment right above."""
    carried = re.compile(rf"#.*\b{case}\b")
    for path in sorted(TESTS.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if case not in text:
            continue
        lines = text.splitlines()
        for node in walk(parse(text)):
            if isinstance(node, FunctionDef | AsyncFunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                while first > 1 and lines[first - 2].lstrip().startswith("#"):
                    first -= 1
                if any(carried.search(line) for line in lines[first - 1 : node.end_lineno]):
                    yield f"{path.name}::{node.name}"


def test_page_has_a_row_for_each_case_that_a_test_carries():
    page = cases()
    assert len(page) > 100
    for path in TESTS.glob("test_*.py"):
        for case in re.findall(r"#.*?\b(B\d{2,3})\b", path.read_text(encoding="utf-8")):
            assert case in page, f"{case} of {path.name} has no row in {PAGE.name}"


@pytest.mark.parametrize(("case", "verdict", "shown"), [(case, *row) for case, row in cases().items()])
def test_verdict_of_a_case_is_borne_out_by_the_tests_that_its_row_names(case, verdict, shown):
    assert verdict in ("held", "fixed", "does not apply")
    if verdict == "does not apply":
        assert len(shown.split()) > 2  # the reason
        return
    named = re.findall(r"`(test_\w+\.py::test_\w+)`", shown)
    assert named
    assert set(named) <= set(carriers(case))
