"""Jobs of every kind with every option, driven at random: no job is lost, none starts early or twice, counts add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import STACKS
from nextdue import Cron, FixedBackoff, Status
from nextdue.testing import ManualClock

S = 10**9
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_735_722_000 * S
CHOICE = st.integers(0, 10**6)
SECONDS = st.integers(0, 200)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["k", "l"]),
        "timeout": st.sampled_from([5, 60]),
        "retry": st.sampled_from([FixedBackoff(2, 3), FixedBackoff(3, 0), lambda attempt, error: timedelta(seconds=1)]),
        "jitter": st.sampled_from([1, 7]),
        "priority": st.integers(-1, 1),
    },
)
REPEATS = st.fixed_dictionaries({}, optional={"max_runs": st.integers(1, 4)})
SLOTS = st.fixed_dictionaries(
    {},
    optional={"on_missed": st.sampled_from(["skip", "burst"]), "overlap": st.sampled_from(["skip", "queue"])},
)
KINDS = ["one-off", "dated", "fixed rate", "fixed delay", "rule", "cron"]


class Jobs(RuleBasedStateMachine):
    stack = None

    @initialize()
    def start(self):
        self.clock, self.wall = ManualClock(), ManualClock(START)
        self.agenda = self.stack.Agenda(self.clock, wall_clock=self.wall)
        self.jobs, self.kinds, self.keys, self.after = [], [], [], []
        self.going = []  # (number of the job, of the run)

    def date(self, seconds):
        return EPOCH + timedelta(microseconds=self.wall() // 1000 + seconds * 10**6)

    @rule(kind=st.sampled_from(KINDS), delay=SECONDS, options=OPTIONS, repeats=REPEATS, slots=SLOTS, after=CHOICE)
    def schedule(self, kind, delay, options, repeats, slots, after):
        upstream = None
        if self.jobs and after % 4 == 0:
            upstream = self.jobs[after % len(self.jobs)]
            options = options | {"after": [upstream], "on_upstream_failure": "run" if after % 8 else "cancel"}
        agenda = self.agenda
        if kind == "one-off":
            job = agenda.schedule(print, delay, **options)
        elif kind == "dated":
            job = agenda.schedule(print, at=self.date(delay), **options)
        elif kind == "fixed rate":
            job = agenda.schedule_at_fixed_rate(print, delay, 20, **options, **repeats, **slots)
        elif kind == "fixed delay":
            job = agenda.schedule_with_fixed_delay(print, delay, 20, **options, **repeats)
        elif kind == "rule":
            job = agenda.schedule_recurring(print, lambda at: at + 20 * S, **options, **repeats, **slots)
        else:
            job = agenda.schedule_recurring(print, Cron("* * * * *"), **options, **repeats, **slots)
        self.jobs.append(job)
        self.kinds.append(kind)
        self.keys.append(options.get("key"))
        self.after.append(upstream)

    def any(self, choice):
        return self.jobs[choice % len(self.jobs)]

    @precondition(lambda self: self.jobs)
    @rule(choice=CHOICE)
    def cancel(self, choice):
        job = self.any(choice)
        ended = job.status not in (Status.SCHEDULED, Status.RUNNING)
        assert job.cancel() != ended
        assert ended or job.status is Status.CANCELLED

    @precondition(lambda self: self.jobs)
    @rule(choice=CHOICE, pause=st.booleans())
    def pause(self, choice, pause):
        job = self.any(choice)
        if pause:
            job.pause()
        else:
            job.resume()

    @precondition(lambda self: self.jobs)
    @rule(choice=CHOICE, delay=SECONDS, dated=st.booleans())
    def reschedule(self, choice, delay, dated):
        if dated:
            self.agenda.reschedule(self.any(choice), at=self.date(delay))
        else:
            self.agenda.reschedule(self.any(choice), delay)

    @precondition(lambda self: self.jobs)
    @rule(choice=CHOICE)
    def run_now(self, choice):
        job = self.any(choice)
        if self.agenda.run_now(job):
            assert job.run_at <= self.clock()

    @rule(seconds=SECONDS)
    def advance(self, seconds):
        self.clock.advance(seconds)
        self.wall.advance(seconds)

    @rule(seconds=st.integers(-300, 300))
    def set_wall(self, seconds):
        self.wall.set_ns(self.wall() + seconds * S)

    @rule(limit=st.sampled_from([1, 2, None]))
    def take(self, limit):
        for job in self.agenda.take_due(limit):
            assert job.run_at <= self.clock() or self.is_repeating(job)  # of a repeating job that is the next run
            number = self.jobs.index(job)
            if self.kinds[number] not in ("one-off", "dated"):
                assert number not in [other for other, _ in self.going]
            self.going.append((number, job.attempts))
        for key in ("k", "l"):
            assert sum(self.keys[number] == key for number, _ in self.going) <= 1

    def is_repeating(self, job):
        return self.kinds[self.jobs.index(job)] not in ("one-off", "dated")

    @precondition(lambda self: self.going)
    @rule(choice=CHOICE, fails=st.booleans())
    def finish(self, choice, fails):
        number, run = self.going.pop(choice % len(self.going))
        self.agenda.finished(self.jobs[number], OSError() if fails else None, run=run)

    @invariant()
    def counts_add_up(self):
        if not hasattr(self, "jobs"):
            return
        stats = self.agenda.stats()
        assert stats.running == len(self.going)
        states = [job.status for job in self.jobs]
        ends = [states.count(end) for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)]
        assert [stats.succeeded, stats.failed, stats.cancelled] == ends
        assert len(self.agenda.jobs()) == len(states) - sum(ends)
        if not self.going:
            assert stats.waiting + stats.ready == len(states) - sum(ends)
        assert stats.skipped == sum(job.skipped for job in self.jobs)
        assert stats.started == sum(job.attempts for job in self.jobs)

    def teardown(self):
        """Nothing is in the way any more: what has not ended, and waits for no other job, runs in ten minutes."""
        if not hasattr(self, "jobs"):
            return
        while self.going:
            self.finish(0, False)
        for job in self.jobs:
            job.resume()
        self.wall.set_ns(START + 100_000 * S)  # past each date
        left = {job: job.attempts for job in self.jobs if job.status is Status.SCHEDULED}
        for _ in range(60):
            self.advance(10)
            for _ in range(20_000):  # a burst goes by the dates of its slots, and so before others of its key
                self.take(None)
                if not self.going:
                    break
                while self.going:
                    self.finish(0, False)
        for job, upstream in zip(self.jobs, self.after, strict=True):
            may_run = upstream is None or upstream.status is not Status.SCHEDULED
            assert job not in left or not may_run or job.status is Status.CANCELLED or job.attempts > left[job]


@pytest.mark.hypothesis
@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("name", sorted(STACKS))
def test_no_job_is_lost_started_early_or_counted_twice(name):
    class Machine(Jobs):
        stack = STACKS[name]

    class Case(Machine.TestCase):
        settings = settings(max_examples=60, stateful_step_count=40)

    Case().runTest()
