"""Both stacks side by side through the same random life on two clocks, and what holds for each run of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import STACKS
from nextdue import Cron, FixedBackoff, Status, current_job, pure
from nextdue.testing import ManualClock

SECOND = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2025, 1, 1, 9, tzinfo=UTC)
SEEDS = st.integers(0, 2**32 - 1)


class Life:
    """An agenda, each act of which is chosen at random; two with the same seeds make the same choices."""

    def __init__(self, stack):
        self.random = random.Random(0)
        self.clock = ManualClock(10_000 * SECOND)
        self.wall = ManualClock((START - EPOCH) // timedelta(microseconds=1) * 1000)
        self.agenda = stack.Agenda(self.clock, wall_clock=self.wall, history=50)
        self.jobs = []
        self.taken = []
        self.trace = []

    def task(self, number, date):
        """Notes its run, fails at times, and asserts promise 1 on the wall clock."""
        self.trace.append(("ran", number, self.clock(), self.wall(), current_job() and current_job().run_at))
        assert date is None or self.wall() >= date
        if self.random.random() < 0.2:
            raise OSError("no")

    def date(self, seconds):
        return EPOCH + timedelta(microseconds=self.wall() // 1000, seconds=seconds)

    def some_date(self):
        return self.date(self.random.randrange(-100, 2000))

    def add(self):
        number = len(self.jobs)
        options = {"args": (number, None), "priority": self.random.randrange(2)}
        if self.random.random() < 0.3:
            options["key"] = "k"
        if self.random.random() < 0.3:
            options["retry"] = FixedBackoff(3, delay=30)
        if self.random.random() < 0.2:
            options["timeout"] = 100
        if self.random.random() < 0.2 and self.jobs:
            options.update(after=[self.random.choice(self.jobs[-5:])], on_upstream_failure="run")
        kind = self.random.randrange(5)
        agenda = self.agenda
        rules = {"on_missed": self.random.choice(["skip", "burst"]), "overlap": self.random.choice(["skip", "queue"])}
        if kind == 0:
            at = self.some_date()
            options["args"] = (number, (at - EPOCH) // timedelta(microseconds=1) * 1000)
            job = agenda.schedule(self.task, at=at, **options)
        elif kind == 1:
            rule = Cron(self.random.choice(["* * * * *", "*/7 * * * *", "0 * * * *"]))
            job = agenda.schedule_recurring(self.task, rule, **rules, **options)
        elif kind == 2:
            step = self.random.randrange(10, 200) * SECOND
            job = agenda.schedule_recurring(self.task, lambda at: at + step, **rules, **options)
        elif kind == 3:
            job = agenda.schedule_at_fixed_rate(self.task, 10, period=self.random.randrange(10, 200), **options)
        else:
            job = agenda.schedule(self.task, delay=self.random.randrange(500), **options)
        self.jobs.append(job)

    def act(self, seed):
        self.random.seed(seed)
        job = self.random.choice(self.jobs) if self.jobs else None
        choice = self.random.randrange(16) if job else 0
        agenda = self.agenda
        result = None
        if choice < 3:
            self.add()
        elif choice == 3:
            result = job.cancel()
        elif choice == 4 and job.args[1:] != (None,):
            pass  # a date that is asserted is left alone
        elif choice == 4:
            at = self.some_date()
            result = agenda.reschedule(job, at=at) if self.random.random() < 0.5 else agenda.reschedule(job, delay=77)
        elif choice == 5 and job.args[1:] == (None,):
            result = agenda.run_now(job)
        elif choice == 6:
            result = job.pause()
        elif choice == 7:
            result = job.resume()
        elif choice == 8:
            self.wall.set_ns(max(SECOND, self.wall() + self.random.choice([-7200, -30, 30, 4000]) * SECOND))
        elif choice == 9:
            self.taken += agenda.take_due(self.random.randrange(1, 3))
        elif choice == 10 and self.taken:
            taken = self.taken.pop()
            agenda.finished(taken, self.random.choice([None, OSError("no")]))
        else:
            seconds = self.random.choice([1, 30, 60, 90, 600])
            self.clock.advance(seconds)
            self.wall.advance(seconds)
            result = agenda.run_due()
        self.trace.append((choice, result, agenda.next_run_at(), agenda.stats()[:-1]))

    def check(self):
        """What holds at all times."""
        infos = self.agenda.jobs()
        alive = [job for job in self.jobs if job.status in (Status.SCHEDULED, Status.RUNNING)]
        assert {id(info.job) for info in infos} == {id(job) for job in alive}
        agenda = self.agenda
        if isinstance(agenda, pure.Agenda):
            agenda._tt.check()
            if agenda._wall is not None:
                agenda._wall.check()
                assert agenda._wall_jobs == len(agenda._wall._slots)

    def settle(self):
        """Let all that is held back go: then each job is either over or waits for an instant to come."""
        for taken in self.taken:
            self.agenda.finished(taken)
        for job in self.jobs:
            job.resume()
        while self.agenda.run_due():
            pass
        waiting = [job for job in self.jobs if job.status is Status.SCHEDULED]
        blocked = self.agenda.stats().waiting
        assert blocked <= len(waiting)
        self.trace.append([(job.status, job.attempts, job.skipped, job.run_at) for job in self.jobs])


@settings(max_examples=60)
@given(st.lists(SEEDS, max_size=300))
def test_random_life_on_two_clocks_is_the_same_on_both_stacks(seeds):
    lives = [Life(stack) for stack in STACKS.values()]
    for seed in seeds:
        for life in lives:
            life.act(seed)
            life.check()
    for life in lives:
        life.settle()
        life.check()
    assert all(life.trace == lives[0].trace for life in lives)


@pytest.mark.parametrize("name", sorted(STACKS))
@settings(max_examples=20)
@given(dates=st.lists(st.integers(-100, 2000), max_size=50), moves=st.lists(st.integers(-600, 700), max_size=100))
def test_random_life_in_the_end_runs_every_dated_job_once(name, dates, moves):  # promise 2
    life = Life(STACKS[name])
    agenda = life.agenda
    ran = []
    jobs = [agenda.schedule(ran.append, at=life.date(seconds), args=(k,)) for k, seconds in enumerate(dates)]
    for seconds in moves:
        life.wall.set_ns(max(SECOND, life.wall() + seconds * SECOND))
        life.clock.advance(1)
        agenda.run_due()
    life.wall.advance(10 * 86_400)
    agenda.run_due()
    assert sorted(ran) == list(range(len(jobs)))
    assert all(job.status is Status.SUCCEEDED for job in jobs)
