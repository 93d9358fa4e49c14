"""Nothing is kept: long work, in processes of their own without the collector, leaves memory, threads, files flat."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest

LIMIT = 240  # seconds until a process counts as hung
PAGE = os.sysconf("SC_PAGE_SIZE")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here to ask for memory")

HEAD = f"""
import gc, logging, os, sys, threading, warnings
gc.disable()
import nextdue
from nextdue import FixedBackoff, Scheduler, Status, pure
from nextdue.testing import ManualClock
NAME = sys.argv[1]
stack = pure if NAME == "pure" else nextdue
logging.getLogger("nextdue").addHandler(logging.NullHandler())
logging.getLogger("nextdue").propagate = False

class Thing:
    "As a task, an argument, an item."
    def __call__(self, *args, **kwargs):
        pass

def many(compiled, pure):
    return pure if NAME == "pure" else compiled

def look():
    if {FREE_THREADED}:
        gc.collect()  # without the GIL functions, and what another thread let go of last, are freed by nothing else
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * {PAGE}
    return resident, sys.getallocatedblocks()

def grown(work, count):
    "Print by how many bytes, and blocks of Python's, the process grew in a second bout of work."
    work(count // 4)
    before = look()
    work(count)
    print(*[b - a for a, b in zip(before, look())])
"""


def run(name, script):
    """Run a script and return the words it printed; it ends well and says nothing on standard error."""
    # A sanitizer's quarantine would keep what was freed.
    quarantine = ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    done = subprocess.run(
        [sys.executable, "-P", "-c", HEAD + textwrap.dedent(script), name],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "detect_leaks=0") + quarantine},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def assert_flat(name, script, *, kept=300, resident=3_000_000):
    """One object kept in each turn would be 1,000 blocks at least. What is not Python's shows in the process alone."""
    grown, blocks = map(int, run(name, script))
    assert blocks <= kept
    assert grown <= resident


# ---------------------------------------------------------------- the timetable

TIMETABLE = {
    "cancelled": "table.cancel(table.add(10**15 + k, Thing()))",
    "popped": "table.add(k, Thing(), priority=k % 7); table.pop()",
    "moved": "a = table.add(k, Thing()); table.reschedule(a, 10**15); table.reschedule(a, 5); table.pop_due(5)",
}


@pytest.mark.parametrize("what", TIMETABLE)
def test_timers_that_come_and_go_by_the_million_leave_nothing(stack, what):  # B131, B132
    script = f"""
        table = stack.Timetable()
        table.add_many(range(10**12, 10**12 + 100))
        def work(count):
            for k in range(count):
                {TIMETABLE[what]}
        grown(work, many(1_000_000, 100_000))
        table.check()
    """
    assert_flat(stack.name, script)


@pytest.mark.parametrize("way", ["cancel_many(ids)", "pop_due(10**9)", "pop_due_ids(10**9)", "clear()"])
def test_blocks_of_timers_that_come_and_go_leave_nothing(stack, way):
    script = f"""
        table = stack.Timetable()
        def work(count):
            for _ in range(count):
                ids = table.add_many(range(5000), [Thing() for _ in range(5000)])
                table.{way}
                assert len(table) == 0
        grown(work, many(100, 10))
    """
    assert_flat(stack.name, script)


def test_timetables_that_come_and_go_full_leave_nothing(stack):
    script = """
        def work(count):
            for k in range(count):
                table = stack.Timetable(capacity=k % 200)
                table.add_many(range(k % 300), [Thing()] * (k % 300))
                table.add(k, table.nbytes)
        grown(work, many(10_000, 1_000))
    """
    assert_flat(stack.name, script)


def test_refused_calls_of_a_timetable_keep_nothing(stack):
    script = """
        table = stack.Timetable()
        calls = (
            lambda: table.add("1", Thing()), lambda: table.add(1, Thing(), priority=5000), lambda: table.cancel(1.5),
            lambda: table.add_many([1, None], [Thing()] * 2), lambda: table.add_many([1], [Thing(), Thing()]),
            lambda: table.pop(), lambda: table.pop_due(None), lambda: table.pop_due_ids(1, -1),
        )
        def work(count):
            refused = 0
            for k in range(count):
                try:
                    calls[k % len(calls)]()
                except (TypeError, ValueError, IndexError):
                    refused += 1
            assert refused == count
        grown(work, many(100_000, 30_000))
    """
    assert_flat(stack.name, script)


# ---------------------------------------------------------------- the agenda

AGENDA = {
    "cancelled": "agenda.cancel(agenda.schedule(Thing(), delay=86_400, args=(Thing(),)))",
    "run": "agenda.schedule(Thing(), args=(Thing(),)); agenda.run_due()",
    "taken": "agenda.schedule(Thing()); [job] = agenda.take_due(); agenda.finished(job, value=Thing())",
}


@pytest.mark.parametrize(("what", "history"), [("cancelled", 0), ("run", 0), ("run", 100), ("taken", 100)])
def test_jobs_that_come_and_go_by_the_million_leave_nothing(stack, what, history):  # B131, B134
    script = f"""
        agenda = stack.Agenda(ManualClock(), history={history})
        def work(count):
            for _ in range(count):
                {AGENDA[what]}
        grown(work, many({300_000 if history else 1_000_000}, 20_000))
    """
    assert_flat(stack.name, script)


FAILING = {
    "fails": "agenda.schedule(int, args=('x',)); agenda.run_due()",
    "retried": "agenda.schedule(int, args=('x',), retry=FixedBackoff(3, 0)); [agenda.run_due() for _ in range(3)]",
    "raises": "agenda.schedule(fail); agenda.run_due()",
    "asked": "job = agenda.schedule(fail); agenda.run_due(); asked(job)",
    "policy": "agenda.schedule(fail, retry=lambda attempt, error: 1 / 0); agenda.run_due()",
    "condition": "agenda.schedule(Thing, is_failure=lambda value: True); agenda.run_due()",
    "chained": "agenda.schedule(chain); agenda.run_due()",
    "rule": "agenda.schedule_recurring(Thing(), answers(clock() + 1, 'bad')); clock.advance(1); agenda.run_due()",
}


@pytest.mark.parametrize("what", FAILING)
def test_errors_of_failing_jobs_leave_nothing(stack, what):  # B138
    script = f"""
        clock = ManualClock()
        agenda = stack.Agenda(clock, history=10)
        def fail():
            local = Thing()
            raise ValueError(local, fail)
        def chain():
            try:
                fail()
            except ValueError as error:
                raise KeyError(Thing()) from error
        def answers(*slots):
            slots = iter(slots)
            return lambda at: next(slots)
        def asked(job):
            try:
                job.result()
            except ValueError:
                return
            raise AssertionError
        def work(count):
            for _ in range(count):
                {FAILING[what]}
            stats = agenda.stats()
            assert stats.failed and stats.succeeded == stats.waiting == 0
        grown(work, 5_000)
    """
    assert_flat(stack.name, script)


def test_jobs_with_every_option_are_removed_from_every_index(stack):  # B141
    script = """
        from contextvars import copy_context
        from datetime import UTC, datetime
        clock, wall = ManualClock(), ManualClock(10**18)
        agenda = stack.Agenda(clock, history=0, wall_clock=wall)
        for event in ("started", "succeeded", "failed", "retrying", "skipped", "cancelled", "timed_out"):
            agenda.on(event, lambda event: None)
        def work(count):
            for k in range(count):
                first = agenda.schedule(Thing(), delay=1, key=f"key {k}", id=f"first {k}", timeout=5)
                second = agenda.schedule(Thing(), at=datetime(2001, 9, 9, 2, tzinfo=UTC), key=k, key_limit=2)
                third = agenda.schedule(
                    Thing(), args=(Thing(),), kwargs={"thing": Thing()}, id=f"third {k}", key=f"key {k}", timeout=9,
                    after=[first, second], retry=FixedBackoff(2, 1), is_failure=Thing(), jitter=1,
                    context=copy_context(),
                )
                fourth = agenda.schedule_at_fixed_rate(Thing(), 0, 1, max_runs=2, after=[third.id], key=f"other {k}")
                fifth = agenda.schedule_recurring(Thing(), lambda at: at + 10**9, max_runs=3, id=f"fifth {k}")
                agenda.pause(fifth)
                agenda.resume(fifth)
                if k % 4 == 0:
                    first.cancel()  # and so the third and the fourth
                for _ in range(6):
                    agenda.run_due()
                    clock.advance(1)
                    wall.advance(1)
                second.cancel()
                fifth.cancel()
                assert agenda.jobs() == []
        grown(work, many(2_000, 1_000))
    """
    assert_flat(stack.name, script)


def test_agendas_that_come_and_go_with_jobs_leave_nothing(stack):  # B135
    """Jobs that wait refer to their agenda and it to them: cancelled, or run, they are freed by reference counts."""
    script = """
        def work(count):
            for k in range(count):
                agenda = stack.Agenda(ManualClock(), history=0)  # the history, a ring of jobs, is the collector's
                jobs = [agenda.schedule(Thing(), delay=k, args=(agenda,)) for k in range(10)]
                agenda.run_due()
                for job in jobs:
                    job.cancel()
        grown(work, 1_000)
    """
    assert_flat(stack.name, script)


def test_refused_calls_of_an_agenda_keep_nothing(stack):
    script = """
        agenda = stack.Agenda(ManualClock(), history=0)
        agenda.schedule(Thing(), delay=1, id="taken", key="k")
        calls = (
            lambda: agenda.schedule(None, args=(Thing(),)), lambda: agenda.schedule(Thing(), delay=float("nan")),
            lambda: agenda.schedule(Thing(), id="taken", kwargs={"thing": Thing()}),
            lambda: agenda.schedule(Thing(), key="k", key_limit=2, timeout=1), lambda: agenda.status("nobody"),
            lambda: agenda.schedule(Thing(), after=["nobody"], retry=Thing()),
            lambda: agenda.schedule(Thing(), priority=9999), lambda: agenda.schedule_at_fixed_rate(Thing(), 0, 0),
            lambda: agenda.schedule_recurring(Thing(), lambda at: None),
        )
        def work(count):
            refused = 0
            for k in range(count):
                try:
                    calls[k % len(calls)]()
                except (TypeError, ValueError, KeyError):
                    refused += 1
            assert refused == count
        grown(work, 20_000)
    """
    assert_flat(stack.name, script)


# ---------------------------------------------------------------- the scheduler

RUNNING = {
    "schedule": "scheduler.schedule(Thing(), args=(Thing(),))",
    "submit": "scheduler.submit(Thing(), Thing())",
    "fails": "scheduler.schedule(int, args=('x',), retry=FixedBackoff(2, 0))",
    "waited": "scheduler.schedule(Thing()).wait()",
}


@pytest.mark.parametrize("what", RUNNING)
def test_jobs_that_workers_run_leave_nothing(stack, what):  # B137
    script = f"""
        scheduler = Scheduler(workers=2, agenda=stack.Agenda(history=0))
        def work(count):
            for k in range(count):
                {RUNNING[what]}
                if k % 500 == 0:
                    assert scheduler.wait_idle()
            assert scheduler.wait_idle()
        grown(work, many(20_000, 5_000))
        scheduler.shutdown()
    """
    # Workers may hold what they have just run, and the threads have their own pools of memory; without the GIL also
    # what another thread has let go of: a thousand or two, however many turns there were.
    assert_flat(stack.name, script, kept=2_500 if FREE_THREADED else 300)


@pytest.mark.parametrize("end", ["scheduler.shutdown()", "scheduler.shutdown(wait=False)", "del scheduler"])
def test_schedulers_that_come_and_go_leave_no_thread_no_file_and_no_memory(stack, end):
    script = f"""
        from datetime import UTC, datetime
        warnings.simplefilter("ignore", ResourceWarning)
        def ended():
            "Wait until the threads of schedulers that nobody waits for are over."
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join({LIMIT})
        def work(count):
            for k in range(count):
                scheduler = Scheduler(workers=2, agenda=stack.Agenda(history=0))
                scheduler.schedule(Thing(), args=(scheduler,)).wait()
                scheduler.schedule(Thing(), delay=1000, args=(Thing(),))
                scheduler.submit(Thing()).result()
                if k % 10 == 0:
                    scheduler.schedule(Thing(), at=datetime(2100, 1, 1, tzinfo=UTC))  # a thread and a file more
                {end}
                ended()
        files = len(os.listdir("/proc/self/fd"))
        grown(work, 200)
        assert threading.active_count() == 1
        assert len(os.listdir("/proc/self/fd")) == files
    """
    assert_flat(stack.name, script)


def test_finished_coroutines_are_not_kept_by_the_event_loop():  # B140
    script = """
        import asyncio
        from nextdue.compat.asyncio import EventLoop
        async def sleep(things):
            await asyncio.sleep(0.0001)
        async def main(count):
            for _ in range(count // 1000):
                await asyncio.gather(*[sleep(Thing()) for _ in range(1000)])
            assert asyncio.all_tasks() == {asyncio.current_task()}
        loop = EventLoop()
        grown(lambda count: loop.run_until_complete(main(count)), 20_000)
        loop.close()
    """
    assert_flat("compiled", script)
