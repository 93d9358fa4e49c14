"""The scheduler: watcher and workers, on both stacks. What waits for a thread waits on an event, at most PATIENCE."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import inspect
import logging
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import nextdue
from nextdue import FixedBackoff, Scheduler, Status, pure
from nextdue._options import JobOptions, RateOptions, RepeatOptions
from nextdue.testing import ManualClock

PATIENCE = 20.0  # seconds until a test gives up: generous, the machine may be slow
FAR = 1e6  # seconds: does not come in a test


class CountingPark:
    """Stands in for the lock that the watcher sleeps on. It is armed when a sleep begins; a wake-up ends one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()
        self.asleep = threading.Semaphore(0)
        self.signals = 0
        self.wake_ups = 0

    def acquire(self, *args):
        self.asleep.release()
        taken = self.lock.acquire(*args)
        self.wake_ups += 1
        return taken

    def release(self):
        self.signals += 1
        self.lock.release()

    def await_sleep(self):
        assert self.asleep.acquire(timeout=PATIENCE)


def settle(scheduler):
    """Run a job through each of the threads that could have something to do; then nothing is under way.

    Functions in Python, and three of them: on a free-threaded build a thread frees what others have dropped of its own
    as it runs one, and a job of one thread may hold the result of another.
    """
    for _ in range(3):
        assert scheduler.submit(lambda: 0).result(PATIENCE) == 0


