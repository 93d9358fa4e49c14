"""Promise 16: what a shutdown runs, cancels, waits for and returns; on both stacks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import UserDict
from concurrent.futures import CancelledError
from datetime import timedelta

import pytest

from nextdue import FixedBackoff, Scheduler, Status

PATIENCE = 20.0
FAR = 1e6


@pytest.fixture
def busy(stack):
    """(scheduler, hold, running): the one worker runs the job `running` until `hold` is set."""
    hold, held = threading.Event(), threading.Event()
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        running = scheduler.schedule(lambda: held.set() or hold.wait(PATIENCE))
        assert held.wait(PATIENCE)
        yield scheduler, hold, running
        hold.set()


def test_promise_16_what_is_not_due_ends_cancelled(stack, clock):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(clock))
    jobs = [scheduler.schedule(int, delay=k + 1) for k in range(100)]
    jobs.append(scheduler.schedule_at_fixed_rate(int, initial_delay=5, period=5))
    jobs.append(scheduler.schedule_with_fixed_delay(int, initial_delay=5, delay=5))
    assert scheduler.shutdown() == (True, 102, 0)
    assert {job.status for job in jobs} == {Status.CANCELLED}


def test_promise_16_what_is_due_running_or_submitted_still_runs(busy):
    scheduler, hold, running = busy
    ready = [scheduler.schedule(int) for _ in range(100)]
    future = scheduler.submit(int)
    assert scheduler.shutdown(wait=False) == (False, 0, 102)
    hold.set()
    assert scheduler.shutdown() == (True, 0, 0)
    assert {job.status for job in [running, *ready]} == {Status.SUCCEEDED}
    assert future.result(0) == 0


def test_promise_16_more_due_jobs_than_one_round_takes_all_run(stack, clock):
    ran = []
    agenda = stack.Agenda(clock)
    for _ in range(10_000):
        agenda.schedule(ran.append, delay=1, args=(1,))
    hold, held = threading.Event(), threading.Event()
    with Scheduler(workers=2, agenda=agenda) as scheduler:
        for _ in range(2):
            scheduler.submit(hold.wait, PATIENCE)
        scheduler.submit(held.set)
        clock.advance(1)
        threading.Timer(0, hold.set).start()
        assert scheduler.shutdown() == (True, 0, 0)
    assert len(ran) == 10_000


def test_promise_16_due_jobs_run_however_the_shutdown_falls_in_with_the_workers(stack, clock):
    for _ in range(200):
        agenda = stack.Agenda(clock)
        scheduler = Scheduler(workers=1, agenda=agenda)
        jobs = [scheduler.schedule(int), scheduler.schedule(int, delay=1)]
        clock.advance(1)
        assert scheduler.shutdown(timeout=PATIENCE) == (True, 0, 0)
        assert {job.status for job in jobs} == {Status.SUCCEEDED}


def test_promise_16_cancel_futures_leaves_only_what_runs(busy):
    scheduler, hold, running = busy
    ready = [scheduler.schedule(int) for _ in range(10)]
    futures = [scheduler.submit(int) for _ in range(10)]
    assert scheduler.shutdown(wait=False, cancel_futures=True) == (False, 20, 1)
    assert {job.status for job in ready} == {Status.CANCELLED}
    assert all(future.cancelled() for future in futures)
    with pytest.raises(CancelledError):
        futures[0].result(0)
    hold.set()
    assert scheduler.shutdown() == (True, 20, 0)
    assert running.status is Status.SUCCEEDED


@pytest.mark.realtime
@pytest.mark.parametrize("timeout", [0.05, timedelta(milliseconds=50)])
def test_promise_16_timeout_bounds_the_wait_for_a_stuck_task(busy, timeout):  # B201
    scheduler, _, running = busy
    started = time.monotonic()
    assert scheduler.shutdown(timeout=timeout) == (False, 0, 1)
    assert time.monotonic() - started >= 0.05
    assert running.status is Status.RUNNING


@pytest.mark.parametrize("timeout", [0, -1])
def test_promise_16_timeout_of_zero_or_less_does_not_wait(busy, timeout):
    assert busy[0].shutdown(timeout=timeout) == (False, 0, 1)


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e300])
def test_promise_16_timeout_of_infinity_is_none(stack, timeout):  # B52
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    assert scheduler.shutdown(timeout=timeout) == (True, 0, 0)


@pytest.mark.parametrize(
    ("timeout", "error", "message"),
    [
        (float("nan"), ValueError, "timeout must be a finite number of seconds, got nan"),
        (True, TypeError, "timeout must be seconds (int or float) or a timedelta, got True"),
        ("1", TypeError, "timeout must be seconds (int or float) or a timedelta, got '1'"),
    ],
)
def test_promise_17_bad_timeout_is_refused_and_nothing_is_shut_down(stack, timeout, error, message):
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        with pytest.raises(error) as caught:
            scheduler.shutdown(timeout=timeout)
        assert str(caught.value) == message
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_promise_16_shutdown_is_idempotent(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    scheduler.schedule(int, delay=FAR)
    assert [scheduler.shutdown() for _ in range(3)] == [(True, 1, 0)] * 3


def test_promise_16_leaving_with_calls_it(stack):
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        job = scheduler.schedule(int, delay=FAR)
    assert job.status is Status.CANCELLED


@pytest.mark.parametrize(
    "add",
    [
        lambda s: s.schedule(int),
        lambda s: s.schedule(int, delay=5),
        lambda s: s.schedule_at_fixed_rate(int, initial_delay=0, period=1),
        lambda s: s.schedule_with_fixed_delay(int, initial_delay=0, delay=1),
        lambda s: s.submit(int),
    ],
)
def test_promise_16_adding_afterwards_raises(stack, add):  # B203
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    scheduler.shutdown()
    with pytest.raises(RuntimeError, match=r"^cannot schedule new jobs after shutdown$"):
        add(scheduler)
    assert scheduler.next_run_at() is None


def test_promise_16_reschedule_of_a_ready_job_after_shutdown_changes_nothing(busy):
    scheduler, hold, _ = busy
    ready = scheduler.schedule(int)
    scheduler.shutdown(wait=False)
    assert scheduler.reschedule(ready, delay=FAR) is False
    hold.set()
    assert ready.result(PATIENCE) == 0


def test_promise_16_waiters_of_what_never_runs_are_released(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    job = scheduler.schedule(int, delay=FAR)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(job.wait(PATIENCE)))
    thread.start()
    scheduler.shutdown()
    thread.join(PATIENCE)
    assert ended == [True]


def test_promise_16_repeating_job_that_runs_ends_cancelled(stack):
    hold, held = threading.Event(), threading.Event()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    job = scheduler.schedule_at_fixed_rate(lambda: held.set() or hold.wait(PATIENCE), initial_delay=0, period=0.001)
    assert held.wait(PATIENCE)
    scheduler.shutdown(wait=False)
    hold.set()
    assert scheduler.shutdown().complete
    assert (job.status, job.attempts) == (Status.CANCELLED, 1)


def test_promise_16_failure_after_shutdown_began_is_not_retried(stack, caplog):  # B64
    hold, held = threading.Event(), threading.Event()

    def fail():
        held.set()
        hold.wait(PATIENCE)
        raise ValueError

    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    job = scheduler.schedule(fail, retry=FixedBackoff(5, 0))
    assert held.wait(PATIENCE)
    scheduler.shutdown(wait=False)
    hold.set()
    assert scheduler.shutdown().complete
    assert (job.status, job.attempts) == (Status.FAILED, 1)


def test_promise_16_task_shuts_down_its_own_scheduler(stack):  # B127
    with Scheduler(workers=2, agenda=stack.Agenda()) as scheduler:
        job = scheduler.schedule(scheduler.shutdown)
        assert job.result(PATIENCE) == (True, 0, 0)


def test_promise_16_two_tasks_shut_down_at_once(stack):  # B127
    barrier = threading.Barrier(2)

    def stop(scheduler):
        barrier.wait(PATIENCE)
        return scheduler.shutdown()

    with Scheduler(workers=2, agenda=stack.Agenda()) as scheduler:
        jobs = [scheduler.schedule(stop, args=(scheduler,)) for _ in range(2)]
        results = [job.result(PATIENCE) for job in jobs]
    assert {result.never_started for result in results} == {0}
    assert scheduler.shutdown() == (True, 0, 0)


def test_promise_16_outside_caller_waits_for_a_task_that_is_in_shutdown_itself(stack):
    called, hold = threading.Event(), threading.Event()

    def stop(scheduler):
        scheduler.shutdown()
        called.set()
        hold.wait(PATIENCE)

    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    job = scheduler.schedule(stop, args=(scheduler,))
    assert called.wait(PATIENCE)
    assert scheduler.shutdown(timeout=0) == (False, 0, 1)
    hold.set()
    assert scheduler.shutdown() == (True, 0, 0)
    assert job.status is Status.SUCCEEDED


def test_promise_16_done_callback_shuts_down(stack):  # B127
    results = []
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        gate = threading.Event()
        future = scheduler.submit(gate.wait, PATIENCE)
        future.add_done_callback(lambda future: results.append(scheduler.shutdown()))
        gate.set()
    assert results == [(True, 0, 0)]


@pytest.mark.parametrize("event", ["started", "succeeded", "cancelled"])
def test_promise_16_listener_shuts_down(stack, event):  # B127
    results = []
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        scheduler.on(event, lambda event: results.append(scheduler.shutdown(timeout=PATIENCE)))
        job = scheduler.schedule(int, delay=FAR if event == "cancelled" else 0)
        if event == "cancelled":
            job.cancel()  # the listener is called here
        assert job.wait(PATIENCE)
    assert results == [(True, 0, 0)]


@pytest.mark.filterwarnings("ignore:unclosed scheduler:ResourceWarning")
def test_promise_16_scheduler_dropped_while_a_job_is_added_to_it_refuses_that(stack):  # B125
    class Collects(UserDict):
        """Keyword arguments that run the collector as they are looked at."""

        def keys(self):
            gc.collect()
            return super().keys()

    scheduler = Scheduler(workers=1, agenda=stack.Agenda())
    add, threads = scheduler._agenda.schedule, scheduler._threads
    ring = [scheduler]
    ring.append(ring)
    del scheduler, ring
    with pytest.raises(RuntimeError, match=r"^cannot schedule new jobs after shutdown$"):
        add(int, delay=FAR, kwargs=Collects(base=2))
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_promise_16_policy_shuts_down(stack, caplog):
    results = []

    def policy(attempt, error):
        results.append(scheduler.shutdown())

    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        job = scheduler.schedule(lambda: 1 / 0, retry=policy)
        assert job.wait(PATIENCE)
    assert results == [(True, 0, 0)]


def test_promise_16_watchers_clock_shuts_down(stack):  # B127
    results, looked, asked = [], threading.Event(), threading.Event()

    def clock():
        if threading.current_thread().name.endswith("-watcher"):
            looked.set()
            if asked.is_set() and not results:
                results.append(None)
                results[0] = scheduler.shutdown()
        return time.monotonic_ns()

    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        assert looked.wait(PATIENCE)  # from here on it looks when it is signalled
        asked.set()
        job = scheduler.schedule(int, delay=FAR)
        assert job.wait(PATIENCE)
    assert job.status is Status.CANCELLED
    assert results == [(True, 1, 0)]


def test_promise_16_clock_that_fails_for_good_does_not_hold_up_the_end(stack):
    broken = threading.Event()

    def clock():
        if broken.is_set():
            raise OSError("clock")
        return time.monotonic_ns()

    scheduler = Scheduler(workers=1, agenda=stack.Agenda(clock))
    job = scheduler.schedule(int, delay=FAR)
    broken.set()
    assert scheduler.shutdown(timeout=PATIENCE) == (True, 1, 0)
    assert job.status is Status.CANCELLED
    assert not any(thread.is_alive() for thread in scheduler._threads)


def test_promise_16_signal_handler_shuts_down(stack):
    results = []
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        before = signal.signal(signal.SIGUSR1, lambda *_: results.append(scheduler.shutdown()))
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                if results:
                    break
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert results == [(True, 0, 0)]


def test_promise_16_threads_that_call_shutdown_at_once_all_return(stack):
    scheduler = Scheduler(workers=2, agenda=stack.Agenda())
    jobs = [scheduler.schedule(int, delay=FAR) for _ in range(5000)]
    due = [scheduler.schedule(int) for _ in range(100)]
    results = []
    threads = [threading.Thread(target=lambda: results.append(scheduler.shutdown())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [result.complete for result in results] == [True] * 6
    assert {job.status for job in jobs} == {Status.CANCELLED}
    assert {job.status for job in due} == {Status.SUCCEEDED}


def test_promise_16_threads_have_ended_when_it_returns(stack):
    scheduler = Scheduler(workers=3, agenda=stack.Agenda(), name="ending")
    scheduler.shutdown()
    assert [t for t in threading.enumerate() if t.name.startswith("ending")] == []


def test_promise_16_adding_from_threads_during_shutdown_raises_or_ends(stack):
    scheduler = Scheduler(workers=2, agenda=stack.Agenda())
    jobs, started = [], threading.Semaphore(0)

    def add():
        started.release()
        try:
            while True:
                jobs.append(scheduler.schedule(int))
        except RuntimeError:
            pass

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
        started.acquire()
    assert scheduler.shutdown().complete
    for thread in threads:
        thread.join(PATIENCE)
    assert {job.status for job in jobs} <= {Status.SUCCEEDED}
