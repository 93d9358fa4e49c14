"""Faults seen in other schedulers that no other suite tries, and the page that lists them all."""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from ast import AsyncFunctionDef, FunctionDef, parse, walk
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import nextdue.scheduler
from nextdue import FixedBackoff, Scheduler, Status, _waits, pure
from nextdue.agenda import acquire_until
from nextdue.testing import ManualClock

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
SECOND = 1_000_000_000
PATIENCE = 20.0  # seconds until a test gives up
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


# ---------------------------------------------------------------- how long to sleep


def test_watcher_sleeps_no_longer_at_once_than_the_platform_can_and_looks_after_each_sleep(
    stack, monkeypatch, on_parks
):  # B02, B42
    monkeypatch.setattr(nextdue.scheduler, "LONGEST_WAIT", 4_294_967.0)
    agenda = stack.Agenda()
    far = agenda.schedule(int, delay=400 * 86_400)
    scheduler, park, _ = on_parks(workers=1, agenda=agenda)
    with scheduler:
        for _ in range(3):
            assert park.await_sleep() == 4_294_967.0
            park.run_out()
        assert park.await_sleep() == 4_294_967.0
        near = scheduler.schedule(int, delay=3600)
        assert 0 < park.await_sleep() <= 3600
        assert (near.status, far.status) == (Status.SCHEDULED, Status.SCHEDULED)


def test_sleep_that_ends_an_hour_early_or_late_makes_no_run_early_nor_is_it_slept_again(stack, on_parks):  # B02
    now = [0]
    agenda = stack.Agenda(lambda: now[0])  # a clock that does not tell when it is moved
    jobs = [agenda.schedule(int, delay=delay) for delay in (30, 3600, 7200)]
    scheduler, park, _ = on_parks(workers=1, agenda=agenda)
    with scheduler:
        for second, sleep, ended in [(0, 30, 0), (29, 1, 0), (30, 60, 1), (3599, 1, 1), (7199, 1, 2), (7200, -1, 3)]:
            now[0] = second * SECOND
            if second:
                park.run_out()
            assert park.await_sleep() == sleep
            assert scheduler.wait_idle(PATIENCE)
            assert [job.status for job in jobs].count(Status.SUCCEEDED) == ended


@pytest.mark.parametrize(
    ("platform", "lock", "built_with", "expected"),
    [
        ("linux", "semaphore", {"HAVE_SEM_CLOCKWAIT": 1, "HAVE_PTHREAD_CONDATTR_SETCLOCK": 1}, False),
        ("linux", "semaphore", {"HAVE_SEM_CLOCKWAIT": 0, "HAVE_PTHREAD_CONDATTR_SETCLOCK": 1}, True),  # an old glibc
        ("linux", "mutex+cond", {"HAVE_PTHREAD_CONDATTR_SETCLOCK": 1}, False),
        ("darwin", "mutex+cond", {}, True),
        ("win32", None, {}, False),
    ],
)
def test_timed_waits_of_a_build_without_a_monotonic_call_go_by_the_wall_clock(
    monkeypatch, platform, lock, built_with, expected
):  # B02
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("sys.thread_info", SimpleNamespace(lock=lock))
    monkeypatch.setattr("sysconfig.get_config_var", built_with.get)
    assert _waits.go_by_the_wall_clock() is expected


def test_longest_wait_is_a_minute_where_waits_go_by_the_wall_clock(monkeypatch):  # B02
    source = Path(_waits.__file__).read_text(encoding="utf-8")
    for lacking, longest in [(False, threading.TIMEOUT_MAX), (True, 60.0)]:
        monkeypatch.setattr("sys.platform", "linux")
        monkeypatch.setattr("sysconfig.get_config_var", lambda name, lacking=lacking: not lacking)
        names: dict[str, object] = {}
        exec(compile(source, _waits.__file__, "exec"), names)
        assert names["LONGEST_WAIT"] == longest


@pytest.mark.parametrize("deadline", [None, 2**62])
def test_wait_for_a_job_is_made_in_slices(monkeypatch, deadline):  # B02, B42
    monkeypatch.setattr("nextdue.agenda.LONGEST_WAIT", 60.0)
    slices = []

    class Lock:
        def acquire(self, blocking, timeout):
            slices.append(timeout)
            return len(slices) == 3

    assert acquire_until(Lock(), deadline) is True
    assert slices == [60.0] * 3


def test_wait_for_a_job_that_ends_early_is_gone_on_with_until_its_deadline():  # B02
    slices = []

    class Lock:
        def acquire(self, blocking, timeout):
            slices.append(timeout)
            return False

    deadline = time.monotonic_ns() + 20_000_000
    assert acquire_until(Lock(), deadline) is False
    assert time.monotonic_ns() >= deadline
    assert 0 <= min(slices) <= max(slices) <= 0.02


@pytest.mark.parametrize("pool", [None, lambda: ThreadPoolExecutor(1)], ids=["workers", "pool"])
def test_idle_threads_sleep_until_they_are_signalled(stack, on_parks, pool):  # B74
    agenda = stack.Agenda()
    agenda.schedule(int, delay=60)
    scheduler, watcher, *others = on_parks(workers=3, agenda=agenda, executor=pool)
    with scheduler:
        assert 50 < watcher.await_sleep() <= 60
        for _ in range(100):
            assert scheduler.submit(int).result(PATIENCE) == 0
        for park in others:
            assert park.await_sleep() == -1
        assert watcher.sleeps.empty()
    for park in others:
        assert {park.sleeps.get() for _ in range(park.sleeps.qsize())} <= {-1}


