"""When and in which order jobs run: promises 1, 2, 3, 14, and a clock that misbehaves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nextdue import Status

SECOND = 10**9


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


@pytest.fixture
def ran():
    return []


# ---------------------------------------------------------------- promise 1


@pytest.mark.parametrize("start", [0, -5, 3 * 365 * 86_400 * SECOND, 2**62, 2**63 - 10**12])  # B49, B65
def test_promise_01_job_one_ns_before_its_run_at_does_not_run(stack, clock, ran, start):
    clock.set_ns(start)
    agenda = stack.Agenda(clock)
    job = agenda.schedule(ran.append, delay=2, args=(1,))
    assert job.run_at == start + 2 * SECOND
    clock.set_ns(start + 2 * SECOND - 1)
    assert agenda.run_due() == 0
    assert agenda.take_due() == []
    clock.set_ns(start + 2 * SECOND)
    assert agenda.run_due() == 1
    assert ran == [1]


def test_promise_01_job_that_is_ready_waits_when_the_clock_went_back(agenda, clock, ran):
    agenda.schedule(ran.append, delay=1, args=("a",))
    agenda.schedule(ran.append, delay=2, args=("b",))
    clock.set_ns(3 * SECOND)
    assert [job.run_at for job in agenda.take_due(limit=1)] == [SECOND]  # "b" is ready now
    clock.set_ns(2 * SECOND - 1)
    assert agenda.run_due() == 0
    assert agenda.next_run_at() == 2 * SECOND
    clock.set_ns(2 * SECOND)
    assert agenda.run_due() == 1
    assert ran == ["b"]


def test_promise_01_job_on_its_instant_stepped_to_runs_each_time(agenda, clock):  # B66, B167
    clock.set_ns(1_700_000_000 * SECOND)
    instants = []

    def again():
        instants.append(clock())
        agenda.schedule(again, delay=10)

    agenda.schedule(again, delay=10)
    for _ in range(2_000):
        clock.set_ns(agenda.next_run_at())
        assert agenda.run_due() == 1
    assert [b - a for a, b in pairwise(instants)] == [10 * SECOND] * 1_999


# ---------------------------------------------------------------- promise 2


def test_promise_02_job_that_is_late_still_runs(agenda, clock, ran):
    agenda.schedule(ran.append, delay=1, args=(1,))
    clock.advance(10**9)
    assert agenda.run_due() == 1
    assert ran == [1]


@pytest.mark.parametrize("delay", [0, -1, -1e300, 0.0, -(10**30), 4e-10])
def test_delay_of_zero_or_less_means_now(agenda, clock, ran, delay):
    clock.set_ns(7)
    job = agenda.schedule(ran.append, delay=delay, args=(1,))
    assert job.run_at == 7
    assert agenda.run_due() == 1


def test_at_in_the_past_runs_in_the_next_pass(agenda, clock, ran):
    clock.set_ns(100)
    job = agenda.schedule(ran.append, at=3, args=(1,))
    assert (job.run_at, agenda.next_run_at()) == (3, 3)
    assert agenda.run_due() == 1


# ---------------------------------------------------------------- promise 3


def test_promise_03_due_jobs_of_one_priority_run_by_run_at_then_in_the_order_they_were_added(agenda, clock, ran):
    for name, delay in (("c", 3), ("a1", 1), ("b", 2), ("a2", 1), ("a3", 1)):
        agenda.schedule(ran.append, delay=delay, args=(name,))
    clock.advance(5)
    assert agenda.run_due() == 5
    assert ran == ["a1", "a2", "a3", "b", "c"]


def test_promise_03_among_ready_jobs_the_higher_priority_goes_first(agenda, clock, ran):
    added = [("low", 1, -5), ("mid-late", 2, 0), ("top", 3, 2047), ("bottom", 0, -2048), ("mid", 1, 0), ("mid2", 1, 0)]
    for name, delay, priority in added:
        agenda.schedule(ran.append, delay=delay, args=(name,), priority=priority)
    clock.advance(5)
    agenda.run_due()
    assert ran == ["top", "mid", "mid2", "mid-late", "low", "bottom"]


def test_promise_03_order_holds_when_jobs_become_ready_at_different_times(agenda, clock):
    agenda.schedule(int, delay=1, id="first")
    agenda.schedule(int, delay=2, id="second")
    agenda.schedule(int, delay=3, id="urgent", priority=1)
    clock.set_ns(SECOND)
    agenda.take_due(limit=0)  # makes "first" ready
    clock.set_ns(3 * SECOND)
    assert [job.id for job in agenda.take_due()] == ["urgent", "first", "second"]


def test_promise_03_what_becomes_ready_out_of_order_is_sorted_in(agenda, clock):
    agenda.schedule(int, at=50, id="b")
    clock.set_ns(100)
    agenda.take_due(limit=0)
    agenda.schedule(int, at=10, id="a")  # added later, due earlier
    agenda.schedule(int, at=50, id="c")
    assert [job.id for job in agenda.take_due()] == ["a", "b", "c"]


def test_promise_03_many_due_at_once_run_first_in_first_out(agenda, ran):  # B144, B147
    for k in range(10_000):
        agenda.schedule(ran.append, args=(k,))
    assert agenda.run_due() == 10_000
    assert ran == list(range(10_000))


def test_promise_03_payloads_are_never_compared(agenda, clock, ran):  # B143
    class Payload:
        def __lt__(self, other):
            raise AssertionError("compared")

        __eq__ = __gt__ = __le__ = __ge__ = __lt__
        __hash__ = None

        def __call__(self, *args, **kwargs):
            ran.append(1)

    for _ in range(50):
        agenda.schedule(Payload(), delay=1, args=(Payload(),), kwargs={"x": Payload()})
    clock.advance(1)
    assert agenda.run_due() == 50


def test_promise_03_order_does_not_change_when_an_unrelated_job_comes_and_goes(stack, clock):  # B146
    for position in range(4):
        agenda = stack.Agenda(clock)
        for k, name in enumerate("abc"):
            if position == k:
                agenda.schedule(int, delay=1, id="e")
            agenda.schedule(int, delay=1, id=name)
        if position < 3:
            agenda.cancel("e")
        clock.advance(1)
        assert [job.id for job in agenda.take_due()] == ["a", "b", "c"]


def test_handles_given_out_are_those_of_their_jobs(agenda, clock):  # B115
    jobs = [agenda.schedule(int, delay=delay) for delay in (1, 3, 2)]
    assert [job.run_at for job in jobs] == [SECOND, 3 * SECOND, 2 * SECOND]
    agenda.cancel(jobs[2])
    clock.advance(5)
    assert agenda.take_due() == [jobs[0], jobs[1]]


# ---------------------------------------------------------------- promise 14


def test_promise_14_pass_ends_when_a_task_adds_for_now_for_ever(agenda, ran):  # B100
    def again():
        ran.append(1)
        agenda.schedule(again, delay=0)

    agenda.schedule(again)
    for passes in range(1, 4):
        assert agenda.run_due() == 1
        assert len(ran) == passes


def test_promise_14_job_added_in_a_pass_waits_for_the_next_even_with_a_higher_priority(agenda, ran):
    def add():
        ran.append("add")
        agenda.schedule(ran.append, args=("urgent",), priority=2047)
        agenda.schedule(ran.append, at=-100, args=("overdue",))

    agenda.schedule(add)
    agenda.schedule(ran.append, args=("old",))
    assert agenda.run_due() == 2
    assert ran == ["add", "old"]
    assert agenda.run_due() == 2
    assert ran[2:] == ["urgent", "overdue"]


def test_promise_14_pass_freezes_now(agenda, clock, ran):
    agenda.schedule(clock.advance, args=(10,))
    agenda.schedule(ran.append, delay=5, args=(1,))
    assert agenda.run_due() == 1
    assert ran == []
    assert agenda.run_due() == 1


def test_promise_14_job_cancelled_in_a_pass_does_not_run(agenda, ran):  # B112
    jobs = []

    def cancel_the_rest():
        ran.append("first")
        assert [agenda.cancel(job) for job in jobs] == [True] * 9

    agenda.schedule(cancel_the_rest, priority=1)
    jobs += [agenda.schedule(ran.append, args=(k,)) for k in range(9)]
    assert agenda.run_due() == 1
    assert ran == ["first"]
    assert {job.status for job in jobs} == {Status.CANCELLED}


def test_promise_14_job_rescheduled_to_now_in_a_pass_waits_for_the_next(agenda, ran):
    agenda.schedule(lambda: agenda.reschedule(moved, delay=0), priority=1)
    moved = agenda.schedule(ran.append, args=(1,))
    assert agenda.run_due() == 1
    assert agenda.run_due() == 1
    assert ran == [1]


def test_promise_14_pass_inside_a_pass_runs_each_job_once(agenda, ran):
    agenda.schedule(lambda: ran.append(agenda.run_due()))
    agenda.schedule(ran.append, args=("a",))
    agenda.schedule(ran.append, args=("b",))
    assert agenda.run_due() == 1
    assert ran == ["a", "b", 2]


def test_run_due_with_nothing_due_runs_nothing(agenda):
    assert agenda.run_due() == 0
    assert agenda.next_run_at() is None


# ---------------------------------------------------------------- the clock


@pytest.mark.parametrize("reading", [1.0, True, None, "1", float("nan")])
@pytest.mark.parametrize(
    "call",
    [
        lambda agenda: agenda.schedule(int, delay=1),
        lambda agenda: agenda.schedule_at_fixed_rate(int, initial_delay=1, period=1),
        lambda agenda: agenda.schedule_with_fixed_delay(int, initial_delay=1, delay=1),
        lambda agenda: agenda.run_due(),
        lambda agenda: agenda.take_due(),
        lambda agenda: agenda.reschedule("a", delay=1),
    ],
)
def test_clock_that_returns_no_int_raises_at_the_call_and_nothing_is_added(stack, reading, call):
    readings = [5, reading]
    agenda = stack.Agenda(lambda: readings.pop(0))
    agenda.schedule(int, delay=1, id="a")
    with pytest.raises(TypeError) as caught:
        call(agenda)
    assert str(caught.value) == f"clock must return int nanoseconds, got {reading!r}"
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 0 running>"
    assert agenda.next_run_at() == SECOND + 5


@pytest.mark.parametrize("reading", [2**63, 2**63 - 1, -(2**63), 10**30])
def test_clock_past_int64_raises_at_the_call(stack, reading):
    agenda = stack.Agenda(lambda: reading)
    with pytest.raises(OverflowError) as caught:
        agenda.schedule(int)
    assert str(caught.value) == f"clock must return int nanoseconds within int64, got {reading!r}"
    assert agenda.next_run_at() is None


@pytest.mark.parametrize("reading", [2**63 - 2, -(2**63) + 2, 0])
def test_clock_at_the_ends_of_int64_works(stack, reading):
    agenda = stack.Agenda(lambda: reading)
    job = agenda.schedule(int)
    assert job.run_at == reading
    assert agenda.run_due() == 1
    assert job.status is Status.SUCCEEDED


def test_clock_that_returns_numpy_ints_works(stack, ran):
    np = pytest.importorskip("numpy")
    agenda = stack.Agenda(lambda: np.int64(5))
    assert agenda.schedule(ran.append, args=(1,)).run_at == 5
    assert agenda.run_due() == 1


def test_clock_that_raises_raises_at_the_call(stack):
    def broken():
        raise OSError("no clock")

    agenda = stack.Agenda(broken)
    for call in (lambda: agenda.schedule(int), agenda.run_due, agenda.take_due):
        with pytest.raises(OSError, match=r"^no clock$"):
            call()


def test_clock_that_fails_at_the_end_of_a_run_does_not_lose_the_run(stack, caplog):
    readings = [0, 0, OSError("no clock")]

    def clock():
        reading = readings.pop(0)
        if isinstance(reading, BaseException):
            raise reading
        return reading

    agenda = stack.Agenda(clock)
    job = agenda.schedule_with_fixed_delay(int, initial_delay=0, delay=1)
    assert agenda.run_due() == 1
    assert (job.status, job.run_at) == (Status.SCHEDULED, SECOND)  # from the last good reading
    assert [record.message for record in caplog.records] == ["the clock failed; its last reading stands in"]
    assert caplog.records[0].exc_info[0] is OSError


def test_next_run_at_does_not_count_what_is_ready(agenda, clock):
    agenda.schedule(int, delay=1)
    agenda.schedule(int, delay=5)
    assert agenda.next_run_at() == SECOND
    clock.advance(1)
    agenda.take_due(limit=0)
    assert agenda.next_run_at() == 5 * SECOND
