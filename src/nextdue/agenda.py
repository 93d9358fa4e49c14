# cython: language_level=3, freethreading_compatible=True, annotation_typing=False, cdivision=True, wraparound=False
"""The agenda: jobs, their states, and every rule about what runs next. No thread is started here and nothing sleeps.

This file is the one source of the rules. It runs as it stands over `HeapqTimetable` (the pure stack), and compiled as
`_agenda_c` over `Timetable`, with the C types of `_agenda_c.pxd` (the compiled stack). It says `tt` for the timetable
and `line` for the ready line; both stacks have the same underscored methods there, which do not lock.

One lock, the timetable's, guards everything: timetable, ready line, jobs and agenda. An operation takes it once. In
`with self._tt.lock` stands only what may stand there (the compiled lock is not re-entrant, and a waiting thread must
never wait for user code): arithmetic, moves of references, dicts with exact `str` keys. Nothing is created that the
collector tracks, and no reference is dropped that could be the last: what a round of the lock leaves to do (drop, wake,
notify, tidy) is noted in a `Round` and done after it. "Caller holds the lock." marks what is called inside.

Where a job's one live entry is:

    _entered and the slot is waiting      in the timetable
    _entered and the slot is held         in the ready line
    not _entered                          nowhere: it runs, or has ended

A slot is the job's for life: held while it runs, kept when it has ended until the history forgets it. So an automatic
id needs no dict, and an id that is stale is refused by the timetable.
"""

from __future__ import annotations

import _thread
import inspect
import logging
import operator
import time
import types
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from copy import copy
from functools import partial

from ._units import duration_ns, limit_ns, positive_ns
from .errors import DuplicateJobId, UnknownJobId
from .retry import DEFAULT
from .status import Status

try:
    import cython  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    from . import _cython_shim as cython  # type: ignore[no-redef, unused-ignore]

TYPE_CHECKING = False
if TYPE_CHECKING:  # annotations are for readers and mypy: C types are in `_agenda_c.pxd`
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta
    from typing import Any

    from .retry import RetryPolicy

    Seconds = float | timedelta

if not cython.compiled:
    nearest = round
    from time import monotonic_ns

    from ._heapq_timetable import HeapqTimetable as Timetable
    from ._heapq_timetable import ReadyLine

__all__ = ["Agenda", "Job"]

logger = logging.getLogger("nextdue")

NEVER = 2**63 - 1  # an instant that does not come
AWAKE = -NEVER  # `_armed_at` of a watcher that does not sleep, or has been signalled: no job is earlier
SECOND_NS = 1_000_000_000
PROMOTED = 4096  # jobs that become ready in one round of the lock: a millisecond at most
NO_BOUND = 2**63

SCHEDULED, RUNNING, SUCCEEDED, FAILED, CANCELLED = range(5)
ONE_OFF, FIXED_RATE, FIXED_DELAY = range(3)
ADDED, CLOSED, DUPLICATE, NO_ROOM = range(4)  # what came of an attempt to add a job

