"""Cancel and identity: promises 10 and 11, reschedule, the history, ids."""

from __future__ import annotations

import gc
import weakref

import pytest

from nextdue import DuplicateJobId, FixedBackoff, Status, UnknownJobId

SECOND = 10**9


@pytest.fixture
def agenda(stack, clock):
    return stack.Agenda(clock)


@pytest.fixture
def ran():
    return []


class Thing:
    """Something with a weakref."""

    def __call__(self, *args, **kwargs):
        pass


@pytest.fixture
def no_gc():
    gc.disable()
    yield
    gc.enable()


# ---------------------------------------------------------------- promise 10: in every state


def test_promise_10_cancel_of_a_waiting_job_keeps_it_from_running(agenda, clock, ran):
    job = agenda.schedule(ran.append, delay=1, args=(1,))
    assert agenda.cancel(job) is True
    assert job.status is Status.CANCELLED
    assert agenda.next_run_at() is None
    clock.advance(5)
    assert agenda.run_due() == 0


def test_promise_10_cancel_of_a_ready_job_keeps_it_from_running(agenda, ran):
    job = agenda.schedule(ran.append, args=(1,))
    agenda.take_due(limit=0)
    assert repr(agenda) == "<Agenda: 0 waiting, 1 ready, 0 running>"
    assert agenda.cancel(job) is True
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"
    assert agenda.run_due() == 0
    assert (job.status, job.attempts) == (Status.CANCELLED, 0)


@pytest.mark.parametrize("error", [None, OSError("x")])
def test_promise_10_cancel_of_a_running_one_off_is_for_good(agenda, error):
    job = agenda.schedule(int)
    agenda.take_due()
    assert job.status is Status.RUNNING
    assert agenda.cancel(job) is True
    assert job.status is Status.CANCELLED
    agenda.finished(job, error, value=3)
    assert (job.status, job.last_error, job.attempts) == (Status.CANCELLED, None, 1)
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"


@pytest.mark.parametrize("add", ["schedule_at_fixed_rate", "schedule_with_fixed_delay"])
@pytest.mark.parametrize("error", [None, OSError("x")])
def test_promise_10_cancel_of_a_running_repeating_job_keeps_the_next_run_from_starting(agenda, clock, add, error):
    job = getattr(agenda, add)(int, 0, 1, retry=FixedBackoff(9, delay=1))
    agenda.take_due()
    assert agenda.cancel(job) is True
    assert agenda.next_run_at() is None
    clock.advance(10)
    agenda.finished(job, error)
    assert agenda.run_due() == 0
    assert (job.status, job.last_error, job.attempts, job.skipped) == (Status.CANCELLED, None, 1, 0)


def test_promise_10_cancel_while_its_next_slot_is_ready_keeps_that_from_starting(agenda, clock):
    job = agenda.schedule_at_fixed_rate(int, initial_delay=0, period=1)
    agenda.take_due()
    clock.advance(1)
    agenda.take_due(limit=0)  # slot 1 is in the ready line, slot 0 runs
    assert agenda.cancel(job) is True
    assert agenda.take_due() == []
    agenda.finished(job)
    assert agenda.run_due() == 0
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"


def test_promise_10_cancel_between_two_attempts_ends_the_retries(agenda, clock, ran, caplog):
    def fail():
        ran.append(1)
        raise OSError("x")

    job = agenda.schedule(fail, retry=FixedBackoff(9, delay=1))
    agenda.run_due()
    assert job.status is Status.SCHEDULED
    assert agenda.cancel(job) is True
    clock.advance(10)
    assert agenda.run_due() == 0
    assert (job.status, str(job.last_error)) == (Status.CANCELLED, "x")


