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
        self._lock = threading.Lock()
        self._now = self._checked(start_ns, "start_ns")
        self._callbacks: list[Callable[[], Any]] = []

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
        with self._lock:
            self._callbacks.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return unsubscribe

    def _tell(self) -> None:
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    @staticmethod
    def _checked(ns: int, name: str) -> int:
        if isinstance(ns, bool) or not isinstance(ns, int):
            raise TypeError(f"{name} must be int nanoseconds, got {ns!r}")
        return ns

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now} ns>"