STATUS = (Status.SCHEDULED, Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
ORPHANED = "this scheduler was made before a fork and its threads are in the parent; make a new one in the child"
ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
LONGEST_WAIT = _thread.TIMEOUT_MAX  # seconds that the platform can wait at once


def after(instant: int, ns: int) -> int:
    """`instant + ns` for ns >= 0, saturating; a duration that has saturated does not end, whatever the clock says."""
    if ns == NEVER or instant > NEVER - ns:
        return NEVER
    return instant + ns


def duration(value: Any, name: str) -> int:
    """A delay in nanoseconds; zero or less means now."""
    if type(value) is int and -SECOND_NS < value < SECOND_NS:
        ns = value * SECOND_NS
    elif type(value) is float and -1e9 < value < 1e9:
        ns = nearest(value * 1e9)
    else:
        ns = duration_ns(value, name)
    return max(ns, 0)


def check_task(task: Any) -> int:
    """Refuse what cannot be called, and coroutine functions: calling one would run nothing."""
    if type(task) is types.BuiltinFunctionType:
        return 0
    if type(task) is types.FunctionType:
        if not task.__code__.co_flags & ASYNC_FLAGS:
            return 0
    elif type(task) is types.MethodType and type(task.__func__) is types.FunctionType:
        if not task.__func__.__code__.co_flags & ASYNC_FLAGS:
            return 0
    elif not callable(task):
        raise TypeError(f"task must be callable, got {task!r}")
    elif not is_async(task):
        return 0
    raise TypeError(f"task must be a plain callable, got the coroutine function {task!r}")


def is_async(task: Any) -> bool:
    """Whether a partial, a method or an object comes down to a coroutine or async generator function."""
    while isinstance(task, partial):
        task = task.func
    if not isinstance(task, (type, types.FunctionType, types.MethodType)):
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
        next_error.__traceback__ = None
        chain += [next_error.__cause__, next_error.__context__]


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
    fresh.__cause__ = error.__cause__
    fresh.__context__ = error.__context__
    fresh.__suppress_context__ = error.__suppress_context__
    return fresh


def blame(broken: BaseException, raised: BaseException) -> None:
    """Make the task's error the first cause of its policy's, so that both are kept; never a ring of causes."""
    seen = set()
    cause: BaseException | None = raised
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__
    last = broken
    while id(last) not in seen:  # seen already: the policy raised the task's error, or from it
        seen.add(id(last))
        if last.__cause__ is None:
            last.__cause__ = raised
            return
        last = last.__cause__


def revoke(future: Future[Any]) -> int:
    """Cancel the future of a job that will not run, and release who waits for it."""
    try:
        if future.cancel():
            future.set_running_or_notify_cancel()
    except BaseException:
        complain("a future could not be cancelled")
    return 0


class Extras:
    """What only some jobs have, made on use: a plain one-off that succeeds has none."""

    __slots__ = (
        "future",
        "kind",
        "kwargs",
        "last_error",
        "moved",
        "name",
        "own_retry",
        "period",
        "retry",
        "retrying",
        "skipped",
        "slot",
        "streak",
        "waiters",
    )

    def __init__(self) -> None:
        self.name: str | None = None  # the id that the user gave
        self.kwargs: dict[str, Any] | None = None
        self.retry: RetryPolicy | None = None  # the job's own policy, if own_retry
        self.own_retry = False
        self.last_error: BaseException | None = None
        self.future: Future[Any] | None = None  # of a submitted job
        self.waiters: list[Any] | None = None  # locks of threads in Job.wait
        self.kind = ONE_OFF
        self.period = 0  # ns: between slots (fixed rate), or from the end of a run (fixed delay)
        self.slot = 0  # fixed rate: the earliest slot that is neither run nor skipped
        self.skipped = 0
        self.streak = 0  # failed attempts at the present slot
        self.retrying = False  # the next run is another attempt at a slot already counted
        self.moved = False  # rescheduled while it ran

    def advance(self, instant: int) -> int:
        """Skip the slots before `instant`; how many. O(1): slots are `first + k * period`, k is found by division."""
        if self.slot >= instant:
            return 0
        # Unsigned when compiled: from an `at` long past to the clock may be more than int64 holds.
        behind = instant
        behind -= self.slot
        step = self.period
        count = (behind - 1) // step + 1
        rest = behind % step
        self.slot = instant if rest == 0 else after(instant, step - rest)
        self.skipped += count
        return count


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
        "_state",
        "_task",
    )

    _agenda: Agenda
    _args: tuple[Any, ...] | None
    _attempts: int
    _entered: bool
    _extras: Extras | None
    _going: int
    _id: int
    _outcome: Any
    _priority: int
    _run_at: int
    _state: int
    _task: Any

    def __init__(self) -> None:
        raise TypeError("a Job is made by schedule(), schedule_at_fixed_rate() or schedule_with_fixed_delay()")

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
        """Instant of the next run, or of the last when none is to come: int, nanoseconds on the agenda's clock."""
        with self._agenda._tt.lock:
            return self._run_at

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

    def cancel(self) -> bool:
        """Cancel the job; False if it had ended. As `Agenda.cancel`."""
        return self._agenda.cancel(self)

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
            while True:
                # In slices: a platform has a longest wait. A negative timeout would mean none.
                left = LONGEST_WAIT if deadline is None else max(deadline - time.monotonic_ns(), 0) / SECOND_NS
                if waiter.acquire(True, min(left, LONGEST_WAIT)):
                    return True
                if deadline is not None and time.monotonic_ns() >= deadline:
                    break
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

    def __repr__(self) -> str:
        return f"<Job {self.id!r}: {self.status}, run_at={self.run_at}, attempts={self.attempts}>"


class Round:
    """What one round of the lock leaves to do after it. Filled under the lock, where all fields are None before."""

    __slots__ = (
        "args",
        "crowded",
        "drained",
        "error",
        "forgotten",
        "future",
        "job",
        "kwargs",
        "retry",
        "run",
        "task",
        "waiters",
        "watcher",
        "worker",
    )

    def __init__(self) -> None:
        self.task: Any = None  # of the job that has ended, like the next three: to be dropped
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] | None = None
        self.retry: RetryPolicy | None = None
        self.forgotten: Job | None = None  # the job that the history has dropped for it
        self.error: BaseException | None = None  # a last_error that has been replaced
        self.waiters: list[Any] | None = None  # locks of threads that wait for it
        self.future: Future[Any] | None = None  # to be cancelled: its job will not run
        self.drained: list[Any] | None = None  # locks of threads that wait for a shutdown
        self.worker: Any = None  # lock of an idle worker to be woken
        self.watcher: Any = None  # the watcher's lock, if it sleeps too long
        self.crowded = False
        self.job: Job | None = None  # which the worker that keeps this round runs: from its take to its booking
        self.run = 0

    def is_busy(self) -> bool:
        return self.job is not None

    def finish(self, tt: Timetable) -> int:
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
            self.forgotten = None
        if self.error is not None:
            self.error = None
        if self.future is not None:
            revoke(self.future)
            self.future = None
        if self.waiters is not None:
            notify(self.waiters)
            self.waiters = None
        if self.drained is not None:
            notify(self.drained)
            self.drained = None
        if self.crowded:
            tt._tidy()
            self.crowded = False
        return 0


