"""Outside drivers: take_due and finished, the run token. Bad input at every method: promise 17."""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from unittest import mock

import pytest

from nextdue import DuplicateJobId, FixedBackoff, Status

SECOND = 10**9


def whole(message):
    return f"^{re.escape(message)}$"


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


# ---------------------------------------------------------------- take_due


def test_take_due_gives_what_is_due_in_ready_order_each_marked_running(agenda, clock):
    jobs = [
        agenda.schedule(int, delay=delay, priority=priority) for delay, priority in ((2, 0), (1, 0), (3, 1), (9, 9))
    ]
    clock.advance(3)
    taken = agenda.take_due()
    assert taken == [jobs[2], jobs[1], jobs[0]]
    assert [job.status for job in taken] == [Status.RUNNING] * 3
    assert [job.attempts for job in taken] == [1] * 3
    assert agenda.take_due() == []


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (2, 2), (3, 3), (10**30, 3), (None, 3)])
def test_take_due_with_a_limit_takes_so_many_and_the_rest_next_time(agenda, limit, count):
    jobs = [agenda.schedule(int) for _ in range(3)]
    assert agenda.take_due(limit=limit) == jobs[:count]
    assert agenda.take_due() == jobs[count:]


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (-1, ValueError, "limit must be 0 or more, got -1"),
        (True, TypeError, "limit must be an int or None, got True"),
        (1.0, TypeError, "limit must be an int or None, got 1.0"),
        ("1", TypeError, "limit must be an int or None, got '1'"),
    ],
)
def test_take_due_with_a_bad_limit_takes_nothing(agenda, limit, error, message):
    agenda.schedule(int)
    with pytest.raises(error) as caught:
        agenda.take_due(limit)
    assert str(caught.value) == message
    assert len(agenda.take_due()) == 1


# ---------------------------------------------------------------- finished


def test_finished_without_an_error_keeps_the_value(agenda):
    job = agenda.schedule(int, id="a")
    agenda.take_due()
    agenda.finished("a", value=42)
    assert (job.status, job.result(0), job.last_error) == (Status.SUCCEEDED, 42, None)


def test_finished_with_an_error_is_a_failed_run(agenda, clock, caplog):
    job = agenda.schedule(int, retry=FixedBackoff(2, delay=1))
    agenda.take_due()
    error = OSError("x")
    agenda.finished(job, error)
    assert (job.status, job.run_at, job.last_error) == (Status.SCHEDULED, SECOND, error)
    clock.advance(1)
    agenda.take_due()
    agenda.finished(job, error)
    assert job.status is Status.FAILED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_finished_with_what_ends_a_program_books_it_and_raises_nothing(agenda, caplog, error):
    job = agenda.schedule(int)
    agenda.take_due()
    agenda.finished(job, error)
    assert (job.status, job.last_error) == (Status.FAILED, error)


def test_finished_twice_is_refused_the_second_time(agenda):
    job = agenda.schedule(int)
    agenda.take_due()
    agenda.finished(job, value=1)
    with pytest.raises(ValueError, match=whole(f"job must have a run that is going, got {job!r}")):
        agenda.finished(job, value=2)
    assert job.result(0) == 1


@pytest.mark.parametrize("state", ["waiting", "ready", "cancelled"])
def test_finished_of_a_job_without_a_run_is_refused(agenda, state):
    job = agenda.schedule(int, delay=1 if state == "waiting" else 0)
    agenda.take_due(limit=0)
    if state == "cancelled":
        job.cancel()
    before = repr(agenda)
    with pytest.raises(ValueError, match=whole(f"job must have a run that is going, got {job!r}")):
        agenda.finished(job)
    assert repr(agenda) == before


def test_finished_with_the_token_of_its_run_books_it(agenda):
    job = agenda.schedule(int)
    agenda.take_due()
    agenda.finished(job, value=5, run=job.attempts)
    assert job.result(0) == 5


