"""`threading.Timer` without a thread for each: ``from nextdue.compat.threading import Timer``.

Timers that wait are entries of one timetable, for the whole process. One thread, the watcher, sleeps until the next is
due and hands it to a runner: an idle one, or a new one when there is none. So every callback that runs has a thread of
its own, as with `threading.Timer`, and none waits for another; an idle runner ends after a while.

Starting and cancelling are in `_threading.py`, which is compiled and takes no lock but the timetable's.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from nextdue import BACKEND
from nextdue._waits import LONGEST_WAIT

if BACKEND == "compiled":
    from ._threading_c import Books, Waiting, current, use
else:
    from ._threading import Books, Waiting, current, use

__all__ = ["Timer"]

_NEVER = 2**63 - 1
_IDLE = 10.0  # seconds until a runner without work ends
_RETRY_NS = 100_000_000  # until a timer that no thread could be started for is tried again

_numbers = count(1)


class Timer(Waiting, threading.Timer):  # type: ignore[override]
    """Call ``function(*args, **kwargs)`` after ``interval`` seconds, unless cancelled before; as `threading.Timer`.

    Args:
        interval: seconds; zero or less means now, None or infinity never.
        function, args, kwargs: attributes, too; what they are when it is time counts.

    A subclass (or an instance) with a ``run`` of its own gets a real thread, as it has always been.

    Complexity: start and cancel are O(log n) and O(1) of the timers that wait.
    Thread-safety: all of it may be called from any thread, from callbacks and from finalizers.

    >>> timer = Timer(0.001, print, ("hello",))
    >>> timer.start()
    >>> timer.join()
    hello
    """

    _initialized = True  # for what is inherited: without a thread, Thread.__init__ is not called
    _ident: int | None = None
    _native_id: int | None = None
    _name: str | None = None
    _is_thread = False

    @property
    def name(self) -> str:
        """Any name; by default, one with a number."""
        if self._name is None:
            self._name = f"Timer-{next(_numbers)}"
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)

    @property
    def daemon(self) -> bool:
        """Whether the process may end without it; as of the thread that made it, and to be set before `start`."""
        return self._daemonic  # type: ignore[no-any-return]

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        if self._books is not None or self._is_thread:
            raise RuntimeError("cannot set daemon status of active thread")
        self._daemonic = daemonic

    def _start_thread(self) -> None:
        """What `start` does when `run` is not the original's."""
        if self._books is not None or self._is_thread:
            raise RuntimeError("threads can only be started once")
        threading.Thread.__init__(self, name=self.name, daemon=self._daemonic)
        self._is_thread = True
        threading.Thread.start(self)

    def is_alive(self) -> bool:
        """Tell whether it was started and neither has ended nor was cancelled while it waited."""
        return threading.Thread.is_alive(self) if self._is_thread else self._waits_or_runs()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is not alive, at most so many seconds.

        Raises:
            RuntimeError: it was not started, or this is called from its callback.
        """
        if self._is_thread:
            return threading.Thread.join(self, timeout)
        if self._books is None:
            raise RuntimeError("cannot join thread before it is started")
        if getattr(threading.current_thread(), "timer", None) is self:
            raise RuntimeError("cannot join current thread")
        over = self._until_over()
        if over is not None:
            over.wait(None if timeout is None else max(timeout, 0))
        return None

    def __repr__(self) -> str:
        if self._is_thread:
            return threading.Thread.__repr__(self)
        state = "initial" if self._books is None else "started" if self.is_alive() else "stopped"
        words = [state, *["daemon"] * self._daemonic, *[str(self._ident)] * (self._ident is not None)]
        return f"<{type(self).__name__}({self.name}, {' '.join(words)})>"

    def _call(self) -> None:
        """What `run` does once it is time; on a runner's thread."""
        try:
            self._ident, self._native_id = threading.get_ident(), threading.get_native_id()
            if self._finished or (self._event is not None and self._event.is_set()):
                return
            # As on a new thread: in a context that nothing has been left in.
            contextvars.Context().run(self.function, *self.args, **self.kwargs)
            self.cancel()
        except BaseException:
            _report(self)


