"""The scheduler as an Executor, and other executors as its workers; on both stacks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)

import pytest

from nextdue import FixedBackoff, Scheduler, Status

PATIENCE = 300.0  # a process that is spawned beside a dozen busy ones takes more than a minute
FAR = 1e6


@pytest.fixture(params=["own", "foreign"])
def scheduler(stack, request):
    """With two workers of its own, or in a thread pool that it makes."""
    executor = None if request.param == "own" else (lambda: ThreadPoolExecutor(2))
    with Scheduler(workers=2, agenda=stack.Agenda(), executor=executor) as scheduler:
        yield scheduler


def test_submit_returns_a_future_with_the_result(scheduler):
    future = scheduler.submit(lambda a, b, *, c: (a, b, c), 1, 2, c=3)
    assert type(future) is Future
    assert future.result(PATIENCE) == (1, 2, 3)
    assert future.exception(0) is None


def test_submit_takes_any_keyword_arguments(scheduler):
    assert scheduler.submit(dict, fn=1, self=2, task=3).result(PATIENCE) == {"fn": 1, "self": 2, "task": 3}


def test_error_of_a_submitted_task_goes_to_the_future_and_nowhere_else(scheduler, caplog):
    future = scheduler.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.result(PATIENCE)
    scheduler.shutdown()
    assert caplog.records == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_promise_15_base_exception_of_a_submitted_task_goes_to_the_future(scheduler, error):
    def fail():
        raise error

    with pytest.raises(error):
        scheduler.submit(fail).result(PATIENCE)
    assert scheduler.submit(int).result(PATIENCE) == 0


def test_promise_18_future_that_gets_an_error_finds_it_handled_no_longer_by_the_worker(stack):
    """Who waits may raise it at once: two threads would be at its traceback."""
    gate, handled = threading.Event(), []
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        future = scheduler.submit(lambda: gate.wait(PATIENCE) and 1 / 0)
        future.add_done_callback(lambda _: handled.append(sys.exception()))
        gate.set()
    assert type(future.exception(0)) is ZeroDivisionError
    assert handled == [None]


def test_map_yields_results_in_order(scheduler):
    assert list(scheduler.map(pow, range(100), [2] * 100, timeout=PATIENCE)) == [k * k for k in range(100)]


def test_map_raises_what_a_task_raised(scheduler):
    results = scheduler.map(lambda k: 1 // k, [1, 0, 1], timeout=PATIENCE)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_wait_of_concurrent_futures_sees_the_futures(scheduler):
    done, pending = wait([scheduler.submit(int) for _ in range(20)], timeout=PATIENCE)
    assert (len(done), len(pending)) == (20, 0)


def test_future_that_waits_can_be_cancelled_and_its_task_does_not_run(scheduler):
    hold, held, ran = threading.Event(), threading.Semaphore(0), []
    for _ in range(2):
        scheduler.submit(lambda: held.release() or hold.wait(PATIENCE))
    for _ in range(2):
        assert held.acquire(timeout=PATIENCE)
    futures = [scheduler.submit(ran.append, k) for k in range(3)]
    assert futures[1].cancel()
    hold.set()
    assert [f.cancelled() for f in futures] == [False, True, False]
    wait(futures, timeout=PATIENCE)
    with pytest.raises(CancelledError):
        futures[1].result(0)
    assert scheduler.shutdown() == (True, 0, 0)
    assert sorted(ran) == [0, 2]


def test_future_that_runs_cannot_be_cancelled(scheduler):
    hold, held = threading.Event(), threading.Event()
    future = scheduler.submit(lambda: held.set() or hold.wait(PATIENCE))
    assert held.wait(PATIENCE)
    assert future.running()
    assert not future.cancel()
    hold.set()
    assert future.result(PATIENCE) is True


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_callback_of_a_future_that_raises_ends_nothing(scheduler, caplog, error):
    def fail(future):
        raise error

    for task in (int, lambda: 1 / 0):
        gate = threading.Event()
        future = scheduler.submit(lambda task=task, gate=gate: gate.wait(PATIENCE) and task())
        future.add_done_callback(fail)
        gate.set()
        future.exception(PATIENCE)
    assert scheduler.submit(int).result(PATIENCE) == 0
    assert scheduler.shutdown() == (True, 0, 0)


@pytest.mark.parametrize("bad", [None, 3, "int"])
def test_task_that_is_not_callable_is_refused(scheduler, bad):
    with pytest.raises(TypeError) as caught:
        scheduler.submit(bad)
    assert str(caught.value) == f"task must be callable, got {bad!r}"


def test_coroutine_function_is_refused(scheduler):
    async def task(): ...

    with pytest.raises(TypeError, match=r"^task must be a plain callable, got the coroutine function "):
        scheduler.submit(task)


def test_future_changed_by_its_owner_before_its_run_does_not_disturb_a_worker(scheduler, caplog):
    hold, held = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        scheduler.submit(lambda: held.release() or hold.wait(PATIENCE))
    for _ in range(2):
        assert held.acquire(timeout=PATIENCE)
    future = scheduler.submit(int)
    future.set_result("mine")
    hold.set()
    assert scheduler.submit(int).result(PATIENCE) == 0
    assert scheduler.shutdown() == (True, 0, 0)
    assert future.result(0) == "mine"


# ---------------------------------------------------------------- foreign executors


def test_given_thread_pool_runs_the_tasks_and_is_not_shut_down(stack):
    with ThreadPoolExecutor(2, thread_name_prefix="theirs") as pool:
        with Scheduler(workers=2, agenda=stack.Agenda(), executor=pool) as scheduler:
            job = scheduler.schedule(lambda: threading.current_thread().name)
            assert job.result(PATIENCE).startswith("theirs")
        assert pool.submit(int).result(PATIENCE) == 0


def test_factory_pool_is_shut_down(stack):
    pools = []

    def factory():
        pools.append(ThreadPoolExecutor(1))
        return pools[-1]

    with Scheduler(workers=1, agenda=stack.Agenda(), executor=factory) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
    with pytest.raises(RuntimeError, match="shutdown"):
        pools[0].submit(int)


def test_repeating_job_and_retry_run_in_a_foreign_pool(stack, caplog):
    runs = threading.Semaphore(0)
    fails = iter([1, 1])

    def flaky():
        if next(fails, None):
            raise ValueError
        return "good"

    with Scheduler(workers=2, agenda=stack.Agenda(), executor=lambda: ThreadPoolExecutor(2)) as scheduler:
        job = scheduler.schedule_at_fixed_rate(runs.release, initial_delay=0, period=0.001)
        for _ in range(5):
            assert runs.acquire(timeout=PATIENCE)
        assert job.cancel()
        retried = scheduler.schedule(flaky, retry=FixedBackoff(5, 0.001))
        assert retried.result(PATIENCE) == "good"
        assert retried.attempts == 3


class Holding(Executor):
    """Keeps what it is given until it is told to run it: shows what is in flight."""

    def __init__(self):
        self.given = []
        self.arrived = threading.Semaphore(0)

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.given.append((future, fn, args, kwargs))
        self.arrived.release()
        return future

    def await_one(self):
        assert self.arrived.acquire(timeout=PATIENCE)

    def run_first(self):
        future, fn, args, kwargs = self.given.pop(0)
        future.set_result(fn(*args, **kwargs))


def test_at_most_workers_runs_are_in_flight_and_the_rest_keep_their_order(stack):
    pool, ran = Holding(), []
    with Scheduler(workers=2, agenda=stack.Agenda(), executor=pool) as scheduler:
        first = [scheduler.schedule(ran.append, args=("first",)) for _ in range(2)]
        pool.await_one()
        pool.await_one()
        low = scheduler.schedule(ran.append, args=("low",), priority=-1)
        gone = scheduler.schedule(ran.append, args=("gone",), priority=5)
        high = scheduler.schedule(ran.append, args=("high",), priority=1)
        assert len(pool.given) == 2
        assert gone.cancel()
        for _ in range(2):
            pool.run_first()
            pool.await_one()
        assert len(pool.given) == 2
        pool.run_first()
        pool.run_first()
        for job in [*first, low, high]:
            assert job.wait(PATIENCE)
    assert ran == ["first", "first", "high", "low"]
    assert gone.attempts == 0


def test_shutdown_waits_for_what_is_in_a_foreign_pool(stack):
    pool = Holding()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(), executor=pool)
    jobs = [scheduler.schedule(int) for _ in range(2)]
    pool.await_one()
    assert scheduler.shutdown(timeout=0) == (False, 0, 2)
    pool.run_first()
    pool.await_one()
    pool.run_first()
    assert scheduler.shutdown() == (True, 0, 0)
    assert [job.result(0) for job in jobs] == [0, 0]


def test_shutdown_with_cancel_futures_leaves_what_is_in_a_foreign_pool(stack):
    pool = Holding()
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(), executor=pool)
    running, ready = scheduler.schedule(int), scheduler.schedule(int)
    pool.await_one()
    assert scheduler.shutdown(wait=False, cancel_futures=True) == (False, 1, 1)
    pool.run_first()
    assert scheduler.shutdown() == (True, 1, 0)
    assert (running.status, ready.status) == (Status.SUCCEEDED, Status.CANCELLED)


@pytest.mark.parametrize("workers", [1, 2])
def test_promise_16_task_in_a_foreign_thread_pool_shuts_down(stack, workers):
    with Scheduler(workers=workers, agenda=stack.Agenda(), executor=lambda: ThreadPoolExecutor(2)) as scheduler:
        job = scheduler.schedule(scheduler.shutdown)
        assert job.result(PATIENCE) == (True, 0, 0)


def test_promise_16_policy_on_a_foreign_thread_shuts_down(stack, caplog):
    results = []

    def policy(attempt, error):
        results.append(scheduler.shutdown())

    with Scheduler(workers=1, agenda=stack.Agenda(), executor=lambda: ThreadPoolExecutor(1)) as scheduler:
        job = scheduler.schedule(lambda: 1 / 0, retry=policy)
        assert job.wait(PATIENCE)
    assert results == [(True, 0, 0)]


def test_pool_shut_down_by_its_owner_fails_the_jobs_and_the_scheduler_lives(stack, caplog):
    pool = ThreadPoolExecutor(1)
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=pool) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
        pool.shutdown()
        jobs = [scheduler.schedule(int) for _ in range(3)]
        for job in jobs:
            assert job.wait(PATIENCE)
            assert (job.status, type(job.last_error)) == (Status.FAILED, RuntimeError)
        with pytest.raises(RuntimeError, match="after shutdown"):
            scheduler.submit(int).result(PATIENCE)


def test_run_cancelled_inside_a_pool_by_its_owner_is_booked_as_failed(stack, caplog):
    pool = Holding()
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=pool) as scheduler:
        job = scheduler.schedule(int)
        pool.await_one()
        inner = pool.given.pop()[0]
        assert inner.cancel()
        assert job.wait(PATIENCE)
        assert (job.status, type(job.last_error)) == (Status.FAILED, CancelledError)


class Broken(Executor):
    def submit(self, fn, /, *args, **kwargs):
        raise BrokenExecutor("out of order")


def test_broken_given_pool_fails_the_jobs_and_the_scheduler_lives(stack, caplog):
    caplog.set_level(logging.CRITICAL, "nextdue")
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=Broken()) as scheduler:
        jobs = [scheduler.schedule(int) for _ in range(10)]
        for job in jobs:
            assert job.wait(PATIENCE)
            assert (job.status, type(job.last_error)) == (Status.FAILED, BrokenExecutor)
        assert scheduler.shutdown() == (True, 0, 0)


def test_factory_replaces_a_broken_pool(stack, caplog):  # B95
    made = []

    def factory():
        made.append(Broken() if not made else ThreadPoolExecutor(1))
        return made[-1]

    with Scheduler(workers=1, agenda=stack.Agenda(), executor=factory) as scheduler:
        assert scheduler.schedule(lambda: 5).result(PATIENCE) == 5
    assert len(made) == 2


def test_factory_that_fails_is_asked_again(stack, caplog):
    calls = []

    def factory():
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no pool today")
        return ThreadPoolExecutor(1)

    with Scheduler(workers=1, agenda=stack.Agenda(), executor=factory) as scheduler:
        failed = scheduler.schedule(int)
        assert failed.wait(PATIENCE)
        assert (failed.status, str(failed.last_error)) == (Status.FAILED, "no pool today")
        assert scheduler.schedule(int).result(PATIENCE) == 0


def test_factory_of_something_else_fails_the_job(stack, caplog):
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=lambda: 3) as scheduler:
        job = scheduler.schedule(int)
        assert job.wait(PATIENCE)
        assert str(job.last_error) == "executor must be an Executor or a factory of one, got a factory of 3"


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# multiprocessing's own, if a collection meets the broken pool's semaphores while the next pool starts the tracker.
tracker_may_warn = pytest.mark.filterwarnings("ignore:ResourceTracker called reentrantly:UserWarning")


@pytest.fixture
def processes():
    """A factory of pools of one process."""
    import multiprocessing

    return lambda: ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@tracker_may_warn
def test_promise_15_killed_worker_process_fails_its_run_and_the_factory_heals(stack, processes, caplog):  # B95
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=processes) as scheduler:
        lost = scheduler.schedule(die)
        assert lost.wait(PATIENCE)
        assert lost.status is Status.FAILED
        assert isinstance(lost.last_error, BrokenExecutor)
        assert scheduler.schedule(pow, args=(2, 10)).result(PATIENCE) == 1024


@tracker_may_warn
def test_run_whose_process_was_killed_counts_as_an_attempt(stack, processes, caplog):  # B63
    with Scheduler(workers=1, agenda=stack.Agenda(), executor=processes) as scheduler:
        job = scheduler.schedule(die, retry=FixedBackoff(3, 0))
        assert job.wait(PATIENCE)
        assert (job.status, job.attempts) == (Status.FAILED, 3)
        assert isinstance(job.last_error, BrokenExecutor)


def test_future_that_is_cancelled_before_its_turn_counts_as_no_run(scheduler):
    hold, running = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        scheduler.submit(lambda: running.release() or hold.wait(PATIENCE))
        assert running.acquire(timeout=PATIENCE)
    assert scheduler.submit(int).cancel()
    hold.set()
    assert scheduler.wait_idle(PATIENCE)
    stats = scheduler.stats()
    assert (stats.started, stats.cancelled, sum(stats.lag.counts.values())) == (2, 1, 2)


def test_promise_12_waiter_for_a_job_that_is_cancelled_with_its_future_as_it_is_taken_is_released(scheduler):
    waited = []
    hold, running = threading.Event(), threading.Semaphore(0)
    for _ in range(2):
        scheduler.submit(lambda: running.release() or hold.wait(PATIENCE))
        assert running.acquire(timeout=PATIENCE)
    future = scheduler.submit(int)
    (job,) = [info.job for info in scheduler.jobs() if info.status is Status.SCHEDULED]
    with future._condition:  # its worker stops at the future, which it asks before it begins
        hold.set()
        while job.status is not Status.RUNNING:
            threading.Event().wait(0.001)
        assert job.cancel()
        assert future.cancel()
        waiter = threading.Thread(target=lambda: waited.append(job.wait(PATIENCE)))
        waiter.start()
        waiter.join(0.1)  # it waits: the run is not over
        assert waited == []
    waiter.join(PATIENCE / 2)
    assert waited == [True]
