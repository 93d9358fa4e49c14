"""The baseline does its work right; a comparison with a broken one would say nothing."""

from __future__ import annotations

import threading

import pytest

from nextdue.cli._plain_scheduler import PlainAgenda, PlainScheduler, State
from nextdue.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def agenda(clock: ManualClock) -> PlainAgenda:
    return PlainAgenda(clock)


def test_run_due_when_jobs_are_due_then_in_order_of_time_and_insertion(agenda: PlainAgenda, clock: ManualClock) -> None:
    ran: list[str] = []
    for name, delay in (("c", 2), ("a", 1), ("b", 1), ("later", 9)):
        agenda.schedule(ran.append, delay, args=(name,))
    assert agenda.run_due() == 0
    clock.advance(2)
    assert agenda.run_due() == 3
    assert ran == ["a", "b", "c"]


def test_cancel_when_waiting_then_true_and_never_runs(agenda: PlainAgenda, clock: ManualClock) -> None:
    ran: list[int] = []
    job = agenda.schedule(ran.append, 1, args=(1,))
    assert agenda.cancel(job)
    assert not agenda.cancel(job)
    clock.advance(1)
    assert agenda.run_due() == 0
    assert not ran


def test_reschedule_when_waiting_then_runs_once_at_the_new_time(agenda: PlainAgenda, clock: ManualClock) -> None:
    ran: list[int] = []
    job = agenda.schedule(ran.append, 1, args=(1,))
    assert agenda.reschedule(job, 5)
    clock.advance(1)
    assert agenda.run_due() == 0
    clock.advance(4)
    assert agenda.run_due() == 1
    assert ran == [1]
    assert not agenda.reschedule(job, 1)


def test_run_due_when_task_raises_then_failed_and_the_next_runs(agenda: PlainAgenda, clock: ManualClock) -> None:
    failing = agenda.schedule(divmod, args=(1, 0))
    working = agenda.schedule(divmod, args=(1, 1))
    assert agenda.run_due() == 2
    assert (failing.state, working.state) == (State.FAILED, State.SUCCEEDED)
    assert isinstance(failing.error, ZeroDivisionError)


def test_shutdown_when_jobs_are_due_then_they_run_and_the_others_are_dropped() -> None:
    scheduler = PlainScheduler(workers=2)
    ran: list[int] = []
    for number in range(100):
        scheduler.schedule(ran.append, args=(number,))
    scheduler.schedule(ran.append, 3600, args=(100,))
    scheduler.shutdown()
    assert sorted(ran) == list(range(100))


def test_scheduler_when_an_earlier_job_comes_then_it_does_not_wait_for_a_later_one() -> None:
    scheduler = PlainScheduler(workers=1)
    ran = threading.Event()
    scheduler.schedule(ran.clear, 3600)
    scheduler.schedule(ran.set)
    assert ran.wait(60)
    scheduler.shutdown()