def _report(thread: threading.Thread) -> None:
    """Hand the exception to `threading.excepthook`, and what that raises to `sys.excepthook`."""
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
    except BaseException:
        sys.excepthook(*sys.exc_info())


class _Runner(threading.Thread):
    """Calls one timer after another. An error thrown into it, which may come between any two steps, ends nothing."""

    def __init__(self, engine: _Engine, timer: Timer) -> None:
        super().__init__(name=timer.name, daemon=True)  # the engine sees to it that the process waits for timers
        self.timer: Timer | None = timer
        self.called = False  # so its callback was, and it has only to be ended
        self.engine = engine
        self.given = threading.Lock()
        self.given.acquire()

    def run(self) -> None:
        while True:
            try:
                while self.engine is current():  # else a fork came between: in the child there is no one to give more
                    if self.timer is not None:
                        self.serve(self.timer)
                    elif not self.rest():
                        return
                return
            except BaseException:
                _report(self)

    def serve(self, timer: Timer) -> None:
        self.engine.idle.pop(self, None)
        if not self.called:
            self.called = True
            self.name = timer.name
            self._daemonic = timer.daemon  # what a callback makes inherits it
            timer._call()
        self._daemonic = True
        if self.engine is current():
            timer._end()
        self.timer = None  # idle, it keeps nothing alive
        self.called = False

    def rest(self) -> bool:
        """Wait to be given a timer; False when there was none for a while."""
        self.engine.idle[self] = None
        if not self.given.acquire(timeout=_IDLE):
            if self.engine.idle.pop(self, self) is None:
                return False
            self.given.acquire()  # somebody is about to give
        return True


class _Engine(Books):
    """The timers of this process that wait, and the threads that serve them."""

    def __init__(self) -> None:
        super().__init__()
        # These are re-entrant; one put too many costs a look that finds nothing.
        self.earlier: SimpleQueue[None] = SimpleQueue()
        self.released: SimpleQueue[None] = SimpleQueue()
        self.idle: dict[_Runner, None] = {}

    def begin_to_watch(self) -> None:
        if not self.claim_watch():
            return
        try:
            threading.Thread(target=self.watch, name="nextdue-timers", daemon=True).start()
        except BaseException:
            self.claim_watch(False)
            raise

    def wake(self) -> None:
        self.earlier.put(None)

    def release(self) -> None:
        self.released.put(None)

    def watch(self) -> None:
        due: deque[Timer] = deque()
        while True:
            try:
                due.extend(self.table.pop_due(time.monotonic_ns()))
                while due:
                    self.hand_over(due.popleft())
                at = self.arm()
                left = min(max(at - time.monotonic_ns(), 0) / 1e9, LONGEST_WAIT)
                with suppress(Empty):
                    self.earlier.get(timeout=None if at == _NEVER else left)
                self.disarm()
            except BaseException:  # thrown into the thread, which every timer waits for
                _report(threading.current_thread())

    def hand_over(self, timer: Timer) -> None:
        try:
            runner, _ = self.idle.popitem()
        except KeyError:
            try:
                _Runner(self, timer).start()
            except RuntimeError:  # no more threads: late, it still runs
                timer._id = self.table.add(time.monotonic_ns() + _RETRY_NS, timer)
        else:
            runner.timer = timer
            runner.given.release()

    def wait_until_released(self) -> None:
        while self.is_held():
            self.released.get()
        self.release()  # for the next who waits

    def hold_exit(self) -> None:
        """Have the process wait for timers that are started when it has ended already: by a thread it waits for."""
        threading.Thread(target=self.wait_until_released, name="nextdue-timers-exit", daemon=False).start()

    def at_exit(self) -> None:
        self.wait_until_released()
        self.exit()


use(_Engine())

# Where `threading` waits for its own non-daemon threads.
threading._register_atexit(lambda: current().at_exit())  # type: ignore[attr-defined]

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: use(_Engine()))
