"""kombu's timer on the timetable: what it keeps of kombu's, and what it does better."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import threading
import weakref
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous import Hub
from kombu.asynchronous import timer as theirs

from nextdue.compat import _kombu
from nextdue.compat import kombu as ours

PATIENCE = 60


class At:
    """The time of an iteration, moved by hand."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def Timer(stack, monkeypatch):
    """The timer on either stack: with its hot path compiled or plain, and the timetable of the same kind."""
    monkeypatch.setattr(ours, "Timetable", stack.Timetable)
    if stack.name == "pure":
        for name in ("Entry", "call_at", "call_after", "described", "enter", "taken"):
            monkeypatch.setattr(ours, name, getattr(_kombu, name))
        for name, value in (("Entry", _kombu.Entry), ("call_at", _kombu.call_at), ("call_after", _kombu.call_after)):
            monkeypatch.setattr(ours.Timer, name, value)
        monkeypatch.setattr(ours.Timer, "_enter", _kombu.enter)
    return ours.Timer


def drain(timer, now=math.inf):
    """The entries that are due, in order."""
    out = []
    for _, entry in timer.__iter__(nowfun=At(now)):
        if entry is None:
            return out
        out.append(entry)
    raise AssertionError("the iteration ended")


def noop():
    pass


def throw_into(thread, error):
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1


# ---------------------------------------------------------------- order and time


def test_entries_come_by_eta_then_priority_then_as_they_were_entered(Timer):
    timer = Timer()
    names = [(2, 0), (1, 6), (1, 0), (1, 0), (1, None), (1, -3), (0.5, 9)]
    entries = [timer.call_at(eta, noop, (k,), priority=priority) for k, (eta, priority) in enumerate(names)]
    assert [entry.args[0] for entry in drain(timer)] == [6, 5, 2, 3, 4, 1, 0]
    assert len(entries) == len(names)


@given(
    etas=st.lists(st.floats(allow_nan=False), unique=True, max_size=30),
    cancelled=st.sets(st.integers(0, 29)),
    now=st.floats(allow_nan=False),
)
def test_what_is_due_is_what_kombu_has_due(etas, cancelled, now):
    runs = []
    for timer in (theirs.Timer(), ours.Timer()):
        entries = [timer.call_at(eta, noop, (eta,)) for eta in etas]
        for k in cancelled:
            if k < len(entries):
                timer.cancel(entries[k])
        iteration = timer.__iter__(nowfun=At(now))
        steps = [next(iteration) for _ in range(len(etas) + 1)]
        runs.append([(seconds, entry and entry.args) for seconds, entry in steps])
    # kombu meets its cancelled entries only as they come: where one of them is next it says to wait for that.
    if any(k < len(etas) for k in cancelled):
        runs = [[args for _, args in steps if args] for steps in runs]
    assert runs[0] == runs[1]


def test_iteration_tells_how_long_to_wait_up_to_max_interval(Timer):
    timer, at = Timer(max_interval=7), At(100.0)
    steps = timer.__iter__(nowfun=at)
    assert next(steps) == (None, None)
    entry = timer.call_at(103.25, noop)
    assert next(steps) == (3.25, None)
    timer.call_at(101, noop).cancel()
    assert next(steps) == (3.25, None)
    at.now = 90.0
    assert next(steps) == (7, None)
    at.now = 103.25
    assert next(steps) == (None, entry)
    assert next(steps) == (None, None)


def test_neighbouring_floats_at_a_long_uptime_keep_their_order(Timer):  # B65, B68
    timer, now = Timer(), 1e9
    later = math.nextafter(now, math.inf)
    second, first = timer.call_at(later, noop), timer.call_at(now, noop)
    assert drain(timer, now) == [first]
    assert drain(timer, later) == [second]


def test_a_datetime_is_taken_as_kombu_takes_it(Timer):
    timer = Timer()
    past, future = timer.call_at(datetime(2020, 1, 1, tzinfo=UTC), noop), timer.call_at(datetime(9000, 1, 1), noop)
    assert drain(timer, 1e6) == [past]
    assert [waiting.entry for waiting in timer.queue] == [future]


@pytest.mark.parametrize("delay", [sys.maxsize, 1e18, 2**53, 2**63 / 1000, math.inf, 10**30])  # B43, B45
def test_a_delay_of_ages_is_accepted_never_comes_and_can_be_cancelled(Timer, delay):
    timer = Timer()
    entry = timer.call_after(delay, noop)
    assert drain(timer, 1e9) == []
    entry.cancel()
    assert len(timer) == 0


