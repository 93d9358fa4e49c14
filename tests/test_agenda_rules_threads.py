"""The rules where threads wait for each other: for quiet, for the end, for a rule that hangs, for a lost run."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from nextdue import Cron, Scheduler, Status
from nextdue import scheduler as room
from nextdue.testing import ManualClock

pytestmark = pytest.mark.realtime

S = 1_000_000_000
PATIENCE = 60
START = datetime(2025, 1, 1, 9, tzinfo=UTC)


def wait_until(condition):
    """Wait for what another thread is about to do; it gives up late."""
    deadline = time.monotonic() + PATIENCE
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        tick.wait(0.002)


def on(agenda, **options):
    return Scheduler(agenda=agenda, **options)


WAITS = {"shutdown": lambda scheduler: scheduler.shutdown(), "wait_idle": lambda scheduler: scheduler.wait_idle()}


# ---------------------------------------------------------------- who reads the clock


def test_promise_18_call_goes_by_its_own_reading_of_the_clock_whatever_other_threads_read(stack):
    here = threading.local()
    agenda = stack.Agenda(lambda: here.now)
    start = threading.Barrier(2)

    def run_at_of_jobs(now):
        here.now = now
        start.wait(PATIENCE)
        return {agenda.schedule(int).run_at for _ in range(20_000)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run_at_of_jobs, (0, S))) == [{0}, {S}]
    finally:
        sys.setswitchinterval(before)


# ---------------------------------------------------------------- who waits for whom


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("pool", ["own", "foreign"])
def test_promise_16_task_does_not_wait_for_what_can_start_only_after_it(stack, wait, key, pool):
    """By its key, or because it keeps the only worker: what is due runs afterwards."""
    executor = ThreadPoolExecutor(2) if pool == "foreign" else None
    scheduler = on(stack.Agenda(), workers=1 if key is None else 2, executor=executor)
    go = threading.Event()

    def task():
        assert go.wait(PATIENCE)
        return WAITS[wait](scheduler)

    caller = scheduler.schedule(task, key=key)
    behind = scheduler.schedule(pow, args=(2, 3), key=key)
    scheduler.schedule(print, delay=3600)
    go.set()
    answer = caller.result(PATIENCE)
    assert answer == ((False, 1, 1) if wait == "shutdown" else False)
    assert behind.result(PATIENCE) == 8
    assert scheduler.shutdown() == (True, 1, 0)
    if executor is not None:
        executor.shutdown()


@pytest.mark.parametrize("wait", WAITS)
def test_task_waits_for_what_another_worker_can_run(stack, wait):
    scheduler = on(stack.Agenda(), workers=2)
    go, ran = threading.Event(), []

    def task():
        assert go.wait(PATIENCE)
        WAITS[wait](scheduler)
        return list(ran)

    caller = scheduler.schedule(task)
    for k in range(100):
        scheduler.schedule(ran.append, args=(k,))
    go.set()
    assert caller.result(PATIENCE) == list(range(100))
    scheduler.shutdown()


@pytest.mark.parametrize("wait", WAITS)
def test_promise_16_task_that_run_due_runs_does_not_wait_for_itself(stack, wait):
    agenda = stack.Agenda()
    scheduler = on(agenda, workers=1)
    agenda.pause()
    job = agenda.schedule(WAITS[wait], args=(scheduler,))
    blocker = agenda.schedule(agenda.run_due, priority=1)  # a pass in a pass: both runs are this thread's
    gate = threading.Event()
    busy = scheduler.schedule(gate.wait, args=(PATIENCE,), priority=2)
    agenda.resume()
    wait_until(lambda: busy.status is not Status.SCHEDULED)
    gate.set()
    agenda.run_due()
    assert blocker.wait(PATIENCE)
    assert job.result(PATIENCE) in (True, (True, 0, 0))
    scheduler.shutdown()


def test_promise_16_run_inside_the_run_of_another_scheduler_is_known(stack):
    outer = on(stack.Agenda(), workers=1)
    with on(stack.Agenda(), workers=1, executor=outer) as inner:
        assert inner.schedule(outer.shutdown).result(PATIENCE).complete
        assert inner.schedule(int).wait(PATIENCE)  # its pool has gone
    assert outer.shutdown().complete


def test_promise_16_shutdown_with_parked_paused_and_dependent_jobs_leaves_none_behind(stack):
    scheduler = on(stack.Agenda(), workers=3)
    go = threading.Event()
    holder = scheduler.schedule(go.wait, args=(PATIENCE,), key="k")
    parked = [scheduler.schedule(int, key="k") for _ in range(3)]
    paused = scheduler.schedule(int, key="k", priority=-1)
    scheduler.pause(paused)
    dependent = scheduler.schedule(int, after=[holder])
    of_parked = scheduler.schedule(int, after=[parked[0]])
    repeating = scheduler.schedule_at_fixed_rate(int, initial_delay=0, period=3600, key="k")
    scheduler.pause()
    assert scheduler.shutdown(wait=False).complete is False
    go.set()
    assert scheduler.shutdown(timeout=PATIENCE) == (True, 3, 0)
    assert [job.status for job in (holder, *parked)] == [Status.SUCCEEDED] * 4
    assert [job.status for job in (paused, dependent, of_parked, repeating)] == [Status.CANCELLED] * 4
    stats = scheduler.stats()
    assert (stats.waiting, stats.ready, stats.running) == (0, 0, 0)
    assert (stats.succeeded, stats.failed, stats.cancelled) == (4, 0, 4)


# ---------------------------------------------------------------- rules that hang


class Hanging:
    """A rule with a slot in an hour; asked for another, it hangs."""

    def __init__(self):
        self.release = threading.Event()
        self.asked = threading.Semaphore(0)
        self.count = 0

    def next_after(self, dt):
        self.count += 1
        if self.count > 1:
            self.asked.release()
            assert self.release.wait(PATIENCE)
        return dt + timedelta(hours=1)


@pytest.mark.parametrize("pool", ["own", "foreign"])
def test_promise_04_rule_that_hangs_when_the_clock_was_set_back_holds_up_nobody(stack, monkeypatch, pool):
    monkeypatch.setattr(room, "PATIENCE", 0.01)
    clock, wall = ManualClock(), ManualClock(int(START.timestamp()) * S)
    executor = ThreadPoolExecutor(2) if pool == "foreign" else None
    rule = Hanging()
    with on(stack.Agenda(clock, wall_clock=wall), workers=1, executor=executor) as scheduler:
        hung = scheduler.schedule_recurring(int, rule)
        other = scheduler.schedule_recurring(pow, Cron("30 * * * *"), args=(2, 3), max_runs=1)
        wall.set_ns(wall() - 86_400 * S)
        assert rule.asked.acquire(timeout=PATIENCE)
        assert scheduler.schedule(pow, args=(2, 3)).result(PATIENCE) == 8
        late = scheduler.schedule(pow, delay=1, args=(2, 3))
        clock.advance(1)
        assert late.result(PATIENCE) == 8
        wait_until(lambda: other.run_at <= 1801 * S)  # another thread has asked the other rule
        wall.advance(1800)
        assert other.wait(PATIENCE)
        assert not scheduler.wait_idle(0)  # nobody knows when it is due
        rule.release.set()
        assert scheduler.wait_idle(PATIENCE)
        assert hung.run_at - clock() == 1800 * S
    if executor is not None:
        executor.shutdown()


def test_promise_16_shutdown_does_not_wait_for_a_rule_that_hangs(stack):
    wall = ManualClock(int(START.timestamp()) * S)
    rule = Hanging()
    scheduler = on(stack.Agenda(ManualClock(), wall_clock=wall), workers=1)
    job = scheduler.schedule_recurring(int, rule)
    wall.set_ns(wall() - 86_400 * S)
    assert rule.asked.acquire(timeout=PATIENCE)
    assert scheduler.shutdown(timeout=PATIENCE) == (True, 1, 0)
    rule.release.set()
    assert job.status is Status.CANCELLED


# ---------------------------------------------------------------- runs that are lost


def test_promise_15_error_thrown_between_the_take_and_the_hand_over_ends_that_run(stack, monkeypatch, caplog):
    start = room._Dispatcher.start
    thrown = iter([KeyboardInterrupt()])

    def disturbed(self, job):
        error = next(thrown, None)
        if error is not None:
            raise error
        start(self, job)

    monkeypatch.setattr(room._Dispatcher, "start", disturbed)
    with ThreadPoolExecutor(2) as executor, on(stack.Agenda(), workers=1, executor=executor) as scheduler:
        lost = scheduler.schedule(int)
        assert lost.wait(PATIENCE)
        assert isinstance(lost.last_error, KeyboardInterrupt)
        gate = threading.Event()
        running = scheduler.schedule(gate.wait, args=(PATIENCE,))
        after = scheduler.schedule(pow, args=(2, 3))
        assert not after.wait(0)  # the one place is taken, and was not given twice
        gate.set()
        assert (running.result(PATIENCE), after.result(PATIENCE)) == (True, 8)
    assert "the dispatcher was disturbed; it goes on" in caplog.messages


def test_promise_15_dispatcher_that_is_disturbed_while_it_rests_gives_no_place_away(stack, caplog):
    peak, going, lock = [], [], threading.Lock()
    gate = threading.Event()

    def task():
        with lock:
            going.append(1)
            peak.append(len(going))
        assert gate.wait(PATIENCE)
        with lock:
            going.pop()

    with ThreadPoolExecutor(4) as executor, on(stack.Agenda(), workers=1, executor=executor, name="rests") as scheduler:
        jobs = [scheduler.schedule(task)]
        wait_until(lambda: going)
        (dispatcher,) = [thread for thread in threading.enumerate() if thread.name == "rests-dispatcher"]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(dispatcher.ident), ctypes.py_object(OSError))
        jobs += [scheduler.schedule(task) for _ in range(3)]  # wakes it, and it finds the error
        gate.set()
        assert all(job.wait(PATIENCE) for job in jobs)
    assert max(peak) == 1
