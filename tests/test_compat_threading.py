"""The drop-in for `threading.Timer`."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from nextdue.compat.threading import Timer

PATIENCE = 30.0
HOUR = 3600.0
VAR = contextvars.ContextVar("VAR", default="unset")

pytestmark = pytest.mark.realtime


def noop(*args: object, **kwargs: object) -> None:
    """The function of every timer."""


@pytest.fixture
def waiting() -> Iterator[Timer]:
    timer = Timer(HOUR, noop)
    timer.start()
    yield timer
    timer.cancel()


def test_timer_when_it_is_time_then_its_function_is_called_on_another_thread() -> None:  # 1
    called: list[Any] = []
    timer = Timer(0.02, lambda *args, **kwargs: called.append((args, kwargs, threading.get_ident())), (1,), {"k": 2})
    began = time.monotonic()
    timer.start()
    timer.join(PATIENCE)
    assert time.monotonic() - began >= 0.02
    assert called == [((1,), {"k": 2}, timer.ident)]
    assert timer.ident != threading.get_ident()
    assert timer.native_id is not None
    assert timer.finished.is_set()
    assert not timer.is_alive()


def test_timer_has_the_attributes_of_the_original() -> None:
    timer = Timer(5, noop)
    assert isinstance(timer, threading.Timer)
    assert (timer.interval, timer.function, timer.args, timer.kwargs) == (5, noop, [], {})
    assert (timer.ident, timer.native_id, timer.daemon, timer.is_alive()) == (None, None, False, False)
    timer.name = "tea"
    timer.daemon = True
    assert repr(timer) == "<Timer(tea, initial daemon)>"
    assert not timer.finished.is_set()


def test_timer_when_it_was_changed_before_its_time_then_what_it_is_counts(waiting: Timer) -> None:
    called: list[Any] = []
    timer = Timer(0.02, noop)
    timer.function, timer.args, timer.kwargs = called.append, ("late",), {}
    timer.start()
    timer.join(PATIENCE)
    assert called == ["late"]


def test_cancel_when_it_waits_then_it_is_not_called(waiting: Timer) -> None:  # 10
    assert waiting.is_alive()
    waiting.cancel()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert waiting.finished.is_set()
    assert re.fullmatch(r"<Timer\(Timer-\d+, stopped\)>", repr(waiting))


def test_cancel_when_it_was_not_started_then_it_ends_as_it_starts() -> None:
    called: list[int] = []
    timer = Timer(0, called.append, (1,))
    timer.cancel()
    timer.start()
    timer.join(PATIENCE)
    assert (called, timer.is_alive()) == ([], False)


def test_cancel_when_its_function_runs_then_that_goes_on() -> None:
    entered, leave = threading.Event(), threading.Event()

    def function() -> None:
        entered.set()
        leave.wait(PATIENCE)

    timer = Timer(0, function)
    timer.start()
    assert entered.wait(PATIENCE)
    timer.cancel()
    assert timer.is_alive()
    timer.join(0)
    assert timer.is_alive()
    leave.set()
    timer.join(PATIENCE)
    assert not timer.is_alive()


def test_cancel_then_what_it_waited_with_is_released_with_it() -> None:  # B132
    timer = Timer(HOUR, noop)
    timer.start()
    gone = weakref.ref(timer)
    timer.cancel()
    gc.disable()
    try:
        del timer
        assert gone() is None
    finally:
        gc.enable()


def test_finished_when_it_is_set_by_hand_then_it_is_not_called() -> None:
    called: list[int] = []
    timer = Timer(0.05, called.append, (1,))
    timer.finished.set()
    timer.start()
    timer.join(PATIENCE)
    assert called == []


@pytest.mark.parametrize("interval", [0, -1, -float("inf"), 0.0], ids=repr)
def test_start_when_the_interval_is_over_then_called_at_once(interval: float) -> None:  # B54
    called = threading.Event()
    Timer(interval, called.set).start()
    assert called.wait(PATIENCE)


@pytest.mark.parametrize("interval", [None, float("inf"), 10**400, 1e18, sys.maxsize, 2.0**53], ids=str)
def test_start_when_the_interval_is_enormous_then_it_waits(interval: float | None) -> None:  # B43 B45 B46
    timer = Timer(interval, noop)
    timer.start()
    assert timer.is_alive()
    other = Timer(0.001, noop)  # the watcher is not hurt
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive()
    timer.cancel()
    assert not timer.is_alive()


@pytest.mark.parametrize(("interval", "error"), [(float("nan"), ValueError), ("1", TypeError)])
def test_start_when_the_interval_is_no_number_then_refused(interval: Any, error: type[Exception]) -> None:  # 17
    timer = Timer(interval, noop)
    with pytest.raises(error, match=f"^{re.escape(f'interval must be a number of seconds, got {interval!r}')}$"):
        timer.start()
    assert not timer.is_alive()


def test_start_when_started_before_then_refused(waiting: Timer) -> None:
    with pytest.raises(RuntimeError, match=r"^threads can only be started once$"):
        waiting.start()
    with pytest.raises(RuntimeError, match=r"^cannot set daemon status of active thread$"):
        waiting.daemon = True


def test_join_when_it_cannot_be_then_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^cannot join thread before it is started$"):
        Timer(0, noop).join()
    caught: list[str] = []

    def function() -> None:
        try:
            timer.join()
        except RuntimeError as error:
            caught.append(str(error))

    timer = Timer(0, function)
    timer.start()
    timer.join(PATIENCE)
    assert caught == ["cannot join current thread"]


def test_callbacks_when_many_are_slow_then_none_waits_for_another() -> None:  # 4
    together = threading.Barrier(20)
    timers = [Timer(0.001, together.wait, (PATIENCE,)) for _ in range(20)]
    for timer in timers:
        timer.start()
    for timer in timers:
        timer.join(PATIENCE)
    assert not together.broken
    assert all(timer.finished.is_set() for timer in timers)


def test_callbacks_when_one_after_the_other_then_threads_are_used_again() -> None:
    threads: set[int | None] = set()
    for _ in range(50):
        timer = Timer(0, noop)
        timer.start()
        timer.join(PATIENCE)
        threads.add(timer.ident)
    assert len(threads) < 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_callback_when_it_raises_then_excepthook_is_told(monkeypatch: pytest.MonkeyPatch) -> None:  # 15, B97
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append((args.exc_type, args.thread)))
    timers = [Timer(0, function) for function in (lambda: 1 / 0, sys.exit)]
    for timer in timers:
        timer.start()
        timer.join(PATIENCE)
    assert told == [(ZeroDivisionError, timers[0]), (SystemExit, timers[1])]
    assert not timers[0].finished.is_set()  # as with the original


def test_timer_when_made_in_a_callback_then_it_inherits_daemon() -> None:
    made: list[Timer] = []
    for daemon in (True, False):
        timer = Timer(0, lambda: made.append(Timer(0, noop)))
        timer.daemon = daemon
        timer.start()
        timer.join(PATIENCE)
    assert [timer.daemon for timer in made] == [True, False]


def test_thread_when_made_in_a_callback_then_it_inherits_the_timers_daemon() -> None:
    made: list[threading.Thread] = []
    for daemon in (True, False):
        timer = Timer(0, lambda: made.append(threading.Thread(target=noop)))
        timer.daemon = daemon
        timer.start()
        timer.join(PATIENCE)
    assert [thread.daemon for thread in made] == [True, False]


def test_callback_when_another_ran_on_its_thread_then_it_has_a_context_of_its_own() -> None:  # B214
    seen: list[tuple[str, int | None]] = []

    def function() -> None:
        seen.append((VAR.get(), timer.ident))
        VAR.set("left behind")

    VAR.set("outside")
    while len({ident for _, ident in seen}) == len(seen):  # until a thread is used again
        timer = Timer(0, function)
        timer.start()
        timer.join(PATIENCE)
    assert {value for value, _ in seen} == {"unset"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_threads_when_an_error_is_thrown_into_them_then_timers_go_on(error: type[BaseException]) -> None:  # B92
    for _ in range(5):
        first = Timer(0, noop)
        first.start()
        first.join(PATIENCE)
        for thread in threading.enumerate():
            if thread.name == "nextdue-timers" or thread.ident == first.ident:
                assert thread.ident is not None
                ident, thrown = ctypes.c_ulong(thread.ident), ctypes.py_object(error)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, thrown)  # told as it wakes
        together = threading.Barrier(3)  # one after the other would hang here
        timers = [Timer(0.001, together.wait, (PATIENCE,)) for _ in range(3)]
        for timer in timers:
            timer.start()
        for timer in timers:
            timer.join(PATIENCE)
        assert [timer.is_alive() for timer in timers] == [False] * 3
        assert not together.broken


def test_start_when_an_earlier_one_comes_then_it_is_not_late_for_the_later(waiting: Timer) -> None:  # 12, B75
    for _ in range(50):
        called = threading.Event()
        Timer(0.001, called.set).start()
        assert called.wait(PATIENCE)


def test_run_when_overridden_then_it_is_a_real_thread() -> None:
    class Mine(Timer):
        def run(self) -> None:
            seen.append(threading.current_thread())
            super().run()

    seen: list[Any] = []
    called: list[int] = []
    timer = Mine(0.001, called.append, (1,))
    assert (timer.args, Mine(1, noop).args, Mine(1, noop).kwargs) == ((1,), [], {})
    timer.name, timer.daemon = "mine", True
    timer.start()
    timer.join(PATIENCE)
    assert (seen, called) == ([timer], [1])
    assert timer.finished.is_set()
    assert not timer.is_alive()
    assert repr(timer).startswith("<Mine(mine, stopped daemon ")
    stopped = Mine(HOUR, noop)
    stopped.start()
    assert stopped.is_alive()
    stopped.cancel()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()


def test_start_and_cancel_when_a_finalizer_does_them_then_no_deadlock() -> None:  # B124
    class Cycle:
        def __init__(self) -> None:
            self.me, self.timer = self, Timer(HOUR, noop)
            self.timer.start()

        def __del__(self) -> None:
            self.timer.cancel()
            done.append(self.timer.is_alive())

    done: list[bool] = []
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(500):
            Cycle()
            timer = Timer(HOUR, noop)
            timer.start()
            timer.cancel()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert done == [False] * 500


def test_threads_when_many_start_and_cancel_then_each_ends() -> None:  # B79 B119
    ended = [0] * 4

    def work(i: int) -> None:
        for k in range(300):
            timer = Timer(0.0001 * (k % 3), noop)
            timer.start()
            if k % 2:
                timer.cancel()
            timer.join(PATIENCE)
            ended[i] += not timer.is_alive()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert ended == [300] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_then_the_childs_timers_work_and_those_of_before_are_dead(waiting: Timer) -> None:  # B209 B210
    child = os.fork()
    if child == 0:
        called = threading.Event()
        Timer(0.001, called.set).start()
        was_alive = waiting.is_alive()
        waiting.cancel()
        waiting.join(1)
        os._exit(0 if called.wait(PATIENCE) and not was_alive else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waiting.is_alive()


def output_of(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_exit_when_timers_wait_then_the_process_waits_for_them_but_not_for_daemons() -> None:  # B207, B200
    assert output_of(
        """
        from nextdue.compat.threading import Timer
        daemon = Timer(3600, print, ("daemon",))
        daemon.daemon = True
        daemon.start()
        Timer(0.05, lambda: Timer(0.05, print, ("second",)).start() or print("first")).start()
        cancelled = Timer(3600, print, ("cancelled",))
        cancelled.start()
        Timer(0.02, cancelled.cancel).start()
        """
    ) == ["first", "second"]


def test_exit_when_a_thread_starts_one_after_the_main_thread_ended_then_it_is_waited_for() -> None:  # B207
    assert output_of(
        """
        import threading
        from nextdue.compat.threading import Timer
        def work():
            threading.main_thread().join()
            try:
                Timer(0.05, print, ("late",)).start()
            except RuntimeError as error:
                print("late")  # a clear result
        threading.Thread(target=work).start()
        """
    ) == ["late"]


def test_no_lock_is_held_while_a_callback_runs() -> None:  # 13
    def start_and_cancel() -> None:
        other = Timer(HOUR, noop)
        other.start()
        other.cancel()

    def function() -> None:
        thread = threading.Thread(target=start_and_cancel)
        thread.start()
        thread.join(PATIENCE)
        free.append(not thread.is_alive())

    free: list[bool] = []
    timer = Timer(0, function)
    timer.start()
    timer.join(PATIENCE)
    assert free == [True]