@pytest.mark.parametrize("late", [None, OSError("late")])
def test_finished_with_the_token_of_an_old_run_changes_nothing(agenda, clock, caplog, late):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    agenda.take_due()
    agenda.finished(job, run=1)
    agenda.finished(job, late, run=1)  # once more: nothing is going
    clock.advance(1)
    agenda.take_due()
    agenda.finished(job, late, run=1)  # and while run 2 is going
    assert (job.status, job.attempts, job.last_error) == (Status.RUNNING, 2, None)
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 1 running>"
    agenda.finished(job, run=2)
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 0 running>"
    assert caplog.records == []


@pytest.mark.parametrize("run", [0, 2, -1, 2**32, 2**32 + 1, 10**30])
def test_finished_with_a_token_that_no_run_has_is_refused(agenda, run):
    job = agenda.schedule(int)
    agenda.take_due()
    with pytest.raises(ValueError, match=whole(f"run must be the number of a run that was taken, got {run!r}")):
        agenda.finished(job, run=run)
    assert job.status is Status.RUNNING


def test_finished_by_the_policy_that_is_asked_about_the_run_books_it_once(agenda, caplog):
    def policy(attempt, error):
        agenda.finished(job, value="from the policy")
        return 1

    job = agenda.schedule(int, retry=policy)
    agenda.take_due()
    agenda.finished(job, OSError("x"))
    assert (job.status, job.result(0), job.last_error) == (Status.SUCCEEDED, "from the policy", None)
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": "x"}, "error must be an exception or None, got 'x'"),
        ({"error": OSError}, "error must be an exception or None, got <class 'OSError'>"),
        ({"run": True}, "run must be an int or None, got True"),
        ({"run": 1.0}, "run must be an int or None, got 1.0"),
    ],
)
def test_finished_with_nonsense_books_nothing(agenda, arguments, message):
    job = agenda.schedule(int)
    agenda.take_due()
    with pytest.raises(TypeError) as caught:
        agenda.finished(job, **arguments)
    assert str(caught.value) == message
    assert job.status is Status.RUNNING


# ---------------------------------------------------------------- promise 17: durations and instants

NO_DURATIONS = [
    (math.nan, ValueError, "a finite number of seconds"),
    (math.inf, ValueError, "a finite number of seconds"),
    (-math.inf, ValueError, "a finite number of seconds"),
    (True, TypeError, "seconds (int or float) or a timedelta"),
    ("1", TypeError, "seconds (int or float) or a timedelta"),
    (None, TypeError, "seconds (int or float) or a timedelta"),
    (Decimal(1), TypeError, "seconds (int or float) or a timedelta"),
    (1j, TypeError, "seconds (int or float) or a timedelta"),
    (datetime(2030, 1, 1, tzinfo=UTC), TypeError, "seconds (int or float) or a timedelta"),
]
NO_PERIODS = [
    (value, ValueError, "more than 0 ns") for value in (0, -1, 1e-10, 0.0, -0.0, timedelta(0), Fraction(-1, 3))
]

DELAYS = {
    "delay": lambda agenda, value: agenda.schedule(int, delay=value, id="new"),
    "delay ": lambda agenda, value: agenda.reschedule("old", delay=value),
    "initial_delay": lambda agenda, value: agenda.schedule_at_fixed_rate(int, initial_delay=value, period=1, id="new"),
    "initial_delay ": lambda agenda, value: agenda.schedule_with_fixed_delay(
        int, initial_delay=value, delay=1, id="new"
    ),
}
PERIODS = {
    "period": lambda agenda, value: agenda.schedule_at_fixed_rate(int, initial_delay=1, period=value, id="new"),
    "delay": lambda agenda, value: agenda.schedule_with_fixed_delay(int, initial_delay=1, delay=value, id="new"),
}


def refuses(agenda, call, error, message):
    """Assert that a call is refused with that message, and that nothing is half added."""
    agenda.schedule(int, delay=5, id="old")
    with pytest.raises(error) as caught:
        call()
    assert (type(caught.value), str(caught.value)) == (error, message)
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 0 running>"
    assert agenda.next_run_at() == 5 * SECOND
    assert agenda.schedule(int, delay=9, id="new").run_at == 9 * SECOND  # the id is free


