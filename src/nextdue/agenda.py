# cython: language_level=3, freethreading_compatible=True, annotation_typing=False, cdivision=True, wraparound=False
# cython: auto_pickle=False
"""The agenda: jobs, their states, and every rule about what runs next. No thread is started here and nothing sleeps.

This file is the one source of the rules. It runs as it stands over `HeapqTimetable` (the pure stack), and compiled as
`_agenda_c` over `Timetable`, with the C types of `_agenda_c.pxd` (the compiled stack). It says `tt` for the timetable
and `line` for the ready line; both stacks have the same underscored methods there, which do not lock.

One lock, the timetable's, guards everything: timetable, ready line, jobs and agenda. An operation takes it once. In
`with self._tt.lock` stands only what may stand there (the compiled lock is not re-entrant, and a waiting thread must
never wait for user code): arithmetic, moves of references, dicts with exact `str` keys. Nothing is created that the
collector tracks, and no reference is dropped that could be the last: what a round of the lock leaves to do (drop, wake,
notify, tidy) is noted in a `Round` and done after it. "Caller holds the lock." marks what is called inside.

On the pure stack that lock is re-entrant, since a signal handler or a finalizer may come in between two steps here and
make a call of its own; `_heapq_timetable.py` says where. So what cannot be taken back is done in one run of plain
stores, right behind a look at what it goes by: a change of `_state` with the counts that belong to it, a job's leaving
of its place. What only the pure stack has to look at once more stands under `not cython.compiled`.

Where a job's one live entry is:

    ENTERED and the slot is waiting     in the timetable
    ENTERED and the slot is held        in the ready line
    PARKED                              in the line of its key, all of whose places are taken
    ON_WALL                             in the other timetable, of the wall clock
    HELD_BACK                           it came due in its pause, or waits for other jobs, until that ends
    NOWHERE                             it runs, or has ended

A slot is the job's for life: held while it runs, kept when it has ended until the history forgets it. So an automatic
id needs no dict, and an id that is stale is refused by the timetable.

Two clocks. Delays and periods know only the agenda's own, which is monotonic. A run that is due at a date waits in a
timetable of its own, in nanoseconds of the wall clock, and is translated when the wall clock has reached it, never
before: so nothing has to be moved when that clock is set. A slot of the calendar is computed anew when it is set back.

What a plain job costs, CPython 3.13: instructions by callgrind; CPU time where memory decides, in turn, machine busy.

    numbers checked in C: `plain_int`                schedule 2,429 -> 1,581 instructions; of these 450 take 16
                                                     parameters in, and options that are not given cost no more
    and what an injected clock says                  4,098 -> 1,772
    no clock after a run that nobody asks the end of, events noted for listeners only, a task called as
    `context.run` does it                            run_due 4,904 -> 2,376; 474 of these make ready, 379 call the task
    fetched ahead: jobs to be run, by `_ready.pyx`, and to be forgotten, by `fetch_ahead`: what ended 10,000 jobs ago
    has left the cache                               run_due, 1 M in random order: 1,155-1,265 -> 601-637 ns
    the line of a key made for its second job        1 KB a key less

The timetable's part left out, `schedule` on the real clock and `run_due` take 4,851 + 1,622 instructions a plain job
before there were keys, limits, pauses and contexts, and 1,271 + 1,952 with them: the empty context and the fetching
ahead are most of what a run costs more.
"""

from __future__ import annotations

import _thread
import contextvars
import inspect
import logging
import math
import random
import time
import types
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import partial

from ._reports import Event, JobInfo, Lags, Run, Stats, here
from ._units import duration_ns, index_of, limit_ns, positive_ns
from ._waits import LONGEST_WAIT
from ._wall import instant_ns, is_calendar, next_slot
from .errors import DuplicateJobId, FailedResult, TooManyJobs, UnknownJobId
from .retry import DEFAULT
from .status import Status

try:
    import cython  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    from . import _cython_shim as cython  # type: ignore[no-redef, unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:  # annotations are for readers and mypy: C types are in `_agenda_c.pxd`
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta
    from typing import Any

    from .recurrence import Recurrence
    from .retry import RetryPolicy

    Seconds = float | timedelta

if not cython.compiled:
    bit_length = int.bit_length
    nearest = round

    def flags_of(function: Any) -> int:
        """The flags of a function's code."""
        return int(function.__code__.co_flags)

    def plain_int(value: Any) -> int:
        """An int within int64; of whatever else ODD, and it is to be looked at."""
        return value if type(value) is int and AWAKE <= value <= NEVER else ODD

    def fetch_ahead(line: Any, ended: list[Any], k: int) -> None:
        """Bring the jobs that will be forgotten soon into the cache; what has ended long ago has left it."""

    def seal(kind: type) -> None:
        """From now on nobody but this module makes one. Interpreted, one that is made elsewhere does no harm."""

    def is_in_hand(tt: Timetable, job: Job, place: int) -> bool:
        """Whether a job that was taken out of `place` is still as it was then: nobody came in and moved or ended it."""
        return tt._is_in_hand(job._id) and job._entered == place and job._state <= RUNNING

    def is_free(agenda: Agenda, extras: Extras) -> bool:
        """Whether nobody has come in and taken the id of a new job, or made another lane for its key."""
        names, lanes = agenda._names, agenda._lanes
        if extras.name in names and names[extras.name]._state <= RUNNING:
            return False
        return extras.key not in lanes or lanes[extras.key] is extras.lane

    def enter_in_steps(
        agenda: Agenda,
        job: Job,
        extras: Extras | None,
        run_at: int,
        priority: int,
        direct: bool,
        upstream: list[Any] | None,
        spares: list[Any] | None,
    ) -> int:
        """Enter a new job whose options are made: all of it, or nothing. Caller holds the lock.

        Its entry comes last, when all else is there: who comes in then may take the job and run it.
        """
        table, names = agenda._tt, agenda._names
        job._id = table._occupy(priority, job)
        if extras is not None and not is_free(agenda, extras):
            table._release(job._id)
            return NO_ROOM  # who came in has taken the name, or made a lane for the key: all is looked at again
        former = names[extras.name] if extras is not None and extras.name in names else None
        is_counted = False
        try:
            if extras is not None:
                if extras.name is not None:
                    names[extras.name] = job
                if extras.lane is not None:
                    agenda._lanes[extras.key] = extras.lane
                    extras.lane.jobs += 1
            is_counted = True
            if extras is not None and upstream is not None:
                job._entered = HELD_BACK
                agenda._held_back += 1
                extras.blockers = 1  # this here: who comes in may end the first before the second is looked at
                agenda._depend(job, extras, upstream, spares)
                extras.blockers -= 1
                if extras.culprit is None and extras.blockers == 0:
                    agenda._arm_next(job, extras)
            elif extras is not None and extras.dated:
                agenda._arm_next(job, extras)
            else:
                job._entered = ENTERED
                if not direct or not agenda._line._put(run_at, table._ticket(job._id), job._id):
                    table._rearm(job._id, run_at)
        except MemoryError:
            if job._state > RUNNING:
                return ADDED  # who came in has ended it
            if job._entered == HELD_BACK:
                agenda._held_back -= 1
            job._entered = NOWHERE
            if extras is not None and extras.lane is not None and is_counted:
                extras.lane.jobs -= 1
            table._disarm(job._id)
            if extras is not None:
                agenda._unregister(job, extras, former, upstream)
            table._release(job._id)
            return -1
        return ADDED

    def pop_pair(pairs: deque[Any]) -> Any:
        """Take a job and the instant of its end out of the history, in one step; None if who came in took the last."""
        try:
            job, _ = map(deque.popleft, (pairs, pairs))
        except IndexError:
            return None
        return job

    def call_in(context: Any, task: Any, args: Any, kwargs: Any) -> Any:
        """Call a task in a context."""
        return context.run(task, *(args or ()), **(kwargs or {}))

    from time import monotonic_ns

    from ._heapq_timetable import HeapqTimetable as Timetable
    from ._heapq_timetable import ReadyLine

__all__ = ["Agenda", "Job"]

logger = logging.getLogger("nextdue")

NEVER = 2**63 - 1  # an instant that does not come
AWAKE = -NEVER  # `_armed_at` of a watcher that does not sleep, or has been signalled: no job is earlier
ODD = AWAKE - 1  # what `plain_int` says of what is no int, or not within int64
SECOND_NS = 1_000_000_000
PROMOTED = 4096  # jobs that become ready in one round of the lock: a millisecond at most
NO_BOUND = 2**63

SCHEDULED, RUNNING, SUCCEEDED, FAILED, CANCELLED = range(5)
ONE_OFF, FIXED_RATE, FIXED_DELAY, RULE = range(4)
NOWHERE, ENTERED, PARKED, ON_WALL, HELD_BACK = range(5)  # where a job's live entry is
SKIP, BURST, SHIFT = range(3)  # what becomes of missed slots
ADDED, CLOSED, DUPLICATE, NO_ROOM, NO_LINE, FULL, OTHER_LIMIT, UNKNOWN = range(8)  # what came of adding a job

MAX_BURST = 1000  # missed slots that `on_missed="burst"` makes up for at most
MAX_ASKED = 1000  # slots that a rule is asked for one by one, and that are counted, before the rest is passed over
ON_MISSED = {"skip": SKIP, "burst": BURST, "shift": SHIFT}
ON_MISSED_OF_RULE = {"skip": SKIP, "burst": BURST}
OVERLAP = {"skip": False, "queue": True}
ON_UPSTREAM_FAILURE = {"cancel": False, "run": True}
STARTED, DONE, FAILURE, RETRYING, SKIPPED, DROPPED, TIMED_OUT = (1 << k for k in range(7))  # events, as bits
EVENTS = {
    "started": STARTED,
    "succeeded": DONE,
    "timed_out": TIMED_OUT,  # before what comes of it
    "failed": FAILURE,
    "retrying": RETRYING,
    "skipped": SKIPPED,
    "cancelled": DROPPED,
}
SEED_FACTOR = 6364136223846793005
SEED_STEP = 1442695040888963407
WALL_STEP = 100_000_000  # ns by which the wall clock has to move against the other to have been set
WALL_REPEAT = 60 * SECOND_NS  # a slot that was run is not run again where the wall clock is set back by less
AT = "int nanoseconds on the agenda's clock or an aware datetime"
LAGS = 488  # buckets of the lag histogram: exact below 16 ns, then eight for each power of two

