"""Exit, fork and signals, in processes of their own; on both stacks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import nextdue

LIMIT = 60  # seconds until a process counts as hung
# From 3.12 on a fork beside threads draws a warning; that it does no harm is what is tested here.
QUIET = ("-W", "ignore:This process:DeprecationWarning")
HEAD = """
import os, signal, sys, threading, time
import nextdue
from nextdue import Scheduler, Status, pure
Agenda, Timetable = {stack}.Agenda, {stack}.Timetable
def make(**arguments):
    return Scheduler(workers=2, agenda=Agenda(), **arguments)
def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture
def run(stack):
    """Run a script and return the lines it printed. It has to end well and say nothing on standard error."""

    def run(script):
        head = HEAD.format(stack="pure" if stack.name == "pure" else "nextdue")
        done = subprocess.run(
            [sys.executable, *QUIET, "-P", "-c", head + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("executor", ["None", "ThreadPoolExecutor(2)", "lambda: ThreadPoolExecutor(2)"])
def test_exit_with_a_busy_scheduler_is_quiet(run, executor):  # B206
    script = f"""
        from concurrent.futures import ThreadPoolExecutor
        scheduler = make(executor={executor})
        runs = threading.Semaphore(0)
        scheduler.schedule_at_fixed_rate(runs.release, initial_delay=0, period=0.001)
        for _ in range(5):
            runs.acquire()
        say("end")
    """
    assert run(script) == ["end"]


def test_exit_runs_what_is_submitted_and_not_what_is_far(run):
    script = """
        scheduler = make()
        scheduler.schedule(say, delay=1e6, args=("far",))
        for k in range(20):
            scheduler.submit(time.sleep, 0.001)
        scheduler.submit(say, "submitted")
    """
    assert run(script) == ["submitted"]


def test_exit_after_shutdown_without_wait_does_not_wait_for_a_long_task(run):  # B200
    script = """
        scheduler = make()
        held = threading.Event()
        scheduler.submit(lambda: held.set() or time.sleep(1000))
        held.wait()
        scheduler.shutdown(wait=False)
        say("end")
    """
    assert run(script) == ["end"]


def test_exit_with_workers_that_go_on_after_shutdown_without_wait_is_quiet(run):
    script = """
        scheduler = make()
        for _ in range(20_000):
            scheduler.submit(len, "abc")
        scheduler.shutdown(wait=False)
        say("end")
    """
    assert run(script) == ["end"]


def test_exit_runs_what_waits_for_a_thread_pool(run):
    script = """
        from concurrent.futures import ThreadPoolExecutor
        scheduler = make(executor=lambda: ThreadPoolExecutor(1))
        for k in range(10):
            scheduler.submit(time.sleep, 0.001)
        scheduler.submit(say, "submitted")
    """
    assert run(script) == ["submitted"]


def test_exit_runs_what_waits_for_a_process_pool_that_was_imported_later(run):
    script = """
        scheduler = None
        def factory():
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor
            return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        scheduler = Scheduler(workers=1, agenda=Agenda(), executor=factory)
        scheduler.submit(pow, 2, 3).result()
        futures = [scheduler.submit(time.sleep, 0.01) for _ in range(10)]
        futures[-1].add_done_callback(lambda future: say(future.exception()))
    """
    assert run(script) == ["None"]


def test_atexit_handler_that_uses_the_scheduler_gets_a_clear_error(run):  # B207
    script = """
        import atexit
        scheduler = make()
        def last():
            try:
                scheduler.schedule(int)
            except RuntimeError as error:
                say(error)
            say(*scheduler.shutdown())
        atexit.register(last)
    """
    assert run(script) == ["cannot schedule new jobs after shutdown", "True 0 0"]


def test_thread_that_adds_after_the_main_thread_ended_gets_a_clear_error(run):  # B207
    script = """
        scheduler = make()
        def late():
            threading.main_thread().join()
            try:
                while True:
                    scheduler.schedule(int, delay=1e6)
            except RuntimeError as error:
                say(error)
        threading.Thread(target=late).start()
    """
    assert run(script) == ["cannot schedule new jobs after shutdown"]


def test_scheduler_that_is_never_shut_down_does_not_warn_at_exit(run):
    assert run("import warnings; warnings.simplefilter('always'); scheduler = make(); say('end')") == ["end"]


def test_exit_while_a_daemon_thread_adds_and_cancels_is_quiet(run):
    script = """
        scheduler, table = make(), Timetable()
        turns = threading.Semaphore(0)
        def work():
            ids = [0]
            while True:
                ids.append(table.add(len(ids), scheduler))
                table.cancel(ids[len(ids) // 2])
                turns.release()
                try:
                    scheduler.schedule(int, delay=len(ids) % 2).cancel()
                except RuntimeError:
                    pass  # the exit has begun
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(1000):
            turns.acquire()
        say("end")
    """
    assert run(script) == ["end"]


def test_exit_waits_for_a_job_that_runs_and_for_no_other(run):
    script = """
        scheduler = make()
        began = threading.Event()
        def task():
            began.set()
            try:
                while True:
                    scheduler.schedule(say, delay=1e6, args=("far",)).cancel()
            except RuntimeError:
                say("ran to its end")  # which the main thread, at its own, waits for
        scheduler.schedule(task)
        scheduler.schedule(say, delay=1e6, args=("far",))
        scheduler.schedule_at_fixed_rate(say, initial_delay=1e6, period=1, args=("far",))
        began.wait()
    """
    assert run(script) == ["ran to its end"]


def test_atexit_handler_may_drive_an_agenda_and_a_timetable(run):
    script = """
        import atexit
        agenda, table = Agenda(), Timetable()
        def last():
            agenda.schedule(say, args=("at exit",))
            table.add(1, "item")
            say(agenda.run_due(), table.pop_due(1), agenda.stats().succeeded)
        atexit.register(last)
    """
    assert run(script) == ["at exit", "1 ['item'] 1"]


def test_scheduler_made_by_an_atexit_handler_works_or_says_why_not(run):  # B207
    script = """
        import atexit
        def last():
            try:
                scheduler = make()
            except RuntimeError as error:
                say(str(error).startswith("can't create new thread"))  # from 3.12 on
            else:
                say(scheduler.submit(int).result() == 0)
                scheduler.shutdown()
        atexit.register(last)
    """
    assert run(script) == ["True"]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

FORK = """
        ORPHANED = (
            "this scheduler was made before a fork and its threads are in the parent; make a new one in the child"
        )
        def refused(call):
            try:
                call()
            except RuntimeError as error:
                return str(error) == ORPHANED
        def child_of(work):
            pid = os.fork()
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            code = 1
            try:
                signal.alarm(30)
                code = 0 if work() else 2
            finally:
                os._exit(code)
"""


@needs_fork
def test_child_of_a_fork_is_told_and_the_parent_goes_on(run):  # B209
    script = (
        FORK
        + """
        scheduler = make()
        far = scheduler.schedule(int, delay=1e6)
        def work():
            return (refused(lambda: scheduler.schedule(int)), refused(lambda: scheduler.submit(int)),
                    refused(far.wait), scheduler.shutdown().complete, scheduler.shutdown(timeout=1).running,
                    ) == (True, True, True, False, 0)
        say(child_of(work), scheduler.submit(int).result(20), far.status.name)
    """
    )
    assert run(script) == ["0 0 SCHEDULED"]


@needs_fork
def test_fork_while_threads_add_leaves_no_lock_held(run):  # B209
    script = (
        FORK
        + """
        scheduler = make()
        stop = threading.Event()
        def add():
            while not stop.is_set():
                scheduler.schedule(int, delay=1e6).cancel()
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        def work():
            return refused(lambda: scheduler.schedule(int)) and not scheduler.shutdown().complete
        codes = [child_of(work) for _ in range(10)]
        stop.set()
        for thread in threads:
            thread.join()
        say(*codes, scheduler.submit(int).result(20))
    """
    )
    assert run(script) == ["0 0 0 0 0 0 0 0 0 0 0"]


@needs_fork
def test_threads_that_fork_at_once_give_every_lock_back(run):
    script = (
        FORK
        + """
        schedulers = [make() for _ in range(3)]
        codes = []
        def fork():
            for _ in range(5):
                codes.append(child_of(lambda: refused(lambda: schedulers[0].schedule(int))))
        threads = [threading.Thread(target=fork) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(len(codes), set(codes), *[scheduler.submit(int).result(20) for scheduler in schedulers])
    """
    )
    assert run(script) == ["15 {0} 0 0 0"]


def test_threads_of_a_scheduler_import_nothing(run):
    """The child of a fork that came meanwhile would wait for that import for ever."""
    script = """
        from datetime import UTC, datetime, timedelta
        there = set(sys.modules)
        with make() as scheduler:
            scheduler.schedule(int, at=datetime.now(UTC)).result(20)
            scheduler.schedule(int, at=datetime.now(UTC) + timedelta(days=1))
            scheduler.submit(int).result(20)
        say(*sorted(set(sys.modules) - there))
    """
    assert run(script) == [""]


@needs_fork
def test_child_of_a_fork_makes_its_own_scheduler(run):  # B210
    script = (
        FORK
        + """
        import multiprocessing
        scheduler = make()
        scheduler.submit(time.sleep, 0.05)
        def child(queue):
            with make() as own:
                queue.put(own.submit(pow, 2, 5).result(20))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        process.join()
        say(process.exitcode, queue.get())
    """
    )
    assert run(script) == ["0 32"]


@needs_fork
def test_pool_of_forked_processes_beside_a_busy_scheduler_works(run):  # B210
    script = """
        import multiprocessing
        scheduler = make()
        stop, jobs = threading.Event(), []
        def add():
            while not stop.is_set():
                jobs.append(scheduler.schedule(int, delay=len(jobs) % 2 * 1e-4))
                jobs[len(jobs) // 2].cancel()
                jobs[-1].wait()  # so that there are not too many of them
        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        def child(k):
            table = Timetable()
            table.add_many(range(1000), range(1000))
            with make() as own:
                return own.submit(pow, 2, k).result(20) + own.schedule(len, args=(table.pop_due(9),)).result(20)
        for _ in range(3):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                say(*pool.map(child, range(4)))
        stop.set()
        for thread in threads:
            thread.join()
        scheduler.shutdown()
        stats = scheduler.stats()
        say(stats.succeeded + stats.cancelled - len(jobs), stats.waiting, stats.ready, stats.running)
    """
    assert run(script) == ["11 12 14 18"] * 3 + ["0 0 0 0"]


@needs_fork
def test_fork_while_threads_do_long_work_on_timetables_leaves_the_childs_own_usable(run, stack):
    if stack.name == "compiled" and "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("threads allocate without the GIL, and the sanitizer's allocator keeps its locks over a fork")
    script = (
        FORK
        + """
        stop = threading.Event()
        def work(table):
            while not stop.is_set():
                table.cancel_many(table.add_many(range(20_000)))
                table.pop_due(10**6)
        tables = [Timetable() for _ in range(3)]
        threads = [threading.Thread(target=work, args=(table,)) for table in tables]
        for thread in threads:
            thread.start()
        def work_of_child():
            table, agenda = Timetable(), Agenda()
            table.add_many(range(20_000), range(20_000))
            agenda.schedule(int)
            return (len(table.pop_due(10**6)), agenda.run_due()) == (20_000, 1)
        say(*[child_of(work_of_child) for _ in range(10)])
        stop.set()
        for thread in threads:
            thread.join()
        for table in tables:
            table.check()
    """
    )
    assert run(script) == ["0 0 0 0 0 0 0 0 0 0"]


@needs_fork
def test_task_that_forks_does_not_run_ready_jobs_in_the_child(run):
    script = """
        scheduler = Scheduler(workers=1, agenda=Agenda())
        def fork():
            for k in range(20):
                scheduler.schedule(say, args=("ready",))
            pid = os.fork()  # the child's thread goes on in the worker
            if pid:
                os.waitpid(pid, 0)
        scheduler.schedule(fork).result(20)
        scheduler.shutdown()
    """
    assert run(script) == ["ready"] * 20


@needs_fork
def test_fork_wherever_user_code_runs_gives_a_child_that_works_and_harms_nothing(run):
    script = (
        FORK
        + """
        import logging
        logging.disable()
        scheduler = make()
        codes = []
        def work():
            with make() as own:
                return refused(lambda: scheduler.schedule(int)) and own.submit(int, "7").result(20) == 7
        def fork(*_):
            codes.append(child_of(work))
        class Forks:
            def __del__(self):
                fork()
        def fail():
            raise ValueError
        scheduler.on("started", lambda event: event.job.id == "heard" and fork())
        scheduler.schedule(int, id="heard").wait(20)
        scheduler.schedule(fork).wait(20)
        scheduler.schedule(fail, retry=fork).wait(20)
        scheduler.schedule(int, is_failure=fork).wait(20)
        scheduler.schedule(int, args=(Forks(),), delay=1e6).cancel()
        signal.signal(signal.SIGUSR1, fork)
        signal.raise_signal(signal.SIGUSR1)
        called = threading.Event()
        future = scheduler.submit(int)
        future.add_done_callback(lambda _: (fork(), called.set()))
        called.wait(20)
        say(codes, *scheduler.shutdown(timeout=30))
    """
    )
    assert run(script) == ["[0, 0, 0, 0, 0, 0, 0] True 0 0"]


@needs_fork
def test_task_in_a_pool_of_forked_processes_is_in_no_run_of_there(run):
    """The child has what the parent noted of its own runs: under a number that another may have by then."""
    script = """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def factory():
            return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
        with Scheduler(workers=2, agenda=Agenda(), executor=factory) as scheduler:
            futures = [scheduler.submit(nextdue.current_job) for _ in range(6)]
            say({future.result(30) for future in futures})
    """
    assert run(script) == ["{None}"]


@pytest.mark.skipif(nextdue.BACKEND == "pure", reason="what is not compiled may be imported there")
def test_import_in_a_subinterpreter_is_refused_by_an_import_error(run):
    """The compiled modules keep to one interpreter; what was imported there works on."""
    script = """
        try:
            import _interpreters as interpreters
            execute = interpreters.exec
        except ImportError:  # before 3.13
            import _xxsubinterpreters as interpreters
            execute = interpreters.run_string
        code = [
            "import warnings",
            "warnings.simplefilter('ignore')",
            "try:",
            "    import nextdue",
            "except ImportError:",
            "    print('refused', flush=True)",
        ]
        other = interpreters.create()
        execute(other, os.linesep.join(code))
        interpreters.destroy(other)
        say(make().submit(pow, 2, 3).result(20))
    """
    assert run(script) == ["refused", "8"]


def test_storm_of_signals_neither_shortens_nor_lengthens_waits(run):  # B84, B130
    script = """
        scheduler = make()
        jobs = []
        def handler(*_):
            job = scheduler.schedule(int, delay=0.01)
            scheduler.schedule(int, delay=5).cancel()
            jobs.append(job)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        started = time.monotonic_ns()
        job = scheduler.schedule(time.monotonic_ns, delay=0.3)
        waited = job.wait(0.1)
        short = time.monotonic_ns() - started
        ended = job.result(30)
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(waited, short >= 100_000_000, ended >= job.run_at >= started + 300_000_000)
        say(len(jobs) > 10, {job.result(30) for job in jobs})
    """
    assert run(script) == ["False True True", "True {0}"]


def test_storm_of_signals_whose_handler_raises_loses_no_wake_up(run):  # B84
    script = """
        class Hit(BaseException):
            pass
        def handler(*_):
            raise Hit
        import logging
        logging.disable()  # interpreted, a job may be torn as it is added
        signal.signal(signal.SIGALRM, handler)
        scheduler = Scheduler(workers=1, agenda=Agenda())
        hits = late = 0
        while hits < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    scheduler.schedule(int, delay=hits % 2 * 0.0001).wait()
            except Hit:
                hits += 1
            late += not scheduler.schedule(int, delay=hits % 2 * 0.0001).wait(10)
        say(late)
        os._exit(0)
    """
    assert run(script) == ["0"]


def test_signal_handler_that_shuts_down_during_a_shutdown_returns(run):
    script = """
        scheduler = make()
        hold = threading.Event()
        scheduler.submit(hold.wait)
        def handler(*_):
            say(*scheduler.shutdown(timeout=0))
            hold.set()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        say(*scheduler.shutdown())
    """
    assert run(script) == ["False 0 1", "True 0 0"]


STORM = """
        import itertools, random
        rng, calls, turns = random.Random(0), [], itertools.count()
        def storm(handler, work, until):
            inside = []
            def once(*_):
                if not inside:  # a slow machine would nest them without end
                    inside.append(True)
                    handler()
                    calls.append(inside.pop())
            signal.signal(signal.SIGALRM, once)
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
            try:
                while len(calls) < until:
                    work()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_signal_handler_inside_the_calls_of_a_timetable_may_make_the_same_calls(run):
    """Whatever it interrupts: at the end each timer was taken or cancelled once, or waits."""
    script = (
        STORM
        + """
        table = Timetable()
        ids, added, gone = [0] * 20, [], []
        def turn():
            k = next(turns) % 9
            if k < 3:
                added.append(1)
                ids.append(table.add(rng.randrange(1000), next(turns), priority=k))
            elif k == 3:
                gone.append(table.cancel(rng.choice(ids)))
            elif k == 4:
                table.reschedule(rng.choice(ids), rng.randrange(1000))
            elif k == 5:
                gone.append(len(table.pop_due(rng.randrange(1000), 3)))
            elif k == 6:
                added.append(20)
                ids.extend(table.add_many(range(20), range(20)).tolist())
            elif k == 7:
                gone.append(table.cancel_many(rng.sample(ids, 15)))
            else:
                gone.append(len(table.pop_due_ids(50, 8)))
                repr(table), ids[-1] in table
        def handler():
            for _ in range(5):
                turn()
        storm(handler, turn, 2000)
        table.check()
        left = len(table)
        runs = [table.pop()[0] for _ in range(left)]
        say(sum(added) - sum(gone) == left, runs == sorted(runs), len(table))
    """
    )
    assert run(script) == ["True True 0"]


@pytest.mark.parametrize("wait", [False, True])
def test_promise_16_signal_handler_inside_the_calls_of_a_scheduler_may_make_the_same_calls_and_end_it(run, wait):
    """It adds, moves, cancels and asks inside whatever it interrupts; at last it shuts down, inside that, too."""
    script = (
        STORM
        + f"""
        scheduler = make()
        jobs, ended = [scheduler.schedule(int)], []
        def turn():
            k, job = next(turns) % 9, rng.choice(jobs[-50:])
            if k < 3:
                jobs.append(scheduler.schedule(int, delay=rng.choice((0, 0.0005, 1e6)), priority=k))
            elif k == 3:
                job.cancel()
            elif k == 4:
                scheduler.reschedule(job, delay=rng.choice((0, 1e6)))
            elif k == 5:
                scheduler.pause(job), scheduler.resume(job)
            elif k == 6:
                scheduler.run_now(job)
            elif k == 7:
                jobs.append(scheduler.schedule_with_fixed_delay(int, initial_delay=0, delay=0.001, max_runs=2))
            else:
                scheduler.stats(), scheduler.next_run_at(), repr(job), job.wait(0)
        def handler():
            if len(calls) == 1500:
                ended.append(scheduler.shutdown(wait={wait}))
            try:
                for _ in range(3):
                    turn()
            except RuntimeError as error:
                ended.append(error)
        try:
            storm(handler, turn, 10**9)
        except RuntimeError as error:
            say(error)
        say(len(ended) > 0, *scheduler.shutdown(timeout=60, cancel_futures=True)[::2])
        stats = scheduler.stats()
        say(stats.succeeded + stats.cancelled - len(jobs), stats.waiting, stats.ready, stats.running)
        say(all(job.wait(0) for job in jobs))
    """
    )
    assert run(script) == ["cannot schedule new jobs after shutdown", "True True 0", "0 0 0 0", "True"]


def test_promise_16_signal_handler_that_the_lock_is_held_around_ends_the_scheduler_afterwards(run, stack):
    """The pure stack has Python under its lock, and so signal handlers: they can wait there for nobody."""
    if stack.name == "compiled":
        pytest.skip("no Python runs under its lock")
    script = """
        scheduler = make()
        table = scheduler._agenda._tt
        occupy, answers = table._occupy, []
        def handler(*_):
            answers.extend((scheduler.wait_idle(), *scheduler.shutdown()))
        signal.signal(signal.SIGUSR1, handler)
        def interrupted(*arguments):
            timer_id = occupy(*arguments)
            if not answers:
                signal.raise_signal(signal.SIGUSR1)
            return timer_id
        table._occupy = interrupted
        job = scheduler.schedule(int, delay=1e6)
        say(*answers)
        say(job.wait(30), job.status.name, *scheduler.shutdown())
    """
    assert run(script) == ["False False 0 0", "True CANCELLED True 1 0"]


def test_promise_16_signal_handler_that_comes_before_a_wake_up_ends_the_scheduler_afterwards(run, stack):
    if stack.name == "compiled":
        pytest.skip("no Python runs then")
    script = """
        import nextdue.agenda
        scheduler = make()
        while scheduler._agenda._idle_count < 2:
            time.sleep(0.001)
        wake, answers = nextdue.agenda.signal, []
        def handler(*_):
            answers.append(None)
            answers[:] = scheduler.shutdown()
        signal.signal(signal.SIGUSR1, handler)
        def interrupted(park):
            if not answers and threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGUSR1)
            return wake(park)
        nextdue.agenda.signal = interrupted
        job = scheduler.schedule(int)
        say(*answers, job.wait(30), job.status.name, scheduler.shutdown(timeout=30).complete)
    """
    assert run(script) == ["False 0 1 True SUCCEEDED True"]
