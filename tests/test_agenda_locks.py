"""No lock is held while user code runs: promise 13. A lock that is held there is a hang; pytest ends it with stacks."""

from __future__ import annotations

import gc
import sysconfig

import pytest

from nextdue import Status
from nextdue.testing import ManualClock

SECOND = 10**9
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Calls:
    """Calls back into an agenda, everything that may be called."""

    def __init__(self, clock=None):
        self.clock = clock
        self.agenda = None
        self.count = 0

    def __call__(self):
        agenda = self.agenda
        if agenda is None:
            return
        self.agenda = None  # a call inside a call would never end
        try:
            job = agenda.schedule(int, delay=1)
            assert agenda.reschedule(job, delay=2)
            assert job.status is Status.SCHEDULED
            assert agenda.last_error(job.id) is job.last_error is None
            assert agenda.cancel(job)
            assert not job.cancel()
            agenda.next_run_at()
            agenda.take_due(limit=0)
            assert (job.run_at, job.attempts, job.skipped, agenda.skipped >= 0) == (job.run_at, 0, 0, True)
            assert job.wait(0)
            repr(agenda)
            self.count += 1
        finally:
            self.agenda = agenda


class Dies:
    """Calls back as it dies."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, *args, **kwargs):
        pass

    def __del__(self):
        self.calls()


class Touchy(Dies):
    """Calls back when it is compared, hashed, or asked for its truth; and dies loudly, too."""

    def __eq__(self, other):
        self.calls()
        return NotImplemented

    def __hash__(self):
        self.calls()
        return 1

    def __bool__(self):
        self.calls()
        return True

    def __lt__(self, other):
        self.calls()
        return NotImplemented


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def agenda(stack, clock, calls):
    calls.agenda = stack.Agenda(clock, history=2)
    return calls.agenda


HOW = {
    "one-off": lambda agenda, task, **rest: agenda.schedule(task, delay=0, **rest),
    "rate": lambda agenda, task, **rest: agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1, **rest),
    "delay": lambda agenda, task, **rest: agenda.schedule_with_fixed_delay(task, initial_delay=0, delay=1, **rest),
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_promise_13_task_calls_back(agenda, calls, how):
    how(agenda, calls)
    assert agenda.run_due() == 1
    assert calls.count == 1


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_promise_13_policy_calls_back(agenda, calls, how, caplog):
    def policy(attempt, error):
        calls()
        return 1

    job = how(agenda, lambda: 1 / 0, retry=policy)
    assert agenda.run_due() == 1
    assert (calls.count, job.run_at) == (1, SECOND)


def test_promise_13_policy_cancels_its_own_job(agenda, caplog):
    job = agenda.schedule(lambda: 1 / 0, retry=lambda attempt, error: job.cancel() and 1)
    assert agenda.run_due() == 1
    assert (job.status, agenda.next_run_at()) == (Status.CANCELLED, None)


def test_promise_13_clock_calls_back(stack, calls):
    inner = ManualClock()

    def clock():
        calls()
        return inner()

    agenda = calls.agenda = stack.Agenda(clock)
    for how in HOW.values():
        how(agenda, int)
    agenda.reschedule("nobody", delay=1)
    assert agenda.run_due() == 3
    assert len(agenda.take_due()) == 0
    assert calls.count >= 7


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("ready", [False, True])
def test_promise_13_task_arguments_and_policy_call_back_as_they_die_in_a_cancel(agenda, calls, how, ready):
    job = how(agenda, Dies(calls), args=(Dies(calls),), kwargs={"k": Dies(calls)}, retry=Dies(calls))
    if ready:
        agenda.take_due(limit=0)
    job.cancel()
    assert calls.count == 4


def test_promise_13_task_and_arguments_call_back_as_they_die_after_a_run(agenda, calls):
    agenda.schedule(Dies(calls), args=(Dies(calls),), kwargs={"k": Dies(calls)}, retry=Dies(calls))
    assert agenda.run_due() == 1
    assert calls.count == 4


def test_promise_13_values_call_back_as_they_die_with_forgotten_jobs(agenda, calls):
    for _ in range(5):
        agenda.schedule(Dies, args=(calls,))
    assert agenda.run_due() == 5  # the history keeps two
    assert calls.count >= 3


def test_promise_13_replaced_last_error_calls_back_as_it_dies(agenda, clock, calls, caplog):
    def fail():
        raise OSError(Dies(calls))

    caplog.set_level("CRITICAL", logger="nextdue")  # records would hold the errors
    agenda.schedule_at_fixed_rate(fail, initial_delay=0, period=1)
    for runs in range(3):
        agenda.run_due()
        assert calls.count == runs
        clock.advance(1)


def test_promise_13_unknown_exception_type_calls_back_as_it_is_copied_and_formatted(agenda, calls, caplog):
    class Loud(Exception):
        def __str__(self):
            calls()
            return "loud"

        def __reduce__(self):
            calls()
            return Loud, ()

    def fail():
        raise Loud

    job = agenda.schedule(fail)
    agenda.run_due()
    with pytest.raises(Loud):
        job.result(0)
    assert calls.count >= 2


def test_promise_13_comparing_and_hashing_of_arguments_is_left_alone_or_unlocked(agenda, clock, calls):
    for how in HOW.values():
        for _ in range(3):
            how(agenda, Touchy(calls), args=(Touchy(calls),), kwargs={"k": Touchy(calls)})
    agenda.run_due()
    clock.advance(1)
    for job in agenda.take_due():
        job.cancel()


def test_promise_13_numbers_of_user_classes_call_back(agenda, calls):
    class Number(int):
        def __index__(self):
            calls()
            return 5

        def __mul__(self, other):
            calls()
            return 5 * other

        __int__ = __index__

        def __lt__(self, other):
            calls()
            return False

        __gt__ = __le__ = __ge__ = __lt__

    job = agenda.schedule(int, delay=Number(5), priority=Number(5))
    assert job.priority == 5
    agenda.schedule(int, at=Number(5))
    agenda.take_due(limit=Number(5))
    assert calls.count > 0


def test_promise_13_collection_in_the_middle_of_adding_runs_finalizers_without_the_lock(agenda, calls):  # B124
    class Ring(Dies):
        def __init__(self, calls):
            super().__init__(calls)
            self.ring = self

    before = gc.get_threshold()
    gc.freeze()  # what is there already: thousands of collections need not look at it
    gc.set_threshold(1)
    try:
        for k in range(2_000):
            Ring(calls)
            job = agenda.schedule(
                int, delay=k % 7, id=f"n{k}" if k % 3 == 0 else None, kwargs={"a": 1} if k % 5 else None
            )
            if k % 2:
                job.cancel()
            else:
                agenda.reschedule(job, delay=3)
            if k % 10 == 0 and FREE_THREADED:
                gc.collect()  # there the threshold is one of several conditions
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert calls.count >= 100


def test_promise_13_log_handler_calls_back(agenda, calls):
    import logging

    class Handler(logging.Handler):
        def emit(self, record):
            calls()

    handler = Handler()
    logging.getLogger("nextdue").addHandler(handler)
    try:
        agenda.schedule(int, args=("x",))
        agenda.run_due()
    finally:
        logging.getLogger("nextdue").removeHandler(handler)
    assert calls.count == 1
