"""Dependencies where they meet the other rules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import take
from nextdue import FixedBackoff, Status, TooManyJobs, UnknownJobId


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


@pytest.mark.parametrize("end", ["fails", "is cancelled", "times out"])
def test_dependent_ends_at_once_however_the_other_came_to_grief(agenda, clock, end):  # B217
    a = agenda.schedule(print, id="a", timeout=5)
    b = agenda.schedule(print, id="b", after=[a])
    take(agenda)
    if end == "fails":
        agenda.finished(a, OSError())
    elif end == "is cancelled":
        a.cancel()
    else:
        clock.advance(5)
        take(agenda)
    assert b.status == Status.CANCELLED
    assert b.reason == f"job 'a', which it comes after, ended {a.status}"
    assert b.wait(0)


def test_reason_names_the_first_that_let_it_down(agenda):
    for name in "ab":
        agenda.schedule(print, delay=1, id=name).cancel()
    job = agenda.schedule(print, after=["a", "b"])
    assert job.reason == "job 'a', which it comes after, ended cancelled"


def test_dependent_waits_while_the_other_is_retried(agenda, clock):
    agenda.schedule(print, id="a", retry=FixedBackoff(max_attempts=2, delay=5))
    agenda.schedule(print, id="b", after=["a"])
    take(agenda)
    agenda.finished("a", OSError())
    assert agenda.status("b") == Status.SCHEDULED
    clock.advance(5)
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert take(agenda) == ["b"]


def test_dependent_waits_while_the_other_waits_for_its_key(agenda):  # B217
    agenda.schedule(print, id="first", key="k")
    agenda.schedule(print, id="a", key="k")
    agenda.schedule(print, id="b", after=["a"], key="k")
    assert take(agenda) == ["first"]
    assert take(agenda) == []
    agenda.finished("first")
    assert take(agenda) == ["a"]
    agenda.finished("a")
    assert take(agenda) == ["b"]


def test_repeating_job_counts_when_it_has_ended_whatever_slots_it_skipped(agenda, clock):  # B220
    agenda.schedule_at_fixed_rate(lambda: None, 0, 10, id="a", max_runs=2)
    agenda.schedule(print, id="b", after=["a"])
    clock.advance(35)
    assert agenda.run_due() == 1
    assert agenda.status("b") == Status.SCHEDULED
    clock.advance(5)
    assert agenda.run_due() == 1
    assert agenda.status("a") == Status.SUCCEEDED
    assert take(agenda) == ["b"]


def test_dependent_that_is_paused_runs_when_both_have_ended(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a"])
    agenda.pause("b")
    assert take(agenda) == ["a"]
    agenda.resume("b")  # it waits for a still
    assert take(agenda) == []
    agenda.pause("b")
    agenda.finished("a")
    assert take(agenda) == []
    agenda.resume("b")
    assert take(agenda) == ["b"]


def test_dependent_that_is_rescheduled_waits_for_both(agenda, clock):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a"])
    assert agenda.reschedule("b", delay=5)
    clock.advance(5)
    assert take(agenda) == ["a"]
    assert agenda.reschedule("b", delay=5)
    agenda.finished("a")
    assert take(agenda) == []
    clock.advance(5)
    assert take(agenda) == ["b"]


def test_run_now_of_a_dependent_is_refused(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a"])
    assert not agenda.run_now("b")
    assert take(agenda) == ["a"]


def test_dependent_that_is_cancelled_first_is_left_alone(agenda):
    agenda.schedule(print, id="a")
    b = agenda.schedule(print, id="b", after=["a"])
    c = agenda.schedule(print, id="c", after=["b"], on_upstream_failure="run")
    take(agenda)
    assert b.cancel()
    assert b.reason is None
    agenda.finished("a")
    assert take(agenda) == ["c"]
    assert c.status == Status.RUNNING


def test_dependent_on_one_job_twice_runs_once(agenda):
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a", "a"])
    take(agenda)
    agenda.finished("a")
    assert take(agenda) == ["b"]
    agenda.finished("b")
    assert agenda.stats()[:3] == (0, 0, 0)


def test_no_jobs_before_means_none(agenda):
    agenda.schedule(print, id="a", after=[])
    assert take(agenda) == ["a"]


def test_id_that_the_history_has_forgotten_is_unknown_but_its_handle_counts(stack, clock):
    agenda = stack.Agenda(clock, history=1)
    old = agenda.schedule(lambda: None, id="old")
    agenda.schedule(lambda: None, id="new")
    agenda.run_due()
    with pytest.raises(UnknownJobId) as caught:
        agenda.schedule(print, after=["old"])
    assert str(caught.value) == "after must hold known jobs, got 'old'"
    agenda.schedule(print, id="b", after=[old, "new"])
    assert take(agenda) == ["b"]


@pytest.mark.parametrize("history", [0, 1])
def test_dependents_hear_of_a_job_that_is_forgotten_as_it_ends(stack, clock, history):
    agenda = stack.Agenda(clock, history=history)
    agenda.schedule(lambda: None, id="a")
    agenda.schedule(print, id="b", after=["a"])
    agenda.run_due()
    assert take(agenda) == ["b"]


def test_job_of_another_agenda_is_unknown(stack, clock, agenda):
    other = stack.Agenda(clock).schedule(print)
    with pytest.raises(UnknownJobId):
        agenda.schedule(print, after=[other])


def test_dependent_counts_as_waiting_and_for_max_waiting(stack, clock):
    agenda = stack.Agenda(clock, max_waiting=2)
    agenda.schedule(print, id="a")
    agenda.schedule(print, id="b", after=["a"])
    assert agenda.stats().waiting == 2
    with pytest.raises(TooManyJobs):
        agenda.schedule(print, after=["a"])
    agenda.cancel("b")
    agenda.schedule(print, id="c", after=["a"])
    take(agenda)
    agenda.finished("a")
    assert take(agenda) == ["c"]
    assert agenda.stats()[:3] == (0, 0, 1)


def test_repeating_job_may_come_after_another(agenda, clock):
    agenda.schedule(print, id="a")
    job = agenda.schedule_at_fixed_rate(lambda: None, 0, 10, after=["a"])
    take(agenda)
    clock.advance(25)
    agenda.finished("a")
    assert agenda.run_due() == 1  # slot 0, late
    assert (job.skipped, job.run_at) == (2, 30_000_000_000)


def test_result_that_counts_as_a_failure_lets_dependents_down(agenda):
    agenda.schedule(lambda: False, id="a", is_failure=lambda result: result is False)
    b = agenda.schedule(print, after=["a"])
    agenda.run_due()
    assert b.status == Status.CANCELLED


def test_task_that_adds_its_own_dependent(agenda):
    ran = []

    def task():
        agenda.schedule(ran.append, args=("after",), after=["a"])
        ran.append("before")

    agenda.schedule(task, id="a")
    agenda.run_due()
    agenda.run_due()
    assert ran == ["before", "after"]


def test_long_chain_of_dependents_is_let_go_without_recursion(stack):
    code = f"""
import nextdue
from nextdue import pure
from nextdue.testing import ManualClock
agenda = (pure if {stack.name == "pure"} else nextdue).Agenda(ManualClock(), history=0)
first = job = agenda.schedule(print, delay=1)
for _ in range(100_000):
    job = agenda.schedule(print, after=[job])
first.cancel()
assert job.reason.endswith("ended cancelled"), job.reason
del job, first
print("gone")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gone\n", "")


def test_agenda_with_a_long_chain_of_waiting_dependents_is_let_go_without_recursion(stack):
    code = f"""
import nextdue
from nextdue import pure
from nextdue.testing import ManualClock
agenda = (pure if {stack.name == "pure"} else nextdue).Agenda(ManualClock())
job = agenda.schedule(print, delay=1)
for _ in range(100_000):
    job = agenda.schedule(print, after=[job])
del job, agenda
import gc
gc.collect()
print("gone")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gone\n", "")
