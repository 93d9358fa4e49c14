"""Choose the stack once: compiled, or pure. The two are never mixed.

The pure stack serves where the extensions were not built, which takes `NEXTDUE_PURE=1` at the build; the same variable
chooses it at run time.
"""

from __future__ import annotations

import importlib.util
import os

BACKEND: str
if os.environ.get("NEXTDUE_PURE", "") in ("", "0") and importlib.util.find_spec("nextdue._agenda_c") is not None:
    from ._agenda_c import Agenda, Job
    from ._timetable import Timetable

    BACKEND = "compiled"
else:
    from ._heapq_timetable import HeapqTimetable as Timetable  # type: ignore[assignment]  # the same, by its interface
    from .agenda import Agenda, Job

    BACKEND = "pure"

__all__ = ["BACKEND", "Agenda", "Job", "Timetable"]
