"""The rules where several of them meet on one job, and where an outcome must not depend on who looked first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from conftest import run_all, take
from nextdue import Cron, FixedBackoff, Status
from nextdue.testing import ManualClock

S = 1_000_000_000
MINUTE = 60
START = datetime(2025, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


@pytest.fixture
def wall():
    return ManualClock(int(START.timestamp()) * S)


@pytest.fixture
def dated(stack, clock, wall):
    """An agenda that has a wall clock, too."""
    return stack.Agenda(clock, wall_clock=wall)


# ---------------------------------------------------------------- the times decide


@pytest.mark.parametrize("looks_first", ["the run", "the watcher"])
@pytest.mark.parametrize("took", [5 * S - 1, 5 * S, 5 * S + 1])
def test_run_that_ends_at_its_limit_has_failed_whoever_looks_first(agenda, clock, took, looks_first):
    job = agenda.schedule(print, id="a", timeout=5)
    take(agenda)
    clock.set_ns(took)
    if looks_first == "the watcher":
        take(agenda)
    agenda.finished("a", run=1)
    assert job.status == (Status.SUCCEEDED if took < 5 * S else Status.FAILED)
    assert agenda.stats().timed_out == (took >= 5 * S)


def test_recurring_run_that_returns_at_its_limit_has_failed(agenda, clock):
    job = agenda.schedule_recurring(clock.advance, lambda at: at + 10 * S, args=(5,), timeout=5)
    clock.advance(10)
    agenda.run_due()
    assert isinstance(job.last_error, TimeoutError)
    assert (job.status, job.run_at) == (Status.SCHEDULED, 20 * S)


# ---------------------------------------------------------------- run_now, and what is in its way


REPEATING = {
    "fixed rate": lambda agenda, **options: agenda.schedule_at_fixed_rate(print, 10, 10, **options),
    "fixed delay": lambda agenda, **options: agenda.schedule_with_fixed_delay(print, 10, 10, **options),
    "rule": lambda agenda, **options: agenda.schedule_recurring(print, lambda at: at + 10 * S, **options),
}


@pytest.mark.parametrize("kind", REPEATING)
def test_run_now_that_waits_for_its_key_until_its_slot_has_come_is_the_run_of_that_slot(agenda, clock, kind):
    agenda.schedule(print, id="holder", key="k")
    take(agenda)
    job = REPEATING[kind](agenda, id="a", key="k", max_runs=2)
    clock.advance(5)
    assert agenda.run_now("a")
    clock.advance(7)
    assert take(agenda) == []
    agenda.finished("holder")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert take(agenda) == []
    assert (job.attempts, job.skipped) == (1, 0)
    clock.advance(10)
    assert take(agenda) == ["a"]  # the last of two: the first turn was used
    agenda.finished("a")
    assert job.status is Status.SUCCEEDED


@pytest.mark.parametrize("kind", REPEATING)
def test_run_now_that_waits_for_its_key_until_before_its_slot_is_one_besides(agenda, clock, kind):
    agenda.schedule(print, id="holder", key="k")
    take(agenda)
    job = REPEATING[kind](agenda, id="a", key="k", max_runs=1)
    assert agenda.run_now("a")
    clock.advance(9)
    agenda.finished("holder")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.status, job.run_at) == (Status.SCHEDULED, 10 * S)


def test_run_now_of_a_cron_job_that_waits_until_its_slot_has_come_is_the_run_of_that_slot(dated, clock, wall):
    dated.schedule(print, id="holder", key="k")
    take(dated)
    job = dated.schedule_recurring(print, Cron("*/10 * * * *"), id="a", key="k")
    assert dated.run_now("a")
    clock.advance(12 * MINUTE), wall.advance(12 * MINUTE)
    dated.finished("holder")
    assert take(dated) == ["a"]
    dated.finished("a")
    assert take(dated) == []
    assert (job.attempts, job.skipped, job.run_at) == (1, 0, 20 * MINUTE * S)


@pytest.mark.parametrize("kind", ["fixed rate", "fixed delay"])
def test_run_now_of_a_job_that_was_moved_to_a_date_leaves_it_there_however_the_clock_is_set(dated, clock, wall, kind):
    job = REPEATING[kind](dated, id="a")
    assert dated.reschedule("a", at=START + timedelta(seconds=100))
    clock.advance(1), wall.advance(1)
    assert dated.run_now("a")
    assert take(dated) == ["a"]
    clock.advance(1), wall.advance(1)
    dated.finished("a")
    assert (take(dated), job.run_at) == ([], 100 * S)
    wall.advance(50)  # set forward
    assert (take(dated), job.run_at) == ([], 50 * S)
    clock.advance(48), wall.advance(48)
    assert take(dated) == ["a"]


def test_run_now_of_a_fixed_delay_job_that_fails_and_is_retried_leaves_its_next_run_as_it_is(agenda, clock):
    job = agenda.schedule_with_fixed_delay(print, 100, 100, id="a", retry=FixedBackoff(max_attempts=2, delay=1))
    agenda.run_now("a")
    take(agenda)
    agenda.finished("a", OSError())
    clock.advance(1)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.status, job.run_at) == (Status.SCHEDULED, 100 * S)


def test_fixed_delay_run_past_its_limit_is_followed_a_delay_after_its_real_end(agenda, clock):
    job = agenda.schedule_with_fixed_delay(print, 0, 10, id="a", timeout=5)
    take(agenda)
    clock.advance(5)
    assert take(agenda) == []
    clock.advance(20)
    assert take(agenda) == []
    agenda.finished("a", run=1)
    assert (take(agenda), job.run_at) == ([], 35 * S)


# ---------------------------------------------------------------- the end of a repeating job


def test_slots_after_the_last_of_max_runs_are_not_skipped(agenda, clock):
    job = agenda.schedule_at_fixed_rate(clock.advance, 0, 1, args=(10,), max_runs=1)
    agenda.run_due()
    assert (job.status, job.skipped, agenda.skipped) == (Status.SUCCEEDED, 0, 0)


@pytest.mark.parametrize("on_missed", ["skip", "shift", "burst"])
def test_slots_after_until_are_not_skipped(agenda, clock, on_missed):
    job = agenda.schedule_at_fixed_rate(clock.advance, 0, 1, args=(10,), until=3 * S, on_missed=on_missed)
    run_all(agenda)
    assert (job.status, job.skipped) == (Status.SUCCEEDED, 3)


def test_burst_until_runs_the_last_thousand_slots_that_there_were(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 1, until=4_999 * S, on_missed="burst")
    clock.advance(100_000)
    assert run_all(agenda) == 1001  # the earliest, which is run as it is taken, and the bound
    assert (job.status, job.skipped) == (Status.SUCCEEDED, 5_000 - 1001)


# ---------------------------------------------------------------- held back


def test_next_run_at_where_all_that_is_left_waits_for_other_jobs_or_a_resume_is_none(agenda, clock):
    agenda.schedule(print, id="up")
    agenda.schedule(print, after=["up"])
    take(agenda)
    assert agenda.next_run_at() is None
    agenda.schedule(print, id="paused")
    agenda.pause("paused")
    assert take(agenda) == []
    assert agenda.next_run_at() is None
    agenda.resume("paused")
    assert agenda.next_run_at() is None  # it is ready
    assert take(agenda) == ["paused"]


def test_cron_job_that_waited_for_another_while_the_clock_was_set_back_goes_by_the_new_now(dated, clock, wall):  # B04
    dated.schedule(print, id="up")
    job = dated.schedule_recurring(print, Cron("*/10 * * * *"), after=["up"])
    take(dated)
    wall.set_ns(wall() - 4 * 365 * 86_400 * S)
    take(dated)
    dated.finished("up")
    take(dated)
    assert job.run_at == 10 * MINUTE * S


def test_wall_clock_set_while_a_job_is_paused_is_followed_as_if_it_was_not(dated, clock, wall):
    job = dated.schedule_recurring(print, Cron("*/10 * * * *"), id="a")
    dated.pause("a")
    wall.set_ns(wall() - 86_400 * S + 5 * MINUTE * S)
    take(dated)
    assert job.run_at == 5 * MINUTE * S
    wall.set_ns(wall() + 7 * 86_400 * S)  # its slot has come, and is kept
    assert take(dated) == []
    wall.set_ns(wall() - 7 * 86_400 * S)
    assert take(dated) == []
    dated.resume("a")
    assert take(dated) == ["a"]
    dated.finished("a")
    assert (job.attempts, job.run_at) == (1, 5 * MINUTE * S)


# ---------------------------------------------------------------- all of it


def test_key_retry_limit_pause_dependency_and_cancel_on_one_job(agenda, clock):
    policy = FixedBackoff(max_attempts=3, delay=timedelta(seconds=2))
    agenda.schedule(print, id="up")
    job = agenda.schedule(print, id="a", after=["up"], key="k", timeout=5, retry=policy)
    agenda.schedule(print, id="next", key="k")
    agenda.schedule(print, id="down", after=["a"])
    assert take(agenda) == ["up", "next"]  # who waits for another job does not hold the key
    agenda.finished("up")
    assert take(agenda) == []  # the key is taken
    agenda.pause("a")
    agenda.finished("next")
    assert take(agenda) == []
    agenda.resume("a")
    assert take(agenda) == ["a"]
    clock.advance(5)  # its limit
    assert take(agenda) == []
    assert (job.status, job.run_at) == (Status.SCHEDULED, 7 * S)
    clock.advance(2)
    assert take(agenda) == []  # the old run has the key
    assert not agenda.run_now("a")
    agenda.finished("a", run=1)
    assert take(agenda) == ["a"]
    agenda.finished("a", OSError())
    assert agenda.reschedule("a", delay=100)
    assert agenda.run_now("a")
    assert take(agenda) == ["a"]  # the third attempt
    assert agenda.cancel("a")
    assert take(agenda) == []
    agenda.finished("a", OSError(), run=3)
    assert [agenda.status(id) for id in ("a", "down")] == [Status.CANCELLED, Status.CANCELLED]
    stats = agenda.stats()
    assert (stats.waiting, stats.ready, stats.running) == (0, 0, 0)
    assert (stats.succeeded, stats.failed, stats.cancelled) == (2, 0, 2)
    assert (stats.started, stats.retried, stats.timed_out) == (5, 2, 1)


def test_key_queue_jitter_until_pause_and_reschedule_on_one_repeating_job(agenda, clock):
    options = {"key": "k", "overlap": "queue", "jitter": 3, "max_runs": 4, "timeout": 50}
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", **options)
    clock.advance(3)
    assert take(agenda) == ["a"]
    clock.advance(22)  # 10 waits, 20 is skipped
    agenda.schedule(print, id="b", key="k", priority=1)
    agenda.finished("a")
    assert take(agenda) == ["b"]  # both wait for the key, and b goes first
    agenda.pause("a")
    agenda.finished("b")
    assert take(agenda) == []
    clock.advance(10)
    agenda.resume("a")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert job.attempts == 2
    assert agenda.reschedule("a", delay=1)
    clock.advance(1)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert 46 * S <= job.run_at <= 49 * S  # the slots count from 36
    clock.set_ns(job.run_at)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 4)
    assert sum(agenda.stats()[:3]) == 0


@pytest.mark.parametrize("kind", REPEATING)
def test_job_that_comes_after_a_repeating_one_runs_when_that_has_ended(agenda, clock, kind):
    REPEATING[kind](agenda, id="a", max_runs=2)
    agenda.schedule(print, id="down", after=["a"])
    for at in (10, 20):
        clock.set_ns(at * S)
        assert take(agenda) == ["a"]
        agenda.finished("a")
    assert take(agenda) == ["down"]


def test_repeating_job_that_comes_after_another_runs_late_once_and_is_back_on_its_slots(agenda, clock):
    agenda.schedule(print, id="up")
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", after=["up"])
    take(agenda)
    clock.advance(35)
    agenda.finished("up")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.run_at, job.skipped) == (40 * S, 3)


# ---------------------------------------------------------------- from the field


def test_job_that_waited_for_a_worker_for_longer_than_any_grace_still_runs(agenda, clock):  # B156
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b")
    agenda.schedule(print, id="c")
    assert [job.id for job in agenda.take_due(limit=2)] == ["a", "b"]
    clock.advance(61)
    assert take(agenda) == ["c"]


def test_slots_do_not_slide_with_the_work_of_each_pass(agenda, clock):  # B164
    starts = []

    def work():
        starts.append(clock())
        clock.advance(0.1)

    agenda.schedule_at_fixed_rate(work, at=0, initial_delay=0, period=MINUTE)
    for _ in range(1000):
        clock.set_ns(agenda.next_run_at() + 3_000_000)  # whoever waits for it is late, each time
        agenda.run_due()
    assert starts == [k * MINUTE * S + 3_000_000 for k in range(1000)]


def test_rule_that_is_cancelled_and_added_again_after_its_time_has_no_missed_run(dated, clock, wall):  # B223
    clock.advance(5 * 3600 + 50 * MINUTE), wall.advance(5 * 3600 + 50 * MINUTE)  # 14:50
    rule = Cron("30 14 * * *")
    assert dated.schedule_recurring(print, rule, id="daily").cancel()
    job = dated.schedule_recurring(print, rule, id="daily")
    assert take(dated) == []
    assert job.run_at - clock() == (24 * 60 - 20) * MINUTE * S


def test_time_of_the_next_run_is_never_that_of_a_cancelled_job(agenda, clock):  # B222
    jobs = [agenda.schedule(print, delay=k, id=str(k)) for k in range(1, 6)]
    for k in (0, 2, 1):
        jobs[k].cancel()
        assert agenda.next_run_at() == min(job.run_at for job in jobs if job.status is Status.SCHEDULED)
    clock.advance(5)
    assert take(agenda) == ["4", "5"]


def test_two_limits_are_each_a_jobs_own(agenda, clock):  # B176
    short = agenda.schedule(print, timeout=3)
    long = agenda.schedule(print, timeout=300)
    take(agenda)
    clock.advance(3)
    take(agenda)
    assert [short.status, long.status] == [Status.FAILED, Status.RUNNING]
    clock.advance(297)
    take(agenda)
    assert long.status is Status.FAILED
