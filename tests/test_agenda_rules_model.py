"""The rules of keys, dependencies, pauses, priorities and time limits beside a slow model of them, a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import STACKS
from nextdue import Status, TooManyJobs
from nextdue.testing import ManualClock

S = 10**9
CHOICE = st.integers(0, 10**6)
KEYS = st.sampled_from([None, None, "k", "l", 3])
LIMITS = {None: 1, "k": 1, "l": 2, 3: 1}
AFTER = st.lists(CHOICE, max_size=2)


class Model:
    """A one-off as the rules have it. Nothing here is clever."""

    def __init__(self, number, run_at, seq, priority, key, after, anyway, timeout):
        self.number, self.run_at, self.seq, self.priority, self.key = number, run_at, seq, priority, key
        self.after, self.anyway, self.timeout = after, anyway, timeout
        self.state = "scheduled"
        self.paused = self.going = self.armed = False
        self.started_at = 0

    @property
    def ended(self):
        return self.state in ("succeeded", "failed", "cancelled")


class Rules(RuleBasedStateMachine):
    stack = None

    @initialize(max_waiting=st.sampled_from([None, None, 6]))
    def start(self, max_waiting):
        self.clock = ManualClock()
        self.agenda = self.stack.Agenda(self.clock, max_waiting=max_waiting)
        self.max_waiting = max_waiting
        self.jobs, self.models = [], []
        self.seq = 0
        self.all_paused = False
        self.taken = []  # numbers whose run is going

    # -------------------------------------------------------- the model

    def next_seq(self):
        self.seq += 1
        return self.seq

    def settle(self):
        """End what others let down, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for model in self.models:
                let_down = any(self.models[k].state in ("failed", "cancelled") for k in model.after)
                if model.state == "scheduled" and let_down and not model.anyway:
                    model.state = "cancelled"
                    changed = True

    def expire(self):
        for model in self.models:
            if model.state == "running" and model.timeout and self.clock() >= model.started_at + model.timeout:
                model.state = "failed"
        self.settle()
        self.arm_dependents()

    def may_start(self, model):
        running = sum(other.going for other in self.models if other.key == model.key)
        return (
            model.state == "scheduled"
            and not model.paused
            and model.run_at <= self.clock()
            and all(self.models[k].ended for k in model.after)
            and (model.key is None or running < LIMITS[model.key])
        )

    def rank(self, model):
        return -model.priority, model.run_at, model.seq

    def follow(self, numbers, limit):
        """Each start was that of the best that could start, and there was none left."""
        for number in numbers:
            able = [model for model in self.models if self.may_start(model)]
            model = self.models[number]
            assert model in able
            assert self.rank(model) == min(map(self.rank, able))
            model.state, model.going, model.started_at = "running", True, self.clock()
        assert len(numbers) == limit or self.all_paused or not any(map(self.may_start, self.models))

    # -------------------------------------------------------- both

    @rule(
        delay=st.integers(-1, 5),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        key=KEYS,
        after=AFTER,
        anyway=st.booleans(),
        timeout=st.sampled_from([None, None, 2, 4]),
    )
    def schedule(self, delay, priority, key, after, anyway, timeout):
        after = sorted({k % len(self.models) for k in after}) if self.models else []
        number = len(self.models)
        options = {"key": key, "key_limit": LIMITS[key], "timeout": timeout}
        if after:
            options["after"] = [self.jobs[k] if k % 2 else self.jobs[k].id for k in after]
            options["on_upstream_failure"] = "run" if anyway else "cancel"
        waiting = sum(model.state == "scheduled" for model in self.models)
        try:
            job = self.agenda.schedule(print, delay, args=(number,), priority=priority, **options)
        except TooManyJobs:
            assert self.max_waiting is not None
            assert waiting >= self.max_waiting
            return
        assert self.max_waiting is None or waiting < self.max_waiting
        run_at = self.clock() + max(delay, 0) * S
        self.jobs.append(job)
        limit = None if timeout is None else timeout * S
        self.models.append(Model(number, run_at, self.next_seq(), priority, key, after, anyway, limit))
        self.settle()
        self.arm_dependents()

    @precondition(lambda self: self.models)
    @rule(choice=CHOICE)
    def cancel(self, choice):
        k = choice % len(self.models)
        assert self.jobs[k].cancel() == (not self.models[k].ended)
        if not self.models[k].ended:
            self.end(k, "cancelled")

    def end(self, k, state):
        """End a job, and with it those that it lets down."""
        self.models[k].state = state
        self.settle()
        self.arm_dependents()

    def arm_dependents(self):
        """What waited for other jobs enters the order when these have ended; what does so in one step is equal."""
        seq = self.next_seq()
        for model in self.models:
            ready = model.state == "scheduled" and model.after and not model.armed
            if ready and all(self.models[k].ended for k in model.after):
                model.armed = True
                model.seq = seq

    @precondition(lambda self: self.models)
    @rule(choice=CHOICE, delay=st.integers(0, 4))
    def reschedule(self, choice, delay):
        k = choice % len(self.models)
        model = self.models[k]
        assert self.agenda.reschedule(self.jobs[k], delay) == (model.state == "scheduled")
        if model.state == "scheduled":
            model.run_at = self.clock() + delay * S
            model.seq = self.next_seq()

    @precondition(lambda self: self.models)
    @rule(choice=CHOICE)
    def pause(self, choice):
        k = choice % len(self.models)
        assert self.jobs[k].pause() == (not self.models[k].ended)
        if not self.models[k].ended:
            self.models[k].paused = True

    @precondition(lambda self: self.models)
    @rule(choice=CHOICE)
    def resume(self, choice):
        k = choice % len(self.models)
        model = self.models[k]
        assert self.jobs[k].resume() == (model.paused and not model.ended)
        model.paused = False

    @rule(pause=st.booleans())
    def pause_all(self, pause):
        if pause:
            assert self.agenda.pause()
        else:
            assert self.agenda.resume() == self.all_paused
        self.all_paused = pause

    @precondition(lambda self: self.models)
    @rule(choice=CHOICE)
    def run_now(self, choice):
        k = choice % len(self.models)
        model = self.models[k]
        able = model.state == "scheduled" and not model.paused and all(self.models[j].ended for j in model.after)
        assert self.agenda.run_now(self.jobs[k]) == able
        if able and model.run_at > self.clock():
            model.run_at = self.clock()
            model.seq = self.next_seq()

    @rule(seconds=st.integers(1, 4))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @rule(limit=st.sampled_from([1, 2, 100]))
    def take(self, limit):
        taken = self.agenda.take_due(limit=limit)
        numbers = [self.jobs.index(job) for job in taken]
        self.expire()
        assert not (self.all_paused and numbers)
        self.follow(numbers, limit)
        self.taken += numbers

    @precondition(lambda self: self.taken)
    @rule(choice=CHOICE, fails=st.booleans())
    def finish(self, choice, fails):
        k = self.taken.pop(choice % len(self.taken))
        model = self.models[k]
        self.agenda.finished(self.jobs[k], OSError() if fails else None, run=1)
        model.going = False
        if model.state == "running":
            late = model.timeout and self.clock() >= model.started_at + model.timeout
            self.end(k, "failed" if fails or late else "succeeded")

    @invariant()
    def states_agree(self):
        if not hasattr(self, "models"):
            return
        assert [str(job.status) for job in self.jobs] == [model.state for model in self.models]
        stats = self.agenda.stats()
        assert stats.waiting + stats.ready == sum(model.state == "scheduled" for model in self.models)
        assert stats.running == sum(model.going for model in self.models)
        counts = [sum(job.status == state for job in self.jobs) for state in list(Status)[2:]]
        assert [stats.succeeded, stats.failed, stats.cancelled] == counts


@pytest.mark.hypothesis
@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("name", sorted(STACKS))
def test_rules_agree_with_the_model(name):
    class Machine(Rules):
        stack = STACKS[name]

    class Case(Machine.TestCase):
        settings = settings(max_examples=80, stateful_step_count=40)

    Case().runTest()