STATUS = (Status.SCHEDULED, Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
ORPHANED = "this scheduler was made before a fork and its threads are in the parent; make a new one in the child"
ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
FUNCTION, METHOD, BUILTIN = types.FunctionType, types.MethodType, types.BuiltinFunctionType
WRAPPER = types.MethodWrapperType  # as `itertools.count().__next__`
# What every error has, whatever its class puts before it: an error that a task raised is a stranger's object.
TRACEBACK = BaseException.__dict__["__traceback__"]
CAUSE = BaseException.__dict__["__cause__"]
CONTEXT = BaseException.__dict__["__context__"]
IS_CONTEXT_HIDDEN = BaseException.__dict__["__suppress_context__"]


def later(instant: int, ns: int) -> int:
    """`instant + ns` for ns >= 0, saturating; a duration that has saturated does not end, whatever the clock says."""
    if ns == NEVER or instant > NEVER - ns:
        return NEVER
    return instant + ns


def carried(instant: int, origin: int, target: int) -> int:
    """`instant`, of a clock that shows `origin`, on one that shows `target` at the same time; saturating."""
    if instant >= origin:
        ns = NEVER if origin < 0 and instant > NEVER + origin else instant - origin
        return later(target, ns)
    ns = NEVER if instant < 0 and origin > NEVER + instant else origin - instant
    return AWAKE + 1 if target < AWAKE + 1 + ns else target - ns


def duration(value: Any, name: str) -> int:
    """A delay in nanoseconds; zero or less means now."""
    if type(value) is float:
        real = value
        if -1e9 < real < 1e9:
            return max(nearest(real * 1e9), 0)
    else:
        whole = plain_int(value)
        if -SECOND_NS < whole < SECOND_NS:
            return max(whole * SECOND_NS, 0)
    return max(duration_ns(value, name), 0)


def reading(now: Any, name: str) -> int:
    """What a clock has returned, checked."""
    instant = plain_int(now)
    if instant == ODD:
        whole = index_of(now)
        if whole is None:
            raise TypeError(f"{name} must return int nanoseconds, got {now!r}")
        instant = plain_int(whole)
    if not AWAKE < instant < NEVER:
        raise OverflowError(f"{name} must return int nanoseconds within int64, got {now!r}")
    return instant


def check_task(task: Any) -> int:
    """Refuse what cannot be called, and coroutine functions: calling one would run nothing."""
    kind = type(task)
    if kind is FUNCTION:
        if not flags_of(task) & ASYNC_FLAGS:
            return 0
    elif kind is BUILTIN or kind is WRAPPER or isinstance(task, type):
        return 0
    elif kind is METHOD and type(task.__func__) is FUNCTION:
        if not flags_of(task.__func__) & ASYNC_FLAGS:
            return 0
    elif not callable(task):
        raise TypeError(f"task must be callable, got {task!r}")
    elif not is_async(task):
        return 0
    raise TypeError(f"task must be a plain callable, got the coroutine function {task!r}")


def check_plain(called: Any, name: str) -> int:
    """Refuse a coroutine function where an answer is wanted: what it gives is no instant, no wait, and true."""
    if called is not None and is_async(called):
        raise TypeError(f"{name} must be a plain callable, got the coroutine function {called!r}")
    return 0


def is_async(task: Any) -> bool:
    """Whether a partial, a method or an object comes down to a coroutine or async generator function."""
    while isinstance(task, partial):
        task = task.func
    if type(task) is FUNCTION:
        return bool(flags_of(task) & ASYNC_FLAGS)
    if type(task) is BUILTIN or isinstance(task, type):
        return False
    if type(task) is not METHOD:
        if inspect.iscoroutinefunction(task):  # marked as one
            return True
        task = type(task).__call__  # Python calls the type's, not its own attribute
    return inspect.iscoroutinefunction(task) or inspect.isasyncgenfunction(task)


def signal(park: Any) -> int:
    """Release a parked thread. One that timed out meanwhile finds its lock released and looks again, so no harm."""
    try:  # noqa: SIM105 (suppress() would cost more than the release)
        park.release()
    except RuntimeError:
        pass  # released already: the wake-up is under way
    return 0


def notify(waiters: list[Any]) -> int:
    for waiter in waiters:
        signal(waiter)
    return 0


def complain(message: str, *values: object) -> int:
    """Log the error being handled. A log handler is user code, too: what it raises ends nothing."""
    with suppress(BaseException):
        logger.exception(message, *values)
    return 0


def deliver(future: Future[Any], value: Any) -> int:
    """Set a future's result; what its callbacks raise is not the worker's business."""
    try:
        future.set_result(value)
    except BaseException:
        complain("a future could not take its result")
        retell(future, future.set_result, value)
    return 0


def retell(future: Future[Any], tell: Callable[[Any], None], outcome: Any) -> int:
    """Tell a future its outcome once more: for want of memory it stopped half-way, perhaps, and somebody waits."""
    with suppress(BaseException):
        if not future.done():
            tell(outcome)
        with future._condition:
            future._condition.notify_all()
    return 0


def without_traceback(error: BaseException) -> None:
    """Let go of the frames, and so the locals, of an error that is kept, and of those it refers to."""
    seen = set()
    chain: list[BaseException | None] = [error]
    while chain:
        next_error = chain.pop()
        if next_error is None or id(next_error) in seen:
            continue
        seen.add(id(next_error))
        TRACEBACK.__set__(next_error, None)
        chain += [CAUSE.__get__(next_error), CONTEXT.__get__(next_error)]


def to_raise(error: BaseException) -> BaseException:
    """A copy of a kept error: raising the kept one would hang the frames of everyone who sees it on to the job."""
    try:
        fresh = copy(error)
        if type(fresh) is not type(error) or fresh is error:
            raise TypeError
    except Exception:
        try:  # its __init__ wants other arguments than it has noted
            fresh = type(error).__new__(type(error), *error.args)
            fresh.__dict__.update(error.__dict__)
        except Exception:
            return error
    for part in (CAUSE, CONTEXT, IS_CONTEXT_HIDDEN):
        part.__set__(fresh, part.__get__(error))
    return fresh


def blame(broken: BaseException, raised: BaseException) -> None:
    """Make the task's error the first cause of its policy's, so that both are kept; never a ring of causes."""
    seen = set()
    cause: BaseException | None = raised
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause = CAUSE.__get__(cause)
    last = broken
    while id(last) not in seen:  # seen already: the policy raised the task's error, or from it
        seen.add(id(last))
        cause = CAUSE.__get__(last)
        if cause is None:
            CAUSE.__set__(last, raised)
            return
        last = cause


def revoke(future: Future[Any]) -> int:
    """Cancel the future of a job that will not run, and release who waits for it."""
    for _ in range(2):  # as in `retell`
        try:
            if future.cancel():
                future.set_running_or_notify_cancel()
            return 0
        except BaseException:
            complain("a future could not be cancelled")
    return 0


def lag_bucket(lag: int) -> int:
    """The bucket of a lag in the histogram, log-linear: exact below 16 ns, within an eighth above."""
    if lag < 0 or lag > NEVER:
        lag = NEVER  # more than int64 holds: compiled it has wrapped
    if lag < 16:
        return lag
    shift = bit_length(lag) - 4
    return 8 * shift + (lag >> shift)


def lag_of(bucket: int) -> int:
    """The greatest lag of a bucket, in ns."""
    if bucket < 16:
        return bucket
    shift = bucket // 8 - 1
    return ((bucket - 8 * shift + 1) << shift) - 1


def choice(value: Any, choices: dict[str, Any], name: str) -> Any:
    """One of the words of an option."""
    if type(value) is str and value in choices:
        return choices[value]
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def count_of(value: Any, name: str) -> int:
    """An int of 1 or more."""
    count = index_of(value)
    if count is None:
        raise TypeError(f"{name} must be an int, got {value!r}")
    if count < 1:
        raise ValueError(f"{name} must be 1 or more, got {value!r}")
    return min(count, NEVER)


def acquire_until(lock: Any, deadline: int | None) -> bool:
    """Acquire until an instant of `time.monotonic_ns`, or without end; in slices: a platform has a longest wait."""
    while True:
        left = LONGEST_WAIT if deadline is None else max(deadline - time.monotonic_ns(), 0) / SECOND_NS
        if lock.acquire(True, min(left, LONGEST_WAIT)):
            return True
        if deadline is not None and time.monotonic_ns() >= deadline:
            return False


class Lane:
    """A key: how many of its jobs may run at once, how many do, and those that wait for a place."""

    __slots__ = ("jobs", "limit", "parked", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parked: Any = None  # a ready line: the same order. Made for the second who might have to wait: 1 KB
        self.running = 0
        self.jobs = 0  # that have the key and have not ended


class Extras:
    """What only some jobs have, made on use: a plain one-off that succeeds has none."""

    __slots__ = (
        "blockers",
        "bursts",
        "calendar",
        "context",
        "culprit",
        "culprit_state",
        "dated",
        "deadline",
        "dependents",
        "displaced",
        "extra",
        "future",
        "hung",
        "is_failure",
        "jitter",
        "key",
        "kind",
        "kwargs",
        "lane",
        "last",
        "last_error",
        "limit_id",
        "max_runs",
        "moved",
        "name",
        "nominal",
        "on_missed",
        "own_retry",
        "paused",
        "period",
        "planned",
        "planned_dated",
        "queue",
        "retry",
        "retrying",
        "run_anyway",
        "seed",
        "skipped",
        "slot",
        "spent",
        "steps",
        "stoppers",
        "streak",
        "timed_out",
        "timeout",
        "turns",
        "until",
        "untold",
        "waiters",
        "wall_at",
        "wall_id",
        "when",
    )

    def __init__(self) -> None:
        self.name: str | None = None  # the id that the user gave
        self.kwargs: dict[str, Any] | None = None
        self.retry: RetryPolicy | None = None  # the job's own policy, if own_retry
        self.own_retry = False
        self.is_failure: Callable[[Any], object] | None = None
        self.context: contextvars.Context | None = None
        self.last_error: BaseException | None = None
        self.future: Future[Any] | None = None  # of a submitted job
        self.waiters: list[Any] | None = None  # locks of threads in Job.wait
        self.stoppers: list[Any] | None = None  # locks of tasks in Run.wait
        self.paused = False
        # The present run, or the last.
        self.nominal = 0  # the instant it was due at, without jitter
        # Key.
        self.key: Any = None
        self.lane: Any = None  # the `Lane` of the key
        # Jobs that come before and after.
        self.blockers = 0  # how many have to end before this one
        self.run_anyway = False  # whatever comes of them
        self.culprit: Any = None  # id of the job that let this one down; not the job: a chain of them may be long
        self.culprit_state = CANCELLED  # how that one ended
        self.dependents: list[Any] | None = None  # [this job, when it has ended; the next list to be told; Job, ...]
        # Time limit.
        self.timeout = 0  # ns that a run may take; 0: no limit
        self.limit_id = -1  # its timer in the agenda's other timetable
        self.deadline = 0  # of the present run
        self.timed_out = 0  # the latest run that passed its limit
        self.hung = 0  # how many runs that did are going still
        # Repetition.
        self.kind = ONE_OFF
        self.period = 0  # ns: between slots (fixed rate), or from the end of a run (fixed delay)
        self.slot = 0  # the earliest slot that is neither run nor skipped; of a fixed delay the next run
        self.skipped = 0
        self.untold = 0  # of these, how many no listener has heard of
        self.turns = 0  # slots that were run
        self.max_runs = NEVER
        self.until = NEVER  # no slot is later
        self.on_missed = SKIP
        self.queue = False  # of the slots inside a run one is run after it
        self.streak = 0  # failed attempts at the present slot
        self.retrying = False  # the next run is another attempt at a slot already counted
        self.moved = False  # rescheduled while it ran
        self.extra = False  # the next run is one that `run_now` asked for: the slots are as before
        self.planned = 0  # when the slot comes that this one precedes, jitter included
        self.planned_dated = False  # that is at wall_at
        self.jitter = 0  # ns, the greatest
        self.seed = 0
        # Wall clock.
        self.dated = False  # the next run is due at wall_at
        self.wall_at = 0  # instant of the wall clock, with jitter
        self.wall_id = -1  # the job's timer in the timetable of the wall clock
        # Recurring by a rule: `slot`, `until` and `last` are instants of the rule's clock.
        self.when: Any = None
        self.calendar = False  # that clock is the wall clock
        self.spent = False  # `slot` was run, and the rule has not been asked for the next
        self.last = AWAKE  # the slot that was run last
        self.bursts = 0  # missed slots in a row that were run
        self.displaced = False  # `slot` is where `reschedule` put it, not the rule
        self.steps = 0  # how often the wall clock had been set back when `slot` was computed

    def advance(self, instant: int) -> int:
        """Skip the slots before `instant`; how many. O(1): slots are `first + k * period`, k is found by division."""
        if self.until < instant:
            instant = self.until + 1  # what is later is no slot
        if self.slot >= instant or self.turns >= self.max_runs:
            return 0
        # Unsigned when compiled: from an `at` long past to the clock may be more than int64 holds.
        behind = instant
        behind -= self.slot
        step = self.period
        count = (behind - 1) // step + 1
        rest = behind % step
        self.slot = instant if rest == 0 else later(instant, step - rest)
        self.skipped += count
        self.untold += count
        return count

    def catch_up(self, instant: int) -> int:
        """Skip the earliest slots before `instant` but for the last MAX_BURST of them; how many. O(1)."""
        if self.until < instant:
            instant = self.until + 1
        if self.slot >= instant or self.turns >= self.max_runs:
            return 0
        behind = instant
        behind -= self.slot
        step = self.period
        count = (behind - 1) // step + 1
        if count <= MAX_BURST:
            return 0
        count -= MAX_BURST
        self.slot += count * step
        self.skipped += count
        self.untold += count
        return count

    def shaken(self, instant: int) -> int:
        """`instant` plus jitter, by a generator of the job's own, since no Python may be called under the lock."""
        if self.jitter == 0:
            return instant
        self.seed = (self.seed * SEED_FACTOR + SEED_STEP) & NEVER  # the constants have names to have a C type, too
        chance = self.seed >> 32  # the better half of this generator, 31 bits
        # `jitter * chance >> 31` within 64 bits. A remainder would be uneven, and as short as the seed is.
        return later(instant, (self.jitter >> 31) * chance + ((self.jitter & 0x7FFFFFFF) * chance >> 31))

    def is_over(self) -> bool:
        """Whether a repeating job has had its last turn."""
        return self.turns >= self.max_runs or self.slot > self.until


class Job:
    """A scheduled piece of work: a read-only handle that holds its own state.

    Thread-safety: all of it may be used from any thread. Jobs are made by an agenda or a scheduler.
    """

    __slots__ = (
        "_agenda",
        "_args",
        "_attempts",
        "_entered",
        "_extras",
        "_going",
        "_id",
        "_outcome",
        "_priority",
        "_run_at",
        "_started_at",
        "_state",
        "_task",
    )

    _agenda: Agenda
    _args: tuple[Any, ...] | None
    _attempts: int
    _entered: int
    _extras: Any  # Extras, or None
    _going: int
    _id: int
    _outcome: Any
    _priority: int
    _run_at: int
    _started_at: int
    _state: int
    _task: Any

    def __init__(self) -> None:
        raise TypeError("a Job is made by a schedule method of an Agenda or a Scheduler")

    def __reduce__(self) -> Any:
        raise TypeError("a Job cannot be copied or pickled: it is a handle on what its agenda does")

    # What a driver of its own calls: `job.task(*job.args, **job.kwargs)`.

    @property
    def task(self) -> Any:
        """The callable; None when the job has ended."""
        with self._agenda._tt.lock:
            return self._task

    @property
    def args(self) -> tuple[Any, ...]:
        """The task's positional arguments; none when the job has ended."""
        with self._agenda._tt.lock:
            args = self._args
        return () if args is None else args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The task's keyword arguments, a copy; none when the job has ended."""
        with self._agenda._tt.lock:
            kwargs = None if self._extras is None else self._extras.kwargs
        return {} if kwargs is None else dict(kwargs)

    @property
    def id(self) -> str | int:
        """The given id, a str, or the automatic one, an int."""
        extras = self._extras
        return self._id if extras is None or extras.name is None else extras.name

    @property
    def status(self) -> Status:
        """The job's `Status`."""
        with self._agenda._tt.lock:
            state = self._state
        return STATUS[state]

    @property
    def run_at(self) -> int:
        """Instant of the next run, or of the last when none is to come: int, nanoseconds on the agenda's clock.

        Of a run that waits for the wall clock it is an estimate, by how the two clocks stood to each other last.
        """
        with self._agenda._tt.lock:
            return self._agenda._instant_of(self)

    @property
    def attempts(self) -> int:
        """How many runs were started."""
        with self._agenda._tt.lock:
            return self._attempts

    @property
    def skipped(self) -> int:
        """Slots of a fixed-rate job that were not run."""
        with self._agenda._tt.lock:
            return 0 if self._extras is None else self._extras.skipped

    @property
    def last_error(self) -> BaseException | None:
        """What the last failed run raised, without its traceback; None if none failed. A success does not clear it."""
        with self._agenda._tt.lock:
            return None if self._extras is None else self._extras.last_error

    @property
    def priority(self) -> int:
        """-2048..2047; the higher goes first."""
        return self._priority

    @property
    def reason(self) -> str | None:
        """Why the job was cancelled, where that was not by a call; else None."""
        with self._agenda._tt.lock:
            if self._extras is None or self._extras.culprit is None:
                return None
            culprit = self._extras.culprit
            state = self._extras.culprit_state
        return f"job {culprit!r}, which it comes after, ended {STATUS[state]}"

    def cancel(self) -> bool:
        """Cancel the job; False if it had ended. As `Agenda.cancel`."""
        return self._agenda.cancel(self)

    def pause(self) -> bool:
        """Start no run until `resume`; False if it had ended. As `Agenda.pause`."""
        return self._agenda.pause(self)

    def resume(self) -> bool:
        """End a pause; False if there was none. As `Agenda.resume`."""
        return self._agenda.resume(self)

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the job has ended and no run of it is going.

        Args:
            timeout: seconds of real time or a timedelta; None or infinity: no limit.

        Returns: True if it has ended.
        """
        limit = limit_ns(timeout, "timeout")
        deadline = None if limit is None else time.monotonic_ns() + limit
        waiter = _thread.allocate_lock()
        waiter.acquire()
        spare = Extras()
        waiters: list[Any] = []
        with self._agenda._tt.lock:
            if self._state > RUNNING and self._going == 0:
                return True
            orphaned = self._agenda._orphaned
            if self._extras is None:
                self._extras = spare
            if self._extras.waiters is None:
                self._extras.waiters = waiters
            self._extras.waiters.append(waiter)
        if orphaned:
            raise RuntimeError(ORPHANED)
        try:
            if acquire_until(waiter, deadline):
                return True
        finally:  # an interrupt, too, takes itself off
            with self._agenda._tt.lock:
                ended = self._state > RUNNING and self._going == 0
                if self._extras.waiters is not None and waiter in self._extras.waiters:
                    self._extras.waiters.remove(waiter)
        return ended

    def result(self, timeout: Seconds | None = None) -> Any:
        """Wait for a one-off and return what its task returned.

        Raises: what the task raised (a copy, with the same cause and context); CancelledError; TimeoutError.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"job {self.id!r} has not ended within {timeout!r} seconds")
        with self._agenda._tt.lock:
            state = self._state
            value = self._outcome
            error = None if self._extras is None else self._extras.last_error
        if state == SUCCEEDED:
            return value
        if state == CANCELLED:
            raise CancelledError(f"job {self.id!r} was cancelled")
        assert error is not None
        raise to_raise(error)

    def _is_stopped(self, attempt: int) -> bool:
        now = self._agenda._now_or_last()
        with self._agenda._tt.lock:
            extras = self._extras
            if self._state == CANCELLED or attempt != self._attempts:
                return True
            if extras is None:
                return False
            return bool(attempt <= extras.timed_out or (extras.timeout > 0 and extras.deadline <= now))

    def _wait_stopped(self, attempt: int, timeout: Any) -> bool:
        limit = limit_ns(timeout, "timeout")
        deadline = None if limit is None else time.monotonic_ns() + limit
        waiter = _thread.allocate_lock()
        waiter.acquire()
        spare = Extras()
        stoppers: list[Any] = []
        ends_at = None
        if self._is_stopped(attempt):
            return True
        with self._agenda._tt.lock:
            if self._extras is None:
                self._extras = spare
            if self._state == CANCELLED or attempt <= self._extras.timed_out:
                return True
            if self._extras.stoppers is None:
                self._extras.stoppers = stoppers
            self._extras.stoppers.append(waiter)
            if self._agenda._monotonic and self._extras.timeout > 0 and attempt == self._attempts:
                ends_at = self._extras.deadline  # nobody may look at it: run_due is busy with this run
        if ends_at is not None:
            deadline = ends_at if deadline is None else min(deadline, ends_at)
        try:
            acquire_until(waiter, deadline)
        finally:
            with self._agenda._tt.lock:
                if self._extras.stoppers is not None and waiter in self._extras.stoppers:
                    self._extras.stoppers.remove(waiter)
        return self._is_stopped(attempt)

    def __repr__(self) -> str:
        return f"<Job {self.id!r}: {self.status}, run_at={self.run_at}, attempts={self.attempts}>"


seal(Job)


class Round:
    """What one round of the lock leaves to do after it. Filled under the lock, where all fields are None before.

    A loop that runs tasks keeps one round for all of them; so it also tells which run is going on its thread.
    """

    __slots__ = (
        "args",
        "asked",
        "broken",
        "bursts",
        "condition",
        "context",
        "crowded",
        "dependents",
        "drained",
        "error",
        "event",
        "forgotten",
        "future",
        "idle_context",
        "job",
        "kwargs",
        "late",
        "missed",
        "nominal",
        "outer",
        "overdue",
        "retry",
        "rule_is_over",
        "run",
        "slot",
        "steps",
        "stoppers",
        "substitute",
        "task",
        "told",
        "told_error",
        "told_run",
        "waiters",
        "watcher",
        "when",
        "worker",
    )

    def __init__(self) -> None:
        self.task: Any = None  # of the job that has ended, like the next six: to be dropped
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] | None = None
        self.retry: RetryPolicy | None = None
        self.condition: Any = None
        self.context: contextvars.Context | None = None
        self.when: Any = None
        self.forgotten: Job | None = None  # the job that the history has dropped for it
        self.error: BaseException | None = None  # a last_error that has been replaced
        self.dependents: list[Any] | None = None  # of a job that has ended: see `Extras`
        self.waiters: list[Any] | None = None  # locks of threads that wait for it
        self.stoppers: list[Any] | None = None  # locks of tasks that wait to be stopped
        self.future: Future[Any] | None = None  # to be cancelled: its job will not run
        self.drained: list[Any] | None = None  # locks of threads that wait for a shutdown, or for quiet
        self.worker: Any = None  # lock of an idle worker to be woken
        self.watcher: Any = None  # the watcher's lock, if it sleeps too long
        self.crowded = False
        self.event = 0  # what listeners are to hear, of which job, with which error
        self.told: Any = None  # a Job
        self.told_run = 0
        self.told_error: BaseException | None = None
        self.job: Job | None = None  # which the worker that keeps this round runs: from its take to its booking
        self.run = 0
        self.nominal = 0
        self.outer: Any = None  # the Round, of either stack, of the run on this thread inside which this one's are
        self.late = False  # that run had passed its time limit, and a substitute works in place of this thread
        self.overdue = False  # a run was booked as past its limit
        self.substitute = False  # and the caller works in place of its thread, which will leave when it ends
        self.idle_context: contextvars.Context | None = None  # an empty one, for the next run
        # What a rule has answered, before the booking of a run that goes by it.
        self.asked = False
        self.slot = 0
        self.missed = 0  # slots before that one that are skipped
        self.bursts = 0
        self.rule_is_over = False
        self.broken: BaseException | None = None  # what the rule raised; then the error that gives way to it
        self.steps = 0

    def inside(self, outer: Any) -> Round:
        """Note in which run of this thread the runs of this round are."""
        self.outer = outer
        return self

    def runs_of(self, agenda: Agenda) -> int:
        """How many runs of an agenda's jobs this thread is in."""
        count = int(self.job is not None and self.job._agenda is agenda)
        return count if self.outer is None else count + int(self.outer.runs_of(agenda))

    def forget(self) -> None:
        """The run goes on elsewhere."""
        self.job = None

    def current(self) -> Run | None:
        """The `Run` that is going here."""
        job = self.job
        if job is None:
            return None
        extras = job._extras
        deadline = None if extras is None or extras.timeout == 0 else extras.deadline
        return Run(job, self.run, self.nominal, deadline)

    def finish(self, agenda: Agenda) -> int:
        """Do it. Wake first: the others can work while the rest is done."""
        if self.worker is not None:
            signal(self.worker)
            self.worker = None
        if self.watcher is not None:
            signal(self.watcher)
            self.watcher = None
        if self.task is not None:
            self.task = None
            self.args = None
            self.kwargs = None
            self.retry = None
            self.condition = None
            self.context = None
            self.when = None
            self.forgotten = None
        if self.error is not None:
            self.error = None
        if self.broken is not None:
            self.broken = None
        if self.future is not None:
            revoke(self.future)
            self.future = None
        if self.told is not None:
            if self.event & agenda._listening:
                agenda._tell(self.event, self.told, self.told_run, self.told_error, 0)
            self.told = None
        if self.told_error is not None:
            self.told_error = None
        if self.dependents is not None:
            self.pass_on(agenda)
        if self.waiters is not None:
            notify(self.waiters)
            self.waiters = None
        if self.stoppers is not None:
            notify(self.stoppers)
            self.stoppers = None
        if self.drained is not None:
            notify(self.drained)
            self.drained = None
        if agenda._aging is not None:
            agenda._forget_old()
        if self.crowded:
            agenda._tidy()
            self.crowded = False
        return 0

    def pass_on(self, agenda: Agenda) -> int:
        """Tell the jobs that come after the one that has ended, before those who wait for it."""
        dependents = self.dependents
        waiters = self.waiters
        stoppers = self.stoppers
        drained = self.drained
        self.dependents = self.waiters = self.stoppers = self.drained = None
        try:
            agenda._tell_dependents(dependents, self)
        finally:
            self.waiters = waiters
            self.stoppers = stoppers
            self.drained = drained
        return 0


