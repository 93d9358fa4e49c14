"""`threading.Timer` without a thread for each: ``from nextdue.compat.threading import Timer``.

Timers that wait are entries of one timetable, for the whole process. One thread, the watcher, sleeps until the next is
due and hands it to a runner: an idle one, or a new one when there is none. So every callback that runs has a thread of
its own, as with `threading.Timer`, and none waits for another; an idle runner ends after a while.

All that the engine knows stands under its one lock. It is re-entrant, since a finalizer may cancel a timer anywhere.
No user code runs under it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from numbers import Real
from typing import Any

from nextdue import Timetable

__all__ = ["Timer"]

_NEVER = 2**63 - 1
_FAR = 2**63 / 1e9  # seconds; the timetable saturates
_AWAKE = -(2**63)  # no start has to wake the watcher
_IDLE = 10.0  # seconds until a runner without work ends
_RETRY_NS = 100_000_000  # until a timer that no thread could be started for is tried again

_numbers = count(1)


class Timer(threading.Timer):
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
    _engine: _Engine | None = None  # since it was started
    _id = 0  # in its timetable
    _alive = False  # waits or runs
    _finished = False
    _event: threading.Event | None = None  # of `finished`; made when asked for, as is the next
    _over: threading.Event | None = None  # set when it is not alive any more

    def __init__(
        self,
        interval: float | None,
        function: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.interval = interval  # type: ignore[assignment]
        self.function = function
        self.args = args if args is not None else []
        self.kwargs = kwargs if kwargs is not None else {}
        creator = threading.current_thread()
        timer = creator.timer if type(creator) is _Runner else None
        self._daemonic = (timer or creator).daemon

    @property
    def finished(self) -> threading.Event:  # type: ignore[override]
        """Set by `cancel`, and when the callback has returned."""
        with _engine.lock:
            if self._event is None:
                self._event = threading.Event()
                if self._finished:
                    self._event.set()
            return self._event

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
        return self._daemonic

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        if self._engine is not None or self._is_thread:
            raise RuntimeError("cannot set daemon status of active thread")
        self._daemonic = daemonic

    def start(self) -> None:
        """Begin to wait.

        Raises:
            RuntimeError: it was started before; no thread can be started (any more).
            ValueError, TypeError: interval is not a number.
        """
        if self._engine is not None or self._is_thread:
            raise RuntimeError("threads can only be started once")
        if getattr(self.run, "__func__", None) is not _RUN:
            threading.Thread.__init__(self, name=self.name, daemon=self._daemonic)
            self._is_thread = True
            super().start()
        else:
            _engine.start(self, _due_at(self.interval))

    def cancel(self) -> None:
        """Keep the callback from being called, if it has not been; a callback that runs goes on."""
        with _engine.lock:
            self._finished = True
            event = self._event
            # Behind a fork nothing is left of it.
            if self._engine is _engine and self._alive and self._engine.table.cancel(self._id):
                self._engine.end(self)
        if event is not None:
            event.set()

    def is_alive(self) -> bool:
        """Tell whether it was started and neither has ended nor was cancelled while it waited."""
        if self._is_thread:
            return super().is_alive()
        return self._alive and self._engine is _engine  # else a fork came between, and this is the child

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is not alive, at most so many seconds.

        Raises:
            RuntimeError: it was not started, or this is called from its callback.
        """
        if self._is_thread:
            return super().join(timeout)
        if self._engine is None:
            raise RuntimeError("cannot join thread before it is started")
        if getattr(threading.current_thread(), "timer", None) is self:
            raise RuntimeError("cannot join current thread")
        with _engine.lock:
            if not self.is_alive():
                return None
            over = self._over = self._over or threading.Event()
        over.wait(None if timeout is None else max(timeout, 0))
        return None

    def __repr__(self) -> str:
        if self._is_thread:
            return super().__repr__()
        state = "initial" if self._engine is None else "started" if self.is_alive() else "stopped"
        words = [state, *["daemon"] * self._daemonic, *[str(self._ident)] * (self._ident is not None)]
        return f"<{type(self).__name__}({self.name}, {' '.join(words)})>"

    def _call(self) -> None:
        """What `run` does once it is time; on a runner's thread."""
        self._ident, self._native_id = threading.get_ident(), threading.get_native_id()
        if self._finished or (self._event is not None and self._event.is_set()):
            return
        try:
            self.function(*self.args, **self.kwargs)
            self.cancel()
        except BaseException:
            _report(self)


_RUN = threading.Timer.run