@pytest.mark.parametrize("name", DELAYS)
@pytest.mark.parametrize(("value", "error", "rule"), NO_DURATIONS)
def test_promise_17_delay_that_is_no_duration_is_refused(agenda, name, value, error, rule):
    refuses(agenda, lambda: DELAYS[name](agenda, value), error, f"{name.strip()} must be {rule}, got {value!r}")


@pytest.mark.parametrize("name", PERIODS)
@pytest.mark.parametrize(("value", "error", "rule"), NO_DURATIONS + NO_PERIODS)
def test_promise_17_period_that_is_no_duration_above_zero_is_refused(agenda, name, value, error, rule):
    refuses(agenda, lambda: PERIODS[name](agenda, value), error, f"{name} must be {rule}, got {value!r}")


@pytest.mark.parametrize("value", [1.0, math.nan, True, "1", Decimal(1), timedelta(1)])
@pytest.mark.parametrize(
    "call",
    [
        lambda agenda, at: agenda.schedule(int, at=at, id="new"),
        lambda agenda, at: agenda.reschedule("old", at=at),
    ],
)
def test_promise_17_at_that_is_no_instant_is_refused(agenda, call, value):
    message = f"at must be int nanoseconds on the agenda's clock or an aware datetime, got {value!r}"
    refuses(agenda, lambda: call(agenda, value), TypeError, message)


@pytest.mark.parametrize("value", [1.0, math.nan, True, "1", datetime(2030, 1, 1), Decimal(1), timedelta(1)])
@pytest.mark.parametrize(
    "call",
    [
        lambda agenda, at: agenda.schedule_at_fixed_rate(int, 0, 1, at=at, id="new"),
        lambda agenda, at: agenda.schedule_with_fixed_delay(int, 0, 1, at=at, id="new"),
    ],
)
def test_promise_17_at_of_a_first_slot_that_is_no_int_is_refused(agenda, call, value):
    message = f"at must be int nanoseconds on the agenda's clock, got {value!r}"
    refuses(agenda, lambda: call(agenda, value), TypeError, message)


@pytest.mark.parametrize("delay", [1, 0.5, True, None, "0"])
def test_promise_17_at_beside_a_delay_is_refused(agenda, delay):
    message = f"delay must be 0 where at is given, got {delay!r}"
    refuses(agenda, lambda: agenda.schedule(int, delay, at=5, id="new"), ValueError, message)


@pytest.mark.parametrize("delay", [10**10, 2**53, 2**63, 10**30, 1e18, 1e300, timedelta.max, Fraction(10**400)])
def test_promise_17_delay_past_int64_saturates_never_comes_and_can_be_cancelled(agenda, clock, delay):  # B43, B45
    for now in (0, -(2**62), 2**62):
        clock.set_ns(now)
        job = agenda.schedule(int, delay=delay)
        assert job.run_at == 2**63 - 1
        clock.set_ns(2**63 - 2)
        assert agenda.run_due() == 0
        assert job.cancel()


@pytest.mark.parametrize("at", [2**63 - 1, 2**63, 10**30])
def test_promise_17_at_past_int64_saturates_and_never_comes(agenda, clock, at):
    job = agenda.schedule(int, at=at)
    assert (job.run_at, agenda.next_run_at()) == (2**63 - 1, 2**63 - 1)
    clock.set_ns(2**63 - 2)
    assert agenda.run_due() == 0
    assert job.cancel()
    assert agenda.next_run_at() is None


@pytest.mark.parametrize("at", [-(2**63), -(10**30)])
def test_promise_17_at_below_int64_is_long_past(agenda, at):
    job = agenda.schedule(int, at=at)
    assert -(2**63) <= job.run_at <= -(2**63) + 2
    assert agenda.run_due() == 1


