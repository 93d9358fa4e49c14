"""Callers and objects that do what nobody should: each gets a result or the documented error, and harms nothing.

A value of every kind goes into every parameter, on both stacks side by side; numbers, items, tasks and rules call back
into what is asking them, raise, or come back from the dead.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import math
import pickle
import re
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nextdue.scheduler
from conftest import STACKS
from nextdue import FailedResult, FixedBackoff, Lags, Scheduler, Status
from nextdue.testing import ManualClock

LATEST = 2**63 - 1
PATIENCE = 60


class Boom(Exception):
    """What hostile objects raise."""


class Named:
    """Something whose repr is the same in every run, for both stacks."""

    def __repr__(self):
        return f"<{type(self).__name__}>"


def boom(*args, **kwargs):
    raise Boom


class Raises(Named):
    """Everything that is asked of it raises."""

    __int__ = __index__ = __float__ = __bool__ = __len__ = __hash__ = __iter__ = __call__ = boom
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __contains__ = __getitem__ = boom


class Unspeakable(Raises):
    __repr__ = boom


class NoIndex(Named):
    def __index__(self):
        return "5"


class Index(Named):
    def __index__(self):
        return 5


class LyingInt(int):
    """An int that is nothing like its value, for whoever asks it instead of the number in it."""

    def __index__(self):
        return 77

    __int__ = __index__

    def __float__(self):
        return math.nan

    def __eq__(self, other):
        return True

    def __lt__(self, other):
        return True

    __le__ = __gt__ = __ge__ = __lt__

    def __hash__(self):
        return 0

    def __mul__(self, other):
        return "nonsense"

    __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = __mul__

    def __repr__(self):
        return "LyingInt()"


class RaisingInt(int):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __mul__ = __add__ = __sub__ = __hash__ = __bool__ = boom

    def __repr__(self):
        return "RaisingInt()"


class RaisingFloat(float):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __mul__ = __add__ = __float__ = __hash__ = __round__ = boom


class RaisingStr(str):
    __slots__ = ()
    __eq__ = __hash__ = __lt__ = boom


class RaisingTuple(tuple):
    __slots__ = ()
    __iter__ = __len__ = boom


class RaisingMapping(Mapping, Named):
    __getitem__ = __iter__ = __len__ = boom


class RaisingZone(Named, tzinfo):
    utcoffset = boom


class Rule(Named):
    next_after = boom


class Task(Named):
    def __call__(self, *args, **kwargs):
        pass


async def coroutine_function():
    pass


VALUES = [
    None, True, False, 0, 1, -1, 5, 2**31, 2**32, LATEST - 1, LATEST, 2**63, 2**64 + 5, -(2**63), -(2**70),
    0.5, -0.0, 1e300, math.nan, math.inf, -math.inf, 1j, Decimal("1.5"), Fraction(1, 3), Fraction(10**400),
    "", "5", "k", "\udc80", b"5", bytearray(b"5"), (), [], {}, set(), [1], (1, 2), {"a": 1}, {1: 2},
    np.int64(5), np.uint64(2**64 - 1), np.int8(-3), np.float64(0.5), np.bool_(True), np.datetime64(5, "ns"),
    np.array(5), np.array(0.5), np.array([5]), np.arange(6).reshape(2, 3), np.array(["a"], object),
    timedelta(seconds=1), timedelta.max, timedelta.min, datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=RaisingZone()),
    int, object, type, print, Task(), Task, boom, coroutine_function, Rule(), Rule,
    Raises(), Unspeakable(), NoIndex(), Index(), LyingInt(3), RaisingInt(3), RaisingFloat(0.5), RaisingStr("k"),
    RaisingTuple((1, 2)), RaisingMapping(), ..., NotImplemented, ValueError("mine"), KeyboardInterrupt(), range(3),
    memoryview(b"12345678"),
]  # fmt: skip
DOCUMENTED = (TypeError, ValueError, KeyError, OverflowError)
RULE = re.compile(r"(?s)\w+(\[\d+\])? must .*|at most max_waiting .*")


def outcome(call):
    """What a call came to: a word, with the type and text of its error. An undocumented error goes on."""
    try:
        call()
    except Boom:
        return "boom"
    except DOCUMENTED as error:
        kind, text = type(error), str(error.args[0] if isinstance(error, KeyError) else error)
    else:
        return "done"
    assert RULE.fullmatch(text), f"{kind.__name__}: {text}"
    return kind, re.sub(r" at 0x\w+|<(Agenda|Job)[^>]*>", "", text)


def on_each_stack(call):
    """The one outcome of a call on each of the stacks."""
    outcomes = {name: outcome(lambda stack=stack: call(stack)) for name, stack in STACKS.items()}
    assert len(set(outcomes.values())) == 1, outcomes
    return next(iter(outcomes.values()))


# ---------------------------------------------------------------- every value, in every parameter

TIMETABLE = {
    "add: run_at": lambda table, value: table.add(value),
    "add: priority": lambda table, value: table.add(1, priority=value),
    "add_many: run_at": lambda table, value: table.add_many(value),
    "add_many: run_at[1]": lambda table, value: table.add_many([1, value, 2]),
    "add_many: items": lambda table, value: table.add_many([1, 2], value),
    "cancel": lambda table, value: table.cancel(value),
    "cancel_many": lambda table, value: table.cancel_many(value),
    "cancel_many: timer_ids[1]": lambda table, value: table.cancel_many([0, value]),
    "reschedule: timer_id": lambda table, value: table.reschedule(value, 1),
    "pop_due: now": lambda table, value: table.pop_due(value, 0),
    "pop_due: limit": lambda table, value: table.pop_due(-(10**6), value),
    "pop_due_ids: now": lambda table, value: table.pop_due_ids(value, 0),
    "pop_due_ids: limit": lambda table, value: table.pop_due_ids(-(10**6), value),
    "in": lambda table, value: value in table,
}


@pytest.mark.parametrize("where", TIMETABLE)
def test_promise_17_any_value_is_taken_or_refused_alike_by_both_timetables(where):
    for value in VALUES:

        def call(stack, value=value):
            table = stack.Timetable()
            table.add_many(range(9))
            table.pop_due(9)  # so that no small number is an id
            table.add_many(range(3), "abc")
            before = len(table)
            try:
                TIMETABLE[where](table, value)
            except BaseException:
                assert len(table) == before
                raise
            finally:
                table.check()
                assert len(table) >= before
            assert "add" in where or len(table) == before

        on_each_stack(call)


def test_promise_17_any_value_as_an_item_is_given_back_untouched(stack):
    table = stack.Timetable()
    for value in VALUES:
        table.add(1, value)
    table.add_many([1] * len(VALUES), VALUES)
    table.check()
    repr(table)
    assert all(a is b for a, b in zip(table.pop_due(1), VALUES * 2, strict=True))


def agenda_of(stack, **options):
    return stack.Agenda(ManualClock(10**9), wall_clock=ManualClock(10**18), **options)


def schedule_with(name):
    return lambda agenda, value: agenda.schedule(**({"task": Task()} | {name: value}))


COMMON = ["task", "args", "kwargs", "id", "priority", "retry", "key", "key_limit", "after", "on_upstream_failure"]
COMMON += ["timeout", "is_failure", "context", "jitter"]
AGENDA = (
    {
        f"{method}: {name}": (
            lambda agenda, value, method=method, needed=needed, name=name: getattr(agenda, method)(
                **({"task": Task()} | needed | {name: value})
            )
        )
        for method, needed, names in (
            ("schedule", {}, [*COMMON, "delay", "at"]),
            (
                "schedule_at_fixed_rate",
                {"initial_delay": 0, "period": 1},
                [*COMMON, "initial_delay", "period", "at", "until", "max_runs", "on_missed", "overlap"],
            ),
            (
                "schedule_with_fixed_delay",
                {"initial_delay": 0, "delay": 1},
                [*COMMON, "initial_delay", "delay", "at", "until", "max_runs"],
            ),
            (
                "schedule_recurring",
                {"when": lambda at: at + 10**9},
                [*COMMON, "when", "until", "max_runs", "on_missed", "overlap"],
            ),
        )
        for name in names
    }
    | {
        method: lambda agenda, value, method=method: getattr(agenda, method)(value)
        for method in ("cancel", "reschedule", "status", "last_error", "pause", "resume", "run_now", "take_due")
    }
    | {
        "schedule: after[0]": lambda agenda, value: agenda.schedule(Task(), after=[value]),
        "schedule: key with limit": lambda agenda, value: agenda.schedule(Task(), key="k", key_limit=value),
        "reschedule: delay": lambda agenda, value: agenda.reschedule("waits", value),
        "reschedule: at": lambda agenda, value: agenda.reschedule("waits", at=value),
        "finished: job": lambda agenda, value: agenda.finished(value),
        "finished: error": lambda agenda, value: agenda.finished("waits", value, run=1),
        "finished: run": lambda agenda, value: agenda.finished("waits", run=value),
        "on: event": lambda agenda, value: agenda.on(value, Task()),
        "on: listener": lambda agenda, value: agenda.on("started", value),
    }
)


@pytest.mark.parametrize("where", AGENDA)
def test_promise_17_any_value_is_taken_or_refused_alike_by_both_agendas(where, caplog):
    """What is refused changes no count, and what is taken can be cancelled or runs."""
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    for value in VALUES:

        def call(stack, value=value):
            agenda = agenda_of(stack, history=0)
            for _ in range(9):
                agenda.schedule(Task()).cancel()  # so that no small number is an id
            agenda.schedule(Task(), delay=1000, id="waits")
            before = agenda.stats()[:10]
            try:
                AGENDA[where](agenda, value)
            except BaseException:
                assert agenda.stats()[:10] == before
                assert len(agenda.jobs()) == 1
                raise
            agenda.resume()
            jobs = [info.job for info in agenda.jobs()]
            for job in jobs[::2]:
                agenda.cancel(job)
            agenda.run_due()
            for job in jobs:
                agenda.cancel(job)
            assert agenda.jobs() == []
            stats = agenda.stats()
            assert (stats.waiting, stats.ready) == (0, 0)
            if not hasattr(agenda, "_tt"):
                return
            agenda._tt.check()

        on_each_stack(call)


@pytest.mark.parametrize("name", ["clock", "wall_clock", "retry", "history", "history_age", "max_waiting"])
def test_promise_17_any_value_is_taken_or_refused_alike_by_both_constructors(name):
    for value in VALUES:
        on_each_stack(lambda stack, value=value: stack.Agenda(**{name: value}))


@pytest.mark.parametrize(
    "name", ["workers", "name", "executor", "agenda", "clock", "wall_clock", "retry", "max_waiting"]
)
def test_promise_17_any_value_for_a_scheduler_is_taken_or_refused(name):
    """What is refused has started nothing that goes on."""
    before = set(threading.enumerate())
    for value in VALUES:
        if name == "clock" and value is type:
            continue  # it raises an error of its own when it is called
        outcome(lambda value=value: Scheduler(**({"workers": 1} | {name: value})).shutdown())
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("clock", [object, int, lambda: "12", lambda: None])
def test_promise_17_callable_that_is_no_clock_is_refused_by_a_scheduler(stack, clock):
    for call in (lambda: Scheduler(clock=clock), lambda: Scheduler(agenda=stack.Agenda(clock))):
        if clock is int:  # a clock that stands still
            call().shutdown()
        else:
            with pytest.raises(TypeError, match=r"^clock must return int nanoseconds, got "):
                call()


class Subscribes(ManualClock):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def subscribe(self, callback):
        return self.answer()


@pytest.mark.parametrize("answer", [boom, int])
def test_scheduler_that_cannot_subscribe_to_its_clock_is_not_made(stack, answer):
    before = set(threading.enumerate())
    good, bad = ManualClock(), Subscribes(answer)
    expected = Boom if answer is boom else TypeError
    message = None if answer is boom else r"^subscribe of a clock must return a callable, got 0$"
    agenda = stack.Agenda(good, wall_clock=bad)
    with pytest.raises(expected, match=message):
        Scheduler(agenda=agenda)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before
    assert not good._callbacks
    bad.answer = lambda: int
    with Scheduler(agenda=agenda) as scheduler:
        assert scheduler.submit(pow, 2, 3).result(PATIENCE) == 8


CALLED = {
    "clock": lambda stack, call: stack.Agenda(call),
    "wall_clock": lambda stack, call: stack.Agenda(wall_clock=call),
    "retry": lambda stack, call: (stack.Agenda(retry=call), stack.Agenda().schedule(Task(), retry=call)),
    "is_failure": lambda stack, call: stack.Agenda().schedule(Task(), is_failure=call),
    "listener": lambda stack, call: stack.Agenda().on("started", call),
    "when": lambda stack, call: stack.Agenda().schedule_recurring(Task(), call),
    "task": lambda stack, call: stack.Agenda().schedule(call),
}


@pytest.mark.parametrize("name", CALLED)
def test_promise_17_coroutine_function_is_refused_wherever_something_is_called(stack, name):
    """What it gives is no instant, no wait, and as a verdict it is true."""
    message = rf"^{name} must be a plain callable, got the coroutine function <function coroutine_function at \w+>$"
    with pytest.raises(TypeError, match=message):
        CALLED[name](stack, coroutine_function)


def test_clock_whose_subscribe_is_no_function_does_not_tell():
    clock = ManualClock()
    clock.subscribe = 5
    with Scheduler(clock=clock, workers=1) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_promise_17_negative_age_of_the_history_is_refused(stack):
    with pytest.raises(ValueError, match=r"^history_age must be 0 or more, got -5$"):
        stack.Agenda(history_age=-5)
    stack.Agenda(history_age=0)


@pytest.mark.parametrize(
    ("q", "error"), [("x", TypeError), (True, TypeError), (1.5, ValueError), (math.nan, ValueError)]
)
def test_promise_17_quantile_of_what_is_no_fraction_is_refused(q, error):
    with pytest.raises(error, match=rf"^q must be a number from 0 to 1, got {q!r}$"):
        Lags({}).quantile(q)
    assert Lags({8: 3, 9: 1}).quantile(Fraction(3, 4)) == Lags({8: 3, 9: 1}).quantile(np.float32(0.75)) == 8


def test_promise_17_decorator_without_its_period_is_refused():
    with Scheduler(workers=1) as scheduler:
        with pytest.raises(TypeError, match=r"^period must be seconds \(int or float\) or a timedelta, got <function "):

            @scheduler.every
            def task():
                pass

        assert scheduler.jobs() == []


@pytest.mark.parametrize("name", ["wait", "cancel_futures", "timeout"])
def test_promise_17_shutdown_that_is_refused_ends_nothing(name):
    with Scheduler(workers=1) as scheduler:
        with pytest.raises((Boom, TypeError)):
            scheduler.shutdown(**{name: Raises()})
        assert scheduler.submit(int).result(PATIENCE) == 0


@pytest.mark.parametrize("what", ["clock", "wall_clock"])
def test_promise_17_any_value_from_a_clock_is_taken_or_refused_alike(what, caplog):
    for value in VALUES:

        def call(stack, value=value):
            agenda = stack.Agenda(**{what: lambda: value})
            try:
                agenda.schedule(Task(), at=datetime(2020, 1, 1, tzinfo=UTC))
            except BaseException:
                assert agenda.jobs() == []
                assert agenda.stats().waiting == 0
                raise

        on_each_stack(call)


@pytest.mark.parametrize("repeating", [False, True])
def test_promise_09_any_answer_of_a_policy_is_a_wait_or_ends_the_job(stack, repeating, caplog):
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    for value in VALUES:
        agenda = agenda_of(stack)
        options = {"retry": lambda attempt, error, value=value: value}
        if repeating:
            job = agenda.schedule_at_fixed_rate(boom, initial_delay=0, period=1, **options)
        else:
            job = agenda.schedule(boom, **options)
        assert agenda.run_due() == 1
        assert job.last_error is not None
        if job.status is Status.FAILED and type(job.last_error) is not Boom:
            assert type(job.last_error.__cause__) is Boom  # both are kept
        job.cancel()
        assert agenda.jobs() == []


def test_any_answer_of_a_rule_is_a_slot_or_ends_the_job(stack, caplog):
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    for value in VALUES:
        agenda = agenda_of(stack)
        answers = iter([10**9 + 1, value])
        job = agenda.schedule_recurring(Task(), lambda at, answers=answers: next(answers, None))
        agenda._clock_of().advance(1)
        assert agenda.run_due() == 1
        assert job.status in (Status.SCHEDULED, Status.SUCCEEDED, Status.FAILED)
        assert (job.status is Status.FAILED) == (job.last_error is not None)
        job.cancel()
        assert agenda.jobs() == []


def test_any_result_and_any_verdict_is_booked(stack, caplog):
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    for value in VALUES:
        agenda = agenda_of(stack)
        plain = agenda.schedule(lambda value=value: value)
        judged = agenda.schedule(Task(), is_failure=lambda result, value=value: value)
        assert agenda.run_due() == 2
        assert plain.result(0) is value
        assert judged.status in (Status.SUCCEEDED, Status.FAILED)


# ---------------------------------------------------------------- objects, made and copied by other ways


def owner(stack, kind):
    """An object of a kind, and what lets go of it."""
    if kind == "scheduler":
        scheduler = Scheduler(workers=1, agenda=stack.Agenda())
        return scheduler, scheduler.shutdown
    agenda = stack.Agenda(ManualClock())
    return {"agenda": agenda, "timetable": stack.Timetable(), "job": agenda.schedule(Task(), delay=1)}[kind], int


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", ["agenda", "job", "scheduler", "timetable"])
def test_copy_of_what_has_a_state_of_its_own_is_refused(stack, kind, how):
    subject, end = owner(stack, kind)
    with pytest.raises(TypeError, match=rf"(?i)^an? {kind} cannot be copied or pickled"):
        how(subject)
    end()


def test_job_is_made_by_an_agenda_alone(stack):
    with pytest.raises(TypeError, match=r"^a Job is made by a schedule method of an Agenda or a Scheduler$"):
        stack.Job()
    if stack.name == "pure":
        return  # the rest is refused where it is used
    for make in (lambda: stack.Job.__new__(stack.Job), lambda: object.__new__(stack.Job)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError, match=r"not an acceptable base type"):
        type("Derived", (stack.Job,), {})


USES = {
    "schedule": lambda agenda: agenda.schedule(Task()),
    "run_due": lambda agenda: agenda.run_due(),
    "take_due": lambda agenda: agenda.take_due(),
    "cancel": lambda agenda: agenda.cancel(2**32),
    "cancel by id": lambda agenda: agenda.cancel("k"),
    "reschedule": lambda agenda: agenda.reschedule(2**32),
    "status": lambda agenda: agenda.status(2**32),
    "jobs": lambda agenda: agenda.jobs(),
    "stats": lambda agenda: agenda.stats(),
    "next_run_at": lambda agenda: agenda.next_run_at(),
    "pause": lambda agenda: (agenda.pause(), agenda.resume(), agenda.pause(2**32)),
    "on": lambda agenda: agenda.on("started", Task()),
    "repr": repr,
    "scheduler": lambda agenda: Scheduler(agenda=agenda),
}


@pytest.mark.parametrize("use", USES)
def test_agenda_whose_class_left_out_init_does_no_harm(stack, use):
    class Careless(stack.Agenda):
        def __init__(self):
            pass

    for agenda in (Careless(), stack.Agenda.__new__(stack.Agenda)):
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            USES[use](agenda)


def test_second_init_is_refused_and_changes_nothing(stack):
    agenda = stack.Agenda(ManualClock())
    jobs = [agenda.schedule(Task(), id=str(k)) for k in range(100)]
    with pytest.raises(TypeError, match=r"^an Agenda is made once, its __init__ cannot be called again$"):
        agenda.__init__(history=3)
    assert agenda.run_due() == 100
    assert {job.status for job in jobs} == {agenda.status("0")} == {Status.SUCCEEDED}
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        before = threading.active_count()
        with pytest.raises(TypeError, match=r"^a Scheduler is made once, its __init__ cannot be called again$"):
            scheduler.__init__()
        assert threading.active_count() == before
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_second_init_of_a_timetable_keeps_its_timers(stack):
    for table in (stack.Timetable(), stack.Timetable.__new__(stack.Timetable)):
        table.add_many(range(1000), range(1000))
        table.__init__(capacity=5000)
        with pytest.raises(ValueError, match=r"^capacity must be from 0 to 2\*\*31, got -1$"):
            table.__init__(capacity=-1)
        table.check()
        assert table.pop_due(10**6) == list(range(1000))


def test_everything_but_a_job_has_weak_references(stack):
    for kind in ("agenda", "scheduler", "timetable"):
        subject, end = owner(stack, kind)
        dead = weakref.ref(subject)
        assert dead() is subject
        end()
        del subject, end
        gc.collect()
        assert dead() is None


# ---------------------------------------------------------------- ids


PLAUSIBLE = st.builds(lambda generation, slot: generation << 32 | slot, st.integers(0, 3), st.integers(0, 40))


@given(st.integers(-(2**70), 2**70) | PLAUSIBLE)
@settings(max_examples=300)
def test_any_int_is_an_id_of_this_timetable_or_of_none(value):
    for stack in STACKS.values():
        table = stack.Timetable()
        ids = table.add_many(range(20)).tolist()
        known = value in ids
        assert (value in table) is known
        assert table.reschedule(value, 5) is known
        assert table.cancel_many([value, value]) == known
        assert table.cancel(value) is False
        assert len(table) == 20 - known
        table.check()


def test_ids_and_jobs_of_another_are_unknown(stack):
    ours, theirs = agenda_of(stack), agenda_of(stack)
    foreign = [theirs.schedule(Task(), id="theirs"), theirs.schedule(Task(), delay=5)]
    foreign += [other.Agenda(ManualClock()).schedule(Task()) for other in STACKS.values() if other is not stack]
    own = ours.schedule(Task(), delay=5)
    for job in [*foreign, "theirs", -5, 2**64 + own.id, 2**63]:
        if type(job) not in (str, int, stack.Job):
            for method in ("cancel", "reschedule", "pause", "resume", "run_now", "status", "last_error", "finished"):
                with pytest.raises(TypeError, match=r"^job must be a Job or its id \(str or int\), got <Job "):
                    getattr(ours, method)(job)
            continue
        assert not any(getattr(ours, method)(job) for method in ("cancel", "reschedule", "pause", "resume", "run_now"))
        for call in (ours.status, ours.last_error, ours.finished):
            with pytest.raises(KeyError, match=r"job must be known, got "):
                call(job)
        with pytest.raises(KeyError, match=r"after must hold known jobs, got "):
            ours.schedule(Task(), after=[job])
    assert [info.job for info in ours.jobs()] == [own]
    assert theirs.stats().cancelled == 0


# ---------------------------------------------------------------- arrays

VIEWS = {
    "backwards": lambda a: a[::-1],
    "strided": lambda a: a[::3],
    "overlapping": lambda a: np.lib.stride_tricks.as_strided(a, (7, 5), (8, 8)).reshape(-1)[:0:-2],
    "of one element": lambda a: np.broadcast_to(a[:1], (5000,)),
    "overlapping itself": lambda a: np.lib.stride_tricks.as_strided(a, (300,), (0,)),
    "column": lambda a: np.asfortranarray(a[:4900].reshape(70, 70))[:, 3],
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.int64, len(a), 1),
    "read-only": lambda a: np.frombuffer(a.tobytes(), np.int64),
    "subclass": lambda a: a.view(LyingArray),
    "matrix row": lambda a: np.ma.masked_array(a, a % 2 == 0),
    "field": lambda a: np.rec.fromarrays([a, a], names="a,b")["a"],
    "empty": lambda a: a[:0],
}


class LyingArray(np.ndarray):
    """An array that tells wrong about itself where a subclass can."""

    def __len__(self):
        return 10**9

    __iter__ = __getitem__ = __array__ = boom

    def tolist(self):
        return ["nonsense"]

    shape = property(lambda self: (3,))
    size = property(lambda self: 10**9)
    ndim = property(lambda self: 1)
    dtype = property(lambda self: np.dtype(np.int64))


@pytest.mark.parametrize("array", [np.array(5), np.zeros((2, 2), np.int64), np.zeros(3), np.zeros(3, ">i8")])
def test_array_that_lies_about_its_shape_or_type_is_refused(stack, array):
    table = stack.Timetable()
    for call in (table.add_many, table.cancel_many):
        with pytest.raises((TypeError, ValueError), match=r"^(run_at|timer_ids) must be int64\[n\], got "):
            call(array.view(LyingArray))
    assert len(table) == 0


@pytest.mark.parametrize("view", VIEWS)
def test_array_of_any_layout_is_read_as_what_it_holds(stack, view):
    times = np.random.default_rng(0).integers(-1000, 1000, 5000)
    table = stack.Timetable()
    array = VIEWS[view](times)
    held = np.array(memoryview(array)).tolist() if view != "misaligned" else times.tolist()
    ids = table.add_many(array, range(len(held)))
    table.check()
    assert table.pop_due_ids(LATEST).tolist() == [ids[k] for k in sorted(range(len(held)), key=held.__getitem__)]
    ids = table.add_many(range(5000))
    chosen = VIEWS[view](ids)
    held = np.array(memoryview(chosen)).tolist() if view != "misaligned" else ids.tolist()
    assert table.cancel_many(chosen) == len(set(held))
    table.check()


HUGE = [
    np.broadcast_to(np.int64(5), (2**31 + 1,)),
    np.broadcast_to(np.int64(5), (2**40,)),
    np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (2**33,), (0,)),
    range(2**31 + 1),
]


@pytest.mark.parametrize("many", HUGE, ids=lambda many: f"{type(many).__name__} of {len(many)}")
def test_more_than_a_timetable_holds_is_refused_before_memory_is_asked_for(stack, many):
    table = stack.Timetable()
    for name, call in (("run_at", table.add_many), ("timer_ids", table.cancel_many)):
        with pytest.raises(ValueError, match=rf"^{name} must be at most 2\*\*31 ints, got {len(many)}$"):
            call(many)
    assert len(table) == 0


def test_array_of_ids_that_was_given_out_is_the_callers_own(stack):
    table = stack.Timetable()
    ids = table.add_many(np.zeros(5000, np.int64))
    copy = ids.tolist()
    ids[:] = -1
    table.check()
    assert table.cancel_many(copy) == 5000
    popped = table.add_many(range(100)) is not None and table.pop_due_ids(LATEST)
    popped[:] = 0
    table.check()


@pytest.mark.parametrize("count", [10, 5000])
def test_array_that_changes_during_the_call_harms_nothing(stack, count):
    """By the items, which are asked for in between; and a list that shrinks by the numbers in it."""
    table = stack.Timetable()
    array = np.arange(count)

    def items():
        for k in range(count):
            array[:] = -array
            if k % 1000 == 5:
                with pytest.raises(ValueError, match="resize"):
                    array.resize(count * 100)
            yield k

    table.add_many(array, items())
    table.check()
    assert len(table) == count

    times = []

    class Shrinks:
        def __index__(self):
            del times[len(times) // 2 :]
            return 5

    times += [Shrinks() for _ in range(count)]
    added = len(table.add_many(times))
    table.check()
    assert len(table) == count + added


def test_array_changed_by_another_thread_during_the_call_harms_nothing(stack):
    """What is added is one or the other value of each; ids of nobody cancel nothing."""
    table = stack.Timetable()
    array = np.zeros(20_000 if stack.name == "compiled" else 2_000, np.int64)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            array[:] = 2**62
            array[:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            table.add_many(array)
            table.check()
            assert {run_at for run_at, _, _ in (table.pop() for _ in range(50))} <= {0, 2**62}
            table.cancel_many(array)
            table.check()
            table.clear()
    finally:
        stop.set()
        thread.join(PATIENCE)


# ---------------------------------------------------------------- what calls back into who asks it


class CallsBack:
    """As a number, an iterable or a finalizer it does everything to the timetable that is asking."""

    def __init__(self, table, ids, value=5):
        self.table, self.ids, self.value = table, ids, value
        self.calls = 0

    def __call__(self):
        self.calls += 1
        table, ids = self.table, self.ids
        table.add(3, "back")
        table.cancel(ids[self.calls % len(ids)])
        table.reschedule(ids[(self.calls + 1) % len(ids)], 10**6)
        table.pop_due(0)
        if self.calls % 7 == 0:
            table.clear()
        if len(table):
            table.pop()
        table.add_many(range(70))
        table.check()

    def __index__(self):
        self()
        return self.value

    def __iter__(self):
        self()
        yield from (self, self)


@pytest.mark.parametrize("where", TIMETABLE)
@pytest.mark.parametrize("waiting", [3, 5000])
def test_promise_13_number_that_calls_back_harms_nothing(stack, where, waiting):
    table = stack.Timetable()
    ids = table.add_many(range(waiting), range(waiting)).tolist()
    hostile = CallsBack(table, ids, value=ids[1])
    for _ in range(10):
        with contextlib.suppress(TypeError, ValueError):  # it is no priority, no limit, or no sequence of items
            TIMETABLE[where](table, hostile)
        table.check()
    assert hostile.calls >= (where != "in")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["cancel", "cancel_many", "pop", "pop_due", "pop_due_ids", "clear", "refused"])
def test_item_that_calls_back_raises_and_comes_back_from_the_dead_harms_nothing(stack, way):
    table = stack.Timetable()
    undead = []

    class Item:
        def __init__(self):
            self.hostile = CallsBack(table, [1, 2, 3])

        def __del__(self):
            self.hostile()
            if len(undead) < 50:
                undead.append(self)
                table.add(1, self)
            raise Boom

    ids = [table.add(-5, Item()) for _ in range(100)]
    {
        "cancel": lambda: [table.cancel(timer_id) for timer_id in ids],
        "cancel_many": lambda: table.cancel_many(ids),
        "pop": lambda: [table.pop() for _ in range(100)],
        "pop_due": lambda: table.pop_due(-5).clear(),
        "pop_due_ids": lambda: table.pop_due_ids(-5, 90),
        "clear": table.clear,
        "refused": lambda: outcome(lambda: table.add_many([1, None], [Item(), Item()])),
    }[way]()
    table.check()
    assert undead
    undead.clear()
    table.clear()
    while len(table):  # what the finalizers add as they are dropped
        table.pop()
    table.check()


# ---------------------------------------------------------------- tasks and their end


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("history", [0, 2])
@pytest.mark.parametrize("how", ["run", "cancel", "fail", "drop"])
def test_task_and_arguments_that_call_back_raise_and_come_back_harm_nothing(stack, how, history, caplog):
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    agenda = agenda_of(stack, history=history)
    undead = []

    class Object(Raises):
        def __call__(self, *args, **kwargs):
            agenda.schedule(Task()).cancel()
            if how == "fail":
                raise Boom(self)
            return self

        def __del__(self):
            job = agenda.schedule(Task(), delay=1)
            agenda.run_due()
            agenda.reschedule(job, delay=2)
            job.cancel()
            if len(undead) < 20:
                undead.append(self)
            raise Boom

    jobs = [agenda.schedule(Object(), delay=3 + k % 2, args=(Object(),), kwargs={"k": Object()}) for k in range(50)]
    if how == "cancel":
        assert all(job.cancel() for job in jobs)
    agenda._clock_of().advance(5)
    if how != "drop":
        agenda.run_due()
        assert {job.status for job in jobs} <= set(Status) - {Status.SCHEDULED, Status.RUNNING}
        assert agenda.jobs() == []
    del jobs
    for info in agenda.jobs():
        info.job.cancel()
    info = None
    gc.collect()
    assert undead
    assert agenda.stats().running == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["task", "argument", "value", "error", "listener"])
def test_finalizer_that_shuts_its_scheduler_down_while_jobs_are_added_harms_nothing(stack, where, caplog):
    caplog.set_level(logging.CRITICAL + 1, "nextdue")
    for turn in range(20):
        scheduler = Scheduler(workers=2, agenda=stack.Agenda(history=0))

        class Last:
            def __init__(self, scheduler=scheduler):
                self.scheduler = scheduler

            def __call__(self, *args):
                if where == "value":
                    return self
                if where == "error":
                    raise Boom(self)
                return None

            def __del__(self):
                self.scheduler.shutdown(wait=False)
                raise Boom

        if where == "listener":
            scheduler.on("started", Last())()  # subscribed and let go
        elif where == "argument":
            scheduler.schedule(print if turn % 2 else len, args=(Last(),), delay=0 if turn % 2 == 0 else 1000).cancel()
        else:
            scheduler.schedule(Last())
        jobs = []

        def add(scheduler=scheduler, jobs=jobs):
            while True:
                jobs.append(scheduler.schedule(int, delay=len(jobs) % 2))
                scheduler.cancel(jobs[len(jobs) // 2])

        with pytest.raises(RuntimeError, match=r"^cannot schedule new jobs after shutdown$"):
            add()
        assert scheduler.shutdown(timeout=PATIENCE).complete
        assert {job.status for job in jobs} <= {Status.SUCCEEDED, Status.CANCELLED}


class Cruel(Exception):
    """An error that is hard to keep, to copy, to compare and to print."""

    __str__ = __repr__ = __hash__ = __reduce__ = __eq__ = boom
    __dict__ = property(boom)

    def __getattribute__(self, name):
        if name in ("args", "__notes__"):
            raise Boom
        return super().__getattribute__(name)


def test_error_that_cannot_be_printed_copied_or_compared_is_kept_and_raised(stack):
    agenda = agenda_of(stack)
    error = Cruel()

    def fail():
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "raiseExceptions", False)  # it would print that it cannot print
        job = agenda.schedule(fail, retry=FixedBackoff(2, 0))
        agenda.run_due()
        agenda.run_due()
    assert (job.status, job.attempts) == (Status.FAILED, 2)
    assert job.last_error is error
    with pytest.raises(Cruel):
        job.result(0)


class OwnTraceback(Exception):
    __traceback__ = property(boom, boom)


class OwnCauses(Exception):
    __cause__ = __context__ = __suppress_context__ = property(boom, boom)


class NoAttributes(Exception):
    __getattribute__ = __setattr__ = boom


class OtherClass(BaseException):
    __class__ = property(boom)


class NoCopy(SystemExit):
    with_traceback = __reduce__ = __copy__ = boom


ERRORS = [OwnTraceback, OwnCauses, NoAttributes, OtherClass, NoCopy]


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("policy", ["none", "gives up", "raises too", "raises it"])
def test_error_of_a_hostile_class_is_booked_as_any_other(stack, kind, policy, unlogged):
    error = kind()
    retry = {"none": None, "gives up": lambda *_: None, "raises too": boom, "raises it": lambda *_: fail()}[policy]

    def fail():
        raise error

    agenda = agenda_of(stack)
    jobs = [agenda.schedule(fail, retry=retry) for _ in range(2)]
    ran = 0
    while not all(job.wait(0) for job in jobs):
        try:
            ran += agenda.run_due()
        except NoCopy:
            ran += 1
    assert {job.status for job in jobs} == {Status.FAILED}
    assert agenda.stats()[:6] == (0, 0, 0, 2, 0, 2)
    if kind is not NoCopy:  # which had to go out itself
        assert BaseException.__dict__["__traceback__"].__get__(error) is None

    with Scheduler(workers=1, agenda=stack.Agenda(history=0)) as scheduler:
        job = scheduler.schedule(fail, retry=retry)
        assert job.wait(PATIENCE)
        assert job.status is Status.FAILED
        with pytest.raises(kind):
            scheduler.submit(fail).result(PATIENCE)


@pytest.mark.parametrize(("task", "method"), [(int, "set_result"), (boom, "set_exception")])
def test_future_that_does_not_take_its_outcome_at_once_is_told_again(stack, task, method, monkeypatch, unlogged):
    told = []
    tell = getattr(Future, method)

    def forgetful(future, outcome):
        told.append(outcome)
        if len(told) == 1:
            raise MemoryError
        tell(future, outcome)

    monkeypatch.setattr(Future, method, forgetful)
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        future = scheduler.submit(task)
        assert type(future.exception(PATIENCE)) is (Boom if task is boom else type(None))
    assert len(told) == 2


def test_future_whose_callback_leaves_is_released_when_the_end_cancels_it(stack, unlogged):
    with busy_scheduler(stack) as (scheduler, _, release):
        future = scheduler.submit(int)
        future.add_done_callback(lambda _: sys.exit())
        scheduler.shutdown(wait=False, cancel_futures=True)
        assert list(as_completed([future], PATIENCE)) == [future]
        release()


class Deaf(logging.Handler):
    def emit(self, record):
        raise Boom


def test_log_handler_that_raises_ends_no_pass(stack):
    agenda = agenda_of(stack)
    jobs = [agenda.schedule(boom), agenda.schedule(boom, retry=FixedBackoff(2, 0)), agenda.schedule(Task())]
    jobs.append(agenda.schedule_recurring(Task(), lambda at: at + 1 if at == 10**9 else "no instant"))
    handler = Deaf()
    logging.getLogger("nextdue").addHandler(handler)
    try:
        agenda._clock_of().advance(1)
        while agenda.run_due():
            pass
    finally:
        logging.getLogger("nextdue").removeHandler(handler)
    assert [job.status for job in jobs] == [Status.FAILED, Status.FAILED, Status.SUCCEEDED, Status.FAILED]
    assert all(job.last_error.__traceback__ is None for job in (jobs[0], jobs[1], jobs[3]))


def test_result_that_cannot_be_printed_fails_as_any_other(stack, unlogged):
    agenda = agenda_of(stack)
    value = Unspeakable()
    job = agenda.schedule(lambda: value, is_failure=lambda result: True)
    agenda.run_due()
    with pytest.raises(FailedResult) as caught:
        job.result(0)
    assert caught.value.value is value


def test_failed_result_keeps_its_value_and_words_when_it_is_copied():
    error = FailedResult(5)
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(same), same.value, repr(same)) == ("the result counts as a failure: 5", 5, "FailedResult(5)")


# ---------------------------------------------------------------- drivers beside a scheduler's threads


@contextlib.contextmanager
def busy_scheduler(stack):
    """A scheduler whose one worker is busy until `release` is called: what is ready waits for whoever takes it."""
    began, release = threading.Event(), threading.Event()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    scheduler.submit(lambda: began.set() or release.wait(PATIENCE))
    assert began.wait(PATIENCE)
    try:
        yield scheduler, scheduler._agenda, release.set
    finally:
        release.set()
        assert scheduler.shutdown(timeout=PATIENCE).complete


@pytest.mark.parametrize("how", ["run_due", "take_due"])
def test_submitted_call_that_a_driver_runs_has_its_result_in_the_future(stack, how):
    with busy_scheduler(stack) as (scheduler, agenda, _):
        good, bad, dropped = scheduler.submit(pow, 2, 3), scheduler.submit(boom), scheduler.submit(Task())
        assert dropped.cancel()
        if how == "run_due":
            assert agenda.run_due() == 2
        else:
            jobs = agenda.take_due(2)  # a cancelled one does not count
            assert [job.task for job in jobs] == [pow, boom]
            assert good.running()
            assert not good.cancel()
            agenda.finished(jobs[0], value=8)
            agenda.finished(jobs[1], Boom())
            assert agenda.take_due() == []
        assert good.result(0) == 8
        with pytest.raises(Boom):
            bad.result(0)
        assert agenda.stats().ready == 0


@pytest.mark.parametrize("place", ["policy", "is_failure", "task", "listener"])
@pytest.mark.parametrize("how", ["run_due", "take_due"])
def test_promise_16_shutdown_while_a_driver_books_its_run_does_not_wait_for_that(stack, how, place, unlogged):
    if (how, place) == ("take_due", "task"):
        pytest.skip("nobody knows what a driver of its own calls")
    with busy_scheduler(stack) as (scheduler, agenda, release):
        answers = []

        def end(*_):
            release()
            answers.append(scheduler.shutdown(timeout=PATIENCE))

        options = {"policy": {"retry": end}, "is_failure": {"is_failure": end}}.get(place, {})
        job = scheduler.schedule(end if place == "task" else boom if place == "policy" else Task(), **options)
        if place == "listener":
            scheduler.on("succeeded", lambda event: event.job is job and end())
        if how == "run_due":
            agenda.run_due()
        else:
            for taken in agenda.take_due():
                agenda.finished(taken, Boom() if place == "policy" else None)
        assert answers == [(True, 0, 0)]


# ---------------------------------------------------------------- threads and pools that are not to be had


@pytest.fixture
def meddle(monkeypatch):
    """Do something when a thread whose name ends so is started; it may be an error."""
    start = threading.Thread.start

    def meddle(suffix, deed):
        def start_after_all(thread):
            if thread.name.endswith(suffix):
                deed()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_after_all)

    return meddle


def no_thread(*args, **kwargs):
    raise RuntimeError("can't start new thread")


def no_memory():
    raise MemoryError


@pytest.mark.parametrize("why", [no_thread, no_memory])
def test_run_past_its_limit_is_booked_where_no_substitute_is_to_be_had(stack, meddle, why, unlogged):
    meddle("-substitute", why)
    gate, told = threading.Event(), threading.Event()
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        scheduler.on("timed_out", lambda event: told.set())
        job = scheduler.schedule(gate.wait, args=(PATIENCE,), timeout=0.001)
        assert told.wait(PATIENCE)
        assert job.status is Status.FAILED
        gate.set()
        assert scheduler.submit(pow, 2, 3).result(PATIENCE) == 8


@pytest.mark.parametrize("why", [no_thread, no_memory])
def test_rules_are_asked_anew_where_no_thread_is_to_be_had_for_that(stack, meddle, why, unlogged):
    meddle("-rules", why)
    wall = ManualClock(10**18)
    now = datetime.fromtimestamp(10**9, UTC)
    asked = threading.Event()

    class Hourly:
        def next_after(self, dt):
            if dt < now:
                asked.set()
            return dt + timedelta(hours=1)

    with Scheduler(workers=1, agenda=stack.Agenda(ManualClock(), wall_clock=wall)) as scheduler:
        scheduler.schedule_recurring(Task(), Hourly())
        wall.set_ns(10**18 - 86_400 * 10**9)
        assert asked.wait(PATIENCE)
        assert scheduler.wait_idle(PATIENCE)


def test_shutdown_while_a_substitute_is_being_started_does_not_trip_over_it(stack, meddle, unlogged):
    gate, told = threading.Event(), threading.Event()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    answers = []

    def end():
        thread = threading.Thread(target=lambda: answers.append(scheduler.shutdown(timeout=0)))
        thread.start()
        thread.join(PATIENCE)
        told.set()

    meddle("-substitute", end)
    scheduler.schedule(gate.wait, args=(PATIENCE,), timeout=0.001)
    assert told.wait(PATIENCE)
    gate.set()
    assert answers == [(False, 0, 1)]
    assert scheduler.shutdown(timeout=PATIENCE).complete


class Refuses(Executor):
    submit = no_thread


class GivesNothing(Executor):
    def submit(self, *args, **kwargs):
        return None


@pytest.mark.parametrize("pool", [Refuses, GivesNothing])
def test_pool_that_takes_no_job_is_survived_and_nothing_is_kept(stack, pool, unlogged):
    with Scheduler(workers=2, agenda=stack.Agenda(), executor=pool()) as scheduler:
        jobs = [scheduler.schedule(Task()) for _ in range(5)]
        assert all(job.wait(PATIENCE) for job in jobs)
        assert {job.status for job in jobs} == {Status.FAILED}
        with pytest.raises((RuntimeError, AttributeError)):
            scheduler.submit(int).result(PATIENCE)
    assert not nextdue.scheduler._flights


def test_log_handler_that_raises_does_not_keep_a_pool_from_being_replaced(stack):
    class Broken(Executor):
        def submit(self, *args, **kwargs):
            raise BrokenExecutor

    pools = iter([Broken(), ThreadPoolExecutor(1)])
    handler = Deaf()
    logging.getLogger("nextdue").addHandler(handler)
    try:
        with Scheduler(workers=1, agenda=stack.Agenda(), executor=lambda: next(pools)) as scheduler:
            assert scheduler.submit(pow, 2, 3).result(PATIENCE) == 8
    finally:
        logging.getLogger("nextdue").removeHandler(handler)


def test_freed_agenda_whose_jobs_refer_to_it_runs_hostile_finalizers(stack):
    """The last reference to an agenda goes in the finalizer of an argument of a job of its own."""
    freed = []

    class Argument:
        def __init__(self, agenda):
            self.agenda = agenda

        def __del__(self):
            freed.append(self.agenda.stats().cancelled)

    agenda = agenda_of(stack, history=0)
    dead = weakref.ref(Argument)  # the class: an agenda has no weak references
    job = agenda.schedule(Task(), args=(Argument(agenda),))
    del agenda
    job.cancel()
    del job
    assert freed == [1]
    assert dead() is Argument
