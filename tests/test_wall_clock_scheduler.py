"""The wall clock on real threads: the watcher sleeps by both clocks, moved by hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import nextdue
from nextdue import Cron, Scheduler
from nextdue.testing import ManualClock

SECOND = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 60  # seconds until a test that hangs gives up


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ns(text):
    return (utc(text) - EPOCH) // timedelta(microseconds=1) * 1000


class Turns:
    """A task whose runs are waited for."""

    def __init__(self):
        self.runs = threading.Semaphore(0)

    def __call__(self):
        self.runs.release()

    def wait(self):
        assert self.runs.acquire(timeout=PATIENCE)

    def is_over(self):
        return not self.runs.acquire(blocking=False)


@pytest.fixture
def wall():
    return ManualClock(ns("2025-01-01 09:00"))


@pytest.fixture
def scheduler(stack, clock, wall):
    with Scheduler(workers=2, agenda=stack.Agenda(clock, wall_clock=wall)) as scheduler:
        yield scheduler


@pytest.fixture
def turns():
    return Turns()


def test_dated_job_runs_when_the_wall_clock_is_moved(scheduler, wall, turns):  # B08
    scheduler.schedule(turns, at=utc("2025-01-01 10:00"))
    wall.advance(3599)
    assert scheduler.wait_idle(PATIENCE)
    assert turns.is_over()
    wall.advance(1)
    turns.wait()


def test_dated_job_of_the_past_runs_at_once(scheduler, turns):
    scheduler.schedule(turns, at=utc("2024-01-01"))
    turns.wait()


def test_cron_job_runs_at_each_slot(scheduler, clock, wall, turns):
    job = scheduler.schedule_recurring(turns, Cron("* * * * *"))
    for k in range(1, 6):
        clock.advance(60), wall.advance(60)
        turns.wait()
        assert scheduler.wait_idle(PATIENCE)
        assert job.attempts == k


def test_cron_job_when_the_clock_is_set_back_goes_by_the_new_now(scheduler, wall, turns):  # B04
    job = scheduler.schedule_recurring(turns, Cron("0 * * * *"))
    wall.set_ns(ns("2021-01-01 10:59"))
    assert scheduler.wait_idle(PATIENCE)
    assert job.run_at == 60 * SECOND
    wall.advance(60)
    turns.wait()


def test_fixed_rate_job_does_not_follow_the_wall_clock(scheduler, clock, wall, turns):  # B05
    scheduler.schedule_recurring(int, Cron("0 0 1 1 *"))
    scheduler.schedule_at_fixed_rate(turns, initial_delay=5, period=5)
    wall.set_ns(ns("2025-01-01 08:00"))
    clock.advance(5)
    turns.wait()
    wall.set_ns(ns("2025-12-31 08:00"))
    assert scheduler.wait_idle(PATIENCE)
    assert turns.is_over()
    clock.advance(5)
    turns.wait()


def test_naive_date_is_refused_and_the_watcher_lives(scheduler, clock, turns):  # B37, B38
    at = datetime(2025, 1, 1, 10)
    with pytest.raises(ValueError, match="aware datetime"):
        scheduler.schedule(turns, at=at)
    scheduler.schedule(turns, delay=1)
    clock.advance(1)
    turns.wait()


def test_reschedule_to_a_date_wakes_the_watcher(scheduler, wall, turns):
    job = scheduler.schedule(turns, delay=3600)
    assert scheduler.reschedule(job, at=utc("2025-01-01 09:00"))
    turns.wait()


def test_rule_that_raises_on_a_worker_ends_its_job_and_no_other(scheduler, clock, turns):
    answers = iter([SECOND])
    broken = scheduler.schedule_recurring(int, lambda _: next(answers))
    scheduler.schedule_recurring(turns, lambda at: at + 2 * SECOND)
    clock.advance(1)
    assert broken.wait(PATIENCE)
    assert isinstance(broken.last_error, StopIteration)
    clock.advance(1)
    turns.wait()


def test_shutdown_cancels_dates_to_come(stack, clock, wall, turns):  # promise 16
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(clock, wall_clock=wall))
    jobs = [
        scheduler.schedule(turns, at=utc("2025-01-01 10:00")),
        scheduler.schedule_recurring(turns, Cron("* * * * *")),
    ]
    assert scheduler.shutdown(timeout=PATIENCE) == (True, 2, 0)
    assert [str(job.status) for job in jobs] == ["cancelled", "cancelled"]


def test_cron_decorates_a_function_that_stays_plain(scheduler, wall):
    turns = Turns()

    @scheduler.cron("0 9 * * mon-fri", tz="Europe/Prague", id="morning", args=(turns,))
    def greet(turns):
        turns()
        return "good morning"

    wall.set_ns(ns("2025-01-02 08:00"))
    turns.wait()
    assert scheduler.wait_idle(PATIENCE)
    assert greet(turns) == "good morning"
    assert str(scheduler.status("morning")) == "scheduled"


def test_cron_decorator_takes_a_kind(scheduler, wall):
    wall.set_ns(ns("2025-03-08 20:00"))
    for kind in ("fixed", "following"):
        scheduler.cron("0 2 * * *", tz="US/Pacific", kind=kind, id=kind)(int)
    assert {info.job.id: info.run_at + wall() for info in scheduler.jobs()} == {
        "fixed": ns("2025-03-09 10:00"),
        "following": ns("2025-03-10 09:00"),
    }


@pytest.mark.parametrize(
    ("options", "error"),
    [({"untill": 5}, TypeError), ({"tz": "Mars/Olympus"}, ValueError), ({"kind": "odd"}, ValueError)],
)
def test_cron_with_a_bad_option_raises(scheduler, options, error):
    with pytest.raises(error):
        scheduler.cron("0 9 * * *", **options)(int)
    assert scheduler.jobs() == []


def test_wall_clock_beside_an_agenda_is_refused(wall):
    with pytest.raises(ValueError, match=r"^clock, wall_clock and retry must be left out where an agenda is given"):
        Scheduler(agenda=nextdue.Agenda(), wall_clock=wall)


@pytest.mark.realtime
def test_dated_job_runs_by_the_clocks_of_the_system_never_early(stack):  # promise 1
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        at = datetime.now(UTC) + timedelta(milliseconds=200)
        job = scheduler.schedule(lambda: datetime.now(UTC), at=at)
        assert job.result(PATIENCE) >= at


def test_step_of_a_clock_that_does_not_tell_is_noticed_at_the_next_look_five_seconds_at_most(
    stack, on_parks, turns
):  # B04, B07, B08
    shown = [ns("2025-01-01 09:00")]
    agenda = stack.Agenda(ManualClock(), wall_clock=lambda: shown[0])
    cron = agenda.schedule_recurring(turns, Cron("*/10 * * * *"))
    dated = agenda.schedule(turns, at=utc("2025-01-01 10:00"))
    scheduler, park, _ = on_parks(workers=1, agenda=agenda)
    with scheduler:
        assert park.await_sleep() == 5
        shown[0] = ns("2025-01-01 09:30")
        park.run_out()
        turns.wait()
        assert scheduler.wait_idle(PATIENCE)
        assert cron.attempts == 2  # that of 09:10, late, and that of 09:30
        assert cron.skipped == 1
        shown[0] = ns("2025-01-01 10:00:00")
        park.run_out()
        assert dated.wait(PATIENCE)


@pytest.mark.realtime
def test_executor_runs_cron_jobs(stack, clock, wall, turns):
    agenda = stack.Agenda(clock, wall_clock=wall)
    with Scheduler(workers=1, agenda=agenda, executor=lambda: ThreadPoolExecutor(1)) as scheduler:
        scheduler.schedule_recurring(turns, Cron("* * * * *"))
        for _ in range(3):
            wall.advance(60)
            turns.wait()
            assert scheduler.wait_idle(PATIENCE)
