"""Failures and retries: promises 9 and 15."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import weakref
from datetime import timedelta

import pytest

from nextdue import ExponentialBackoff, FixedBackoff, Status

SECOND = 10**9


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def failing(times=10**9, error=OSError):
    """A task that fails so many times."""

    def task():
        task.runs += 1
        if task.runs <= times:
            raise error(f"run {task.runs}")
        return task.runs

    task.runs = 0
    return task


def drive(agenda, clock, steps=100):
    """Run what comes until nothing does; the instants of the runs, in seconds."""
    instants = []
    for _ in range(steps):
        if agenda.next_run_at() is None:
            return instants
        clock.set_ns(max(clock(), agenda.next_run_at()))
        instants += [clock() / SECOND] * agenda.run_due()
    return instants


# ---------------------------------------------------------------- promise 9


def test_promise_09_one_off_is_not_retried_by_default(agenda, clock, caplog):
    job = agenda.schedule(failing())
    assert drive(agenda, clock) == [0]
    assert (job.status, job.attempts, str(job.last_error)) == (Status.FAILED, 1, "run 1")


def test_promise_09_one_off_is_retried_by_the_agendas_policy(stack, clock, caplog):
    agenda = stack.Agenda(clock, retry=FixedBackoff(3, delay=2))
    job = agenda.schedule(failing())
    assert drive(agenda, clock) == [0, 2, 4]
    assert (job.status, job.attempts, str(job.last_error)) == (Status.FAILED, 3, "run 3")


def test_promise_09_policy_of_the_job_goes_before_the_agendas(stack, clock, caplog):
    agenda = stack.Agenda(clock, retry=FixedBackoff(3, delay=2))
    agenda.schedule(failing(), retry=FixedBackoff(2, delay=7))
    assert drive(agenda, clock) == [0, 7]


def test_promise_09_retry_none_overrides_the_agendas_policy(stack, clock, caplog):
    agenda = stack.Agenda(clock, retry=FixedBackoff(3, delay=2))
    agenda.schedule(failing(), retry=None)
    assert drive(agenda, clock) == [0]


def test_promise_09_retry_that_succeeds_keeps_attempts_and_last_error(stack, clock, caplog):
    agenda = stack.Agenda(clock, retry=FixedBackoff(5, delay=1))
    job = agenda.schedule(failing(times=2))
    drive(agenda, clock)
    assert (job.status, job.attempts, job.result(0)) == (Status.SUCCEEDED, 3, 3)
    assert str(job.last_error) == "run 2"


def test_promise_09_policy_is_given_attempt_and_error(agenda, clock, caplog):
    given = []

    def policy(attempt, error):
        given.append((attempt, type(error), str(error)))
        return timedelta(seconds=1) if attempt < 3 else None

    agenda.schedule(failing(), retry=policy)
    assert drive(agenda, clock) == [0, 1, 2]
    assert given == [(k, OSError, f"run {k}") for k in (1, 2, 3)]


def test_promise_09_wait_counts_from_the_end_of_the_failed_run(agenda, clock, caplog):
    def task():
        clock.advance(3)
        raise OSError

    job = agenda.schedule(task, retry=FixedBackoff(2, delay=10))
    agenda.run_due()
    assert job.run_at == 13 * SECOND


def test_promise_09_retry_goes_through_the_timetable_and_keeps_its_priority(agenda, clock, caplog):
    job = agenda.schedule(failing(times=1), priority=3, retry=FixedBackoff(2, delay=1))
    agenda.run_due()
    assert (job.status, job.run_at, agenda.next_run_at()) == (Status.SCHEDULED, SECOND, SECOND)
    plain = agenda.schedule(int, delay=0.5)
    equal = agenda.schedule(int, delay=1, priority=3)
    clock.advance(1)
    assert agenda.take_due() == [job, equal, plain]
    assert job.priority == 3


def test_promise_09_retry_goes_behind_jobs_of_the_same_instant_and_priority(agenda, clock, caplog):
    job = agenda.schedule(failing(), retry=FixedBackoff(2, delay=1))
    equal = agenda.schedule(int, delay=1)
    agenda.run_due()
    clock.advance(1)
    assert agenda.take_due() == [equal, job]


@pytest.mark.parametrize("wait", [0, -5, 0.0, timedelta(0)])
def test_promise_09_wait_of_zero_or_less_retries_in_the_next_pass(agenda, clock, caplog, wait):
    job = agenda.schedule(failing(), retry=lambda attempt, error: wait)
    assert agenda.run_due() == 1
    assert (job.status, job.run_at) == (Status.SCHEDULED, 0)
    assert agenda.run_due() == 1


def test_promise_09_wait_past_int64_never_comes(agenda, clock, caplog):
    job = agenda.schedule(failing(), retry=lambda attempt, error: 1e300)
    agenda.run_due()
    assert (job.status, job.run_at) == (Status.SCHEDULED, 2**63 - 1)


def test_promise_09_retry_for_ever_still_retries_after_two_thousand_failures(agenda, clock, caplog):  # B60
    caplog.set_level(logging.CRITICAL)
    job = agenda.schedule(failing(times=2_000), retry=ExponentialBackoff(None, base=1, cap=60))
    for _ in range(2_000):
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
        assert job.run_at - clock() <= 60 * SECOND
    clock.advance(60)
    agenda.run_due()
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 2_001)


def test_promise_09_failure_for_good_is_logged_with_its_traceback(agenda, caplog):  # B97
    job = agenda.schedule(failing())
    agenda.run_due()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("nextdue", logging.ERROR)
    assert record.message == f"job {job.id!r} failed for good in attempt 1"
    assert "OSError: run 1" in caplog.text
    assert ", in task" in caplog.text


def test_promise_09_failure_that_is_retried_is_logged_as_that(agenda, clock, caplog):
    agenda.schedule(failing(), id="a", retry=FixedBackoff(2, delay=1.5))
    drive(agenda, clock)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "job 'a' failed in attempt 1; next in 1.5 s"),
        (logging.ERROR, "job 'a' failed for good in attempt 2"),
    ]
    assert all(record.exc_info[0] is OSError for record in caplog.records)


def test_promise_09_failed_run_of_a_repeating_job_is_logged_as_that(agenda, caplog):
    agenda.schedule_at_fixed_rate(failing(), initial_delay=0, period=1, id="a")
    agenda.run_due()
    assert [record.message for record in caplog.records] == ["a run of repeating job 'a' failed; it carries on"]


def test_last_error_is_kept_without_tracebacks_of_itself_and_its_causes(agenda, caplog):
    def task():
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise OSError("outer") from inner

    job = agenda.schedule(task)
    agenda.run_due()
    error = job.last_error
    assert (error.__traceback__, error.__cause__.__traceback__, str(error.__cause__)) == (None, None, "'inner'")


def test_last_error_of_a_ring_of_errors_is_kept_without_tracebacks(agenda, caplog):
    def task():
        first, second = OSError(1), OSError(2)
        first.__cause__, second.__cause__ = second, first
        raise first

    job = agenda.schedule(task)
    agenda.run_due()
    assert job.last_error.__traceback__ is None


def test_failed_run_leaves_no_frame_of_the_task_alive(agenda, caplog):
    class Thing:
        pass

    things = []

    def task():
        thing = Thing()
        things.append(weakref.ref(thing))
        raise OSError("x")

    caplog.set_level(logging.CRITICAL)
    gc.disable()
    try:
        job = agenda.schedule(task)
        agenda.run_due()
        assert [thing() for thing in things] == [None]
    finally:
        gc.enable()
    assert job.status is Status.FAILED


# ---------------------------------------------------------------- promise 9: policies that fail


def raises(error):
    def policy(attempt, given):
        raise error

    return policy


NONSENSE = [
    (math.nan, ValueError, "the answer of a retry policy must be a finite number of seconds, got nan"),
    (math.inf, ValueError, "the answer of a retry policy must be a finite number of seconds, got inf"),
    ("1", TypeError, "the answer of a retry policy must be seconds (int or float) or a timedelta, got '1'"),
    (True, TypeError, "the answer of a retry policy must be seconds (int or float) or a timedelta, got True"),
    (b"", TypeError, "the answer of a retry policy must be seconds (int or float) or a timedelta, got b''"),
]


@pytest.mark.parametrize(("answer", "kind", "message"), NONSENSE)
def test_promise_09_policy_that_returns_nonsense_ends_the_job_failed(agenda, clock, caplog, answer, kind, message):
    job = agenda.schedule(failing(), id="a", retry=lambda attempt, error: answer)
    assert drive(agenda, clock) == [0]
    assert job.status is Status.FAILED
    assert (type(job.last_error), str(job.last_error)) == (kind, message)
    assert str(job.last_error.__cause__) == "run 1"
    assert [record.message for record in caplog.records] == ["the retry policy of job 'a' failed after attempt 1"]
    assert "OSError: run 1" in caplog.text  # both are logged


@pytest.mark.parametrize("error", [ZeroDivisionError("p"), GeneratorExit("p")])  # B91
def test_promise_09_policy_that_raises_ends_the_job_failed_with_both_errors(agenda, clock, caplog, error):
    job = agenda.schedule(failing(), id="a", retry=raises(error))
    assert drive(agenda, clock) == [0]
    assert (job.status, job.last_error, str(job.last_error.__cause__)) == (Status.FAILED, error, "run 1")
    assert [record.message for record in caplog.records] == ["the retry policy of job 'a' failed after attempt 1"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_promise_09_policy_that_raises_to_end_the_program_is_booked_and_raised_again(agenda, caplog, error):
    job = agenda.schedule(failing(), retry=raises(error("p")))
    with pytest.raises(error):
        agenda.run_due()
    assert (job.status, type(job.last_error), str(job.last_error.__cause__)) == (Status.FAILED, error, "run 1")


def test_promise_09_policy_that_raises_the_tasks_error_makes_no_ring(agenda, caplog):
    def policy(attempt, error):
        raise error

    job = agenda.schedule(failing(), id="a", retry=policy)
    agenda.run_due()
    assert (job.status, str(job.last_error), job.last_error.__cause__) == (Status.FAILED, "run 1", None)
    assert [record.message for record in caplog.records] == ["the retry policy of job 'a' failed after attempt 1"]


def test_promise_09_policy_that_raises_a_cause_of_the_tasks_error_makes_no_ring(agenda, caplog):
    def task():
        raise OSError("outer") from KeyError("inner")

    def policy(attempt, error):
        raise error.__cause__

    job = agenda.schedule(task, retry=policy)
    agenda.run_due()
    assert isinstance(job.last_error, KeyError)
    assert job.last_error.__cause__ is None


def test_promise_09_policy_whose_error_has_a_cause_keeps_that_and_the_tasks(agenda, caplog):
    def policy(attempt, error):
        raise RuntimeError("policy") from LookupError("its cause")

    job = agenda.schedule(failing(), retry=policy)
    agenda.run_due()
    chain = [job.last_error, job.last_error.__cause__, job.last_error.__cause__.__cause__]
    assert list(map(str, chain)) == ["policy", "its cause", "run 1"]


@pytest.mark.parametrize("retry", [raises(ZeroDivisionError("p")), lambda attempt, error: math.nan])
@pytest.mark.parametrize("add", ["schedule_at_fixed_rate", "schedule_with_fixed_delay"])
def test_promise_09_broken_policy_of_a_repeating_job_is_one_failed_run(agenda, clock, caplog, add, retry):
    task = failing(times=1)
    job = getattr(agenda, add)(task, 0, 1, retry=retry)
    agenda.run_due()
    assert (job.status, job.run_at) == (Status.SCHEDULED, SECOND)
    assert str(job.last_error.__cause__) == "run 1"
    (record,) = caplog.records
    assert record.message == f"the retry policy of job {job.id!r} failed after attempt 1"
    clock.advance(1)
    agenda.run_due()
    assert task.runs == 2


# ---------------------------------------------------------------- promise 15


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("add", ["schedule", "schedule_at_fixed_rate", "schedule_with_fixed_delay"])
def test_promise_15_run_due_books_the_run_and_then_raises_what_ends_the_program(agenda, clock, caplog, add, error):
    timing = () if add == "schedule" else (0, 1)
    job = getattr(agenda, add)(failing(times=1, error=error), *timing, retry=FixedBackoff(9, delay=0.25))
    rest = agenda.schedule(int)
    with pytest.raises(error) as caught:
        agenda.run_due()
    assert caught.value.args == ("run 1",)
    assert any(entry.name == "task" for entry in caught.traceback)
    assert job.status is (Status.FAILED if add == "schedule" else Status.SCHEDULED)
    assert job.run_at == (0 if add == "schedule" else SECOND)  # not retried
    assert (job.attempts, type(job.last_error), job.last_error.__traceback__) == (1, error, None)
    assert repr(agenda) == f"<Agenda: {add != 'schedule':d} waiting, 1 ready, 0 running>"
    assert agenda.run_due() == 1
    assert rest.status is Status.SUCCEEDED


def test_promise_15_exit_status_is_kept_when_it_is_raised_again(agenda, caplog):
    def task():
        raise SystemExit(3)

    agenda.schedule(task)
    with pytest.raises(SystemExit) as caught:
        agenda.run_due()
    assert caught.value.code == 3


class Own(BaseException):
    pass


@pytest.mark.parametrize("error", [GeneratorExit, Own])
def test_promise_15_other_base_exceptions_are_booked_and_not_retried(agenda, caplog, error):  # B91
    job = agenda.schedule(failing(error=error), retry=FixedBackoff(9, delay=0))
    after = agenda.schedule(int)
    assert agenda.run_due() == 2
    assert (job.status, type(job.last_error), after.status) == (Status.FAILED, error, Status.SUCCEEDED)


def test_promise_15_counts_return_to_zero_after_every_way_a_run_ends(agenda, clock, caplog):  # B170
    caplog.set_level(logging.CRITICAL)
    errors = [None, OSError, GeneratorExit, KeyboardInterrupt, SystemExit]

    def task(k):
        if k % 7 == 0:
            jobs[k].cancel()
        if errors[k % 5] is not None:
            raise errors[k % 5]

    jobs = [agenda.schedule(task, args=(k,), retry=FixedBackoff(2, delay=0) if k % 3 else None) for k in range(500)]
    ran = 1
    while ran:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            ran = agenda.run_due()
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"
    assert {job.status for job in jobs} == {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}
