"""The C library, loaded once: what `ctypes` makes for it is a ring, which only the collector would free.

Loaded here, and this module by no thread of ours: the child of a fork that comes while a thread imports, or loads a
library, would wait for it for ever.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
