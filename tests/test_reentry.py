"""Calls that come in the middle of other calls on the pure stack: from a signal handler, or from a finalizer.

Its rules are interpreted, under its lock too, and that lock is re-entrant. CPython lets a handler in where a Python
function begins, behind each call of C code, and at the end of a loop's turn; before 3.12 a finalizer comes in where the
collector may start, too: at each creation of what it tracks. At each such point under the lock, in each of the calls
below, each of the others is made. What comes of the two has to be what comes of them one after the other, or of the
second between two rounds of the lock of the first; and the books are whole, at once and in the end.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections import Counter
from functools import cache

import pytest

import nextdue.agenda
from nextdue import FixedBackoff, _heapq_timetable, pure
from nextdue.testing import ManualClock

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="it tells steps late or not at all; 3.11 lets somebody in at more of them"
)

INSIDE = {nextdue.agenda.__file__, _heapq_timetable.__file__}
SECOND = 10**9
TURNS = 1  # of a loop, that are entered


@cache
def points(code):
    """The offsets before which somebody may come in; False: unless a Python function was called there."""
    found = {}
    behind = None
    for step in dis.get_instructions(code):
        if behind is not None:
            found[step.offset] = behind
            behind = None
        if step.opname in ("RESUME", "CALL_FUNCTION_EX"):
            behind = True
        elif step.opname in ("CALL", "CALL_KW"):
            behind = False  # the interpreter goes on with the code of a Python function, and back, without a look
        elif step.opname == "JUMP_BACKWARD" or step.opname in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP"):
            found[step.offset] = True
    return found


class Intruder:
    """Watches a call step by step, and makes another one at one of its points."""

    def __init__(self, lock, at=None, call=None):
        self.lock = lock
        self.at = at
        self.call = call
        self.answer = None
        self.places = []  # of the points: code, offset, whether the lock is held
        self.called = set()  # frames that a Python function has returned to

    def watch(self, outer):
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            return outer()
        finally:
            sys.settrace(before)

    def enter(self, frame, event, _):
        if frame.f_code.co_name != "__init__":  # that of a class is called by C code
            self.called.add(frame.f_back)
        if frame.f_code.co_filename not in INSIDE:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame, event, _):
        if event == "opcode":
            by_function = frame in self.called
            self.called.discard(frame)
            is_point = points(frame.f_code).get(frame.f_lasti)
            if is_point or (is_point is False and not by_function):
                if len(self.places) == self.at:
                    self.answer = self.call()
                self.places.append((frame.f_code, frame.f_lasti, self.lock._is_owned()))
        return self.step


def answer_of(call):
    try:
        answer = call()
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error).__name__
    return "a job" if isinstance(answer, pure.Job) else answer


def differences(world, outer, inner, audit):
    """Make `inner` at each point of `outer`: where the books are torn, or what comes of it comes of no order."""

    def outcome(at):
        here = world()
        if at == "before":
            second, first = answer_of(lambda: inner(here)), answer_of(lambda: outer(here))
        elif at == "after":
            first, second = answer_of(lambda: outer(here)), answer_of(lambda: inner(here))
        else:
            intruder = Intruder(here.lock, at, lambda: answer_of(lambda: inner(here)))
            first = answer_of(lambda: intruder.watch(lambda: outer(here)))
            second = intruder.answer
        try:
            return first, second, audit(here)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    here = world()
    look = Intruder(here.lock)
    answer_of(lambda: look.watch(lambda: outer(here)))
    turns = Counter()
    inside, between = [], []
    was_held = True
    for at, place in enumerate(look.places):
        turns[place] += 1
        is_held = place[2]
        if is_held and turns[place] <= TURNS:
            inside.append(at)
        elif was_held and not is_held:
            between.append(at)
        was_held = is_held
    assert inside
    orders = [outcome("before"), outcome("after")]
    found = {at: got for at in inside if (got := outcome(at)) not in orders}
    if found:
        orders += map(outcome, between)
    return [(look.places[at][0].co_qualname, look.places[at][1], got) for at, got in found.items() if got not in orders]


# ---------------------------------------------------------------- the agenda


class Books:
    """An agenda with a job of each kind, some ready, and what ran."""

    def __init__(self):
        self.clock = ManualClock(SECOND)
        self.agenda = pure.Agenda(self.clock, history=4)
        self.lock = self.agenda._tt.lock
        self.ran = []
        self.jobs = {}
        self.add("due")
        self.add("ready")
        self.add("far", delay=2, id="far")
        self.jobs["rate"] = self.agenda.schedule_at_fixed_rate(self.run, 0, 1, args=("rate",), max_runs=3)
        self.add("first of a key", key="k")
        self.add("second of a key", key="k")
        self.add("retried", retry=FixedBackoff(2, 1))
        self.add("after", after=[self.jobs["due"]])
        self.add("held back").pause()
        self.agenda.take_due(0)  # makes ready

    def add(self, name, **options):
        job = self.jobs[name] = self.agenda.schedule(self.run, args=(name,), **options)
        return job

    def run(self, name):
        self.ran.append((self.clock(), name))
        if name == "retried":
            raise ValueError(name)

    def drive(self):
        """As a driver of its own does."""
        count = 0
        for job in self.agenda.take_due():
            count += 1
            task, args, error = job.task, job.args, None
            try:
                if args:  # else it was cancelled as it was taken, or between the two
                    task(*args)
            except ValueError as raised:
                error = raised
            self.agenda.finished(job, error)
        return count


class Awaited(Books):
    """The same with an idle worker: what is added for now goes straight to the ready line, and wakes it."""

    def __init__(self):
        super().__init__()
        watcher, worker = threading.Lock(), threading.Lock()
        watcher.acquire()
        worker.acquire()
        self.agenda._attach(watcher, 2, 2, True, True)
        self.agenda._idle[0] = worker
        self.agenda._idle_count = 1


def check(agenda):
    """All ways to look agree."""
    table, line = agenda._tt, agenda._line
    table.check()
    jobs = [slot.item for slot in table._slots.values()]
    entries = [entry for level in line._levels.values() for entries in level for entry in entries]
    ready = [entry[2] for entry in entries if line._is_live(entry)]
    assert (line._count, line._waiting()) == (len(entries), len(ready)), "ready line"
    assert len(ready) == len(set(ready)), "ready twice"
    for job in jobs:
        is_waiting, is_ready = table._is_waiting(job._id), job._id in ready
        is_entered = job._entered == nextdue.agenda.ENTERED
        assert is_waiting + is_ready == is_entered, f"{job}: {job._entered}, waits {is_waiting}, ready {is_ready}"
        assert job._state <= nextdue.agenda.RUNNING or job._entered == nextdue.agenda.NOWHERE, f"{job}: {job._entered}"
        is_lost = job._state == nextdue.agenda.SCHEDULED and job._going == 0 and job._entered == nextdue.agenda.NOWHERE
        assert not is_lost, f"{job} is lost"
    places = Counter(job._entered for job in jobs)
    assert agenda._parked == places[nextdue.agenda.PARKED], "parked"
    assert agenda._held_back == places[nextdue.agenda.HELD_BACK], "held back"
    assert agenda._runs == sum(job._going for job in jobs), "runs"
    for lane in agenda._lanes.values():
        its = [job for job in jobs if job._extras is not None and job._extras.lane is lane]
        assert lane.running == sum(job._going for job in its), "running with a key"
        assert lane.jobs == sum(job._state <= nextdue.agenda.RUNNING for job in its) > 0, "jobs with a key"
    assert all(table._item(job._id) is job for job in agenda._names.values()), "names"
    ended = [job._id for job in agenda._ended]
    assert sorted(ended) == sorted(job._id for job in jobs if job._state > nextdue.agenda.RUNNING), "history"
    assert agenda._idle_count >= 0
    stats = agenda.stats()
    assert min(stats[:10]) >= 0, stats
    assert sum(stats.lag.counts.values()) == stats.started, "lags"


def audit_books(books):
    """The books now and in the end; the order of what runs at one instant does not count."""
    check(books.agenda)
    now = {name: (job.status, job.run_at, job.attempts, job.skipped) for name, job in books.jobs.items()}
    waiting, ready, *others = books.agenda.stats()[:10]
    stats = waiting + ready, *others  # who has looked at the clock last has made what is due ready
    books.jobs["held back"].resume()
    for _ in range(8):
        while books.agenda.run_due():
            pass
        check(books.agenda)
        books.clock.advance(1)
    in_the_end = {name: (job.status, job.attempts, job.wait(0)) for name, job in books.jobs.items()}
    return now, stats, sorted(books.ran), in_the_end


CALLS = {
    "schedule": lambda books: books.add("new"),
    "schedule with an id and a key": lambda books: books.add("new", id="new", key="k", delay=1),
    "schedule after another": lambda books: books.add("new", after=[books.jobs["ready"], "far"]),
    "cancel a ready one": lambda books: books.jobs["due"].cancel(),
    "cancel a waiting one": lambda books: books.agenda.cancel("far"),
    "cancel one with a key": lambda books: books.jobs["first of a key"].cancel(),
    "cancel a repeating one": lambda books: books.jobs["rate"].cancel(),
    "reschedule a ready one": lambda books: books.agenda.reschedule(books.jobs["due"], delay=1),
    "reschedule a waiting one": lambda books: books.agenda.reschedule("far", delay=1),
    "reschedule a repeating one": lambda books: books.agenda.reschedule(books.jobs["rate"], delay=1),
    "run_now": lambda books: books.agenda.run_now("far"),
    "pause": lambda books: books.jobs["ready"].pause() and books.jobs["ready"].resume(),
    "run_due": lambda books: books.agenda.run_due(),
    "take_due and finished": lambda books: books.drive(),
    "close": lambda books: books.agenda._close(False),
}
OTHERS = {
    "schedule": lambda books: books.add("other"),
    "schedule with the same id": lambda books: books.add("other", id="new", delay=1),
    **{name: call for name, call in CALLS.items() if name.startswith(("cancel", "reschedule a r"))},
    "run_due": lambda books: books.agenda.run_due(),
    "look": lambda books: min(books.agenda.stats()[:10]) >= 0 and len(books.agenda.jobs()) > 0,
}


@pytest.mark.parametrize("outer", CALLS)
def test_promise_18_call_in_the_middle_of_another_comes_before_it_or_after_it(unlogged, outer):
    for inner in OTHERS:
        found = differences(Books, CALLS[outer], OTHERS[inner], audit_books)
        assert found == [], f"{inner} in {outer}"


@pytest.mark.parametrize("outer", [name for name in CALLS if name.startswith(("schedule", "run_now", "pause"))])
def test_promise_18_call_in_the_middle_of_another_of_a_scheduler_comes_before_it_or_after_it(unlogged, outer):
    for inner in OTHERS:
        found = differences(Awaited, CALLS[outer], OTHERS[inner], audit_books)
        assert found == [], f"{inner} in {outer}"


# ---------------------------------------------------------------- the timetable


class Timers:
    """A timetable with timers, equal ones and dead ones among them."""

    def __init__(self):
        self.table = pure.Timetable()
        self.lock = self.table.lock
        self.ids = [self.table.add(run_at, run_at) for run_at in (1, 2, 2, 3, 5, 8)]
        self.table.cancel(self.ids[3])
        self.table.reschedule(self.ids[1], 4)


def audit_timers(timers):
    table = timers.table
    table.check()
    waiting = [timer_id in table for timer_id in timers.ids]
    return waiting, len(table), sorted(table.pop() for _ in range(len(table)))


STEPS = {
    "add": lambda timers: timers.table.add(2, "new") > 0,
    "cancel": lambda timers: timers.table.cancel(timers.ids[0]),
    "cancel another": lambda timers: timers.table.cancel(timers.ids[2]),
    "reschedule": lambda timers: timers.table.reschedule(timers.ids[0], 6),
    "reschedule another": lambda timers: timers.table.reschedule(timers.ids[1], 0),
    "pop": lambda timers: timers.table.pop(),
    "pop_due": lambda timers: timers.table.pop_due(9, 1),
    "next_run_at": lambda timers: timers.table.next_run_at(),
}


@pytest.mark.parametrize("outer", STEPS)
def test_promise_18_call_in_the_middle_of_another_on_a_timetable_comes_before_it_or_after_it(outer):
    for inner in STEPS:
        found = differences(Timers, STEPS[outer], STEPS[inner], audit_timers)
        assert found == [], f"{inner} in {outer}"
