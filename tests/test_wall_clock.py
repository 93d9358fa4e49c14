"""The wall clock through the agenda: two clocks, moved by hand, and nothing else tells the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from nextdue import Cron, FixedBackoff, Status, TooManyJobs, current_job
from nextdue.testing import ManualClock

SECOND = 1_000_000_000
HOUR = 3600
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ns(moment):
    """An aware datetime in nanoseconds since the epoch."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text, tz, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)


class World:
    """An agenda on two clocks that move together with `pass_`, or apart."""

    def __init__(self, stack, start="2025-01-01 09:00", **options):
        self.clock = ManualClock(5_000 * SECOND)
        self.wall = ManualClock(ns(utc(start)))
        self.agenda = stack.Agenda(self.clock, wall_clock=self.wall, **options)
        self.ran = []

    def note(self):
        """A task: notes what the wall clock shows."""
        self.ran.append(EPOCH + timedelta(microseconds=self.wall() // 1000))

    def at(self, text):
        """Let time pass until the wall clock shows this, and run what is due."""
        self.pass_((utc(text) - EPOCH).total_seconds() - self.wall() / SECOND)

    def pass_(self, seconds):
        self.clock.advance(seconds)
        self.wall.advance(seconds)
        return self.agenda.run_due()

    def step_to(self, text):
        """Set the wall clock."""
        self.wall.set_ns(ns(utc(text)))
        return self.agenda.run_due()

    def take_runs(self):
        """When tasks ran, as the wall clock had it, since this was last asked."""
        ran = [moment.strftime("%m-%d %H:%M:%S") for moment in self.ran]
        self.ran.clear()
        return ran

    def pass_in_steps(self, seconds, step):
        for _ in range(round(seconds / step)):
            self.pass_(step)


@pytest.fixture
def world(stack):
    return World(stack)


class Times:
    """A rule that has these times, and notes what it is asked."""

    def __init__(self, *texts):
        self.moments = [utc(text) for text in texts]
        self.asked = []

    def next_after(self, dt):
        self.asked.append(dt)
        return next((moment for moment in self.moments if moment > dt), None)


# At a date


def test_at_a_date_runs_when_the_wall_clock_reaches_it(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    assert job.run_at == world.clock() + HOUR * SECOND == world.agenda.next_run_at()
    world.at("2025-01-01 09:59:59.999999")
    assert job.status is Status.SCHEDULED
    world.at("2025-01-01 10:00:00")
    assert world.take_runs() == ["01-01 10:00:00"]
    assert job.status is Status.SUCCEEDED


def test_at_a_date_in_another_zone_is_that_instant(world):
    world.agenda.schedule(world.note, at=local("2025-01-01 11:00", "Europe/Prague"))
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_at_a_date_that_is_past_runs_at_once(world):
    world.agenda.schedule(world.note, at=utc("2024-01-01 09:00"))
    assert world.agenda.run_due() == 1


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), utc("1600-01-01"), utc("1969-12-31 23:59:59")])
def test_at_a_date_long_past_runs_at_once(world, at):
    world.agenda.schedule(world.note, at=at)
    assert world.agenda.run_due() == 1


@pytest.mark.parametrize("at", [datetime.max.replace(tzinfo=UTC), utc("2400-01-01")])
def test_at_a_date_past_int64_never_comes_and_can_be_cancelled(world, at):  # promise 17
    job = world.agenda.schedule(world.note, at=at)
    world.wall.set_ns(2**63 - 2)
    assert world.agenda.run_due() == 0
    assert job.cancel() is True


def test_at_a_date_when_the_host_slept_runs_as_soon_as_anyone_looks(world):  # B08
    world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    assert world.step_to("2025-01-01 11:00") == 1
    assert world.take_runs() == ["01-01 11:00:00"]


