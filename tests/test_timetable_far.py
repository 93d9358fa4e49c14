"""Thousands of timers: what is near and what is far, and all the ways between them, beside a sorted list."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import numpy as np
import pytest

from nextdue.testing import ManualClock

LATEST = 2**63 - 1
SPREADS = {
    "anywhere": lambda random, step, now: random.randrange(-(2**63), LATEST),
    "crowded": lambda random, step, now: random.randrange(3000),
    "tied": lambda random, step, now: random.randrange(2),
    "descending": lambda random, step, now: -step,
    "ascending": lambda random, step, now: step,
    "soon": lambda random, step, now: now + random.randrange(10**6),
    "soon and late": lambda random, step, now: now + (random.randrange(100) if step % 3 else 10**12 + step),
    "late clusters": lambda random, step, now: now + 2 ** random.randrange(50) + random.randrange(4),
    "negative": lambda random, step, now: -random.randrange(1, 2**40),
    "at the ends": lambda random, step, now: random.choice([-(2**63), LATEST - 1, LATEST, 0]) - step % 2,
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("seed", range(3))
def test_long_walk_pops_in_the_order_of_a_heap(stack, spread, seed):
    rnd = random.Random(f"{spread} {seed}")
    time_of = SPREADS[spread]
    table = stack.Timetable()
    heap = []
    alive = {}
    ids = []
    now = 0
    growth = 0.7
    for step in range(9000):
        if step % 1500 == 0:
            growth = rnd.choice([0.45, 0.6, 0.8])
        if rnd.random() < growth or not alive:
            at = max(min(time_of(rnd, step, now), LATEST), -(2**63))
            timer_id = table.add(at)
            heapq.heappush(heap, (at, step, timer_id))
            alive[timer_id] = (at, step)
            ids.append(timer_id)
        elif rnd.random() < 0.6:
            while alive.get(heap[0][2]) != heap[0][:2]:
                heapq.heappop(heap)
            at, _, timer_id = heapq.heappop(heap)
            assert table.pop() == (at, timer_id, None)
            del alive[timer_id]
            now = at
        elif rnd.random() < 0.7:
            timer_id = rnd.choice(ids)
            assert table.cancel(timer_id) is (alive.pop(timer_id, None) is not None)
        else:
            timer_id = rnd.choice(ids)
            at = max(min(time_of(rnd, step, now), LATEST), -(2**63))
            assert table.reschedule(timer_id, at) is (timer_id in alive)
            if timer_id in alive:
                heapq.heappush(heap, (at, step, timer_id))
                alive[timer_id] = (at, step)
    table.check()
    expected = [timer_id for timer_id, (at, _) in sorted(alive.items(), key=lambda item: item[1]) if at < LATEST]
    assert table.pop_due_ids(LATEST).tolist() == expected
    table.check()


@pytest.mark.parametrize("count", [900, 999, 1000, 1001, 1023, 1024, 1025, 1600, 30_000])
@pytest.mark.parametrize("before", [0, 1, 999, 5000])
@pytest.mark.parametrize("behind", [True, False])
def test_add_many_beside_others_keeps_the_order(stack, count, before, behind):
    table = stack.Timetable()
    old = np.random.default_rng(before).integers(10**6, 2 * 10**6, before)
    new = np.random.default_rng(count).integers(10**6, size=count) + (2 * 10**6 if behind else 0)
    for at in old.tolist():
        table.add(at)
    table.add_many(new)
    table.check()
    times = np.concatenate([old, new])
    popped = [table.pop()[0] for _ in range(min(len(times), 2500))]
    assert popped == np.sort(times)[: len(popped)].tolist()
    table.check()


@pytest.mark.parametrize("times", ["even", "tied", "clustered", "doubling", "priority"])
@pytest.mark.parametrize("dead", [0, 3, 10])
def test_pop_due_ids_of_many_is_in_exact_order(stack, times, dead):
    rng = np.random.default_rng(7)
    count = 20_000
    at = {
        "even": lambda: rng.integers(3600 * 10**9, size=count),
        "tied": lambda: rng.integers(3, size=count),
        "clustered": lambda: 10**15 + 10**9 * rng.integers(20, size=count) + rng.integers(50, size=count),
        "doubling": lambda: rng.integers(4, size=count) - (1 << rng.integers(62, size=count)),
        "priority": lambda: rng.integers(9, size=count),
    }[times]()
    rank = (rng.integers(-3, 4, count) if times == "priority" else np.zeros(count, np.int64)).tolist()
    table = stack.Timetable()
    if times == "priority":
        ids = np.array([table.add(a, priority=p) for a, p in zip(at.tolist(), rank, strict=True)])
    else:
        ids = table.add_many(at)
    gone = set(ids[::dead].tolist()) if dead else set()
    table.cancel_many(list(gone))
    keys = sorted((a, -p, k) for k, (a, p) in enumerate(zip(at.tolist(), rank, strict=True)))
    expected = [int(ids[k]) for _, _, k in keys if int(ids[k]) not in gone]
    third = len(expected) // 3
    assert table.pop_due_ids(LATEST, third).tolist() == expected[:third]
    table.check()
    middle = keys[2 * count // 3][0]
    popped = table.pop_due_ids(middle).tolist()
    table.check()
    popped += table.pop_due_ids(LATEST).tolist()
    assert popped == expected[third:]
    assert len(table) == 0


def test_pop_due_step_by_step_through_what_is_far_misses_nothing(stack):
    table = stack.Timetable()
    times = np.random.default_rng(3).integers(10**7, size=30_000)
    table.add_many(times, times.tolist())
    popped = []
    for now in range(0, 10**7 + 1, 20_011):
        due = table.pop_due(now)
        assert all(now - 20_011 < at <= now for at in due)
        popped += due
        if now % 7 == 0:
            table.check()
    popped += table.pop_due(10**7)
    assert popped == np.sort(times).tolist()


def test_next_run_at_moves_back_and_forth_with_what_is_added(stack):
    table = stack.Timetable()
    table.add_many(np.arange(5000) * 1000 + 10**9)
    for k in range(3000):
        table.add(10**9 - 1 - k)
        assert table.next_run_at() == 10**9 - 1 - k
    table.check()
    for k in range(2999, -1, -1):
        assert table.pop()[0] == 10**9 - 1 - k
    assert table.next_run_at() == 10**9
    table.check()


def test_cancelling_all_that_is_far_leaves_what_is_near(stack):
    table = stack.Timetable()
    near = [table.add(k) for k in range(10)]
    far = table.add_many(np.arange(20_000) * 10**6 + 10**9)
    for timer_id in far[::-1].tolist():
        assert table.cancel(timer_id)
    table.check()
    assert [table.pop()[1] for _ in near] == near


def test_what_was_far_and_is_cleared_is_gone(stack):
    table = stack.Timetable()
    ids = table.add_many(np.arange(20_000), range(20_000))
    table.cancel_many(ids[:3000])
    table.clear()
    table.check()
    assert len(table) == 0
    assert not any(timer_id in table for timer_id in ids[::97].tolist())
    again = table.add_many(np.arange(20_000))
    assert table.pop_due_ids(LATEST).tolist() == again.tolist()


def test_a_crowd_of_held_jobs_can_all_be_armed_again(stack):
    """More become due at once than the heap has room for; each is armed again as it runs."""
    clock = ManualClock()
    agenda = stack.Agenda(clock)
    runs = Counter()
    count = 9000
    for k in range(count):
        agenda.schedule_at_fixed_rate(runs.__setitem__, 1 + k % 7, 10, args=(k, 1))
    agenda.schedule_at_fixed_rate(lambda: runs.update(range(count)), 100, 1000)
    clock.advance(8)
    assert agenda.run_due() == count
    assert set(runs.values()) == {1}
    clock.advance(10)
    assert agenda.run_due() == count
    assert agenda.next_run_at() == 21 * 10**9


@pytest.mark.parametrize("count", [255, 256, 257, 1023, 1024, 1025, 1280, 1281, 32 * 1024, 32 * 1024 + 257])
@pytest.mark.parametrize("width", [1, 40, 10**6, 2**62])
def test_what_is_far_is_sorted_at_every_size_and_width(stack, count, width):
    """A full inbox, a full leaf, a leaf of equal times that bursts by what breaks the tie, and one on either side."""
    table = stack.Timetable()
    table.add_many(np.arange(1000) - 1000)  # from here on what comes later is far
    times = np.random.default_rng(count).integers(width, size=count)
    added = [(at, table.add(at)) for at in times.tolist()]
    table.check()
    assert table.pop_due_ids(-1).size == 1000
    expected = sorted(added, key=lambda pair: pair[0])
    half = count // 2
    assert [table.pop()[:2] for _ in range(half)] == expected[:half]
    table.check()
    assert table.pop_due_ids(LATEST).tolist() == [timer_id for _, timer_id in expected[half:]]


def test_leaves_of_many_widths_keep_their_order_when_the_dead_are_left_out(stack):
    table = stack.Timetable()
    times = np.concatenate([2**k + np.random.default_rng(k).integers(2**k, size=900) for k in range(0, 62, 3)])
    ids = table.add_many(times)
    gone = np.random.default_rng(1).permutation(len(ids))[: 2 * len(ids) // 3]
    assert table.cancel_many(ids[gone]) == len(gone)
    table.check()
    left = np.setdiff1d(np.arange(len(ids)), gone)
    again = table.add_many(times[gone])
    keys = np.concatenate([times[left], times[gone]])
    expected = np.concatenate([ids[left], again])[np.argsort(keys, kind="stable")]
    assert table.pop_due_ids(LATEST).tolist() == expected.tolist()
