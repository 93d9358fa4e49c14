"""Keys, time limits, pauses and counts on real threads."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context

import pytest

from nextdue import FailedResult, FixedBackoff, Scheduler, Status, TooManyJobs, UnknownJobId, current_job
from nextdue.testing import ManualClock

pytestmark = pytest.mark.realtime

PATIENCE = 20


def wait_until(condition):
    """Wait for what another thread is about to do; it gives up late."""
    deadline = time.monotonic() + PATIENCE
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        tick.wait(0.002)


def threads_of(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.fixture
def scheduler(stack):
    with Scheduler(workers=2, agenda=stack.Agenda(), name="rules") as scheduler:
        yield scheduler


# ---------------------------------------------------------------- time limits


@pytest.mark.parametrize("pool", [None, lambda: ThreadPoolExecutor(2)])
def test_rules_are_applied_while_every_worker_is_blocked(stack, pool, caplog):  # B101
    clock, wall = ManualClock(), ManualClock(10**18)
    gate, held = threading.Event(), threading.Semaphore(0)
    asked = []

    class Hourly:
        def next_after(self, dt):
            asked.append(dt)
            return dt + timedelta(hours=1)

    with Scheduler(workers=2, agenda=stack.Agenda(clock, wall_clock=wall), executor=pool) as scheduler:
        scheduler.schedule_recurring(int, Hourly())
        blocked = [scheduler.schedule(lambda: held.release() or gate.wait(PATIENCE), timeout=5) for _ in range(2)]
        dependent = scheduler.schedule(int, after=[blocked[0]])
        try:
            for _ in blocked:
                assert held.acquire(timeout=PATIENCE)
            wall.set_ns(wall() - 86_400 * 10**9)
            wait_until(lambda: len(asked) == 2)  # for the next slot, from what the clock shows now
            assert {job.status for job in blocked} == {Status.RUNNING}
            clock.advance(5)
            wait_until(lambda: dependent.status is Status.CANCELLED)
        finally:
            gate.set()
        assert all(job.wait(PATIENCE) for job in blocked)
        assert {job.status for job in blocked} == {Status.FAILED}


def test_substitutes_keep_the_capacity_while_runs_hang_and_go_when_these_end(scheduler):  # B172
    release = threading.Event()
    before = len(threads_of("rules"))
    hung = [scheduler.schedule(release.wait, timeout=0.05) for _ in range(2)]
    short = [scheduler.schedule(int) for _ in range(10)]
    try:
        assert all(job.wait(PATIENCE) for job in short)
        wait_until(lambda: [job.status for job in hung] == [Status.FAILED] * 2)
        assert all(isinstance(job.last_error, TimeoutError) for job in hung)
        assert not hung[0].wait(0)
        wait_until(lambda: len(threads_of("rules")) == before + 2)
        # Both places are there: two jobs that wait for each other.
        barrier = threading.Barrier(2)
        pair = [scheduler.schedule(barrier.wait, args=(PATIENCE,)) for _ in range(2)]
        assert sorted(job.result(PATIENCE) for job in pair) == [0, 1]
    finally:
        release.set()
    assert all(job.wait(PATIENCE) for job in hung)
    assert [job.status for job in hung] == [Status.FAILED] * 2  # the late result changes nothing
    wait_until(lambda: len(threads_of("rules")) == before)
    barrier = threading.Barrier(2)
    pair = [scheduler.schedule(barrier.wait, args=(PATIENCE,)) for _ in range(2)]
    assert sorted(job.result(PATIENCE) for job in pair) == [0, 1]
    assert scheduler.stats().timed_out == 2


def test_hanging_again_and_again_leaves_as_many_threads_as_before(scheduler):  # B170
    before = len(threads_of("rules"))
    for _ in range(10):
        job = scheduler.schedule(lambda: current_job().wait(PATIENCE), timeout=0.01)
        assert job.wait(PATIENCE)
        assert isinstance(job.last_error, TimeoutError)
    wait_until(lambda: len(threads_of("rules")) == before)
    assert scheduler.schedule(pow, args=(2, 3)).result(PATIENCE) == 8


def test_key_of_a_hung_run_is_free_only_when_it_ends(scheduler):  # B175
    release = threading.Event()
    order = []

    def hang():
        release.wait(PATIENCE)
        order.append("hung run ended")

    hung = scheduler.schedule(hang, key="k", timeout=0.02)
    second = scheduler.schedule(order.append, args=("second",), key="k")
    wait_until(lambda: hung.status == Status.FAILED)
    assert scheduler.schedule(pow, args=(2, 3)).result(PATIENCE) == 8
    assert second.status == Status.SCHEDULED
    release.set()
    assert second.wait(PATIENCE)
    assert order == ["hung run ended", "second"]


def test_retry_of_a_hung_run_runs_beside_it(scheduler):
    release = threading.Event()
    attempts = []

    def task():
        attempts.append(current_job().attempt)
        if attempts[-1] == 1:
            release.wait(PATIENCE)
            return "late"
        release.set()
        return "in time"

    job = scheduler.schedule(task, timeout=0.05, retry=FixedBackoff(max_attempts=2, delay=0))
    assert job.result(PATIENCE) == "in time"
    assert attempts == [1, 2]


def test_shutdown_with_a_hung_run_keeps_its_deadline(stack):
    release = threading.Event()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(), name="hung")
    job = scheduler.schedule(release.wait, timeout=0.02)
    wait_until(lambda: job.status == Status.FAILED)
    later = scheduler.schedule(int, delay=1000)
    try:
        assert scheduler.shutdown(timeout=0.1) == (False, 1, 1)
        assert later.status == Status.CANCELLED
    finally:
        release.set()
    assert scheduler.shutdown(timeout=PATIENCE) == (True, 1, 0)
    assert threads_of("hung") == []


def test_time_limits_hold_for_what_still_runs_after_a_shutdown(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    gate = threading.Event()
    scheduler.schedule(gate.wait, timeout=PATIENCE)
    # The booking of a run with a limit is a round of the lock of its own, between two jobs.
    last = scheduler.schedule(lambda: current_job().wait(PATIENCE), timeout=0.02)
    scheduler.shutdown(wait=False)
    gate.set()
    assert last.wait(PATIENCE)
    assert isinstance(last.last_error, TimeoutError)
    assert scheduler.shutdown(timeout=PATIENCE).complete


def test_listener_of_a_time_limit_may_shut_down(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    ends = []
    scheduler.on("timed_out", lambda event: ends.append(scheduler.shutdown()))
    job = scheduler.schedule(lambda: current_job().wait(PATIENCE), timeout=0.02)
    assert job.wait(PATIENCE)
    wait_until(lambda: ends)
    assert ends == [(True, 0, 0)]
    assert scheduler.shutdown(timeout=PATIENCE).complete


def test_time_limit_goes_by_the_schedulers_clock(stack):
    clock = ManualClock()
    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        started = threading.Event()
        release = threading.Event()

        def task():
            started.set()
            release.wait(PATIENCE)

        job = scheduler.schedule(task, timeout=3600)
        assert started.wait(PATIENCE)
        clock.advance(3600)
        wait_until(lambda: job.status == Status.FAILED)
        release.set()


def test_run_that_waits_is_woken_by_cancel(scheduler):
    woken = []
    started = threading.Event()

    def task():
        started.set()
        woken.append(current_job().wait(PATIENCE))

    job = scheduler.schedule(task)
    assert started.wait(PATIENCE)
    assert job.cancel()
    assert job.wait(PATIENCE)
    assert woken == [True]


# ---------------------------------------------------------------- keys


def test_running_count_of_a_key_never_passes_its_limit_and_all_run(stack):
    with Scheduler(workers=6, agenda=stack.Agenda()) as scheduler:
        lock = threading.Lock()
        running = [0, 0, 0]
        most = [0, 0, 0]

        def task(key):
            with lock:
                running[key] += 1
                most[key] = max(most[key], running[key])
            time.sleep(0.0002)
            with lock:
                running[key] -= 1

        jobs = []

        def add():
            for k in range(150):
                jobs.append(scheduler.schedule(task, args=(k % 3,), key=k % 3, key_limit=k % 3 + 1, priority=k % 2))

        adders = [threading.Thread(target=add) for _ in range(4)]
        for thread in adders:
            thread.start()
        for thread in adders:
            thread.join(PATIENCE)
        assert all(job.wait(PATIENCE) for job in jobs)
        assert {job.status for job in jobs} == {Status.SUCCEEDED}
        assert all(most[key] <= key + 1 for key in range(3))


def test_tasks_of_two_keys_add_and_cancel_those_of_the_other(stack):  # B128
    with Scheduler(workers=8, agenda=stack.Agenda()) as scheduler:
        left = [400]
        lock = threading.Lock()
        done = threading.Event()

        def task(mine, other):
            with lock:
                left[0] -= 1
                if left[0] <= 0:
                    done.set()
                    return
            scheduler.schedule(task, delay=1000, args=(other, mine), key=other).cancel()
            scheduler.schedule(task, args=(other, mine), key=other)

        for _ in range(4):
            scheduler.schedule(task, args=("k", "l"), key="k")
            scheduler.schedule(task, args=("l", "k"), key="l")
        assert done.wait(PATIENCE)


def test_no_wake_up_is_lost_between_a_key_that_is_freed_and_a_job_that_comes(stack):  # B81
    with Scheduler(workers=2, agenda=stack.Agenda()) as scheduler:
        for _ in range(300):
            first = scheduler.schedule(int, key="k")
            second = scheduler.schedule(int, key="k")
            assert second.wait(PATIENCE)
            assert first.wait(PATIENCE)


# ---------------------------------------------------------------- pause, wait_idle, dependencies


def test_pause_and_resume_of_a_scheduler_with_waiting_workers(scheduler):
    assert scheduler.schedule(int).wait(PATIENCE)
    assert scheduler.pause()
    jobs = [scheduler.schedule(int) for _ in range(20)]
    assert not scheduler.wait_idle(timeout=0.01)
    assert {job.status for job in jobs} == {Status.SCHEDULED}
    assert scheduler.resume()
    assert all(job.wait(PATIENCE) for job in jobs)
    assert not scheduler.resume()


def test_shutdown_of_a_paused_scheduler_runs_what_is_due(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    scheduler.pause()
    due = scheduler.schedule(int)
    held = scheduler.schedule(int)
    held.pause()
    scheduler.shutdown(wait=False)
    assert not scheduler.pause()
    assert scheduler.shutdown(timeout=PATIENCE).complete
    assert (due.status, held.status) == (Status.SUCCEEDED, Status.CANCELLED)


def test_wait_idle_sees_dependents_and_retries_that_are_due(scheduler):
    for _ in range(100):
        ran = []
        first = scheduler.schedule(ran.append, args=(1,))
        second = scheduler.schedule(ran.append, args=(2,), after=[first])
        scheduler.schedule(ran.append, args=(3,), after=[second])
        results = iter([OSError, None])

        def task(results=results, ran=ran):
            error = next(results)
            if error:
                raise error
            ran.append("again")

        scheduler.schedule(task, retry=FixedBackoff(max_attempts=2, delay=0))
        scheduler.schedule(int, delay=1000)
        assert scheduler.wait_idle(timeout=PATIENCE)
        assert sorted(map(str, ran)) == ["1", "2", "3", "again"]


def test_wait_idle_sees_a_retry_that_came_due_after_its_look_at_the_clock(stack):
    looked, armed, seen = (threading.Event() for _ in range(3))
    ran = []
    looks = iter([0])  # of this thread, the first from before the end of the run, by which the retry is not due

    def clock():
        if threading.current_thread() is not threading.main_thread():
            if (ran and threading.current_thread().name == "rules-watcher") or armed.is_set():
                seen.wait(PATIENCE)  # so it is for this thread to see that the retry is due
            return len(ran)
        if not waits:
            return 0
        for now in looks:
            looked.set()
            assert armed.wait(PATIENCE)
            return now
        seen.set()
        return 1

    def task():
        assert looked.wait(PATIENCE)
        ran.append(1)
        if len(ran) == 1:
            raise OSError

    waits = False
    with Scheduler(workers=1, agenda=stack.Agenda(clock), name="rules") as scheduler:
        scheduler.on("retrying", lambda _: armed.set())
        try:
            scheduler.schedule(task, retry=FixedBackoff(max_attempts=2, delay=0))
            waits = True
            assert scheduler.wait_idle(timeout=PATIENCE)
            assert len(ran) == 2
        finally:
            seen.set()


def test_wait_idle_on_a_clock_that_fails_raises_and_the_scheduler_goes_on(stack):
    readings = iter([0, 0, ZeroDivisionError])

    def clock():
        if threading.current_thread() is threading.main_thread() and next(readings, 0):
            raise ZeroDivisionError("no clock")
        return 0

    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        job = scheduler.schedule(int)
        with pytest.raises(ZeroDivisionError, match=r"^no clock$"):
            scheduler.wait_idle()
        assert scheduler.wait_idle(timeout=PATIENCE)
        assert job.status is Status.SUCCEEDED


def test_wait_idle_of_an_idle_scheduler_returns_at_once(scheduler):
    assert scheduler.wait_idle()
    assert scheduler.wait_idle(timeout=0)


def test_wait_idle_in_a_run_does_not_wait_for_that_run(scheduler):
    assert scheduler.schedule(scheduler.wait_idle).result(PATIENCE) is True


def test_wait_idle_with_a_paused_job_that_came_due(stack):
    with ThreadPoolExecutor(1) as pool, Scheduler(workers=1, agenda=stack.Agenda(), executor=pool) as scheduler:
        gate = threading.Event()
        scheduler.schedule(gate.wait)
        job = scheduler.schedule(int)
        job.pause()
        gate.set()
        assert scheduler.wait_idle(timeout=PATIENCE)
        assert job.status == Status.SCHEDULED


# ---------------------------------------------------------------- counts and bounds


def test_counts_of_a_busy_scheduler_add_up(stack):
    with Scheduler(workers=4, agenda=stack.Agenda()) as scheduler:
        lock = threading.Lock()
        heard = dict.fromkeys(("started", "succeeded", "failed", "retrying"), 0)

        def listener(event):
            with lock:
                heard[event.name] += 1

        for name in heard:
            scheduler.on(name, listener)

        def task(k):
            if k % 3 == 0:
                raise OSError(k)

        jobs = [
            scheduler.schedule(task, args=(k,), retry=FixedBackoff(2, delay=0) if k % 2 else None) for k in range(600)
        ]
        assert all(job.wait(PATIENCE) for job in jobs)
        assert scheduler.wait_idle(timeout=PATIENCE)
        stats = scheduler.stats()
        assert stats[:3] == (0, 0, 0)
        assert (stats.succeeded, stats.failed, stats.retried) == (400, 200, 100)
        assert stats.started == 700 == sum(stats.lag.counts.values())
        assert stats.lag.quantile(1) >= stats.lag.quantile(0.5) >= 0
    assert heard == {"started": 700, "succeeded": 400, "failed": 200, "retrying": 100}


def test_bounds_pass_through_to_the_agenda():
    with Scheduler(workers=1, history=1, max_waiting=1) as scheduler:
        for name in "ab":
            scheduler.schedule(int, id=name).wait(PATIENCE)
        with pytest.raises(UnknownJobId):
            scheduler.status("a")
        scheduler.schedule(int, delay=1000)
        with pytest.raises(TooManyJobs):
            scheduler.schedule(int, delay=1000)


def test_history_age_passes_through():
    clock = ManualClock()
    with Scheduler(workers=1, clock=clock, history_age=5) as scheduler:
        scheduler.schedule(int, id="a").wait(PATIENCE)
        clock.advance(6)
        with pytest.raises(UnknownJobId):
            scheduler.status("a")


@pytest.mark.parametrize("bound", [{"history": 5}, {"history_age": 5}, {"max_waiting": 5}])
def test_bounds_beside_an_agenda_are_refused(stack, bound):
    with pytest.raises(ValueError, match="must") as caught:
        Scheduler(agenda=stack.Agenda(), **bound)
    assert (
        str(caught.value)
        == "history, history_age and max_waiting must be left out where an agenda is given: it has its own"
    )


# ---------------------------------------------------------------- foreign pools

VAR = contextvars.ContextVar("var", default="unset")


def test_runs_in_a_pool_of_threads_know_their_job_and_have_an_empty_context(stack):  # B214
    seen = []

    def task():
        seen.append((current_job().id, VAR.get()))
        VAR.set("left behind")

    with ThreadPoolExecutor(1) as pool, Scheduler(workers=1, agenda=stack.Agenda(), executor=pool) as scheduler:
        for name in "ab":
            assert scheduler.schedule(task, id=name).wait(PATIENCE)
        context = contextvars.copy_context()
        context.run(VAR.set, "given")
        assert scheduler.schedule(task, id="c", context=context).wait(PATIENCE)
        assert pool.submit(current_job).result() is None
    assert seen == [("a", "unset"), ("b", "unset"), ("c", "given")]


def test_keys_limits_and_conditions_in_a_pool_of_threads(stack):
    release = threading.Event()
    with ThreadPoolExecutor(3) as pool, Scheduler(workers=3, agenda=stack.Agenda(), executor=pool) as scheduler:
        hung = scheduler.schedule(release.wait, args=(PATIENCE,), key="k", timeout=0.02)
        behind = scheduler.schedule(int, key="k")
        bad = scheduler.schedule(lambda: False, is_failure=lambda result: result is False)
        assert bad.wait(PATIENCE)
        assert isinstance(bad.last_error, FailedResult)
        wait_until(lambda: hung.status == Status.FAILED)
        assert scheduler.schedule(pow, args=(2, 3)).result(PATIENCE) == 8
        assert behind.status == Status.SCHEDULED
        release.set()
        assert behind.wait(PATIENCE)
        assert hung.wait(PATIENCE)
        assert scheduler.stats()[:3] == (0, 0, 0)


def ask():
    return current_job(), VAR.get(), os.getpid()


def test_run_in_a_process_pool_has_no_job_and_an_empty_context(stack):
    VAR.set("of the parent")
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        Scheduler(workers=1, agenda=stack.Agenda(), executor=pool) as scheduler,
    ):
        job = scheduler.schedule(ask, key="k", timeout=PATIENCE, is_failure=lambda result: result is None)
        run, value, pid = job.result(PATIENCE)
    assert (run, value) == (None, "unset")
    assert pid != os.getpid()
