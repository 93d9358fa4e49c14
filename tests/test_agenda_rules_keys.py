"""Keys where they meet the other rules: pause, cancel, time limits, retries, priorities, bounds, shutdown."""

from __future__ import annotations

import gc
import random

import pytest

from conftest import take
from nextdue import FixedBackoff, Status, TooManyJobs


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def test_paused_job_that_is_called_for_its_key_lets_the_next_through(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.pause("b")
    agenda.finished("a")
    assert take(agenda) == ["c"]
    agenda.resume("b")
    assert take(agenda) == []
    agenda.finished("c")
    assert take(agenda) == ["b"]


def test_paused_job_that_came_due_does_not_hold_its_key(agenda):
    agenda.schedule(print, id="a", key="k")
    agenda.pause("a")
    agenda.schedule(print, id="b", key="k")
    assert take(agenda) == ["b"]


def test_pause_of_all_while_jobs_wait_for_a_key_loses_none(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.pause()
    agenda.finished("a")
    assert take(agenda) == []
    agenda.resume()
    assert take(agenda) == ["b"]
    agenda.finished("b")
    assert take(agenda) == ["c"]


def test_job_that_is_rescheduled_while_called_lets_the_next_through(agenda, clock):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.finished("a")  # b is in the ready line again
    agenda.reschedule("b", delay=5)
    assert take(agenda) == ["c"]
    agenda.finished("c")
    clock.advance(5)
    assert take(agenda) == ["b"]


def test_job_that_is_rescheduled_while_it_waits_for_its_key_leaves_the_line(agenda, clock):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.reschedule("b", delay=5)
    assert agenda.stats()[:2] == (1, 1)  # b for its time, c for the key
    agenda.finished("a")
    assert take(agenda) == ["c"]
    agenda.finished("c")
    clock.advance(5)
    assert take(agenda) == ["b"]


def test_job_that_is_rescheduled_to_now_while_it_waits_goes_behind_its_equals(agenda):
    for name in "abc":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    agenda.reschedule("b")
    agenda.finished("a")
    assert take(agenda) == ["c"]


def test_clock_that_goes_back_before_a_called_job_lets_the_next_through(agenda, clock):
    clock.set_ns(10)
    agenda.schedule(print, id="a", key="k")
    agenda.schedule(print, at=10, id="b", key="k", priority=1)
    agenda.schedule(print, at=3, id="c", key="k")
    assert take(agenda) == ["b"]
    agenda.schedule(print, at=10, id="d", key="k", priority=2)
    assert take(agenda) == []  # all are due, and wait for the key
    agenda.finished("b")  # d is called
    clock.set_ns(5)
    assert take(agenda) == ["c"]
    agenda.finished("c")
    clock.set_ns(10)
    assert take(agenda) == ["d"]


def test_failed_job_frees_its_key_while_it_waits_for_its_retry(agenda, clock):
    agenda.schedule(print, id="a", key="k", retry=FixedBackoff(max_attempts=2, delay=5))
    agenda.schedule(print, id="b", key="k")
    assert take(agenda) == ["a"]
    agenda.finished("a", OSError())
    assert take(agenda) == ["b"]
    clock.advance(5)
    assert take(agenda) == []
    agenda.finished("b")
    assert take(agenda) == ["a"]


def test_retry_after_a_time_limit_waits_for_the_key_of_the_old_run(agenda, clock):
    agenda.schedule(print, id="a", key="k", timeout=5, retry=FixedBackoff(max_attempts=2, delay=0))
    take(agenda)
    clock.advance(5)
    assert take(agenda) == []
    assert agenda.stats().ready == 1
    agenda.finished("a", run=1)
    assert take(agenda) == ["a"]
    assert agenda.jobs()[0].attempts == 2


def test_cancel_of_a_job_past_its_limit_keeps_the_key_until_the_run_ends(agenda, clock):
    job = agenda.schedule(print, id="a", key="k", timeout=5, retry=FixedBackoff(max_attempts=2, delay=60))
    agenda.schedule(print, id="b", key="k")
    take(agenda)
    clock.advance(5)
    assert take(agenda) == []
    assert agenda.cancel("a")
    assert take(agenda) == []
    assert not job.wait(0)
    agenda.finished(job, run=1)
    assert job.wait(0)
    assert take(agenda) == ["b"]


def test_repeating_job_with_a_key_and_a_limit_goes_on_when_its_run_really_ends(agenda, clock):
    agenda.schedule_at_fixed_rate(print, 0, 10, id="a", key="k", timeout=5)
    agenda.schedule(print, delay=6, id="b", key="k")
    take(agenda)
    clock.advance(11)
    assert take(agenda) == []  # slot 10 came up in its own run, b waits for the key
    agenda.finished("a", run=1)
    assert take(agenda) == ["b"]
    clock.advance(1)
    agenda.finished("b")
    assert take(agenda) == []
    clock.advance(8)
    assert take(agenda) == ["a"]


@pytest.mark.parametrize("error", [OSError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_ends_a_run_frees_its_key(agenda, error):  # B91, B170
    agenda.schedule(print, id="a", key="k")
    agenda.schedule(print, id="b", key="k")
    assert take(agenda) == ["a"]
    agenda.finished("a", error)
    assert take(agenda) == ["b"]


def test_places_of_a_key_come_back_after_every_kind_of_end(agenda, clock):  # B170
    chance = random.Random(5)
    for k in range(3000):
        job = agenda.schedule(print, key="k", timeout=5, retry=FixedBackoff(2, delay=0) if k % 3 else None)
        if chance.random() < 0.1:
            job.cancel()
            continue
        assert agenda.take_due() == [job]
        how = chance.choice(["good", "bad", "exit", "cancel", "limit"])
        if how == "cancel":
            job.cancel()
        elif how == "limit":
            clock.advance(5)
            assert agenda.take_due() == []
        agenda.finished(job, {"bad": OSError(), "exit": SystemExit()}.get(how), run=1)
        for again in agenda.take_due():
            agenda.finished(again)
        assert job.wait(0)
    assert agenda.stats()[:3] == (0, 0, 0)
    agenda.schedule(print, id="last", key="k")
    assert take(agenda) == ["last"]


def test_key_is_forgotten_with_its_last_job(agenda):  # B141
    agenda.schedule(print, id="a", key="k", key_limit=1)
    take(agenda)
    agenda.finished("a")
    agenda.schedule(print, delay=1, id="b", key="k", key_limit=2).cancel()
    agenda.schedule(print, id="c", key="k", key_limit=3)
    with pytest.raises(ValueError, match="must") as caught:
        agenda.schedule(print, key="k", key_limit=2)
    assert str(caught.value) == "key_limit must be that of the other jobs with key 'k', got 2"


def test_int_and_str_keys_differ(agenda):
    agenda.schedule(print, id="a", key=1)
    agenda.schedule(print, id="b", key="1")
    assert take(agenda) == ["a", "b"]


def test_job_that_waits_for_its_key_counts_for_max_waiting(stack, clock):
    agenda = stack.Agenda(clock, max_waiting=2)
    for name in "ab":
        agenda.schedule(print, id=name, key="k")
    assert take(agenda) == ["a"]
    assert take(agenda) == []
    agenda.schedule(print, id="c", key="k")
    with pytest.raises(TooManyJobs):
        agenda.schedule(print, id="d", key="k")
    agenda.finished("a")
    assert take(agenda) == ["b"]
    agenda.schedule(print, id="d", key="k")


def test_many_keys_hold_each_other_up_not_at_all(agenda):
    for k in range(300):
        for name in "ab":
            agenda.schedule(print, id=f"{name}{k}", key=k)
    assert take(agenda) == [f"a{k}" for k in range(300)]
    for k in reversed(range(300)):
        agenda.finished(f"a{k}")
    assert take(agenda) == [f"b{k}" for k in range(300)]


def test_tasks_of_one_key_add_and_cancel_those_of_another(agenda, clock):  # B128
    ran = []

    def task(name, other):
        ran.append(name)
        agenda.schedule(ran.append, args=(f"from {name}",), key=other)
        agenda.schedule(ran.append, delay=9, args=("never",), key=other, id=f"victim of {name}")
        agenda.cancel(f"victim of {name}")

    agenda.schedule(task, args=("a", "l"), key="k")
    agenda.schedule(task, args=("b", "k"), key="l")
    while agenda.run_due():
        pass
    clock.advance(10)
    agenda.run_due()
    assert ran == ["a", "b", "from a", "from b"]


def test_run_due_in_a_task_with_a_key_does_not_run_the_others_of_the_key(agenda):
    ran = []

    def outer():
        ran.append("outer")
        ran.append(agenda.run_due())

    agenda.schedule(outer, key="k")
    agenda.schedule(ran.append, args=("same key",), key="k")
    agenda.schedule(ran.append, args=("other",))
    assert agenda.run_due() == 2
    assert ran == ["outer", "other", 1, "same key"]


def test_cancelled_job_of_a_key_is_not_run_by_the_finish_that_frees_the_key(agenda):
    agenda.schedule(print, id="a", key="k")
    b = agenda.schedule(print, id="b", key="k")
    take(agenda)
    take(agenda)
    b.cancel()
    agenda.finished("a")
    assert agenda.status("b") == Status.CANCELLED
    assert take(agenda) == []


def test_key_that_nobody_has_to_wait_for_makes_no_line_for_those_who_wait(agenda):
    def lines():
        gc.collect()  # those of other tests
        return sum(type(thing).__name__ == "ReadyLine" for thing in gc.get_objects())

    before = lines()
    for key in range(100):
        agenda.schedule(print, key=key)
    assert lines() == before
    agenda.schedule(print, key=7)
    assert lines() == before + 1