def test_nan_is_refused_at_the_call(Timer):
    timer = Timer()
    for call in (timer.call_at, timer.call_after):
        with pytest.raises(ValueError, match=r"^eta must be a number, got nan$"):
            call(math.nan, noop)
    assert len(timer) == 0


def test_priorities_beyond_the_timetable_s_are_its_last_ones(Timer):
    timer = Timer()
    last, first = timer.call_at(1, noop, priority=10**9), timer.call_at(1, noop, priority=-(10**9))
    assert drain(timer) == [first, last]


def test_what_a_priority_compares_like_is_not_asked(Timer):  # B118
    class Meddler(int):
        def __lt__(self, other):
            raise AssertionError("a priority was compared")

        __gt__ = __le__ = __ge__ = __lt__

    timer = Timer()
    entries = [timer.call_at(1, noop, (Meddler(k),), priority=Meddler(k)) for k in range(5)]
    assert drain(timer) == entries


def test_a_priority_that_calls_the_timer_meets_it_whole(Timer):  # B118
    class Meddler:
        def __init__(self, number):
            self.number = number

        def __neg__(self):
            meddle()
            return Meddler(-self.number)

        def __lt__(self, other):
            meddle()
            return self.number < other

        __gt__ = __lt__

        def __index__(self):
            meddle()
            return self.number

    timer, entered = Timer(), []

    def meddle():
        timer.call_at(1, noop).cancel()
        entered.append(timer.call_at(2, noop))

    entered += [timer.call_at(1, noop, priority=Meddler(k)) for k in (3, 1, 2)]
    assert len(entered) > 3
    assert set(drain(timer)) == set(entered)
    assert len(timer) == 0


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize(
    "cancel",
    [
        lambda timer, entry: timer.cancel(entry),
        lambda timer, entry: entry.cancel(),
        lambda timer, entry: setattr(entry, "canceled", True),
        lambda timer, entry: setattr(entry, "cancelled", True),
    ],
)
def test_every_way_of_cancelling_takes_the_entry_away_at_once(Timer, cancel):  # B116
    timer = Timer()
    entry, other = timer.call_after(10, noop), timer.call_after(20, noop)
    cancel(timer, entry)
    assert entry.canceled
    assert entry.cancelled
    assert len(timer) == 1
    assert [waiting.entry for waiting in timer.queue] == [other]
    assert drain(timer) == [other]


def test_cancelled_entries_leave_no_memory(Timer):  # B131
    timer = Timer()
    timer.call_after(5, noop)
    for _ in range(3000):
        timer.call_after(86_400, noop).cancel()
    settled = timer._queue.nbytes
    for _ in range(30_000):
        timer.call_after(86_400, noop).cancel()
    assert len(timer) == 1
    assert timer._queue.nbytes <= settled


def test_what_a_cancelled_entry_held_is_released_with_it(Timer):  # B132
    class Payload:
        pass

    timer, payload = Timer(), Payload()
    gone = weakref.ref(payload)
    gc.disable()
    try:
        entry = timer.call_after(86_400, noop, (payload,))
        del payload
        entry.cancel()
        del entry
        assert gone() is None
    finally:
        gc.enable()


def test_an_iteration_that_waits_keeps_nothing_of_the_last_entry(Timer):  # B137
    timer = Timer()
    entry = timer.call_at(1, noop)
    gone = weakref.ref(entry)
    timer.call_at(9, noop)
    entries = timer.__iter__(nowfun=At(2.0))
    gc.disable()
    try:
        assert next(entries) == (None, entry)
        del entry
        assert next(entries) == (2.0, None)
        assert gone() is None
    finally:
        gc.enable()


def test_cancelling_an_entry_that_has_come_changes_no_count(Timer):  # B104
    timer = Timer()
    entry, other = timer.call_at(1, noop), timer.call_at(2, noop)
    assert drain(timer, 1.5) == [entry]
    entry.cancel()
    entry.cancel()
    assert len(timer) == 1
    assert drain(timer) == [other]
    assert len(timer) == 0


def test_an_entry_cancels_others_that_are_due_with_it(Timer):  # B112
    timer, ran = Timer(), []
    entries = [
        timer.call_at(1, lambda k: (ran.append(k), [entry.cancel() for entry in entries[1:]]), (k,)) for k in range(10)
    ]
    for _, entry in timer.__iter__(nowfun=At(2.0)):
        if entry is None:
            break
        entry()
    assert ran == [0]


