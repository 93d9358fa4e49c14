"""The compiled agenda beside the pure one on the same clock: same operations, the same of all that one can see."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nextdue
from nextdue import DuplicateJobId, FixedBackoff, TooManyJobs, UnknownJobId, pure
from nextdue.testing import ManualClock

pytestmark = pytest.mark.skipif(nextdue.BACKEND != "compiled", reason="there is one stack")

AGENDAS = (nextdue.Agenda, pure.Agenda)
TICK = 10**8
DELAYS = st.sampled_from([-1, 0, 0, 0.1, 0.2, 0.3, 0.5, 1, 10**30])
PERIODS = st.sampled_from([0.1, 0.2, 0.3, 1, 10**30])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 2047, -2048])
NAMES = st.sampled_from([None, None, None, "a", "b", "c"])
RETRIES = st.sampled_from([None, FixedBackoff(3, delay=0.1), FixedBackoff(2, delay=0), lambda attempt, error: "soon"])
# What the runs of a job do, one after the other: take so many ticks, then succeed, fail, or do something to a job.
ACTS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 2, 5]), st.sampled_from(["", "", "fail", "cancel", "move", "add"])))
CHOICE = st.integers(0, 10**6)
KEYS = st.sampled_from([{}, {}, {"key": "k"}, {"key": 7, "key_limit": 2}])
TIMEOUTS = st.sampled_from([{}, {}, {"timeout": 0.1}, {"timeout": 0.3}, {"timeout": float("inf")}])
CONDITIONS = st.sampled_from([{}, {}, {"is_failure": lambda value: value % 3 == 0}, {"is_failure": lambda _: 1 / 0}])
JITTERS = st.sampled_from([{}, {}, {"jitter": 0.1}])
MISSED = st.sampled_from([{}, {"on_missed": "burst"}, {"on_missed": "shift"}, {"on_missed": "skip"}])
OVERLAPS = st.sampled_from([{}, {"overlap": "queue"}])
ENDS = st.sampled_from([{}, {}, {"max_runs": 1}, {"max_runs": 3}, {"until": 2**62}])
EVENTS = ("started", "succeeded", "timed_out", "failed", "retrying", "skipped", "cancelled")


class Side:
    """One of the two agendas with its jobs, in the order in which they were added."""

    def __init__(self, make, clock, history, retry, bounds):
        self.agenda = make(clock, history=history, retry=retry, **bounds)
        self.jobs = []
        self.log = []
        self.taken = []
        for name in EVENTS:
            self.agenda.on(name, self.hear)

    def hear(self, event):
        number = next((k for k, job in enumerate(self.jobs) if job == event.job), -1)  # -1: it is being added
        self.log.append((event.name, number, event.attempt, type(event.error), event.skipped))

    def see(self):
        """All that can be seen from outside, but for automatic ids and texts."""
        agenda = self.agenda
        stats = agenda.stats()
        seen = [agenda.next_run_at(), agenda.skipped, repr(agenda), list(self.log), stats[:-1], stats.lag.counts]
        seen.append(sorted((self.jobs.index(info.job), info[1:-1]) for info in agenda.jobs()))
        for job in self.jobs:
            error = None if job.last_error is None else (type(job.last_error), type(job.last_error.__cause__))
            seen.append((job.status, job.run_at, job.attempts, job.skipped, job.priority, error, job.wait(0)))
            seen.append(job.reason is None)
            for key in (job, job.id):
                try:
                    seen.append((agenda.status(key), type(agenda.last_error(key))))
                except UnknownJobId:
                    seen.append("unknown")
        return seen


class BothAgendas(RuleBasedStateMachine):
    @initialize(
        history=st.sampled_from([0, 1, 3, 100]),
        retry=st.sampled_from([None, FixedBackoff(2, delay=0.2)]),
        bounds=st.sampled_from([{}, {}, {"history_age": 0.3}, {"max_waiting": 5}]),
    )
    def start(self, history, retry, bounds):
        self.clock = ManualClock()
        self.sides = [Side(make, self.clock, history, retry, bounds) for make in AGENDAS]

    def both(self, call):
        """Do the same on each side, from the same instant; both have the same outcome."""
        before, outcomes, afters = self.clock(), [], []
        for side in self.sides:
            self.clock.set_ns(before)
            outcomes.append(call(side))
            afters.append(self.clock())
        assert outcomes[0] == outcomes[1]
        assert afters[0] == afters[1]
        return outcomes[0]

    def task(self, side, number, acts):
        left = list(acts)

        def task():
            side.log.append((number, self.clock()))
            ticks, act = left.pop(0) if left else (0, "")
            self.clock.set_ns(self.clock() + ticks * TICK)
            other = side.jobs[(7 * number + len(left)) % len(side.jobs)]
            if act == "fail":
                raise OSError(number)
            if act == "cancel":
                side.log.append(other.cancel())
            elif act == "move":
                side.log.append(side.agenda.reschedule(other, delay=0.1 * (len(left) % 3)))
            elif act == "add":
                with suppress(TooManyJobs):
                    side.jobs.append(side.agenda.schedule(self.task(side, len(side.jobs), []), delay=0))
            return number

        return task

    def add(self, how, acts, name, rest):
        def call(side):
            task = self.task(side, len(side.jobs), acts)
            options = dict(rest)
            if "after" in options:
                options["after"] = [side.jobs[k % len(side.jobs)] for k in options["after"]] if side.jobs else []
            random.seed(len(side.log))  # of the jitter
            try:
                side.jobs.append(how(side.agenda, task, id=name, **options))
            except (DuplicateJobId, TooManyJobs, ValueError) as error:
                return str(error)
            return "added"

        self.both(call)

    @rule(delay=DELAYS, acts=ACTS, name=NAMES, priority=PRIORITIES, retry=RETRIES, own=st.booleans())
    def schedule(self, delay, acts, name, priority, retry, own):
        rest = {"retry": retry} if own else {}
        self.add(
            lambda agenda, task, **kw: agenda.schedule(task, delay=delay, priority=priority, **kw), acts, name, rest
        )

    @rule(at=st.integers(-3, 30), acts=ACTS)
    def schedule_at(self, at, acts):
        self.add(lambda agenda, task, **kw: agenda.schedule(task, at=at * TICK, **kw), acts, None, {})

    @rule(first=DELAYS, period=PERIODS, acts=ACTS, name=NAMES, priority=PRIORITIES, retry=RETRIES)
    def fixed_rate(self, first, period, acts, name, priority, retry):
        self.add(
            lambda agenda, task, **kw: agenda.schedule_at_fixed_rate(task, first, period, priority=priority, **kw),
            acts,
            name,
            {"retry": retry},
        )

    @rule(first=DELAYS, delay=PERIODS, acts=ACTS, name=NAMES, retry=RETRIES)
    def fixed_delay(self, first, delay, acts, name, retry):
        self.add(
            lambda agenda, task, **kw: agenda.schedule_with_fixed_delay(task, first, delay, **kw),
            acts,
            name,
            {"retry": retry},
        )

    @rule(
        delay=DELAYS,
        acts=ACTS,
        priority=PRIORITIES,
        after=st.lists(CHOICE, max_size=2),
        anyway=st.sampled_from(["cancel", "run"]),
        options=st.tuples(KEYS, TIMEOUTS, CONDITIONS, JITTERS),
    )
    def schedule_with_options(self, delay, acts, priority, after, anyway, options):
        rest = {"after": after, "on_upstream_failure": anyway, "priority": priority}
        for option in options:
            rest |= option
        self.add(lambda agenda, task, **kw: agenda.schedule(task, delay=delay, **kw), acts, None, rest)

    @rule(
        first=DELAYS,
        period=PERIODS,
        acts=ACTS,
        retry=RETRIES,
        options=st.tuples(KEYS, TIMEOUTS, CONDITIONS, JITTERS, MISSED, OVERLAPS, ENDS),
    )
    def fixed_rate_with_options(self, first, period, acts, retry, options):
        rest = {"retry": retry}
        for option in options:
            rest |= option
        self.add(lambda agenda, task, **kw: agenda.schedule_at_fixed_rate(task, first, period, **kw), acts, None, rest)

    @rule(
        first=DELAYS,
        delay=PERIODS,
        acts=ACTS,
        retry=RETRIES,
        options=st.tuples(KEYS, TIMEOUTS, CONDITIONS, JITTERS, ENDS),
    )
    def fixed_delay_with_options(self, first, delay, acts, retry, options):
        rest = {"retry": retry}
        for option in options:
            rest |= option
        self.add(
            lambda agenda, task, **kw: agenda.schedule_with_fixed_delay(task, first, delay, **kw), acts, None, rest
        )

    @precondition(lambda self: self.sides[0].jobs)
    @rule(choice=CHOICE, call=st.sampled_from(["pause", "pause", "resume", "resume", "run_now"]))
    def change(self, choice, call):
        self.both(lambda side: getattr(side.agenda, call)(side.jobs[choice % len(side.jobs)]))

    @rule(call=st.sampled_from(["pause", "resume"]))
    def change_all(self, call):
        self.both(lambda side: getattr(side.agenda, call)())

    @precondition(lambda self: self.sides[0].jobs)
    @rule(choice=CHOICE, by_id=st.booleans())
    def cancel(self, choice, by_id):
        def call(side):
            job = side.jobs[choice % len(side.jobs)]
            return side.agenda.cancel(job.id if by_id else job)

        self.both(call)

    @precondition(lambda self: self.sides[0].jobs)
    @rule(choice=CHOICE, delay=DELAYS)
    def reschedule(self, choice, delay):
        self.both(lambda side: side.agenda.reschedule(side.jobs[choice % len(side.jobs)], delay=delay))

    @rule(ticks=st.integers(0, 20))
    def advance(self, ticks):
        self.clock.set_ns(self.clock() + ticks * TICK)

    @rule(ticks=st.integers(1, 5))
    def set_back(self, ticks):
        self.clock.set_ns(self.clock() - ticks * TICK)

    @rule()
    def run_due(self):
        self.both(lambda side: side.agenda.run_due())

    @rule(limit=st.sampled_from([None, 0, 1, 2]))
    def take_due(self, limit):
        def call(side):
            taken = side.agenda.take_due(limit=limit)
            side.taken += [(job, job.attempts) for job in taken]
            return [side.jobs.index(job) for job in taken]

        self.both(call)

    @precondition(lambda self: self.sides[0].taken)
    @rule(choice=CHOICE, fails=st.booleans(), forget=st.booleans())
    def finished(self, choice, fails, forget):
        """Finish a run that was taken, any time later; or say so once more."""

        def call(side):
            k = choice % len(side.taken)
            job, run = side.taken[k]
            if forget:
                del side.taken[k]
            side.agenda.finished(job, OSError("late") if fails else None, value=run, run=run)
            return side.jobs.index(job)

        self.both(call)

    @invariant()
    def they_agree(self):
        if hasattr(self, "sides"):
            assert self.sides[0].see() == self.sides[1].see()
            self.sides[1].agenda._tt.check()


@pytest.mark.usefixtures("unlogged")
class TestBothAgendas(BothAgendas.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40)
