"""APScheduler 3.x on nextdue's timetable: a job store, and a `BackgroundScheduler` that uses it.

    -from apscheduler.schedulers.background import BackgroundScheduler
    +from nextdue.compat.apscheduler import BackgroundScheduler

or, for the store alone, ``scheduler.add_jobstore("nextdue")``.

`MemoryJobStore` keeps a sorted list: each add, update and removal bisects it in Python and moves half of it in memory.
Here each is a dict look-up and a step on the timetable. `BackgroundScheduler` shortens a job's turn beside that: a next
run time is computed once instead of twice, a due job goes to its worker without a `Future`, an event is made when
somebody listens, and a job that is added wakes the scheduler's thread only when it is the next to run.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from nextdue import Scheduler, Timetable

from ._extras import needs

with needs("apscheduler"):
    from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_SUBMITTED, JobSubmissionEvent
    from apscheduler.executors.base import MaxInstancesReachedError, run_job
    from apscheduler.executors.pool import BasePoolExecutor
    from apscheduler.job import Job
    from apscheduler.jobstores.base import BaseJobStore, ConflictingIdError, JobLookupError
    from apscheduler.schedulers import background, base

__all__ = ["BackgroundScheduler", "JobStore", "ThreadPoolExecutor", "Turns"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = math.inf
PAUSE: Any = object()  # in place of a next run time: that of a job whose trigger has failed
LONGEST_PAUSE = 1.0  # seconds between the tries of a scheduler whose passes fail


def instant_of(when: datetime) -> int:
    """Return an instant in microseconds since 1970 UTC, exact; a naive one is UTC, as for `MemoryJobStore`."""
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class _Stored:
    """A job as the store has it; its place is that of the last `add_job` or `update_job`, whatever the job says."""

    __slots__ = ("job", "run_at", "timer_id")

    def __init__(self, job: Any, run_at: int | None, timer_id: int | None) -> None:
        self.job = job
        self.run_at = run_at  # microseconds; None: paused
        self.timer_id = timer_id  # None: not on the timetable, since paused, or found due


def _place(stored: _Stored) -> tuple[float, str]:
    return (NEVER if stored.run_at is None else stored.run_at, stored.job.id)


class JobStore(BaseJobStore):
    """Keep jobs in memory, on a timetable. Plugin alias: ``nextdue``.

    A job that `get_due_jobs` found leaves the timetable, and waits beside it until it is updated or removed.

    Complexity: `add_job`, `update_job` and `remove_job` O(1) amortised; `get_due_jobs` and `get_next_run_time` by what
    is due; `get_all_jobs` O(n log n).
    Thread-safety: as `MemoryJobStore`, none: its scheduler takes a lock around each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timetable = Timetable()  # of _Stored, by run_at
        self._jobs: dict[str, _Stored] = {}  # all, by id
        self._due: dict[str, _Stored] = {}  # those taken from the timetable, by id

    def lookup_job(self, job_id: str) -> Any:
        """Return a job, or None if there is none of this id."""
        stored = self._jobs.get(job_id)
        return None if stored is None else stored.job

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Return the jobs whose next run time is `now` or earlier, by run time, equal ones by id."""
        instant = instant_of(now)
        found = self._timetable.pop_due(instant)
        for stored in found:
            stored.timer_id = None
            self._due[stored.job.id] = stored
        if len(self._due) > len(found):  # some were found before; if the clock went back, they need not be due
            found = [stored for stored in self._due.values() if _place(stored)[0] <= instant]
        found.sort(key=_place)
        return [stored.job for stored in found]

    def get_next_run_time(self) -> datetime | None:
        """Return the earliest next run time, in UTC, or None if no job has one."""
        run_at = self.next_run_at()
        return None if run_at is None else EPOCH + timedelta(microseconds=run_at)

    def next_run_at(self) -> int | None:
        """Return the earliest next run time in microseconds since 1970 UTC, or None if no job has one."""
        earliest = self._timetable.next_run_at()
        for stored in self._due.values():
            if earliest is None or _place(stored)[0] < earliest:
                earliest = stored.run_at
        return earliest

    def get_all_jobs(self) -> list[Any]:
        """Return all jobs by next run time, equal ones by id, paused ones last."""
        return [stored.job for stored in sorted(self._jobs.values(), key=_place)]

    def add_job(self, job: Any) -> None:
        """Add a job. Raises: ConflictingIdError when there is one with its id."""
        job_id = job.id
        if job_id in self._jobs:
            raise ConflictingIdError(job_id)
        when = job.next_run_time
        stored = _Stored(job, None if when is None else instant_of(when), None)
        self._wait(stored)
        self._jobs[job_id] = stored

    def update_job(self, job: Any) -> None:
        """Put a job in the place of the one with its id. Raises: JobLookupError when there is none."""
        job_id = job.id
        stored = self._jobs.get(job_id)
        if stored is None:
            raise JobLookupError(job_id)
        when = job.next_run_time
        run_at = None if when is None else instant_of(when)
        stored.job = job
        if stored.timer_id is not None and run_at == stored.run_at:
            return
        self._leave(stored)
        stored.run_at = run_at
        self._wait(stored)

    def remove_job(self, job_id: str) -> None:
        """Remove a job. Raises: JobLookupError when there is none of this id."""
        stored = self._jobs.pop(job_id, None)
        if stored is None:
            raise JobLookupError(job_id)
        self._leave(stored)

    def remove_all_jobs(self) -> None:
        """Remove all jobs."""
        self._timetable.clear()
        self._due.clear()
        self._jobs.clear()

    def shutdown(self) -> None:
        """Remove all jobs: nothing outlives the process."""
        self.remove_all_jobs()

    def _wait(self, stored: _Stored) -> None:
        if stored.run_at is not None:
            stored.timer_id = self._timetable.add(stored.run_at, stored)

    def _leave(self, stored: _Stored) -> None:
        if stored.timer_id is not None:
            self._timetable.cancel(stored.timer_id)
            stored.timer_id = None
        else:
            self._due.pop(stored.job.id, None)


class ThreadPoolExecutor(BasePoolExecutor):
    """Run jobs on the workers of a `nextdue.Scheduler`: the default executor of `BackgroundScheduler`.

    Args:
        max_workers: how many jobs run at a time.
    """

    def __init__(self, max_workers: int = 10) -> None:
        self._max_workers = int(max_workers)
        super().__init__(None)

    def start(self, scheduler: Any, alias: str) -> None:
        """Start the workers, also after a shutdown."""
        super().start(scheduler, alias)
        self._pool = Scheduler(workers=self._max_workers, history=0, name=f"apscheduler-{alias}")

    def shutdown(self, wait: bool = True) -> None:
        """End the workers, after the jobs that were submitted; with `wait`, return when they have run."""
        if self._pool is not None:
            self._pool.shutdown(wait)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self._pool.schedule(self._run, args=(job, job._jobstore_alias, run_times))

    def _run(self, job: Any, jobstore_alias: str, run_times: list[datetime]) -> None:
        try:
            events = run_job(job, jobstore_alias, run_times, self._logger.name)
        except BaseException as error:
            self._run_job_error(job.id, error, error.__traceback__)
        else:
            self._run_job_success(job.id, events)


class Turns:
    """What gives due jobs their turn; to be mixed into any scheduler of APScheduler's, before its own class."""

    _wakes_at: float = NEVER  # when the scheduler will look for due jobs unless it is woken, microseconds
    _is_ending = False  # the scheduler ends, or the process, and with it the pools that run jobs

    def __init__(self, *args: Any, **options: Any) -> None:
        # What a store could not take: by its alias and the job's id, the run time that was submitted, and the next.
        self._owed: dict[tuple[str, str], tuple[datetime, Any]] = {}
        super().__init__(*args, **options)

    def _create_default_jobstore(self) -> JobStore:
        return JobStore()

    def _create_default_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor()

    def _process_jobs(self: Any) -> float | None:
        """Submit what is due, give each job its next run time, and return for how many seconds to sleep.

        What it does is `BaseScheduler._process_jobs`, in the same order, and with the same records in the log; but a
        store that fails, or a trigger, harms no other.
        """
        if self.state == base.STATE_PAUSED:
            self._logger.debug("Scheduler is paused -- not processing jobs")
            return None

        self._logger.debug("Looking for jobs to run")
        now = base.datetime.now(self.timezone)
        wakeup_time = None
        submissions: list[tuple[int, Any, str, list[datetime]]] = []
        with self._jobstores_lock:
            self._wakes_at = NEVER  # from now on, whoever adds a job has to wake us for another look
            for alias, store in self._jobstores.items():
                store_wakeup_time = self._take_turns(alias, store, now, submissions)
                if store_wakeup_time and (wakeup_time is None or store_wakeup_time < wakeup_time):
                    wakeup_time = store_wakeup_time.astimezone(self.timezone)
            if wakeup_time is not None:
                self._wakes_at = instant_of(wakeup_time)

        if self._listeners:
            for submission in submissions:
                self._dispatch_event(JobSubmissionEvent(*submission))

        if self.state == base.STATE_PAUSED:
            self._logger.debug("Scheduler is paused; waiting until resume() is called")
            return None
        if wakeup_time is None:
            self._logger.debug("No jobs; waiting until a job is added")
            return None
        seconds: float = wakeup_time.timestamp() - base.datetime.now(self.timezone).timestamp()
        seconds = min(max(seconds, 0), base.TIMEOUT_MAX)
        self._logger.debug("Next wakeup is due at %s (in %f seconds)", wakeup_time, seconds)
        return seconds

    def _take_turns(
        self: Any, alias: str, store: Any, now: datetime, submissions: list[tuple[int, Any, str, list[datetime]]]
    ) -> datetime | None:
        """Give the due jobs of a store their turn, and return when to look at it again. Caller holds the lock."""
        instant = instant_of(now)
        again_at = now + timedelta(seconds=self.jobstore_retry_interval)
        try:
            due_jobs = store.get_due_jobs(now)
        except Exception as error:
            self._logger.warning("Error getting due jobs from job store %r: %s", alias, error)
            return again_at
        failed = False
        for job in due_jobs:
            try:
                self._take_turn(job, alias, store, now, instant, submissions)
            except Exception:
                self._logger.exception('Error updating job "%s" in job store %r', job, alias)
                failed = True
        try:
            if not failed:
                return store.get_next_run_time()  # type: ignore[no-any-return]
            # What failed is still due: it is looked at again then, or earlier with the next of the others.
            times = [job.next_run_time for job in store.get_all_jobs()]
            return min(again_at, *(time for time in times if time and instant_of(time) > instant))  # type: ignore[no-any-return]
        except Exception as error:
            self._logger.warning("Error getting the next run time from job store %r: %s", alias, error)
            return again_at

    def _take_turn(
        self: Any,
        job: Any,
        alias: str,
        store: Any,
        now: datetime,
        instant: int,
        submissions: list[tuple[int, Any, str, list[datetime]]],
    ) -> None:
        """Submit a due job and move it to its next run time. Caller holds the lock of the job stores."""
        if self._is_ending or (isinstance(store, JobStore) and store.lookup_job(job.id) is not job):
            return  # a job before it, which ran on this thread, has removed it
        try:
            executor = self._lookup_executor(job.executor)
        except BaseException:
            self._logger.error(
                'Executor lookup ("%s") failed for job "%s" -- removing it from the job store', job.executor, job
            )
            self.remove_job(job.id, alias)
            return

        slot, trigger = job.next_run_time, job.trigger
        owed = self._owed.pop((alias, job.id), None)
        if owed is not None and owed[0] == slot:
            next_run = owed[1]
        else:
            run_times: Any
            if type(job) is Job:
                # Job._get_run_times, which drops the last result: it is the next run time.
                run_times, next_run = [], slot
                while next_run and next_run is not PAUSE and instant_of(next_run) <= instant:
                    run_times.append(next_run)
                    next_run = self._ask(job, next_run, now)
            else:
                run_times, next_run = job._get_run_times(now), base.undefined
            if run_times and job.coalesce:
                run_times = run_times[-1:]
            if not run_times:
                return
            self._submit(job, executor, alias, run_times, submissions)
            if next_run is base.undefined or job.trigger is not trigger:  # the run, on this thread, may change its job
                next_run = self._ask(job, run_times[-1], now)
        try:
            self._move_on(job, alias, store, next_run)
        except JobLookupError:
            pass  # the run, on this thread, has removed its job
        except Exception:
            job.next_run_time = slot  # as the store has it
            self._owed[alias, job.id] = slot, next_run
            raise

    def _ask(self: Any, job: Any, previous: datetime, now: datetime) -> Any:
        """Return a job's next run time, by its trigger; PAUSE if that fails."""
        try:
            return job.trigger.get_next_fire_time(previous, now)
        except Exception:
            self._logger.exception('Trigger of job "%s" failed -- pausing the job', job)
            return PAUSE

    def _submit(
        self: Any,
        job: Any,
        executor: Any,
        alias: str,
        run_times: list[datetime],
        submissions: list[tuple[int, Any, str, list[datetime]]],
    ) -> None:
        try:
            executor.submit_job(job, run_times)
        except MaxInstancesReachedError:
            self._logger.warning(
                'Execution of job "%s" skipped: maximum number of running instances reached (%d)',
                job,
                job.max_instances,
            )
            submissions.append((EVENT_JOB_MAX_INSTANCES, job.id, alias, run_times))
        except BaseException:
            if not self._is_ending:
                self._logger.exception('Error submitting job "%s" to executor "%s"', job, job.executor)
        else:
            submissions.append((EVENT_JOB_SUBMITTED, job.id, alias, run_times))

    def _move_on(self: Any, job: Any, alias: str, store: Any, next_run: Any) -> None:
        if not next_run:
            self.remove_job(job.id, alias)
            return
        if type(job) is Job and type(next_run) is datetime and next_run.tzinfo is not None:
            job.next_run_time = next_run  # what Job._modify comes to
        else:
            job._modify(next_run_time=None if next_run is PAUSE else next_run)
        store.update_job(job)


