"""Promise 5: the work for a job does not grow with the number of jobs that wait. Steps are counted, not time."""

from __future__ import annotations

import sys

import pytest

from nextdue import pure
from nextdue.testing import ManualClock


def calls_of(action):
    """How many calls of Python and C functions an action makes on the pure stack."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def life_of_a_job(waiting):
    """Calls for adding, moving, cancelling and running jobs beside so many that wait."""
    clock = ManualClock()
    agenda = pure.Agenda(clock)
    for k in range(waiting):
        agenda.schedule(int, delay=1000 + k)

    def life():
        agenda.schedule(int, delay=5000).cancel()
        agenda.reschedule(agenda.schedule(int, delay=9), delay=0)
        agenda.run_due()

    return calls_of(life)


def test_promise_05_work_for_a_job_is_the_same_beside_many_that_wait():
    assert life_of_a_job(10) == life_of_a_job(1_000) == life_of_a_job(20_000)


@pytest.mark.parametrize("live", [10, 5_000])
def test_promise_05_dead_entries_are_swept_before_they_are_more_than_the_live_ones(stack, live):
    timetable = stack.Timetable()
    for k in range(live):
        timetable.add(k)
    most = timetable.nbytes
    for k in range(4 * live):
        assert timetable.cancel(timetable.add(10**6 + k))
        most = max(most, timetable.nbytes)
    timetable.check()  # that dead entries are at most half is one of its invariants
    assert most <= 4 * timetable.nbytes
    assert len(timetable) == live
