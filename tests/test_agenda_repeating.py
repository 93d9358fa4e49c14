"""Fixed rate and fixed delay: promises 6, 7, 8."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from nextdue import FixedBackoff, Status

SECOND = 10**9


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


def advancing(clock, *seconds):
    """A task whose runs take so long, one after the other, and then no time."""
    left = list(seconds)

    def task():
        task.starts.append(clock() / SECOND)
        if left:
            clock.advance(left.pop(0))

    task.starts = []
    return task


# ---------------------------------------------------------------- promise 6


def test_promise_06_two_runs_of_one_job_never_overlap(agenda, clock):
    going = []

    def task():
        assert not going
        going.append(1)
        clock.advance(5)
        agenda.run_due()  # its own next slots are due by now
        going.pop()

    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1)
    assert agenda.run_due() == 1
    assert (job.attempts, job.status) == (1, Status.SCHEDULED)
    assert job.skipped == 4  # those at 1, 2, 3 and 4; the one at 5 is equal to the end
    assert agenda.run_due() == 1


def test_promise_06_job_that_is_taken_is_not_given_out_again_before_it_finished(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    assert agenda.take_due() == [job]
    clock.advance(3)
    assert agenda.take_due() == []
    agenda.finished(job)
    assert agenda.take_due() == [job]
    assert (job.run_at, job.skipped) == (4 * SECOND, 2)


# ---------------------------------------------------------------- promise 7


def test_promise_07_slots_are_multiples_of_the_period_over_ten_thousand_late_runs(agenda, clock):  # B163
    slots = []
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0.5, period=timedelta(seconds=1))
    first = job.run_at
    jitter = random.Random(1)
    for k in range(10_000):
        slots.append(job.run_at)
        clock.set_ns(job.run_at + jitter.randrange(200_000_000))
        assert agenda.run_due() == 1
        assert job.run_at == first + (k + 1) * SECOND
    assert slots == [first + k * SECOND for k in range(10_000)]
    assert (job.skipped, agenda.skipped, job.attempts) == (0, 0, 10_000)


def test_promise_07_period_that_is_no_whole_second_does_not_drift(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1 / 3)
    for k in range(3_000):
        assert job.run_at == k * 333_333_333
        clock.set_ns(job.run_at + k % 7)
        agenda.run_due()


def test_promise_07_next_slot_is_on_the_timetable_while_the_job_runs(agenda, clock):
    seen = []
    job = agenda.schedule_at_fixed_rate(
        lambda: seen.append((agenda.next_run_at(), job.run_at, job.status)), initial_delay=1, period=10
    )
    clock.advance(1)
    agenda.run_due()
    assert seen == [(11 * SECOND, 11 * SECOND, Status.RUNNING)]
    assert job.status is Status.SCHEDULED


def test_promise_07_slot_strictly_inside_a_run_is_skipped_and_counted(agenda, clock):
    task = advancing(clock, 2.5)
    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1)
    agenda.run_due()
    assert (job.run_at, job.skipped, agenda.skipped) == (3 * SECOND, 2, 2)
    assert agenda.run_due() == 0


def test_promise_07_slot_equal_to_the_end_of_a_run_is_run(agenda, clock):  # B166
    task = advancing(clock, 2, 2, 2)
    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=2)
    for _ in range(3):
        assert agenda.run_due() == 1
    assert task.starts == [0, 2, 4]
    assert job.skipped == 0


def test_promise_07_slot_one_ns_before_the_end_of_a_run_is_skipped(agenda, clock):
    job = agenda.schedule_at_fixed_rate(lambda: clock.set_ns(SECOND + 1), initial_delay=0, period=1)
    agenda.run_due()
    assert (job.run_at, job.skipped) == (2 * SECOND, 1)


@pytest.mark.parametrize("missed", [1, 2, 1_000, 10**12])  # B150
def test_promise_07_after_a_pause_one_late_run_then_back_on_the_slots(agenda, clock, missed):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1e-3)
    clock.set_ns(missed * 10**6 + 5)  # slots 0 to `missed` are past
    assert job.run_at == 0
    assert agenda.run_due() == 1
    assert (job.run_at, job.skipped) == ((missed + 1) * 10**6, missed)
    assert agenda.run_due() == 0


def test_promise_07_slot_equal_to_the_end_of_a_late_run_is_run(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    clock.set_ns(5 * SECOND)
    assert agenda.run_due() == 1  # for slot 0; it takes no time
    assert (job.run_at, job.skipped) == (5 * SECOND, 4)
    assert agenda.run_due() == 1
    assert (job.run_at, job.skipped) == (6 * SECOND, 4)


def test_promise_07_times_decide_and_not_who_looked_when(stack, clock):
    outcomes = []
    for looks in ([], [1.2, 2.7, 3.9], [4.0]):
        clock.set_ns(0)
        agenda = stack.Agenda(clock)
        job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
        agenda.take_due()
        for look in looks:
            clock.set_ns(round(look * SECOND))
            assert agenda.take_due() == []
        clock.set_ns(4 * SECOND)
        agenda.finished(job)
        outcomes.append((job.run_at, job.skipped))
    assert outcomes == [(4 * SECOND, 3)] * 3


def test_promise_07_skipped_of_the_agenda_is_the_sum_over_its_jobs(agenda, clock):
    jobs = [agenda.schedule_at_fixed_rate(int, initial_delay=0, period=period) for period in (1, 2)]
    clock.set_ns(10 * SECOND + 1)
    agenda.run_due()
    assert [job.skipped for job in jobs] == [10, 5]
    assert agenda.skipped == 15
    assert agenda.schedule(int).skipped == 0


def test_promise_07_failed_run_leaves_the_slots_as_they_are(agenda, clock, caplog):  # B89
    def task():
        task.runs += 1
        if task.runs == 2:
            raise OSError("second")

    task.runs = 0
    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1)
    for k in range(4):
        clock.set_ns(k * SECOND)
        assert agenda.run_due() == 1
    assert task.runs == 4
    assert (job.run_at, job.status, job.skipped) == (4 * SECOND, Status.SCHEDULED, 0)
    assert str(job.last_error) == "second"


def test_fixed_rate_near_the_end_of_time_saturates_and_never_comes(agenda, clock):
    clock.set_ns(2**63 - 10)
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    assert agenda.run_due() == 1
    assert job.run_at == 2**63 - 1
    clock.set_ns(2**63 - 2)
    assert agenda.run_due() == 0
    assert job.status is Status.SCHEDULED
    assert job.cancel()


def test_fixed_rate_with_a_period_past_int64_runs_once(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=10**30)
    assert agenda.run_due() == 1
    clock.set_ns(2**63 - 2)
    assert agenda.run_due() == 0
    assert (job.run_at, job.skipped) == (2**63 - 1, 0)


def test_fixed_rate_at_an_instant_counts_its_slots_from_there(agenda, clock):
    clock.set_ns(100)
    job = agenda.schedule_at_fixed_rate(int, 0, 1, at=7)
    agenda.run_due()
    assert job.run_at == SECOND + 7


@pytest.mark.parametrize("now", [0, 5, 2**62, 2**63 - 2])
@pytest.mark.parametrize("period", [1, 3, 1e6])
def test_fixed_rate_whose_first_slot_is_past_int64_ago_is_back_on_its_slots(agenda, clock, now, period):
    clock.set_ns(now)
    job = agenda.schedule_at_fixed_rate(int, 0, period, at=-(10**30))
    first, step = job.run_at, round(period * SECOND)
    assert agenda.run_due() == 1
    slots = -(-(now - first) // step)
    assert (job.run_at, job.skipped) == (min(first + slots * step, 2**63 - 1), slots - 1)


def test_fixed_rate_on_a_clock_that_goes_back_waits_for_its_slot(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=1, period=1)
    clock.set_ns(SECOND)
    agenda.run_due()
    clock.set_ns(0)
    assert agenda.run_due() == 0
    clock.set_ns(2 * SECOND)
    assert agenda.run_due() == 1
    assert (job.attempts, job.skipped) == (2, 0)


# ---------------------------------------------------------------- promise 8


def test_promise_08_fixed_delay_counts_from_the_end_of_a_run(agenda, clock):
    task = advancing(clock, 3, 0, 1)
    job = agenda.schedule_with_fixed_delay(task, initial_delay=1, delay=10)
    for _ in range(3):
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
    assert task.starts == [1, 14, 24]
    assert (job.run_at, job.skipped) == (35 * SECOND, 0)


def test_promise_08_fixed_delay_is_nowhere_while_it_runs(agenda, clock):
    seen = []
    agenda.schedule_with_fixed_delay(lambda: seen.append(agenda.next_run_at()), initial_delay=0, delay=1)
    agenda.run_due()
    assert seen == [None]


@pytest.mark.parametrize("delay", [2**63, 10**30, 1e300, timedelta.max])  # B46, B48
def test_promise_08_fixed_delay_past_int64_runs_once(agenda, clock, delay):
    job = agenda.schedule_with_fixed_delay(int, initial_delay=0, delay=delay)
    clock.set_ns(3)
    assert agenda.run_due() == 1
    clock.set_ns(2**63 - 2)
    assert agenda.run_due() == 0
    assert (job.run_at, job.attempts) == (2**63 - 1, 1)


def test_promise_08_fixed_delay_after_a_failed_run_carries_on(agenda, clock, caplog):
    def fail():
        raise OSError("always")

    job = agenda.schedule_with_fixed_delay(fail, initial_delay=0, delay=2)
    for k in range(3):
        assert job.run_at == 2 * k * SECOND
        clock.set_ns(job.run_at)
        assert agenda.run_due() == 1
    assert (job.status, job.attempts) == (Status.SCHEDULED, 3)


# ---------------------------------------------------------------- a policy of its own


def test_fixed_rate_with_a_policy_retries_and_then_is_back_on_its_slots(agenda, clock, caplog):
    runs = []

    def task():
        runs.append(clock() / SECOND)
        if len(runs) in (1, 2):
            raise OSError(len(runs))

    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1, retry=FixedBackoff(5, delay=0.75))
    agenda.run_due()
    for _ in range(3):
        clock.set_ns(job.run_at)
        agenda.run_due()
    assert runs == [0, 0.75, 1.5, 2]  # slot 1 passed while slot 0 was retried
    assert (job.run_at, job.skipped, job.attempts) == (3 * SECOND, 1, 4)


def test_fixed_rate_whose_policy_gives_up_goes_on_with_its_next_slot(agenda, clock, caplog):
    attempts = []

    def policy(attempt, error):
        attempts.append(attempt)
        return 0.1 if attempt < 2 else None

    def fail():
        raise OSError("always")

    job = agenda.schedule_at_fixed_rate(fail, initial_delay=0, period=1, retry=policy)
    for _ in range(4):
        clock.set_ns(job.run_at)
        agenda.run_due()
    assert attempts == [1, 2, 1, 2]
    assert (job.run_at, job.status) == (2 * SECOND, Status.SCHEDULED)


def test_fixed_delay_with_a_policy_retries_and_then_waits_its_delay(agenda, clock, caplog):
    runs = []

    def task():
        runs.append(clock() / SECOND)
        if len(runs) == 1:
            raise OSError("once")

    job = agenda.schedule_with_fixed_delay(task, initial_delay=0, delay=10, retry=FixedBackoff(5, delay=1))
    for _ in range(3):
        clock.set_ns(job.run_at)
        agenda.run_due()
    assert runs == [0, 1, 11]


def test_repeating_job_is_not_retried_by_the_agendas_policy(stack, clock, caplog):
    def fail():
        raise OSError("always")

    agenda = stack.Agenda(clock, retry=FixedBackoff(5, delay=0.1))
    job = agenda.schedule_at_fixed_rate(fail, initial_delay=0, period=1)
    agenda.run_due()
    assert job.run_at == SECOND


# ---------------------------------------------------------------- reschedule


def test_reschedule_of_a_fixed_rate_job_moves_its_slots(agenda, clock):  # B121
    job = agenda.schedule_at_fixed_rate(int, initial_delay=100, period=10)
    clock.advance(1)
    assert agenda.reschedule(job, delay=2)
    assert (job.run_at, agenda.next_run_at()) == (3 * SECOND, 3 * SECOND)
    clock.set_ns(job.run_at)
    agenda.run_due()
    assert (job.run_at, job.skipped) == (13 * SECOND, 0)


@pytest.mark.parametrize("add", ["schedule_at_fixed_rate", "schedule_with_fixed_delay"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("retry", [None, FixedBackoff(9, delay=50)])
@pytest.mark.parametrize("at", [500, 2 * SECOND, 77 * SECOND])
def test_reschedule_of_a_repeating_job_that_runs_says_when_it_runs_next(agenda, clock, caplog, add, fails, retry, at):
    # B107: past, equal to the end or later: it runs, exactly once for that.
    def task():
        if job.attempts == 1:
            assert agenda.reschedule(job, at=at)
            clock.set_ns(2 * SECOND)
            if fails:
                raise OSError("after the move")

    job = getattr(agenda, add)(task, 0, 10, retry=retry)
    agenda.run_due()
    assert (job.run_at, job.status, job.skipped) == (at, Status.SCHEDULED, 0)
    clock.set_ns(max(at, clock()))
    assert agenda.run_due() == 1
    assert job.run_at == (at if "rate" in add else clock()) + 10 * SECOND


def test_reschedule_to_now_of_a_job_that_runs_elsewhere_makes_one_run_after_it(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=10)
    agenda.take_due()
    clock.advance(1)
    assert agenda.reschedule(job, delay=0)
    assert agenda.take_due() == []  # it would overlap
    clock.advance(1)
    agenda.finished(job)
    assert agenda.take_due() == [job]
    assert (job.attempts, job.run_at) == (2, 11 * SECOND)


def test_reschedule_of_a_job_between_two_attempts_drops_the_retry(agenda, clock, caplog):
    def task():
        if job.attempts == 1:
            raise OSError("once")

    job = agenda.schedule_at_fixed_rate(task, initial_delay=0, period=10, retry=FixedBackoff(9, delay=1))
    agenda.run_due()
    assert job.run_at == SECOND
    agenda.reschedule(job, at=5 * SECOND)
    clock.set_ns(5 * SECOND)
    agenda.run_due()
    assert job.run_at == 15 * SECOND
