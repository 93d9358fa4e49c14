"""The C library, loaded once: what `ctypes` makes for it is a ring, which only the collector would free."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