@pytest.mark.parametrize("add", ["schedule", "schedule_at_fixed_rate", "schedule_with_fixed_delay"])
@pytest.mark.parametrize("fails", [False, True])
def test_promise_10_job_that_cancels_itself_does_not_come_back(agenda, clock, ran, caplog, add, fails):  # B110
    def task():
        ran.append(job.cancel())
        if fails:
            raise OSError("after the cancel")

    timing = () if add == "schedule" else (0, 1)
    job = getattr(agenda, add)(task, *timing, retry=FixedBackoff(9, delay=0))
    assert agenda.run_due() == 1
    clock.advance(100)
    assert agenda.run_due() == 0
    assert ran == [True]
    assert job.status is Status.CANCELLED
    assert caplog.records == []  # its outcome changes nothing


def test_promise_10_cancel_twice_is_false_the_second_time(agenda):
    job = agenda.schedule(int, delay=1)
    assert [job.cancel(), job.cancel(), agenda.cancel(job), agenda.cancel(job.id)] == [True, False, False, False]


def test_promise_10_cancel_of_an_ended_job_is_false_and_changes_nothing(agenda, caplog):  # B104
    done = agenda.schedule(int)
    failed = agenda.schedule(int, args=("x",))
    agenda.run_due()
    assert not agenda.cancel(done)
    assert not agenda.cancel(failed)
    assert (done.status, failed.status) == (Status.SUCCEEDED, Status.FAILED)


@pytest.mark.parametrize("unknown", ["nobody", 10**6, -1, 2**63 - 1, 2**63, 10**30, -(10**30)])
def test_promise_10_cancel_of_an_unknown_id_is_false(agenda, unknown):
    agenda.schedule(int, delay=1)
    assert agenda.cancel(unknown) is False


def test_promise_10_cancel_of_a_job_of_another_agenda_is_false(stack, clock):
    job = stack.Agenda(clock).schedule(int, delay=1)
    assert stack.Agenda(clock).cancel(job) is False
    assert job.status is Status.SCHEDULED


def test_promise_10_stale_id_never_touches_a_newer_job(stack, clock):
    agenda = stack.Agenda(clock, history=0)
    old = agenda.schedule(int, delay=1)
    stale = old.id
    agenda.cancel(old)
    for _ in range(100):
        new = agenda.schedule(int, delay=1)  # takes the slot over
        assert new.id != stale
        assert agenda.cancel(stale) is False
        assert agenda.cancel(old) is False
        assert agenda.reschedule(stale, delay=9) is False
        assert new.status is Status.SCHEDULED
        agenda.cancel(new)


def test_promise_10_stale_handle_of_a_given_id_never_touches_the_newer_job(agenda):
    old = agenda.schedule(int, id="a")
    agenda.run_due()
    new = agenda.schedule(int, delay=1, id="a")
    assert agenda.cancel(old) is False
    assert (old.status, new.status, agenda.status("a")) == (Status.SUCCEEDED, Status.SCHEDULED, Status.SCHEDULED)


def test_promise_10_every_way_of_asking_agrees_after_a_cancel(agenda):  # B116
    by_handle, by_id, by_name = (
        agenda.schedule(int, delay=1),
        agenda.schedule(int, delay=1),
        agenda.schedule(int, id="n"),
    )
    assert by_handle.cancel()
    assert agenda.cancel(by_id.id)
    assert agenda.cancel("n")
    for job in (by_handle, by_id, by_name):
        assert agenda.status(job) is agenda.status(job.id) is job.status is Status.CANCELLED
        assert not agenda.cancel(job)
    assert (agenda.jobs(), agenda.next_run_at(), agenda.stats()[:3]) == ([], None, (0, 0, 0))
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"


def test_cancel_all_leaves_nothing_behind_and_new_jobs_work(agenda, clock):  # B113
    jobs = [agenda.schedule(int, delay=k) for k in range(1_000)]
    assert all(job.cancel() for job in jobs)
    assert repr(agenda) == "<Agenda: 0 waiting, 0 ready, 0 running>"
    agenda.schedule(int, delay=1)
    clock.advance(1_000)
    assert agenda.run_due() == 1


