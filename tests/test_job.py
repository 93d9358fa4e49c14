"""The handle of a job: what it tells, wait and result."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import math
import threading
import weakref
from concurrent.futures import CancelledError
from datetime import timedelta

import pytest

from nextdue import FixedBackoff, Status

SECOND = 10**9
LONG = 30  # seconds until a thread that hangs fails its test


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def in_thread(call):
    """Start a call on a thread; wait until it is about to begin; its future."""
    future = concurrent.futures.Future()
    began = threading.Event()

    def run():
        began.set()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    assert began.wait(LONG)
    return future


# ---------------------------------------------------------------- what it tells


def test_job_when_new_tells_what_it_is(agenda):
    job = agenda.schedule(int, delay=2, id="a", priority=-3)
    told = (job.id, job.status, job.run_at, job.attempts, job.skipped, job.last_error, job.priority)
    assert told == ("a", Status.SCHEDULED, 2 * SECOND, 0, 0, None, -3)
    assert repr(job) == f"<Job 'a': scheduled, run_at={2 * SECOND}, attempts=0>"


@pytest.mark.parametrize("name", ["id", "status", "run_at", "attempts", "skipped", "last_error", "priority"])
def test_job_is_read_only(agenda, name):
    job = agenda.schedule(int, delay=1)
    before = getattr(job, name)
    with pytest.raises(AttributeError):
        setattr(job, name, 7)
    assert getattr(job, name) == before


def test_job_is_made_by_an_agenda_alone(stack):
    with pytest.raises(TypeError) as caught:
        stack.Job()
    assert str(caught.value) == "a Job is made by a schedule method of an Agenda or a Scheduler"


def test_job_that_ended_keeps_the_instant_of_its_last_run(agenda, clock):
    job = agenda.schedule(int, delay=2)
    clock.advance(5)
    agenda.run_due()
    assert (job.run_at, job.attempts) == (2 * SECOND, 1)


def test_jobs_are_equal_to_themselves_alone(agenda):
    first, second = agenda.schedule(int), agenda.schedule(int)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


# ---------------------------------------------------------------- wait


@pytest.mark.parametrize("timeout", [0, None, -1, math.inf, 10**30, timedelta(0), 5])
def test_wait_for_a_job_that_has_ended_returns_at_once(agenda, timeout):
    job = agenda.schedule(int)
    agenda.run_due()
    assert job.wait(timeout) is True


@pytest.mark.parametrize("timeout", [0, -1, 1e-9, timedelta(0)])
def test_wait_that_times_out_is_false_and_leaves_nothing_behind(agenda, timeout):
    job = agenda.schedule(int, delay=1)
    assert [job.wait(timeout) for _ in range(3)] == [False] * 3
    assert job.cancel()
    assert job.wait(0) is True


@pytest.mark.parametrize(
    ("timeout", "error", "message"),
    [
        (math.nan, ValueError, "timeout must be a finite number of seconds, got nan"),
        (-math.inf, ValueError, "timeout must be a finite number of seconds, got -inf"),
        (True, TypeError, "timeout must be seconds (int or float) or a timedelta, got True"),
        ("1", TypeError, "timeout must be seconds (int or float) or a timedelta, got '1'"),
    ],
)
@pytest.mark.parametrize("method", ["wait", "result"])
def test_wait_with_a_bad_timeout_is_refused(agenda, method, timeout, error, message):
    job = agenda.schedule(int)
    with pytest.raises(error) as caught:
        getattr(job, method)(timeout)
    assert str(caught.value) == message


@pytest.mark.parametrize("end", ["run", "fail", "cancel"])
@pytest.mark.parametrize("timeout", [None, LONG, math.inf, 10**30])
def test_wait_on_other_threads_returns_when_the_job_ends(agenda, caplog, end, timeout):
    job = agenda.schedule(int, args=("x",) if end == "fail" else ())
    waits = [in_thread(lambda: job.wait(timeout)) for _ in range(3)]
    if end == "cancel":
        job.cancel()
    else:
        agenda.run_due()
    assert [wait.result(LONG) for wait in waits] == [True] * 3


def test_wait_for_a_job_cancelled_while_it_runs_ends_when_the_run_is_over(agenda):
    job = agenda.schedule(int)
    agenda.take_due()
    wait = in_thread(lambda: job.wait(LONG))
    job.cancel()
    assert (job.status, job.wait(0)) == (Status.CANCELLED, False)
    assert not wait.done()
    agenda.finished(job)
    assert wait.result(LONG) is True
    assert job.wait(0) is True


def test_wait_goes_on_over_the_retries(agenda, clock, caplog):
    job = agenda.schedule(int, args=("x",), retry=FixedBackoff(2, delay=1))
    agenda.run_due()
    assert job.wait(0) is False
    clock.advance(1)
    agenda.run_due()
    assert job.wait(0) is True


def test_wait_for_a_repeating_job_ends_with_its_cancel(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    agenda.run_due()
    assert job.wait(0) is False
    job.cancel()
    assert job.wait(0) is True


def test_wait_for_a_forgotten_job_still_works(stack, clock):
    agenda = stack.Agenda(clock, history=0)
    job = agenda.schedule(int)
    wait = in_thread(lambda: job.wait(LONG))
    agenda.run_due()
    assert wait.result(LONG) is True


def test_wait_that_is_interrupted_takes_itself_off(stack, agenda):
    if stack.name != "pure":
        pytest.skip("the waiters of the compiled stack are out of reach")
    import _thread

    class Interrupted(BaseException):
        pass

    def allocate():
        lock = _thread.allocate_lock()

        class Lock:
            def acquire(self, *args):
                if args:
                    raise Interrupted
                return lock.acquire()

        return Lock()

    from nextdue import agenda as module

    job = agenda.schedule(int, delay=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_thread", type("Fake", (), {"allocate_lock": staticmethod(allocate)}))
        with pytest.raises(Interrupted):
            job.wait()
    assert job._extras.waiters == []


# ---------------------------------------------------------------- result


def test_result_of_a_job_that_succeeded_is_its_value(agenda):
    value = object()
    job = agenda.schedule(lambda: value)
    agenda.run_due()
    assert job.result() is job.result(0) is value


def test_result_that_is_not_there_in_time_raises_timeout(agenda):
    job = agenda.schedule(int, delay=1, id="a")
    with pytest.raises(TimeoutError) as caught:
        job.result(timeout=0)
    assert str(caught.value) == "job 'a' has not ended within 0 seconds"


def test_result_of_a_cancelled_job_raises_cancelled(agenda):
    job = agenda.schedule(int, delay=1, id="a")
    job.cancel()
    with pytest.raises(CancelledError) as caught:
        job.result()
    assert str(caught.value) == "job 'a' was cancelled"


def test_result_on_another_thread_comes_when_the_job_has_run(agenda):
    job = agenda.schedule(int, args=("7",))
    result = in_thread(lambda: job.result(LONG))
    agenda.run_due()
    assert result.result(LONG) == 7


def test_result_of_a_failed_job_raises_a_copy_of_what_the_task_raised(agenda, caplog):
    def task():
        raise OSError(2, "gone") from KeyError("why")

    job = agenda.schedule(task)
    agenda.run_due()
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as caught:
            job.result()
        error = caught.value
        assert (error.errno, error.strerror, type(error.__cause__)) == (2, "gone", KeyError)
        assert error is not job.last_error
        assert job.last_error.__traceback__ is None


class Strange(Exception):
    """Cannot be copied by calling its class with its args."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first = first


