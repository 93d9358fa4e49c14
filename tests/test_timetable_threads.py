"""Many threads on one timetable; and what another thread can do while one works."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from nextdue import BACKEND, HeapqTimetable, Timetable, _heapq_timetable

LATEST = 2**63 - 1
PATIENCE = 120
GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
with_gil = pytest.mark.skipif(not GIL, reason="there is no GIL")
compiled_only = pytest.mark.skipif(BACKEND != "compiled", reason="the pure stack keeps the GIL")


def run_threads(*calls):
    """Run each call in a thread of its own, all from one start; raise what any of them raised."""
    errors = []
    start = threading.Barrier(len(calls))

    def run(call):
        try:
            start.wait(PATIENCE)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


# ---------------------------------------------------------------- the GIL is given up


def steps_of_another_thread_during(work):
    """How many of 100 steps another Python thread takes while `work` runs; 0 if `work` never gives up the GIL.

    With a switch interval longer than any test nobody is asked to give up the GIL. The thread waits for it from the
    start; it runs on only if `work` lets it, and after each step it lets go itself, for a system call.
    """
    steps = 0
    go = threading.Lock()
    go.acquire()
    ready = threading.Event()

    def run():
        nonlocal steps
        ready.set()
        go.acquire()
        for _ in range(100):
            steps += 1
            os.write(sink, b".")

    sink = os.open(os.devnull, os.O_WRONLY)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        go.release()
        work()
        return steps
    finally:
        sys.setswitchinterval(before)
        thread.join(PATIENCE)
        os.close(sink)


def lets_another_thread_advance(prepare, work):
    """True if another thread got a step in, at one of many tries: on a busy machine it may wake up too late for one."""
    return any(steps_of_another_thread_during(functools.partial(work, *prepare())) for _ in range(50))


def full():
    """A table of 300,000 and its ids, in order."""
    table = Timetable(capacity=400_000)
    return table, table.add_many(np.arange(300_000)).tolist()


@with_gil
def test_the_measure_is_zero_when_the_gil_is_kept():
    assert steps_of_another_thread_during(lambda: sum(range(10**6))) == 0


@compiled_only
def test_add_many_of_10_million_lets_another_thread_advance():
    table = Timetable()
    times = np.arange(10_000_000)
    assert steps_of_another_thread_during(lambda: table.add_many(times)) > 0
    assert len(table) == len(times)


@compiled_only
def test_add_many_of_a_list_lets_another_thread_advance():
    """Of a list, since numpy gives up the GIL by itself when it copies an array."""
    times = list(range(100_000))
    assert lets_another_thread_advance(
        lambda: (Timetable(capacity=200_000),), lambda table: table.add_many(times, times)
    )


@compiled_only
def test_rebuild_lets_another_thread_advance():
    def prepare():
        table, ids = full()
        table.cancel_many(ids[:150_000])
        return table, ids[150_000]  # one more is more than half

    def work(table, timer_id):
        table.cancel(timer_id)
        assert table.next_run_at() == 150_001

    assert lets_another_thread_advance(prepare, work)


@compiled_only
def test_cancel_many_lets_another_thread_advance():
    # too few for a rebuild
    assert lets_another_thread_advance(full, lambda table, ids: table.cancel_many(ids[:100_000]))


@compiled_only
@pytest.mark.parametrize("limit", [None, 100_000])
def test_pop_due_ids_lets_another_thread_advance(limit):
    assert lets_another_thread_advance(full, lambda table, _: table.pop_due_ids(200_000, limit))


@compiled_only
def test_clear_lets_another_thread_advance():
    assert lets_another_thread_advance(full, lambda table, _: table.clear())


@compiled_only
@with_gil
def test_one_step_keeps_the_gil():
    """Giving it up would cost more than the step, and up to a switch interval beside a busy thread."""
    table, _ = full()
    table.add(0)  # there is room for more

    def work():
        timer_id = table.add(5)
        table.reschedule(timer_id, 6)
        table.cancel(timer_id)
        table.pop()
        table.pop_due(2000)
        table.pop_due_ids(2500, 10)
        table.next_run_at()

    assert steps_of_another_thread_during(work) == 0


# ---------------------------------------------------------------- many threads


def test_promise_18_switches_at_any_line_of_the_pure_stack_lose_nothing(switches_in):  # B106, B119
    switches_in(_heapq_timetable)
    for _ in range(5):
        table = HeapqTimetable()
        shared = table.add(3)
        gone = []

        def mixed(table=table, shared=shared, gone=gone):
            mine = []
            for k in range(60):
                mine.append(table.add(k % 50))
                if k % 2:
                    gone.append(table.cancel(mine.pop()))
                if k % 3:
                    table.reschedule(mine[0], 7)
                    table.reschedule(shared, k)
                if k % 5 == 0:
                    gone.append(len(table.pop_due(20, 3)))

        run_threads(*[mixed] * 4)
        table.check()
        assert len(table) == 1 + 4 * 60 - sum(gone)


def test_promise_18_each_timer_is_popped_or_cancelled_once(stack, quick_switches):  # B104
    count = 4000
    table = stack.Timetable()
    ids = table.add_many(range(count), range(count)).tolist()
    popped, cancelled = [], []

    def pops():
        while len(table):
            popped.extend(table.pop_due(LATEST, 7))

    def cancels(first):
        for k in range(first, count, 3):
            if table.cancel(ids[k]):
                cancelled.append(k)
            assert not table.cancel(ids[k])

    run_threads(pops, pops, *[lambda first=first: cancels(first) for first in (0, 1, 2, 0, 1, 2, 0, 1)])
    assert sorted(popped + cancelled) == list(range(count))
    assert len(table) == 0
    table.check()


def test_promise_18_one_timer_moved_and_cancelled_by_many_threads(stack, quick_switches):  # B106
    table = stack.Timetable()
    rounds = 40
    ids = [table.add(5) for _ in range(rounds)]
    others = [table.add(k) for k in range(300)]
    wins = []

    def moves(step):
        for timer_id in ids:
            for k in range(20):
                table.reschedule(timer_id, step * k)
            if table.cancel(timer_id):
                wins.append(timer_id)

    def pops():
        for _ in range(200):
            wins.append(table.pop()[1])

    run_threads(pops, *[lambda step=step: moves(step) for step in range(1, 9)])
    assert len(set(wins)) == len(wins)
    assert set(ids) <= set(wins) <= {*ids, *others}
    assert len(table) == rounds + 300 - len(wins)
    table.check()


def test_promise_18_every_method_from_many_threads_adds_up(stack, quick_switches):  # B119
    table = stack.Timetable()
    added, gone = [], []

    def mixed(seed):
        rng = np.random.default_rng(seed)
        mine = []
        for k in range(60):
            mine += table.add_many(rng.integers(0, 1000, 5000 if k % 20 == 0 else 30), None).tolist()
            mine.append(table.add(int(rng.integers(1000)), k, priority=int(rng.integers(-3, 3))))
            added.append(31 if k % 20 else 5001)
            for timer_id in mine[-10:-5]:
                table.reschedule(timer_id, int(rng.integers(1000)))
            gone.append(sum(table.cancel(timer_id) for timer_id in mine[-5:]))
            gone.append(table.cancel_many(mine[: len(mine) // 2]))
            del mine[: len(mine) // 2]
            gone.append(len(table.pop_due_ids(int(rng.integers(300)))))
            gone.append(len(table.pop_due(500, 10)))
            assert len(table) >= 0
            repr(table)

    run_threads(*[lambda seed=seed: mixed(seed) for seed in range(4)])
    table.check()
    assert sum(added) - sum(gone) == len(table)
    assert len(table.pop_due(LATEST)) == sum(added) - sum(gone)


def test_promise_18_what_waited_before_clear_is_gone_after_it(stack, quick_switches):
    table = stack.Timetable()
    added = []
    stop = threading.Event()

    def adds():
        k = 0
        while not stop.is_set():
            k -= 1
            added.append(table.add(k))

    def clears():
        try:
            for _ in range(50):
                before = added[-1000:]
                table.clear()
                assert not any(timer_id in table for timer_id in before)
        finally:
            stop.set()

    run_threads(adds, adds, clears)
    table.check()


def test_promise_18_long_work_of_many_threads_adds_up(stack, quick_switches):
    """Long enough for several rounds of the lock; each timer leaves once, whoever takes it."""
    table = stack.Timetable()
    count = 20_000 if stack.name == "compiled" else 5000
    popped, cancelled = [], []

    def adds_and_cancels(seed):
        for k in range(3):
            ids = table.add_many(np.random.default_rng(seed + k).integers(1000, size=count), range(count))
            cancelled.append(table.cancel_many(ids[::2]))

    def pops():
        for now in range(0, 1000, 100):
            popped.append(len(table.pop_due_ids(now)))

    def cancels_one_by_one():
        for timer_id in table.add_many(np.arange(count)).tolist():
            cancelled.append(table.cancel(timer_id))

    run_threads(lambda: adds_and_cancels(1), lambda: adds_and_cancels(9), pops, cancels_one_by_one)
    table.check()
    assert sum(popped) + sum(cancelled) + len(table) == 7 * count
    assert table.pop_due_ids(LATEST).size == 7 * count - sum(popped) - sum(cancelled)


BESIDE_THE_COLLECTOR = """
import gc, sys, threading
import numpy as np
from nextdue import Timetable

sys.setswitchinterval(1e-5)
gc.freeze()  # so that the collector has little to look at but the table
table = Timetable()
stop = False

def collects():
    while not stop:
        gc.collect()

thread = threading.Thread(target=collects)
thread.start()
items = [object()] * 100_000
for _ in range(40):
    ids = table.add_many(np.arange(100_000), items)
    table.cancel_many(ids[:90_000])
    table.pop_due_ids(10**9)
    table.check()
stop = True
thread.join()
print(len(table))
"""


@compiled_only
def test_collector_may_run_while_blocks_come_and_go():
    """It walks through the items without the lock, while long work without the GIL moves what they lie in.

    Freed memory is overwritten, so that a walk through it ends the process.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", BESIDE_THE_COLLECTOR],
        env={**os.environ, "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