class Agenda:
    """Keep jobs, and decide what runs next, without a thread: a driver asks `run_due`, or `take_due` and `finished`.

    Args:
        clock: a callable that returns int nanoseconds and is monotonic. Nothing else tells the time here. If it goes
            back, jobs wait until it has come again to their run_at; one that raises, or returns no int, raises at the
            call.
        retry: policy for failed one-offs that have none of their own; None: no retry.
        history: how many ended jobs are remembered by their id.

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

    def __init__(
        self, clock: Callable[[], int] = time.monotonic_ns, *, retry: RetryPolicy | None = None, history: int = 10_000
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock must be callable, got {clock!r}")
        if retry is not None and not callable(retry):
            raise TypeError(f"retry must be callable or None, got {retry!r}")
        if isinstance(history, bool) or not hasattr(history, "__index__"):
            raise TypeError(f"history must be an int, got {history!r}")
        if operator.index(history) < 0:
            raise ValueError(f"history must be 0 or more, got {history!r}")
        self._tt = Timetable()
        self._line = ReadyLine(self._tt)
        self._clock = clock
        self._monotonic = clock is time.monotonic_ns
        self._last_now = 0
        self._retry = retry
        self._names: dict[str, Job] = {}  # given id -> its newest job
        self._ended: list[Job] = []  # a ring of ended jobs, the oldest at _oldest
        self._history = min(operator.index(history), 2**31)
        self._oldest = 0
        self._skipped = 0
        self._runs = 0  # going now
        self._excused = 0  # of these, how many wait in a shutdown themselves
        self._closed = False
        # The waker: who sleeps, and until when. A scheduler fills it in; without one nobody is ever signalled.
        self._workers = False
        self._watcher: Any = None
        self._armed_at = AWAKE
        self._idle: list[Any] = []
        self._idle_count = 0
        self._waking = False
        self._drained: list[Any] | None = None
        self._orphaned = False  # this is the child of a fork: the scheduler's threads stayed in the parent

    # ------------------------------------------------------------ adding

    def schedule(
        self,
        task: Callable[..., Any],
        delay: Seconds = 0,
        *,
        at: int | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 0,
        retry: RetryPolicy | None = DEFAULT,
    ) -> Job:
        """Run a task once.

        Args:
            task: a callable; not a coroutine function.
            delay: seconds or a timedelta from now; zero or less: now.
            at: int, nanoseconds on this clock, in place of a delay.
            args, kwargs: the task's own arguments, a tuple or list and a mapping with str keys.
            id: a str that no job has that has not ended; None: an automatic int.
            priority: -2048..2047; the higher goes first among equals and among ready jobs.
            retry: a policy; None: no retry; by default the agenda's.

        Returns: the `Job`.
        Raises: TypeError, ValueError naming the parameter and the value; DuplicateJobId. Then nothing was added.
        Complexity: O(log n) at worst, O(1) on average.
        """
        now = self._now()
        run_at = self._start(now, delay, at, "delay")
        extras = self._extras_for(task, args, kwargs, id, retry)
        return self._add(task, run_at, args, extras, self._rank(priority), now)

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
    ) -> Job:
        """Run a task at the slots `first + k * period`.

        A slot strictly inside a run is skipped and counted, one equal to its end is run. After a pause the earliest
        missed slot is run, late, and the others are skipped; then it is back on its slots. A failed run changes nothing
        of this; with a policy of its own (`retry=`) a failed run is tried again, and slots meanwhile are skipped.

        Args:
            initial_delay: until the first slot, seconds or a timedelta; or `at=`, its instant.
            period: seconds or a timedelta, more than 0 ns.
            others: as `schedule`.
        """
        now = self._now()
        run_at = self._start(now, initial_delay, at, "initial_delay")
        period_ns = positive_ns(period, "period")
        extras = self._repeating(self._extras_for(task, args, kwargs, id, retry), FIXED_RATE, period_ns, run_at)
        return self._add(task, run_at, args, extras, self._rank(priority), now)

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
    ) -> Job:
        """Run a task again and again, `delay` from the end of a run to the next.

        Args:
            initial_delay: until the first run, seconds or a timedelta; or `at=`, its instant.
            delay: seconds or a timedelta, more than 0 ns.
            others: as `schedule`.
        """
        now = self._now()
        run_at = self._start(now, initial_delay, at, "initial_delay")
        delay_ns = positive_ns(delay, "delay")
        extras = self._repeating(self._extras_for(task, args, kwargs, id, retry), FIXED_DELAY, delay_ns, run_at)
        return self._add(task, run_at, args, extras, self._rank(priority), now)

    def _submit(
        self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Job:
        """Add a one-off, due now, whose outcome goes to `future`; it is forgotten when it ends."""
        now = self._now()
        extras = self._extras_for(fn, args, kwargs, None, None)
        if extras is None:
            extras = Extras()
        extras.future = future
        return self._add(fn, now, args, extras, 0, now)

    def _now(self) -> int:
        if self._monotonic:
            return monotonic_ns()
        now = self._clock()
        if isinstance(now, bool) or not hasattr(now, "__index__"):
            raise TypeError(f"clock must return int nanoseconds, got {now!r}")
        instant = operator.index(now)
        if not AWAKE < instant < NEVER:
            raise OverflowError(f"clock must return int nanoseconds within int64, got {now!r}")
        self._last_now = instant
        return self._last_now

    def _now_or_last(self) -> int:
        """The clock where nobody could take its error: that is logged, and the last good reading stands in."""
        try:
            return self._now()
        except BaseException:
            complain("the clock failed; its last reading stands in")
            return self._last_now

    def _start(self, now: int, delay: Any, at: Any, name: str) -> int:
        if at is None:
            return after(now, duration(delay, name))
        if isinstance(at, bool) or not hasattr(at, "__index__"):
            raise TypeError(f"at must be int nanoseconds on the agenda's clock, got {at!r}")
        if type(delay) is not int or delay != 0:
            raise ValueError(f"{name} must be 0 where at is given, got {delay!r}")
        return min(max(operator.index(at), AWAKE + 1), NEVER)

    def _rank(self, priority: Any) -> int:
        if isinstance(priority, bool) or not hasattr(priority, "__index__"):
            raise TypeError(f"priority must be an int, got {priority!r}")
        rank = operator.index(priority)
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
        if retry is not None and retry is not DEFAULT and not callable(retry):
            raise TypeError(f"retry must be callable or None, got {retry!r}")
        extras = Extras()
        extras.name = id
        if kwargs is not None and given:
            extras.kwargs = given
        if retry is not DEFAULT:
            extras.retry = retry
            extras.own_retry = True
        return extras

    def _repeating(self, extras: Extras | None, kind: int, period: int, run_at: int) -> Extras:
        if extras is None:
            extras = Extras()
        if not extras.own_retry:
            extras.own_retry = True  # a repeating job carries on; it is retried by a policy of its own alone
        extras.kind = kind
        extras.period = period
        extras.slot = run_at
        return extras

    def _add(
        self, task: Callable[..., Any], run_at: int, args: Sequence[Any], extras: Extras | None, priority: int, now: int
    ) -> Job:
        job = Job.__new__(Job)
        job._task = task
        job._args = tuple(args) if args else None
        job._agenda = self
        job._extras = extras
        job._outcome = None
        job._run_at = run_at
        job._id = -1
        job._attempts = 0
        job._priority = priority
        job._going = 0
        job._state = SCHEDULED
        job._entered = False
        worker = None
        watcher = None
        while True:
            with self._tt.lock:
                done = self._enter(job, extras, run_at, priority, now)
                if done == ADDED:
                    worker = self._worker_to_wake()
                    # Not run_at: what went straight to the ready line is not the watcher's business.
                    watcher = self._watcher_to_wake(self._tt._next())
            if done != NO_ROOM:
                break
            self._tt._make_room(1)
        if worker is not None:
            signal(worker)
        if watcher is not None:
            signal(watcher)
        if done == ADDED:
            return job
        if self._orphaned:
            raise RuntimeError(ORPHANED)
        if done == CLOSED:
            raise RuntimeError("cannot schedule new jobs after shutdown")
        if done == DUPLICATE:
            raise DuplicateJobId(f"id must be that of no job that has not ended, got {job.id!r}")
        raise MemoryError("no memory for another job; nothing was added")

    def _enter(self, job: Job, extras: Extras | None, run_at: int, priority: int, now: int) -> int:
        """Put a new job on the timetable, or, due and with workers about, in the ready line. Caller holds the lock."""
        if self._closed or self._orphaned:
            return CLOSED
        name = None if extras is None else extras.name
        if name is not None:
            other = self._names.get(name)
            if other is not None and other._state <= RUNNING:
                return DUPLICATE
        if not self._tt._has_room(1):
            return NO_ROOM
        direct = self._workers and run_at <= now
        if direct and self._tt._next() <= now:
            # What is due already goes first; if that is more than one round's work, this job waits behind it.
            self._line._promote(now, PROMOTED)
            direct = self._tt._next() > now
        if direct:
            job._id = self._tt._occupy(priority, job)
            if job._id >= 0 and not self._line._put(run_at, self._tt._ticket(job._id), job._id):
                self._tt._release(job._id)
                job._id = -1
        else:
            job._id = self._tt._add(run_at, priority, job)
        if job._id < 0:
            return -1
        job._entered = True
        if name is not None:
            self._names[name] = job
        return ADDED

    # ------------------------------------------------------------ changing and asking

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
        round = Round()
        with self._tt.lock:
            found = self._find(job)
            if found is None or found._state > RUNNING:
                return False
            self._end(found, CANCELLED, round)
            self._conclude(round)
        round.finish(self._tt)
        return True

    def reschedule(self, job: Job | str | int, delay: Seconds = 0, *, at: int | None = None) -> bool:
        """Give a job another next run; the slots of a fixed-rate job count from there.

        Returns: False if it had ended, is unknown, or is a one-off that runs; and after a shutdown.
        Complexity: as `schedule`.
        """
        self._check_handle(job)
        run_at = self._start(self._now(), delay, at, "delay")
        round = Round()
        while True:
            with self._tt.lock:
                found = self._find(job)
                if found is None or found._state > RUNNING or self._closed:
                    return False
                extras = found._extras
                if found._state == RUNNING and (extras is None or extras.kind == ONE_OFF):
                    return False
                if self._tt._has_room(1):
                    if extras is not None and extras.kind != ONE_OFF:
                        extras.slot = run_at
                        extras.retrying = False
                        extras.streak = 0
                        extras.moved = found._going > 0
                    self._arm(found, run_at)
                    self._rouse(round)
                    break
            found = extras = None  # here: the next round of the lock might drop the last reference
            self._tt._make_room(1)
        round.finish(self._tt)
        return True

    def status(self, job: Job | str | int) -> Status:
        """The `Status` of a job, by handle or id. Raises: UnknownJobId."""
        return self._known(job).status

    def last_error(self, job: Job | str | int) -> BaseException | None:
        """What the last failed run of a job raised, or None. Raises: UnknownJobId."""
        return self._known(job).last_error

    def _known(self, job: Any) -> Job:
        self._check_handle(job)
        with self._tt.lock:
            found = self._find(job)
        if found is None:
            raise UnknownJobId(f"job must be known, got {job!r}")
        return found

    def next_run_at(self) -> int | None:
        """The earliest run_at of the jobs that are not yet ready, int nanoseconds; None if there is none."""
        with self._tt.lock:
            if self._tt._live == 0:
                return None
            return self._tt._next()

    @property
    def skipped(self) -> int:
        """Slots of fixed-rate jobs that were not run, all jobs together."""
        with self._tt.lock:
            return self._skipped

    def __repr__(self) -> str:
        with self._tt.lock:
            waiting = self._tt._live
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
        self._promote_all(now)
        return self._run_pass(now)

    def take_due(self, limit: int | None = None) -> list[Job]:
        """Take what is due, in ready order, at most `limit` jobs, for a driver of its own: each is marked RUNNING.

        The driver calls each job's task and then `finished`. They count as started together: cancelling one of them
        afterwards no longer keeps it from running; a driver that wants that takes one at a time.

        Returns: list of `Job`.
        """
        if limit is not None:
            if isinstance(limit, bool) or not hasattr(limit, "__index__"):
                raise TypeError(f"limit must be an int or None, got {limit!r}")
            if operator.index(limit) < 0:
                raise ValueError(f"limit must be 0 or more, got {limit!r}")
        now = self._now()
        self._promote_all(now)
        taken = []
        bound = NO_BOUND
        left = NEVER if limit is None else operator.index(limit)
        while left > 0:
            left -= 1
            with self._tt.lock:
                if bound == NO_BOUND:
                    bound = self._tt._counter + 1
                job = self._take(now, bound)
                crowded = self._tt._crowded()
            if crowded:
                self._tt._tidy()
            if job is None:
                break
            taken.append(job)
        return taken

    def finished(
        self, job: Job | str | int, error: BaseException | None = None, *, value: Any = None, run: int | None = None
    ) -> None:
        """Book the end of a run that `take_due` handed out: the one place where a run ends.

        Args:
            job: a `Job` or its id.
            error: what the task raised, or None.
            value: what it returned.
            run: the number of the run, `job.attempts` when it was taken; None: the one that is going. The end of an
                earlier run, which was booked before, changes nothing.

        Raises: UnknownJobId; ValueError if that run was not taken or, without `run`, no run of the job is going.
        """
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception or None, got {error!r}")
        if run is not None and (isinstance(run, bool) or not isinstance(run, int)):
            raise TypeError(f"run must be an int or None, got {run!r}")
        found = self._known(job)
        with self._tt.lock:
            going = found._going
            attempts = found._attempts
        if run is None and going == 0:
            raise ValueError(f"job must have a run that is going, got {found!r}")
        if run is not None and not 1 <= run <= attempts:
            raise ValueError(f"run must be the number of a run that was taken, got {run!r}")
        number = attempts if run is None else run
        if going == 0 or number != attempts:
            return
        if error is None:
            self._succeed(found, number, value, Round())
        else:
            self._fail(found, number, error, Round())

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
        return 0

    def _run_pass(self, now: int) -> int:
        count = 0
        bound = NO_BOUND
        round = Round()
        while True:
            with self._tt.lock:
                if bound == NO_BOUND:
                    bound = self._tt._counter + 1
                job = self._take(now, bound)
                crowded = self._tt._crowded()
                if job is not None:
                    task = job._task
                    args = job._args
                    extras = job._extras
                    kwargs = None if extras is None else extras.kwargs
                    run = job._attempts
            if crowded:
                self._tt._tidy()
            if job is None:
                return count
            count += 1
            error = None
            value = None
            try:
                if kwargs is not None:
                    value = task(*(args or ()), **kwargs)
                elif args is not None:
                    value = task(*args)
                else:
                    value = task()
            except BaseException as raised:
                error = raised
            # Dropped here, not in the next round of the lock: the last reference may be one of these.
            task = args = kwargs = extras = None
            if error is None:
                self._succeed(job, run, value, round)
            else:
                error = self._fail(job, run, error, round)
                if error is not None:
                    try:
                        raise error
                    finally:
                        error = None  # its traceback refers to this frame
            job = value = error = None

    def _take(self, now: int, bound: int) -> Job | None:
        """Take the next ready job whose entry is older than `bound`, and mark it RUNNING; None if there is none.

        This is the gate: what keeps a ready job from running is decided here, when a worker is there for it, not when
        it became ready. Caller holds the lock.
        """
        while True:
            timer_id = self._line._pop(bound)
            if timer_id < 0:
                return None
            job: Job = self._tt._item(timer_id)
            if job._going > 0:
                job._entered = False  # a slot inside its own run: `_next_turn` decides at the end of that (promise 6)
            elif job._run_at > now:
                self._tt._rearm(timer_id, job._run_at)  # moved on meanwhile, or the clock went back (promise 1)
            else:
                break
        job._entered = False
        job._state = RUNNING
        job._going += 1
        job._attempts += 1
        self._runs += 1
        extras = job._extras
        if extras is not None:
            extras.moved = False
            if extras.kind == FIXED_RATE and not self._closed:
                if not extras.retrying:
                    extras.slot = after(extras.slot, extras.period)
                self._skipped += extras.advance(now)
                self._arm(job, extras.slot)
        return job

    def _arm(self, job: Job, run_at: int) -> int:
        """Put a job on the timetable for its next run. `_has_room(1)` if it is on it already. Caller holds the lock."""
        ready = job._entered and not self._tt._is_waiting(job._id)
        self._tt._rearm(job._id, run_at)
        job._run_at = run_at
        job._entered = True
        if ready:
            self._line._forget()
        return 0

    def _succeed(self, job: Job, run: int, value: Any, round: Round) -> int:
        end = self._now_or_last()
        with self._tt.lock:
            self._book(job, run, False, value, None, end, -1, round)
            self._rouse(round)
        round.finish(self._tt)
        return 0

    def _fail(self, job: Job, run: int, error: BaseException, round: Round) -> BaseException | None:
        """Ask the policy, book the end of a failed run, log it.

        Returns: what `run_due` raises again, a KeyboardInterrupt or SystemExit; else None. It is a copy, with the
        traceback, because the one in the books is kept without.
        """
        raised = error
        refused = False  # the policy failed
        spare = Extras()
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
        if policy is not None and isinstance(error, Exception):
            try:
                answer = policy(attempt, error)
                if answer is not None:
                    wait = max(duration_ns(answer, "the answer of a retry policy"), 0)
            except BaseException as broken:
                blame(broken, raised)
                error = broken
                refused = True
        end = self._now_or_last()
        with suppress(MemoryError):
            self._tt._make_room(1)  # a retry may move an entry that waits, see `_next_turn`
        with self._tt.lock:
            current = job._state == RUNNING and job._going > 0 and run == job._attempts
            round.job = None
            self._book(job, run, True, None, error, end, wait, round)
            self._rouse(round)
            state = job._state
            if state == SCHEDULED and wait >= 0:
                wait = job._run_at - end  # not the policy's answer if the job was rescheduled while it ran
        trace = error.__traceback__
        try:
            if future is not None:
                if current:
                    try:
                        future.set_exception(error)
                    except BaseException:
                        complain("a future could not take its error")
            else:
                if current:
                    self._log(job, attempt, error, refused, state, wait)
                without_traceback(error)
        finally:
            round.finish(self._tt)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return to_raise(error).with_traceback(trace)
        return None

    def _log(self, job: Job, attempt: int, error: BaseException, refused: bool, state: int, wait: int) -> None:
        trace = (type(error), error, error.__traceback__)
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
        round: Round,
    ) -> int:
        """End a run in the books; `wait` ns to the next attempt, or -1. Caller holds the lock."""
        if job._going == 0 or run != job._attempts:
            return 0  # booked already, by a driver that said so twice
        job._going -= 1
        self._runs -= 1
        extras = job._extras
        if job._state == RUNNING:
            if failed and extras is not None:  # it has some: `_fail`
                round.error = extras.last_error
                extras.last_error = error
            if extras is not None and extras.kind != ONE_OFF:
                if self._closed:
                    self._end(job, CANCELLED, round)
                else:
                    job._state = SCHEDULED
                    self._next_turn(job, extras, end, wait)
            elif failed and wait >= 0 and not self._closed:
                job._state = SCHEDULED
                self._arm(job, after(end, wait))
            else:
                job._outcome = value
                self._end(job, FAILED if failed else SUCCEEDED, round)
        elif job._going == 0:
            round.waiters = self._waiters_of(job)  # cancelled while it ran, and over now
        return 0

    def _next_turn(self, job: Job, extras: Extras, end: int, wait: int) -> int:
        """Decide when a repeating job runs again, after a run that ended at `end`. Caller holds the lock."""
        if extras.moved:
            run_at = job._run_at  # rescheduled while it ran: that is the next run, late if need be
        elif wait >= 0:
            extras.streak += 1
            extras.retrying = True
            run_at = after(end, wait)
        else:
            extras.streak = 0
            extras.retrying = False
            if extras.kind == FIXED_RATE:
                self._skipped += extras.advance(end)
                run_at = extras.slot
            else:
                run_at = after(end, extras.period)
        if job._entered and run_at == job._run_at:
            return 0  # the slot it was armed for as it was taken
        if job._entered and self._tt._is_waiting(job._id) and not self._tt._has_room(1):
            job._run_at = run_at  # the entry comes up too early, and the gate sends it on
            return 0
        return self._arm(job, run_at)

    def _end(self, job: Job, state: int, round: Round) -> int:
        """SCHEDULED or RUNNING -> an end, for good. Caller holds the lock."""
        job._state = state
        waited = self._tt._disarm(job._id)
        if job._entered and not waited:
            self._line._forget()
        job._entered = False
        round.task = job._task
        job._task = None
        round.args = job._args
        job._args = None
        extras = job._extras
        if extras is not None:
            round.kwargs = extras.kwargs
            extras.kwargs = None
            round.retry = extras.retry
            extras.retry = None
        round.forgotten = self._remember(job)
        if job._going == 0:
            round.waiters = self._waiters_of(job)
            if state == CANCELLED and extras is not None:
                round.future = extras.future
        return 0

    def _remember(self, job: Job) -> Job | None:
        """Note an ended job in the history; the job that is forgotten for it, or None. Caller holds the lock."""
        extras = job._extras
        if self._history == 0 or (extras is not None and extras.future is not None):
            victim = job  # nobody has the id of a submitted job
        elif len(self._ended) < self._history:
            self._ended.append(job)
            return None
        else:
            victim = self._ended[self._oldest]
            self._ended[self._oldest] = job
            self._oldest += 1
            if self._oldest == self._history:
                self._oldest = 0
        extras = victim._extras
        if extras is not None and extras.name is not None and self._names.get(extras.name) is victim:
            del self._names[extras.name]
        self._tt._release(victim._id)
        return victim

    def _waiters_of(self, job: Job) -> list[Any] | None:
        """Detach the locks of those who wait for a job. Caller holds the lock."""
        if job._extras is None:
            return None
        waiters = job._extras.waiters
        job._extras.waiters = None
        return waiters

    # ------------------------------------------------------------ who sleeps; for a scheduler

    def _worker_to_wake(self) -> Any:
        """An idle worker's lock, if one is to be woken: one at a time, and the woken one sees to the next.

        Caller holds the lock.
        """
        if self._idle_count == 0 or self._waking or self._line._waiting() == 0:
            return None
        self._waking = True
        self._idle_count -= 1
        return self._idle[self._idle_count]

    def _watcher_to_wake(self, run_at: int) -> Any:
        """The watcher's lock, if it sleeps past `run_at`; it is signalled once. Caller holds the lock."""
        if run_at >= self._armed_at:
            return None
        self._armed_at = AWAKE
        return self._watcher

    def _rouse(self, round: Round) -> int:
        """Note whom this round of the lock, which has armed jobs or made some ready, concerns: its last step, once.

        Caller holds the lock.
        """
        round.worker = self._worker_to_wake()
        round.watcher = self._watcher_to_wake(self._tt._next())
        return self._conclude(round)

    def _conclude(self, round: Round) -> int:
        """Note what the ends in this round of the lock lead to: its last step, once. Caller holds the lock."""
        round.crowded = self._tt._crowded()
        if self._drained is not None and self._is_drained():
            round.drained = self._drained
            self._drained = None
        return 0

    def _is_drained(self) -> bool:
        return self._runs <= self._excused and self._line._waiting() == 0

    def _is_drained_line(self) -> bool:
        """Whether the end has come and nothing is ready: for a dispatcher, which then ends."""
        with self._tt.lock:
            return self._closed and self._line._waiting() == 0

    def _clock_of(self) -> Callable[[], int]:
        return self._clock

    def _is_closed(self) -> bool:
        return self._closed

    def _is_orphaned(self) -> bool:
        return self._orphaned

    def _new_round(self) -> Round:
        return Round()

    def _count_left(self) -> int:
        """How many jobs wait, for their time or for a worker."""
        with self._tt.lock:
            return self._tt._live + self._line._waiting()

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

    def _attach(self, watcher: Any, workers: int) -> None:
        """A scheduler gives the watcher's lock, and how many workers may be idle at once."""
        idle = [None] * workers
        with self._tt.lock:
            if not self._workers:
                self._watcher = watcher
                self._idle = idle
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

        Returns: nanoseconds to sleep; 0: look again at once; -1: until signalled; -2: the end.
        """
        now = self._now()
        with self._tt.lock:
            self._armed_at = AWAKE
            self._line._promote(now, PROMOTED)
            next_at = self._tt._next()
            if self._closed:
                sleep = -2
            elif next_at <= now:
                sleep = 0
            else:
                self._armed_at = next_at
                sleep = -1 if next_at == NEVER else next_at - now
            worker = self._worker_to_wake()
            crowded = self._tt._crowded()
        if worker is not None:
            signal(worker)
        if crowded:
            self._tt._tidy()
        return sleep

    def _poke(self) -> None:
        """Make the watcher look again: the clock was moved, or the end has come."""
        with self._tt.lock:
            watcher = self._watcher if self._armed_at != AWAKE else None
            self._armed_at = AWAKE
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
                    self._book(job, run, False, value, None, now, -1, round)
                if tt._next() <= now and not self._closed:
                    self._line._promote(now, PROMOTED)
                if not self._orphaned:  # a task may fork: what is ready runs in the parent
                    following = self._take(now, NO_BOUND)
                round.job = following
                if following is not None:
                    round.run = following._attempts
                    task = following._task
                    args = following._args
                    run = following._attempts
                    extras = following._extras
                    if extras is not None:
                        kwargs = extras.kwargs
                        future = extras.future
                    else:
                        kwargs = None
                        future = None
                elif self._closed:
                    stop = True
                else:
                    self._idle[self._idle_count] = park  # one place for each worker: `_attach`
                    self._idle_count += 1
                self._rouse(round)
            round.finish(tt)
            job = value = None
            if following is None:
                return not stop
            job = following
            following = extras = None
            try:
                if future is not None and not future.set_running_or_notify_cancel():
                    task = args = kwargs = None
                    self._retract(job, round)
                    job = future = None
                    continue
                if kwargs is not None:
                    value = task(*(args or ()), **kwargs)
                elif args is not None:
                    value = task(*args)
                else:
                    value = task()
                if future is not None:
                    # In the run, before another job is taken: no job waits behind the callbacks of a future.
                    deliver(future, value)
                    value = None
            except BaseException as error:
                task = args = kwargs = None
                self._fail(job, run, error, round)  # type: ignore[arg-type]
                job = None
            # Dropped here, not in the next round of the lock: the last reference may be one of these.
            task = args = kwargs = future = None

    def _recover(self, round: Round, error: BaseException) -> None:
        """Book the run that a worker lost to an error that was thrown into its thread outside the task."""
        self._book_lost(round, error)

    def _book_lost(self, round: Round, error: BaseException) -> int:
        if round.job is not None:
            self._fail(round.job, round.run, error, round)
        return 0

    def _withdraw(self, job: Job) -> None:
        """The run of a job whose future was cancelled did not start after all; for a pool that runs it."""
        self._retract(job, Round())

    def _retract(self, job: Job, round: Round) -> int:
        with self._tt.lock:
            round.job = None
            job._going -= 1
            job._attempts -= 1
            self._runs -= 1
            if job._state == RUNNING:
                self._end(job, CANCELLED, round)
                round.future = None  # it is cancelled already; the job still refers to it
            self._conclude(round)
        round.finish(self._tt)
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
            if self._line._waiting() > 0 or self._closed:
                return False
            self._idle[self._idle_count] = park
            self._idle_count += 1
            return True

    def _take_one(self) -> Job | None:
        """Take one ready job for a pool that runs it, or None: then the watcher is signalled when there is one."""
        now = self._now_or_last()
        with self._tt.lock:
            if self._tt._next() <= now and not self._closed:
                self._line._promote(now, PROMOTED)
            job = self._take(now, NO_BOUND)
            watcher = self._watcher_to_wake(self._tt._next())
        if watcher is not None:
            signal(watcher)
        return job

    def _call_of(
        self, job: Job
    ) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Future[Any] | None, int]:
        """(task, args, kwargs, future, run) of a job that was just taken."""
        taken = self._known(job)
        with self._tt.lock:
            extras = taken._extras
            task = taken._task
            args = taken._args
            run = taken._attempts
            kwargs = None if extras is None else extras.kwargs
            future = None if extras is None else extras.future
        return task, args or (), kwargs or {}, future, run

    # ------------------------------------------------------------ the end

    def _close(self, cancel_ready: bool) -> int:
        """Take no more jobs; cancel what is not due, and with `cancel_ready` what is ready; how many never start."""
        return self._cancel_rest(cancel_ready, self._now_or_last())

    def _cancel_rest(self, cancel_ready: bool, now: int) -> int:
        if not self._closed:
            self._promote_all(now)
        with self._tt.lock:
            if not self._closed:
                # In one step, the few that became due since: else a worker that sees an empty line ends too early.
                self._line._promote(now, NEVER)
                self._closed = True
        round = Round()
        count = 0
        while True:
            with self._tt.lock:
                timer_id = self._tt._last_waiting()
                if timer_id < 0 and cancel_ready:
                    timer_id = self._line._pop(NO_BOUND)
                    if timer_id >= 0:
                        job = self._tt._item(timer_id)
                        job._entered = False
                if timer_id >= 0:
                    job = self._tt._item(timer_id)
                    if job._state <= RUNNING:
                        count += job._going == 0
                        self._end(job, CANCELLED, round)
                self._conclude(round)
            round.finish(self._tt)
            job = None
            if timer_id < 0:
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

    def _join(self, waiter: Any, excused: int) -> bool:
        """Release `waiter` at a time when all runs may be over; False: they are.

        `excused` is 1 for a caller that is in a run itself: that run is not waited for, nor those of other such
        callers.
        """
        waiters: list[Any] = []
        with self._tt.lock:
            self._excused += excused
            if self._is_drained() and (excused or self._runs == 0):
                return False
            if self._drained is None:
                self._drained = waiters
            self._drained.append(waiter)
        return True

    def _leave(self, waiter: Any, excused: int) -> None:
        """A thread that was in `_join` goes on."""
        with self._tt.lock:
            self._excused -= excused
            if self._drained is not None and waiter in self._drained:
                self._drained.remove(waiter)

    def _count_running(self) -> int:
        """How many runs are going, or still to start."""
        with self._tt.lock:
            return self._runs + self._line._waiting()
