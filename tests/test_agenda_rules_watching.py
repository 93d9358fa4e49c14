"""Failures, events, counts, contexts and bounds where they meet the other rules, and tasks that call everything."""

from __future__ import annotations

import contextvars
import gc
import weakref
from contextlib import suppress

import pytest

from conftest import take
from nextdue import FailedResult, FixedBackoff, Status, TooManyJobs, UnknownJobId, current_job

S = 1_000_000_000
EVENTS = ("started", "succeeded", "failed", "retrying", "skipped", "cancelled", "timed_out")


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def listen(agenda):
    heard = []
    for name in EVENTS:
        agenda.on(name, lambda event: heard.append((event.name, event.job.id, event.attempt)))
    return heard


# ---------------------------------------------------------------- failures


def test_is_failure_that_raises_fails_the_run_with_that(agenda):
    job = agenda.schedule(lambda: 5, is_failure=lambda result: result.nothing)
    agenda.run_due()
    assert job.status == Status.FAILED
    assert isinstance(job.last_error, AttributeError)


def test_verdict_that_has_no_truth_fails_the_run(agenda):
    class Vague:
        def __bool__(self):
            raise LookupError("who knows")

    job = agenda.schedule(lambda: 5, is_failure=lambda result: Vague())
    agenda.run_due()
    assert isinstance(job.last_error, LookupError)


def test_is_failure_that_exits_ends_the_run_in_the_books(agenda):  # B91
    def condition(result):
        raise SystemExit(3)

    job = agenda.schedule(lambda: 5, is_failure=condition, key="k")
    agenda.schedule(lambda: 5, id="next", key="k")
    with pytest.raises(SystemExit):
        agenda.run_due()
    assert job.status == Status.FAILED
    assert take(agenda) == ["next"]


def test_result_that_counts_as_a_failure_is_retried(agenda, clock):
    results = iter([False, False, "good"])
    errors = []

    def policy(attempt, error):
        errors.append((attempt, type(error), error.value))
        return 0

    job = agenda.schedule(lambda: next(results), is_failure=lambda result: result is False, retry=policy)
    while agenda.run_due():
        pass
    assert job.result() == "good"
    assert errors == [(1, FailedResult, False), (2, FailedResult, False)]
    assert str(job.last_error) == "the result counts as a failure: False"


def test_driver_that_hands_in_a_result_has_it_judged(agenda):
    job = agenda.schedule(print, is_failure=lambda result: result == 7)
    agenda.take_due()
    agenda.finished(job, value=7)
    assert job.status == Status.FAILED


def test_policy_may_be_any_callable_and_call_everything(agenda):
    def policy(attempt, error):
        agenda.schedule(print, delay=9, id=f"from {attempt}")
        agenda.pause("a")
        agenda.resume("a")
        return 0.5 if attempt < 3 else None

    job = agenda.schedule(lambda: 1 / 0, id="a", retry=policy)
    agenda.run_due()
    assert agenda.run_now(job)
    agenda.run_due()
    assert agenda.run_now(job)
    agenda.run_due()
    assert job.status == Status.FAILED
    assert agenda.stats().waiting == 3


# ---------------------------------------------------------------- listeners


def test_listener_that_removes_the_job_at_its_success_sees_no_more_starts(agenda, clock):  # B109
    job = agenda.schedule_at_fixed_rate(clock.advance, 0, 1, args=(2,), id="a")
    agenda.on("succeeded", lambda event: event.job.cancel())
    agenda.run_due()
    clock.advance(10)
    assert agenda.run_due() == 0
    assert (job.status, job.attempts) == (Status.CANCELLED, 1)


def test_listener_that_cancels_a_job_as_it_starts_leaves_its_run_without_effect(agenda):
    job = agenda.schedule(lambda: 5)
    agenda.on("started", lambda event: event.job.cancel())
    agenda.run_due()
    assert job.status == Status.CANCELLED
    assert job.wait(0)


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_listener_that_raises_harms_nothing(agenda, error):  # B91
    def listener(event):
        raise error("from a listener")

    heard = []
    for name in EVENTS:
        agenda.on(name, listener)
        agenda.on(name, lambda event: heard.append(event.name))
    job = agenda.schedule(lambda: 5, key="k")
    assert agenda.run_due() == 1
    assert job.result() == 5
    assert heard == ["started", "succeeded"]


def test_listener_may_call_everything(agenda, clock):
    depth = []

    def listener(event):
        if len(depth) == 3:
            return
        depth.append(event.name)
        job = agenda.schedule(lambda: None, key="k", after=[event.job], on_upstream_failure="run")
        agenda.pause(job)
        agenda.resume(job)
        agenda.reschedule(job)
        agenda.jobs()
        agenda.stats()
        agenda.on("failed", print)()
        agenda.run_due()

    agenda.on("succeeded", listener)
    agenda.schedule(lambda: None, key="k")
    while agenda.run_due():
        pass
    assert depth == ["succeeded"] * 3
    assert agenda.stats()[:3] == (0, 0, 0)