def test_at_of_numpy_is_taken(agenda):
    np = pytest.importorskip("numpy")
    assert agenda.schedule(int, at=np.int64(7)).run_at == 7


# ---------------------------------------------------------------- promise 17: tasks


async def coroutine_function():
    pass


async def async_generator_function():
    yield


class Caller:
    async def method(self):
        pass

    @staticmethod
    async def static():
        pass

    async def __call__(self):
        pass


COROUTINES = {
    "function": coroutine_function,
    "generator": async_generator_function,
    "lambda in partial": functools.partial(coroutine_function),
    "partial of partial": functools.partial(functools.partial(coroutine_function, 1), 2),
    "partial of method": functools.partial(Caller().method),
    "method": Caller().method,
    "static": Caller.static,
    "object": Caller(),
    "partial of object": functools.partial(Caller()),
    "partial of generator": functools.partial(async_generator_function),
}
ADDERS = {
    "one-off": lambda agenda, task, **rest: agenda.schedule(task, delay=1, id="new", **rest),
    "rate": lambda agenda, task, **rest: agenda.schedule_at_fixed_rate(task, 1, 1, id="new", **rest),
    "delay": lambda agenda, task, **rest: agenda.schedule_with_fixed_delay(task, 1, 1, id="new", **rest),
}


@pytest.mark.parametrize("task", COROUTINES.values(), ids=COROUTINES)
@pytest.mark.parametrize("add", ADDERS.values(), ids=ADDERS)
def test_promise_17_coroutine_function_is_refused(agenda, add, task):
    message = f"task must be a plain callable, got the coroutine function {task!r}"
    refuses(agenda, lambda: add(agenda, task), TypeError, message)


@pytest.mark.parametrize("task", [None, 1, "print", object(), [], coroutine_function.__name__])
@pytest.mark.parametrize("add", ADDERS.values(), ids=ADDERS)
def test_promise_17_task_that_is_not_callable_is_refused(agenda, add, task):
    refuses(agenda, lambda: add(agenda, task), TypeError, f"task must be callable, got {task!r}")


class Plain:
    ran = 0

    def method(self):
        self.ran += 1

    @classmethod
    def of_class(cls):
        pass

    def __call__(self):
        pass


class Meta(type):
    async def __call__(cls):
        pass


@functools.wraps(coroutine_function)
def wrapper():
    pass


@functools.lru_cache
def cached():
    pass


PLAIN = {
    "builtin": print,
    "bound builtin": [].clear,
    "method descriptor": functools.partial(str.upper, "x"),
    "class": Plain,
    "method": Plain().method,
    "class method": Plain.of_class,
    "object": Plain(),
    "partial": functools.partial(Plain().method),
    "lambda": lambda: None,
    "wrapper of a coroutine function": wrapper,
    "cached": cached,
    "mock": mock.Mock(),
    "magic mock": mock.MagicMock(),
    "mock with a spec": mock.create_autospec(wrapper),
}


@pytest.mark.parametrize("task", PLAIN.values(), ids=PLAIN)
def test_task_that_is_any_plain_callable_is_taken_and_run(agenda, task):
    job = agenda.schedule(task)
    assert agenda.run_due() == 1
    assert job.status is Status.SUCCEEDED


def test_task_is_called_with_its_arguments_as_they_were_given(agenda):
    calls = []
    args, kwargs = [1, 2], {"a": 3}

    def task(*args, **kwargs):
        calls.append((args, kwargs))

    agenda.schedule(task, args=args, kwargs=kwargs)
    agenda.schedule(task, args=(), kwargs={})
    agenda.schedule(task, kwargs={"only": 1})
    agenda.schedule(task, args=((),))
    args.append("later")
    kwargs["later"] = True
    agenda.run_due()
    assert calls == [((1, 2), {"a": 3}), ((), {}), ((), {"only": 1}), (((),), {})]


# ---------------------------------------------------------------- promise 17: the rest