# ---------------------------------------------------------------- promise 10: released at once


def with_things(agenda, how):
    """A job that refers to four things, and weak references to these."""
    task, arg, kwarg, policy = things = [Thing() for _ in range(4)]
    job = how(agenda, task, args=(arg,), kwargs={"k": kwarg}, retry=policy)
    return job, [weakref.ref(thing) for thing in things]


HOW = {
    "one-off": lambda agenda, task, **rest: agenda.schedule(task, delay=0, **rest),
    "rate": lambda agenda, task, **rest: agenda.schedule_at_fixed_rate(task, initial_delay=0, period=1, **rest),
    "delay": lambda agenda, task, **rest: agenda.schedule_with_fixed_delay(task, initial_delay=0, delay=1, **rest),
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("ready", [False, True])
def test_promise_10_cancel_releases_task_arguments_and_policy_at_once(agenda, no_gc, how, ready):  # B132, B134
    job, things = with_things(agenda, how)
    if ready:
        agenda.take_due(limit=0)
    assert all(thing() is not None for thing in things)
    job.cancel()
    assert [thing() for thing in things] == [None] * 4


def test_promise_10_cancel_during_the_run_releases_when_the_run_is_over(agenda, no_gc):
    job, things = with_things(agenda, HOW["rate"])
    agenda.take_due()
    job.cancel()
    assert [thing() for thing in things] == [None] * 4
    agenda.finished(job)


def test_end_of_a_job_releases_task_arguments_and_policy(stack, clock, no_gc):  # B135, B137
    agenda = stack.Agenda(clock, history=0)
    job, things = with_things(agenda, HOW["one-off"])
    agenda.run_due()
    assert [thing() for thing in things] == [None] * 4
    assert job.status is Status.SUCCEEDED


def test_job_whose_task_refers_to_the_agenda_is_freed_by_reference_counts(stack, clock, no_gc):  # B135
    agenda = stack.Agenda(clock)
    thing = Thing()
    dead = weakref.ref(thing)
    agenda.schedule(lambda agenda, thing: None, args=(agenda, thing))
    del thing
    assert dead() is not None
    agenda.run_due()
    assert dead() is None


def test_agenda_in_a_ring_with_its_jobs_is_collected(stack, clock):
    agenda = stack.Agenda(clock)
    thing = Thing()
    thing.job = agenda.schedule(thing, delay=1, args=(agenda, thing))
    dead = weakref.ref(thing)
    del thing, agenda
    gc.collect()
    assert dead() is None


# ---------------------------------------------------------------- promise 11


def test_promise_11_cancelled_and_rescheduled_jobs_do_not_pile_up(agenda, stack):  # B131
    kept = [agenda.schedule(int, delay=10**6) for _ in range(100)]
    timetable = agenda._tt if stack.name == "pure" else None
    for _ in range(20_000):
        agenda.cancel(agenda.schedule(int, delay=86_400))
    for k in range(20_000):
        agenda.reschedule(kept[k % 100], delay=86_400)
    if timetable is not None:
        timetable.check()
        assert len(timetable._heap) <= 2 * 100 + 2
    assert repr(agenda) == "<Agenda: 100 waiting, 0 ready, 0 running>"


def test_promise_11_cancelled_jobs_do_not_pile_up_in_the_ready_line(stack, clock):
    agenda = stack.Agenda(clock, history=0)
    first = [agenda.schedule(int, priority=k % 3) for k in range(10)]
    agenda.take_due(limit=0)
    for _ in range(5_000):
        job = agenda.schedule(int, priority=1)
        agenda.take_due(limit=0)
        job.cancel()
    assert repr(agenda) == "<Agenda: 0 waiting, 10 ready, 0 running>"
    if stack.name == "pure":
        assert agenda._line._count <= 2 * 10 + 2
        assert len(agenda._tt._slots) == 10
    assert len(agenda.take_due()) == len(first)


# ---------------------------------------------------------------- reschedule


def test_reschedule_of_a_waiting_job_moves_it_behind_equals(agenda, clock):  # B78
    moved, other = agenda.schedule(int, delay=9), agenda.schedule(int, delay=2)
    assert agenda.reschedule(moved, delay=2) is True
    assert (moved.run_at, agenda.next_run_at()) == (2 * SECOND, 2 * SECOND)
    clock.advance(2)
    assert agenda.take_due() == [other, moved]


def test_reschedule_of_a_ready_job_takes_it_back(agenda, clock, ran):
    job = agenda.schedule(ran.append, args=(1,))
    agenda.take_due(limit=0)
    assert agenda.reschedule(job, delay=5) is True
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 0 running>"
    assert agenda.run_due() == 0
    clock.advance(5)
    assert agenda.run_due() == 1
    assert ran == [1]


def test_reschedule_keeps_the_priority(agenda, clock):
    moved, other = agenda.schedule(int, delay=9, priority=5), agenda.schedule(int, delay=1)
    agenda.reschedule(moved, delay=1)
    clock.advance(1)
    assert agenda.take_due() == [moved, other]
    assert moved.priority == 5


def test_reschedule_to_an_instant_takes_at(agenda):
    job = agenda.schedule(int, delay=1)
    assert agenda.reschedule(job, at=77) is True
    assert job.run_at == 77
    assert agenda.reschedule(job, at=10**30) is True
    assert job.run_at == 2**63 - 1


def test_reschedule_of_a_retry_moves_it(agenda, clock, caplog):
    def task():
        if job.attempts == 1:
            raise OSError("once")

    job = agenda.schedule(task, retry=FixedBackoff(2, delay=100))
    agenda.run_due()
    assert agenda.reschedule(job, delay=1) is True
    clock.advance(1)
    assert agenda.run_due() == 1
    assert job.status is Status.SUCCEEDED


def test_reschedule_of_a_running_one_off_is_false(agenda):
    job = agenda.schedule(int)
    agenda.take_due()
    assert agenda.reschedule(job, delay=1) is False
    agenda.finished(job)
    assert job.status is Status.SUCCEEDED


def test_reschedule_of_an_ended_or_unknown_job_is_false(agenda):
    done = agenda.schedule(int)
    agenda.run_due()
    gone = agenda.schedule(int, delay=1)
    gone.cancel()
    for job in (done, gone, done.id, "nobody", 10**30, -1):
        assert agenda.reschedule(job, delay=1) is False
    assert agenda.next_run_at() is None


# ---------------------------------------------------------------- ids and the history


def test_automatic_ids_are_ints_and_never_come_again(stack, clock):
    agenda = stack.Agenda(clock, history=0)
    seen = set()
    for _ in range(3_000):
        job = agenda.schedule(int, delay=1)
        assert type(job.id) is int
        seen.add(job.id)
        job.cancel()
    assert len(seen) == 3_000


def test_given_id_of_a_job_that_waits_or_runs_is_refused(agenda):
    agenda.schedule(int, delay=1, id="a")
    agenda.schedule(int, id="b")
    assert [job.id for job in agenda.take_due()] == ["b"]
    for name in "ab":
        with pytest.raises(DuplicateJobId) as caught:
            agenda.schedule(int, id=name)
        assert str(caught.value) == f"id must be that of no job that has not ended, got {name!r}"
        assert isinstance(caught.value, ValueError)
    assert repr(agenda) == "<Agenda: 1 waiting, 0 ready, 1 running>"


def test_given_id_of_a_job_cancelled_while_it_runs_is_free_again(agenda):
    old = agenda.schedule(int, id="a")
    agenda.take_due()
    old.cancel()
    new = agenda.schedule(int, delay=1, id="a")
    agenda.finished(old)
    assert agenda.status("a") is new.status is Status.SCHEDULED


@pytest.mark.parametrize("end", ["run", "fail", "cancel"])
@pytest.mark.parametrize("history", [0, 1, 10])
def test_given_id_is_free_again_after_the_end(stack, clock, caplog, end, history):
    agenda = stack.Agenda(clock, history=history)
    for _ in range(5):
        job = agenda.schedule(int, args=("x",) if end == "fail" else (), id="a")
        assert agenda.status("a") is Status.SCHEDULED
        if end == "cancel":
            agenda.cancel("a")
        else:
            agenda.run_due()
        assert job.id == "a"


def test_empty_id_is_an_id(agenda):
    job = agenda.schedule(int, delay=1, id="")
    assert job.id == ""
    assert agenda.cancel("")


@pytest.mark.parametrize("history", [0, 1, 3])
def test_history_forgets_the_oldest_ended_job_beyond_its_bound(stack, clock, history):
    agenda = stack.Agenda(clock, history=history)
    jobs = [agenda.schedule(int, id=f"n{k}" if k % 2 else None) for k in range(8)]
    assert agenda.run_due() == 8
    for k, job in enumerate(jobs):
        assert job.status is Status.SUCCEEDED  # a handle still tells
        if k >= 8 - history:
            assert agenda.status(job.id) is Status.SUCCEEDED
            continue
        for call in (agenda.status, agenda.last_error, agenda.finished):
            with pytest.raises(UnknownJobId) as caught:
                call(job.id)
            assert str(caught.value) == f"job must be known, got {job.id!r}"
            assert isinstance(caught.value, KeyError)


def test_history_keeps_every_job_that_has_not_ended(stack, clock):
    agenda = stack.Agenda(clock, history=0)
    waiting = agenda.schedule(int, delay=1)
    for _ in range(100):
        agenda.schedule(int)
    agenda.run_due()
    assert agenda.status(waiting.id) is Status.SCHEDULED


def test_history_does_not_forget_the_newer_job_of_an_id(stack, clock):
    agenda = stack.Agenda(clock, history=1)
    agenda.schedule(int, id="a")
    agenda.run_due()
    new = agenda.schedule(int, delay=1, id="a")
    agenda.schedule(int)
    agenda.run_due()  # the first "a" is forgotten for this one
    assert agenda.status("a") is new.status is Status.SCHEDULED


def test_status_and_last_error_by_id_are_those_of_the_handle(agenda, caplog):
    job = agenda.schedule(int, args=("x",), id="a")
    agenda.run_due()
    assert agenda.status("a") is agenda.status(job) is job.status is Status.FAILED
    assert agenda.last_error("a") is agenda.last_error(job) is job.last_error
    assert isinstance(job.last_error, ValueError)


def test_status_of_a_handle_of_another_agenda_is_unknown(stack, clock):
    job = stack.Agenda(clock).schedule(int, delay=1, id="a")
    with pytest.raises(UnknownJobId) as caught:
        stack.Agenda(clock).status(job)
    assert str(caught.value) == f"job must be known, got {job!r}"


@pytest.mark.parametrize("job", [None, 1.0, True, b"a", object])
@pytest.mark.parametrize("method", ["cancel", "reschedule", "status", "last_error", "finished"])
def test_job_that_is_no_job_and_no_id_is_refused(agenda, method, job):
    with pytest.raises(TypeError) as caught:
        getattr(agenda, method)(job)
    assert str(caught.value) == f"job must be a Job or its id (str or int), got {job!r}"


def test_str_subclass_as_an_id_is_refused_everywhere(agenda):
    class Name(str):
        __slots__ = ()

        def __hash__(self):
            raise AssertionError("hashed")

    with pytest.raises(TypeError) as caught:
        agenda.schedule(int, id=Name("a"))
    assert str(caught.value) == "id must be a str or None, got 'a'"
    with pytest.raises(TypeError):
        agenda.cancel(Name("a"))