class Uncopyable(Exception):
    def __reduce__(self):
        raise RuntimeError("no copies")


class Impostor(Exception):
    def __reduce__(self):
        return OSError, ()


@pytest.mark.parametrize("error", [Strange(1, 2), Uncopyable("u"), Impostor("i")])
def test_result_of_an_error_that_cannot_be_copied_raises_one_like_it(agenda, caplog, error):
    def task():
        raise error

    job = agenda.schedule(task)
    agenda.run_due()
    with pytest.raises(type(error)) as caught:
        job.result()
    assert (caught.value.args, caught.value.__dict__) == (error.args, error.__dict__)
    assert job.last_error is error
    assert job.last_error.__traceback__ is None


def test_result_that_raises_leaves_no_frame_alive(agenda, caplog):  # B138
    class Thing:
        pass

    caplog.set_level("CRITICAL")
    job = agenda.schedule(int, args=("x",))
    agenda.run_due()

    def ask():
        thing = Thing()
        dead = weakref.ref(thing)
        with contextlib.suppress(ValueError):
            job.result()
        return dead

    gc.disable()
    try:
        assert ask()() is None
        assert job.last_error.__traceback__ is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_result_of_a_job_that_ended_with_a_base_exception_raises_it(agenda, caplog, error):
    def task():
        raise error("x")

    job = agenda.schedule(task)
    with pytest.raises(error):
        agenda.run_due()
    with pytest.raises(error):
        job.result()


def test_result_of_a_job_whose_policy_failed_raises_the_policys_error_with_its_cause(agenda, caplog):
    job = agenda.schedule(int, args=("x",), retry=lambda attempt, error: "soon")
    agenda.run_due()
    with pytest.raises(TypeError) as caught:
        job.result()
    assert type(caught.value.__cause__) is ValueError