def test_clear_drops_all_and_the_timer_goes_on(Timer):  # B113
    timer = Timer()
    queue = timer._queue
    entries = [timer.call_at(k, noop) for k in range(100)]
    timer.clear()
    assert len(timer) == 0
    assert not timer._queue
    for entry in entries:
        entry.cancel()
    again = timer.call_at(1, noop)
    assert timer._queue is queue
    assert drain(timer) == [again]


def test_threads_that_cancel_and_a_thread_that_runs_agree(Timer):  # B104, B106
    timer = Timer()
    entries = [timer.call_at(0, noop) for _ in range(4000)]
    threads = [threading.Thread(target=lambda: [entry.cancel() for entry in entries[::2]]) for _ in range(4)]
    for thread in threads:
        thread.start()
    ran = drain(timer)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(timer) == 0
    assert set(entries[1::2]) <= set(ran)
    assert len(ran) == len(set(ran))


def test_a_finalizer_may_use_the_timer(Timer):  # B124
    class Meddler:
        def __del__(self):
            timer.call_after(10, noop)
            kept.cancel()

    timer = Timer()
    kept = timer.call_after(10, noop)
    for _ in range(50):
        timer.call_after(5, noop, (Meddler(),)).cancel()
    assert len(timer) == 50
    timer.call_after(5, noop, (Meddler(),))
    timer.clear()
    assert len(timer) == 1


# ---------------------------------------------------------------- entries


def test_an_entry_is_called_with_its_arguments(Timer):
    fun = Mock()
    Timer.Entry(fun, (1, 2), {"a": 3})()
    fun.assert_called_once_with(1, 2, a=3)


def test_arguments_that_were_not_given_are_as_kombu_has_them(Timer):
    entry, theirs_entry = Timer.Entry(noop), theirs.Entry(noop)
    assert (entry.args, entry.kwargs) == (theirs_entry.args, theirs_entry.kwargs) == ([], {})
    entry.args.append(1)
    entry.kwargs["a"] = 2
    assert (entry.args, entry.kwargs) == ([1], {"a": 2})
    entry.args, entry.kwargs = (3,), {"b": 4}
    assert (entry.args, entry.kwargs) == ((3,), {"b": 4})
    assert repr(entry) == "<TimerEntry: noop(*(3,), **{'b': 4})"


def test_entries_are_equal_by_identity_hashable_and_ordered(Timer):
    one, other = Timer.Entry(noop), Timer.Entry(noop)
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2
    assert (one < other) is (other > one) is not (one >= other)
    assert one <= one


def test_tref_is_a_weak_proxy_that_cancels(Timer):
    timer = Timer()
    entry = timer.call_after(5, noop)
    entry.tref.canceled = True
    assert len(timer) == 0
    tref = entry.tref
    del entry
    with pytest.raises(ReferenceError):
        tref.cancel()


def test_an_entry_may_be_entered_again_once_it_has_come(Timer):
    timer = Timer()
    entry = timer.call_at(1, noop)
    assert drain(timer) == [entry]
    assert timer.enter_at(entry, 2) is entry
    assert [waiting[:2] for waiting in timer.queue] == [(2, 0)]
    entry.cancel()
    assert len(timer) == 0


def test_an_entry_that_waits_twice_comes_twice_and_is_cancelled_in_both_places(Timer):
    timer, other = Timer(), Timer()
    entry = timer.call_at(1, noop)
    timer.enter_at(entry, 2)
    other.enter_at(entry, 3)
    assert drain(timer) == [entry, entry]
    timer.enter_at(entry, 1)
    entry.cancel()
    assert drain(timer) == drain(other) == []


def test_kombu_s_own_entries_and_anything_like_them_are_taken(Timer):
    timer = Timer()
    entry, gone = theirs.Entry(noop), theirs.Entry(noop)
    timer.enter_at(entry, 2)
    timer.enter_at(gone, 1)
    gone.cancel()
    assert [waiting.entry for waiting in timer.queue] == [gone, entry]
    assert drain(timer) == [entry]


def test_call_repeatedly_enters_the_entry_again_until_it_is_cancelled(Timer):
    timer, fun = Timer(), Mock(__name__="fun")
    entry = timer.call_repeatedly(10, fun, (1,))
    for _ in range(3):
        assert drain(timer) == [entry]
        entry._last_run = None
        entry()
    assert fun.call_count == 3
    entry.cancel()
    assert len(timer) == 0
    entry()
    assert len(timer) == 0


