"""APScheduler's job store and background scheduler on the timetable."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from datetime import UTC, datetime, timedelta, timezone
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from apscheduler import events
from apscheduler.executors.debug import DebugExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers import background, base
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import given
from hypothesis import strategies as st

from nextdue.compat import apscheduler as ours

PATIENCE = 60
START = datetime(2024, 5, 1, 12, tzinfo=UTC)


def after(seconds):
    return START + timedelta(seconds=seconds)


def a_job(name, when):
    """What a store looks at of a job."""
    job = object.__new__(Job)
    job.id, job.next_run_time = name, when
    return job


def noop():
    pass


class Broken:
    """A trigger that fails."""

    def __init__(self, trigger):
        self.trigger = trigger

    def get_next_fire_time(self, previous, now):
        if previous is None:
            return self.trigger.get_next_fire_time(previous, now)
        return previous < previous.replace(tzinfo=None)  # a naive time and an aware one


@pytest.fixture
def store(stack, monkeypatch):
    monkeypatch.setattr(ours, "Timetable", stack.Timetable)
    return ours.JobStore()


def ids(jobs):
    return [job.id for job in jobs]


# ---------------------------------------------------------------- the store

instants = (
    st.none() | st.integers(0, 8).map(after) | st.integers(0, 8).map(lambda us: START + timedelta(microseconds=us))
)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "update", "remove", "due", "next", "all"]), st.integers(0, 5), instants),
    max_size=40,
)


@given(steps=steps)
def test_store_answers_as_memory_job_store_does(steps):
    one, other = ours.JobStore(), MemoryJobStore()

    def ask(store, step, name, when):
        try:
            match step:
                case "add" | "update":
                    return getattr(store, f"{step}_job")(a_job(name, when))
                case "remove":
                    return store.remove_job(name)
                case "due":  # the clock may go back
                    return ids(store.get_due_jobs(when or START))
                case "next":
                    return store.get_next_run_time()
                case "all":
                    return ids(store.get_all_jobs())
        except KeyError as error:
            return repr(error)

    for step, k, when in steps:
        assert ask(one, step, f"job{k}", when) == ask(other, step, f"job{k}", when)
    assert ids(one.get_all_jobs()) == ids(other.get_all_jobs())


def test_equal_times_are_ordered_by_id_and_paused_jobs_come_last(store):
    for name, when in (("c", after(1)), ("b", None), ("d", after(0)), ("a", after(1)), ("A", None)):
        store.add_job(a_job(name, when))
    assert ids(store.get_all_jobs()) == ["d", "a", "c", "A", "b"]
    assert ids(store.get_due_jobs(after(1))) == ["d", "a", "c"]
    assert ids(store.get_due_jobs(after(0))) == ["d"]
    assert store.get_next_run_time() == after(0)


def test_due_jobs_stay_due_until_they_are_updated_or_removed(store):
    for k in range(4):
        store.add_job(a_job(f"job{k}", after(k)))
    assert ids(store.get_due_jobs(after(2))) == ids(store.get_due_jobs(after(2))) == ["job0", "job1", "job2"]
    store.update_job(a_job("job0", after(9)))
    store.remove_job("job1")
    store.update_job(a_job("job2", after(2)))  # the same time: still due
    assert ids(store.get_due_jobs(after(2))) == ["job2"]
    store.update_job(a_job("job2", None))
    assert store.get_due_jobs(after(2)) == []
    assert store.get_next_run_time() == after(3)


def test_microseconds_count_in_every_year(store):
    last = datetime.max.replace(tzinfo=UTC)
    first = datetime.min.replace(tzinfo=UTC)
    times = [first, first + timedelta(microseconds=1), after(0), last - timedelta(microseconds=1), last]
    for k, when in reversed(list(enumerate(times))):
        store.add_job(a_job(f"job{k}", when))
    assert ids(store.get_all_jobs()) == [f"job{k}" for k in range(5)]
    for k, when in enumerate(times):
        assert ids(store.get_due_jobs(when)) == [f"job{j}" for j in range(k + 1)]
    assert store.get_next_run_time() == first


def test_the_repeated_hour_is_two_hours(store):
    zone = ZoneInfo("Europe/Helsinki")
    second = datetime(2017, 10, 29, 3, 30, fold=1, tzinfo=zone)
    store.add_job(a_job("second", second))
    store.add_job(a_job("first", second.replace(fold=0)))
    assert ids(store.get_due_jobs(second - timedelta(minutes=1))) == []  # wall time: fold is lost, 03:29 the first
    assert ids(store.get_due_jobs(second.replace(fold=0))) == ["first"]
    assert ids(store.get_due_jobs(second)) == ["first", "second"]


def test_a_naive_time_is_taken_for_utc(store):
    store.add_job(a_job("naive", datetime(2024, 5, 1, 12)))
    store.add_job(a_job("aware", datetime(2024, 5, 1, 13, 59, tzinfo=timezone(timedelta(hours=2)))))
    assert ids(store.get_due_jobs(START)) == ["aware", "naive"]


def test_an_id_is_used_once_and_an_unknown_one_is_refused(store):
    store.add_job(a_job("job", after(1)))
    with pytest.raises(ConflictingIdError, match=r"^'Job identifier \(job\) conflicts with an existing job'$"):
        store.add_job(a_job("job", after(2)))
    for call in (lambda: store.update_job(a_job("other", after(1))), lambda: store.remove_job("other")):
        with pytest.raises(JobLookupError, match=r"^'No job by the id of other was found'$"):
            call()
    assert store.lookup_job("other") is None
    assert store.lookup_job("job").next_run_time == after(1)


def test_what_is_no_time_leaves_the_store_as_it_was(store):
    store.add_job(a_job("job", after(1)))
    for call in (store.add_job, store.update_job):
        with pytest.raises(AttributeError):
            call(a_job("job" if call == store.update_job else "new", "tomorrow"))
    assert ids(store.get_all_jobs()) == ids(store.get_due_jobs(after(1))) == ["job"]


def test_a_removed_job_is_released_and_leaves_no_memory(store):  # B131, B132
    job = a_job("job", after(5))
    gone = weakref.ref(job)
    gc.disable()
    try:
        store.add_job(job)
        store.remove_job("job")
        del job
        assert gone() is None
    finally:
        gc.enable()

    def churn(count):
        for _ in range(count):
            store.add_job(a_job("job", after(86_400)))
            store.update_job(a_job("job", after(86_401)))
            store.remove_job("job")
        return store._timetable.nbytes

    settled = churn(3000)
    assert churn(20_000) <= settled


def test_remove_all_jobs_and_shutdown_empty_the_store_for_new_ones(store):  # B113
    for empty in (store.remove_all_jobs, store.shutdown):
        for k in range(10):
            store.add_job(a_job(f"job{k}", after(k) if k % 3 else None))
        store.get_due_jobs(after(4))
        empty()
        assert store.get_all_jobs() == store.get_due_jobs(after(99)) == []
        assert store.get_next_run_time() is None


def test_update_swaps_the_job_itself(store):
    store.add_job(a_job("job", after(1)))
    for when in (after(1), after(2), None, None, after(3)):
        swapped = a_job("job", when)
        store.update_job(swapped)
        assert store.lookup_job("job") is swapped
        assert store.get_all_jobs()[0] is swapped


# ---------------------------------------------------------------- the scheduler


class Time:
    """Stands in for the `datetime` that APScheduler asks for the time."""

    def __init__(self):
        self.at = START

    def now(self, zone=None):
        return self.at.astimezone(zone)


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr("apscheduler.schedulers.base.datetime", time)
    monkeypatch.setattr("apscheduler.executors.base.datetime", time)
    return time


class Bell:
    """Stands in for the event of a scheduler: its thread sleeps until the shutdown, and each ring counts."""

    def __init__(self, scheduler):
        self.scheduler, self.event, self.rung = scheduler, scheduler._event, 0

    def set(self):
        self.rung += 1
        if not self.scheduler.running:
            self.event.set()

    def wait(self, timeout):
        self.event.wait()

    def clear(self):
        self.event.clear()


@pytest.fixture
def make(time):
    """Make a scheduler whose passes are called by hand."""
    made = []

    def make(cls=ours.BackgroundScheduler, **options):
        options.setdefault("executors", {"default": DebugExecutor()})
        scheduler = cls(timezone=UTC, **options)
        scheduler.start(paused=True)
        scheduler.state = base.STATE_RUNNING
        scheduler._event = Bell(scheduler)
        made.append(scheduler)
        return scheduler

    yield make
    for scheduler in made:
        if scheduler.running:
            scheduler.shutdown()


def every(seconds, **options):
    return IntervalTrigger(seconds=seconds, start_date=START, timezone=UTC, **options)


def told(scheduler):
    """Everything that listeners are told, as it comes."""
    out = []

    def listen(event):
        times = getattr(event, "scheduled_run_times", None) or getattr(event, "scheduled_run_time", None)
        out.append((event.code, getattr(event, "job_id", event), times, getattr(event, "retval", None)))

    scheduler.add_listener(listen)
    return out


@pytest.mark.parametrize("coalesce", [True, False])
@pytest.mark.parametrize("executor", ["default", "nowhere"])
def test_passes_are_apscheduler_s_event_for_event(make, time, caplog, coalesce, executor):
    stories = []
    for cls in (background.BackgroundScheduler, ours.BackgroundScheduler):
        time.at = START
        caplog.clear()
        scheduler = make(cls)
        story = told(scheduler)
        scheduler.add_jobstore(cls()._create_default_jobstore(), "other")
        common = {"coalesce": coalesce, "misfire_grace_time": 5}
        scheduler.add_job(pow, every(2), (2, 3), id="b", **common)
        scheduler.add_job(pow, every(2), (2, 4), id="a", **common)
        scheduler.add_job(divmod, every(3), (1, 0), id="fails", **common)
        scheduler.add_job(noop, DateTrigger(after(4), UTC), id="once", jobstore="other", executor=executor)
        scheduler.add_job(noop, every(7, end_date=after(14)), id="ends", jobstore="other", **common)
        waits = []
        for seconds in (0, 1, 2, 2, 4, 9, 20, 21, 100):
            time.at = after(seconds)
            waits.append(scheduler._process_jobs())
        scheduler.pause_job("a")
        time.at = after(150)
        waits.append(scheduler._process_jobs())
        scheduler.resume_job("a")
        scheduler.reschedule_job("b", trigger=every(50))
        scheduler.remove_job("fails")
        waits += [scheduler._process_jobs(), ids(scheduler.get_jobs())]
        scheduler.pause()
        waits.append(scheduler._process_jobs())
        records = [(record.levelname, record.getMessage()) for record in caplog.records]
        stories.append((waits, [event for event in story if event[0] > events.EVENT_JOBSTORE_REMOVED], records))
    assert stories[0] == stories[1]
    assert {event[0] for event in stories[1][1]} >= {events.EVENT_JOB_EXECUTED, events.EVENT_JOB_ERROR}


def test_every_job_in_its_grace_time_runs_once_whatever_is_added(make, time):  # B149
    scheduler, ran = make(), []
    for k in (1, 2):
        scheduler.add_job(ran.append, DateTrigger(after(-k), UTC), (k,), misfire_grace_time=3600)
    scheduler._process_jobs()
    scheduler.add_job(ran.append, DateTrigger(after(-3), UTC), (3,), misfire_grace_time=3600)
    scheduler._process_jobs()
    scheduler._process_jobs()
    assert ran == [2, 1, 3]


def test_a_slot_is_run_at_most_once_however_late_the_passes(make, time):  # B152
    scheduler = make()
    story = told(scheduler)
    scheduler.add_job(noop, every(60), misfire_grace_time=None)
    for seconds in (0, 31, 59, 60, 89, 90, 149, 240, 241, 299, 300, 300):
        time.at = after(seconds)
        scheduler._process_jobs()
    slots = [slot for event in story if event[0] == events.EVENT_JOB_SUBMITTED for slot in event[2]]
    assert slots == [after(0), after(60), after(120), after(240), after(300)]


def test_a_jittered_slot_is_not_run_twice(make, time):  # B152, B158
    class Jittered(IntervalTrigger):
        """Answers one second later each time it is asked."""

        asked = 0

        def get_next_fire_time(self, previous, now):
            Jittered.asked += 1
            return previous and previous + timedelta(seconds=10 + self.asked)

    scheduler = make()
    scheduler.add_job(noop, Jittered(timezone=UTC), id="job", next_run_time=START, misfire_grace_time=None)
    scheduler._process_jobs()
    assert Jittered.asked == 1
    assert scheduler.get_job("job").next_run_time == after(11)


def test_after_remove_returns_no_run_starts(make, time):  # B109
    scheduler, ran = make(), []
    scheduler.add_job(ran.append, every(1), (1,), id="job", misfire_grace_time=None)
    scheduler.add_listener(lambda event: scheduler.remove_job("job"), events.EVENT_JOB_SUBMITTED)
    for seconds in range(4):
        time.at = after(seconds)
        scheduler._process_jobs()
    assert ran == [1]


def test_a_job_that_removes_itself_on_the_scheduler_s_thread_stays_removed(make, time):  # B94, B110
    scheduler, ran = make(), []

    def task(name):
        ran.append(name)
        scheduler.remove_job(name)

    scheduler.add_job(task, every(1), ("repeating",), id="repeating", misfire_grace_time=None)
    scheduler.add_job(task, DateTrigger(START, UTC), ("once",), id="once", misfire_grace_time=None)
    for seconds in (0, 1, 2):
        time.at = after(seconds)
        scheduler._process_jobs()
    assert sorted(ran) == ["once", "repeating"]
    assert scheduler.get_jobs() == []


@pytest.mark.parametrize("all_at_once", [False, True])
def test_jobs_that_another_of_their_time_removes_do_not_run(make, time, all_at_once):  # B109, B112
    scheduler, ran = make(), []

    def first():
        ran.append("first")
        if all_at_once:
            scheduler.remove_all_jobs()
        else:
            for k in range(9):
                scheduler.remove_job(f"sibling{k}")

    scheduler.add_job(first, every(100), id="first")
    for k in range(9):
        scheduler.add_job(ran.append, every(100), (k,), id=f"sibling{k}")
    assert scheduler._process_jobs() == (None if all_at_once else 100)
    assert ran == ["first"]


def test_a_job_that_reschedules_itself_on_the_scheduler_s_thread_follows_its_new_trigger(make, time):
    scheduler, ran = make(), []

    def task():
        ran.append(time.at)
        scheduler.reschedule_job("job", trigger=every(50))

    scheduler.add_job(task, every(1), id="job", misfire_grace_time=None)
    for seconds in (0, 1, 49, 50, 51):
        time.at = after(seconds)
        scheduler._process_jobs()
    assert ran == [START, after(50)]


def test_every_way_of_removing_a_job_agrees(make, time):  # B116
    scheduler = make()
    for remove in (
        lambda job: job.remove(),
        lambda job: scheduler.remove_job(job.id),
        lambda job: scheduler.remove_job(job.id, "default"),
    ):
        job = scheduler.add_job(noop, every(60), id="job")
        remove(job)
        assert scheduler.get_jobs() == []
        assert scheduler.get_job("job") is None
        assert scheduler._jobstores["default"].get_next_run_time() is None
        with pytest.raises(JobLookupError):
            remove(job)


def test_only_an_earlier_job_wakes_the_scheduler(make, time):  # promise 12
    scheduler = make()
    bell = scheduler._event
    scheduler._process_jobs()
    scheduler.add_job(noop, every(60), next_run_time=after(60))
    assert bell.rung == 1
    assert scheduler._process_jobs() == 60
    scheduler.add_job(noop, every(60), next_run_time=after(61))
    scheduler.add_job(noop, every(60), next_run_time=None)
    assert bell.rung == 1
    scheduler.add_job(noop, every(60), next_run_time=after(59))
    assert bell.rung == 2
    scheduler.wakeup()
    assert bell.rung == 3


def test_a_job_added_by_a_job_wakes_the_scheduler_for_another_look(make, time):  # B75
    scheduler = make()
    first = scheduler._jobstores["default"]
    scheduler.add_jobstore(ours.JobStore(), "other")
    scheduler.add_job(lambda: scheduler.add_job(noop, next_run_time=after(5)), next_run_time=START, jobstore="other")
    before = scheduler._event.rung
    scheduler._process_jobs()
    assert first.get_next_run_time() == after(5)
    assert scheduler._event.rung == before + 1


def test_a_wait_is_never_longer_than_the_platform_allows(make, time, monkeypatch):  # B42, B46
    monkeypatch.setattr("apscheduler.schedulers.base.TIMEOUT_MAX", 4_294_967)
    scheduler, ran = make(), []
    scheduler.add_job(ran.append, DateTrigger(after(400 * 86_400), UTC), (1,))
    assert scheduler._process_jobs() == 4_294_967
    assert ran == []
    time.at = after(400 * 86_400)
    scheduler._process_jobs()
    assert ran == [1]


def test_a_store_that_fails_is_asked_again(make, time, caplog):  # B88
    scheduler = make(jobstore_retry_interval=3)
    store = scheduler._jobstores["default"]
    scheduler.add_job(noop, every(60), next_run_time=after(0))
    store.get_due_jobs = Mock(side_effect=OSError("away"))
    assert scheduler._process_jobs() == 3
    assert "Error getting due jobs from job store 'default': away" in caplog.text
    del store.get_due_jobs
    time.at = after(0.5)
    assert scheduler._process_jobs() == 59.5


@pytest.mark.parametrize("kind", [ours.JobStore, MemoryJobStore])
def test_a_store_that_takes_no_next_run_time_has_each_slot_run_once(make, time, caplog, kind):  # B190
    scheduler, ran = make(jobstores={"default": kind()}, jobstore_retry_interval=3), []
    store = scheduler._jobstores["default"]
    update, remove = store.update_job, store.remove_job
    scheduler.add_job(lambda: ran.append(("a", time.at)), every(10), id="a")
    scheduler.add_job(lambda: ran.append(("once", time.at)), DateTrigger(START, UTC), id="once")
    scheduler.add_job(lambda: ran.append(("well", time.at)), every(2), id="well", next_run_time=after(1))
    store.update_job = lambda job: away() if job.id == "a" else update(job)
    store.remove_job = away = Mock(side_effect=OSError)
    assert scheduler._process_jobs() == 1  # not later for what is broken
    for seconds in (1, 3):
        time.at = after(seconds)
        assert scheduler._process_jobs() == 2
    assert away.call_count == caplog.text.count("Error updating job") == 6
    store.update_job, store.remove_job = update, remove
    for seconds in (5, 7, 9, 10):
        time.at = after(seconds)
        scheduler._process_jobs()
    assert [at for name, at in ran if name == "a"] == [START, after(10)]
    assert [at for name, at in ran if name == "once"] == [START]
    assert [at for name, at in ran if name == "well"] == [after(k) for k in (1, 3, 5, 7, 9)]
    assert {*ids(scheduler.get_jobs())} == {"a", "well"}


def test_a_store_that_fails_to_say_what_comes_next_is_asked_again(make, time, caplog):  # B190
    scheduler = make(jobstore_retry_interval=3)
    scheduler._jobstores["default"].get_next_run_time = Mock(side_effect=OSError("away"))
    assert scheduler._process_jobs() == 3
    assert "Error getting the next run time from job store 'default': away" in caplog.text


def test_a_job_whose_trigger_fails_is_paused_and_the_others_go_on(make, time, caplog):  # B38, B196
    scheduler, ran = make(), []
    for name, trigger in (("broken", Broken(every(1))), ("well", every(1))):
        scheduler.add_job(ran.append, DateTrigger(START, UTC), (name,), id=name, misfire_grace_time=None)
        scheduler.get_job(name).trigger = trigger
    for seconds in (0, 1, 2):
        time.at = after(seconds)
        assert scheduler._process_jobs() == 1
    assert ran == ["broken", "well", "well", "well"]
    assert scheduler.get_job("broken").next_run_time is None
    assert "-- pausing the job" in caplog.text
    scheduler.reschedule_job("broken", trigger=every(1))
    time.at = after(3)
    scheduler._process_jobs()
    assert sorted(ran[4:]) == ["broken", "well"]


def test_a_run_that_waited_in_the_pool_for_longer_than_its_grace_is_told_of_as_missed(make, time):  # B156
    scheduler = make(executors={"default": ours.ThreadPoolExecutor(2)})
    story, going, go = told(scheduler), threading.Semaphore(0), threading.Event()
    for k in range(2):
        scheduler.add_job(lambda: going.release() or go.wait(PATIENCE), DateTrigger(START, UTC), id=f"busy{k}")
    scheduler.add_job(noop, DateTrigger(START, UTC), id="third", misfire_grace_time=60)
    scheduler._process_jobs()
    for _ in range(2):
        assert going.acquire(timeout=PATIENCE)
    time.at = after(61)
    go.set()
    scheduler.shutdown()
    assert [event[0] for event in story if event[1] == "third"][-1] == events.EVENT_JOB_MISSED


def test_a_job_of_tomorrow_that_is_rescheduled_counts_from_now(make, time):  # B121
    scheduler = make()
    scheduler.add_job(noop, IntervalTrigger(days=1, start_date=after(86_400), timezone=UTC), id="job")
    time.at = after(5)
    scheduler.reschedule_job("job", trigger=every(20))
    assert scheduler._process_jobs() == 15
    assert scheduler.get_job("job").next_run_time == after(20)


def test_a_run_a_little_over_its_period_leaves_the_next_instance_alone(make, time):  # B169
    scheduler = make(executors={"default": ours.ThreadPoolExecutor(10)})
    going, go, starts = threading.Semaphore(0), threading.Event(), []

    def task():
        starts.append(time.at)
        going.release()
        go.wait(PATIENCE)

    scheduler.add_job(task, every(60), max_instances=10)
    for seconds in (0, 60, 65, 120):
        time.at = after(seconds)
        scheduler._process_jobs()
        if seconds != 65:
            assert going.acquire(timeout=PATIENCE)
    go.set()
    scheduler.shutdown()
    assert starts == [START, after(60), after(120)]


def test_max_instances_holds(make, time):
    scheduler = make(executors={"default": ours.ThreadPoolExecutor(2)})
    story = told(scheduler)
    going, go = threading.Semaphore(0), threading.Event()

    def task():
        going.release()
        go.wait(PATIENCE)

    scheduler.add_job(task, every(1), max_instances=2, misfire_grace_time=None)
    for seconds in (0, 1, 2):
        time.at = after(seconds)
        scheduler._process_jobs()
    assert going.acquire(timeout=PATIENCE)
    assert going.acquire(timeout=PATIENCE)
    go.set()
    scheduler.shutdown()
    codes = [event[0] for event in story]
    assert codes.count(events.EVENT_JOB_SUBMITTED) == 2
    assert codes.count(events.EVENT_JOB_MAX_INSTANCES) == 1
    assert codes.count(events.EVENT_JOB_EXECUTED) == 2


@pytest.mark.realtime
def test_a_background_scheduler_runs_jobs_and_starts_again_after_a_shutdown():  # B203
    scheduler = ours.BackgroundScheduler(timezone=UTC)
    ran = threading.Event()
    scheduler.add_job(ran.set)  # pending
    for _ in range(2):
        scheduler.start()
        assert type(scheduler._jobstores["default"]) is ours.JobStore
        assert type(scheduler._executors["default"]) is ours.ThreadPoolExecutor
        assert ran.wait(PATIENCE)
        scheduler.shutdown()
        ran.clear()
        scheduler.add_job(ran.set)


@pytest.mark.realtime
def test_shutdown_waits_for_what_was_submitted_and_may_be_told_not_to():  # B200
    for wait in (True, False):
        scheduler = ours.BackgroundScheduler(timezone=UTC)
        scheduler.start()
        going, go, done = threading.Event(), threading.Event(), threading.Event()

        def task(going=going, go=go, done=done):
            going.set()
            go.wait(PATIENCE)
            done.set()

        scheduler.add_job(task)
        assert going.wait(PATIENCE)
        if wait:
            threading.Timer(0.01, go.set).start()
        scheduler.shutdown(wait=wait)
        assert done.is_set() is wait
        go.set()
        assert done.wait(PATIENCE)


def test_a_listener_on_the_scheduler_s_thread_may_shut_it_down(caplog):  # B127
    scheduler, done = ours.BackgroundScheduler(timezone=UTC), threading.Event()

    def listen(event):
        scheduler.shutdown()
        done.set()

    scheduler.add_listener(listen, events.EVENT_JOB_SUBMITTED)
    scheduler.add_job(noop)
    scheduler.start()
    thread = scheduler._thread
    assert done.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert "Error notifying listener" not in caplog.text


def test_jobs_may_use_the_scheduler_while_a_shutdown_waits_for_them():  # B127
    scheduler, going, go, found = ours.BackgroundScheduler(timezone=UTC), threading.Event(), threading.Event(), []

    def task():
        going.set()
        go.wait(PATIENCE)
        found.append(scheduler.get_job("job"))
        scheduler.wakeup()

    scheduler.add_job(task, id="job")
    scheduler.start()
    assert going.wait(PATIENCE)
    executor, waits = scheduler._executors["default"], threading.Event()
    shutdown = executor.shutdown
    executor.shutdown = lambda wait: waits.set() or shutdown(wait)
    thread = threading.Thread(target=scheduler.shutdown, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE)
    go.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == [None]


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_an_error_thrown_into_the_scheduler_s_thread_does_not_end_it(caplog, error):  # B92
    scheduler = ours.BackgroundScheduler(timezone=UTC)
    scheduler.start()
    thread = scheduler._thread
    for _ in range(5):
        ident, thrown, ran = ctypes.c_ulong(thread.ident), ctypes.py_object(error), threading.Event()
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, thrown) == 1  # told as it wakes
        scheduler.add_job(ran.set)
        assert ran.wait(PATIENCE)
    assert thread.is_alive()
    scheduler.shutdown()


@pytest.mark.parametrize("daemon", [True, False])
def test_exit_with_a_scheduler_that_was_not_shut_down_is_quiet(daemon):  # B206
    program = f"""
        import atexit, logging, threading, time
        from apscheduler.executors.pool import ThreadPoolExecutor
        from nextdue.compat.apscheduler import BackgroundScheduler
        logging.basicConfig(level=logging.ERROR)
        ran = threading.Semaphore(0)
        def end():
            for _ in range(50):
                ran.acquire()
            print("ends")
            scheduler.shutdown()
        scheduler = BackgroundScheduler(daemon={daemon})
        scheduler.add_executor(ThreadPoolExecutor(), "theirs")
        for executor in ("default", "theirs"):
            scheduler.add_job(ran.release, "interval", seconds=0.001, max_instances=9, executor=executor)
        scheduler.start()
        ran.acquire()
        if {daemon}:
            atexit.register(time.sleep, 0.05)
        else:
            threading.Thread(target=end, daemon=True).start()
        print("main ends")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == (["main ends"] if daemon else ["main ends", "ends"])


def test_whatever_a_job_raises_ends_its_run_in_the_books(make, time):  # B170
    scheduler = make(executors={"default": ours.ThreadPoolExecutor(1)})
    story = told(scheduler)
    for k, error in enumerate((ValueError, SystemExit, KeyboardInterrupt)):
        scheduler.add_job(Mock(side_effect=error), id=f"job{k}", name="raises", next_run_time=START)
    scheduler._process_jobs()
    scheduler.shutdown()
    assert [event[1] for event in story if event[0] == events.EVENT_JOB_ERROR] == ["job0", "job1", "job2"]
    assert scheduler._executors["default"]._instances == {}


def test_the_store_is_a_plugin_of_apscheduler():
    scheduler = background.BackgroundScheduler(jobstores={"default": {"type": "nextdue"}})
    assert type(scheduler._jobstores["default"]) is ours.JobStore
    assert repr(scheduler._jobstores["default"]) == "<JobStore>"


def test_without_apscheduler_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "apscheduler"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "nextdue.compat.apscheduler")
    expected = r"^nextdue\.compat\.apscheduler needs apscheduler: pip install 'nextdue\[apscheduler\]'$"
    with pytest.raises(ImportError, match=expected):
        import nextdue.compat.apscheduler  # noqa: F401
