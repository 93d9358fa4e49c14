"""The scheduler: who runs what is due. A watcher that waits, and workers that run; every rule is the agenda's.

    caller -> Scheduler -> Agenda -> Timetable, and back

The threads know the agenda and not the scheduler, so a scheduler that is dropped can end them. Each thread parks on a
lock of its own; the agenda says, under its one lock, who is to be woken, and whoever made the change releases that lock
afterwards. The watcher sleeps until exactly the next `run_at` and is signalled only for an earlier one, so with nothing
due the process does not wake up.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread  # noqa: F401 - registers its exit hook, so that ours, later, runs before it
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, Unpack
from zoneinfo import ZoneInfo

from . import agenda as _pure
from ._backend import Agenda, Job
from ._options import JobOptions, RateOptions, RecurringOptions, RepeatOptions, Seconds
from ._reports import Event, JobInfo, Stats, here
from ._units import SECOND, index_of, limit_ns, positive_ns
from ._waits import LONGEST_WAIT
from .agenda import acquire_until, complain, reading
from .recurrence import Cron, Recurrence
from .retry import RetryPolicy
from .status import Status

with contextlib.suppress(ImportError):  # without ctypes: the threads do without what these give
    from ._libc import libc
    from ._steps import Steps

logger = logging.getLogger("nextdue")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

UNTOLD_WAIT = 60.0  # longest sleep on an injected clock that cannot tell when it is moved
# Longest sleep, in ns, while jobs follow the wall clock, where its steps cannot be noticed, and where they can.
UNTOLD_STEP = 5 * SECOND
TOLD_STEP = 60 * SECOND
PATIENCE = 1.0  # seconds that a rule may take before another thread asks the next one
SHORTEST_PAUSE = 0.001  # before a thread that had an error goes on
LONGEST_PAUSE = 1.0  # between tries of a watcher whose clock fails
MOST_WORKERS = 2**15  # more threads than a process gets on most systems; without a bound a slip asks for all there are


class Shutdown(NamedTuple):
    """What `Scheduler.shutdown` found when it returned."""

    complete: bool  # all that was to run has run
    never_started: int  # jobs that were cancelled by the shutdown while no run of theirs was going
    running: int  # runs going, and due jobs that still wait for a worker


class _Here(threading.local):
    """Which run the current thread is in: a shutdown that is called from a run does not wait for that run."""

    agenda: Agenda | None = None  # of a worker
    call_of: int = 0  # of a thread of a foreign pool: id of the agenda whose task it runs
    forks: list[list[Agenda]] | None = None  # agendas whose locks this thread holds for the forks under way


_here = _Here()


class Scheduler(Executor):
    """Run jobs when they are due, on a fixed number of threads, or in another executor.

    Args:
        workers: how many runs may go at once, 1..32768; by default as `ThreadPoolExecutor` has it. If the system has
            not so many threads, RuntimeError is raised, and those that were started end.
        clock, wall_clock: as for `Agenda`. One with `subscribe(callback)`, as `ManualClock` has it, wakes the scheduler
            when it is moved; on another injected clock a sleep is at most 60 s. While jobs follow the wall clock, a
            sleep is at most 5 s, or 60 s where the system tells that the clock was set (Linux).
        retry: policy for failed one-offs that have none of their own; None: no retry.
        history, history_age, max_waiting: as for `Agenda`.
        executor: an `Executor` in which the tasks run instead, or a factory of one, which can also replace a pool that
            broke. At most `workers` runs are in it at a time, so priorities, cancel and shutdown keep their meaning.
            An executor that was given is not shut down.
        agenda: one made before, with a clock, a retry policy and bounds of its own.
        name: of the threads.

    Thread-safety: all of it may be called from any thread, from tasks and from signal handlers. Leaving a `with` block
    calls `shutdown()`.

    >>> with Scheduler(workers=1) as scheduler:
    ...     job = scheduler.schedule(pow, delay=0.01, args=(2, 10))
    ...     job.result()
    1024
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
        retry: RetryPolicy | None = None,
        history: int = 10_000,
        history_age: Seconds | None = None,
        max_waiting: int | None = None,
        executor: Executor | Callable[[], Executor] | None = None,
        agenda: Agenda | None = None,
        name: str = "nextdue",
    ) -> None:
        if hasattr(self, "_agenda"):
            raise TypeError("a Scheduler is made once, its __init__ cannot be called again")
        if workers is None:
            workers = min(32, (os.cpu_count() or 1) + 4)
        count = index_of(workers)
        if count is None:
            raise TypeError(f"workers must be an int or None, got {workers!r}")
        if not 1 <= count <= MOST_WORKERS:
            raise ValueError(f"workers must be from 1 to {MOST_WORKERS}, got {workers!r}")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r}")
        if executor is not None and not isinstance(executor, Executor) and not callable(executor):
            raise TypeError(f"executor must be an Executor or a factory of one, got {executor!r}")
        if agenda is None:
            agenda = Agenda(
                clock,
                retry=retry,
                history=history,
                history_age=history_age,
                max_waiting=max_waiting,
                wall_clock=wall_clock,
            )
        elif not isinstance(agenda, (Agenda, _pure.Agenda)):
            raise TypeError(f"agenda must be an Agenda, got {agenda!r}")
        elif clock is not time.monotonic_ns or wall_clock is not time.time_ns or retry is not None:
            raise ValueError("clock, wall_clock and retry must be left out where an agenda is given: it has its own")
        elif history != 10_000 or history_age is not None or max_waiting is not None:
            raise ValueError(
                "history, history_age and max_waiting must be left out where an agenda is given: it has its own"
            )
        clock = agenda._clock_of()
        reading(clock(), "clock")  # what is no clock is refused here: its threads could only log that they have none
        subscribe = _subscription_of(clock)
        subscribe_wall = _subscription_of(agenda._wall_clock_of())
        park = _parked()
        crew = _Crew(agenda, name, has_workers=executor is None)
        exact_wall = agenda._wall_clock_of() is time.time_ns
        watcher = _Watcher(crew, park, exact=clock is time.monotonic_ns, exact_wall=exact_wall)
        runs: list[tuple[str, Callable[[], None]]] = [("watcher", watcher.run)]
        if executor is None:
            hands = [_Worker(agenda) for _ in range(count)]
            runs += [(f"worker-{k}", worker.run) for k, worker in enumerate(hands)]
            self._parks = [park, *(worker.park for worker in hands)]
        else:
            dispatcher = _Dispatcher(agenda, executor, count)
            runs.append(("dispatcher", dispatcher.run))
            self._parks = [park, dispatcher.park]
        self._threads = crew.threads
        self._unsubscribe: list[Callable[[], None]] = []
        if type(self).schedule is Scheduler.schedule:
            self.schedule = agenda.schedule  # type: ignore[method-assign] # the same, and a call less for each job
        gate = _Gate()
        try:
            for suffix, run in runs:
                thread = threading.Thread(target=gate.enter, args=(run,), name=f"{name}-{suffix}", daemon=True)
                thread.start()
                self._threads.append(thread)
            may_be_idle = count if executor is None else 1
            agenda._attach(park, may_be_idle, count, subscribe is not None, subscribe_wall is not None)
            for tell in (subscribe, subscribe_wall):
                if tell is not None:
                    end = tell(agenda._poke)
                    if not callable(end):
                        raise TypeError(f"subscribe of a clock must return a callable, got {end!r}")
                    self._unsubscribe.append(end)
            gate.is_good = True
        except BaseException:
            gate.is_good = False
            agenda._detach(park)
            _unsubscribe(self._unsubscribe)
            raise
        finally:
            gate.lock.release()
        if executor is not None:
            _precede_process_pools()
        self._agenda = agenda  # last: a scheduler that was not made has nothing to close
        _schedulers.add(weakref.ref(self, _schedulers.discard))

    # ------------------------------------------------------------ jobs: the agenda's, signature for signature

    def schedule(
        self,
        task: Callable[..., Any],
        delay: Seconds = 0,
        *,
        at: int | datetime | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Run a task once. As `Agenda.schedule`, which lists the options; raises RuntimeError after `shutdown`."""
        return self._agenda.schedule(task, delay, at=at, **options)

    def schedule_at_fixed_rate(
        self,
        task: Callable[..., Any],
        initial_delay: Seconds,
        period: Seconds,
        *,
        at: int | None = None,
        **options: Unpack[RateOptions],
    ) -> Job:
        """Run a task at the slots `first + k * period`. As `Agenda.schedule_at_fixed_rate`."""
        return self._agenda.schedule_at_fixed_rate(task, initial_delay, period, at=at, **options)

    def schedule_with_fixed_delay(
        self,
        task: Callable[..., Any],
        initial_delay: Seconds,
        delay: Seconds,
        *,
        at: int | None = None,
        **options: Unpack[RepeatOptions],
    ) -> Job:
        """Run a task again and again, `delay` after each end. As `Agenda.schedule_with_fixed_delay`."""
        return self._agenda.schedule_with_fixed_delay(task, initial_delay, delay, at=at, **options)

    def schedule_recurring(
        self,
        task: Callable[..., Any],
        when: Recurrence | Callable[[int], int | None],
        **options: Unpack[RecurringOptions],
    ) -> Job:
        """Run a task at the slots that a rule gives, on the wall clock or this one. As `Agenda.schedule_recurring`."""
        return self._agenda.schedule_recurring(task, when, **options)

    def every(
        self, period: Seconds, *, initial_delay: Seconds | None = None, **options: Unpack[RateOptions]
    ) -> Callable[[F], F]:
        """Decorate a function that is to run at a fixed rate, first after one period; it stays a plain function.

        >>> with Scheduler(workers=1) as scheduler:
        ...     @scheduler.every(3600, id="hourly")
        ...     def report():
        ...         return "said"
        ...     report(), str(scheduler.status("hourly"))
        ('said', 'scheduled')
        """

        positive_ns(period, "period")  # here: `@scheduler.every` without a period would take the function for it

        def decorate(task: F) -> F:
            first = period if initial_delay is None else initial_delay
            self.schedule_at_fixed_rate(task, first, period, **options)
            return task

        return decorate

    def cron(
        self,
        expression: str,
        *,
        tz: str | ZoneInfo = "UTC",
        kind: Literal["fixed", "following"] | None = None,
        **options: Unpack[RecurringOptions],
    ) -> Callable[[F], F]:
        """Decorate a function that is to run when a cron expression says, by `Cron`; it stays a plain function.

        >>> with Scheduler(workers=1) as scheduler:
        ...     @scheduler.cron("0 9 * * mon-fri", tz="Europe/Prague", id="morning")
        ...     def greet():
        ...         return "good morning"
        ...     greet(), str(scheduler.status("morning"))
        ('good morning', 'scheduled')
        """
        rule = Cron(expression, tz=tz, kind=kind)

        def decorate(task: F) -> F:
            self.schedule_recurring(task, rule, **options)
            return task

        return decorate

    def cancel(self, job: Job | str | int) -> bool:
        """Cancel a job for good. As `Agenda.cancel`."""
        return self._agenda.cancel(job)

    def reschedule(self, job: Job | str | int, delay: Seconds = 0, *, at: int | datetime | None = None) -> bool:
        """Give a job another next run. As `Agenda.reschedule`."""
        return self._agenda.reschedule(job, delay, at=at)

    def status(self, job: Job | str | int) -> Status:
        """The `Status` of a job. As `Agenda.status`."""
        return self._agenda.status(job)

    def last_error(self, job: Job | str | int) -> BaseException | None:
        """What the last failed run of a job raised, or None. As `Agenda.last_error`."""
        return self._agenda.last_error(job)

    def pause(self, job: Job | str | int | None = None) -> bool:
        """Start no run of a job, or of any, until `resume`. As `Agenda.pause`."""
        return self._agenda.pause(job)

    def resume(self, job: Job | str | int | None = None) -> bool:
        """End a pause. As `Agenda.resume`."""
        return self._agenda.resume(job)

    def run_now(self, job: Job | str | int) -> bool:
        """Run a job now, besides its schedule. As `Agenda.run_now`."""
        return self._agenda.run_now(job)

    def jobs(self) -> list[JobInfo]:
        """All jobs that have not ended. As `Agenda.jobs`."""
        return self._agenda.jobs()

    def stats(self) -> Stats:
        """Counts, and how late runs started. As `Agenda.stats`."""
        return self._agenda.stats()

    def on(self, event: str, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call a listener at each event. As `Agenda.on`."""
        return self._agenda.on(event, listener)

    def wait_idle(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing runs and nothing is due; whether that was so within the timeout.

        What is due later does not count. A run that calls this is not waited for; if such runs keep every worker, or
        the keys, that what is due would need, the answer is False at once.
        """
        limit = limit_ns(timeout, "timeout")
        deadline = None if limit is None else time.monotonic_ns() + limit
        if self._agenda._is_orphaned():
            raise RuntimeError(_pure.ORPHANED)
        if _is_inside(self._agenda):
            return False
        excused, kept = _runs_here(self._agenda)
        waiter = _parked()
        idle = True
        try:
            while idle and self._agenda._join(waiter, excused, kept):
                idle = acquire_until(waiter, deadline)
                if excused:
                    break  # the others are over, or wait for runs themselves
        finally:  # a clock may fail
            ready = self._agenda._leave(waiter, excused, kept)
        return idle and not (excused and ready)

    def next_run_at(self) -> int | None:
        """The earliest run_at of the jobs that are not yet ready, or None. As `Agenda.next_run_at`."""
        return self._agenda.next_run_at()

    @property
    def skipped(self) -> int:
        """Slots of fixed-rate jobs that were not run, all jobs together."""
        return self._agenda.skipped

    # ------------------------------------------------------------ an Executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn(*args, **kwargs)` now; a `concurrent.futures.Future`, to which its error goes unlogged.

        Raises: RuntimeError after `shutdown`; TypeError if `fn` is not callable, or a coroutine function.
        """
        future: Future[T] = Future()
        self._agenda._submit(future, fn, args, kwargs)
        return future

    def shutdown(  # type: ignore[override]
        self, wait: bool = True, timeout: Seconds | None = None, *, cancel_futures: bool = False
    ) -> Shutdown:
        """Take no more jobs. What is not due ends CANCELLED; what is due, submitted or running still runs.

        Args:
            wait: wait until that is done. A run that calls this is not waited for, nor what can start only when it is
                over, since such runs keep every worker, or its key: that runs afterwards.
            timeout: seconds or a timedelta to wait at most; None or infinity: no limit.
            cancel_futures: cancel what is due or submitted, too; only what is running goes on.

        Returns: `Shutdown(complete, never_started, running)`. Futures and waiters of what never runs are released.
        Idempotent. May be called from a task, a done-callback or a signal handler.
        """
        limit = limit_ns(timeout, "timeout")
        deadline = None if limit is None else time.monotonic_ns() + limit
        wait, cancel_futures = bool(wait), bool(cancel_futures)
        agenda = self._agenda
        if agenda._is_orphaned():
            return Shutdown(False, agenda._count_left(), 0)
        ended = self._end(cancel_futures)
        excused, kept = _runs_here(agenda)
        if wait and ended:
            waiter = _parked()
            while agenda._join(waiter, excused, kept) and acquire_until(waiter, deadline):
                if excused:
                    break  # the others are over, or wait for runs themselves
            agenda._leave(waiter, excused, kept)
            if not excused:
                self._join_threads(deadline)
        running = max(0, agenda._count_running() - excused)
        return Shutdown(ended and running == 0, agenda._count_unstarted(), running)

    def _end(self, cancel_futures: bool) -> bool:
        """Close the agenda and send the threads home; False: that is done as soon as the call is over we are inside."""
        end = partial(_close, self._agenda, self._parks, self._unsubscribe, cancel_futures)
        if _is_inside(self._agenda):
            threading.Thread(target=end, name="nextdue-end", daemon=True).start()
            return False
        end()
        return True

    def _join_threads(self, deadline: int | None) -> None:
        """Wait for the threads to end, but for a caller that is one of them: the others may wait for it in here."""
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            left = LONGEST_WAIT
            while thread.is_alive() and left > 0:
                if deadline is not None:
                    left = max(0, deadline - time.monotonic_ns()) / SECOND
                thread.join(min(left, LONGEST_WAIT))

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        agenda = getattr(self, "_agenda", None)
        if agenda is None or agenda._is_closed():
            return
        self._end(False)  # first: a warning may be turned into an error
        _warn(
            f"unclosed scheduler {self!r}; call shutdown(), or use it in a with statement", ResourceWarning, source=self
        )

    def __reduce__(self) -> Any:
        raise TypeError("a Scheduler cannot be copied or pickled: its threads are its own")

    def __repr__(self) -> str:
        return f"<Scheduler on {self._agenda!r}>"


# ---------------------------------------------------------------- threads


def _parked() -> Any:
    """A binary semaphore: a plain lock, taken. Releasing it lets the thread that acquires it go on."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _is_inside(agenda: Agenda) -> bool:
    """Whether this thread is in the middle of a call of the agenda's: as a signal handler, or a finalizer.

    On the pure stack it holds the lock then: what it interrupts is half done, and nobody else goes on before it ends.
    """
    return isinstance(agenda, _pure.Agenda) and bool(agenda._tt.lock._is_owned())  # type: ignore[attr-defined]


def _close(agenda: Agenda, parks: list[Any], unsubscribes: list[Callable[[], None]], cancel_futures: bool) -> None:
    agenda._close(cancel_futures)
    agenda._wake_all()
    for park in parks:  # all: a call that a signal handler interrupts may owe one of them its wake-up
        with contextlib.suppress(RuntimeError):  # it is awake, or will be
            park.release()
    _unsubscribe(unsubscribes)


def _subscription_of(clock: Callable[[], int]) -> Any:
    """How to subscribe to a clock, or None where it does not tell when it is moved."""
    subscribe = getattr(clock, "subscribe", None)
    return subscribe if callable(subscribe) else None


def _unsubscribe(ends: list[Callable[[], None]]) -> None:
    for end in ends:
        try:
            end()
        except BaseException:
            complain("the clock's subscription could not be ended")


class _Gate:
    """Holds the threads of a scheduler back until all of them have started, or sends them home when one could not."""

    def __init__(self) -> None:
        self.lock = _parked()
        self.is_good = False

    def enter(self, run: Callable[[], None]) -> None:
        while True:
            try:
                with self.lock:
                    pass
                return run() if self.is_good else None
            except BaseException:
                pass  # thrown into the thread while it dealt with another error


def _runs_here(agenda: Agenda) -> tuple[int, int]:
    """In how many runs of an agenda's jobs this thread is, and how many of its scheduler's places these keep."""
    runs = 0 if here.round is None else here.round.runs_of(agenda)
    if _here.call_of == id(agenda):  # for a policy, too, which is asked when the run is no longer here
        return max(runs, 1), 1
    return runs, int(_here.agenda is agenda and runs > 0)  # the others are inside `run_due`


def _mention(message: str) -> None:
    """Log, for who debugs, the error being handled; as `complain`."""
    with contextlib.suppress(BaseException):
        logger.debug(message, exc_info=True)


def _sharpen() -> None:
    """Set this thread's timer slack to 1 ns: by default Linux adds 50 us to each timed wait."""
    if sys.platform == "linux":
        libc.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK


class _Crew:
    """The threads of a scheduler, without the scheduler: the watcher may add substitutes to them."""

    def __init__(self, agenda: Agenda, name: str, *, has_workers: bool) -> None:
        self.agenda = agenda
        self.name = name
        self.has_workers = has_workers  # of its own; a foreign pool gets no substitutes
        self.threads: list[threading.Thread] = []

    def substitute(self) -> None:
        """A run has passed its time limit: book that, and work in place of its worker, on a thread of its own."""
        thread = None
        try:
            self.threads[:] = [thread for thread in self.threads if thread.is_alive()]
            thread = threading.Thread(target=self.stand_in, name=f"{self.name}-substitute", daemon=True)
            self.threads.append(thread)  # first: a listener that it calls may shut the scheduler down
            thread.start()
        except Exception:  # RuntimeError: no thread; MemoryError: not even that
            if thread in self.threads:
                self.threads.remove(thread)
            complain("no thread could be started as a substitute for a worker")
            self.agenda._expire_one(False)

    def helper(self, what: str, run: Callable[[], None]) -> threading.Thread | None:
        """A thread for user code that may hang; nobody waits for its end. None if no thread is to be had."""
        try:
            thread = threading.Thread(target=run, name=f"{self.name}-{what}", daemon=True)
            thread.start()
        except Exception:
            complain("no thread could be started for %s", what)
            return None
        return thread

    def ask_rules(self) -> None:
        """Have the rules asked whose slots are in doubt: by one thread, but a rule may hang, and then by another."""
        while left := self.agenda._count_doubtful():
            helper = self.helper("rule", self.agenda._settle)
            if helper is None:
                self.agenda._settle()
                return
            while helper.is_alive():
                helper.join(PATIENCE)
                before, left = left, self.agenda._count_doubtful()
                if left == before:
                    break

    def stand_in(self) -> None:
        worker = None
        with contextlib.suppress(MemoryError):  # first: who is booked as a substitute has to work
            worker = _Worker(self.agenda) if self.has_workers else None
        needed = self.agenda._expire_one(worker is not None)
        while needed and worker is not None:
            try:
                worker.run()
                needed = False
            except BaseException:
                pass  # thrown into the thread before it minds that itself


class _Watcher:
    """The thread that sleeps until the next run_at."""

    def __init__(self, crew: _Crew, park: Any, *, exact: bool, exact_wall: bool) -> None:
        self.crew = crew
        self.agenda = crew.agenda
        self.park = park
        self.longest = LONGEST_WAIT if exact else UNTOLD_WAIT
        self.can_tell = exact_wall and sys.platform == "linux"  # the system tells when the wall clock is set
        self.steps: Any = None  # a `Steps`, while jobs follow the wall clock

    def watch_steps(self) -> None:
        """Begin, or cease, to be told when the wall clock is set."""
        if self.steps is not None:
            self.agenda._look_at_least(UNTOLD_STEP)
            steps, self.steps = self.steps, None
            steps.close()
            return
        try:
            self.steps = Steps(self.agenda._poke, f"{self.crew.name}-steps")
            self.agenda._look_at_least(TOLD_STEP)
        except Exception:
            self.can_tell = False
            _mention("steps of the wall clock are noticed by looking")

    def run(self) -> None:
        try:
            self.sleep_and_wake()
        finally:
            if self.steps is not None:
                self.watch_steps()

    def sleep_and_wake(self) -> None:
        try:
            _sharpen()
        except Exception:
            _mention("the timer slack stays as it is")
        pause = SHORTEST_PAUSE
        while True:
            try:
                while (sleep := self.agenda._watch()) != -2:
                    pause = SHORTEST_PAUSE  # the clock is well
                    if self.can_tell and self.agenda._follows_wall() != (self.steps is not None):
                        self.watch_steps()
                        continue
                    if sleep == -3:
                        self.crew.substitute()
                    elif sleep == -4:
                        if self.crew.helper("rules", self.crew.ask_rules) is None:
                            self.crew.ask_rules()
                    elif sleep < 0:
                        self.park.acquire()
                    elif sleep > 0:
                        self.park.acquire(True, min(sleep / SECOND, self.longest))
                return
            except BaseException:  # of the clock, or thrown into the thread: nothing ends the watcher
                if self.agenda._is_all_over():
                    return  # a clock that fails for good does not hold up the end
                complain("the watcher failed; it looks again in %g s", pause)
                self.park.acquire(True, pause)
                pause = min(2 * pause, LONGEST_PAUSE)


class _Worker:
    """A thread that runs what is ready, and parks when nothing is."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.park = _parked()
        self.round = agenda._new_round()

    def run(self) -> None:
        _here.agenda = self.agenda
        here.round = self.round
        lost: BaseException | None = None
        while True:
            try:
                if lost is not None:
                    self.agenda._recover(self.round, lost)
                    lost = None
                while self.agenda._work(self.park, self.round):
                    self.park.acquire()
                if self.agenda._is_closed():  # else a substitute works in place of this thread
                    self.agenda._close(False)  # a clock that went back may have sent a ready job back to the timetable
                return
            except BaseException as thrown:  # into the thread, outside a task
                # What the recovery itself raises is not recovered from, unless time will help.
                lost = thrown if lost is None or isinstance(thrown, MemoryError) else None
                complain("a worker was disturbed; it goes on")
                if isinstance(thrown, MemoryError):
                    time.sleep(SHORTEST_PAUSE)


# Rounds of the runs in foreign pools, by (process, number): the child of a fork has those of before, and not its own.
_flights: dict[tuple[int, int], Any] = {}


def _call_here(
    key: int,
    flight: tuple[int, int],
    task: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    context: Any,
) -> Any:
    """Run a task in a foreign pool, and note on its thread, if that is one of this process, whose it is."""
    before = _here.call_of, here.round
    round = _flights.get(flight) if flight[0] == os.getpid() else None
    _here.call_of, here.round = key, None if round is None else round.inside(here.round)
    try:
        return (contextvars.Context() if context is None else context).run(task, *args, **kwargs)
    finally:
        _here.call_of, here.round = before


class _Dispatcher:
    """A thread that hands ready jobs to a foreign executor, at most `places` at a time."""

    def __init__(self, agenda: Agenda, executor: Executor | Callable[[], Executor], places: int) -> None:
        self.agenda = agenda
        self.factory = None if isinstance(executor, Executor) else executor
        self.executor = executor if isinstance(executor, Executor) else None
        self.places = places
        self.taken: set[object] = set()  # of the places, a token each
        self.round = agenda._new_round()  # has the job that was taken and is not yet in the executor
        self.place: object = None  # and this is its token
        self.lock = threading.Lock()
        self.park = _parked()

    def run(self) -> None:
        while True:
            try:
                while self.step():
                    pass
                self.agenda._close(False)  # as a worker does
                break
            except BaseException as thrown:  # into the thread
                complain("the dispatcher was disturbed; it goes on")
                self.recover(thrown)
        if self.factory is not None and self.executor is not None:
            self.executor.shutdown(wait=False)

    def step(self) -> bool:
        """Hand over one job, or park; False at the end."""
        with self.lock:
            free = len(self.taken) < self.places
        if free:
            job = self.agenda._take_one(self.round)
            if job is not None:
                self.start(job)
                self.place = None
                self.round.forget()
                return True
            if not self.agenda._rest(self.park):
                return not self.agenda._is_drained_line()
        self.park.acquire()
        return True

    def start(self, job: Job) -> None:
        task, args, kwargs, context, future, run = self.agenda._call_of(job)
        place = self.place = object()
        with self.lock:
            self.taken.add(place)
        try:
            if future is not None and not future.set_running_or_notify_cancel():
                self.agenda._withdraw(job)
                self.leave(place)
                return
            self.agenda._tell_start(job)
            inner = self.submit(self.agenda._round_of(job), task, args, kwargs, context)
        except BaseException as error:
            self.ended(job, run, error, None, place)
            return
        inner.add_done_callback(lambda inner: self.done(job, run, inner, place))

    def recover(self, error: BaseException) -> None:
        """Book the run that was lost to an error thrown into this thread between its take and its hand-over."""
        try:
            self.agenda._recover(self.round, error)
        except BaseException:
            complain("the dispatcher was disturbed once more")
        self.leave(self.place)

    def submit(
        self, round: Any, task: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
    ) -> Future[Any]:
        if self.executor is None:
            self.executor = self.make()
        flight = os.getpid(), id(round)
        _flights[flight] = round
        try:
            inner = self.hand_over((_call_here, id(self.agenda), flight, task, args, kwargs, context))
            inner.add_done_callback(lambda _: _flights.pop(flight, None))
        except BaseException:
            _flights.pop(flight, None)
            raise
        return inner

    def hand_over(self, call: tuple[Any, ...]) -> Future[Any]:
        assert self.executor is not None
        try:
            return self.executor.submit(*call)
        except BrokenExecutor:
            if self.factory is None:
                raise
            with contextlib.suppress(BaseException):  # as in `complain`
                logger.warning("the pool is broken; a new one takes its place")
            self.executor.shutdown(wait=False)
            self.executor = None  # a factory that fails is asked again for the next job
            self.executor = self.make()
            return self.executor.submit(*call)

    def make(self) -> Executor:
        assert self.factory is not None
        made = self.factory()
        if not isinstance(made, Executor):
            raise TypeError(f"executor must be an Executor or a factory of one, got a factory of {made!r}")
        _precede_process_pools()
        return made

    def done(self, job: Job, run: int, inner: Future[Any], place: object) -> None:
        try:
            error = inner.exception()
        except BaseException as cancelled:  # the pool was shut down by its owner
            error = cancelled
        self.ended(job, run, error, None if error is not None else inner.result(), place)

    def ended(self, job: Job, run: int, error: BaseException | None, value: Any, place: object) -> None:
        """Book a run, on the pool's thread. Nothing goes out from here: it could end that thread."""
        before, _here.call_of = _here.call_of, id(self.agenda)  # a policy may call shutdown, and its run still counts
        try:
            self.agenda.finished(job, error, value=value, run=run)
        except BaseException as thrown:
            complain("the end of a run was disturbed")
            with contextlib.suppress(Exception):  # it may have come before the booking; a second one changes nothing
                self.agenda.finished(job, error or thrown, run=run)
        finally:
            _here.call_of = before
            self.leave(place)

    def leave(self, place: object) -> None:
        """A place is free, if it was not so already."""
        with self.lock:
            self.taken.discard(place)
        with contextlib.suppress(RuntimeError):  # released already: it is awake, and looks again
            self.park.release()


# ---------------------------------------------------------------- process life

# Not a WeakSet: iterating over one fails when another thread adds to it. Copying a set is one step.
_schedulers: set[weakref.ref[Scheduler]] = set()


def _alive() -> list[Scheduler]:
    return [scheduler for ref in _schedulers.copy() if (scheduler := ref()) is not None]


def _at_exit() -> None:
    """End every scheduler as an executor ends: what is due or submitted runs, what is not due does not."""
    for scheduler in _alive():
        if not scheduler._agenda._is_closed():
            scheduler.shutdown()


# Before `threading` joins the workers of `concurrent.futures`, whose hook this one precedes; plain atexit comes later.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
_hook_precedes_process_pools = "concurrent.futures.process" in sys.modules


def _precede_process_pools() -> None:
    """Register the exit hook once more, when process pools came after it: the last one registered is called first.

    They are not imported for this: multiprocessing would come with them.
    """
    global _hook_precedes_process_pools
    if _hook_precedes_process_pools or "concurrent.futures.process" not in sys.modules:
        return
    _hook_precedes_process_pools = True
    with contextlib.suppress(RuntimeError):  # the interpreter ends already
        threading._register_atexit(_at_exit)  # type: ignore[attr-defined]


def _before_fork() -> None:
    # In one order for all threads, or two that fork could wait for each other.
    agendas = sorted((scheduler._agenda for scheduler in _alive()), key=id)
    if _here.forks is None:
        _here.forks = []
    _here.forks.append(agendas)
    for agenda in agendas:
        agenda._before_fork()


def _after_fork(orphaned: bool) -> None:
    if _here.forks:
        for agenda in _here.forks.pop():
            agenda._after_fork(orphaned)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(False),
        after_in_child=lambda: _after_fork(True),
    )
