"""A random walk over every method: both stacks beside a model that sorts a list, with `check()` after each step."""

from __future__ import annotations

import heapq
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import nextdue
from nextdue import pure

LATEST = 2**63 - 1
TIMES = st.one_of(
    st.integers(0, 12),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-(2**63), -1, LATEST - 1, LATEST, LATEST + 1]),
)
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 2047, -2048])
LIMITS = st.one_of(st.none(), st.integers(0, 40))
PURE_ONLY = os.environ.get("NEXTDUE_PURE", "") not in ("", "0")


class Model:
    """Timers in a list that is sorted at each look: nothing here is clever."""

    def __init__(self):
        self.waiting = {}  # name: (run_at, -priority, seq)
        self.seq = 0

    def put(self, name, run_at, priority=0):
        self.seq += 1
        self.waiting[name] = (min(max(run_at, -(2**63)), LATEST), -priority, self.seq)

    def in_order(self):
        return sorted(self.waiting, key=self.waiting.__getitem__)

    def due(self, now, limit):
        names = [n for n in self.in_order() if self.waiting[n][0] <= min(max(now, -(2**63)), LATEST - 1)]
        return names if limit is None else names[:limit]


class SideBySide(RuleBasedStateMachine):
    """Timers are named by a number; each stack has an id of its own for it. Odd ones carry their name as the item."""

    def __init__(self):
        super().__init__()
        stacks = [pure.Timetable] if PURE_ONLY else [nextdue.Timetable, pure.Timetable]
        self.tables = [stack() for stack in stacks]
        self.ids = [[] for _ in stacks]  # by name
        self.names = [{} for _ in stacks]  # by id
        self.model = Model()

    def added(self, lists):
        first = len(self.ids[0])
        for ids, names, new in zip(self.ids, self.names, lists, strict=True):
            for name, timer_id in enumerate(new, first):
                assert timer_id not in names, "an id was used twice"
                names[timer_id] = name
                ids.append(timer_id)
        return range(first, len(self.ids[0]))

    def each(self, call):
        """The one answer of all tables to `call(table, ids, names)`."""
        answers = [call(*three) for three in zip(self.tables, self.ids, self.names, strict=True)]
        assert all(answer == answers[0] for answer in answers[1:])
        return answers[0]

    def some_name(self, pick):
        """Mostly one that waits, else any that ever was."""
        if pick % 4 and self.model.waiting:
            names = list(self.model.waiting)
            return names[pick % len(names)]
        return pick % len(self.ids[0])

    @rule(run_at=TIMES, priority=PRIORITIES)
    def add(self, run_at, priority):
        name = len(self.ids[0])
        item = name if name % 2 else None
        self.added([[t.add(run_at, item, priority=priority)] for t in self.tables])
        self.model.put(name, run_at, priority)

    @rule(times=st.lists(TIMES, max_size=40), with_items=st.booleans())
    def add_many(self, times, with_items):
        first = len(self.ids[0])
        items = [n if n % 2 else None for n in range(first, first + len(times))] if with_items else None
        names = self.added([t.add_many(times, items).tolist() for t in self.tables])
        for name, run_at in zip(names, times, strict=True):
            self.model.put(name, run_at)

    @precondition(lambda self: self.ids[0])
    @rule(pick=st.integers(0, 10**6))
    def cancel(self, pick):
        name = self.some_name(pick)
        assert self.each(lambda t, ids, _: t.cancel(ids[name])) is (name in self.model.waiting)
        self.model.waiting.pop(name, None)

    @precondition(lambda self: self.ids[0])
    @rule(picks=st.lists(st.integers(0, 10**6), max_size=30))
    def cancel_many(self, picks):
        names = [self.some_name(pick) for pick in picks]
        count = self.each(lambda t, ids, _: t.cancel_many([ids[n] for n in names]))
        assert count == len({n for n in names if n in self.model.waiting})
        for name in names:
            self.model.waiting.pop(name, None)

    @precondition(lambda self: len(self.model.waiting) > 3)
    @rule(part=st.integers(1, 8), keep=st.integers(0, 7))
    def cancel_most(self, part, keep):
        names = [n for k, n in enumerate(self.model.in_order()) if k % 8 != keep and k % 8 <= part]
        count = self.each(lambda t, ids, _: t.cancel_many(np.array([ids[n] for n in names], np.int64)))
        assert count == len(names)
        for name in names:
            del self.model.waiting[name]

    @precondition(lambda self: self.ids[0])
    @rule(pick=st.integers(0, 10**6), run_at=TIMES, times=st.sampled_from([1, 1, 1, 70]))
    def reschedule(self, pick, run_at, times):
        name = self.some_name(pick)
        for _ in range(times):
            assert self.each(lambda t, ids, _: t.reschedule(ids[name], run_at)) is (name in self.model.waiting)
        if name in self.model.waiting:
            self.model.put(name, run_at, -self.model.waiting[name][1])

    @rule()
    def pop(self):
        def call(table, ids, names):
            try:
                run_at, timer_id, item = table.pop()
            except IndexError:
                return None
            return run_at, names[timer_id], item

        answer = self.each(call)
        if not self.model.waiting:
            assert answer is None
            return
        name = self.model.in_order()[0]
        assert answer[:2] == (self.model.waiting.pop(name)[0], name)
        assert answer[2] in (None, name)

    @rule(now=TIMES, limit=LIMITS, with_ids=st.booleans())
    def pop_due(self, now, limit, with_ids):
        self.take_due(now, limit, with_ids)

    def take_due(self, now, limit, with_ids):
        expected = self.model.due(now, limit)
        if with_ids:
            assert self.each(lambda t, ids, names: [names[k] for k in t.pop_due_ids(now, limit).tolist()]) == expected
        else:
            items = self.each(lambda t, ids, _: t.pop_due(now, limit))
            assert all(item in (None, name) for item, name in zip(items, expected, strict=True))
        for name in expected:
            del self.model.waiting[name]

    @precondition(lambda self: len(self.ids[0]) % 5 == 0)
    @rule()
    def clear(self):
        self.each(lambda t, ids, _: t.clear())
        self.model.waiting.clear()

    @precondition(lambda self: self.ids[0])
    @rule(pick=st.integers(0, 10**6))
    def contains(self, pick):
        name = self.some_name(pick)
        assert self.each(lambda t, ids, _: ids[name] in t) is (name in self.model.waiting)

    @invariant()
    def looks_right(self):
        for table in self.tables:
            table.check()
        waiting = self.model.waiting
        assert self.each(lambda t, ids, _: len(t)) == len(waiting)
        expected = min(waiting.values())[0] if waiting else None
        assert self.each(lambda t, ids, _: t.next_run_at()) == expected


