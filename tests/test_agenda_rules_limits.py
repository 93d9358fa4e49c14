"""Time limits, pauses and what changes a job, where they meet each other and the rules of repetition."""

from __future__ import annotations

import random
import threading

import pytest

from conftest import run_all, take
from nextdue import FixedBackoff, Status, current_job

S = 1_000_000_000


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


# ---------------------------------------------------------------- time limits


def test_run_past_its_limit_is_counted_and_told_the_same_whoever_looks_first(agenda, clock):
    heard = []
    for name in ("timed_out", "failed", "retrying"):
        agenda.on(name, lambda event: heard.append((event.name, event.job.id, event.attempt)))
    agenda.schedule(clock.advance, args=(6,), id="a", timeout=5)  # its end comes first
    agenda.run_due()
    agenda.schedule(print, id="b", timeout=5)
    take(agenda)
    clock.advance(6)
    take(agenda)  # the limit comes first
    agenda.finished("b", run=1)
    assert heard == [("timed_out", "a", 1), ("failed", "a", 1), ("timed_out", "b", 1), ("failed", "b", 1)]
    stats = agenda.stats()
    assert (stats.timed_out, stats.failed, stats.running) == (2, 2, 0)


def test_time_limit_with_a_retry_is_told_as_both(agenda, clock):
    heard = []
    for name in ("timed_out", "failed", "retrying"):
        agenda.on(name, lambda event: heard.append((event.name, event.attempt)))
    agenda.schedule(clock.advance, args=(6,), timeout=5, retry=FixedBackoff(2, delay=0))
    run_all(agenda)
    assert heard == [("timed_out", 1), ("retrying", 1), ("timed_out", 2), ("failed", 2)]


def test_limit_that_came_for_a_run_that_has_ended_spares_the_next_run(agenda, clock):
    """A watcher takes the limit off, and books it a moment later: the run has ended meanwhile, and goes again."""
    job = agenda.schedule(print, id="a", timeout=5, retry=FixedBackoff(max_attempts=3, delay=0))
    take(agenda)
    clock.advance(6)
    assert agenda._watch() == -3
    agenda.finished("a", run=1)  # past its limit: failed
    assert take(agenda) == ["a"]
    assert not agenda._expire_one(False)
    assert (job.status, job.attempts) == (Status.RUNNING, 2)
    agenda.finished("a", value="good", run=2)
    assert job.result() == "good"
    assert agenda.stats().timed_out == 1


def test_late_results_in_any_order_change_nothing(agenda, clock):
    job = agenda.schedule(print, id="a", timeout=5, retry=FixedBackoff(max_attempts=3, delay=0))
    for _ in range(2):
        assert take(agenda) == ["a"]
        clock.advance(5)
    assert take(agenda) == ["a"]
    agenda.finished("a", OSError("late"), run=2)
    agenda.finished("a", value="late", run=1)
    assert job.status == Status.RUNNING
    agenda.finished("a", value="good", run=3)
    assert (job.status, job.result()) == (Status.SUCCEEDED, "good")
    assert agenda.stats()[:3] == (0, 0, 0)


def test_retry_of_a_repeating_job_that_came_due_in_the_run_past_its_limit_is_not_lost(agenda, clock):
    job = agenda.schedule_at_fixed_rate(
        print, 0, 100, id="a", timeout=5, retry=FixedBackoff(max_attempts=2, delay=1), max_runs=1
    )
    take(agenda)
    clock.advance(5)
    assert take(agenda) == []
    clock.advance(2)
    assert take(agenda) == []  # the retry is due, the old run goes on
    agenda.finished("a", run=1)
    assert take(agenda) == ["a"]
    agenda.finished("a", run=2)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 2)


def test_one_off_that_is_resumed_while_an_old_run_of_it_goes_on_runs_its_retry(agenda, clock):
    agenda.schedule(print, id="a", timeout=5, retry=FixedBackoff(max_attempts=2, delay=0))
    take(agenda)
    agenda.pause("a")
    clock.advance(5)
    assert take(agenda) == []
    agenda.resume("a")
    assert take(agenda) == ["a"]


