"""Keys, time limits, pauses, dependencies and the other options, on a clock that moves by hand."""

from __future__ import annotations

import contextvars
import logging

import pytest

from conftest import take
from nextdue import FailedResult, FixedBackoff, Status, TooManyJobs, UnknownJobId, current_job


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


# ---------------------------------------------------------------- keys


def test_jobs_of_one_key_run_one_at_a_time_in_order(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    agenda.schedule(print, id="other", key="l")
    assert take(agenda) == ["a", "other"]
    assert take(agenda) == []
    agenda.finished("a")
    assert take(agenda) == ["b"]
    agenda.finished("b", OSError())
    assert take(agenda) == ["c"]


def test_key_limit_lets_so_many_run(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key=7, key_limit=2)
    assert take(agenda) == ["a", "b"]
    agenda.finished("b")
    assert take(agenda) == ["c"]


def test_job_that_waits_for_its_key_keeps_its_place_by_priority(agenda):
    agenda.schedule(print, id="first", key="k")
    assert take(agenda) == ["first"]
    agenda.schedule(print, id="low", key="k")
    agenda.schedule(print, id="high", key="k", priority=5)
    assert take(agenda) == []
    agenda.finished("first")
    assert take(agenda) == ["high"]


def test_cancelled_job_that_was_called_for_its_key_lets_the_next_through(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.finished("a")  # b is in the ready line again
    assert agenda.cancel("b")
    assert take(agenda) == ["c"]


def test_cancel_while_parked_is_final_and_leaves_no_trace(agenda):
    for name in "ab":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    assert agenda.cancel("b")
    agenda.finished("a")
    assert take(agenda) == []
    assert agenda.stats().ready == 0


def test_cancelled_run_keeps_its_key_until_it_ends(agenda):
    agenda.schedule(print, id="a", key="k")
    agenda.schedule(print, id="b", key="k")
    assert take(agenda) == ["a"]
    assert agenda.cancel("a")
    assert take(agenda) == []
    agenda.finished("a")
    assert take(agenda) == ["b"]


def test_repeating_job_takes_its_key_for_each_run(agenda, clock):
    agenda.schedule_at_fixed_rate(print, 0, 10, id="a", key="k")
    agenda.schedule_at_fixed_rate(print, 0, 10, id="b", key="k")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert take(agenda) == ["b"]
    agenda.finished("b")
    clock.advance(10)
    assert take(agenda) == ["a"]


def test_key_limit_must_agree(agenda):
    agenda.schedule(print, key="k", key_limit=2)
    with pytest.raises(ValueError, match="must") as caught:
        agenda.schedule(print, key="k", id="x")
    assert str(caught.value) == "key_limit must be that of the other jobs with key 'k', got 1"
    assert agenda.schedule(print, id="x").id == "x"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": 1.5}, TypeError, "key must be a str, an int or None, got 1.5"),
        ({"key": True}, TypeError, "key must be a str, an int or None, got True"),
        ({"key": "k", "key_limit": 0}, ValueError, "key_limit must be 1 or more, got 0"),
        ({"key_limit": 2}, ValueError, "key_limit must come with a key, got 2"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0 ns, got 0"),
        ({"timeout": "1"}, TypeError, "timeout must be seconds (int or float) or a timedelta, got '1'"),
        ({"is_failure": 1}, TypeError, "is_failure must be callable or None, got 1"),
        ({"context": {}}, TypeError, "context must be a contextvars.Context or None, got {}"),
        ({"jitter": -1}, ValueError, "jitter must be 0 or more, got -1"),
        ({"after": "a"}, TypeError, "after must be jobs or their ids in a sequence, got 'a'"),
        ({"after": 1.5}, TypeError, "after must be jobs or their ids in a sequence, got 1.5"),
        ({"after": [1.5]}, TypeError, "job must be a Job or its id (str or int), got 1.5"),
        ({"on_upstream_failure": "run"}, ValueError, "on_upstream_failure must come with after, got 'run'"),
        ({"on_upstream_failure": 1}, ValueError, "on_upstream_failure must be one of 'cancel', 'run', got 1"),
    ],
)
def test_bad_option_is_refused_and_nothing_is_added(agenda, options, error, message):
    with pytest.raises(error) as caught:
        agenda.schedule(print, id="x", **options)
    assert str(caught.value) == message
    assert agenda.next_run_at() is None
    agenda.schedule(print, id="x")


def test_unknown_option_is_a_type_error(agenda):
    with pytest.raises(TypeError):
        agenda.schedule(print, delay=1, colour="red")


# ---------------------------------------------------------------- dependencies


def test_dependent_runs_after_all_it_depends_on(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b")
    agenda.schedule(print, id="c", after=["a", "b"])
    assert take(agenda) == ["a", "b"]
    agenda.finished("a")
    assert take(agenda) == []
    agenda.finished("b")
    assert take(agenda) == ["c"]


def test_dependent_of_a_failed_job_is_cancelled_at_once_with_the_reason_and_so_on(agenda):  # B217, B219
    agenda.schedule(print, id="a")
    agenda.schedule(print, delay=100, id="slow")
    b = agenda.schedule(print, id="b", after=["a", "slow"])
    c = agenda.schedule(print, id="c", after=[b])
    take(agenda)
    agenda.finished("a", OSError())
    assert b.status == c.status == Status.CANCELLED
    assert b.reason == "job 'a', which it comes after, ended failed"
    assert c.reason == "job 'b', which it comes after, ended cancelled"


def test_dependent_runs_all_the_same_if_told_so(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a"], on_upstream_failure="run")
    agenda.cancel("a")
    assert take(agenda) == ["b"]


def test_upstream_that_has_ended_already_counts(agenda):
    agenda.schedule(print, id="good")
    agenda.schedule(print, id="bad")
    take(agenda)
    agenda.finished("good")
    agenda.finished("bad", OSError())
    agenda.schedule(print, id="x", after=["good"])
    y = agenda.schedule(print, id="y", after=["bad"])
    assert y.status == Status.CANCELLED
    assert y.wait(0)
    assert take(agenda) == ["x"]


def test_long_chain_of_dependents_is_cancelled_without_recursion(agenda):
    jobs = [agenda.schedule(print, delay=1)]
    for _ in range(5000):
        jobs.append(agenda.schedule(print, after=[jobs[-1]]))
    jobs[0].cancel()
    assert jobs[-1].status == Status.CANCELLED


def test_after_unknown_or_itself_is_refused(agenda):
    with pytest.raises(UnknownJobId) as caught:
        agenda.schedule(print, id="x", after=["nobody"])
    assert str(caught.value) == "after must hold known jobs, got 'nobody'"
    with pytest.raises(ValueError, match="must") as caught:
        agenda.schedule(print, id="x", after=["x"])
    assert str(caught.value) == "after must not lead back to the job itself, got 'x' -> 'x'"
    agenda.schedule(print, id="x")


def test_delay_of_a_dependent_counts_from_its_own_schedule(agenda, clock):
    agenda.schedule(print, id="a")
    agenda.schedule(print, delay=10, id="b", after=["a"])
    take(agenda)
    agenda.finished("a")
    assert take(agenda) == []
    clock.advance(10)
    assert take(agenda) == ["b"]


# ---------------------------------------------------------------- time limits


def test_run_past_its_limit_has_failed_and_its_late_result_is_ignored(agenda, clock, caplog):  # B172
    job = agenda.schedule(print, id="a", timeout=5)
    assert take(agenda) == ["a"]
    clock.advance(5)
    with caplog.at_level(logging.ERROR):
        agenda.run_due()
    assert job.status == Status.FAILED
    assert str(job.last_error) == "a run of job 'a' took longer than 5 s"
    assert not job.wait(0)  # that run is going
    agenda.finished("a", value="late", run=1)
    assert job.wait(0)
    assert job.status == Status.FAILED
    assert agenda.stats().timed_out == 1


def test_run_that_returns_past_its_limit_has_failed_whoever_looks_first(agenda, clock):
    job = agenda.schedule(clock.advance, args=(6,), timeout=5)
    assert agenda.run_due() == 1
    assert job.status == Status.FAILED
    assert isinstance(job.last_error, TimeoutError)


def test_run_within_its_limit_succeeds_and_leaves_no_limit_behind(agenda, clock):
    job = agenda.schedule(clock.advance, args=(4.9,), timeout=5)
    agenda.run_due()
    assert job.status == Status.SUCCEEDED
    clock.advance(100)
    agenda.run_due()
    assert agenda.stats().timed_out == 0


def test_retry_after_a_time_limit_runs_beside_the_old_run(agenda, clock):
    job = agenda.schedule(print, id="a", timeout=5, retry=FixedBackoff(max_attempts=2, delay=1))
    take(agenda)
    clock.advance(5)
    agenda.run_due()
    assert job.status == Status.SCHEDULED
    clock.advance(1)
    assert take(agenda) == ["a"]
    agenda.finished("a", value="old", run=1)
    assert job.status == Status.RUNNING
    agenda.finished("a", value="new", run=2)
    assert job.result() == "new"


def test_key_of_a_run_past_its_limit_is_free_when_it_really_ends(agenda, clock):  # B175
    agenda.schedule(print, id="a", key="k", timeout=5)
    agenda.schedule(print, id="b", key="k")
    take(agenda)
    clock.advance(5)
    agenda.run_due()
    assert agenda.status("a") == Status.FAILED
    assert take(agenda) == []
    agenda.finished("a", run=1)
    assert take(agenda) == ["b"]


def test_repeating_job_past_its_limit_waits_for_its_own_old_run(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, id="a", timeout=5)
    take(agenda)
    clock.advance(12)
    assert take(agenda) == []
    clock.advance(3)
    agenda.finished("a", run=1)
    assert job.status == Status.SCHEDULED
    clock.advance(5)
    assert take(agenda) == ["a"]
    assert job.attempts == 2


@pytest.mark.parametrize("limit", [{}, {"timeout": None}, {"timeout": float("inf")}])
def test_no_limit(agenda, clock, limit):  # B52, B173
    job = agenda.schedule(clock.advance, args=(10**6,), **limit)
    agenda.run_due()
    assert job.status == Status.SUCCEEDED


def test_task_asks_which_run_it_is_in(agenda, clock):
    seen = []

    def task():
        run = current_job()
        seen.append((run.id, run.attempt, run.run_at, run.deadline, run.cancelled))
        agenda.cancel("a")
        seen.append(run.cancelled)
        assert run.wait(1)

    clock.set_ns(7)
    agenda.schedule(task, id="a", timeout=1)
    agenda.run_due()
    assert seen == [("a", 1, 7, 1_000_000_007, False), True]
    assert current_job() is None


# ---------------------------------------------------------------- pause, run_now, reschedule


def test_paused_job_does_not_run_and_a_pause_loses_nothing(agenda, clock):
    agenda.schedule(print, delay=1, id="a")
    assert agenda.pause("a")
    clock.advance(5)
    assert take(agenda) == []
    assert agenda.jobs()[0].paused
    assert agenda.resume("a")
    assert not agenda.resume("a")
    assert take(agenda) == ["a"]


def test_job_that_came_due_in_its_pause_keeps_its_place_when_resumed(agenda):  # promise 3
    jobs = [agenda.schedule(int) for _ in range(3)]
    jobs[1].pause()
    assert agenda.take_due(2) == [jobs[0], jobs[2]]  # the paused one was looked at, and put aside
    later = agenda.schedule(int)
    jobs[1].resume()
    assert agenda.take_due() == [jobs[1], later]


def test_pause_of_all(agenda):
    agenda.schedule(print, id="a")
    assert agenda.pause()
    assert take(agenda) == []
    assert agenda.resume()
    assert take(agenda) == ["a"]


def test_fixed_rate_job_runs_once_late_after_a_pause(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10)
    agenda.run_due()
    job.pause()
    clock.advance(35)
    assert agenda.run_due() == 0
    job.resume()
    assert agenda.run_due() == 1
    assert job.skipped == 2
    assert job.run_at == 40_000_000_000


@pytest.mark.parametrize(
    "add",
    [
        lambda agenda: agenda.schedule(print, delay=10, id="a"),
        lambda agenda: agenda.schedule_at_fixed_rate(print, 10, 10, id="a"),
        lambda agenda: agenda.schedule_with_fixed_delay(print, 10, 10, id="a"),
        lambda agenda: agenda.schedule_recurring(print, lambda at: at + 10**10, id="a"),
    ],
)
def test_reschedule_of_a_paused_job_leaves_it_paused(agenda, clock, add):  # B122
    job = add(agenda)
    job.pause()
    assert agenda.reschedule("a", 1)
    clock.advance(1)
    assert take(agenda) == []
    job.resume()
    assert take(agenda) == ["a"]


def test_run_now_leaves_the_slots_as_they_are(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 10, 10)
    assert agenda.run_now(job)
    assert agenda.run_due() == 1
    assert job.run_at == 10_000_000_000
    clock.advance(10)
    assert agenda.run_due() == 1
    assert job.skipped == 0


def test_run_now_of_a_fixed_delay_job_leaves_its_next_run_as_it_is(agenda, clock):
    job = agenda.schedule_with_fixed_delay(lambda: None, 10, 10)
    agenda.run_now(job)
    agenda.run_due()
    assert job.run_at == 10_000_000_000


# ---------------------------------------------------------------- missed, overlapping, jitter, ends


def test_burst_makes_up_for_each_missed_slot(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, on_missed="burst")
    clock.advance(35)
    runs = 0
    while ran := agenda.run_due():
        runs += ran
    assert (runs, job.skipped, job.run_at) == (4, 0, 40_000_000_000)


def test_burst_is_bounded(agenda, clock):  # B150
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 1, on_missed="burst")
    clock.advance(10**6)
    runs = 0
    while ran := agenda.run_due():
        runs += ran
    assert runs <= 1002
    assert runs + job.skipped == 10**6 + 1


def test_shift_counts_anew_from_the_late_run(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, on_missed="shift")
    clock.advance(34)
    agenda.run_due()
    assert (job.skipped, job.run_at) == (3, 44_000_000_000)


def test_queue_runs_one_slot_of_those_inside_a_run(agenda, clock):
    job = agenda.schedule_at_fixed_rate(print, 0, 10, overlap="queue", id="a")
    take(agenda)
    clock.advance(35)
    agenda.finished("a")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert (job.skipped, job.run_at) == (2, 40_000_000_000)


def test_jitter_is_counted_from_the_nominal_slot(agenda, clock):  # B158
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 60, jitter=20)
    for slot in range(200):
        assert slot * 60 * 10**9 <= job.run_at <= (slot * 60 + 20) * 10**9
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
    assert job.skipped == 0


def test_max_runs_and_until_end_a_repeating_job(agenda, clock):
    few = agenda.schedule_at_fixed_rate(lambda: None, 0, 1, max_runs=3)
    short = agenda.schedule_at_fixed_rate(lambda: None, 0, 1, until=1_000_000_000)
    failing = agenda.schedule_with_fixed_delay(lambda: 1 / 0, 0, 1, max_runs=2)
    for _ in range(5):
        agenda.run_due()
        clock.advance(1)
    assert (few.status, few.attempts) == (Status.SUCCEEDED, 3)
    assert (short.status, short.attempts) == (Status.SUCCEEDED, 2)
    assert (failing.status, failing.attempts) == (Status.FAILED, 2)


# ---------------------------------------------------------------- failures, events, counts, contexts, bounds


def test_result_that_counts_as_a_failure(agenda):
    job = agenda.schedule(lambda: False, is_failure=lambda result: result is False)
    agenda.run_due()
    assert job.status == Status.FAILED
    assert isinstance(job.last_error, FailedResult)
    assert job.last_error.value is False


def test_listeners_hear_what_happens_and_harm_nothing(agenda, clock):
    heard = []
    for name in ("started", "succeeded", "failed", "retrying", "skipped", "cancelled", "timed_out"):
        agenda.on(name, lambda event: heard.append((event.name, event.job.id, event.attempt)))
    agenda.on("started", lambda event: 1 / 0)
    agenda.schedule(lambda: None, id="a")
    agenda.schedule(lambda: 1 / 0, id="b", retry=FixedBackoff(2, 1))
    agenda.schedule(print, delay=9, id="c")
    agenda.run_due()
    agenda.cancel("c")
    clock.advance(1)
    agenda.run_due()
    assert heard == [
        ("started", "a", 1),
        ("succeeded", "a", 1),
        ("started", "b", 1),
        ("retrying", "b", 1),
        ("cancelled", "c", 0),
        ("started", "b", 2),
        ("failed", "b", 2),
    ]


def test_skipped_slots_are_told_with_the_run_before_which_they_were(agenda, clock):
    heard = []
    agenda.on("skipped", lambda event: heard.append(event.skipped))
    agenda.schedule_at_fixed_rate(lambda: None, 0, 10)
    clock.advance(35)
    agenda.run_due()
    assert heard == [3]


def test_listener_can_be_taken_off(agenda):
    heard = []
    end = agenda.on("succeeded", heard.append)
    end()
    agenda.schedule(lambda: None)
    agenda.run_due()
    assert heard == []


def test_stats_count_and_tell_the_lag(agenda, clock):
    agenda.schedule(lambda: None)
    agenda.schedule(lambda: 1 / 0)
    agenda.schedule(print, delay=99)
    agenda.schedule(print, delay=98).cancel()
    clock.advance(2)
    agenda.run_due()
    stats = agenda.stats()
    assert (stats.waiting, stats.ready, stats.running, stats.started) == (1, 0, 0, 2)
    assert (stats.succeeded, stats.failed, stats.cancelled) == (1, 1, 1)
    assert 2e9 <= stats.lag.quantile(0.5) <= 2.25e9


def test_each_run_has_an_empty_context(agenda):  # B214
    var = contextvars.ContextVar("var", default="unset")
    seen = []

    def task():
        seen.append(var.get())
        var.set("left behind")

    var.set("outside")
    agenda.schedule(task)
    agenda.schedule(task)
    agenda.run_due()
    assert seen == ["unset", "unset"]


def test_given_context_has_the_values_of_its_making(agenda):  # B213
    var = contextvars.ContextVar("var", default="unset")
    seen = []
    var.set("then")
    agenda.schedule_at_fixed_rate(lambda: seen.append(var.get()), 0, 1, context=contextvars.copy_context(), max_runs=1)
    var.set("later")
    agenda.run_due()
    assert seen == ["then"]


def test_max_waiting_is_a_clear_error(stack, clock):
    agenda = stack.Agenda(clock, max_waiting=2)
    agenda.schedule(print, id="a")
    agenda.schedule(print, delay=1, id="b")
    with pytest.raises(TooManyJobs) as caught:
        agenda.schedule(print)
    assert str(caught.value) == "at most max_waiting = 2 jobs may wait, and so many do"
    agenda.cancel("b")
    agenda.schedule(print, id="c")