def test_listener_that_is_given_twice_is_called_twice_and_taken_off_once(agenda):
    heard = []
    end = agenda.on("succeeded", heard.append)
    agenda.on("succeeded", heard.append)
    end()
    end()
    agenda.schedule(lambda: None)
    agenda.run_due()
    assert len(heard) == 1


def test_events_of_one_job_in_order_with_their_attempts(agenda, clock):
    heard = listen(agenda)
    agenda.schedule(print, id="a", timeout=5, retry=FixedBackoff(max_attempts=2, delay=1))
    take(agenda)  # a driver of its own: nothing tells of its starts
    clock.advance(5)
    take(agenda)
    clock.advance(1)
    take(agenda)
    agenda.finished("a", run=2)
    agenda.finished("a", run=1)
    assert heard == [("timed_out", "a", 1), ("retrying", "a", 1), ("succeeded", "a", 2)]


def test_dependents_that_are_let_down_are_told_as_cancelled(agenda):
    heard = listen(agenda)
    agenda.schedule(lambda: 1 / 0, id="a")
    agenda.schedule(print, id="b", after=["a"])
    agenda.run_due()
    agenda.schedule(print, id="c", after=["a"])
    assert heard == [("started", "a", 1), ("failed", "a", 1), ("cancelled", "b", 0), ("cancelled", "c", 0)]


def test_event_of_a_failure_has_its_error(agenda):
    errors = []
    agenda.on("failed", lambda event: errors.append(event.error))
    job = agenda.schedule(lambda: 1 / 0)
    agenda.run_due()
    assert errors == [job.last_error]


@pytest.mark.parametrize(
    ("event", "listener", "error", "message"),
    [
        (
            "ended",
            print,
            ValueError,
            "event must be one of 'started', 'succeeded', 'timed_out', 'failed', 'retrying', 'skipped', 'cancelled', "
            "got 'ended'",
        ),
        ("failed", None, TypeError, "listener must be callable, got None"),
    ],
)
def test_bad_listener_is_refused(agenda, event, listener, error, message):
    with pytest.raises(error) as caught:
        agenda.on(event, listener)
    assert str(caught.value) == message


