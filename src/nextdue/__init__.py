"""nextdue: what is due next, and when? An in-process task scheduler whose timetable is compiled."""

from ._backend import BACKEND, Agenda, Job, Timetable
from ._heapq_timetable import HeapqTimetable
from ._reports import Event, JobInfo, Lags, Run, Stats, current_job
from .errors import DuplicateJobId, FailedResult, TooManyJobs, UnknownJobId
from .recurrence import Cron, Recurrence
from .retry import DEFAULT, ExponentialBackoff, FixedBackoff, RetryPolicy
from .scheduler import Scheduler, Shutdown
from .status import Status

__version__ = "0.1.0"

__all__ = [
    "BACKEND",
    "DEFAULT",
    "Agenda",
    "Cron",
    "DuplicateJobId",
    "Event",
    "ExponentialBackoff",
    "FailedResult",
    "FixedBackoff",
    "HeapqTimetable",
    "Job",
    "JobInfo",
    "Lags",
    "Recurrence",
    "RetryPolicy",
    "Run",
    "Scheduler",
    "Shutdown",
    "Stats",
    "Status",
    "Timetable",
    "TooManyJobs",
    "UnknownJobId",
    "__version__",
    "current_job",
]