class BackgroundScheduler(Turns, background.BackgroundScheduler):
    """`apscheduler.schedulers.background.BackgroundScheduler`, with `JobStore` and `ThreadPoolExecutor` by default."""

    _adding: int | None = None  # the thread that adds a job; written under the lock of the job stores

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the scheduler. As APScheduler's; the process waits for it at its end if ``daemon`` is false."""
        self._is_ending = False
        super().start(*args, **kwargs)
        with contextlib.suppress(RuntimeError):  # the process ends already
            # The hook that was registered last is called first: before those by which the pools end.
            threading._register_atexit(partial(_at_exit, weakref.ref(self)))  # type: ignore[attr-defined]

    def shutdown(self: Any, wait: bool = True) -> None:
        """Shut down the scheduler. As APScheduler's, and from anywhere: from a listener, too, and from a job.

        Args:
            wait: wait until the jobs that run have ended. They may use the scheduler meanwhile.
        """
        if self.state == base.STATE_STOPPED:
            raise base.SchedulerNotRunningError
        self.state = base.STATE_STOPPED
        self._is_ending = True
        with self._executors_lock, self._jobstores_lock:  # after the pass that is going
            executors = list(self._executors.values())
        for executor in executors:  # without a lock that the jobs which it waits for may want
            executor.shutdown(wait)
        with self._jobstores_lock:
            for store in self._jobstores.values():
                store.shutdown()
        self._logger.info("Scheduler has been shut down")
        self._dispatch_event(base.SchedulerEvent(base.EVENT_SCHEDULER_SHUTDOWN))
        self._event.set()
        thread = self._thread
        del self._thread
        if thread is not threading.current_thread():
            thread.join()

    def _main_loop(self) -> None:
        seconds: float | None = base.TIMEOUT_MAX
        pause = 0.001
        while self.state != base.STATE_STOPPED:
            try:
                self._event.wait(seconds)
                self._event.clear()
                seconds = self._process_jobs()
                pause = 0.001
            except BaseException:  # thrown into the thread: nothing ends it
                self._logger.exception("Error looking for jobs to run; looking again in %g seconds", pause)
                seconds = pause
                pause = min(2 * pause, LONGEST_PAUSE)

    def _process_jobs(self) -> float | None:
        return None if self._is_ending else super()._process_jobs()

    def _real_add_job(self, job: Any, jobstore_alias: str, replace_existing: bool) -> None:
        self._adding = threading.get_ident()
        try:
            super()._real_add_job(job, jobstore_alias, replace_existing)
        finally:
            self._adding = None

    def wakeup(self) -> None:
        """Have the scheduler look for due jobs, now. Adding a job that is not the next to run does not wake it."""
        if self._adding != threading.get_ident() or self._has_earlier():
            super().wakeup()

    def _has_earlier(self) -> bool:
        """Tell whether a job is due before the scheduler wakes by itself. Caller holds the lock of the job stores."""
        stores: Iterable[Any] = self._jobstores.values()
        for store in stores:
            if type(store) is not JobStore:
                return True  # asking it may take long, and it need not know what others have put there
            run_at = store.next_run_at()
            if run_at is not None and run_at < self._wakes_at:
                return True
        return False


def _at_exit(ref: weakref.ref[BackgroundScheduler]) -> None:
    """Wait for a scheduler whose thread is no daemon; have any other stop to give jobs to pools that take no more."""
    scheduler = ref()
    thread = None if scheduler is None else scheduler._thread
    if scheduler is None or thread is None:
        return
    if scheduler._daemon:
        scheduler._is_ending = True
    else:
        thread.join()