def test_at_a_date_when_the_clock_is_set_back_keeps_its_date(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    world.at("2025-01-01 09:59")
    world.step_to("2025-01-01 08:00")
    assert job.run_at == world.clock() + 2 * HOUR * SECOND
    world.at("2025-01-01 09:59:59")
    assert world.take_runs() == []
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_at_a_date_that_has_come_once_is_not_taken_back_by_a_step(world):
    world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    world.agenda.pause()
    world.at("2025-01-01 10:00")
    world.step_to("2025-01-01 09:00")
    world.agenda.resume()
    assert world.agenda.run_due() == 1


def test_at_dates_and_delays_run_in_the_order_of_their_instants(world):  # promise 3
    order = []
    world.agenda.schedule(order.append, at=utc("2025-01-01 09:03"), args=("third",))
    world.agenda.schedule(order.append, delay=120, args=("second",))
    world.agenda.schedule(order.append, at=utc("2025-01-01 09:01"), args=("first",))
    world.agenda.schedule(order.append, at=utc("2025-01-01 09:04"), args=("before all",), priority=1)
    world.pass_(300)
    assert order == ["before all", "first", "second", "third"]


def test_lag_at_a_date_is_counted_from_the_date(world):
    world.agenda.schedule(world.note, at=utc("2025-01-01 09:00:10"))
    world.pass_(11)
    assert world.agenda.stats().lag.quantile(1) >= SECOND


def test_at_a_date_is_retried_by_delays_not_by_dates(world):
    def fail():
        world.note()
        raise OSError("no")

    job = world.agenda.schedule(fail, at=utc("2025-01-01 10:00"), retry=FixedBackoff(2, delay=60))
    world.at("2025-01-01 10:00")
    assert world.step_to("2025-01-01 05:00") == 0
    world.pass_(60)
    assert len(world.ran) == 2
    assert job.status is Status.FAILED


def test_at_a_date_with_an_id_a_key_and_a_predecessor_waits_for_all_of_them(world):
    first = world.agenda.schedule(world.note, delay=2 * HOUR)
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"), id="dated", key="k", after=[first])
    world.at("2025-01-01 10:30")
    assert world.take_runs() == []
    world.at("2025-01-01 11:00")
    world.agenda.run_due()
    assert job.status is Status.SUCCEEDED


def test_at_a_date_with_a_predecessor_that_ends_before_waits_for_its_date(world):
    first = world.agenda.schedule(int, delay=60)
    world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"), after=[first])
    world.at("2025-01-01 09:30")
    assert world.take_runs() == []
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_at_a_date_with_jitter_is_not_before_it_and_at_most_so_much_later(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"), jitter=60)
    assert 0 <= job.run_at - (world.clock() + HOUR * SECOND) <= 60 * SECOND
    world.at("2025-01-01 09:59:59")
    assert world.take_runs() == []
    world.at("2025-01-01 10:01")
    assert len(world.ran) == 1


def test_cancel_of_a_dated_job_drops_its_task_and_leaves_nothing(world):  # promise 10
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    assert job.cancel() is True
    assert job.task is None
    assert world.agenda.next_run_at() is None
    assert world.agenda.stats().waiting == 0
    assert world.step_to("2025-01-02 00:00") == 0


def test_max_waiting_counts_dated_jobs(stack):
    world = World(stack, max_waiting=1)
    world.agenda.schedule(int, at=utc("2025-01-02 00:00"))
    with pytest.raises(TooManyJobs):
        world.agenda.schedule(int, delay=1)


def test_jobs_and_stats_know_dated_jobs(world):
    job = world.agenda.schedule(int, at=utc("2025-01-01 10:00"))
    (info,) = world.agenda.jobs()
    assert (info.job, info.run_at, info.status) == (job, world.clock() + HOUR * SECOND, Status.SCHEDULED)
    assert world.agenda.stats().waiting == 1
    assert repr(world.agenda) == "<Agenda: 1 waiting, 0 ready, 0 running>"


def test_next_run_at_is_the_earlier_of_both_clocks(world):
    world.agenda.schedule(int, at=utc("2025-01-01 10:00"))
    later = world.agenda.schedule(int, delay=2 * HOUR)
    assert world.agenda.next_run_at() == world.clock() + HOUR * SECOND
    later.cancel()
    world.agenda.schedule(int, delay=60)
    assert world.agenda.next_run_at() == world.clock() + 60 * SECOND


def test_next_run_at_after_a_step_is_as_the_clocks_stand_now(world):
    world.agenda.schedule(int, at=utc("2025-01-01 10:00"))
    world.wall.set_ns(ns(utc("2025-01-01 09:50")))
    assert world.agenda.next_run_at() == world.clock() + 600 * SECOND


# Changing it


def test_reschedule_moves_a_plain_job_to_a_date(world):
    job = world.agenda.schedule(world.note, delay=1)
    assert world.agenda.reschedule(job, at=utc("2025-01-01 10:00")) is True
    world.at("2025-01-01 09:59")
    assert world.take_runs() == []
    world.step_to("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_reschedule_moves_a_dated_job_to_a_delay_and_to_another_date(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    world.agenda.reschedule(job, at=utc("2025-01-01 09:30"))
    world.agenda.reschedule(job, at=utc("2025-01-01 09:45"))
    world.agenda.reschedule(job, delay=60)
    assert job.run_at == world.clock() + 60 * SECOND
    assert world.pass_(60) == 1
    assert world.step_to("2025-01-02 00:00") == 0


def test_reschedule_takes_a_ready_job_out_of_the_line(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    world.agenda.pause()
    world.at("2025-01-01 10:00")
    world.agenda.reschedule(job, at=utc("2025-01-01 11:00"))
    world.agenda.resume()
    assert world.agenda.run_due() == 0
    world.at("2025-01-01 11:00")
    assert world.take_runs() == ["01-01 11:00:00"]


def test_reschedule_of_a_job_parked_by_its_key_gives_its_place_up(world):
    world.agenda.schedule(int, key="k")
    parked = world.agenda.schedule(world.note, key="k")
    (running,) = world.agenda.take_due()
    world.agenda.reschedule(parked, at=utc("2025-01-01 10:00"))
    world.agenda.finished(running)
    assert world.agenda.run_due() == 0
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_reschedule_of_a_fixed_rate_job_to_a_date_counts_its_slots_from_there(world):
    job = world.agenda.schedule_at_fixed_rate(world.note, initial_delay=1, period=60)
    world.agenda.reschedule(job, at=utc("2025-01-01 10:00"))
    world.pass_in_steps(HOUR + 150, 30)
    assert world.take_runs() == ["01-01 10:00:00", "01-01 10:01:00", "01-01 10:02:00"]


def test_run_now_runs_a_dated_job_instead_of_later(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    assert world.agenda.run_now(job) is True
    assert world.agenda.run_due() == 1
    assert job.status is Status.SUCCEEDED
    assert world.step_to("2025-01-02 00:00") == 0


def test_pause_of_a_dated_job_loses_nothing(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    job.pause()
    world.at("2025-01-01 10:30")
    assert world.take_runs() == []
    job.resume()
    world.agenda.run_due()
    assert world.take_runs() == ["01-01 10:30:00"]


def test_resume_before_the_date_waits_for_it(world):
    job = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    job.pause()
    job.resume()
    assert world.agenda.run_due() == 0
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 10:00:00"]


def test_end_cancels_dates_to_come_and_keeps_what_is_due(world):  # promise 16
    due = world.agenda.schedule(world.note, at=utc("2025-01-01 09:00"))
    later = world.agenda.schedule(world.note, at=utc("2025-01-01 10:00"))
    assert world.agenda._close(False) == 1
    world.agenda.run_due()
    assert (due.status, later.status) == (Status.SUCCEEDED, Status.CANCELLED)


# A cron rule


def test_cron_runs_at_each_of_its_slots(world):
    job = world.agenda.schedule_recurring(world.note, Cron("*/20 * * * *"))
    world.pass_in_steps(HOUR, 60)
    assert world.take_runs() == ["01-01 09:20:00", "01-01 09:40:00", "01-01 10:00:00"]
    assert (job.status, job.attempts, job.skipped) == (Status.SCHEDULED, 3, 0)


def test_interval_when_the_date_is_set_back_does_not_notice(world):  # B01, B04
    world.agenda.schedule_with_fixed_delay(world.note, initial_delay=2, delay=2)
    world.agenda.schedule_recurring(int, Cron("* * * * *"))
    world.step_to("2021-01-01 08:00")
    for _ in range(3):
        world.pass_(2)
    assert world.take_runs() == ["01-01 08:00:02", "01-01 08:00:04", "01-01 08:00:06"]


def test_fixed_rate_when_the_clock_is_set_back_an_hour_does_not_pause(world):  # B05
    world.agenda.schedule_at_fixed_rate(world.note, initial_delay=5, period=5)
    world.agenda.schedule(int, at=utc("2025-01-01 12:00"))
    world.pass_(5)
    world.step_to("2025-01-01 08:00")
    world.pass_(5)
    assert world.take_runs() == ["01-01 09:00:05", "01-01 08:00:05"]


def test_cron_when_the_clock_is_set_back_four_years_goes_by_the_new_now(world):  # B04
    job = world.agenda.schedule_recurring(world.note, Cron("* * * * *"))
    world.at("2025-01-01 09:01")
    world.step_to("2021-01-01 09:00:30")
    assert job.run_at == world.clock() + 30 * SECOND
    world.at("2021-01-01 09:01")
    world.at("2021-01-01 09:02")
    assert world.take_runs() == ["01-01 09:01:00", "01-01 09:01:00", "01-01 09:02:00"]


def test_cron_when_the_clock_is_set_back_less_than_a_minute_runs_no_slot_again(world):  # B152
    world.agenda.schedule_recurring(world.note, Cron("* * * * *"))
    world.at("2025-01-01 09:01")
    world.step_to("2025-01-01 09:00:59")
    world.at("2025-01-01 09:01:00.5")
    assert world.take_runs() == ["01-01 09:01:00"]
    world.at("2025-01-01 09:02")
    assert world.take_runs() == ["01-01 09:02:00"]


def test_cron_when_the_host_slept_runs_once_late(world):  # B07
    job = world.agenda.schedule_recurring(world.note, Cron("*/10 * * * *"))
    world.clock.advance(1)
    assert world.step_to("2025-01-01 09:35") == 1
    assert world.take_runs() == ["01-01 09:35:00"]
    assert job.skipped == 2  # 09:20 and 09:30
    world.at("2025-01-01 09:40")
    assert world.take_runs() == ["01-01 09:40:00"]


def test_cron_a_slot_equal_to_the_end_of_the_late_run_is_run(world):  # promise 7
    world.agenda.schedule_recurring(world.note, Cron("*/10 * * * *"))
    world.step_to("2025-01-01 09:30")
    assert world.agenda.run_due() == 1
    assert len(world.ran) == 2
    assert world.agenda.run_due() == 0


def test_cron_burst_runs_each_missed_slot(world):
    job = world.agenda.schedule_recurring(world.note, Cron("*/10 * * * *"), on_missed="burst")
    world.step_to("2025-01-01 09:35")
    while world.agenda.run_due():
        pass
    assert (len(world.ran), job.skipped) == (3, 0)
    world.at("2025-01-01 09:40")
    assert len(world.ran) == 4


def test_cron_burst_is_bounded(world):  # B150
    job = world.agenda.schedule_recurring(world.note, lambda at: at + 5 * SECOND, on_missed="burst")
    world.pass_(14 * 86_400)
    while world.agenda.run_due():
        pass
    assert job.attempts == 1001
    assert job.skipped == 1000
    assert world.agenda.run_due() == 0
    assert world.pass_(5) == 1


def test_cron_missed_for_years_is_run_once_and_asked_a_bounded_number_of_times(world):  # B150
    asked = []

    class EverySecond:
        def next_after(self, dt):
            asked.append(dt)
            return dt.replace(microsecond=0) + timedelta(seconds=1)

    job = world.agenda.schedule_recurring(world.note, EverySecond())
    asked.clear()
    assert world.step_to("2030-01-01 00:00") == 1
    assert len(asked) == 1002
    assert job.skipped == 1000
    assert world.agenda.run_due() == 1
    assert world.agenda.run_due() == 0


def test_cron_slots_inside_a_run_are_skipped(world):
    job = world.agenda.schedule_recurring(int, Cron("*/10 * * * *"))
    world.clock.advance(600), world.wall.advance(600)
    world.agenda.take_due()
    world.clock.advance(1500), world.wall.advance(1500)
    world.agenda.finished(job)
    assert job.skipped == 2
    assert job.run_at == world.clock() + 300 * SECOND


def test_cron_overlap_queue_runs_one_of_the_slots_inside_a_run(world):
    job = world.agenda.schedule_recurring(world.note, Cron("*/10 * * * *"), overlap="queue")
    world.clock.advance(600), world.wall.advance(600)
    world.agenda.take_due()
    world.clock.advance(1500), world.wall.advance(1500)
    world.agenda.finished(job)
    assert world.agenda.run_due() == 1
    assert world.agenda.run_due() == 0
    assert job.run_at == world.clock() + 300 * SECOND


def test_cron_run_stalled_at_random_has_at_most_one_run_a_slot(world):  # B152
    slots = []

    def task():
        slots.append(current_job().run_at - world.clock() + world.wall())

    world.agenda.schedule_recurring(task, Cron("* * * * *"))
    for k in range(80):
        world.pass_(30 + 60 * (k * 37 % 61) / 61)
    assert len(slots) == len(set(slots)) > 40
    assert all(slot % (60 * SECOND) == 0 for slot in slots)


def test_cron_ticked_each_30_s_runs_once_a_minute(world):  # B153
    world.agenda.schedule_recurring(world.note, Cron("* * * * *"))
    world.pass_in_steps(600, 30)
    assert len(world.ran) == len(set(world.ran)) == 10


def test_adding_a_job_makes_no_other_job_run_again(world):  # B149
    world.agenda.schedule(world.note, at=utc("2025-01-01 08:30"))
    world.agenda.schedule(world.note, at=utc("2025-01-01 08:45"))
    world.agenda.run_due()
    world.agenda.schedule(world.note, at=utc("2025-01-01 08:50"))
    world.agenda.run_due()
    assert len(world.ran) == 3


# Days on which the zone's offset changes


def test_cron_weekly_midnight_over_a_23_hour_day(stack):  # B13
    world = World(stack, "2021-03-12 18:00")
    job = world.agenda.schedule_recurring(world.note, Cron("0 0 * * mon", tz="America/Chicago"))
    assert job.run_at - world.clock() == ns(local("2021-03-15 00:00", "America/Chicago")) - world.wall()


def test_cron_noon_after_the_clock_went_back_runs_once(stack):  # B16
    world = World(stack, "2025-10-27 15:00")
    world.agenda.schedule_recurring(world.note, Cron("0 12 * * 1", tz="America/New_York"))
    world.pass_in_steps(8 * 86_400, HOUR)
    assert world.take_runs() == ["10-27 16:00:00", "11-03 17:00:00"]


@pytest.mark.parametrize(
    ("start", "runs"),
    [
        ("2024-03-08 12:00", ["03-09 11:00:00", "03-10 10:00:00", "03-11 10:00:00", "03-12 10:00:00"]),
        ("2024-11-01 12:00", ["11-02 10:00:00", "11-03 11:00:00", "11-04 11:00:00", "11-05 11:00:00"]),
    ],
)
def test_cron_daily_at_six_runs_once_a_local_day(stack, start, runs):  # B22
    world = World(stack, start)
    world.agenda.schedule_recurring(world.note, Cron("0 6 * * *", tz="America/New_York"))
    world.pass_in_steps(4 * 86_400, HOUR)
    assert world.take_runs() == runs


def test_cron_per_minute_runs_through_both_equal_hours(stack):  # B17
    world = World(stack, "2020-10-25 00:00")
    world.agenda.schedule_recurring(world.note, Cron("* * * * *", tz="Europe/Paris"))
    world.pass_in_steps(2 * HOUR, 60)
    assert len(world.ran) == 120


def test_cron_in_the_gap_runs_at_its_end(stack):  # B25
    world = World(stack, "2025-03-30 00:00")
    world.agenda.schedule_recurring(world.note, Cron("30 2 * * *", tz="Europe/Prague"))
    world.pass_in_steps(30 * HOUR, 900)
    assert world.take_runs() == ["03-30 01:00:00", "03-31 00:30:00"]


def test_fixed_rate_of_a_week_is_elapsed_time_and_a_weekly_rule_local_time(stack):  # B14
    world = World(stack, "2019-03-27 08:00")  # 09:00 in Brussels, where the clock goes forward on the 31st
    rates, rules = [], []
    week = 7 * 86_400
    tz = ZoneInfo("Europe/Brussels")
    note = lambda seen: seen.append(datetime.fromtimestamp(world.wall() // SECOND, tz).strftime("%m-%d %H:%M"))  # noqa: E731
    world.agenda.schedule_at_fixed_rate(note, initial_delay=week, period=week, args=(rates,))
    world.agenda.schedule_recurring(note, Cron("0 9 * * wed", tz="Europe/Brussels"), args=(rules,))
    world.pass_in_steps(2 * week, HOUR)
    assert rates == ["04-03 10:00", "04-10 10:00"]
    assert rules == ["04-03 09:00", "04-10 09:00"]


@pytest.mark.parametrize("zone", ["America/Chicago", "Europe/London", "Asia/Kathmandu"])
def test_zone_of_the_machine_moves_no_date_and_no_rule(stack, machine_zone, zone):  # B23, B37
    machine_zone(zone)
    world = World(stack, "2022-10-30 00:10")
    past = world.agenda.schedule(world.note, at=utc("2022-10-30 00:10"))
    far = world.agenda.schedule(world.note, at=utc("2022-10-31 00:00"))
    world.agenda.schedule_recurring(world.note, Cron("30 1 * * *"), until=local("2022-10-30 02:00", "Europe/London"))
    assert world.agenda.run_now(far) is True
    assert world.agenda.run_due() == 2
    assert (past.status, far.status) == (Status.SUCCEEDED, Status.SUCCEEDED)
    world.pass_in_steps(3 * HOUR, 600)
    assert world.take_runs() == ["10-30 00:10:00", "10-30 00:10:00", "10-30 01:30:00"]


# Its end


def test_until_in_another_zone_is_compared_as_an_instant(world):  # B40
    rule = Cron("0 * * * *", tz="Asia/Tokyo")
    job = world.agenda.schedule_recurring(world.note, rule, until=local("2025-01-01 12:00", "Europe/Prague"))
    world.pass_in_steps(5 * HOUR, HOUR)
    assert world.take_runs() == ["01-01 10:00:00", "01-01 11:00:00"]
    assert job.status is Status.SUCCEEDED


def test_max_runs_ends_it_and_the_rule_is_not_asked_again(world):
    rule = Times("2025-01-01 10:00", "2025-01-01 11:00", "2025-01-01 12:00")
    job = world.agenda.schedule_recurring(world.note, rule, max_runs=2)
    world.pass_in_steps(4 * HOUR, HOUR)
    assert (len(world.ran), job.status) == (2, Status.SUCCEEDED)
    assert rule.asked == [utc("2025-01-01 09:00"), utc("2025-01-01 10:00")]


def test_rule_without_another_slot_ends_the_job(world):
    job = world.agenda.schedule_recurring(world.note, Times("2025-01-01 10:00"))
    world.at("2025-01-01 10:00")
    assert job.status is Status.SUCCEEDED


def test_rule_without_another_slot_after_a_failed_run_ends_the_job_failed(world):
    job = world.agenda.schedule_recurring(lambda: 1 / 0, Times("2025-01-01 10:00"))
    world.at("2025-01-01 10:00")
    assert job.status is Status.FAILED
    assert isinstance(job.last_error, ZeroDivisionError)


def test_rule_that_raises_ends_the_job_failed_and_is_logged(world, caplog):
    class Broken(Times):
        def next_after(self, dt):
            if self.asked:
                raise LookupError("no more")
            return super().next_after(dt)

    job = world.agenda.schedule_recurring(world.note, Broken("2025-01-01 10:00"), id="broken")
    world.at("2025-01-01 10:00")
    assert (job.status, len(world.ran)) == (Status.FAILED, 1)
    assert isinstance(job.last_error, LookupError)
    assert job.last_error.__traceback__ is None
    assert [record.getMessage() for record in caplog.records] == ["the rule of job 'broken' failed; the job ends"]


def test_rule_that_raises_after_a_failed_run_keeps_both_errors(world):
    answers = iter([world.clock() + SECOND])
    job = world.agenda.schedule_recurring(lambda: 1 / 0, lambda _: next(answers))
    world.pass_(1)
    assert isinstance(job.last_error, StopIteration)
    assert isinstance(job.last_error.__cause__, ZeroDivisionError)


def test_rule_that_stands_still_ends_the_job_and_does_not_spin(world):  # B11
    first = utc("2025-01-01 10:00")

    class Stuck:
        def next_after(self, dt):
            return first

    job = world.agenda.schedule_recurring(world.note, Stuck())
    world.at("2025-01-01 10:00")
    assert job.status is Status.FAILED
    assert str(job.last_error) == f"when must give an instant later than {first!r}, got {first!r}"


def test_rule_that_raises_when_the_clock_was_set_back_ends_the_job(world):
    rule = Times("2025-01-01 10:00")
    job = world.agenda.schedule_recurring(world.note, rule)
    rule.moments = 5
    world.step_to("2024-01-01 00:00")
    assert job.status is Status.FAILED
    assert isinstance(job.last_error, TypeError)


def test_rule_that_gives_a_naive_datetime_ends_its_job_and_no_other(world):  # B38
    class Naive(Times):
        def next_after(self, dt):
            return super().next_after(dt) if not self.asked else datetime(2025, 1, 1, 11)

    job = world.agenda.schedule_recurring(int, Naive("2025-01-01 10:00"))
    world.agenda.schedule_recurring(world.note, Cron("30 * * * *"))
    world.at("2025-01-01 10:00")
    assert job.status is Status.FAILED
    assert isinstance(job.last_error, ValueError)
    world.ran.clear()
    world.at("2025-01-01 10:30")
    assert world.take_runs() == ["01-01 10:30:00"]


# With the other options


def test_cron_failed_run_is_retried_and_the_slots_go_on(world):
    answers = iter([OSError("no"), None, None])

    def task():
        world.note()
        error = next(answers)
        if error is not None:
            raise error

    job = world.agenda.schedule_recurring(task, Cron("0 * * * *"), retry=FixedBackoff(3, delay=60))
    world.pass_in_steps(2 * HOUR, 60)
    assert world.take_runs() == ["01-01 10:00:00", "01-01 10:01:00", "01-01 11:00:00"]
    assert job.status is Status.SCHEDULED


def test_cron_without_a_policy_carries_on_after_a_failed_run(stack):
    world = World(stack, retry=FixedBackoff(3, delay=60))
    job = world.agenda.schedule_recurring(lambda: 1 / 0, Cron("0 * * * *"))
    world.at("2025-01-01 10:00")
    assert job.status is Status.SCHEDULED
    assert job.run_at == world.clock() + HOUR * SECOND


def test_cron_run_past_its_time_limit_fails_and_the_next_slot_comes(world):
    job = world.agenda.schedule_recurring(int, Cron("*/10 * * * *"), timeout=60)
    world.clock.advance(600), world.wall.advance(600)
    world.agenda.take_due()
    world.clock.advance(61), world.wall.advance(61)
    world.agenda.run_due()
    assert isinstance(job.last_error, TimeoutError)
    assert job.run_at == world.clock() + 539 * SECOND
    world.clock.advance(600), world.wall.advance(600)
    assert world.agenda.run_due() == 0  # the run that hangs is not over (promise 6)
    world.agenda.finished(job, run=1)
    world.at("2025-01-01 09:30")
    assert job.attempts == 2


def test_run_now_of_a_cron_job_leaves_its_slots(world):
    job = world.agenda.schedule_recurring(world.note, Cron("0 * * * *"))
    world.pass_(60)
    assert world.agenda.run_now(job) is True
    world.agenda.run_due()
    assert job.run_at == world.clock() + 59 * 60 * SECOND
    world.at("2025-01-01 10:00")
    assert world.take_runs() == ["01-01 09:01:00", "01-01 10:00:00"]


def test_reschedule_of_a_cron_job_counts_from_now_and_then_the_rule_goes_on(world):  # B121
    job = world.agenda.schedule_recurring(world.note, Cron("0 0 * * *"))
    world.agenda.reschedule(job, delay=20)
    assert job.run_at == world.clock() + 20 * SECOND
    world.pass_(20)
    world.at("2025-01-02 00:00")
    assert world.take_runs() == ["01-01 09:00:20", "01-02 00:00:00"]


def test_reschedule_of_a_cron_job_to_a_date_keeps_it_when_the_clock_is_set_back(world):
    job = world.agenda.schedule_recurring(world.note, Cron("0 * * * *"))
    world.agenda.reschedule(job, at=utc("2025-01-01 10:30"))
    world.step_to("2025-01-01 08:00")
    world.at("2025-01-01 10:00")
    assert world.take_runs() == []
    world.at("2025-01-01 10:30")
    world.at("2025-01-01 11:00")
    assert world.take_runs() == ["01-01 10:30:00", "01-01 11:00:00"]


def test_reschedule_of_a_cron_job_that_runs_gives_its_next_run(world):
    job = world.agenda.schedule_recurring(world.note, Cron("0 * * * *"))
    world.clock.advance(HOUR), world.wall.advance(HOUR)
    world.agenda.take_due()
    world.agenda.reschedule(job, at=utc("2025-01-01 10:30"))
    world.agenda.finished(job)
    world.at("2025-01-01 10:30")
    world.at("2025-01-01 11:00")
    assert world.take_runs() == ["01-01 10:30:00", "01-01 11:00:00"]


def test_pause_of_a_cron_job_runs_once_late_afterwards(world):
    job = world.agenda.schedule_recurring(world.note, Cron("0 * * * *"))
    job.pause()
    world.pass_in_steps(3 * HOUR + 600, 600)
    job.resume()
    world.agenda.run_due()
    assert world.take_runs() == ["01-01 12:10:00"]
    assert job.skipped == 2
    world.at("2025-01-01 13:00")
    assert world.take_runs() == ["01-01 13:00:00"]


def test_cron_jitter_counts_from_the_slot(world):
    job = world.agenda.schedule_recurring(int, Cron("0 * * * *"), jitter=600)
    for hour in range(10, 20):
        slot = ns(utc(f"2025-01-01 {hour}:00"))
        assert 0 <= job.run_at - world.clock() + world.wall() - slot <= 600 * SECOND
        world.at(f"2025-01-01 {hour}:10")
    assert job.attempts == 10


def test_cron_tells_of_skipped_slots(world):
    told = []
    world.agenda.on("skipped", told.append)
    world.agenda.schedule_recurring(int, Cron("*/10 * * * *"))
    world.step_to("2025-01-01 09:35")
    world.at("2025-01-01 09:40")
    assert [event.skipped for event in told] == [2]
    assert world.agenda.skipped == 2


def test_cancel_of_a_cron_job_ends_it(world):
    job = world.agenda.schedule_recurring(world.note, Cron("* * * * *"))
    assert job.cancel() is True
    world.at("2025-01-01 10:00")
    assert world.take_runs() == []
    assert world.agenda.next_run_at() is None


def test_task_of_a_cron_job_may_cancel_it(world):  # promise 13
    job = world.agenda.schedule_recurring(lambda: job.cancel(), Cron("* * * * *"))
    world.at("2025-01-01 09:01")
    assert job.status is Status.CANCELLED
    assert world.agenda.stats().waiting == 0


# A callable on the agenda's own clock


def test_callable_is_given_now_and_then_each_slot(world):
    asked = []

    def rule(at):
        asked.append(at - 5_000 * SECOND)
        return at + 10 * SECOND

    job = world.agenda.schedule_recurring(world.note, rule)
    world.pass_in_steps(20, 10)
    assert asked == [0, 10 * SECOND, 20 * SECOND]
    assert job.attempts == 2


def test_callable_does_not_follow_the_wall_clock(world):
    world.agenda.schedule_recurring(world.note, lambda at: at + 10 * SECOND)
    assert world.step_to("2030-01-01 00:00") == 0
    world.step_to("2020-01-01 00:00")
    assert world.pass_(10) == 1


def test_callable_until_is_an_instant_of_this_clock(world):
    end = world.clock() + 20 * SECOND
    job = world.agenda.schedule_recurring(int, lambda at: at + 10 * SECOND, until=end)
    world.pass_in_steps(60, 10)
    assert (job.attempts, job.status) == (2, Status.SUCCEEDED)


def test_callable_slots_missed_are_run_once_late(world):
    job = world.agenda.schedule_recurring(int, lambda at: at + 10 * SECOND)
    world.pass_(35)
    assert (job.attempts, job.skipped) == (1, 2)
    assert job.run_at == world.clock() + 5 * SECOND


def test_callable_past_int64_never_comes(world):
    job = world.agenda.schedule_recurring(int, lambda at: 2**70)
    assert job.run_at == 2**63 - 1
    assert job.cancel() is True


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (1.5, TypeError, "when must give int nanoseconds or None, got 1.5"),
        (True, TypeError, "when must give int nanoseconds or None, got True"),
        (5_000 * SECOND, ValueError, "when must give an instant later than 5000000000000, got 5000000000000"),
        (None, ValueError, None),
    ],
)
def test_callable_with_a_bad_first_answer_is_refused_and_nothing_is_added(world, answer, error, message):
    def rule(at):
        return answer

    with pytest.raises(error) as caught:
        world.agenda.schedule_recurring(int, rule)
    assert str(caught.value) == (message or f"when must have a slot to come, got {rule!r}")
    assert world.agenda.jobs() == []


# Bad input


def refused(call, error):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_at_a_naive_datetime_is_refused(world):  # B37
    at = datetime(2025, 1, 1, 10)
    message = f"at must be int nanoseconds on the agenda's clock or an aware datetime, got {at!r}"
    assert refused(lambda: world.agenda.schedule(int, at=at), ValueError) == message
    job = world.agenda.schedule(int, delay=60)
    assert refused(lambda: world.agenda.reschedule(job, at=at), ValueError) == message
    assert [info.job for info in world.agenda.jobs()] == [job]


def test_at_a_date_beside_a_delay_is_refused(world):
    call = lambda: world.agenda.schedule(int, 5, at=utc("2025-01-01"))  # noqa: E731
    assert refused(call, ValueError) == "delay must be 0 where at is given, got 5"


@pytest.mark.parametrize("when", [5, None, "0 9 * * *", Cron, Times])
def test_when_that_is_no_rule_is_refused(world, when):
    message = f"when must have next_after(dt), or be a callable of int nanoseconds, got {when!r}"
    assert refused(lambda: world.agenda.schedule_recurring(int, when), TypeError) == message


def test_when_that_is_a_coroutine_function_is_refused(world):
    async def rule(at):
        return at

    message = f"when must be a plain callable, got the coroutine function {rule!r}"
    assert refused(lambda: world.agenda.schedule_recurring(int, rule), TypeError) == message


def test_when_that_raises_at_once_raises_at_the_call(world):
    rule = Times("2025-01-01 10:00")
    rule.moments = None
    with pytest.raises(TypeError):
        world.agenda.schedule_recurring(int, rule)
    assert world.agenda.jobs() == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"until": 5}, TypeError, "until must be an aware datetime or None, got 5"),
        (
            {"until": datetime(2026, 1, 1)},
            ValueError,
            "until must be an aware datetime or None, got datetime.datetime(2026, 1, 1, 0, 0)",
        ),
        (
            {"until": datetime(2024, 1, 1, tzinfo=UTC)},
            ValueError,
            "until must not be before the first run, got "
            "datetime.datetime(2024, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)",
        ),
        ({"max_runs": 0}, ValueError, "max_runs must be 1 or more, got 0"),
        ({"on_missed": "shift"}, ValueError, "on_missed must be one of 'skip', 'burst', got 'shift'"),
        ({"overlap": "burst"}, ValueError, "overlap must be one of 'skip', 'queue', got 'burst'"),
        ({"jitter": -1}, ValueError, "jitter must be 0 or more, got -1"),
        ({"priority": 5000}, ValueError, "priority must be from -2048 to 2047, got 5000"),
    ],
)
def test_bad_option_of_a_rule_is_refused_and_nothing_is_added(world, options, error, message):
    assert refused(lambda: world.agenda.schedule_recurring(int, Cron("* * * * *"), **options), error) == message
    assert world.agenda.jobs() == []


def test_until_of_a_callable_must_be_an_int(world):
    until = utc("2026-01-01")
    message = f"until must be int nanoseconds on the agenda's clock or None, got {until!r}"
    call = lambda: world.agenda.schedule_recurring(int, lambda at: at + 1, until=until)  # noqa: E731
    assert refused(call, TypeError) == message


def test_wall_clock_that_is_not_callable_is_refused(stack):
    assert refused(lambda: stack.Agenda(wall_clock=5), TypeError) == "wall_clock must be callable, got 5"


@pytest.mark.parametrize(
    ("reading", "error", "message"),
    [
        (1.5, TypeError, "wall_clock must return int nanoseconds, got 1.5"),
        (True, TypeError, "wall_clock must return int nanoseconds, got True"),
        (2**63, OverflowError, f"wall_clock must return int nanoseconds within int64, got {2**63}"),
    ],
)
def test_wall_clock_that_returns_no_int_raises_at_the_call(stack, reading, error, message):
    agenda = stack.Agenda(ManualClock(), wall_clock=lambda: reading)
    assert refused(lambda: agenda.schedule(int, at=utc("2025-01-01")), error) == message
    assert agenda.schedule(int, delay=1).status is Status.SCHEDULED  # who needs no wall clock has none


def test_wall_clock_is_not_read_without_jobs_that_follow_it(stack):
    def wall_clock():
        raise AssertionError

    clock = ManualClock()
    agenda = stack.Agenda(clock, wall_clock=wall_clock)
    agenda.schedule_at_fixed_rate(int, initial_delay=1, period=1)
    clock.advance(1)
    assert agenda.run_due() == 1


def test_wall_clock_that_fails_at_the_end_of_a_run_is_taken_to_have_gone_on(stack, caplog):
    clock, wall = ManualClock(), ManualClock(ns(utc("2025-01-01 09:00")))
    broken = []

    def wall_clock():
        if broken:
            raise OSError("no clock")
        return wall()

    agenda = stack.Agenda(clock, wall_clock=wall_clock)
    job = agenda.schedule_recurring(broken.append, Cron("0 * * * *"), args=(1,))
    clock.advance(HOUR), wall.advance(HOUR)
    assert agenda.run_due() == 1
    broken.clear()
    assert job.run_at == clock() + HOUR * SECOND
    assert caplog.records[0].getMessage() == "the wall clock failed; it is taken to have gone on"
