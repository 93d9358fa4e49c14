"""Who tells that the system's wall clock was set. Setting it takes rights that no test has: a stand-in rings."""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from nextdue import Scheduler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")

PATIENCE = 60  # seconds until a test that hangs gives up
TOMORROW = timedelta(days=1)


@pytest.fixture
def steps():
    return pytest.importorskip("nextdue._steps")


def bell():
    return os.eventfd(0, os.EFD_CLOEXEC)


def helpers():
    return [thread for thread in threading.enumerate() if thread.name.endswith("-steps")]


def test_steps_calls_back_each_time_the_clock_is_set(steps):
    fd = bell()
    told = threading.Semaphore(0)
    watch = steps.Steps(told.release, "told", lambda: fd)
    for _ in range(3):
        os.eventfd_write(fd, 1)
        assert told.acquire(timeout=PATIENCE)
    watch.close()


def test_steps_close_ends_its_thread_and_closes_its_files(steps):
    fd = bell()
    watch = steps.Steps(int, "closed", lambda: fd)
    watch.close()
    assert not watch.thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_steps_without_a_thread_closes_its_files(steps, monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    fd = bell()
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError):
        steps.Steps(int, "none", lambda: fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_step_timer_is_quiet_while_the_clock_goes_on(steps):
    fd = steps.step_timer()
    os.set_blocking(fd, False)
    with pytest.raises(BlockingIOError):
        os.read(fd, 8)
    os.close(fd)


@pytest.fixture
def rung(steps, monkeypatch):
    """The file descriptor that stands in for the kernel's, once a scheduler has asked for it."""
    made = []
    asked = threading.Event()

    def timer():
        made.append(bell())
        asked.set()
        return made[-1]

    monkeypatch.setattr(steps.Steps.__init__, "__defaults__", (timer,))
    return made, asked


@pytest.mark.realtime
def test_scheduler_looks_at_once_when_the_clock_is_set(stack, rung, monkeypatch, on_parks):  # B04, B07
    import time

    made, _ = rung
    shift = [0]
    real = time.time_ns
    fake = lambda: real() + shift[0]  # noqa: E731
    monkeypatch.setattr(time, "time_ns", fake)
    agenda = stack.Agenda(wall_clock=fake)
    job = agenda.schedule(int, at=datetime.now(UTC) + TOMORROW)
    scheduler, park, _ = on_parks(workers=1, agenda=agenda, wall_clock=fake)  # the system's, as it thinks
    with scheduler:
        assert park.await_sleep() == 60  # to be safe; it does not end in this test
        shift[0] = 2 * 86_400 * 10**9
        os.eventfd_write(made[0], 1)
        assert job.wait(PATIENCE)


@pytest.mark.realtime
def test_scheduler_without_dated_jobs_has_no_helper(rung):
    made, _ = rung
    with Scheduler(workers=1) as scheduler:
        scheduler.schedule(int).wait(PATIENCE)
        assert scheduler.wait_idle(PATIENCE)
    assert made == []


@pytest.mark.realtime
def test_shutdown_ends_the_helper(rung):  # promise 16
    _, asked = rung
    scheduler = Scheduler(workers=1, name="ending")
    scheduler.schedule(int, at=datetime.now(UTC) + TOMORROW)
    assert asked.wait(PATIENCE)
    assert scheduler.shutdown(timeout=PATIENCE).complete
    assert [thread for thread in helpers() if thread.name == "ending-steps"] == []


@pytest.mark.realtime
def test_system_that_cannot_tell_is_looked_at(steps, monkeypatch, caplog):
    def timer():
        raise OSError(22, "timerfd_settime failed")

    monkeypatch.setattr(steps.Steps.__init__, "__defaults__", (timer,))
    with caplog.at_level(logging.DEBUG, "nextdue"), Scheduler(workers=1) as scheduler:
        job = scheduler.schedule(int, at=datetime.now(UTC) + timedelta(milliseconds=50))
        assert job.wait(PATIENCE)
    assert "steps of the wall clock are noticed by looking" in caplog.messages