def _due_at(interval: float | None) -> int:
    """Nanoseconds on the monotonic clock."""
    if interval is None:
        return _NEVER
    if type(interval) is float and 0 <= interval < _FAR:
        return time.monotonic_ns() + math.ceil(interval * 1e9)
    if not isinstance(interval, Real):
        raise TypeError(f"interval must be a number of seconds, got {interval!r}")
    if interval != interval:
        raise ValueError(f"interval must be a number of seconds, got {interval!r}")
    return time.monotonic_ns() + math.ceil(min(max(interval, 0), _FAR) * 1e9)


def _report(timer: Timer) -> None:
    """Hand the exception to `threading.excepthook`, and what that raises to `sys.excepthook`."""
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), timer)))
    except BaseException:
        sys.excepthook(*sys.exc_info())


class _Runner(threading.Thread):
    """Calls one timer after another."""

    def __init__(self, engine: _Engine, timer: Timer) -> None:
        super().__init__(name=timer.name, daemon=True)  # the engine sees to it that the process waits for timers
        self.timer: Timer | None = timer
        self.engine = engine
        self.given = threading.Lock()
        self.given.acquire()

    def run(self) -> None:
        while self.timer is not None:
            self.name = self.timer.name
            self.timer._call()
            if self.engine is not _engine:  # a fork: in the child there is no one to give more
                return
            self.engine.end(self.timer)
            self.timer = None  # idle, it keeps nothing alive
            self.engine.idle.append(self)
            if not self.given.acquire(timeout=_IDLE):
                try:
                    self.engine.idle.remove(self)
                except ValueError:  # somebody is about to give
                    self.given.acquire()


class _Engine:
    """The timers of this process that wait, and the threads that serve them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.earlier = threading.Condition(self.lock)
        self.table = Timetable()
        self.armed_at = _AWAKE  # until when the watcher sleeps
        self.is_watched = False
        self.idle: list[_Runner] = []
        self.holding = 0  # timers that are alive and no daemons: the process waits for them
        self.is_awaited = False  # by somebody
        self.released = threading.Condition(self.lock)  # notified when none is left
        self.is_exiting = False

    def start(self, timer: Timer, run_at: int) -> None:
        with self.lock:
            if not self.is_watched:
                threading.Thread(target=self.watch, name="nextdue-timers", daemon=True).start()
                self.is_watched = True
            if not timer._daemonic:
                if self.is_exiting and not self.holding:
                    # Those who wait for timers at exit have been here; a thread is waited for, or refused.
                    threading.Thread(target=self.wait_until_released, name="nextdue-timers-exit", daemon=False).start()
                self.holding += 1
            timer._engine, timer._alive = self, True
            if timer._finished:  # cancelled before it was started
                self.end(timer)
                return
            timer._id = self.table.add(run_at, timer)
            if run_at < self.armed_at:
                self.armed_at = _AWAKE
                self.earlier.notify()

    def end(self, timer: Timer) -> None:
        """Book that a timer is not alive any more."""
        with self.lock:
            timer._alive = False
            over = timer._over
            if not timer._daemonic:
                self.holding -= 1
                if self.is_awaited and not self.holding:
                    self.released.notify_all()
        if over is not None:
            over.set()

    def watch(self) -> None:
        while True:
            with self.lock:
                due = self.table.pop_due(time.monotonic_ns())
                if not due:
                    next_at = self.table.next_run_at()
                    self.armed_at = _NEVER if next_at is None else next_at
                    left = self.armed_at - time.monotonic_ns()
                    self.earlier.wait(None if next_at is None else min(max(left, 0) / 1e9, threading.TIMEOUT_MAX))
                    self.armed_at = _AWAKE
            while due:
                self.hand_over(due.pop())

    def hand_over(self, timer: Timer) -> None:
        try:
            runner = self.idle.pop()
        except IndexError:
            try:
                _Runner(self, timer).start()
            except RuntimeError:  # no more threads: late, it still runs
                timer._id = self.table.add(time.monotonic_ns() + _RETRY_NS, timer)
        else:
            runner.timer = timer
            runner.given.release()

    def wait_until_released(self) -> None:
        with self.lock:
            self.is_awaited = True
            while self.holding:
                self.released.wait()

    def at_exit(self) -> None:
        with self.lock:
            self.wait_until_released()
            self.is_exiting = True


_engine = _Engine()

# Where `threading` waits for its own non-daemon threads.
threading._register_atexit(lambda: _engine.at_exit())  # type: ignore[attr-defined]


def _after_fork() -> None:
    global _engine
    _engine = _Engine()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
