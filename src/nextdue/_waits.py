"""How long a thread may wait for a lock at once."""

from __future__ import annotations

import sys
import sysconfig
import threading


def go_by_the_wall_clock() -> bool:
    """Whether timed waits for a lock end late, or early, when the wall clock is set: on this build of Python.

    They need a call that takes the monotonic clock; one that was built for a glibc before 2.30, for musl or for macOS
    has none.
    """
    if sys.platform == "win32":
        return False
    by_semaphore = sys.thread_info.lock == "semaphore"
    return not sysconfig.get_config_var("HAVE_SEM_CLOCKWAIT" if by_semaphore else "HAVE_PTHREAD_CONDATTR_SETCLOCK")


# In seconds: what the platform can express; or so little that a step of the wall clock makes nobody late by more.
LONGEST_WAIT = 60.0 if go_by_the_wall_clock() else threading.TIMEOUT_MAX