def test_counts_add_up(agenda, clock):
    jobs = [agenda.schedule(lambda k=k: 1 // (k % 3), retry=FixedBackoff(2, 1) if k % 2 else None) for k in range(60)]
    jobs[5].cancel()
    for _ in range(3):
        agenda.run_due()
        clock.advance(1)
    stats = agenda.stats()
    assert stats.started == stats.succeeded + stats.failed + stats.retried == sum(job.attempts for job in jobs)
    assert (stats.succeeded, stats.failed, stats.cancelled) == (39, 20, 1)
    assert sum(stats.lag.counts.values()) == stats.started


# ---------------------------------------------------------------- contexts


def test_context_that_is_entered_already_serves_all_the_same(agenda):
    var = contextvars.ContextVar("var")
    context = contextvars.copy_context()
    seen = []

    def task():
        seen.append(var.get())
        var.set("changed")

    def inside():
        var.set("inside")
        agenda.schedule(task, context=context)
        agenda.schedule(task, context=context)
        agenda.run_due()

    context.run(inside)
    assert seen == ["inside", "inside"]
    assert context[var] == "inside"


def test_context_and_condition_are_released_as_a_job_ends(agenda):
    class Thing:
        def __call__(self, result):
            return False

    thing = Thing()
    var = contextvars.ContextVar("var")
    context = contextvars.Context()
    context.run(var.set, thing)
    job = agenda.schedule(lambda: None, delay=1, context=context, is_failure=thing)
    gone = weakref.ref(thing)
    del thing, context
    job.cancel()
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- bounds


def test_history_forgets_by_age_when_an_id_is_asked_for(stack, clock):
    agenda = stack.Agenda(clock, history_age=10)
    job = agenda.schedule(lambda: None, id="a")
    agenda.run_due()
    clock.advance(10)
    assert agenda.status("a") == Status.SUCCEEDED
    clock.advance(0.001)
    with pytest.raises(UnknownJobId):
        agenda.status("a")
    assert job.status == Status.SUCCEEDED


def test_history_forgets_by_age_when_a_job_ends(stack, clock):
    agenda = stack.Agenda(clock, history_age=10)

    class Thing:
        def __call__(self):
            return self

    thing = Thing()
    agenda.schedule(thing, id="a")
    agenda.run_due()
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is not None  # it is the job's result
    clock.advance(11)
    agenda.schedule(lambda: None)
    agenda.run_due()
    gc.collect()
    assert gone() is None


def test_history_forgets_by_count_and_age(stack, clock):
    agenda = stack.Agenda(clock, history=2, history_age=10)
    for name in "abc":
        agenda.schedule(lambda: None, id=name)
    agenda.run_due()
    with pytest.raises(UnknownJobId):
        agenda.status("a")
    clock.advance(5)
    agenda.schedule(print, delay=100, id="d").cancel()
    with pytest.raises(UnknownJobId):
        agenda.status("b")
    clock.advance(6)
    with pytest.raises(UnknownJobId):
        agenda.status("c")
    assert agenda.status("d") == Status.CANCELLED
    with pytest.raises(UnknownJobId) as caught:
        agenda.schedule(print, after=["c"])
    assert str(caught.value) == "after must hold known jobs, got 'c'"


def test_many_jobs_are_forgotten_by_age(stack, clock):
    agenda = stack.Agenda(clock, history=10**6, history_age=5)
    jobs = []
    for _ in range(300):
        jobs.append(agenda.schedule(lambda: None))
        agenda.run_due()
        clock.advance(1)
    known = []
    for job in jobs:
        with suppress(UnknownJobId):
            known.append(agenda.status(job.id))
    assert len(known) == 5


@pytest.mark.parametrize("unlimited", [None, float("inf")])
def test_history_without_an_age(stack, clock, unlimited):
    agenda = stack.Agenda(clock, history_age=unlimited)
    agenda.schedule(lambda: None, id="a")
    agenda.run_due()
    clock.advance(10**9)
    assert agenda.status("a") == Status.SUCCEEDED


def test_id_that_was_taken_anew_is_not_forgotten_with_the_old_job(stack, clock):
    agenda = stack.Agenda(clock, history_age=10)
    agenda.schedule(lambda: None, id="a")
    agenda.run_due()
    clock.advance(8)
    agenda.schedule(lambda: None, delay=100, id="a")
    clock.advance(8)
    assert agenda.status("a") == Status.SCHEDULED


@pytest.mark.parametrize("max_waiting", [None, float("inf")])
def test_no_bound_on_what_waits(stack, clock, max_waiting):
    agenda = stack.Agenda(clock, max_waiting=max_waiting)
    for _ in range(100):
        agenda.schedule(print)


def test_running_job_does_not_count_for_max_waiting(stack, clock):
    agenda = stack.Agenda(clock, max_waiting=1)
    agenda.schedule(print, id="a")
    take(agenda)
    agenda.schedule(print, delay=5, id="b")
    with pytest.raises(TooManyJobs):
        agenda.schedule(print, id="c")
    agenda.finished("a", OSError())


def test_refused_job_leaves_no_id_key_or_limit_behind(stack, clock):
    agenda = stack.Agenda(clock, max_waiting=1)
    agenda.schedule(print, delay=1, id="a")
    with pytest.raises(TooManyJobs):
        agenda.schedule(print, id="b", key="k", key_limit=3, timeout=5)
    agenda.cancel("a")
    agenda.schedule(print, id="b", key="k", key_limit=2, timeout=5)
    assert take(agenda) == ["b"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_waiting": 0}, ValueError, "max_waiting must be 1 or more, got 0"),
        ({"max_waiting": True}, TypeError, "max_waiting must be an int, got True"),
        ({"history_age": "1"}, TypeError, "history_age must be seconds (int or float) or a timedelta, got '1'"),
        ({"history_age": float("nan")}, ValueError, "history_age must be a finite number of seconds, got nan"),
    ],
)
def test_bad_bound_is_refused(stack, clock, options, error, message):
    with pytest.raises(error) as caught:
        stack.Agenda(clock, **options)
    assert str(caught.value) == message


# ---------------------------------------------------------------- everything from everywhere


def test_task_may_call_everything_about_itself(agenda):
    seen = []

    def task():
        run = current_job()
        seen.append(agenda.pause(run.id))
        seen.append(agenda.resume(run.id))
        seen.append(agenda.reschedule(run.id))
        seen.append(agenda.run_now(run.id))
        seen.append(agenda.status(run.id))
        seen.append(agenda.cancel(run.id))
        seen.append(run.cancelled)

    job = agenda.schedule(task, key="k", timeout=5, is_failure=bool)
    agenda.run_due()
    assert seen == [True, True, False, False, Status.RUNNING, True, True]
    assert job.status == Status.CANCELLED
    assert agenda.stats()[:3] == (0, 0, 0)


def test_task_that_pauses_all_stops_the_pass(agenda):
    agenda.schedule(agenda.pause)
    agenda.schedule(print, id="b")
    assert agenda.run_due() == 1
    agenda.resume()
    assert take(agenda) == ["b"]


def test_clock_that_calls_back(stack):
    calls = []

    def clock():
        if not calls:
            calls.append(1)
            calls.append(agenda.stats().waiting)
            calls.append(len(agenda.jobs()))
        return 5

    agenda = stack.Agenda(clock, history_age=1)
    agenda.schedule(print, delay=1)
    assert calls == [1, 0, 0]
