"""A clock that moves by hand, for tests and simulations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ._units import duration_ns


class ManualClock:
    """A clock in int nanoseconds that stands still until it is told to move.

    An `Agenda` on it is driven with `run_due`; a `Scheduler` on it is woken by each move, and does not poll.

    Args:
        start_ns: int, where it begins.

    Thread-safety: may be moved and read from any thread. Callbacks run on the thread that moves it, without a lock.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock()
    1500000000
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._lock = threading.RLock()  # a signal handler may move it, too
        self._now = self._checked(start_ns, "start_ns")
        self._callbacks: dict[object, Callable[[], Any]] = {}  # by a key for each: callbacks are never compared

    def __call__(self) -> int:
        return self._now

    def advance(self, duration: float | timedelta) -> None:
        """Move on by seconds or a timedelta, 0 or more."""
        ns = duration_ns(duration, "duration")
        if ns < 0:
            raise ValueError(f"duration must be 0 or more, got {duration!r}")
        with self._lock:
            self._now += ns
        self._tell()

    def set_ns(self, ns: int) -> None:
        """Move to an instant, in int nanoseconds; back, too."""
        ns = self._checked(ns, "ns")
        with self._lock:
            self._now = ns
        self._tell()

    def subscribe(self, callback: Callable[[], Any]) -> Callable[[], None]:
        """Call `callback()` after each move; the returned function ends that."""
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        key = object()
        with self._lock:
            self._callbacks[key] = callback

        def unsubscribe() -> None:
            with self._lock:
                dropped = self._callbacks.pop(key, None)
            del dropped  # here: without the lock

        return unsubscribe

    def _tell(self) -> None:
        """Call each callback; an error of one is raised when all were told."""
        with self._lock:
            callbacks = list(self._callbacks.values())
        failed: BaseException | None = None
        for callback in callbacks:
            try:
                callback()
            except BaseException as error:
                if failed is None:
                    failed = error
        if failed is not None:
            try:
                raise failed
            finally:
                failed = None  # it refers to this frame by its traceback

    @staticmethod
    def _checked(ns: int, name: str) -> int:
        if isinstance(ns, bool) or not isinstance(ns, int):
            raise TypeError(f"{name} must be int nanoseconds, got {ns!r}")
        return ns

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now} ns>"