class Agenda:
    """Keep jobs, and decide what runs next, without a thread: a driver asks `run_due`, or `take_due` and `finished`.

    Args:
        clock: a callable that returns int nanoseconds and is monotonic. Nothing else tells the time here. If it goes
            back, jobs wait until it has come again to their run_at; one that raises, or returns no int, raises at the
            call.
        retry: policy for failed one-offs that have none of their own; None: no retry.
        history: how many ended jobs are remembered by their id.
        history_age: for how long at most, seconds or a timedelta; None or infinity: no limit. Looked at when a job
            ends, and when an id is asked for.
        max_waiting: how many jobs may wait, for their time or for a worker; None or infinity: no limit.
        wall_clock: a callable that returns int nanoseconds since the epoch; it may be set back and forth. Read only
            while jobs follow it.

    Thread-safety: all of it may be called from any thread, and from a task.

    >>> from nextdue.testing import ManualClock
    >>> clock = ManualClock()
    >>> agenda = Agenda(clock)
    >>> job = agenda.schedule(print, delay=5, args=("five seconds later",))
    >>> clock.advance(5)
    >>> agenda.run_due()
    five seconds later
    1
    """

    def __cinit__(self, *args: Any, **kwargs: Any) -> None:
        # Compiled, what every call goes to without a look is there from the first moment, also where a class that is
        # derived from this one leaves out `__init__`: then the calls find no clock, and that is all.
        if cython.compiled or not hasattr(self, "_tt"):
            self._tt = Timetable()
            self._line = ReadyLine(self._tt)
            self._made = False

    def __reduce__(self) -> Any:
        raise TypeError("an Agenda cannot be copied or pickled")

    def __init__(
        self,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        retry: RetryPolicy | None = None,
        history: int = 10_000,
        history_age: Seconds | None = None,
        max_waiting: int | None = None,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock must be callable, got {clock!r}")
        if not callable(wall_clock):
            raise TypeError(f"wall_clock must be callable, got {wall_clock!r}")
        if retry is not None and not callable(retry):
            raise TypeError(f"retry must be callable or None, got {retry!r}")
        check_plain(clock, "clock")
        check_plain(wall_clock, "wall_clock")
        check_plain(retry, "retry")
        kept = index_of(history)
        if kept is None:
            raise TypeError(f"history must be an int, got {history!r}")
        if kept < 0:
            raise ValueError(f"history must be 0 or more, got {history!r}")
        age = limit_ns(history_age, "history_age")
        if age is not None and age < 0:
            raise ValueError(f"history_age must be 0 or more, got {history_age!r}")
        unlimited = max_waiting is None or (isinstance(max_waiting, float) and max_waiting == math.inf)
        bound = NEVER if unlimited else count_of(max_waiting, "max_waiting")
        if not cython.compiled:
            self.__cinit__()
        with self._tt.lock:
            made = self._made
            self._made = True
        if made:
            raise TypeError("an Agenda is made once, its __init__ cannot be called again")
        self._max_waiting = bound
        self._limits: Any = None  # a Timetable: ends of time limits; the lock of _tt guards it, as everything
        self._wall: Any = None  # a Timetable: runs due at a date; made by the first, under the one lock too
        self._wall_clock = wall_clock
        self._wall_jobs = 0  # that have a timer there
        self._offset = 0  # wall clock minus clock, when they were last looked at
        self._steps = 0  # how often the wall clock was seen set back
        self._restless = False  # the watcher has to look at the wall clock before it sleeps on
        self._unsettled = False  # a slot may have been computed before the wall clock was set back
        self._doubtful: list[Job] = []  # jobs whose rule is to be asked anew for that, the first at the end
        self._doubtful_from = 0  # what that clock showed then
        self._asking = 0  # how many of these rules are being asked
        self._doubt_is_new = False  # the watcher has not yet sent somebody to ask
        self._clock = clock
        self._monotonic = clock is time.monotonic_ns
        self._last_now = 0
        self._retry = retry
        self._names: dict[str, Job] = {}  # given id -> its newest job
        self._ended: list[Job] = []  # a ring of ended jobs, the oldest at _oldest
        self._history = min(kept, 2**31)
        self._oldest = 0
        self._history_age = NEVER if age is None else age
        self._aging: Any = None if age is None else deque()  # in place of the ring: job, instant of its end, job, ...
        self._lanes: dict[str | int, Lane] = {}  # by key, while jobs have it
        self._parked = 0  # jobs that wait for their key
        self._held_back = 0  # jobs that came due in their pause, or wait for others
        self._telling = 0  # ended jobs whose dependents are being told: some may be due
        self._substitutes = 0  # threads that work in place of one whose run has passed its limit
        self._paused = False
        self._runs = 0  # going now
        self._excused = 0  # of these, how many wait themselves until the others are over
        self._kept = 0  # and how many places for runs these keep
        self._places = 0  # how many runs a scheduler lets go at once
        self._closed = False
        self._unstarted = 0  # cancelled by the end
        self._expired: list[Any] = []  # whose run has passed its limit, between `_watch` and `_expire_one`
        # For `stats` and `on`.
        self._skipped = 0
        self._started = 0
        self._succeeded = 0
        self._failed = 0
        self._cancelled = 0
        self._retried = 0
        self._timed_out = 0
        if not cython.compiled:
            self._lags = [0] * LAGS
        self._listeners: dict[int, list[list[Any]]] = {}  # by the event's bit
        self._listening = 0  # bits of the events that have a listener
        # The waker: who sleeps, and until when. A scheduler fills it in; without one nobody is ever signalled.
        self._workers = False
        self._watcher: Any = None
        self._armed_at = AWAKE
        self._told = False  # the clock tells when it is moved: no timed wait for it
        self._wall_told = False
        self._wall_bound = 5 * SECOND_NS  # longest sleep while jobs follow a wall clock that does not tell
        self._idle: list[Any] = []
        self._idle_count = 0
        self._waking = False
        self._due_until = AWAKE  # the latest "now" for which a job was added
        self._poked = False  # the clock was moved since the watcher last looked
        self._drained: list[Any] | None = None
        self._orphaned = False  # this is the child of a fork: the scheduler's threads stayed in the parent

    # ------------------------------------------------------------ adding

    def schedule(
        self,
        task: Callable[..., Any],
        delay: Seconds = 0,
        *,
        at: int | datetime | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        retry: RetryPolicy | None = DEFAULT,
        key: str | int | None = None,
        key_limit: int = 1,
        after: Iterable[Job | str | int] | None = None,
        on_upstream_failure: str = "cancel",
        timeout: Seconds | None = None,
        is_failure: Callable[[Any], object] | None = None,
        context: contextvars.Context | None = None,
        jitter: Seconds = 0,
    ) -> Job:
        """Run a task once.

        Args:
            task: a callable; not a coroutine function.
            delay: seconds or a timedelta from now; zero or less: now.
            at: in place of a delay: int, nanoseconds on this clock; or an aware datetime: the job follows the wall
                clock then, and runs as soon as that has reached it, however it is set meanwhile.
            args, kwargs: the task's own arguments, a tuple or list and a mapping with str keys.
            id: a str that no job has that has not ended; None: an automatic int.
            priority: -2048..2047; the higher goes first among equals and among ready jobs.
            retry: a policy; None: no retry; by default the agenda's.
            key, key_limit: a str or int; of the jobs with one key at most `key_limit` run at the same time.
            after: jobs, or their ids, that have to succeed first.
            on_upstream_failure: "cancel": if one of those does not, this job is cancelled; "run": it runs all the same.
            timeout: seconds or a timedelta that a run may take; None or infinity: no limit.
            is_failure: a callable; a result for which it is true counts as a failure.
            context: a `contextvars.Context`; each run is in a copy of it. None: in an empty one.
            jitter: seconds or a timedelta; by chance up to so much is added.

        Returns: the `Job`.
        Raises: TypeError, ValueError naming the parameter and the value; DuplicateJobId; UnknownJobId; TooManyJobs.
            Then nothing was added.
        Complexity: O(log n) at worst, O(1) on average.
        """
        now = self._now()
        wall_at = -1
        dated = at is not None and type(at) is not int and isinstance(at, datetime)
        if dated:
            run_at = now
            wall_at = self._date(at, delay, now)
        else:
            run_at = self._start(now, delay, at, "delay")
        extras = self._extras_for(task, args, kwargs, id, retry)
        if (
            key is None
            and after is None
            and timeout is None
            and is_failure is None
            and context is None
            and type(key_limit) is int
            and key_limit == 1
            and type(on_upstream_failure) is str
            and on_upstream_failure == "cancel"
            and type(jitter) is int
            and jitter == 0
            and not dated
        ):
            return self._add(task, run_at, args, extras, self._rank(priority), now, None)
        extras = self._with_options(
            extras, key, key_limit, after, on_upstream_failure, timeout, is_failure, context, jitter
        )
        if dated:
            extras.dated = True
            extras.wall_at = extras.shaken(wall_at)
        return self._add_with(task, run_at, args, extras, self._rank(priority), now, after)

    def schedule_at_fixed_rate(
        self,
        task: Callable[..., Any],
        initial_delay: Seconds,
        period: Seconds,
        *,
        at: int | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        retry: RetryPolicy | None = DEFAULT,
        key: str | int | None = None,
        key_limit: int = 1,
        after: Iterable[Job | str | int] | None = None,
        on_upstream_failure: str = "cancel",
        timeout: Seconds | None = None,
        is_failure: Callable[[Any], object] | None = None,
        context: contextvars.Context | None = None,
        jitter: Seconds = 0,
        until: int | None = None,
        max_runs: int | None = None,
        on_missed: str = "skip",
        overlap: str = "skip",
    ) -> Job:
        """Run a task at the slots `first + k * period`.

        A slot strictly inside a run is skipped and counted, one equal to its end is run. After a pause the earliest
        missed slot is run, late, and the others are skipped; then it is back on its slots. A failed run changes nothing
        of this; with a policy of its own (`retry=`) a failed run is tried again, and slots meanwhile are skipped.

        Args:
            initial_delay: until the first slot, seconds or a timedelta; or 0, and `at=`, its instant.
            period: seconds or a timedelta, more than 0 ns.
            until: int, nanoseconds on this clock: no slot is later.
            max_runs: after so many slots the job has ended: SUCCEEDED, or FAILED if its last run failed.
            on_missed: "skip": as above; "burst": each missed slot is run: the earliest, and the last 1,000 at most;
                "shift": where slots were missed they count anew from the late run.
            overlap: "skip": as above; "queue": of the slots inside a run one is run right after it.
            jitter: by chance up to so much is added to each slot, at most the period.
            others: as `schedule`.
        """
        now = self._now()
        run_at = self._start(now, initial_delay, at, "initial_delay")
        period_ns = positive_ns(period, "period")
        extras = self._with_options(
            self._extras_for(task, args, kwargs, id, retry),
            key,
            key_limit,
            after,
            on_upstream_failure,
            timeout,
            is_failure,
            context,
            jitter,
        )
        if extras.jitter > period_ns:
            raise ValueError(f"jitter must be at most the period, got {jitter!r}")
        extras.on_missed = choice(on_missed, ON_MISSED, "on_missed")
        extras.queue = choice(overlap, OVERLAP, "overlap")
        self._repeating(extras, FIXED_RATE, period_ns, run_at, until, max_runs)
        return self._add_with(task, run_at, args, extras, self._rank(priority), now, after)

    def schedule_with_fixed_delay(
        self,
        task: Callable[..., Any],
        initial_delay: Seconds,
        delay: Seconds,
        *,
        at: int | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        retry: RetryPolicy | None = DEFAULT,
        key: str | int | None = None,
        key_limit: int = 1,
        after: Iterable[Job | str | int] | None = None,
        on_upstream_failure: str = "cancel",
        timeout: Seconds | None = None,
        is_failure: Callable[[Any], object] | None = None,
        context: contextvars.Context | None = None,
        jitter: Seconds = 0,
        until: int | None = None,
        max_runs: int | None = None,
    ) -> Job:
        """Run a task again and again, `delay` from the end of a run to the next.

        Args:
            initial_delay: until the first run, seconds or a timedelta; or 0, and `at=`, its instant.
            delay: seconds or a timedelta, more than 0 ns.
            until, max_runs: as `schedule_at_fixed_rate`.
            others: as `schedule`.
        """
        now = self._now()
        run_at = self._start(now, initial_delay, at, "initial_delay")
        delay_ns = positive_ns(delay, "delay")
        extras = self._with_options(
            self._extras_for(task, args, kwargs, id, retry),
            key,
            key_limit,
            after,
            on_upstream_failure,
            timeout,
            is_failure,
            context,
            jitter,
        )
        self._repeating(extras, FIXED_DELAY, delay_ns, run_at, until, max_runs)
        return self._add_with(task, run_at, args, extras, self._rank(priority), now, after)

    def schedule_recurring(
        self,
        task: Callable[..., Any],
        when: Recurrence | Callable[[int], int | None],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        retry: RetryPolicy | None = DEFAULT,
        key: str | int | None = None,
        key_limit: int = 1,
        after: Iterable[Job | str | int] | None = None,
        on_upstream_failure: str = "cancel",
        timeout: Seconds | None = None,
        is_failure: Callable[[Any], object] | None = None,
        context: contextvars.Context | None = None,
        jitter: Seconds = 0,
        until: int | datetime | None = None,
        max_runs: int | None = None,
        on_missed: str = "skip",
        overlap: str = "skip",
    ) -> Job:
        """Run a task at the slots that a rule gives, each at most once.

        The rule is asked for one slot after the other, each time a run ends, without a lock. A slot strictly inside a
        run is skipped, one equal to its end is run. After a pause, or where the wall clock was set forward, the
        earliest missed slot is run, late, and the others are skipped. Where the wall clock was set back, the next slot
        is computed anew from what it shows. Of skipped slots up to 1,000 are counted at a time.

        Args:
            when: an object with `next_after(dt)`, as `Cron` has it: aware datetimes, on the wall clock; or a callable
                on this clock: int nanoseconds to int nanoseconds. It is given a slot, first the present, and answers
                with a later one, or with None: there is none, and the job has ended, as by `max_runs`. If it raises, or
                answers with no later instant, the job ends FAILED.
            until: no slot is later; an aware datetime or int nanoseconds, as the rule has it.
            max_runs: as `schedule_at_fixed_rate`.
            on_missed: "skip": as above; "burst": each missed slot is run, late, at most 1,000 in a row.
            overlap: "skip": as above; "queue": of the slots inside a run one is run right after it.
            jitter: by chance up to so much is added to each slot.
            others: as `schedule`.

        Raises: as `schedule`; what the rule raises; ValueError if it has no slot to come.
        """
        now = self._now()
        calendar = is_calendar(when)
        if not calendar:
            check_plain(when, "when")
        extras = self._with_options(
            self._extras_for(task, args, kwargs, id, retry),
            key,
            key_limit,
            after,
            on_upstream_failure,
            timeout,
            is_failure,
            context,
            jitter,
        )
        extras.own_retry = True
        extras.kind = RULE
        extras.when = when
        extras.calendar = calendar
        extras.on_missed = choice(on_missed, ON_MISSED_OF_RULE, "on_missed")
        extras.queue = choice(overlap, OVERLAP, "overlap")
        if max_runs is not None:
            extras.max_runs = count_of(max_runs, "max_runs")
        if until is not None:
            if calendar:
                extras.until = instant_ns(until, "until", "an aware datetime or None")
            else:
                extras.until = self._limit_at(until)
        rank = self._rank(priority)
        start = now
        if calendar:
            self._make_wall(now)
            with self._tt.lock:
                extras.steps = self._steps
            start = self._wall_now()
        slot = next_slot(when, calendar, start)
        if slot is None:
            raise ValueError(f"when must have a slot to come, got {when!r}")
        if extras.until < slot:
            raise ValueError(f"until must not be before the first run, got {until!r}")
        extras.slot = slot
        run_at = slot
        if calendar:
            extras.dated = True
            extras.wall_at = extras.shaken(slot)
        return self._add_with(task, run_at, args, extras, rank, now, after)

    def _submit(
        self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Job:
        """Add a one-off, due now, whose outcome goes to `future`; it is forgotten when it ends."""
        now = self._now()
        extras = self._extras_for(fn, args, kwargs, None, None)
        if extras is None:
            extras = Extras()
        extras.future = future
        return self._add(fn, now, args, extras, 0, now, None)

    def _now(self) -> int:
        if self._monotonic:
            return monotonic_ns()
        now = self._last_now = reading(self._clock(), "clock")
        return now  # not the field: another thread may have stored its own reading there, an older one

    def _now_or_last(self) -> int:
        """The clock where nobody could take its error: that is logged, and the last good reading stands in."""
        try:
            return self._now()
        except BaseException:
            complain("the clock failed; its last reading stands in")
            return self._last_now

    def _wall_now(self) -> int:
        return reading(self._wall_clock(), "wall_clock")

    def _wall_now_or_estimate(self, now: int) -> int:
        """The wall clock where nobody could take its error: then it is taken to have gone on with the other."""
        try:
            return self._wall_now()
        except BaseException:
            complain("the wall clock failed; it is taken to have gone on")
            return carried(now, 0, self._offset)

    def _start(self, now: int, delay: Any, at: Any, name: str) -> int:
        if at is None:
            return later(now, duration(delay, name))
        instant = plain_int(at)
        if instant == ODD:
            whole = index_of(at)
            if whole is None:
                rule = AT if name == "delay" else "int nanoseconds on the agenda's clock"  # a first slot is no date
                raise TypeError(f"at must be {rule}, got {at!r}")
            instant = min(max(whole, AWAKE + 1), NEVER)
        if plain_int(delay) != 0:
            raise ValueError(f"{name} must be 0 where at is given, got {delay!r}")
        return max(instant, AWAKE + 1)

    def _date(self, at: Any, delay: Any, now: int) -> int:
        """The instant of the wall clock at which a run is due, and a timetable for it."""
        wall_at = instant_ns(at, "at", AT)
        if type(delay) is not int or delay != 0:
            raise ValueError(f"delay must be 0 where at is given, got {delay!r}")
        self._make_wall(now)
        return wall_at

    def _rank(self, priority: Any) -> int:
        rank = plain_int(priority)
        if -2048 <= rank <= 2047:
            return rank
        whole = index_of(priority)
        if whole is None:
            raise TypeError(f"priority must be an int, got {priority!r}")
        rank = plain_int(whole)
        if not -2048 <= rank <= 2047:
            raise ValueError(f"priority must be from -2048 to 2047, got {priority!r}")
        return rank

    def _extras_for(self, task: Any, args: Any, kwargs: Any, id: Any, retry: Any) -> Extras | None:
        """Check the rest of what a user gives; Extras if the job needs any."""
        check_task(task)
        if type(args) is not tuple and not isinstance(args, (tuple, list)):
            raise TypeError(f"args must be a tuple or a list, got {args!r}")
        if kwargs is None and id is None and retry is DEFAULT:
            return None
        if kwargs is not None:
            if type(kwargs) is not dict and not isinstance(kwargs, Mapping):
                raise TypeError(f"kwargs must be a mapping or None, got {kwargs!r}")
            given = dict(kwargs)
            for key in given:
                if not isinstance(key, str):
                    raise TypeError(f"kwargs must have str keys, got {kwargs!r}")
        if id is not None and type(id) is not str:
            raise TypeError(f"id must be a str or None, got {id!r}")
        if retry is not None and retry is not DEFAULT:
            if not callable(retry):
                raise TypeError(f"retry must be callable or None, got {retry!r}")
            if type(retry) is FUNCTION:  # of an object it would take longer than all the rest
                check_plain(retry, "retry")
        extras = Extras()
        extras.name = id
        if kwargs is not None and given:
            extras.kwargs = given
        if retry is not DEFAULT:
            extras.retry = retry
            extras.own_retry = True
        return extras

    def _with_options(
        self,
        extras: Extras | None,
        key: Any,
        key_limit: Any,
        after: Any,
        on_upstream_failure: Any,
        timeout: Any,
        is_failure: Any,
        context: Any,
        jitter: Any,
    ) -> Extras:
        """Check the options that few jobs have. Nothing is entered anywhere yet."""
        if extras is None:
            extras = Extras()
        if key is not None and type(key) is not str and type(key) is not int:
            raise TypeError(f"key must be a str, an int or None, got {key!r}")
        places = count_of(key_limit, "key_limit")
        if key is not None:
            extras.key = key
            extras.lane = Lane(places)
        elif places != 1:
            raise ValueError(f"key_limit must come with a key, got {key_limit!r}")
        extras.run_anyway = choice(on_upstream_failure, ON_UPSTREAM_FAILURE, "on_upstream_failure")
        if extras.run_anyway and after is None:
            raise ValueError(f"on_upstream_failure must come with after, got {on_upstream_failure!r}")
        limit = limit_ns(timeout, "timeout")
        if limit is not None:
            if limit <= 0:
                raise ValueError(f"timeout must be more than 0 ns, got {timeout!r}")
            extras.timeout = limit
            if self._limits is None:
                self._make_limits()
            if extras.lane is not None:
                extras.lane.parked = ReadyLine(self._tt)  # it may wait for a run of its own that has passed its limit
        if is_failure is not None and not callable(is_failure):
            raise TypeError(f"is_failure must be callable or None, got {is_failure!r}")
        check_plain(is_failure, "is_failure")
        extras.is_failure = is_failure
        if context is not None and not isinstance(context, contextvars.Context):
            raise TypeError(f"context must be a contextvars.Context or None, got {context!r}")
        extras.context = context
        extras.jitter = duration_ns(jitter, "jitter")
        if extras.jitter < 0:
            raise ValueError(f"jitter must be 0 or more, got {jitter!r}")
        if extras.jitter > 0:
            extras.seed = random.getrandbits(62)
        return extras

    def _make_limits(self) -> None:
        """The other timetable, for time limits, made by the first job that has one."""
        limits = Timetable()
        if cython.compiled:
            limits._guarded = True  # type: ignore[attr-defined]
        with self._tt.lock:
            if self._limits is None:
                self._limits = limits

    def _make_wall(self, now: int) -> None:
        """The timetable of the wall clock, made by the first job that follows it."""
        if self._wall is not None:
            return
        wall = Timetable()
        if cython.compiled:
            wall._guarded = True  # type: ignore[attr-defined]
        offset = carried(self._wall_now(), now, 0)
        with self._tt.lock:
            if self._wall is None:
                self._offset = offset
                self._wall = wall

    def _limit_at(self, until: Any) -> int:
        instant = index_of(until)
        if instant is None:
            raise TypeError(f"until must be int nanoseconds on the agenda's clock or None, got {until!r}")
        return min(max(instant, AWAKE), NEVER)

    def _repeating(self, extras: Extras, kind: int, period: int, run_at: int, until: Any, max_runs: Any) -> Extras:
        extras.own_retry = True  # a repeating job carries on; it is retried by a policy of its own alone
        extras.kind = kind
        extras.period = period
        extras.slot = run_at
        if until is not None:
            extras.until = self._limit_at(until)
            if extras.until < run_at:
                raise ValueError(f"until must not be before the first run, got {until!r}")
        if max_runs is not None:
            extras.max_runs = count_of(max_runs, "max_runs")
        return extras

    def _add_with(
        self,
        task: Callable[..., Any],
        run_at: int,
        args: Sequence[Any],
        extras: Extras,
        rank: int,
        now: int,
        after: Any,
    ) -> Job:
        upstream = None
        if after is not None:
            try:
                several = None if isinstance(after, (Job, str, int)) else iter(after)
            except TypeError:
                several = None
            if several is None:
                raise TypeError(f"after must be jobs or their ids in a sequence, got {after!r}")
            upstream = list(several)
            if self._aging is not None:
                self._forget_old()
            for other in upstream:
                self._check_handle(other)
                if extras.name is not None and other == extras.name:
                    raise ValueError(f"after must not lead back to the job itself, got {other!r} -> {extras.name!r}")
        if not extras.dated:
            run_at = extras.shaken(run_at)
        return self._add(task, run_at, args, extras, rank, now, upstream)

    def _add(
        self,
        task: Callable[..., Any],
        run_at: int,
        args: Sequence[Any],
        extras: Extras | None,
        priority: int,
        now: int,
        upstream: list[Any] | None,
    ) -> Job:
        job = Job.__new__(Job)
        job._task = task
        job._args = tuple(args) if args else None
        job._agenda = self
        job._extras = extras
        job._outcome = None
        job._run_at = run_at
        job._started_at = 0
        job._id = -1
        job._attempts = 0
        job._priority = priority
        job._going = 0
        job._state = SCHEDULED
        job._entered = NOWHERE
        worker = None
        watcher = None
        spares: list[Any] | None = None
        round: Any = None
        if upstream is not None:
            round = Round()  # here: when the job has been added, nothing may fail any more
            spares = []
            for _ in upstream:  # no comprehension: Cython 3.3 lets go of an item twice when its list cannot grow
                spares.append((Extras(), [None, None]))
        while True:
            with self._tt.lock:
                done = self._enter(job, extras, run_at, priority, now, upstream, spares)
                if done == ADDED:
                    worker = self._worker_to_wake()
                    if self._armed_at != AWAKE:
                        # Not run_at: what went straight to the ready line is not the watcher's business.
                        watcher = self._watcher_to_wake(self._soonest())
                elif extras is not None:
                    self._drop_timers(extras)  # it is refused, or taken again with room for both
            if done == NO_LINE and extras is not None:
                extras.lane.parked = ReadyLine(self._tt)
                continue
            if done != NO_ROOM:
                break
            self._tt._make_room(1)
            if extras is not None and extras.timeout > 0:
                self._limits._make_room(1)
            if extras is not None and extras.dated:
                self._wall._make_room(1)
        if worker is not None:
            signal(worker)
        if watcher is not None:
            signal(watcher)
        if done != ADDED:
            self._refuse(done, job, extras, upstream)
        if extras is not None and extras.culprit is not None:
            self._let_down(job, round)
        return job

    def _refuse(self, done: int, job: Job, extras: Extras | None, upstream: list[Any] | None) -> None:
        """Raise what came of an attempt to add a job."""
        if self._orphaned:
            raise RuntimeError(ORPHANED)
        if done == CLOSED:
            raise RuntimeError("cannot schedule new jobs after shutdown")
        if done == DUPLICATE:
            raise DuplicateJobId(f"id must be that of no job that has not ended, got {job.id!r}")
        if done == FULL:
            raise TooManyJobs(f"at most max_waiting = {self._max_waiting} jobs may wait, and so many do")
        if done == OTHER_LIMIT and extras is not None:
            raise ValueError(
                f"key_limit must be that of the other jobs with key {extras.key!r}, got {extras.lane.limit!r}"
            )
        if done == UNKNOWN and upstream is not None:
            for other in upstream:
                with self._tt.lock:
                    known = self._find(other) is not None
                if not known:
                    raise UnknownJobId(f"after must hold known jobs, got {other!r}")
        raise MemoryError("no memory for another job; nothing was added")

    def _enter(
        self,
        job: Job,
        extras: Extras | None,
        run_at: int,
        priority: int,
        now: int,
        upstream: list[Any] | None,
        spares: list[Any] | None,
    ) -> int:
        """Put a new job on the timetable, or, due and with workers about, in the ready line. Caller holds the lock.

        What can be refused is refused before anything is entered.
        """
        if self._closed or self._orphaned:
            return CLOSED
        if self._max_waiting != NEVER and self._waiting() + self._line._waiting() + self._parked >= self._max_waiting:
            return FULL
        if not self._tt._has_room(1):
            return NO_ROOM
        direct = self._workers and run_at <= now and upstream is None and (extras is None or not extras.dated)
        if direct and now > self._due_until:
            self._due_until = now
        if direct and self._tt._next() <= now:
            # What is due already goes first; if that is more than one round's work, this job waits behind it.
            self._line._promote(now, PROMOTED)
            direct = self._tt._next() > now
        if extras is not None:
            done = self._enter_with(job, extras, run_at, priority, direct, upstream, spares)
            if done != ADDED or not cython.compiled:
                return done
        elif cython.compiled:
            self._place(job, run_at, priority, direct, False)
        else:
            return enter_in_steps(self, job, extras, run_at, priority, direct, upstream, spares)
        if job._id < 0:
            return -1
        job._entered = ENTERED
        if extras is not None:
            if extras.lane is not None:
                extras.lane.jobs += 1
            if upstream is not None:
                job._entered = HELD_BACK
                self._held_back += 1
                if extras.culprit is None and extras.blockers == 0:
                    self._arm_next(job, extras)
            elif extras.dated:
                job._entered = NOWHERE
                self._arm_next(job, extras)
        return ADDED

    def _place(self, job: Job, run_at: int, priority: int, direct: bool, held: bool) -> int:
        """Give a new job an id, or -1, and an entry unless it is `held`: if `direct`, in the ready line.

        Caller holds the lock.
        """
        if direct or held:
            job._id = self._tt._occupy(priority, job)
            if direct and job._id >= 0 and not self._line._put(run_at, self._tt._ticket(job._id), job._id):
                self._tt._release(job._id)
                job._id = -1
        else:
            job._id = self._tt._add(run_at, priority, job)
        return 0

    def _enter_with(
        self,
        job: Job,
        extras: Extras,
        run_at: int,
        priority: int,
        direct: bool,
        upstream: list[Any] | None,
        spares: list[Any] | None,
    ) -> int:
        """Do the same for a job with extras: all of it, or nothing. Caller holds the lock."""
        other: Any = None
        if extras.name is not None:
            other = self._names.get(extras.name)
            if other is not None and other._state <= RUNNING:
                return DUPLICATE
        try:
            done = self._enter_options(job, extras, upstream)
            if not cython.compiled and done == ADDED:
                done = enter_in_steps(self, job, extras, run_at, priority, direct, upstream, spares)
            elif done == ADDED:
                self._register(job, extras, upstream, spares)
                self._place(job, run_at, priority, direct, extras.dated or upstream is not None)
                if job._id < 0:
                    done = -1
        except MemoryError:
            done = -1
        if done != ADDED:
            self._unregister(job, extras, other, upstream)
        return done

    def _register(self, job: Job, extras: Extras, upstream: list[Any] | None, spares: list[Any] | None) -> int:
        """Enter a new job wherever there may be no memory for that. Caller holds the lock."""
        if extras.name is not None:
            self._names[extras.name] = job
        if extras.lane is not None:
            self._lanes[extras.key] = extras.lane
        if upstream is not None:
            self._depend(job, extras, upstream, spares)
        return 0

    def _unregister(self, job: Job, extras: Extras, other: Job | None, upstream: list[Any] | None) -> int:
        """Take back `_register`, also a half of it; `other` had the name. Caller holds the lock."""
        if extras.name is not None and self._names.get(extras.name) is job:
            if other is None:
                del self._names[extras.name]
            else:
                self._names[extras.name] = other
        if extras.lane is not None:
            self._forget_lane(extras)
        if upstream is not None:
            for k in range(len(upstream)):
                before: Any = self._find(upstream[k])
                if before is not None and before._extras is not None and before._extras.dependents is not None:
                    dependents: list[Any] = before._extras.dependents
                    if dependents[len(dependents) - 1] is job:
                        dependents.pop()
            extras.blockers = 0
            extras.culprit = None
        return 0

    def _enter_options(self, job: Job, extras: Extras, upstream: list[Any] | None) -> int:
        """The lane of the key, known jobs before this one, and a timer for the time limit. Caller holds the lock."""
        if upstream is not None:
            for k in range(len(upstream)):
                other = self._find(upstream[k])
                if other is None:
                    return UNKNOWN
                if not cython.compiled:
                    upstream[k] = other  # who comes in may have its id forgotten
        if extras.key is not None:
            lane = self._lanes.get(extras.key)
            if lane is not None:
                if lane.limit != extras.lane.limit:
                    return OTHER_LIMIT
                if lane.parked is None:
                    if extras.lane.parked is None:
                        return NO_LINE
                    lane.parked = extras.lane.parked
                extras.lane = lane  # the spare one is referred to by nobody's finalizer
        if extras.timeout > 0:
            if not self._limits._has_room(1):
                return NO_ROOM
            extras.limit_id = self._limits._occupy(0, job)
            if extras.limit_id < 0:
                return -1
        if extras.dated:
            if not self._wall._has_room(1):
                return NO_ROOM
            extras.wall_id = self._wall._occupy(0, job)  # held, and so armed at any time without memory
            if extras.wall_id < 0:
                return -1
            self._wall_jobs += 1
        return ADDED

    def _drop_timers(self, extras: Extras) -> int:
        """Give back what a job has in the other timetables. Caller holds the lock, and a reference to the job."""
        if extras.wall_id >= 0:
            self._wall._disarm(extras.wall_id)
            self._wall._release(extras.wall_id)
            extras.wall_id = -1
            self._wall_jobs -= 1
        if extras.limit_id >= 0:
            self._limits._disarm(extras.limit_id)
            self._limits._release(extras.limit_id)
            extras.limit_id = -1
        return 0

    # ------------------------------------------------------------ changing and asking

    def _depend(self, job: Job, extras: Extras, upstream: list[Any], spares: Any) -> int:
        """Hang a new job on those it comes after. Caller holds the lock and has made sure that they are known.

        Raises: MemoryError; then it hangs on the first of them.
        """
        for k in range(len(upstream)):
            other: Any = self._find(upstream[k])
            if other._state <= RUNNING:
                if other._extras is None:
                    other._extras = spares[k][0]
                if other._extras.dependents is None:
                    other._extras.dependents = spares[k][1]
                extras.blockers += 1  # first: who comes in behind the other step may end that job
                other._extras.dependents.append(job)
            elif other._state != SUCCEEDED and not extras.run_anyway and extras.culprit is None:
                self._blame(extras, other)
        return 0

    def _blame(self, extras: Extras, other: Job) -> int:
        """Note which job let this one down. Caller holds the lock."""
        theirs = other._extras
        try:
            extras.culprit = other._id if theirs is None or theirs.name is None else theirs.name
        except MemoryError:  # for an int; that some job let this one down is more than its number
            extras.culprit = "?"
        extras.culprit_state = other._state
        return 0

    def _let_down(self, job: Job, round: Round) -> int:
        """A new job comes after one that has not succeeded: it ends as it begins."""
        with self._tt.lock:
            if job._state <= RUNNING:
                self._end(job, CANCELLED, round)
            self._conclude(round)
        round.finish(self)
        return 0

    def _tell_dependents(self, dependents: Any, round: Round) -> int:
        """A job has ended: arm those that waited for it alone, cancel those it lets down, and so on down from them.

        A chain may be long, so it is gone down in a loop; the lists refer to each other, for no memory may be wanted
        here: nobody would tell those that are left.
        """
        while dependents is not None:
            upstream: Job = dependents[0]
            following = dependents[1]
            for k in range(2, len(dependents)):
                self._upstream_ended(dependents[k], upstream, round)
                if round.dependents is not None:
                    round.dependents[1] = following
                    following = round.dependents
                    round.dependents = None
                round.finish(self)
            with self._tt.lock:
                self._telling -= 1
                self._conclude(round)
            round.finish(self)
            dependents = following
        return 0

    def _upstream_ended(self, job: Job, upstream: Job, round: Round) -> int:
        with self._tt.lock:
            extras = job._extras
            if job._state <= RUNNING:
                extras.blockers -= 1
                if upstream._state != SUCCEEDED and not extras.run_anyway:
                    self._blame(extras, upstream)
                    self._end(job, CANCELLED, round)
                elif extras.blockers == 0:
                    self._arm_next(job, extras)
            self._rouse(round)
        return 0

    def _find(self, job: Any) -> Job | None:
        """The job of a handle or an id; None if it is unknown. Caller holds the lock."""
        if type(job) is Job:
            handle = job
            return handle if handle._agenda is self else None
        if type(job) is str:
            return self._names.get(job)
        if type(job) is int:
            return self._tt._item(job) if 0 <= job < NEVER else None
        return None

    def _check_handle(self, job: Any) -> int:
        if type(job) is not Job and type(job) is not str and type(job) is not int:
            raise TypeError(f"job must be a Job or its id (str or int), got {job!r}")
        return 0

    def cancel(self, job: Job | str | int) -> bool:
        """Cancel a job for good: no run of it starts any more. A run that is going finishes and changes nothing.

        Args:
            job: a `Job` or its id.

        Returns: False if it had ended or is unknown.
        Complexity: O(1), amortised for the rebuild. Task, arguments and item are released now.
        """
        self._check_handle(job)
        if self._aging is not None:
            self._now_or_last()  # `_remember` notes that instant
        round = Round()
        with self._tt.lock:
            found = self._find(job)
            if found is None or found._state > RUNNING or not self._end(found, CANCELLED, round):
                return False
            self._conclude(round)
        round.finish(self)
        return True

    def reschedule(self, job: Job | str | int, delay: Seconds = 0, *, at: int | datetime | None = None) -> bool:
        """Give a job another next run; the slots of a fixed-rate job count from there, a rule is asked from there.

        Args:
            job: a `Job` or its id.
            delay, at: as `schedule`.

        Returns: False if it had ended, is unknown, or is a one-off that runs; and after a shutdown.
        Complexity: as `schedule`.
        """
        self._check_handle(job)
        now = self._now()
        wall_at = -1
        spare = None
        dated = at is not None and type(at) is not int and isinstance(at, datetime)
        if dated:
            run_at = now
            wall_at = self._date(at, delay, now)
            spare = Extras()
        else:
            run_at = self._start(now, delay, at, "delay")
        round = Round()
        moved = True
        while True:
            with self._tt.lock:
                found = self._find(job)
                if found is None or found._state > RUNNING or self._closed:
                    return False
                extras = found._extras
                if found._state == RUNNING and (extras is None or extras.kind == ONE_OFF):
                    return False
                if self._has_room_for(found, dated, spare):
                    extras = found._extras
                    if not cython.compiled and found._entered == ENTERED:
                        self._tt._hold(found._id)  # who comes in does not run it while it is half moved
                    if extras is not None and extras.kind != ONE_OFF:
                        extras.slot = carried(wall_at, self._offset, 0) if dated else run_at
                        extras.retrying = False
                        extras.streak = 0
                        extras.moved = found._going > 0
                        extras.extra = False
                        if extras.kind == RULE:
                            self._displace(extras, run_at, wall_at, dated)
                    if dated:
                        extras.wall_at = wall_at
                    if extras is not None and extras.blockers > 0:
                        found._run_at = run_at  # it is armed when the jobs it comes after have ended
                        extras.dated = dated
                    elif dated:
                        self._arm_wall(found, extras)
                    else:
                        moved = self._arm(found, run_at)
                    self._rouse(round)
                    break
            found = extras = None  # here: the next round of the lock might drop the last reference
            self._tt._make_room(1)
            if dated:
                self._wall._make_room(1)
        round.finish(self)
        return moved

    def _has_room_for(self, job: Job, dated: bool, spare: Extras | None) -> bool:
        """Whether a job can be moved; then it has a timer for its date, if it needs one. Caller holds the lock."""
        if not self._tt._has_room(1):
            return False
        if dated and job._extras is None:
            job._extras = spare
        if dated and job._extras.wall_id < 0:
            if not self._wall._has_room(1):
                return False
            job._extras.wall_id = self._wall._occupy(0, job)
            if job._extras.wall_id < 0:
                return False
            self._wall_jobs += 1
        return True

    def _displace(self, extras: Extras, run_at: int, wall_at: int, dated: bool) -> int:
        """The next slot of a rule's job is where the user puts it. Caller holds the lock."""
        extras.spent = False
        extras.displaced = True
        if extras.calendar:
            extras.slot = wall_at if dated else carried(run_at, 0, self._offset)
            extras.wall_at = extras.slot
        return 0

    def pause(self, job: Job | str | int | None = None) -> bool:
        """Start no run of a job until `resume`; without a job, of none.

        A pause loses nothing: what comes due in it runs late, afterwards. A run that is going goes on.

        Returns: False if the job had ended or is unknown; without a job, after a shutdown.
        """
        if job is None:
            with self._tt.lock:
                if self._closed:
                    return False
                self._paused = True
            return True
        self._check_handle(job)
        spare = Extras()
        with self._tt.lock:
            found = self._find(job)
            if found is None or found._state > RUNNING:
                return False
            if found._extras is None:
                found._extras = spare
            found._extras.paused = True
        return True

    def resume(self, job: Job | str | int | None = None) -> bool:
        """End the pause of a job, or the one of all. Returns: False if there was none, or the job is unknown."""
        round = Round()
        if job is None:
            with self._tt.lock:
                paused = self._paused
                self._paused = False
                self._rouse(round)
            round.finish(self)
            return paused
        self._check_handle(job)
        with self._tt.lock:
            found = self._find(job)
            if found is None or found._state > RUNNING or found._extras is None or not found._extras.paused:
                return False
            found._extras.paused = False
            if found._entered == HELD_BACK and found._extras.blockers == 0:  # it came due in the pause
                self._held_back -= 1
                found._entered = ENTERED
                self._put_back(found)
            self._rouse(round)
        round.finish(self)
        return True

    def run_now(self, job: Job | str | int) -> bool:
        """Run a job now: a repeating one besides its slots, which stay as they are; a one-off instead of later.

        Returns: False if it had ended, is unknown, runs, is paused or waits for other jobs; and after a shutdown.
        """
        self._check_handle(job)
        now = self._now()
        round = Round()
        while True:
            with self._tt.lock:
                found = self._find(job)
                if found is None or found._state != SCHEDULED or found._going > 0 or self._closed:
                    return False
                extras = found._extras
                if extras is not None and (extras.paused or extras.blockers > 0):
                    return False
                if self._instant_of(found) <= now:
                    return True  # it is due, and keeps its place
                if self._tt._has_room(1):
                    if extras is not None and extras.kind != ONE_OFF and not extras.retrying and not extras.extra:
                        extras.extra = True
                        extras.planned = self._instant_of(found)
                        extras.planned_dated = extras.dated
                    moved = self._arm(found, now)
                    self._rouse(round)
                    break
            found = extras = None  # here: the next round of the lock might drop the last reference
            self._tt._make_room(1)
        round.finish(self)
        return moved

    def jobs(self) -> list[JobInfo]:
        """All jobs that have not ended, each as it was at one moment. Complexity: O(n); other calls go on meanwhile."""
        infos = []
        for job in self._tt._snapshot():
            info = self._info_of(job)
            if info is not None:
                infos.append(info)
        return infos

    def _info_of(self, job: Job) -> JobInfo | None:
        paused = False
        with self._tt.lock:
            state = job._state
            run_at = self._instant_of(job)
            attempts = job._attempts
            extras = job._extras
            if extras is not None:
                paused = extras.paused
            since = job._started_at
        if state > RUNNING:
            return None
        running_since = since if state == RUNNING else None
        return JobInfo(job.id, STATUS[state], run_at, attempts, running_since, paused, job._priority, job)

    def stats(self) -> Stats:
        """Counts, and how late runs started. Kept in the core as jobs run; nothing is computed until this is asked."""
        lags = [0] * LAGS
        with self._tt.lock:
            waiting = self._waiting()
            ready = self._line._waiting() + self._parked
            running = self._runs
            started = self._started
            succeeded = self._succeeded
            failed = self._failed
            cancelled = self._cancelled
            retried = self._retried
            skipped = self._skipped
            timed_out = self._timed_out
            for k in range(LAGS):
                lags[k] = self._lags[k]
        lag = Lags({lag_of(k): lags[k] for k in range(LAGS) if lags[k]})
        return Stats(waiting, ready, running, started, succeeded, failed, cancelled, retried, skipped, timed_out, lag)

    def on(self, event: str, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call `listener(Event)` at each `event`, on the thread where it happens, and without a lock.

        Args:
            event: "started", "succeeded", "failed", "retrying", "skipped", "cancelled" or "timed_out". A repeating job
                tells of each of its runs.
            listener: a callable; what it raises is logged and harms nothing.

        Returns: a function that ends it.
        """
        bit = choice(event, EVENTS, "event")
        if not callable(listener):
            raise TypeError(f"listener must be callable, got {listener!r}")
        check_plain(listener, "listener")
        entry = [listener]  # an identity of its own: a listener may be given twice
        self._change_listeners(bit, entry, None)
        return partial(self._change_listeners, bit, None, entry)

    def _change_listeners(self, bit: int, new: list[Any] | None, old: list[Any] | None) -> None:
        while True:
            with self._tt.lock:
                before = self._listeners.get(bit)
            entries = [entry for entry in before or () if entry is not old]
            if new is not None:
                entries.append(new)
            with self._tt.lock:
                if self._listeners.get(bit) is before:
                    self._listeners[bit] = entries
                    if len(entries) > 0:
                        self._listening |= bit
                    else:
                        self._listening &= ~bit
                    return

    def _tell(self, bits: int, job: Job, attempt: int, error: BaseException | None, count: int) -> int:
        """Call the listeners of events, given as bits. Not under the lock."""
        for name in EVENTS:
            bit = EVENTS[name]
            if not bits & bit:
                continue
            with self._tt.lock:
                entries = self._listeners.get(bit)
            for entry in entries or ():
                try:
                    entry[0](Event(name, job, attempt, error, count))
                except BaseException:
                    complain("a listener of %r failed", name)
        return 0

    def _tell_taken(self, job: Job) -> int:
        """Tell of the slots that were skipped before a run, and of its start. Not under the lock."""
        count = 0
        with self._tt.lock:
            attempt = job._attempts
            if job._extras is not None:
                count = job._extras.untold
                job._extras.untold = 0
        if count > 0 and self._listening & SKIPPED:
            self._tell(SKIPPED, job, attempt, None, count)
        if self._listening & STARTED:
            self._tell(STARTED, job, attempt, None, 0)
        return 0

    def status(self, job: Job | str | int) -> Status:
        """The `Status` of a job, by handle or id. Raises: UnknownJobId."""
        return self._known(job).status

    def last_error(self, job: Job | str | int) -> BaseException | None:
        """What the last failed run of a job raised, or None. Raises: UnknownJobId."""
        return self._known(job).last_error

    def _known(self, job: Any) -> Job:
        self._check_handle(job)
        if self._aging is not None:
            self._forget_old()
        with self._tt.lock:
            found = self._find(job)
        if found is None:
            raise UnknownJobId(f"job must be known, got {job!r}")
        return found

    def next_run_at(self) -> int | None:
        """The earliest run_at of the jobs that are not yet ready, int nanoseconds; None if there is none."""
        now = 0
        wall_now = 0
        has_wall = self._wall is not None
        if has_wall:
            now = self._now()
            wall_now = self._wall_now()
        with self._tt.lock:
            if self._waiting() == self._held_back:
                return None  # nobody knows when those that wait for others will be due
            next_at = self._tt._next()
            if has_wall:
                next_at = min(next_at, carried(self._wall._next(), wall_now, now))
            return next_at

    @property
    def skipped(self) -> int:
        """Slots of fixed-rate jobs that were not run, all jobs together."""
        with self._tt.lock:
            return self._skipped

    def __repr__(self) -> str:
        with self._tt.lock:
            waiting = self._waiting()
            ready = self._line._waiting()
            runs = self._runs
        return f"<Agenda: {waiting} waiting, {ready} ready, {runs} running>"

    # ------------------------------------------------------------ running

    def run_due(self) -> int:
        """Run here, one after the other, what is due now, in ready order; how many ran.

        The pass ends: it freezes the clock and the sequence at its start, and what a task adds for "now" waits for the
        next pass. Each job is checked for cancel as it starts.

        Raises: KeyboardInterrupt and SystemExit of a task, after its run is booked. Other errors end in the books.
        """
        now = self._now()
        self._make_due(now)
        return self._run_pass(now)

    def take_due(self, limit: int | None = None) -> list[Job]:
        """Take what is due, in ready order, at most `limit` jobs, for a driver of its own: each is marked RUNNING.

        The driver calls each job's task and then `finished`. They count as started together: cancelling one of them
        afterwards no longer keeps it from running; a driver that wants that takes one at a time.

        Returns: list of `Job`. Should there be no memory for all, those that there is memory for; the rest stays ready.
        """
        most = NEVER if limit is None else index_of(limit)
        if most is None:
            raise TypeError(f"limit must be an int or None, got {limit!r}")
        if most < 0:
            raise ValueError(f"limit must be 0 or more, got {limit!r}")
        now = self._now()
        self._make_due(now)
        taken: list[Any] = []
        bound = NO_BOUND
        left = min(most, NEVER)
        while left > 0:
            left -= 1
            try:
                taken.append(None)  # the place first: a job that is taken and does not get out would run for ever
            except MemoryError:
                if not taken:
                    raise
                break
            with self._tt.lock:
                if bound == NO_BOUND:
                    bound = self._tt._counter + 1
                job = self._take(now, bound)
                future = None if job is None or job._extras is None else job._extras.future
                crowded = self._tt._crowded()
            if crowded:
                self._tidy()
            if job is None:
                taken.pop()
                break
            taken[len(taken) - 1] = job
            if future is not None:
                try:
                    if not self._is_wanted(job, future, Round()):
                        taken.pop()
                        left += 1
                except BaseException:
                    complain("a future could not be told of its run")
                job = future = None  # here: the next round of the lock might drop the last reference
        return taken

    def finished(
        self, job: Job | str | int, error: BaseException | None = None, *, value: Any = None, run: int | None = None
    ) -> None:
        """Book the end of a run that `take_due` handed out: the one place where a run ends.

        Args:
            job: a `Job` or its id.
            error: what the task raised, or None.
            value: what it returned.
            run: the number of the run, `job.attempts` when it was taken; None: the latest. The end of an earlier run,
                booked before when it passed its time limit, says only that it is over.

        Raises: UnknownJobId; ValueError if that run was not taken or, without `run`, no run of the job is going.
        """
        if error is not None and not issubclass(type(error), BaseException):  # a mock may say that it is one
            raise TypeError(f"error must be an exception or None, got {error!r}")
        number = 0 if run is None else index_of(run)
        if number is None:
            raise TypeError(f"run must be an int or None, got {run!r}")
        found = self._known(job)
        with self._tt.lock:
            going = found._going
            attempts = found._attempts
        if run is None and going == 0:
            raise ValueError(f"job must have a run that is going, got {found!r}")
        if run is None:
            number = attempts
        elif not 1 <= number <= attempts:
            raise ValueError(f"run must be the number of a run that was taken, got {run!r}")
        if going == 0:
            return
        before = here.round
        round = self._flight(found, Round())
        round.run = number
        round.outer = before
        here.round = round  # until it is booked the run goes on here: what is asked about its end may shut down
        try:
            self._finish(found, number, error, value, round)
        finally:
            here.round = before

    def _finish(self, job: Job, run: int, error: BaseException | None, value: Any, round: Round) -> int:
        if error is None:
            error = self._verdict(job, value)
        if error is None:
            future = self._future_of(job)
            if future is not None:
                deliver(future, value)
            self._succeed(job, run, value, round)
        else:
            self._fail(job, run, error, True, round)
        return 0

    def _future_of(self, job: Job) -> Any:
        """The future of a submitted job, or None."""
        with self._tt.lock:
            return None if job._extras is None else job._extras.future

    def _is_wanted(self, job: Job, future: Any, round: Round) -> bool:
        """Tell a future that its run starts. False: it was cancelled, and so the run did not start after all."""
        if future.set_running_or_notify_cancel():
            return True
        self._retract(job, round)
        return False

    def _verdict(self, job: Job, value: Any) -> BaseException | None:
        """The error that a result counts as, by the job's `is_failure`, or that this raised; else None."""
        condition = None
        with self._tt.lock:
            if job._extras is not None:
                condition = job._extras.is_failure
        try:
            return FailedResult(value) if condition is not None and condition(value) else None
        except BaseException as error:
            return error

    # The wall clock.

    def _waiting(self) -> int:
        """How many jobs wait for their time, for other jobs, or for the end of their pause. Caller holds the lock."""
        count = self._tt._live + self._held_back
        return count if self._wall is None else count + self._wall._live

    def _soonest(self) -> int:
        """When something is due next, or the limit of a run comes; at once, if the clocks have to be looked at.

        Caller holds the lock.
        """
        next_at = self._tt._next()
        if self._limits is not None:
            next_at = min(next_at, self._limits._next())
        if self._wall is None:
            return next_at
        if self._restless or self._doubt_is_new:
            return AWAKE + 1
        return min(next_at, carried(self._wall._next(), self._offset, 0))

    def _instant_of(self, job: Job) -> int:
        """Caller holds the lock."""
        if job._extras is not None and job._extras.dated:
            return carried(job._extras.wall_at, self._offset, 0)
        return job._run_at

    def _look(self, now: int, wall_now: int) -> int:
        """Make due what the wall clock has reached; where it was set back, note whose slots are to be computed anew.

        No rule is asked here, as it might hang: that is for `_settle`. Not under the lock.
        """
        offset = carried(wall_now, now, 0)
        with self._tt.lock:
            is_back = self._unsettled or later(offset, WALL_STEP) < self._offset
            self._offset = offset
            self._restless = False
            self._unsettled = False
            if is_back:
                self._steps += 1
            left = self._wall._live
        while left > 0:
            with self._tt.lock:
                count = self._promote_wall(now, wall_now, min(left, PROMOTED))
            if count == 0:
                break
            left -= count
        if is_back:
            try:
                self._doubt_all(wall_now)
            except MemoryError:
                with self._tt.lock:
                    self._unsettled = self._restless = True  # the next look does it
                raise
        self._wall._tidy()
        return 0

    def _promote_wall(self, now: int, wall_now: int, limit: int) -> int:
        """Put what the wall clock has reached on the timetable, at instants not after now. Caller holds the lock."""
        count = 0
        while count < limit:
            timer_id = self._wall._take_due_id(wall_now)
            if timer_id < 0:
                break
            count += 1
            job: Job = self._wall._item(timer_id)
            if not cython.compiled and (job is None or job._entered != ON_WALL):
                continue  # who came in has ended it, or moved it
            extras = job._extras
            job._entered = NOWHERE
            extras.dated = False
            self._arm(job, carried(extras.wall_at, wall_now, now))
            if extras.kind != ONE_OFF and not extras.calendar:
                extras.slot = job._run_at  # `reschedule` gave a date to a job whose slots are on the other clock
        return count

    def _doubt_all(self, wall_now: int) -> int:
        """The wall clock was set back: note the jobs that follow it, to be asked in the order of their arming."""
        order: list[tuple[int, int, Job]] = []
        for job in self._wall._snapshot():
            order.append((self._wall_ticket(job), len(order), job))
        order.sort(reverse=True)  # equals stay in their order
        doubtful = [entry[2] for entry in order]
        is_new = len(doubtful) > 0
        with self._tt.lock:
            self._doubtful, doubtful = doubtful, self._doubtful  # the old ones are dropped without the lock
            self._doubtful_from = wall_now
            self._doubt_is_new = is_new
        return 0

    def _settle(self) -> None:
        """Ask the rules anew whose slots are in doubt. A rule may hang: not on the watcher's thread."""
        round = Round()
        while True:
            with self._tt.lock:
                job = self._doubtful.pop() if len(self._doubtful) > 0 and not self._closed else None
                if job is None:
                    return
                self._asking += 1
                wall_now = self._doubtful_from
                steps = self._steps
            try:
                self._anchor(job, wall_now, steps, round)
            finally:
                with self._tt.lock:
                    self._asking -= 1
                    self._conclude(round)
                round.finish(self)
                job = None  # here: the next round of the lock might drop the last reference

    def _count_doubtful(self) -> int:
        with self._tt.lock:
            return 0 if self._closed else len(self._doubtful)

    def _wall_ticket(self, job: Job) -> Any:
        with self._tt.lock:
            return 0 if job._entered != ON_WALL else self._wall._ticket(job._extras.wall_id)

    def _anchor(self, job: Job, wall_now: int, steps: int, round: Round) -> int:
        """The wall clock was set back: compute the next slot of a calendar job from what it shows now."""
        with self._tt.lock:
            extras = job._extras
            # What has come and waits for its jitter stays, as does the date that a user gave.
            if job._entered != ON_WALL or not extras.calendar or extras.displaced or extras.slot <= wall_now:
                return 0
            when = extras.when
            wall_at = extras.wall_at
            base = self._base(extras.last, wall_now)
        slot = None
        broken = None
        try:
            slot = next_slot(when, True, base)
        except BaseException as error:
            broken = error
            self._log_rule(job, broken)
        is_over = slot is None
        instant = NEVER if slot is None else slot
        with self._tt.lock:
            in_doubt = job._entered == ON_WALL and extras.wall_at == wall_at and not extras.displaced
            if in_doubt and steps == self._steps:  # else it is asked once more
                extras.steps = steps
                if broken is not None:
                    round.broken = extras.last_error
                    extras.last_error = broken
                    self._end(job, FAILED, round)
                    round.told_error = broken
                elif is_over or instant > extras.until:
                    self._end(job, SUCCEEDED, round)
                elif instant != extras.slot:
                    extras.slot = instant
                    extras.wall_at = extras.shaken(instant)
                    self._arm_wall(job, extras)
            self._rouse(round)
        round.finish(self)
        return 0

    def _base(self, last: int, wall_now: int) -> int:
        """After which instant slots count: after what the wall clock shows, or after the slot that was run last.

        Where the clock was set back so far that this slot is long to come, it comes again.
        """
        return last if wall_now < last <= later(wall_now, WALL_REPEAT) else wall_now

    def _log_rule(self, job: Job, broken: BaseException) -> int:
        with suppress(BaseException):
            logger.error(
                "the rule of job %r failed; the job ends",
                job.id,
                exc_info=(type(broken), broken, TRACEBACK.__get__(broken)),
            )
        without_traceback(broken)
        return 0

    def _ask(self, job: Job, run: int, end: int, error: BaseException | None, round: Round) -> int:
        """Ask the rule of a job whose run has ended for its next slot: without the lock, before the booking."""
        round.asked = False
        with self._tt.lock:
            extras = job._extras
            if self._closed or extras.moved:
                return 0
            if (job._state != RUNNING or run != job._attempts) and (job._state != SCHEDULED or job._entered != NOWHERE):
                return 0  # the booking decides nothing
            when = extras.when
            calendar = extras.calendar
            slot = extras.slot
            spent = extras.spent
            bursts = extras.bursts
            started_at = job._started_at
            until = extras.until
            over = extras.turns >= extras.max_runs
            round.steps = self._steps
            anew = extras.steps != self._steps and not extras.displaced
            last = extras.last
        round.asked = True
        round.missed = 0
        round.rule_is_over = over
        if over:
            return 0
        begin = started_at
        finish = end
        if calendar:
            finish = self._wall_now_or_estimate(end)
            begin = carried(started_at, end, finish)
        following: Any = slot
        missed = 0
        try:
            if calendar and slot > finish and (anew or (spent and slot > later(finish, WALL_REPEAT))):
                following = next_slot(when, True, self._base(last, finish))  # the wall clock was set back
            elif spent:
                following = next_slot(when, calendar, slot)
            if extras.on_missed == BURST and bursts < MAX_BURST and following is not None and following <= begin:
                bursts += 1
            else:
                bursts = 0
                edge = begin if extras.queue else finish
                while following is not None and following < edge and following <= until:
                    if missed == MAX_ASKED:
                        following = next_slot(when, calendar, edge - 1)
                        break
                    missed += 1
                    following = next_slot(when, calendar, following)
        except BaseException as broken:
            if error is not None:
                blame(broken, error)
            self._log_rule(job, broken)
            round.broken = broken
            return 0
        round.missed = missed
        round.bursts = bursts
        if following is None or following > until:
            round.rule_is_over = True
        else:
            round.slot = following
        return 0

    def _turn_by_rule(self, job: Job, extras: Extras, failed: bool, round: Round) -> int:
        """Book what the rule of a job has answered. Caller holds the lock."""
        if not round.asked:  # another thread has booked this run meanwhile, and this is where its next one was
            return self._arm(job, job._run_at)
        round.asked = False
        extras.streak = 0
        extras.retrying = False
        if round.broken is not None:
            error = extras.last_error
            extras.last_error = round.broken
            round.broken = error
            self._end(job, FAILED, round)
            round.told_error = extras.last_error
            return 0
        self._skipped += round.missed
        extras.skipped += round.missed
        extras.untold += round.missed
        if round.rule_is_over:
            return self._end(job, FAILED if failed else SUCCEEDED, round)
        extras.slot = round.slot
        extras.spent = False
        extras.displaced = False
        extras.bursts = round.bursts
        extras.steps = round.steps
        run_at = extras.shaken(extras.slot)
        if not extras.calendar:
            return self._arm(job, run_at)
        extras.wall_at = run_at
        return self._arm_wall(job, extras)

    def _make_due(self, now: int) -> int:
        """What a watcher and its helpers do, for drivers without one."""
        self._expire_due(now)
        if self._wall is not None:
            self._look(now, self._wall_now())
            self._settle()
        return self._promote_all(now)

    def _promote_all(self, now: int) -> int:
        """Make ready what is due, in rounds; what others add meanwhile cannot keep it from ending."""
        with self._tt.lock:
            left = self._tt._live
        while left > 0:
            with self._tt.lock:
                count = self._line._promote(now, min(left, PROMOTED))
            if count == 0:
                break
            left -= count
        with self._tt.lock:
            crowded = self._tt._crowded()  # what has left may have been the greater part
        if crowded:
            self._tidy()
        return 0

    def _run_pass(self, now: int) -> int:
        before = here.round
        round = Round()
        round.outer = before
        here.round = round
        try:
            return self._run_all(now, round)
        finally:
            here.round = before

    def _run_all(self, now: int, round: Round) -> int:
        count = 0
        bound = NO_BOUND
        while True:
            with self._tt.lock:
                if bound == NO_BOUND:
                    bound = self._tt._counter + 1
                job = self._take(now, bound)
                if job is None:
                    crowded = self._tt._crowded()
                else:
                    task = job._task
                    args = job._args
                    extras = job._extras
                    run = job._attempts
                    round.job = job
                    round.run = run
                    round.nominal = job._run_at if extras is None else extras.nominal
            if job is None:
                if crowded:
                    self._tidy()
                return count
            error = None
            value = None
            future = None if extras is None else extras.future
            try:
                if future is not None and not self._is_wanted(job, future, round):
                    job = task = args = extras = future = None
                    continue
                if self._listening:
                    self._tell_taken(job)
                value = self._invoke(task, args, extras, round)
                if future is not None:
                    deliver(future, value)
                    value = None
            except BaseException as raised:
                error = raised
            count += 1
            # Dropped here, not in the next round of the lock: the last reference may be one of these.
            task = args = extras = future = None
            try:
                if error is None:
                    error = self._succeed(job, run, value, round)  # type: ignore[arg-type]
                else:
                    error = self._fail(job, run, error, True, round)  # type: ignore[arg-type]
            except BaseException as thrown:
                self._book_lost(round, thrown)  # for want of memory, say, it may have come before the booking
                raise
            round.job = None
            round.late = False
            if error is not None:
                try:
                    raise error
                finally:
                    error = None  # its traceback refers to this frame
            job = value = error = None

    def _invoke(self, task: Any, args: Any, extras: Extras | None, round: Round) -> Any:
        """Run a task, in an empty context or in a copy of its own; a result that counts as a failure is raised."""
        if extras is None:
            context = round.idle_context
            if context is None or len(context) > 0:
                context = contextvars.Context()  # what a run leaves in its context reaches no other
                round.idle_context = context
            return call_in(context, task, args, None)
        context = contextvars.Context() if extras.context is None else extras.context.copy()
        condition = extras.is_failure
        value = call_in(context, task, args, extras.kwargs)
        if condition is not None and condition(value):
            raise FailedResult(value)
        return value

    def _take(self, now: int, bound: int) -> Job | None:
        """Take the next ready job whose entry is older than `bound`, and mark it RUNNING; None if there is none.

        This is the gate: what keeps a ready job from running is decided here, when a worker is there for it, not when
        it became ready. Caller holds the lock.
        """
        if self._paused:
            return None
        while True:
            timer_id = self._line._pop(bound)
            if timer_id < 0:
                return None
            job: Job = self._line._item(timer_id)
            if not cython.compiled and job is None:
                continue  # who came in has ended it, and the history has forgotten it
            extras = job._extras
            if job._run_at > now:  # `now` may be from before the job was added: the lock was waited for since
                now = max(now, monotonic_ns() if self._monotonic else self._last_now)
            if job._run_at > now:
                self._tt._rearm(timer_id, job._run_at)  # moved on meanwhile, or the clock went back (promise 1)
                if extras is not None and extras.lane is not None:
                    self._call_next(extras.lane)
                continue
            due_at = job._run_at
            bucket = lag_bucket(now - due_at)
            if not cython.compiled and not is_in_hand(self._tt, job, ENTERED):
                continue
            if extras is None or self._admit(job, extras, now):
                break
        job._entered = NOWHERE
        job._state = RUNNING
        job._going += 1
        job._attempts += 1
        job._started_at = now
        self._runs += 1
        self._started += 1
        self._lags[bucket] += 1
        if extras is not None:
            extras.moved = False
            self._depart(job, extras, now)
            if not cython.compiled and job._state > RUNNING:  # who came in has cancelled it, and it has not begun
                job._run_at = due_at
                self._untake(job)
                notify(self._waiters_of(job) or [])
                return self._take(now, bound)
        return job

    def _untake(self, job: Job) -> int:
        """A run that was taken does not begin. Caller holds the lock."""
        bucket = lag_bucket(job._started_at - job._run_at)
        job._going -= 1
        job._attempts -= 1
        self._runs -= 1
        self._started -= 1
        self._lags[bucket] -= 1
        if job._extras is not None and job._extras.lane is not None:
            job._extras.lane.running -= 1
            self._call_next(job._extras.lane)
            self._forget_lane(job._extras)
        return 0

    def _admit(self, job: Job, extras: Extras, now: int) -> bool:
        """Whether a ready job with extras may start; if not, it is put where it waits. Caller holds the lock."""
        lane = extras.lane
        if not cython.compiled and not is_in_hand(self._tt, job, ENTERED):
            return False
        if job._going > 0 and extras.kind != ONE_OFF:
            job._entered = NOWHERE  # a slot inside its own run: `_next_turn` decides at the end of that (promise 6)
        elif extras.paused:
            job._entered = HELD_BACK  # `resume` puts it back
            self._held_back += 1
        elif lane is None:
            return True
        elif lane.running < lane.limit:
            lane.running += 1
            return True
        else:
            self._park(job, lane, now)
            return False
        if lane is not None:
            self._call_next(lane)
        return False

    def _park(self, job: Job, lane: Lane, now: int) -> int:
        """Let a job that came out of the ready line wait for its key. Caller holds the lock."""
        job._entered = PARKED
        self._parked += 1
        if lane.parked._put(job._run_at, self._tt._ticket(job._id), job._id):
            if not cython.compiled:
                self._call_next(lane)  # who came in may have left the place, and did not find this one there
        elif cython.compiled or is_in_hand(self._tt, job, PARKED):
            job._entered = ENTERED
            self._parked -= 1
            self._tt._rearm(job._id, later(now, 1_000_000))  # no memory to park it: it asks again
        return 0

    def _call_next(self, lane: Lane) -> int:
        """Let the best of those that wait for a key try again, if a place is free. Caller holds the lock.

        Whoever leaves a place, or the ready line without having taken one, calls the next: nobody scans, none is lost.
        """
        if lane.parked is None:
            return 0
        while lane.running < lane.limit:
            timer_id = lane.parked._pop(NO_BOUND)
            if timer_id < 0:
                return 0
            job: Job = self._tt._item(timer_id)
            if cython.compiled or (job is not None and is_in_hand(self._tt, job, PARKED)):
                self._parked -= 1
                job._entered = ENTERED
                self._put_back(job)
                return 0
        return 0

    def _put_back(self, job: Job) -> int:
        """Return a job that was ready to the ready line, in its old place. Caller holds the lock."""
        if not self._line._put(job._run_at, self._tt._ticket(job._id), job._id):
            self._tt._rearm(job._id, job._run_at)
        return 0

    def _forget_lane(self, extras: Extras) -> int:
        """Caller holds the lock, and a reference to the job and so to the lane."""
        lane = extras.lane
        lanes = self._lanes
        if lane.jobs == 0 and lane.running == 0 and extras.key in lanes and lanes[extras.key] is lane:
            del lanes[extras.key]
        return 0

    def _depart(self, job: Job, extras: Extras, now: int) -> int:
        """What the start of a run means for a job with extras. Caller holds the lock."""
        extras.nominal = job._run_at
        if extras.timeout > 0:
            extras.deadline = later(now, extras.timeout)
            if not self._limits._is_waiting(extras.limit_id) or self._limits._has_room(1):
                self._limits._rearm(extras.limit_id, extras.deadline)  # else no memory: `_succeed` looks at the times
        if extras.kind == ONE_OFF or self._closed:
            return 0
        if extras.extra:
            planned = carried(extras.wall_at, self._offset, 0) if extras.planned_dated else extras.planned
            if planned <= now:
                extras.extra = False  # its key was taken, say, until the slot had come: the run is that of the slot
        if extras.kind == RULE:
            if not extras.extra and not extras.retrying:
                extras.turns += 1
                extras.spent = True
                extras.last = extras.slot
                if not extras.calendar:
                    extras.nominal = extras.slot
                elif extras.wall_at > extras.slot:
                    extras.nominal = carried(extras.slot, extras.wall_at, job._run_at)  # without jitter
            return 0
        if extras.extra:
            if extras.kind == FIXED_RATE:
                self._arm_planned(job, extras)
            return 0
        if not extras.retrying:
            extras.nominal = extras.slot
            extras.turns += 1
            if extras.kind == FIXED_RATE:
                following = later(extras.slot, extras.period)
                if cython.compiled or not extras.moved:
                    extras.slot = following
        if extras.kind == FIXED_RATE:
            if extras.on_missed == SKIP:
                self._skipped += extras.advance(now)
            elif extras.on_missed == SHIFT:
                if extras.slot < now:
                    self._skipped += extras.advance(now)
                    extras.slot = later(now, extras.period)
            else:
                self._skipped += extras.catch_up(now)
            if not extras.is_over() and (cython.compiled or not extras.moved):
                self._arm(job, extras.shaken(extras.slot))
        return 0

    def _arm(self, job: Job, run_at: int) -> bool:
        """Put a job on the timetable for its next run. `_has_room(1)` if it is on it already. Caller holds the lock.

        Returns: False if it has ended: who came in did that.
        """
        place = self._move_out(job)
        goes_on = cython.compiled or job._state <= RUNNING
        if goes_on:
            job._run_at = run_at
            job._entered = ENTERED
            self._tt._rearm(job._id, run_at)
        self._vacate(job, place)
        return goes_on

    def _arm_next(self, job: Job, extras: Extras) -> int:
        """Put a job where it waits for its next run, on this clock or on the wall clock. As `_arm`."""
        if extras.dated:
            return self._arm_wall(job, extras)
        return self._arm(job, job._run_at)

    def _arm_planned(self, job: Job, extras: Extras) -> int:
        """Put a job that runs besides its schedule where that has it. As `_arm`."""
        if extras.planned_dated:
            return self._arm_wall(job, extras)
        return self._arm(job, extras.planned)

    def _arm_wall(self, job: Job, extras: Extras) -> int:
        """Let a job wait for its `wall_at`; never short of memory, its timer there is held. Caller holds the lock."""
        before = job._entered
        place = self._move_out(job)
        if place in (ENTERED, PARKED):
            self._tt._rearm(job._id, NEVER)  # in passing: its entry there is dead by that
        if before != NOWHERE:
            self._tt._hold(job._id)
        self._vacate(job, place)
        if self._wall._live == 0:
            self._restless = True  # the watcher has not slept with an eye on the wall clock
        if extras.calendar and not extras.displaced and extras.steps != self._steps:
            self._unsettled = self._restless = True  # that clock was set back while the job was elsewhere
        if not cython.compiled and job._state > RUNNING:
            return 0
        extras.dated = True
        job._entered = ON_WALL
        self._wall._rearm(extras.wall_id, extras.wall_at)
        return 0

    def _move_out(self, job: Job) -> int:
        """Take a job from where it waits; `_vacate` follows, when its entry there is dead. Caller holds the lock.

        Returns: ENTERED: the ready line; PARKED; ON_WALL; HELD_BACK; else NOWHERE, also for the timetable.
        """
        is_ready = job._entered == ENTERED and not self._tt._is_waiting(job._id)
        place = job._entered
        job._entered = NOWHERE
        if place == ENTERED and not is_ready:
            return NOWHERE
        if place == PARKED:
            self._parked -= 1
        elif place == HELD_BACK:
            self._held_back -= 1
        elif place == ON_WALL:
            job._run_at = carried(job._extras.wall_at, self._offset, 0)
        return place

    def _vacate(self, job: Job, place: int) -> int:
        """The entry that a job had at `place` is dead now. Caller holds the lock."""
        if place == ENTERED:
            self._line._forget()
            if job._extras is not None and job._extras.lane is not None:
                self._call_next(job._extras.lane)
        elif place == PARKED:
            job._extras.lane.parked._forget()
        elif place == ON_WALL:
            self._wall._hold(job._extras.wall_id)
            job._extras.dated = False
        return 0

    def _succeed(self, job: Job, run: int, value: Any, round: Round) -> BaseException | None:
        """Book a run that returned. The times decide: at its limit it has failed, whoever looks first."""
        end = 0
        if job._extras is not None or self._aging is not None:
            end = self._now_or_last()  # of other jobs nobody asks when they ended
        overdue = False
        if job._extras is not None and job._extras.kind == RULE:
            overdue = job._extras.timeout > 0 and job._extras.deadline <= end
            if not overdue:
                self._ask(job, run, end, None, round)
        with self._tt.lock:
            extras = job._extras
            overdue = False
            if extras is not None and extras.timeout > 0 and job._state == RUNNING and run == job._attempts:
                overdue = extras.deadline <= end
            if not overdue:
                round.job = None
                self._book(job, run, False, value, None, end, -1, True, round)
                self._rouse(round)
        if overdue:
            return self._fail(job, run, self._overdue(job), True, round)
        round.finish(self)
        return None

    def _overdue(self, job: Job) -> TimeoutError:
        return TimeoutError(f"a run of job {job.id!r} took longer than {job._extras.timeout / 1e9:g} s")

    def _fail(self, job: Job, run: int, error: BaseException, over: bool, round: Round) -> BaseException | None:
        """Ask the policy, book a failed run, log it. `over`: it has ended, and not only passed its time limit.

        Returns: what `run_due` raises again, a KeyboardInterrupt or SystemExit; else None. It is a copy, with the
        traceback, because the one in the books is kept without.
        """
        raised = error
        refused = False  # the policy failed
        spare = Extras() if job._extras is None else None
        with self._tt.lock:
            if job._extras is None:
                job._extras = spare
            extras = job._extras
            future = extras.future
            policy = extras.retry if extras.own_retry else self._retry
            attempt = run if extras.kind == ONE_OFF else extras.streak + 1
            if job._state != RUNNING or job._going == 0 or run != job._attempts or self._closed:
                policy = None  # the outcome changes nothing, or nothing starts any more
        wait = -1
        if policy is not None and issubclass(type(error), Exception):
            try:
                answer = policy(attempt, error)
                if answer is not None:
                    wait = max(duration_ns(answer, "the answer of a retry policy"), 0)
            except BaseException as broken:
                blame(broken, raised)
                error = broken
                refused = True
        end = self._now_or_last()
        round.asked = False
        if extras.kind == RULE and wait < 0:
            self._ask(job, run, end, error, round)
        with suppress(MemoryError):
            self._tt._make_room(1)  # a retry may move an entry that waits, see `_next_turn`
        with self._tt.lock:
            current = job._state == RUNNING and job._going > 0 and run == job._attempts
            if over:
                round.job = None
            self._book(job, run, True, None, error, end, wait, over, round)
            self._rouse(round)
            state = job._state
            if state == SCHEDULED and wait >= 0:
                wait = job._run_at - end  # not the policy's answer if the job was rescheduled while it ran
        trace = TRACEBACK.__get__(error)
        again: BaseException | None = error if issubclass(type(error), (KeyboardInterrupt, SystemExit)) else None
        if again is not None:
            with suppress(BaseException):  # of user code, which has a say in how it is copied
                again = to_raise(error)
                TRACEBACK.__set__(again, trace)
        try:
            if future is not None:  # from then on the error is another thread's
                if current:
                    try:
                        future.set_exception(error)
                    except BaseException:
                        complain("a future could not take its error")
                        retell(future, future.set_exception, error)
            else:
                if current:
                    self._log(job, attempt, error, refused, state, wait)
                without_traceback(error)
        finally:
            round.finish(self)
        try:
            return again
        finally:
            again = trace = None  # if the policy raised the error, this frame is in it

    def _log(self, job: Job, attempt: int, error: BaseException, refused: bool, state: int, wait: int) -> None:
        trace = (type(error), error, TRACEBACK.__get__(error))
        with suppress(BaseException):  # a log handler is user code, too: as in `complain`
            if refused:
                logger.error("the retry policy of job %r failed after attempt %d", job.id, attempt, exc_info=trace)
            elif state == SCHEDULED and wait >= 0:
                seconds = wait / SECOND_NS
                logger.warning("job %r failed in attempt %d; next in %g s", job.id, attempt, seconds, exc_info=trace)
            elif state == FAILED:
                logger.error("job %r failed for good in attempt %d", job.id, attempt, exc_info=trace)
            else:
                logger.error("a run of repeating job %r failed; it carries on", job.id, exc_info=trace)

    def _book(
        self,
        job: Job,
        run: int,
        failed: bool,
        value: Any,
        error: BaseException | None,
        end: int,
        wait: int,
        over: bool,
        round: Round,
    ) -> int:
        """Book the outcome of a run; `wait` ns to the next attempt, or -1. Caller holds the lock.

        A run that passes its time limit is booked twice: then (not `over`), with an outcome, and when it ends, without.
        """
        extras = job._extras
        if job._going == 0 or (run != job._attempts and (extras is None or extras.hung == 0)):
            return 0  # booked already, by a driver that said so twice
        current = job._state == RUNNING and run == job._attempts
        overdue = failed and extras.timeout > 0 and (not over or extras.deadline <= end)  # failed: it has some, `_fail`
        if over:
            job._going -= 1
            self._runs -= 1
            if extras is not None:
                if extras.hung > 0 and run <= extras.timed_out:
                    extras.hung -= 1
                    if self._substitutes > 0:
                        self._substitutes -= 1
                        round.late = True
                if extras.lane is not None:
                    extras.lane.running -= 1
                    self._call_next(extras.lane)
                    self._forget_lane(extras)
        elif not current:
            return 0
        else:
            extras.timed_out = run
            extras.hung += 1
            round.overdue = True
            if round.substitute:
                self._substitutes += 1
            round.stoppers = extras.stoppers
            extras.stoppers = None
        if current and extras is not None and extras.limit_id >= 0:
            self._limits._hold(extras.limit_id)
        if not cython.compiled:
            current = current and job._state == RUNNING  # who came in may have ended it
        if current:
            if self._listening:
                round.told = job
                round.told_run = run
                round.told_error = error
            if failed and extras is not None:
                round.error = extras.last_error
                extras.last_error = error
            if extras is not None and extras.kind != ONE_OFF:
                round.event = FAILURE if failed else DONE
                if self._closed:
                    self._end(job, CANCELLED, round)
                else:
                    job._state = SCHEDULED
                    self._next_turn(job, extras, end, wait, failed, round)
            elif failed and wait >= 0 and not self._closed:
                round.event = RETRYING
                self._retried += 1
                job._state = SCHEDULED
                self._arm(job, later(end, wait))
            else:
                job._outcome = value
                self._end(job, FAILED if failed else SUCCEEDED, round)
            if overdue:
                self._timed_out += 1
                round.event |= TIMED_OUT
        elif job._state > RUNNING:
            if job._going == 0:
                round.waiters = self._waiters_of(job)  # it ended while this ran, and is over now
        elif job._state == SCHEDULED and job._entered == NOWHERE and extras.kind != ONE_OFF:
            # Its next run came due while this one, past its limit, went on.
            if extras.retrying:
                self._arm(job, job._run_at)
            else:
                self._next_turn(job, extras, end, -1, True, round)
        return 0

    def _next_turn(self, job: Job, extras: Extras, end: int, wait: int, failed: bool, round: Round) -> int:
        """Decide when a repeating job runs again, after a run that ended at `end`. Caller holds the lock."""
        extra = extras.extra
        extras.extra = False
        if extras.moved:
            if job._entered == ON_WALL:
                return 0
            run_at = job._run_at  # rescheduled while it ran: that is the next run, late if need be
        elif extras.kind == RULE and wait < 0:
            return self._turn_by_rule(job, extras, failed, round)
        elif extra and wait < 0 and extras.planned_dated:
            return 0 if job._entered == ON_WALL else self._arm_planned(job, extras)
        elif extra and wait < 0 and extras.planned >= end:
            run_at = extras.planned
        elif wait >= 0:
            extras.streak += 1
            extras.retrying = True
            self._retried += 1
            round.event = RETRYING
            run_at = later(end, wait)
        else:
            extras.streak = 0
            extras.retrying = False
            if extras.kind == FIXED_RATE:
                # Slots from before the run were missed, and `burst` makes up for them; its own are skipped, or one
                # of them queues.
                if not extras.queue and (extras.on_missed != BURST or extras.slot > job._started_at):
                    self._skipped += extras.advance(end)
            elif extras.slot <= end and not extra:  # else the run was one besides the schedule, or an attempt at one
                extras.slot = later(end, extras.period)
            if extras.is_over():
                return self._end(job, FAILED if failed else SUCCEEDED, round)
            run_at = extras.slot
            if job._entered == ENTERED and run_at <= job._run_at and job._run_at <= later(run_at, extras.jitter):
                return 0  # the slot it was armed for as it was taken
            run_at = extras.shaken(run_at)
        if job._entered == ENTERED and run_at == job._run_at:
            return 0
        if job._entered == ENTERED and self._tt._is_waiting(job._id) and not self._tt._has_room(1):
            job._run_at = run_at  # the entry comes up too early, and the gate sends it on
            return 0
        return self._arm(job, run_at)

    def _end(self, job: Job, state: int, round: Round) -> bool:
        """SCHEDULED or RUNNING -> an end, for good. Caller holds the lock. Returns: False if who came in did that."""
        if not cython.compiled and job._state > RUNNING:
            return False
        extras = job._extras
        job._state = state
        place = self._move_out(job)
        self._tt._disarm(job._id)
        self._vacate(job, place)
        if self._listening:
            round.told = job
            round.told_run = job._attempts
        if state == SUCCEEDED:
            self._succeeded += 1
            round.event = DONE
        elif state == FAILED:
            self._failed += 1
            round.event = FAILURE
        else:
            self._cancelled += 1
            round.event = DROPPED
        round.task = job._task
        job._task = None
        round.args = job._args
        job._args = None
        if extras is not None:
            round.kwargs = extras.kwargs
            extras.kwargs = None
            round.retry = extras.retry
            extras.retry = None
            round.condition = extras.is_failure
            extras.is_failure = None
            round.context = extras.context
            extras.context = None
            round.when = extras.when
            extras.when = None
            self._drop_timers(extras)
            if extras.lane is not None:
                extras.lane.jobs -= 1
                self._forget_lane(extras)
            if extras.dependents is not None:
                extras.dependents[0] = job
                round.dependents = extras.dependents
                extras.dependents = None
                self._telling += 1
            if extras.stoppers is not None and state == CANCELLED:
                round.stoppers = extras.stoppers
                extras.stoppers = None
        round.forgotten = self._remember(job)
        if job._going == 0:
            round.waiters = self._waiters_of(job)
            if state == CANCELLED and extras is not None:
                round.future = extras.future
        return True

    def _remember(self, job: Job) -> Job | None:
        """Note an ended job in the history; the job that is forgotten for it, or None. Caller holds the lock."""
        extras = job._extras
        if self._history == 0 or (extras is not None and extras.future is not None):
            victim = job  # nobody has the id of a submitted job
        elif self._aging is not None:
            if not self._note_end(job):
                victim = job
            elif len(self._aging) <= 2 * self._history:
                return None
            elif cython.compiled:
                victim = self._aging.popleft()
                self._aging.popleft()
            else:
                victim = pop_pair(self._aging)
        elif len(self._ended) < self._history:
            if self._note_end(job):
                return None
            victim = job
        else:
            fetch_ahead(self._line, self._ended, self._oldest)
            victim = self._ended[self._oldest]
            self._ended[self._oldest] = job
            self._oldest += 1
            if self._oldest == self._history:
                self._oldest = 0
        if victim is not None:
            self._forget(victim)
        return victim

    def _note_end(self, job: Job) -> bool:
        """Put an ended job at the end of the history; False: no memory for that. Caller holds the lock."""
        try:
            if self._aging is None:
                self._ended.append(job)
            elif cython.compiled:
                self._aging.append(job)
                self._aging.append(monotonic_ns() if self._monotonic else self._last_now)
            else:
                self._aging.extend((job, monotonic_ns() if self._monotonic else self._last_now))  # in one step
        except MemoryError:  # the job has ended all the same
            if self._aging is not None and len(self._aging) & 1:
                self._aging.pop()
            return False
        return True

    def _forget(self, victim: Job) -> int:
        """Nobody is to find an ended job by its id any more. Caller holds the lock, and a reference to the job."""
        extras = victim._extras
        if extras is not None and extras.name in self._names and self._names[extras.name] is victim:
            del self._names[extras.name]
        self._tt._release(victim._id)
        return 0

    def _forget_old(self) -> int:
        """Forget the ended jobs that are older than `history_age`, one a round of the lock. O(1) amortised."""
        now = self._now_or_last()
        while True:
            victim = None
            with self._tt.lock:
                if self._aging and now - self._aging[1] > self._history_age:
                    if cython.compiled:
                        victim = self._aging.popleft()
                        self._aging.popleft()
                    else:
                        victim = pop_pair(self._aging)
                    if victim is not None:
                        self._forget(victim)
            if victim is None:
                return 0

    def _waiters_of(self, job: Job) -> list[Any] | None:
        """Detach the locks of those who wait for a job. Caller holds the lock."""
        if job._extras is None:
            return None
        waiters: list[Any] | None = job._extras.waiters
        job._extras.waiters = None
        return waiters

    # ------------------------------------------------------------ who sleeps; for a scheduler

    def _worker_to_wake(self) -> Any:
        """An idle worker's lock, if one is to be woken: one at a time, and the woken one sees to the next.

        Interpreted it is signalled here, before that is booked: what a signal handler raises can keep the caller from
        it, and a wake-up too many does no harm. Caller holds the lock.
        """
        if self._idle_count == 0 or self._waking or self._paused or self._line._waiting() == 0:
            return None
        if not cython.compiled and (self._idle_count == 0 or self._waking):
            return None  # who came in has booked it
        worker = self._idle[self._idle_count - 1]
        if not cython.compiled:
            signal(worker)
            worker = None
            if self._waking:
                return None  # who came in has booked it
        self._waking = True
        self._idle_count -= 1
        return worker

    def _watcher_to_wake(self, run_at: int) -> Any:
        """The watcher's lock, if it sleeps past `run_at`; it is signalled once. As `_worker_to_wake`."""
        if run_at >= self._armed_at:
            return None
        watcher = self._watcher
        if not cython.compiled:
            signal(watcher)
            watcher = None
        self._armed_at = AWAKE
        return watcher

    def _rouse(self, round: Round) -> int:
        """Note whom this round of the lock, which has armed jobs or made some ready, concerns: its last step, once.

        Caller holds the lock.
        """
        round.worker = self._worker_to_wake()
        if self._armed_at != AWAKE:
            round.watcher = self._watcher_to_wake(self._soonest())
        return self._conclude(round)

    def _conclude(self, round: Round) -> int:
        """Note what the ends in this round of the lock lead to: its last step, once. Caller holds the lock."""
        round.crowded = self._tt._crowded() or (self._limits is not None and self._limits._crowded())
        if self._wall is not None and self._wall._crowded():
            round.crowded = True
        if self._drained is not None and self._is_drained():
            round.drained = self._drained
            self._drained = None
        if self._armed_at != AWAKE and self._is_over():
            self._armed_at = AWAKE
            round.watcher = self._watcher  # it stayed for the time limits of the last runs
        return 0

    def _tidy(self) -> int:
        self._tt._tidy()
        if self._limits is not None:
            self._limits._tidy()
        if self._wall is not None:
            self._wall._tidy()
        return 0

    def _is_drained(self) -> bool:
        """Whether nothing runs but what waits for this itself, and nothing is ready that could start before its end."""
        if self._runs > self._excused or self._telling > 0:
            return False
        if not self._closed and (self._asking > 0 or len(self._doubtful) > 0):
            return False  # nobody knows when their jobs are due
        if self._line._waiting() == 0:
            return self._parked == 0 or self._excused > 0  # else their keys are with those that wait
        return self._excused > 0 and self._kept >= self._places + self._substitutes

    def _is_over(self) -> bool:
        """Whether the end has come and no run is going or to start: the watcher ends. Caller holds the lock."""
        return self._closed and self._runs == 0 and self._line._waiting() == 0 and self._parked == 0

    def _is_all_over(self) -> bool:
        """`_is_over`, asked without the lock: for a watcher whose clock fails."""
        with self._tt.lock:
            return self._is_over()

    def _is_drained_line(self) -> bool:
        """Whether the end has come and nothing is ready: for a dispatcher, which then ends."""
        with self._tt.lock:
            return self._closed and self._line._waiting() == 0 and self._parked == 0

    def _clock_of(self) -> Callable[[], int]:
        return self._clock

    def _follows_wall(self) -> bool:
        """Whether jobs have to do with the wall clock."""
        return self._wall_jobs > 0

    def _look_at_least(self, bound: int) -> None:
        """How long the watcher may sleep at most, in ns, while jobs follow a wall clock that does not tell."""
        with self._tt.lock:
            self._wall_bound = bound

    def _wall_clock_of(self) -> Callable[[], int]:
        return self._wall_clock

    def _is_closed(self) -> bool:
        return self._closed

    def _is_orphaned(self) -> bool:
        return self._orphaned

    def _new_round(self) -> Round:
        return Round()

    def _round_of(self, job: Job) -> Round:
        """A round that tells of the run of a job that was just taken, for the thread of a foreign pool."""
        return self._flight(job, Round())

    def _flight(self, job: Job, round: Round) -> Round:
        with self._tt.lock:
            extras = job._extras
            round.job = job
            round.run = job._attempts
            round.nominal = job._run_at if extras is None else extras.nominal
        return round

    def _tell_start(self, job: Job) -> None:
        if self._listening:
            self._tell_taken(job)

    def _make_ready(self) -> None:
        """Make ready what is due now, and wake a worker for it."""
        round = Round()
        if not self._closed:  # else that was done, and a clock that fails does not matter
            now = self._now()
            if self._wall is not None:
                self._look(now, self._wall_now())
            self._promote_all(now)
        with self._tt.lock:
            self._rouse(round)
        round.finish(self)

    def _count_left(self) -> int:
        """How many jobs wait, for their time or for a worker."""
        with self._tt.lock:
            return self._waiting() + self._line._waiting() + self._parked

    def _before_fork(self) -> None:
        """Take the lock, so that the child gets a whole agenda; `_after_fork` gives it back on both sides."""
        self._tt.lock.acquire()

    def _after_fork(self, orphaned: bool) -> None:
        if orphaned:
            self._orphaned = True
            self._closed = True
            self._idle_count = 0
            self._armed_at = AWAKE
        self._tt.lock.release()

    def _attach(self, watcher: Any, workers: int, places: int, told: bool, wall_told: bool) -> None:
        """A scheduler gives the watcher's lock, how many workers may be idle at once, and whether the clocks tell.

        `places`: how many runs it lets go at once.
        """
        idle = [None] * workers
        with self._tt.lock:
            if not self._workers:
                self._watcher = watcher
                self._idle = idle
                self._places = places
                self._told = told
                self._wall_told = wall_told
                self._workers = True
                return
        raise ValueError(f"agenda must have no scheduler yet, got {self!r}")

    def _detach(self, watcher: Any) -> None:
        """Take back `_attach`, if it was that of this watcher: its scheduler could not start."""
        with self._tt.lock:
            if self._watcher is watcher:
                self._workers = False
                self._armed_at = AWAKE

    def _watch(self) -> int:
        """Make ready what is due, wake a worker, and arm: for the watcher, each time before it sleeps.

        Returns: nanoseconds to sleep; 0: look again at once; -1: until signalled; -2: the end; -3: a run has passed its
        time limit: `_expire_one` is to be called, on a thread that may run user code; -4: the same with `_settle`.
        """
        now = self._now()
        wall_now = 0
        has_wall = self._wall is not None
        if has_wall:
            with self._tt.lock:
                self._armed_at = AWAKE  # first: or what is moved there would signal this thread
            wall_now = self._wall_now()
            self._look(now, wall_now)
        with self._tt.lock:
            self._armed_at = AWAKE
            if not self._closed:  # else the workers may have ended
                self._line._promote(now, PROMOTED)
            next_at = NEVER if self._closed else self._tt._next()
            wall_at = NEVER
            if has_wall and not self._closed and self._wall._live > 0:
                wall_at = carried(self._wall._next(), wall_now, now)
            limit_at = NEVER if self._limits is None else self._limits._next()
            if limit_at <= now:
                self._expired.append(None)  # the place first: a limit that is taken and has none would never be booked
                self._expired[len(self._expired) - 1] = self._limits._item(self._limits._take_due_id(now))
                sleep = -3
            elif self._is_over():
                sleep = -2
            elif self._doubt_is_new:
                self._doubt_is_new = False
                sleep = -4
            elif next_at <= now or wall_at <= now or self._poked or (self._restless and not self._closed):
                self._poked = False  # a move between the look at the clock and here is not lost
                sleep = 0
            else:
                next_at = min(next_at, limit_at)
                self._armed_at = min(next_at, wall_at)
                sleep = -1 if next_at == NEVER or self._told else next_at - now
                if has_wall and not self._closed and self._wall._live > 0 and not self._wall_told:
                    bound = min(self._wall_bound, carried(wall_at, now, 0))
                    if sleep < 0 or bound < sleep:
                        sleep = bound
            worker = self._worker_to_wake()
            crowded = self._tt._crowded()
        if worker is not None:
            signal(worker)
        if crowded:
            self._tidy()
        return sleep

    def _expire_one(self, substitute: bool) -> bool:
        """Book a run that has passed its time limit. True: its worker will leave when it ends, `substitute` stays."""
        round = Round()
        with self._tt.lock:
            job = self._expired.pop() if len(self._expired) > 0 else None
        try:
            if job is not None:
                self._book_overdue(job, substitute, round)
        except BaseException:
            complain("a run past its time limit could not be booked")
        return round.overdue

    def _expire_due(self, now: int) -> None:
        """Book the runs that have passed their limit, for drivers without a watcher."""
        while self._limits is not None:
            with self._tt.lock:
                timer_id = self._limits._take_due_id(now)
                job = None if timer_id < 0 else self._limits._item(timer_id)
            if job is None:
                return
            self._book_overdue(job, False, Round())

    def _book_overdue(self, job: Job, substitute: bool, round: Round) -> bool:
        now = self._now_or_last()
        with self._tt.lock:
            run = job._attempts
            # It may have ended since its limit came, and run again.
            running = job._state == RUNNING and job._extras.deadline <= now
            round.substitute = substitute
        if not running:
            return False
        self._fail(job, run, self._overdue(job), False, round)
        return round.overdue

    def _poke(self) -> None:
        """Make the watcher look again: the clock was moved, or the end has come."""
        with self._tt.lock:
            self._poked = True
            watcher = self._watcher_to_wake(AWAKE)
        if watcher is not None:
            signal(watcher)

    def _work(self, park: Any, round: Round) -> bool:
        """Run what is ready until there is nothing: one call a busy period, one round of the lock a job.

        Each round books the last run, takes the next job and decides whom to wake. A woken worker calls this.

        Returns: True: it is noted as idle and waits for `park`; False: it shall end.
        """
        return self._run_ready(park, round)

    def _run_ready(self, park: Any, round: Round) -> bool:
        tt = self._tt
        job = None
        value = None
        future = None
        run = 0
        arriving = True
        if self._is_replaced(round):
            return False
        while True:
            now = self._now_or_last()
            following = None
            stop = False
            with tt.lock:
                if arriving:
                    # Its lock may have been released twice (it was disturbed while it was signalled): it is idle once.
                    self._withdraw_idle(park)
                    self._waking = False
                    arriving = False
                if job is not None:
                    self._book(job, run, False, value, None, now, -1, True, round)
                if tt._next() <= now and not self._closed:
                    self._line._promote(now, PROMOTED)
                if not self._orphaned:  # a task may fork: what is ready runs in the parent
                    following = self._take(now, NO_BOUND)
                round.job = following
                if following is not None:
                    task = following._task
                    args = following._args
                    run = following._attempts
                    extras = following._extras
                    round.run = run
                    if extras is None:
                        round.nominal = following._run_at
                        future = None
                    else:
                        round.nominal = extras.nominal
                        future = extras.future
                elif self._closed or self._idle_count == len(self._idle):
                    stop = True
                else:
                    self._idle[self._idle_count] = park  # one place for each worker: `_attach`
                    self._idle_count += 1
                self._rouse(round)
            round.finish(self)
            job = value = None
            if following is None:
                return not stop
            job = following
            following = None
            error = None
            try:
                if future is not None and not self._is_wanted(job, future, round):
                    job = task = args = extras = future = None
                    continue
                if self._listening:
                    self._tell_taken(job)
                value = self._invoke(task, args, extras, round)
                task = args = None
                if future is not None:
                    # In the run, before another job is taken: no job waits behind the callbacks of a future.
                    deliver(future, value)
                    value = None
                if extras is not None and (extras.timeout > 0 or extras.kind == RULE):
                    self._succeed(job, run, value, round)
                    job = value = None
            except BaseException as raised:
                error = raised
            if error is not None:
                # Not while it is handled: who waits for the future may raise it at once, and writes its traceback then,
                # which this thread would read at each `try`.
                task = args = None
                try:
                    self._fail(job, run, error, True, round)  # type: ignore[arg-type]
                finally:
                    job = error = None
            # Dropped here, not in the next round of the lock: the last reference may be one of these.
            task = args = extras = future = None
            if round.late and self._is_replaced(round):
                return False

    def _is_replaced(self, round: Round) -> bool:
        """Whether the last run of a worker had passed its time limit: then a substitute works in place of it."""
        late = round.late and not self._closed
        round.late = False
        return late

    def _recover(self, round: Round, error: BaseException) -> None:
        """Book the run that a worker lost to an error that was thrown into its thread outside the task."""
        self._book_lost(round, error)

    def _book_lost(self, round: Round, error: BaseException) -> int:
        if round.job is not None:
            self._fail(round.job, round.run, error, True, round)
        return 0

    def _withdraw(self, job: Job) -> None:
        """The run of a job whose future was cancelled did not start after all; for a pool that runs it."""
        self._retract(job, Round())

    def _retract(self, job: Job, round: Round) -> int:
        with self._tt.lock:
            round.job = None
            self._untake(job)
            if job._state == RUNNING:
                self._end(job, CANCELLED, round)
                round.future = None  # it is cancelled already; the job still refers to it
            elif job._going == 0:
                round.waiters = self._waiters_of(job)  # it was cancelled as it was taken
            self._conclude(round)
        round.finish(self)
        return 0

    def _withdraw_idle(self, park: Any) -> int:
        """Take a thread off the idle ones, if it is among them. Caller holds the lock."""
        for k in range(self._idle_count):
            if self._idle[k] is park:
                self._idle_count -= 1
                self._idle[k] = self._idle[self._idle_count]
                self._idle[self._idle_count] = park
                break
        return 0

    def _rest(self, park: Any) -> bool:
        """Note a dispatcher as idle; False when there is something to take, or the end has come."""
        with self._tt.lock:
            self._withdraw_idle(park)
            self._waking = False
            if (self._line._waiting() > 0 and not self._paused) or (self._closed and self._parked == 0):
                return False
            self._idle[self._idle_count] = park
            self._idle_count += 1
            return True

    def _take_one(self, round: Round) -> Job | None:
        """Take one ready job for a pool that runs it, or None: then the watcher is signalled when there is one.

        The round has it, too, until it is handed over: for `_recover`.
        """
        return self._take_into(round)

    def _take_into(self, round: Round) -> Job | None:
        now = self._now_or_last()
        with self._tt.lock:
            if self._tt._next() <= now and not self._closed:
                self._line._promote(now, PROMOTED)
            job = self._take(now, NO_BOUND)
            round.job = job
            if job is not None:
                round.run = job._attempts
            round.watcher = self._watcher_to_wake(self._soonest())
            self._conclude(round)  # the last ready job may have been put back
        round.finish(self)
        return job

    def _call_of(self, job: Job) -> tuple[Any, Sequence[Any], Mapping[str, Any], Any, Any, int]:
        """(task, args, kwargs, context, future, run) of a job that was just taken; the context is a copy, or None."""
        taken = self._known(job)
        context = None
        kwargs = None
        future = None
        with self._tt.lock:
            task = taken._task
            args = taken._args
            run = taken._attempts
            if taken._extras is not None:
                kwargs = taken._extras.kwargs
                context = taken._extras.context
                future = taken._extras.future
        return task, args or (), kwargs or {}, None if context is None else context.copy(), future, run

    # ------------------------------------------------------------ the end

    def _close(self, cancel_ready: bool) -> int:
        """Take no more jobs; cancel what is not due, and with `cancel_ready` what is ready; how many never start."""
        return self._cancel_rest(cancel_ready, self._now_or_last())

    def _cancel_rest(self, cancel_ready: bool, now: int) -> int:
        if not self._closed:
            if self._wall is not None:
                self._look(now, self._wall_now_or_estimate(now))
            self._promote_all(now)
        with self._tt.lock:
            if not self._closed:
                # In one step, the few that became due since: else a worker that sees an empty line ends too early. And
                # what was added for "now" a moment after the clock was read here was due, too.
                self._line._promote(max(now, self._due_until), NEVER)
                self._closed = True
                self._paused = False  # what is due runs
        round = Round()
        count = 0
        for job in self._tt._snapshot():
            count += self._cancel_undue(job, cancel_ready, round)
        return count

    def _cancel_undue(self, job: Job, cancel_ready: bool, round: Round) -> int:
        """Cancel a job at the end, unless it is due (ready, or waiting for its key, unpaused) or runs as a one-off."""
        count = 0
        with self._tt.lock:
            due = job._entered == PARKED or (job._entered == ENTERED and not self._tt._is_waiting(job._id))
            due = due and (job._extras is None or not job._extras.paused)
            one_off = job._extras is None or job._extras.kind == ONE_OFF
            if job._state <= RUNNING and not (one_off and job._state == RUNNING) and (cancel_ready or not due):
                count = 1 if job._going == 0 else 0
                if not self._end(job, CANCELLED, round):
                    count = 0
                self._unstarted += count
            self._conclude(round)
        round.finish(self)
        return count

    def _wake_all(self) -> None:
        """Wake every idle worker and the watcher: they see that the end has come."""
        self._poke()
        while True:
            with self._tt.lock:
                park = None
                if self._idle_count > 0:
                    self._idle_count -= 1
                    park = self._idle[self._idle_count]
            if park is None:
                return
            signal(park)

    def _join(self, waiter: Any, excused: int, kept: int) -> bool:
        """Release `waiter` at a time when all runs may be over; False: they are.

        `excused`: in how many runs the caller is itself, which keep `kept` places; those are not waited for, nor the
        runs of other such callers, nor what can start only when they are over.
        """
        waiters: list[Any] = []
        with self._tt.lock:
            self._excused += excused
            self._kept += kept
        started = -1
        while True:
            # What the last run led to may be due by now: a retry, a job that comes after it. Whether it is, only a
            # look at the clock tells that comes after a moment when nothing ran, with no start between the two.
            self._make_ready()
            with self._tt.lock:
                if not (self._is_drained() and (excused or self._runs == 0)):
                    if self._drained is None:
                        self._drained = waiters
                    self._drained.append(waiter)
                    return True
                if started == self._started:
                    return False
                started = self._started

    def _leave(self, waiter: Any, excused: int, kept: int) -> int:
        """A thread that was in `_join` goes on; how many jobs are ready."""
        with self._tt.lock:
            self._excused -= excused
            self._kept -= kept
            if self._drained is not None and waiter in self._drained:
                self._drained.remove(waiter)
            return self._line._waiting() + self._parked

    def _count_unstarted(self) -> int:
        """How many jobs the end has cancelled while no run of theirs was going, whichever thread did it."""
        with self._tt.lock:
            return self._unstarted

    def _count_running(self) -> int:
        """How many runs are going, or still to start."""
        with self._tt.lock:
            return self._runs + self._line._waiting() + self._parked