NO_OTHERS = [
    ({"args": "abc"}, TypeError, "args must be a tuple or a list, got 'abc'"),
    ({"args": 1}, TypeError, "args must be a tuple or a list, got 1"),
    ({"args": None}, TypeError, "args must be a tuple or a list, got None"),
    ({"args": {"a": 1}}, TypeError, "args must be a tuple or a list, got {'a': 1}"),
    ({"kwargs": [("a", 1)]}, TypeError, "kwargs must be a mapping or None, got [('a', 1)]"),
    ({"kwargs": {1: 2}}, TypeError, "kwargs must have str keys, got {1: 2}"),
    ({"priority": 2048}, ValueError, "priority must be from -2048 to 2047, got 2048"),
    ({"priority": -2049}, ValueError, "priority must be from -2048 to 2047, got -2049"),
    ({"priority": 10**30}, ValueError, f"priority must be from -2048 to 2047, got {10**30}"),
    ({"priority": True}, TypeError, "priority must be an int, got True"),
    ({"priority": 1.0}, TypeError, "priority must be an int, got 1.0"),
    ({"priority": None}, TypeError, "priority must be an int, got None"),
    ({"retry": 3}, TypeError, "retry must be callable or None, got 3"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), NO_OTHERS)
@pytest.mark.parametrize("add", ADDERS.values(), ids=ADDERS)
def test_promise_17_other_arguments_that_are_wrong_are_refused(agenda, add, arguments, error, message):
    refuses(agenda, lambda: add(agenda, int, **arguments), error, message)


@pytest.mark.parametrize("id", [1, True, b"a", ("a",), 1.0])
def test_promise_17_id_that_is_no_str_is_refused(agenda, id):
    refuses(agenda, lambda: agenda.schedule(int, id=id), TypeError, f"id must be a str or None, got {id!r}")


def test_promise_17_duplicate_id_is_refused(agenda):
    message = "id must be that of no job that has not ended, got 'old'"
    refuses(agenda, lambda: agenda.schedule(int, id="old"), DuplicateJobId, message)


@pytest.mark.parametrize("priority", [-2048, -1, 0, 2047])
def test_priority_at_its_bounds_is_taken(agenda, priority):
    assert agenda.schedule(int, priority=priority).priority == priority


def test_args_of_a_list_and_kwargs_of_a_mapping_are_taken(agenda):
    from types import MappingProxyType

    seen = []
    agenda.schedule(lambda *args, **kwargs: seen.append((args, kwargs)), args=[1], kwargs=MappingProxyType({"k": 2}))
    agenda.run_due()
    assert seen == [((1,), {"k": 2})]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clock": 3}, TypeError, "clock must be callable, got 3"),
        ({"clock": None}, TypeError, "clock must be callable, got None"),
        ({"retry": 3}, TypeError, "retry must be callable or None, got 3"),
        ({"history": -1}, ValueError, "history must be 0 or more, got -1"),
        ({"history": 1.0}, TypeError, "history must be an int, got 1.0"),
        ({"history": True}, TypeError, "history must be an int, got True"),
        ({"history": None}, TypeError, "history must be an int, got None"),
    ],
)
def test_agenda_with_bad_arguments_is_refused(stack, arguments, error, message):
    with pytest.raises(error) as caught:
        stack.Agenda(**arguments)
    assert str(caught.value) == message


def test_agenda_with_a_history_without_bound_is_taken(stack, clock):
    agenda = stack.Agenda(clock, history=10**30)
    job = agenda.schedule(int)
    agenda.run_due()
    assert agenda.status(job.id) is Status.SUCCEEDED


def test_promise_11_taking_nothing_leaves_no_dead_entries_behind(stack, clock):
    agenda = stack.Agenda(clock)
    job = agenda.schedule_with_fixed_delay(lambda: None, initial_delay=0, delay=1)
    agenda.run_due()
    agenda.reschedule(job)
    assert agenda.take_due(limit=0) == []
    if stack.name == "pure":
        agenda._tt.check()
    assert agenda.take_due() == [job]
