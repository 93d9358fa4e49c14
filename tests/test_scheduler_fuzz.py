"""A scheduler on a manual clock under threads that do everything at random, while CPython switches between them.

The threads know what they added; at the end every job is accounted for, and all ways to look agree.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import threading
from collections import Counter, deque
from concurrent.futures import CancelledError

import pytest

from nextdue import DuplicateJobId, FixedBackoff, Scheduler, Status, current_job
from nextdue.testing import ManualClock

pytestmark = pytest.mark.realtime

PATIENCE = 60
ENDS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
EVENTS = ("started", "succeeded", "failed", "retrying", "cancelled")


@pytest.fixture(autouse=True)
def forced_switches():
    """Ask for a switch after each microsecond."""
    before = sys.getswitchinterval()
    logger = logging.getLogger("nextdue")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # tasks fail by the hundred
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    logger.setLevel(level)


class Failure(Exception):
    """What tasks raise."""


class Fuzz:
    """The scheduler, what was added to it, and what its tasks and listeners saw."""

    def __init__(self, stack):
        self.clock = ManualClock()
        self.agenda = stack.Agenda(self.clock)
        self.scheduler = Scheduler(workers=3, agenda=self.agenda)
        self.jobs = []  # (kind, job), of all threads: append is one step
        self.futures = []
        self.recent = deque(maxlen=64)  # jobs that any thread may pick
        self.faults = []
        self.number = itertools.count()  # of a job: ids that are given are given again
        self.runs = deque()  # (number, attempt) of each, as the task saw it
        self.going = Counter()
        self.keys = {key: threading.Lock() for key in ("a", "b")}
        self.told = {name: deque() for name in EVENTS}
        for name, seen in self.told.items():
            self.scheduler.on(name, seen.append)

    def task(self, number, kind, key, fails):
        run = current_job()
        if run.run_at > self.clock():
            self.faults.append(("a run starts early", kind, run.run_at))
        self.runs.append((number, run.attempt))
        if key is not None and not self.keys[key].acquire(blocking=False):
            self.faults.append(("a key excludes", kind, key))
            return
        if kind in ("rate", "delay"):
            self.going[number] += 1  # no other thread may be in here
            if self.going[number] != 1:
                self.faults.append(("runs of a repeating job do not overlap", kind))
            self.going[number] -= 1
        if key is not None:
            self.keys[key].release()
        if fails:
            raise Failure

    def add(self, rng, name):
        kind = rng.choice(("one-off", "one-off", "now", "rate", "delay", "after", "named", "submit"))
        key = rng.choice((None, None, None, "a", "b"))
        fails = rng.random() < 0.2
        options = {"args": (next(self.number), kind, key, fails), "key": key, "priority": rng.randrange(-1, 2)}
        if fails and rng.random() < 0.5:
            options["retry"] = FixedBackoff(max_attempts=3, delay=rng.choice((0, 1)))
        schedule, delay = self.scheduler.schedule, rng.random() * 3
        if kind == "submit":
            self.futures.append(self.scheduler.submit(pow, 2, rng.randrange(9)))
            return
        if kind == "now":
            job = schedule(self.task, **options)
        elif kind == "rate":
            job = self.scheduler.schedule_at_fixed_rate(
                self.task, delay, 1, max_runs=rng.randrange(1, 4), **options, overlap=rng.choice(("skip", "queue"))
            )
        elif kind == "delay":
            job = self.scheduler.schedule_with_fixed_delay(self.task, delay, 1, max_runs=2, **options)
        elif kind == "after" and self.recent:
            rule = rng.choice(("cancel", "run"))
            job = schedule(self.task, delay, after=[self.pick(rng)], on_upstream_failure=rule, **options)
        elif kind == "named":
            try:
                job = schedule(self.task, delay, id=name, **options)
            except DuplicateJobId:
                return
        else:
            job = schedule(self.task, delay, **options)
        self.jobs.append((kind, job))
        self.recent.append(job)

    def pick(self, rng):
        """A job that one of the threads added lately."""
        while True:
            try:
                return self.recent[rng.randrange(-len(self.recent), 0)]
            except IndexError:  # CPython lets no other thread in between, elsewhere one may be
                continue

    def step(self, rng, name):
        scheduler = self.scheduler
        if not self.recent or rng.random() < 0.35:
            self.add(rng, name)
            return
        job = self.pick(rng)
        what = rng.randrange(13)
        if what < 2:
            was = job.status
            if scheduler.cancel(job) and (job.status is not Status.CANCELLED or was in ENDS):
                self.faults.append(("cancelled for good", was, job.status))
        elif what < 4:
            scheduler.reschedule(job.id, rng.random() * 3)
        elif what == 4:
            scheduler.pause(job)
        elif what < 7:
            scheduler.resume(job)
        elif what < 9:
            scheduler.run_now(job)
        elif what < 11:
            self.clock.advance(rng.random())  # never back: a task could not tell then that its run was early
        elif what == 11:
            if rng.random() < 0.5:
                scheduler.pause()
            scheduler.resume()
        else:
            stats = scheduler.stats()
            if min(stats[:10]) < 0:
                self.faults.append(("no count is negative", stats))
            if (job.status in ENDS) > job.wait(PATIENCE if job.status in ENDS else 0):
                self.faults.append(("who has ended has ended", job))
            repr(job), scheduler.next_run_at(), len(scheduler.jobs())

    def run(self, seed, steps):
        """What one thread does."""
        rng = random.Random(seed)
        try:
            for k in range(steps):
                self.step(rng, f"name-{k % 7}")
        except RuntimeError as error:
            if str(error) != "cannot schedule new jobs after shutdown":
                self.faults.append(("a thread failed", repr(error)))
        except BaseException as error:
            self.faults.append(("a thread failed", repr(error)))

    def run_threads(self, *calls):
        threads = [threading.Thread(target=call, daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"

    def settle(self):
        """Nothing is in the way any more: let time pass until whatever is to come has come."""
        self.scheduler.resume()
        for _ in range(200):
            for _, job in self.jobs:
                job.resume()
            self.clock.advance(2)
            assert self.scheduler.wait_idle(PATIENCE)
            if not self.scheduler.jobs():
                return
        raise AssertionError(f"jobs that do not end: {self.scheduler.jobs()}")

    def account(self):
        """Every job is accounted for, and all ways to look agree."""
        assert self.faults == []
        stats = self.scheduler.stats()
        jobs = [job for _, job in self.jobs]
        states = Counter(job.status for job in jobs)
        assert set(states) <= set(ENDS)
        assert all(job.wait(0) for job in jobs)
        assert self.scheduler.jobs() == []
        assert self.scheduler.next_run_at() is None
        assert (stats.waiting, stats.ready, stats.running) == (0, 0, 0)
        assert stats.succeeded + stats.failed + stats.cancelled == len(jobs) + len(self.futures)
        outcomes = Counter(self.outcome(future) for future in self.futures)
        assert stats.succeeded == states[Status.SUCCEEDED] + outcomes["value"]
        assert stats.failed == states[Status.FAILED]
        assert stats.cancelled == states[Status.CANCELLED] + outcomes["cancelled"]
        # Of runs: each was started once, by one worker, and was booked once.
        assert stats.started == sum(job.attempts for job in jobs) + outcomes["value"]
        assert len(self.runs) == len(set(self.runs)) == sum(job.attempts for job in jobs)
        assert sum(stats.lag.counts.values()) == stats.started
        assert stats.skipped == sum(job.skipped for job in jobs)
        for kind, job in self.jobs:
            assert kind in ("rate", "delay") or job.attempts <= 3
            assert job.status is not Status.SUCCEEDED or job.attempts >= 1
            assert job.status is not Status.FAILED or isinstance(job.last_error, Failure)
        if hasattr(self.agenda, "_tt"):  # the compiled one's checks itself, in a debug build
            self.agenda._tt.check()

    def account_for_what_was_told(self):
        """Listeners are called behind the books: only when the threads have ended they have heard all."""
        stats = self.scheduler.stats()
        told = {name: len(seen) for name, seen in self.told.items()}
        assert told["started"] == stats.started
        assert told["cancelled"] == stats.cancelled
        assert told["retrying"] == stats.retried

    @staticmethod
    def outcome(future):
        assert future.done()
        try:
            assert future.result(0) in [2**k for k in range(9)]
        except CancelledError:
            return "cancelled"
        return "value"


@pytest.mark.parametrize("seed", range(3))
def test_promise_18_jobs_of_threads_that_do_everything_all_end_and_are_counted_once(stack, seed):
    fuzz = Fuzz(stack)
    fuzz.run_threads(*[lambda k=k: fuzz.run(10 * seed + k, 400) for k in range(4)])
    fuzz.settle()
    fuzz.account()
    assert fuzz.scheduler.shutdown(timeout=PATIENCE) == (True, 0, 0)
    fuzz.account()
    fuzz.account_for_what_was_told()


@pytest.mark.parametrize("cancel_futures", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_promise_16_shutdown_in_the_middle_of_it_leaves_no_job_behind(stack, seed, cancel_futures):
    fuzz = Fuzz(stack)
    rng = random.Random(seed)
    moment = rng.randrange(20, 300)

    def stop():
        while len(fuzz.jobs) < moment and not fuzz.faults:
            fuzz.step(rng, "name-stop")
        for _ in range(3):  # idempotent, with and without waiting
            fuzz.scheduler.shutdown(wait=rng.random() < 0.5, timeout=PATIENCE, cancel_futures=cancel_futures)

    fuzz.run_threads(stop, *[lambda k=k: fuzz.run(100 + 10 * seed + k, 600) for k in range(4)])
    ended = fuzz.scheduler.shutdown(timeout=PATIENCE)
    assert (ended.complete, ended.running) == (True, 0)
    fuzz.account()
    fuzz.account_for_what_was_told()
    assert ended.never_started <= fuzz.scheduler.stats().cancelled