def throw_into(thread, error):
    """Have `error` raised in another thread, as soon as it runs Python code."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1


def threads_of(name):
    return [t for t in threading.enumerate() if t.name.startswith(name)]


def await_end_of(threads):
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def scheduler(stack):
    with Scheduler(workers=4, agenda=stack.Agenda()) as scheduler:
        yield scheduler


@pytest.fixture
def manual(stack, clock):
    """A scheduler of two workers whose clock moves by hand."""
    with Scheduler(workers=2, agenda=stack.Agenda(clock)) as scheduler:
        yield scheduler


# ---------------------------------------------------------------- promise 1, 2: when


@pytest.mark.realtime
def test_promise_01_jobs_on_the_real_clock_never_start_early(scheduler):  # B68
    starts = {}
    jobs = []
    for k in range(300):
        at = time.monotonic_ns() + (k % 20) * 100_000
        jobs.append(scheduler.schedule(lambda k=k: starts.setdefault(k, time.monotonic_ns()), at=at))
    for k, job in enumerate(jobs):
        assert job.wait(PATIENCE)
        assert starts[k] >= job.run_at


def test_promise_02_job_runs_when_the_clock_comes_to_it(manual, clock):
    job = manual.schedule(lambda: clock(), delay=5)
    settle(manual)
    assert job.status is Status.SCHEDULED
    clock.advance(4.9)
    settle(manual)
    assert job.status is Status.SCHEDULED
    clock.advance(0.1)
    assert job.result(PATIENCE) == 5_000_000_000


def test_promise_02_late_jobs_all_run(manual, clock):
    jobs = [manual.schedule(int, delay=k) for k in range(100)]
    clock.advance(3600)
    assert [job.result(PATIENCE) for job in jobs] == [0] * 100


def test_promise_02_jobs_that_were_due_before_the_scheduler_was_made_run(stack, clock):
    agenda = stack.Agenda(clock)
    jobs = [agenda.schedule(int), agenda.schedule(int, delay=1)]
    clock.advance(2)
    with Scheduler(workers=1, agenda=agenda):
        assert [job.result(PATIENCE) for job in jobs] == [0, 0]


def test_promise_03_one_worker_takes_equal_jobs_in_their_order(stack, clock):  # B147
    ran = []
    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        jobs = [scheduler.schedule(ran.append, delay=1, args=(k,)) for k in range(1000)]
        clock.advance(1)
        assert jobs[-1].wait(PATIENCE)
    assert ran == list(range(1000))


def test_promise_03_one_worker_takes_the_higher_priority_of_ready_jobs(stack):
    ran = []
    hold, held = threading.Event(), threading.Event()
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        scheduler.submit(lambda: held.set() or hold.wait(PATIENCE))
        assert held.wait(PATIENCE)
        for priority in (0, 5, -3, 7):
            scheduler.schedule(ran.append, args=(priority,), priority=priority)
        hold.set()
    assert ran == [7, 5, 0, -3]


# ---------------------------------------------------------------- promise 4: a task occupies its own worker


def test_promise_04_hanging_tasks_hold_their_own_workers_only(scheduler):
    hold, held = threading.Event(), threading.Semaphore(0)
    stuck = [scheduler.schedule(lambda: held.release() or hold.wait(PATIENCE)) for _ in range(3)]
    for _ in stuck:
        assert held.acquire(timeout=PATIENCE)
    jobs = [scheduler.schedule(int) for _ in range(1000)]
    assert [job.result(PATIENCE) for job in jobs] == [0] * 1000
    assert [job.status for job in stuck] == [Status.RUNNING] * 3
    hold.set()
    assert [job.result(PATIENCE) for job in stuck] == [True] * 3


def test_promise_04_hanging_callback_of_a_future_holds_its_own_worker_only(scheduler):
    hold, held = threading.Event(), threading.Event()
    gate = threading.Event()
    future = scheduler.submit(gate.wait, PATIENCE)
    future.add_done_callback(lambda future: held.set() or hold.wait(PATIENCE))
    gate.set()
    jobs = [scheduler.schedule(int) for _ in range(1000)]
    assert held.wait(PATIENCE)
    assert [job.result(PATIENCE) for job in jobs] == [0] * 1000
    hold.set()


def test_promise_04_failing_tasks_keep_no_worker(scheduler, caplog):
    caplog.set_level(logging.CRITICAL, "nextdue")
    failing = [scheduler.schedule(lambda: 1 / 0) for _ in range(100)]
    assert scheduler.schedule(int).result(PATIENCE) == 0
    for job in failing:
        assert job.wait(PATIENCE)
        assert job.status is Status.FAILED


def test_promise_06_runs_of_a_repeating_job_do_not_overlap(scheduler):
    going, overlaps, enough = [], [], threading.Event()

    def run():
        overlaps.append(len(going))
        going.append(1)
        if len(overlaps) >= 50:
            enough.set()
        going.pop()

    job = scheduler.schedule_at_fixed_rate(run, initial_delay=0, period=1e-6)
    assert enough.wait(PATIENCE)
    assert job.cancel()
    assert job.wait(PATIENCE)
    assert set(overlaps) == {0}


# ---------------------------------------------------------------- promise 12: who sleeps, and who wakes it


@pytest.fixture
def park(monkeypatch):
    """The lock of the watcher of the next scheduler that is made: it is the first that the constructor makes."""
    park = CountingPark()
    make = nextdue.scheduler._parked
    monkeypatch.setattr(nextdue.scheduler, "_parked", lambda parks=[park]: parks.pop() if parks else make())
    return park


@pytest.fixture
def asleep(stack, clock, park):
    """A scheduler of one worker on a manual clock, whose watcher sleeps until FAR."""
    agenda = stack.Agenda(clock)
    agenda.schedule(int, delay=FAR)
    with Scheduler(workers=1, agenda=agenda) as scheduler:
        park.await_sleep()
        yield scheduler


def test_promise_12_later_jobs_do_not_wake_the_watcher(asleep, park):
    for k in range(10_000):
        asleep.schedule(int, delay=FAR + k)
    settle(asleep)
    assert (park.signals, park.wake_ups) == (0, 0)


def test_promise_12_jobs_that_are_due_now_do_not_wake_the_watcher(asleep, park):
    for _ in range(1000):
        asleep.submit(int).result(PATIENCE)
    assert (park.signals, park.wake_ups) == (0, 0)


def test_promise_12_earlier_job_wakes_the_watcher_once(asleep, park):
    asleep.schedule(int, delay=FAR / 2)
    park.await_sleep()
    assert (park.signals, park.wake_ups) == (1, 1)


def test_promise_12_rescheduled_job_wakes_the_watcher_when_it_is_earlier(asleep, park, clock):  # B78
    job = asleep.schedule(int, delay=2 * FAR)
    assert park.signals == 0
    assert asleep.reschedule(job, delay=5)
    park.await_sleep()
    assert park.signals == 1
    clock.advance(5)
    assert job.result(PATIENCE) == 0


def test_promise_12_job_moved_to_later_does_not_wake_the_watcher(asleep, park):
    job = asleep.schedule(int, delay=2 * FAR)
    assert asleep.reschedule(job, delay=3 * FAR)
    settle(asleep)
    assert park.signals == 0


def test_promise_12_cancel_does_not_wake_the_watcher(asleep, park):
    job = asleep.schedule(int, delay=5)
    park.await_sleep()
    assert job.cancel()
    settle(asleep)
    assert (park.signals, park.wake_ups) == (1, 1)


def test_promise_12_cancelled_head_costs_one_wake_up(asleep, park, clock):
    job = asleep.schedule(int, delay=5)
    park.await_sleep()
    assert job.cancel()
    clock.advance(5)  # by then it is armed for the far job, whatever it was armed for before
    park.await_sleep()
    clock.advance(FAR)
    park.await_sleep()
    assert park.wake_ups == 3


def test_promise_12_falling_sequence_signals_once_an_arm(stack, park):
    hold = threading.Event()
    looks = threading.Semaphore(0)

    class Slow(ManualClock):
        def __call__(self):
            if threading.current_thread().name.endswith("-watcher"):
                looks.release()
                assert hold.wait(PATIENCE)
            return super().__call__()

    hold.set()
    with Scheduler(workers=1, agenda=stack.Agenda(Slow())) as scheduler:
        park.await_sleep()
        assert looks.acquire(timeout=PATIENCE)
        hold.clear()
        scheduler.schedule(int, delay=FAR)
        assert looks.acquire(timeout=PATIENCE)
        for k in range(1, 1000):  # the watcher is awake and has not looked yet
            scheduler.schedule(int, delay=FAR - k)
        assert park.signals == 1
        hold.set()
        park.await_sleep()
        scheduler.schedule(int, delay=FAR - 1000)  # the next arm, the next signal
        assert park.signals == 2


def test_promise_12_fixed_rate_job_wakes_the_watcher_for_its_slot(asleep, park, clock):
    runs = threading.Semaphore(0)
    asleep.schedule_at_fixed_rate(runs.release, initial_delay=1, period=1)
    for _ in range(20):
        clock.advance(1)
        assert runs.acquire(timeout=PATIENCE)


@pytest.mark.realtime
def test_promise_12_watcher_wakes_up_zero_times_for_ten_thousand_far_timers(stack, park):  # B74
    agenda = stack.Agenda()
    for k in range(10_000):
        agenda.schedule(int, delay=FAR + k)
    with Scheduler(workers=1, agenda=agenda) as scheduler:
        park.await_sleep()
        for _ in range(1000):
            settle(scheduler)
        assert (park.signals, park.wake_ups) == (0, 0)


@pytest.mark.realtime
def test_promise_12_cancelled_head_costs_one_wake_up_at_most_in_real_time(stack, park):
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        park.await_sleep()
        head = scheduler.schedule(int, delay=0.05)
        park.await_sleep()
        assert head.cancel()
        other = scheduler.schedule(int, delay=0.1)
        assert other.result(PATIENCE) == 0
        # The signal for the head, the head's instant, the other's.
        assert park.wake_ups <= 3


@pytest.mark.realtime
def test_promise_12_earlier_job_is_never_slept_over(scheduler):  # B75
    scheduler.schedule(int, delay=3600)
    for _ in range(300):
        assert scheduler.schedule(int, delay=0.0005).result(PATIENCE) == 0


@pytest.mark.realtime
def test_promise_12_rescheduled_job_is_never_slept_over(scheduler):  # B78
    scheduler.schedule(int, delay=100)
    for _ in range(100):
        job = scheduler.schedule(int, delay=200)
        assert scheduler.reschedule(job, delay=0.001)
        assert job.result(PATIENCE) == 0


@pytest.mark.realtime
def test_promise_12_last_of_many_resets_wins(scheduler):  # B79
    job = scheduler.schedule(int, delay=FAR)

    def reset():
        for k in range(500):
            scheduler.reschedule(job, delay=1000 + k)

    threads = [threading.Thread(target=reset) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scheduler.reschedule(job, delay=0.05)
    assert job.result(PATIENCE) == 0
    assert job.attempts == 1


def test_promise_12_burst_from_many_threads_leaves_nothing_behind(scheduler):  # B81, B82
    jobs = []

    def burst():
        jobs.extend([scheduler.schedule(int) for _ in range(625)])

    threads = [threading.Thread(target=burst) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs) == 10_000
    for job in jobs:
        assert job.result(PATIENCE) == 0


def test_promise_12_hand_over_one_by_one_loses_no_wake_up(scheduler):  # B81
    for _ in range(3000):
        assert scheduler.submit(int).result(PATIENCE) == 0


def test_promise_12_manual_clock_wakes_for_each_move(manual, clock):
    runs = threading.Semaphore(0)
    manual.schedule_at_fixed_rate(runs.release, initial_delay=1, period=1)
    for _ in range(200):
        clock.advance(1)
        assert runs.acquire(timeout=PATIENCE)


@pytest.mark.realtime
def test_promise_12_watcher_on_a_clock_that_tells_does_not_poll(asleep, park):
    job = asleep.schedule(int, delay=1e-6)  # that much real time passes at once; the manual clock stands
    park.await_sleep()
    for _ in range(500):
        settle(asleep)
    assert (park.wake_ups, job.status) == (1, Status.SCHEDULED)


def test_sleep_on_an_injected_clock_that_cannot_tell_is_60_seconds_at_most():
    assert nextdue.scheduler.UNTOLD_WAIT == 60.0


@pytest.mark.realtime
def test_wait_longer_than_the_platform_can_express_is_made_in_slices(stack, monkeypatch):  # B42, B02
    monkeypatch.setattr(nextdue.scheduler, "LONGEST_WAIT", 0.01)
    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        far = scheduler.schedule(int, delay=400 * 86_400)
        near = scheduler.schedule(int, delay=0.1)
        assert near.result(PATIENCE) == 0
        assert far.status is Status.SCHEDULED


@pytest.mark.realtime
def test_scheduler_on_an_injected_clock_runs_what_is_due_in_real_time(stack):
    with Scheduler(workers=1, agenda=stack.Agenda(lambda: time.monotonic_ns() + 10**12)) as scheduler:
        assert scheduler.schedule(int, delay=0.01).result(PATIENCE) == 0


@pytest.mark.parametrize("delay", [1e18, 10**30, 2**53, 2**63 / 1000])
def test_huge_delay_neither_runs_nor_ends_the_watcher(scheduler, delay):  # B43, B45, B46
    job = scheduler.schedule(int, delay=delay)
    assert scheduler.schedule(int, delay=0.001).result(PATIENCE) == 0
    assert job.status is Status.SCHEDULED
    assert job.cancel()


# ---------------------------------------------------------------- promise 13: a task may call everything


def test_promise_13_task_schedules_another(scheduler):
    job = scheduler.schedule(lambda: scheduler.schedule(lambda: 7))
    assert job.result(PATIENCE).result(PATIENCE) == 7


def test_promise_13_task_cancels_itself(scheduler):  # B110
    made = threading.Event()
    box = []

    def run():
        made.wait(PATIENCE)
        return box[0].cancel()

    box.append(scheduler.schedule_at_fixed_rate(run, initial_delay=0, period=1e-4))
    made.set()
    assert box[0].wait(PATIENCE)
    assert (box[0].status, box[0].attempts) == (Status.CANCELLED, 1)


def test_promise_13_task_reschedules_itself(manual, clock):
    ran = threading.Semaphore(0)

    def run():
        manual.reschedule("self", delay=10)
        ran.release()

    job = manual.schedule_with_fixed_delay(run, initial_delay=1, delay=1, id="self")
    clock.advance(1)
    assert ran.acquire(timeout=PATIENCE)
    settle(manual)
    settle(manual)
    assert job.run_at == 11_000_000_000


def test_promise_13_task_waits_for_a_job_on_another_worker(scheduler):
    assert scheduler.schedule(lambda: scheduler.schedule(lambda: 3).result(PATIENCE)).result(PATIENCE) == 3


def test_promise_13_clock_may_call_the_scheduler(stack):
    box = []

    def clock():
        if box and threading.current_thread() is not box[0]:
            scheduler.status("a")
            scheduler.next_run_at()
        return time.monotonic_ns()

    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        scheduler.schedule(int, delay=FAR, id="a")
        box.append(threading.current_thread())
        assert scheduler.schedule(int, delay=0.001).result(PATIENCE) == 0


def test_promise_13_finalizer_of_an_argument_may_call_the_scheduler(scheduler):  # B124
    class Item:
        def __del__(self):
            done.append(scheduler.schedule(int))

    done = []
    for _ in range(200):
        scheduler.schedule(lambda item: None, args=(Item(),)).wait(PATIENCE)
    settle(scheduler)
    gc.collect()
    for job in list(done):
        assert job.result(PATIENCE) == 0


# ---------------------------------------------------------------- promise 15: whatever ends a task


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_promise_15_worker_outlives_whatever_a_task_raises(stack, caplog, error):  # B91, B170
    def fail():
        raise error("on purpose")

    with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
        jobs = [scheduler.schedule(fail) for _ in range(3)]
        for job in jobs:
            assert job.wait(PATIENCE)
            assert job.status is Status.FAILED
            assert type(job.last_error) is error
        assert scheduler.submit(int).result(PATIENCE) == 0
        assert scheduler.shutdown() == (True, 0, 0)
    assert [r.levelname for r in caplog.records] == ["ERROR"] * 3


def test_promise_15_repeating_job_carries_on_after_a_failed_run(manual, clock, caplog):  # B89
    runs = threading.Semaphore(0)

    def fail():
        runs.release()
        raise SystemExit

    job = manual.schedule_at_fixed_rate(fail, initial_delay=0, period=1)
    for _ in range(3):
        assert runs.acquire(timeout=PATIENCE)
        settle(manual)
        settle(manual)
        clock.advance(1)
    assert runs.acquire(timeout=PATIENCE)
    assert job.status in (Status.SCHEDULED, Status.RUNNING)


def test_promise_15_log_handler_that_raises_ends_no_worker(stack):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("handler")

    handler = Broken()
    logger = logging.getLogger("nextdue")
    logger.addHandler(handler)
    try:
        with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
            for _ in range(5):
                job = scheduler.schedule(lambda: 1 / 0)
                assert job.wait(PATIENCE)
                assert job.status is Status.FAILED
            assert scheduler.submit(int).result(PATIENCE) == 0
            assert scheduler.shutdown() == (True, 0, 0)
    finally:
        logger.removeHandler(handler)


def test_promise_15_log_handler_and_clock_that_raise_at_once_end_nothing(stack):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("handler")

    broken = threading.Event()

    def clock():
        if broken.is_set():
            raise RuntimeError("clock")
        return time.monotonic_ns()

    def fail():
        broken.set()
        raise ValueError

    handler = Broken()
    logger = logging.getLogger("nextdue")
    logger.addHandler(handler)
    try:
        with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
            job = scheduler.schedule(fail)
            assert job.wait(PATIENCE)
            broken.clear()
            assert scheduler.submit(int).result(PATIENCE) == 0
            assert scheduler.shutdown() == (True, 0, 0)
    finally:
        logger.removeHandler(handler)


def test_promise_15_error_thrown_into_a_task_ends_the_run_alone(stack, caplog):  # B92
    held = threading.Event()

    def spin():
        held.set()
        while True:
            time.sleep(0.001)

    with Scheduler(workers=1, agenda=stack.Agenda(), name="thrown") as scheduler:
        job = scheduler.schedule(spin)
        assert held.wait(PATIENCE)
        throw_into(threads_of("thrown-worker")[0], KeyError)
        assert job.wait(PATIENCE)
        assert (job.status, type(job.last_error)) == (Status.FAILED, KeyError)
        assert scheduler.submit(int).result(PATIENCE) == 0


@pytest.mark.parametrize("role", ["watcher", "worker"])
def test_promise_15_error_thrown_into_an_idle_thread_does_not_end_it(stack, caplog, role):  # B92
    with Scheduler(workers=1, agenda=stack.Agenda(), name="thrown") as scheduler:
        assert scheduler.schedule(int, delay=0.001).wait(PATIENCE)  # both have started
        for _ in range(20):
            settle(scheduler)
            throw_into(threads_of(f"thrown-{role}")[0], SystemExit)
            assert scheduler.schedule(int).wait(PATIENCE)
            assert scheduler.schedule(int, delay=0.001).wait(PATIENCE)
        settle(scheduler)
        assert len(threads_of("thrown")) == 2
        assert scheduler.shutdown() == (True, 0, 0)


def test_promise_15_errors_thrown_into_busy_workers_lose_no_job(stack, caplog):  # B92
    if stack.name == "pure":
        pytest.skip("interpreted rules can be torn anywhere, under the lock too")
    caplog.set_level(logging.CRITICAL, "nextdue")
    with Scheduler(workers=3, agenda=stack.Agenda(), name="thrown") as scheduler:
        barrier = threading.Barrier(4)
        for _ in range(3):
            scheduler.submit(barrier.wait)
        barrier.wait(PATIENCE)  # all three have started
        for _ in range(100):
            jobs = [scheduler.schedule(int) for _ in range(20)]
            for thread in threads_of("thrown-worker"):
                throw_into(thread, SystemExit)
            for job in jobs:
                assert job.wait(PATIENCE)
        assert scheduler.shutdown(timeout=PATIENCE) == (True, 0, 0)


def test_clock_that_raises_for_a_while_stops_nothing(stack, caplog):  # B88
    failures = iter(range(4))
    failed = threading.Semaphore(0)
    broken = threading.Event()

    def clock():
        if broken.is_set() and threading.current_thread().name.endswith("-watcher"):
            if next(failures, None) is None:
                broken.clear()
            else:
                failed.release()
                raise OSError("clock")
        return time.monotonic_ns()

    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        broken.set()
        job = scheduler.schedule(int, delay=0.01)
        assert job.result(PATIENCE) == 0
    for _ in range(4):
        assert failed.acquire(timeout=PATIENCE)
    messages = [r.getMessage() for r in caplog.records if r.getMessage().startswith("the watcher failed")]
    assert messages == [f"the watcher failed; it looks again in {s} s" for s in ("0.001", "0.002", "0.004", "0.008")]


@pytest.mark.realtime
def test_watcher_with_a_broken_clock_pauses_between_its_looks(stack, caplog):  # B87
    looks = threading.Semaphore(0)
    broken = threading.Event()

    def clock():
        if broken.is_set() and threading.current_thread().name.endswith("-watcher"):
            looks.release()
            raise OSError("clock")
        return time.monotonic_ns()

    caplog.set_level(logging.CRITICAL, "nextdue")
    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        scheduler.schedule(int, delay=FAR)
        settle(scheduler)
        broken.set()
        started = time.monotonic()
        scheduler.schedule(int, delay=FAR / 2)
        for _ in range(8):
            assert looks.acquire(timeout=PATIENCE)
        assert time.monotonic() - started >= 0.127  # 1 + 2 + 4 + ... ms between eight looks
        broken.clear()


def test_clock_that_fails_at_a_call_adds_nothing(stack):
    broken = []

    def clock():
        if broken and threading.current_thread() is threading.main_thread():
            raise OSError("clock")
        return time.monotonic_ns()

    with Scheduler(workers=1, agenda=stack.Agenda(clock)) as scheduler:
        broken.append(1)
        with pytest.raises(OSError, match=r"^clock$"):
            scheduler.schedule(int, delay=FAR)
        broken.clear()
        assert scheduler.next_run_at() is None


# ---------------------------------------------------------------- promise 18: many threads


def test_promise_18_many_threads_add_cancel_reschedule_and_all_adds_up(scheduler):
    ran = []
    jobs = []

    def work(seed):
        mine = []
        for k in range(400):
            mine.append(scheduler.schedule(ran.append, delay=(k * seed) % 7 * 0.001, args=((seed, k),)))
            if k % 3 == 0:
                mine[(k * 7) % len(mine)].cancel()
            if k % 5 == 0:
                scheduler.reschedule(mine[(k * 11) % len(mine)], delay=0.002)
        jobs.extend(mine)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        assert job.wait(PATIENCE)
    succeeded = [job for job in jobs if job.status is Status.SUCCEEDED]
    cancelled = [job for job in jobs if job.status is Status.CANCELLED]
    assert len(succeeded) + len(cancelled) == len(jobs) == 3200
    assert len(set(ran)) == len(ran)
    # A job that was cancelled while it ran has run; one that succeeded has run once.
    assert len(succeeded) <= len(ran) <= len(succeeded) + sum(job.attempts for job in cancelled)


def test_promise_18_cancel_that_says_true_before_the_run_keeps_it_from_starting(scheduler):  # B107
    cancelled = []
    for k in range(3000):
        job = scheduler.schedule(int, delay=0.00002 * (k % 3))
        if job.cancel() and job.attempts == 0:
            cancelled.append(job)
    assert scheduler.wait_idle(PATIENCE)
    assert {(job.status, job.attempts) for job in cancelled} == {(Status.CANCELLED, 0)}


# ---------------------------------------------------------------- references


class Thing:
    pass


def test_idle_worker_keeps_nothing_of_its_last_run(stack):  # B137
    gc.disable()
    try:
        with Scheduler(workers=1, agenda=stack.Agenda(history=0)) as scheduler:
            refs = []

            def run(thing, *, other):
                result = Thing()
                refs.append(weakref.ref(result))
                return result

            thing, other = Thing(), Thing()
            refs += [weakref.ref(thing), weakref.ref(other), weakref.ref(run)]
            freed = [threading.Event() for _ in refs]
            for ref, event in zip(refs, freed, strict=True):
                weakref.finalize(ref(), event.set)
            assert scheduler.schedule(run, args=(thing,), kwargs={"other": other}).wait(PATIENCE)
            del thing, other, run
            for event in freed:
                assert event.wait(PATIENCE)
            settle(scheduler)
            assert [ref() for ref in refs] == [None] * 4
    finally:
        gc.enable()


def test_idle_worker_keeps_nothing_of_a_submitted_call(stack):  # B137
    gc.disable()
    try:
        with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
            thing = Thing()
            freed = threading.Event()
            weakref.finalize(thing, freed.set)
            future = scheduler.submit(lambda thing: thing, thing)
            assert future.result(PATIENCE) is thing
            del future, thing
            settle(scheduler)
            assert freed.wait(PATIENCE)
    finally:
        gc.enable()


def test_idle_worker_keeps_nothing_of_a_failed_run(stack, caplog):  # B137, B138
    caplog.set_level(logging.CRITICAL, "nextdue")
    gc.disable()
    try:
        with Scheduler(workers=1, agenda=stack.Agenda()) as scheduler:
            thing = Thing()
            freed = threading.Event()
            weakref.finalize(thing, freed.set)

            def fail(thing):
                local = thing  # a frame that is kept would keep it
                raise ValueError(id(local))

            job = scheduler.schedule(fail, args=(thing,))
            assert job.wait(PATIENCE)
            del thing
            settle(scheduler)
            assert freed.wait(PATIENCE)
            assert type(job.last_error) is ValueError
    finally:
        gc.enable()


def test_job_whose_task_refers_to_its_scheduler_is_freed_without_the_collector(stack):  # B135
    gc.disable()
    try:
        scheduler = Scheduler(workers=1, agenda=stack.Agenda())
        ref = weakref.ref(scheduler)
        freed = threading.Event()
        weakref.finalize(scheduler, freed.set)

        def run(scheduler=scheduler):
            return scheduler.skipped

        job = scheduler.schedule(run)
        assert job.result(PATIENCE) == 0
        scheduler.shutdown()
        del run, scheduler
        assert freed.wait(PATIENCE)
        assert ref() is None
        assert job.result(PATIENCE) == 0
    finally:
        gc.enable()


# ---------------------------------------------------------------- dropped without shutdown


def test_dropped_scheduler_warns_ends_its_threads_and_cancels_its_jobs(stack):
    scheduler = Scheduler(workers=2, agenda=stack.Agenda(), name="dropped")
    job = scheduler.schedule(int, delay=FAR)
    threads = threads_of("dropped")
    assert len(threads) == 3
    box = [scheduler]
    del scheduler
    with pytest.warns(ResourceWarning, match=r"^unclosed scheduler <Scheduler on <Agenda: .*>>; call shutdown\(\)"):
        box.clear()
    await_end_of(threads)
    assert job.wait(PATIENCE)
    assert job.status is Status.CANCELLED


def test_scheduler_dropped_in_a_cycle_warns_and_ends_its_threads(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(), name="cycle")
    scheduler.itself = scheduler
    threads = threads_of("cycle")
    del scheduler
    with pytest.warns(ResourceWarning, match="unclosed scheduler"):
        gc.collect()
    await_end_of(threads)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_scheduler_ends_its_threads_even_if_the_warning_is_an_error(stack):
    scheduler = Scheduler(workers=1, agenda=stack.Agenda(), name="strict")
    threads = threads_of("strict")
    del scheduler  # under the suite's filter the warning is raised, and the interpreter reports it
    gc.collect()
    await_end_of(threads)


def test_scheduler_dropped_while_others_are_added_does_not_deadlock(stack):  # B125
    agenda = stack.Agenda()

    class Holder:
        def __del__(self):
            self.scheduler.shutdown(wait=False)

    for _ in range(20):
        holder = Holder()
        holder.scheduler = Scheduler(workers=1, agenda=stack.Agenda())
        holder.cycle = holder
    for _ in range(1000):
        agenda.schedule(int, kwargs={"a": 1})
    del holder
    gc.collect()
    assert agenda.next_run_at() is not None


# ---------------------------------------------------------------- the constructor


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "workers must be from 1 to 32768, got 0"),  # B74
        (-1, ValueError, "workers must be from 1 to 32768, got -1"),
        (2**70, ValueError, f"workers must be from 1 to 32768, got {2**70}"),
        (True, TypeError, "workers must be an int or None, got True"),
        (1.5, TypeError, "workers must be an int or None, got 1.5"),
        ("2", TypeError, "workers must be an int or None, got '2'"),
    ],
)
def test_workers_that_are_no_positive_int_are_refused(value, error, message):
    with pytest.raises(error) as caught:
        Scheduler(workers=value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 3}, TypeError, "name must be a str, got 3"),
        ({"executor": 3}, TypeError, "executor must be an Executor or a factory of one, got 3"),
        ({"agenda": 3}, TypeError, "agenda must be an Agenda, got 3"),
        ({"clock": 3}, TypeError, "clock must be callable, got 3"),
        ({"retry": 3}, TypeError, "retry must be callable or None, got 3"),
    ],
)
def test_constructor_arguments_of_a_wrong_kind_are_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        Scheduler(workers=1, **arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("arguments", [{"clock": ManualClock()}, {"retry": FixedBackoff(2, 1)}])
def test_agenda_with_a_clock_or_retry_beside_it_is_refused(stack, arguments):
    with pytest.raises(ValueError, match=r"^clock, wall_clock and retry must be left out where an agenda is given"):
        Scheduler(workers=1, agenda=stack.Agenda(), **arguments)


def test_agenda_that_has_a_scheduler_is_refused_and_that_one_goes_on(stack):
    agenda = stack.Agenda()
    with Scheduler(workers=1, agenda=agenda, name="first") as scheduler:
        job = scheduler.schedule(int, delay=FAR)
        with pytest.raises(ValueError, match=r"^agenda must have no scheduler yet, got <Agenda: "):
            Scheduler(workers=1, agenda=agenda, name="second")
        gc.collect()
        await_end_of(threads_of("second"))
        assert job.status is Status.SCHEDULED
        assert scheduler.submit(int).result(PATIENCE) == 0


@pytest.mark.parametrize("good", [0, 1, 2])
def test_thread_that_cannot_start_leaves_nothing_behind(stack, clock, monkeypatch, good):
    agenda = stack.Agenda(clock)
    job = agenda.schedule(int, delay=1)
    start = threading.Thread.start
    left = iter(range(good))

    def start_some(thread):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
        Scheduler(workers=2, agenda=agenda, name="stillborn")
    monkeypatch.undo()
    gc.collect()
    await_end_of(threads_of("stillborn"))
    assert job.status is Status.SCHEDULED
    with Scheduler(workers=2, agenda=agenda):
        clock.advance(1)
        assert job.result(PATIENCE) == 0


def test_clock_whose_subscribe_fails_leaves_nothing_behind(stack):
    class Odd(ManualClock):
        def subscribe(self, callback):
            raise LookupError("no more callbacks")

    with pytest.raises(LookupError, match="no more callbacks"):
        Scheduler(workers=1, agenda=stack.Agenda(Odd()), name="unsubscribed")
    await_end_of(threads_of("unsubscribed"))


def test_scheduler_unsubscribes_from_its_clock_at_shutdown(stack, clock):
    with Scheduler(workers=1, agenda=stack.Agenda(clock)):
        assert len(clock._callbacks) == 1
    assert len(clock._callbacks) == 0


def test_workers_and_watcher_bear_the_name(stack):
    with Scheduler(workers=2, agenda=stack.Agenda(), name="abc"):
        assert sorted(t.name for t in threads_of("abc")) == ["abc-watcher", "abc-worker-0", "abc-worker-1"]
        assert all(t.daemon for t in threads_of("abc"))


def test_default_workers_are_those_of_a_thread_pool():
    with Scheduler(name="default") as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
        with ThreadPoolExecutor() as pool:
            assert len(threads_of("default-worker")) == pool._max_workers


def test_facade_forwards_everything_to_the_agenda(manual, clock):
    job = manual.schedule_at_fixed_rate(int, initial_delay=1, period=1, id="a", priority=3)
    assert manual.status("a") is Status.SCHEDULED
    assert manual.last_error(job) is None
    assert manual.next_run_at() == 1_000_000_000
    assert job.priority == 3
    assert manual.skipped == 0
    assert manual.reschedule(job, at=7) is True
    assert job.run_at == 7
    assert manual.cancel("a") is True
    assert manual.cancel("a") is False
    with pytest.raises(nextdue.UnknownJobId):
        manual.status("b")
    with pytest.raises(TypeError, match=r"^job must be a Job or its id \(str or int\), got 1.5$"):
        manual.cancel(1.5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("schedule", JobOptions),
        ("schedule_at_fixed_rate", RateOptions),
        ("schedule_with_fixed_delay", RepeatOptions),
        *(
            (name, None)
            for name in ("cancel", "reschedule", "status", "pause", "resume", "run_now", "jobs", "stats", "on")
        ),
    ],
)
def test_signature_of_each_forwarded_method_is_the_agendas(name, options):
    ours = [(p.name, p.kind, p.default) for p in inspect.signature(getattr(Scheduler, name)).parameters.values()]
    its = [(p.name, p.kind, p.default) for p in inspect.signature(getattr(pure.Agenda, name)).parameters.values()]
    if options is not None:
        assert ours.pop()[:2] == ("options", inspect.Parameter.VAR_KEYWORD)
        rest = its[len(ours) :]
        its = its[: len(ours)]
        assert {kind for _, kind, _ in rest} == {inspect.Parameter.KEYWORD_ONLY}
        assert {name for name, _, _ in rest} == set(options.__annotations__)
    assert ours == its


def test_scheduler_is_an_executor(scheduler):
    assert isinstance(scheduler, concurrent.futures.Executor)