def test_a_subclass_s_own_way_of_entering_is_used(Timer):
    seen = []

    class Delayed(Timer):
        def enter_after(self, secs, entry, priority=0, **kwargs):
            seen.append("after")
            return super().enter_after(secs, entry, priority, **kwargs)

        def _enter(self, eta, priority, entry):
            seen.append("enter")
            return super()._enter(eta, priority, entry)

    Delayed().call_after(1, noop)
    Delayed().call_at(1, noop)
    assert seen == ["after", "enter", "enter"]


def test_a_hub_fires_what_is_due(Timer):
    hub = Hub(timer=Timer())
    try:
        ran = []
        hub.call_at(1, ran.append, "due")
        hub.call_later(3600, ran.append, "not due")
        assert hub.fire_timers(max_delay=2) == 2
        assert ran == ["due"]
        assert hub.timer._queue
    finally:
        hub.close()


def test_on_error_is_told_and_without_it_the_error_is_logged(Timer, caplog):
    error = ValueError("no")
    told = Mock()
    timer = Timer(on_error=told)
    timer.apply_entry(timer.call_at(1, Mock(side_effect=error)))
    told.assert_called_once_with(error)
    timer = Timer()
    timer.apply_entry(timer.call_at(1, Mock(side_effect=error)))
    assert "Error in timer: ValueError('no')" in caplog.text


# ---------------------------------------------------------------- on a thread of its own


@pytest.fixture
def worker_timer(Timer):
    timer = Timer(max_interval=3600, on_tick=Mock())
    yield timer
    timer.stop()


def test_with_on_tick_a_timer_runs_by_itself(worker_timer):
    assert type(worker_timer) is ours.WorkerTimer
    assert worker_timer
    done = threading.Event()
    worker_timer.call_after(0, done.set)
    assert done.wait(PATIENCE)


@pytest.mark.realtime
def test_an_earlier_entry_wakes_the_thread_that_waits_for_a_later_one(worker_timer):  # B75
    waiting, done = threading.Event(), threading.Event()
    worker_timer.on_tick.side_effect = lambda seconds: waiting.set()
    worker_timer.call_after(3600, noop)
    assert waiting.wait(PATIENCE)
    for _ in range(20):
        done.clear()
        worker_timer.call_after(0.001, done.set)
        assert done.wait(PATIENCE)


def test_an_error_thrown_into_the_thread_does_not_end_it(worker_timer, caplog):  # B92
    waiting = threading.Semaphore(0)
    worker_timer.on_tick.side_effect = lambda seconds: waiting.release()
    worker_timer.call_after(3600, noop)
    thread = worker_timer._thread
    for error in (SystemExit, KeyError):
        assert waiting.acquire(timeout=PATIENCE)
        throw_into(thread, error)
        worker_timer._woken.set()  # it is told as its wait ends
        done = threading.Event()
        worker_timer.call_after(0, done.set)
        assert done.wait(PATIENCE)
    assert worker_timer._thread is thread
    assert thread.is_alive()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_on_tick_that_fails_each_time_does_not_make_the_thread_spin(worker_timer, caplog, error):  # B87
    waiting = threading.Event()
    worker_timer._woken.wait = Mock(side_effect=lambda seconds: waiting.set() or threading.Event().wait(0.01))
    worker_timer.on_tick.side_effect = error
    worker_timer.call_after(3600, noop)
    assert waiting.wait(PATIENCE)
    assert "Error in timer" in caplog.text


def test_no_error_ends_the_thread(worker_timer, caplog):
    done = threading.Event()
    worker_timer.call_at(1, Mock(side_effect=ValueError))
    worker_timer.call_at(2, Mock(side_effect=SystemExit))
    worker_timer.call_at(3, done.set)
    assert done.wait(PATIENCE)
    assert caplog.text.count("Error in timer") == 2


def test_after_stop_nothing_runs_until_something_is_entered(worker_timer):  # B203
    done = threading.Event()
    worker_timer.call_after(0, done.set)
    assert done.wait(PATIENCE)
    thread = worker_timer._thread
    worker_timer.stop()
    worker_timer.stop()
    assert not thread.is_alive()
    done.clear()
    worker_timer.call_after(0, done.set)
    assert done.wait(PATIENCE)


def test_an_entry_may_stop_its_timer(worker_timer):  # B127
    done = threading.Event()

    def stop():
        worker_timer.stop()
        done.set()

    worker_timer.call_after(0, stop)
    assert done.wait(PATIENCE)
    worker_timer.call_after(0, stop)


def test_without_kombu_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "kombu"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "nextdue.compat.kombu")
    with pytest.raises(ImportError, match=r"^nextdue\.compat\.kombu needs kombu: pip install 'nextdue\[kombu\]'$"):
        import nextdue.compat.kombu  # noqa: F401
