"""nextdue: what is due next, and when? An in-process task scheduler whose timetable is compiled."""

from ._backend import BACKEND, Agenda, Job, Timetable
from ._heapq_timetable import HeapqTimetable
from .errors import DuplicateJobId, UnknownJobId
from .retry import DEFAULT, ExponentialBackoff, FixedBackoff, RetryPolicy
from .scheduler import Scheduler, Shutdown
from .status import Status

__version__ = "0.1.0"

__all__ = [
    "BACKEND",
    "DEFAULT",
    "Agenda",
    "DuplicateJobId",
    "ExponentialBackoff",
    "FixedBackoff",
    "HeapqTimetable",
    "Job",
    "RetryPolicy",
    "Scheduler",
    "Shutdown",
    "Status",
    "Timetable",
    "UnknownJobId",
    "__version__",
]
