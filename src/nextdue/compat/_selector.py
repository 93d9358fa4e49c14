"""A selector that waits to the microsecond, where the system has `epoll` and `timerfd`: on Linux.

`epoll_wait` takes whole milliseconds, and the kernel lets a thread's waits be 50 microseconds late beside that. A timer
of the kernel is bound to neither; it is one more file descriptor that ends the wait.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import selectors
import time
from collections.abc import Callable
from typing import Any

from .._libc import libc
from .._steps import TFD_CLOEXEC, TFD_TIMER_ABSTIME, _Itimerspec, _Timespec


def kernel_timer() -> tuple[int, Callable[[int], object]]:
    """Return a timer's file descriptor, and a function that sets it to an instant of `time.monotonic_ns`.

    Raises: AttributeError on a system without it; OSError.
    """
    system: Any = os
    if hasattr(system, "timerfd_create"):  # since 3.13
        fd = system.timerfd_create(time.CLOCK_MONOTONIC, flags=TFD_CLOEXEC)
        settime_ns = system.timerfd_settime_ns
        return fd, lambda at: settime_ns(fd, flags=TFD_TIMER_ABSTIME, initial=at)
    fd = libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    settime = libc.timerfd_settime
    spec = _Itimerspec(_Timespec(0, 0), _Timespec(0, 0))
    value, address = spec.value, ctypes.byref(spec)

    def set_timer(at: int) -> None:
        value.seconds, value.nanoseconds = divmod(at, 1_000_000_000)
        if settime(fd, TFD_TIMER_ABSTIME, address, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    return fd, set_timer


# Where there is no epoll there is no such timer either, and the class is not used.
EpollSelector: Any = getattr(selectors, "EpollSelector", object)
NOT_IN = ~getattr(select, "EPOLLIN", 0)
NOT_OUT = ~getattr(select, "EPOLLOUT", 0)


class PreciseSelector(EpollSelector):  # type: ignore[misc]
    """`selectors.EpollSelector`, whose timeouts are exact. It may also return early, with nothing."""

    _selector: Any
    _fd_to_key: dict[int, selectors.SelectorKey]

    def __init__(self) -> None:
        self._timer, self._set_timer = kernel_timer()
        super().__init__()
        self._set_at = 0
        # Edge-triggered: it is told once that the timer has run out, and the timer need not be read.
        self._selector.register(self._timer, select.EPOLLIN | select.EPOLLET)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # All of it, and not a call of the base class: that call would cost each pass of a loop some 5 %.
        wait: float
        if timeout is None:
            wait = -1
        elif timeout <= 0:
            wait = 0
        else:
            now = time.monotonic_ns()
            at = now + math.ceil(timeout * 1e9)
            # A timer that runs out before `at` is left alone: it ends the wait early, once, and most are never needed,
            # since the deadlines of a busy loop move on.
            if at < self._set_at or self._set_at <= now:
                self._set_timer(at)
                self._set_at = at
            wait = timeout + 0.001
        keys = self._fd_to_key
        ready: list[tuple[selectors.SelectorKey, int]] = []
        try:
            found = self._selector.poll(wait, len(keys) + 1)
        except InterruptedError:
            return ready
        for fd, event in found:
            key = keys.get(fd)
            if key is not None:
                events = (event & NOT_IN and selectors.EVENT_WRITE) | (event & NOT_OUT and selectors.EVENT_READ)
                ready.append((key, events & key.events))
        return ready

    def close(self) -> None:
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1
        super().close()


def best_selector() -> selectors.BaseSelector:
    """Return a precise selector, or where there is none the best that there is."""
    try:
        return PreciseSelector()
    except AttributeError:
        return selectors.DefaultSelector()