class FromABulk(SideBySide):
    """Begins with so many that long work is done: without the GIL, heapify, radix sort, rebuild, trim."""

    @initialize(count=st.integers(4096, 7000), spread=st.sampled_from([1, 13, 2**20, 2**63]), seed=st.integers(0, 99))
    def fill(self, count, spread, seed):
        times = np.random.default_rng(seed).integers(0, spread, count, dtype=np.uint64).astype(np.int64)
        items = [n if n % 2 else None for n in range(count)] if seed % 2 else None
        for name, run_at in zip(
            self.added([t.add_many(times, items).tolist() for t in self.tables]), times.tolist(), strict=True
        ):
            self.model.put(name, run_at)

    @precondition(lambda self: self.model.waiting)
    @rule(eighths=st.integers(0, 8), with_ids=st.booleans(), cut=st.booleans())
    def pop_a_part(self, eighths, with_ids, cut):
        times = sorted(run_at for run_at, _, _ in self.model.waiting.values())
        now = times[min(eighths * len(times) // 8, len(times) - 1)]
        limit = len(times) // 3 if cut else None
        self.take_due(now, limit, with_ids)

    @precondition(lambda self: len(self.model.waiting) > 1000)
    @rule(every=st.sampled_from([5, 10, 100, 1000]), at_once=st.booleans())
    def leave_a_few(self, every, at_once):
        """Scattered over all chunks: their records move to the annex of the compiled stack."""
        names = [name for name in self.model.waiting if name % every]
        if at_once:
            self.each(lambda t, ids, _: t.cancel_many([ids[name] for name in names]))
        else:
            assert self.each(lambda t, ids, _: all(t.cancel(ids[name]) for name in names))
        for name in names:
            del self.model.waiting[name]

    @rule(count=st.integers(1000, 5000), spread=st.sampled_from([1, 2**40]), at_once=st.booleans())
    def refill(self, count, spread, at_once):
        """So that chunks are made again, and those in the annex come home."""
        times = np.random.default_rng(count).integers(0, spread, count).tolist()
        first = len(self.ids[0])
        items = [n if n % 2 else None for n in range(first, first + count)]
        if at_once:
            names = self.added([t.add_many(times, items).tolist() for t in self.tables])
        else:
            pairs = list(zip(times, items, strict=True))
            names = self.added([[t.add(run_at, item) for run_at, item in pairs] for t in self.tables])
        for name, run_at in zip(names, times, strict=True):
            self.model.put(name, run_at)


class FarAndNear(FromABulk):
    """Thousands come and go in clusters, so that what is far is split, loaded, merged, drained, compacted, given up."""

    @rule(
        count=st.integers(1, 1600),
        start=TIMES,
        step=st.sampled_from([0, 0, 1, -1, 7, -64, 2**12 + 1, -(2**40), 2**54]),
        at_once=st.booleans(),
        priority=PRIORITIES,
    )
    def add_a_cluster(self, count, start, step, at_once, priority):
        times = [start + step * k for k in range(count)]
        if at_once:
            names = self.added([t.add_many(times).tolist() for t in self.tables])
            priority = 0
        else:
            names = self.added([[t.add(run_at, priority=priority) for run_at in times] for t in self.tables])
        for name, run_at in zip(names, times, strict=True):
            self.model.put(name, run_at, priority)

    @rule(count=st.integers(1, 1600), add_behind=st.sampled_from([None, 0, 1, 1000, 2**50]))
    def pop_many(self, count, add_behind):
        """One by one; with `add_behind`, another is added so far behind each: the table keeps its size."""
        order = self.model.in_order()
        heap = [(*self.model.waiting[name], name) for name in order]
        for _ in range(min(count, len(heap))):
            run_at, _, _, name = heapq.heappop(heap)
            popped = self.each(lambda t, ids, names: (lambda at, timer_id, _: (at, names[timer_id]))(*t.pop()))
            assert popped == (run_at, name)
            del self.model.waiting[name]
            if add_behind is not None:
                (new,) = self.added([[t.add(run_at + add_behind)] for t in self.tables])
                self.model.put(new, run_at + add_behind)
                heapq.heappush(heap, (*self.model.waiting[new], new))

    @precondition(lambda self: self.model.waiting)
    @rule(part=st.integers(0, 3), start=TIMES, step=st.sampled_from([0, 1, -1, 2**30, -(2**50)]))
    def move_a_quarter(self, part, start, step):
        for k, name in enumerate(list(self.model.waiting)[part::4]):
            for table, ids in zip(self.tables, self.ids, strict=True):
                assert table.reschedule(ids[name], start + step * k)
            self.model.put(name, start + step * k, -self.model.waiting[name][1])


@pytest.mark.hypothesis
def test_many_short_walks_make_100_000_steps_and_agree():
    steps = 0

    class Counted(SideBySide):
        def __init__(self):
            super().__init__()
            nonlocal steps
            steps -= 1  # the invariants are looked at before the first step, too

        @invariant()
        def count(self):
            nonlocal steps
            steps += 1

    while steps < 100_000:  # how long a walk is, is left to chance, too
        run_state_machine_as_test(Counted, settings=settings(max_examples=100, stateful_step_count=200))


LARGE = settings(
    max_examples=20,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestFromABulk = FromABulk.TestCase
TestFromABulk.settings = LARGE

TestFarAndNear = FarAndNear.TestCase
TestFarAndNear.settings = LARGE