# ---------------------------------------------------------------- when it runs


@pytest.mark.parametrize("days", [25, 30, 50, 400])  # past 2**31 and 2**32 ms
@pytest.mark.parametrize("kind", ["one-off", "fixed rate", "fixed delay", "retry"])
def test_run_that_is_a_month_away_does_not_come_before(stack, clock, unlogged, kind, days):  # B46
    agenda = stack.Agenda(clock)
    period = days * 86_400
    if kind == "one-off":
        job = agenda.schedule(int, delay=period)
    elif kind == "fixed rate":
        job = agenda.schedule_at_fixed_rate(int, initial_delay=period, period=period)
    elif kind == "fixed delay":
        job = agenda.schedule_with_fixed_delay(int, initial_delay=period, delay=period)
    else:
        job = agenda.schedule(lambda: 1 / 0, retry=FixedBackoff(3, period))
        assert agenda.run_due() == 1
    for turn in range(1, 2 if kind == "one-off" else 3):
        assert job.run_at == turn * period * SECOND
        clock.set_ns(turn * period * SECOND - 1)
        assert agenda.run_due() == 0
        clock.set_ns(turn * period * SECOND)
        assert agenda.run_due() == 1


@pytest.mark.realtime
def test_job_on_the_real_clock_runs_no_sooner_than_its_delay_has_passed(stack):  # B68, B71
    jobs, started = [], {}
    with Scheduler(workers=4, agenda=stack.Agenda()) as scheduler:
        for k in range(1_000):
            delay = (1 + k % 20) * 1_000_000 + k * 997  # no whole milliseconds, nor microseconds
            soonest = time.monotonic_ns() + delay
            jobs.append(
                scheduler.schedule(lambda k=k: started.setdefault(k, time.monotonic_ns()), delay=delay / SECOND)
            )
            assert jobs[k].run_at >= soonest
        assert all(job.wait(PATIENCE) for job in jobs)
    assert all(started[k] >= job.run_at for k, job in enumerate(jobs))


def test_delay_counts_from_the_call_though_the_pass_began_long_before(agenda, clock):  # B72
    jobs = []

    def slow():
        clock.advance(1)
        jobs.append(agenda.schedule(int, delay=1))

    agenda.schedule(slow)
    agenda.run_due()
    assert jobs[0].run_at == 2 * SECOND
    clock.advance(0.999_999_999)
    assert agenda.run_due() == 0
    clock.advance(1e-9)
    assert agenda.run_due() == 1


# ---------------------------------------------------------------- wake-ups


@pytest.mark.parametrize("delay", [0, 1], ids=["a worker", "the watcher"])
def test_error_raised_instead_of_a_wake_up_keeps_no_later_one_from_coming(monkeypatch, clock, on_parks, delay):  # B84
    def interrupted(park):
        raise KeyboardInterrupt  # what a signal handler raises, interpreted anywhere

    agenda = pure.Agenda(clock)
    agenda.schedule(int, delay=3600)
    scheduler, watcher, worker = on_parks(workers=1, agenda=agenda)
    with scheduler:
        assert watcher.await_sleep() == worker.await_sleep() == -1
        with monkeypatch.context() as patch:
            patch.setattr("nextdue.agenda.signal", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scheduler.schedule(int, delay=delay)
        job = scheduler.schedule(int, delay=delay / 2)
        clock.advance(delay)
        assert job.wait(PATIENCE)


@pytest.fixture
def restless():
    """Threads of Python are switched as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("workers", [1, 2])
def test_no_wake_up_is_lost_between_a_workers_look_and_its_sleep(stack, workers):  # B82
    with Scheduler(workers=workers, agenda=stack.Agenda()) as scheduler:
        for _ in range(2_000 // workers):
            for future in [scheduler.submit(int) for _ in range(workers)]:
                assert future.result(PATIENCE) == 0


@pytest.mark.usefixtures("restless")
def test_no_wake_up_is_lost_between_a_key_that_is_found_taken_and_the_wait_for_it(stack):  # B81
    with Scheduler(workers=3, agenda=stack.Agenda()) as scheduler:
        for _ in range(300):
            meet = threading.Barrier(3)
            held, go = threading.Event(), threading.Event()

            def first(held=held, go=go):
                held.set()
                go.wait(PATIENCE)

            scheduler.schedule(first, key="k")
            assert held.wait(PATIENCE)

            def release(meet=meet, go=go):
                meet.wait(PATIENCE)
                go.set()

            helper = threading.Thread(target=release)
            helper.start()
            scheduler.submit(meet.wait, PATIENCE)  # so that two workers are awake
            meet.wait(PATIENCE)
            second = scheduler.schedule(int, key="k")
            assert second.wait(PATIENCE)
            helper.join()


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


def test_counts_of_the_page_are_those_of_its_rows():
    page = cases()
    counts = Counter(verdict for verdict, _ in page.values())
    said = (
        f"Of {len(page)} cases {counts['held']} are held, {counts['fixed']} were fixed, "
        f"{counts['does not apply']} do not apply."
    )
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("case", "verdict", "shown"), [(case, *row) for case, row in cases().items()])
def test_verdict_of_a_case_is_borne_out_by_the_tests_that_its_row_names(case, verdict, shown):
    assert verdict in ("held", "fixed", "does not apply")
    if verdict == "does not apply":
        assert len(shown.split()) > 2  # the reason
        return
    named = re.findall(r"`(test_\w+\.py::test_\w+)`", shown)
    assert named
    assert set(named) <= set(carriers(case))
