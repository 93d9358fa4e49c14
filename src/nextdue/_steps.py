"""Notice at once that the system's wall clock was set, or that the host has woken from suspend: on Linux.

A timer of the kernel on the wall clock can be made to end when that clock is set (`timerfd_create(2)`). A thread waits
for that: it does not poll, and costs nothing meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
from collections.abc import Callable

from ._libc import libc

CLOCK_REALTIME = 0
TFD_CLOEXEC = os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
TFD_TIMER_ABSTIME = 1
TFD_TIMER_CANCEL_ON_SET = 2
FAR = 2**33  # seconds since the epoch, in the year 2242: the timer never runs out


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


def step_timer() -> int:
    """Return a file descriptor that becomes readable each time the wall clock is set.

    Raises: OSError, or AttributeError on a system without it.
    """
    fd: int = libc.timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    spec = _Itimerspec(_Timespec(0, 0), _Timespec(FAR, 0))
    if libc.timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, ctypes.byref(spec), None) != 0:
        error = ctypes.get_errno()
        os.close(fd)
        raise OSError(error, "timerfd_settime failed")
    return fd


class Steps:
    """A thread that calls back each time the wall clock is set, from `start` on until `close`.

    Args:
        callback: called without arguments, on that thread; it must not raise.
        name: of the thread.
        timer: makes the file descriptor.

    Raises: OSError, AttributeError where the system cannot tell; RuntimeError if there is no thread to be had.
    """

    def __init__(self, callback: Callable[[], object], name: str, timer: Callable[[], int] = step_timer) -> None:
        self.callback = callback
        self.timer = timer()
        try:
            self.bell = os.eventfd(0, os.EFD_CLOEXEC)  # rings for the end
        except BaseException:
            os.close(self.timer)
            raise
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.release()
            raise

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.timer, select.POLLIN)
        poll.register(self.bell, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.bell in ready:
                return
            with contextlib.suppress(OSError):  # ECANCELED: that is how it tells
                os.read(self.timer, 8)
            self.callback()

    def close(self) -> None:
        """End the thread."""
        os.eventfd_write(self.bell, 1)
        self.thread.join()
        self.release()

    def release(self) -> None:
        os.close(self.timer)
        os.close(self.bell)