def test_last_run_of_a_repeating_job_that_passes_its_limit_ends_it_failed(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", timeout=5, max_runs=1)
    take(agenda)
    clock.advance(5)
    take(agenda)
    assert job.status == Status.FAILED
    agenda.finished(job, run=1)
    assert job.wait(0)


def test_reschedule_while_a_run_past_its_limit_goes_on_waits_for_it(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 100, id="a", timeout=5)
    take(agenda)
    clock.advance(5)
    take(agenda)
    assert agenda.reschedule("a", delay=1)
    clock.advance(3)
    assert take(agenda) == []
    agenda.finished("a", run=1)
    assert take(agenda) == ["a"]
    assert job.run_at == 106 * S  # the slots count from the rescheduled one


def test_run_is_told_of_its_limit_and_of_a_cancel(agenda, clock):
    seen = []

    def task():
        run = current_job()
        seen.append((run.cancelled, run.wait(0)))
        clock.advance(5)
        seen.append((run.cancelled, run.wait(0), run.wait()))

    agenda.schedule(task, timeout=5)
    agenda.run_due()
    assert seen == [(False, False), (True, True, True)]


@pytest.mark.realtime
def test_run_that_waits_is_woken_by_cancel(agenda):
    waiting = threading.Event()
    seen = []

    def task():
        waiting.set()
        seen.append(current_job().wait(60))

    job = agenda.schedule(task)
    thread = threading.Thread(target=agenda.run_due)
    thread.start()
    assert waiting.wait(30)
    job.cancel()
    thread.join(30)
    assert seen == [True]


@pytest.mark.realtime
def test_run_that_waits_is_woken_when_its_limit_is_booked(agenda, clock):
    waiting = threading.Event()
    seen = []

    def task():
        waiting.set()
        seen.append(current_job().wait(60))

    agenda.schedule(task, timeout=5)
    thread = threading.Thread(target=agenda.run_due)
    thread.start()
    assert waiting.wait(30)
    clock.advance(5)
    agenda.run_due()
    thread.join(30)
    assert seen == [True]


@pytest.mark.realtime
def test_run_that_waits_without_end_is_woken_by_its_limit_though_nobody_looks(stack):
    agenda = stack.Agenda()
    seen = []
    job = agenda.schedule(lambda: seen.append(current_job().wait()), timeout=0.02)
    agenda.run_due()
    assert seen == [True]
    assert isinstance(job.last_error, TimeoutError)


def test_run_that_waits_gives_up_after_its_own_timeout(agenda):
    seen = []
    agenda.schedule(lambda: seen.append(current_job().wait(0.001)))
    agenda.run_due()
    assert seen == [False]


def test_current_job_in_a_nested_pass_is_that_of_the_inner_task_and_then_the_outer_again(agenda):
    seen = []

    def outer():
        agenda.schedule(lambda: seen.append(current_job().id), id="inner")
        agenda.run_due()
        seen.append(current_job().id)

    agenda.schedule(outer, id="outer")
    agenda.run_due()
    assert seen == ["inner", "outer"]


def test_current_job_of_a_thread_that_a_task_starts_is_none(agenda):
    seen = []

    def task():
        thread = threading.Thread(target=lambda: seen.append(current_job()))
        thread.start()
        thread.join()

    agenda.schedule(task)
    agenda.run_due()
    assert seen == [None]


# ---------------------------------------------------------------- pause


def test_pause_and_resume_of_a_running_job_change_nothing_about_its_run(agenda):
    agenda.schedule(print, id="a")
    take(agenda)
    assert agenda.pause("a")
    assert agenda.resume("a")
    assert take(agenda) == []
    agenda.finished("a")
    assert agenda.status("a") == Status.SUCCEEDED


def test_repeating_job_that_is_paused_in_its_run_waits_afterwards(agenda, clock):
    agenda.schedule_at_fixed_rate(print, 0, 10, id="a")
    take(agenda)
    agenda.pause("a")
    clock.advance(10)
    agenda.finished("a")
    assert take(agenda) == []
    agenda.resume("a")
    assert take(agenda) == ["a"]


def test_paused_job_that_is_cancelled_leaves_nothing_behind(agenda):
    job = agenda.schedule(print, id="a")
    agenda.pause("a")
    take(agenda)
    assert agenda.stats()[:3] == (1, 0, 0)
    assert job.cancel()
    assert not agenda.resume("a")
    assert agenda.stats()[:3] == (0, 0, 0)


def test_pause_of_what_has_ended_or_is_unknown_is_refused(agenda):
    job = agenda.schedule(lambda: None)
    agenda.run_due()
    assert not agenda.pause(job)
    assert not agenda.pause("nobody")
    assert not agenda.resume("nobody")
    assert not agenda.run_now("nobody")
    assert not agenda.run_now(job)


def test_pause_of_all_after_the_end_is_refused(agenda):
    agenda.schedule(print, id="a")
    agenda._close(False)
    assert not agenda.pause()
    assert take(agenda) == ["a"]


def test_shutdown_lifts_the_pause_of_all_and_cancels_what_is_paused_by_itself(agenda):
    agenda.schedule(print, id="a")
    b = agenda.schedule(print, id="b")
    agenda.pause()
    agenda.pause("b")
    assert agenda._close(False) == 1
    assert b.status == Status.CANCELLED
    assert take(agenda) == ["a"]


# ---------------------------------------------------------------- run_now


def test_run_now_of_a_job_that_is_due_keeps_its_place(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b")
    assert agenda.run_now("a")
    assert take(agenda) == ["a", "b"]


def test_run_now_of_a_late_slot_runs_it_once_and_skips_none(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10)
    clock.advance(3)
    agenda.run_now(job)
    assert run_all(agenda) == 1
    assert (job.skipped, job.run_at) == (0, 10 * S)


def test_run_now_leaves_the_slot_with_its_jitter_as_it_is(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 60, jitter=59)
    planned = job.run_at
    clock.set_ns(planned // 2)
    agenda.run_now(job)
    assert agenda.run_due() == 1
    assert (job.run_at, job.skipped) == (planned, 0)
    clock.set_ns(planned)
    assert agenda.run_due() == 1


def test_run_now_of_a_retry_is_the_next_attempt(agenda, clock):
    job = agenda.schedule(print, id="a", retry=FixedBackoff(max_attempts=2, delay=60))
    take(agenda)
    agenda.finished("a", OSError())
    assert agenda.run_now("a")
    assert take(agenda) == ["a"]
    agenda.finished("a", OSError())
    assert job.status == Status.FAILED


def test_run_now_does_not_count_for_max_runs(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 10, 10, max_runs=2, until=20 * S)
    for _ in range(3):
        agenda.run_now(job)
        assert agenda.run_due() == 1
    clock.advance(10)
    assert agenda.run_due() == 1
    clock.advance(10)
    assert agenda.run_due() == 1
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 5)


def test_failed_run_that_was_asked_for_is_retried_and_the_slots_stay(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 100, 100, id="a", retry=FixedBackoff(max_attempts=2, delay=1))
    agenda.run_now("a")
    take(agenda)
    agenda.finished("a", OSError())
    clock.advance(1)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.run_at, job.skipped) == (100 * S, 0)


def test_run_now_of_a_running_or_paused_job_is_refused(agenda):
    agenda.schedule_at_fixed_rate(print, 0, 10, id="a")
    agenda.schedule(print, delay=1, id="b")
    agenda.pause("b")
    take(agenda)
    assert not agenda.run_now("a")
    assert not agenda.run_now("b")


def test_run_now_twice_is_one_run(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 10, 10)
    assert agenda.run_now(job)
    assert agenda.run_now(job)
    assert run_all(agenda) == 1
    assert job.run_at == 10 * S


def test_slot_inside_a_run_that_was_asked_for_is_skipped(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 10, 10, id="a")
    agenda.run_now("a")
    take(agenda)
    clock.advance(15)
    agenda.finished("a")
    assert (job.run_at, job.skipped) == (20 * S, 1)


# ---------------------------------------------------------------- missed, overlapping, jitter


def test_steady_job_whose_run_takes_its_period_runs_at_each_slot(agenda, clock):  # B166
    starts = []

    def task():
        starts.append(clock() // S)
        clock.advance(2)

    job = agenda.schedule_at_fixed_rate(task, 0, 2, max_runs=5)
    run_all(agenda)
    assert (starts, job.skipped) == ([0, 2, 4, 6, 8], 0)


def test_run_a_little_over_its_period_skips_one_slot_and_never_overlaps(agenda, clock):  # B169: here by promise 6
    agenda.schedule_at_fixed_rate(print, 0, 60, id="a")
    take(agenda)
    clock.advance(60)
    assert take(agenda) == []
    clock.advance(5)
    agenda.finished("a")
    assert take(agenda) == []
    clock.advance(55)
    assert take(agenda) == ["a"]


def test_run_a_little_over_its_period_is_followed_at_once_with_a_queue(agenda, clock):  # B169
    job = agenda.schedule_at_fixed_rate(print, 0, 60, id="a", overlap="queue")
    take(agenda)
    clock.advance(65)
    agenda.finished("a")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.skipped, job.run_at) == (0, 120 * S)


def test_burst_with_a_queue_runs_the_slots_inside_a_run_too(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", on_missed="burst", overlap="queue")
    take(agenda)
    clock.advance(35)
    agenda.finished("a")
    for _ in range(3):
        assert take(agenda) == ["a"]
        agenda.finished("a")
    assert take(agenda) == []
    assert (job.skipped, job.attempts, job.run_at) == (0, 4, 40 * S)


def test_burst_skips_the_slots_inside_its_own_runs(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", on_missed="burst")
    take(agenda)
    clock.advance(35)
    agenda.finished("a")
    assert take(agenda) == []
    assert (job.skipped, job.run_at) == (3, 40 * S)


@pytest.mark.parametrize("period", [100 * 86_400, 200 * 86_400, 200 * 365 * 86_400])
def test_burst_of_a_long_period_makes_up_for_each_slot(agenda, clock, period):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, period, on_missed="burst")
    clock.advance(min(3.5 * period, 9.2e9))
    slots = min(3, int(9.2e9 // period)) + 1
    assert run_all(agenda) == slots
    assert job.skipped == 0


def test_burst_from_a_slot_long_past_is_bounded(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 1, at=-(2**63) + 2, on_missed="burst")
    clock.set_ns(2**62)
    assert 1000 <= run_all(agenda) <= 1002
    assert clock() - S <= job.run_at - S <= clock()


def test_burst_ends_with_max_runs_and_until(agenda, clock):
    few = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, on_missed="burst", max_runs=2)
    short = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, on_missed="burst", until=20 * S)
    clock.advance(95)
    run_all(agenda)
    assert (few.status, few.attempts) == (Status.SUCCEEDED, 2)
    assert (short.status, short.attempts) == (Status.SUCCEEDED, 3)


def test_late_run_without_a_missed_slot_shifts_nothing(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, on_missed="shift")
    clock.advance(7)
    agenda.run_due()
    assert (job.skipped, job.run_at) == (0, 10 * S)


def test_reschedule_is_exact_and_the_slots_after_it_have_their_jitter(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 60, jitter=20)
    assert agenda.reschedule(job, delay=30)
    assert job.run_at == 30 * S
    for slot in range(90, 90 + 60 * 50, 60):
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
        assert slot * S <= job.run_at <= (slot + 20) * S


def test_jitter_of_a_one_off_is_added_to_its_delay(agenda, clock):
    times = {agenda.schedule(print, delay=10, jitter=5).run_at for _ in range(50)}
    assert all(10 * S <= at <= 15 * S for at in times)
    assert len(times) > 10


@pytest.mark.parametrize("jitter", [1e-6, 1, 24 * 3600, 365 * 24 * 3600, 290 * 365 * 24 * 3600])
def test_jitter_is_spread_evenly_however_long_it_is(agenda, jitter):
    random.seed(3)
    parts = [agenda.schedule(print, jitter=jitter).run_at / (jitter * S) for _ in range(2_000)]
    assert 0 <= min(parts) < 0.02
    assert 0.98 < max(parts) <= 1
    for quarter in range(4):
        assert 400 <= sum(quarter <= 4 * part < quarter + 1 for part in parts) <= 600


def test_jitter_of_a_fixed_delay_job_is_added_to_each_delay(agenda, clock):
    job = agenda.schedule_with_fixed_delay(lambda: None, 0, 10, jitter=100)
    for _ in range(20):
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
        assert clock() + 10 * S <= job.run_at <= clock() + 110 * S


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"jitter": 11}, ValueError, "jitter must be at most the period, got 11"),
        ({"on_missed": "later"}, ValueError, "on_missed must be one of 'skip', 'burst', 'shift', got 'later'"),
        ({"overlap": None}, ValueError, "overlap must be one of 'skip', 'queue', got None"),
        ({"max_runs": 0}, ValueError, "max_runs must be 1 or more, got 0"),
        ({"max_runs": True}, TypeError, "max_runs must be an int, got True"),
        (
            {"until": 1.5},
            TypeError,
            "until must be int nanoseconds on the agenda's clock or None, got 1.5",
        ),
        ({"until": -1}, ValueError, "until must not be before the first run, got -1"),
    ],
)
def test_bad_option_of_a_repeating_job_is_refused(agenda, options, error, message):
    with pytest.raises(error) as caught:
        agenda.schedule_at_fixed_rate(print, 0, 10, id="x", **options)
    assert str(caught.value) == message
    agenda.schedule(print, id="x")


def test_reschedule_of_a_job_in_a_retry_begins_its_slots_anew(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", retry=FixedBackoff(max_attempts=9, delay=5))
    take(agenda)
    agenda.finished("a", OSError())
    agenda.reschedule("a", delay=100)
    clock.advance(100)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.run_at, job.skipped) == (110 * S, 0)


def test_job_tells_since_when_it_runs(agenda, clock):
    agenda.schedule(print, id="plain")
    agenda.schedule(print, id="keyed", key="k")
    clock.advance(7)
    assert [info.running_since for info in agenda.jobs()] == [None, None]
    take(agenda)
    clock.advance(1)
    assert [info.running_since for info in agenda.jobs()] == [7 * S, 7 * S]


def test_error_of_a_time_limit_says_a_fraction_of_a_second(agenda, clock):
    job = agenda.schedule(clock.advance, args=(1,), id="a", timeout=0.25)
    agenda.run_due()
    assert str(job.last_error) == "a run of job 'a' took longer than 0.25 s"
