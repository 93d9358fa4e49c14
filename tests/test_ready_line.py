"""The ready line beside a sorted list: the pure one by itself, both through the agenda that owns them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nextdue._heapq_timetable import COUNTER_MASK, HeapqTimetable, ReadyLine
from nextdue.testing import ManualClock

NO_BOUND = 2**64
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 63, 64, 2047, -2048])


class LineBesideList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = HeapqTimetable()
        self.line = ReadyLine(self.table)
        self.ready = {}  # id: (level, run_at, seq)

    def note(self, timer_id, run_at):
        seq = self.table._ticket(timer_id)
        self.ready[timer_id] = (seq & ~COUNTER_MASK, run_at, seq)

    @rule(run_ats=st.lists(st.integers(0, 9), min_size=1, max_size=30), priority=PRIORITIES)
    def put(self, run_ats, priority):
        for run_at in run_ats:
            timer_id = self.table._occupy(priority, None)
            assert self.line._put(run_at, self.table._ticket(timer_id), timer_id)
            self.note(timer_id, run_at)

    @rule(run_ats=st.lists(st.tuples(st.integers(0, 9), PRIORITIES), min_size=1, max_size=30), limit=st.integers(0, 40))
    def promote(self, run_ats, limit):
        times = {self.table.add(run_at, priority=priority): run_at for run_at, priority in run_ats}
        waited = len(self.table)
        taken = self.line._promote(9, limit)
        assert taken == min(limit, waited)
        for timer_id, run_at in times.items():
            if timer_id not in self.table:
                self.note(timer_id, run_at)
            else:
                self.table.cancel(timer_id)

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 10**6), count=st.integers(1, 30), moved=st.booleans())
    def die(self, pick, count, moved):
        for k in range(min(count, len(self.ready))):
            timer_id = list(self.ready)[(pick + k) % len(self.ready)]
            run_at = self.ready.pop(timer_id)[1]
            if moved:  # armed anew, taken again
                self.table._rearm(timer_id, run_at)
                self.line._forget()
                assert self.line._promote(9, 1) == 1
                self.note(timer_id, run_at)
            else:
                self.table._disarm(timer_id)
                self.line._forget()
                self.table._release(timer_id)

    @rule(count=st.integers(1, 60))
    def pop(self, count):
        for _ in range(count):
            expected = min(self.ready, key=self.ready.__getitem__, default=-1)
            assert self.line._pop(NO_BOUND) == expected
            if expected < 0:
                return
            del self.ready[expected]
            self.table._disarm(expected)
            self.table._release(expected)

    @precondition(lambda self: self.ready)
    @rule()
    def bounded_pop_stops_at_a_newer_one(self):
        best = min(self.ready, key=self.ready.__getitem__)
        counter = self.ready[best][2] & COUNTER_MASK
        assert self.line._pop(counter) == -1
        assert self.line._pop(counter + 1) == best
        del self.ready[best]

    @invariant()
    def counts_add_up(self):
        assert self.line._waiting() == len(self.ready)
        assert 0 <= self.line._dead <= self.line._count
        self.table.check()


TestLineBesideList = LineBesideList.TestCase
TestLineBesideList.settings = settings(max_examples=60, stateful_step_count=40)


JOBS = st.lists(st.tuples(st.integers(0, 20), PRIORITIES), max_size=40)
STEPS = st.lists(st.tuples(JOBS, st.integers(0, 20), st.integers(0, 50), st.lists(st.integers(0, 999), max_size=20)))


@pytest.mark.hypothesis
def test_promise_03_ready_jobs_come_by_priority_then_run_at_then_insertion(stack):
    """Some are added for a time that has passed, so they become ready out of order; some are cancelled meanwhile."""

    @given(STEPS)
    @settings(max_examples=60)
    def walk(steps):
        clock = ManualClock()
        agenda = stack.Agenda(clock)
        waiting, ready = {}, {}
        seq = 0
        for jobs, now, limit, doomed in steps:
            for run_at, priority in jobs:
                seq += 1
                job = agenda.schedule(print, at=run_at, priority=priority)
                waiting[job] = (-priority, run_at, seq)
            now = max(now, clock())
            clock.set_ns(now)
            for pick in doomed:
                pool = ready if pick % 2 and ready else waiting
                if pool:
                    job = list(pool)[pick % len(pool)]
                    assert job.cancel()
                    del pool[job]
            ready.update((job, key) for job, key in waiting.items() if key[1] <= now)
            waiting = {job: key for job, key in waiting.items() if job not in ready}
            taken = agenda.take_due(limit)
            assert taken == sorted(ready, key=ready.__getitem__)[:limit]
            for job in taken:
                agenda.finished(job)
                del ready[job]

    walk()
