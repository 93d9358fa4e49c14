"""The pure stack, beside the compiled one."""

from ._heapq_timetable import HeapqTimetable as Timetable
from .agenda import Agenda, Job

__all__ = ["Agenda", "Job", "Timetable"]
