"""Load a scheduler for minutes, and account for every job at the end.

    make soak                                            # ten minutes with five million timers waiting
    make soak ARGS="--minutes 1 --timers 1e5"

Four threads cancel, move and add far timers as fast as `--rate` says, and sow among them jobs that are due soon: some
succeed, fail, raise what ends a thread, call back, share a key, repeat, pass their time limit, or hang until the end.
All along it checks that no run starts early, that runs and timers come in order, that keys exclude and that each job
ends as its kind must; at the end that no job is unaccounted for, that memory stayed flat and that no thread is left.
Exits with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import collections
import logging
import os
import random
import sys
import threading
import time

import nextdue
from nextdue import FixedBackoff, Scheduler, Status, Timetable, current_job

SECOND = 10**9
BATCH = 500  # turns of a sower between two looks at the clock
SOON = 0.05  # seconds until the jobs that are to run are due, at most
LIMIT = 0.02  # seconds that a job of the kind "late" may run
STUCK = 8  # how many tasks hang until the end, each with a substitute in its place
GRACE = 120  # seconds that everything due may take to end
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE


class Faults:
    """What did not hold: how often, and the first of each."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = collections.defaultdict(list)

    def check(self, held: object, what: str, *detail: object) -> None:
        if not held:
            self.seen[what].append(" ".join(map(repr, detail)))

    def __str__(self) -> str:
        return "\n".join(
            f"FAULT {what}: {len(details)} times, first: {details[0]}" for what, details in self.seen.items()
        )


class OrderLane:
    """Jobs for one worker, which must start them by their time.

    One that is earlier than its forerunner is a fault only if it was there before the forerunner can have been taken,
    which is not before the run ahead of that one ended.
    """

    def __init__(self, faults: Faults) -> None:
        self.scheduler = Scheduler(workers=1, name="lane")
        self.faults = faults
        self.last_run_at = 0
        self.ended_at = self.taken_after = 0
        self.runs = 0

    def sow(self, rng: random.Random) -> None:
        there = [sys.maxsize]  # since when the job is there
        self.scheduler.schedule(self.run, delay=rng.random() * SOON, args=(there,))
        there[0] = time.monotonic_ns()

    def run(self, there: list[int]) -> None:
        run_at = current_job().run_at
        self.faults.check(time.monotonic_ns() >= run_at, "a run starts early", run_at)
        in_order = run_at >= self.last_run_at or there[0] >= self.taken_after
        self.faults.check(in_order, "runs of one worker come in order", run_at, self.last_run_at)
        self.last_run_at, self.taken_after, self.ended_at = run_at, self.ended_at, time.monotonic_ns()
        self.runs += 1


class Tasks:
    """The kinds of jobs that are to run, and how each must end."""

    def __init__(self, scheduler: Scheduler, faults: Faults) -> None:
        self.scheduler = scheduler
        self.faults = faults
        self.held: dict[int, int] = collections.Counter()
        self.release = threading.Event()
        self.retry = FixedBackoff(max_attempts=2, delay=0.01)
        self.inner = collections.deque[nextdue.Job]()  # what tasks scheduled
        self.stuck = 0

    def sow(self, kind: str, rng: random.Random) -> nextdue.Job:
        delay = rng.random() * SOON
        schedule = self.scheduler.schedule
        if kind == "fails":
            return schedule(self.fails, delay=delay, retry=self.retry)
        if kind == "raises":
            error = rng.choice((SystemExit, KeyboardInterrupt, GeneratorExit))
            return schedule(self.raises, delay=delay, args=(error,), retry=self.retry)
        if kind == "keyed":
            key = rng.randrange(64)
            return schedule(self.keyed, delay=delay, args=(key,), key=key)
        if kind == "late":
            return schedule(self.late, delay=delay, timeout=LIMIT)
        if kind == "repeats":
            return self.scheduler.schedule_at_fixed_rate(self.plain, initial_delay=delay, period=0.01, max_runs=3)
        if kind == "stuck":
            return schedule(self.release.wait, delay=delay, timeout=LIMIT)
        return schedule(getattr(self, kind), delay=delay, priority=rng.randrange(-2, 3))

    def ended_well(self, kind: str, job: nextdue.Job) -> bool:
        """Whether a job that has ended did so as its kind must."""
        error, attempts = type(job.last_error), job.attempts
        if kind == "fails":
            return job.status is Status.FAILED and error is ValueError and attempts == 2
        if kind == "raises":
            return job.status is Status.FAILED and not issubclass(error, Exception) and attempts == 1
        if kind in ("late", "stuck"):
            return job.status is Status.FAILED and error is TimeoutError and attempts == 1
        if kind == "repeats":
            return job.status is Status.SUCCEEDED and 1 <= attempts <= 3
        return job.status is Status.SUCCEEDED and attempts == 1

    def plain(self) -> None:
        run_at = current_job().run_at
        self.faults.check(time.monotonic_ns() >= run_at, "a run starts early", run_at)

    def fails(self) -> None:
        self.plain()
        raise ValueError("as it should")

    def raises(self, error: type[BaseException]) -> None:
        self.plain()
        raise error

    def keyed(self, key: int) -> None:
        self.plain()
        self.held[key] += 1
        self.faults.check(self.held[key] == 1, "a key excludes", key, self.held[key])
        self.held[key] -= 1

    def late(self) -> None:
        self.plain()
        current_job().wait()  # until it has passed its limit

    def calls_back(self) -> None:
        self.plain()
        scheduler = self.scheduler
        kept = scheduler.schedule(self.plain, delay=0.001)
        gone = scheduler.schedule(self.plain, delay=3600)
        self.faults.check(scheduler.reschedule(gone, delay=7200), "a waiting job can be moved", gone)
        self.faults.check(scheduler.cancel(gone), "a waiting job can be cancelled", gone)
        self.faults.check(not gone.cancel(), "cancel is true once", gone)
        self.inner.append(kept)


KINDS = {"plain": 50, "fails": 10, "raises": 5, "keyed": 15, "late": 1, "repeats": 4, "calls_back": 15}


class Sower(threading.Thread):
    """Cancels, moves and adds: its own share of the far timers, jobs that are to run, and timers of the timetable."""

    def __init__(self, soak: Soak, number: int) -> None:
        super().__init__(name=f"sower-{number}")
        self.soak = soak
        self.rng = random.Random(soak.options.seed + number)
        self.far: list[nextdue.Job] = []
        self.near = collections.deque[tuple[str, nextdue.Job]]()
        self.timer: int | None = None
        self.operations = self.scheduled = self.cancelled = self.timers_added = self.timers_cancelled = 0

    def run(self) -> None:
        soak, options = self.soak, self.soak.options
        for _ in range(int(options.timers) // options.threads):
            self.far.append(self.add_far())
        soak.filled.wait()
        started, done = time.monotonic(), 0
        pace = options.rate / options.threads / 2  # turns a second: each cancels one and adds one
        while not soak.stop.is_set():
            for _ in range(BATCH):
                self.turn()
            self.sow()
            self.look_at_ended()
            done += BATCH
            ahead = done / pace - (time.monotonic() - started)
            if ahead > 0:
                soak.stop.wait(ahead)

    def add_far(self) -> nextdue.Job:
        self.operations += 1
        self.scheduled += 1
        return self.soak.scheduler.schedule(self.soak.never, delay=self.soak.beyond + self.rng.random() * 3600)

    def turn(self) -> None:
        i = self.rng.randrange(len(self.far))
        if self.rng.random() < 0.1:
            moved = self.soak.scheduler.reschedule(self.far[i], delay=self.soak.beyond + self.rng.random() * 3600)
            self.soak.faults.check(moved, "a waiting job can be moved", self.far[i])
            self.operations += 1
            return
        self.soak.faults.check(self.far[i].cancel(), "a waiting job can be cancelled", self.far[i])
        self.operations += 1
        self.cancelled += 1
        self.far[i] = self.add_far()

    def sow(self) -> None:
        rng, tasks = self.rng, self.soak.tasks
        for kind in rng.choices(tuple(KINDS), tuple(KINDS.values()), k=BATCH // 50):
            self.near.append((kind, tasks.sow(kind, rng)))
            self.scheduled += 1
        self.soak.lane.sow(rng)
        timers = self.soak.timers
        for _ in range(BATCH // 10):
            if self.timer is not None and rng.random() < 0.5 and timers.cancel(self.timer):
                self.timers_cancelled += 1
            run_at = time.monotonic_ns() + rng.randrange(SECOND)
            self.timer = timers.add(run_at, run_at)
            self.timers_added += 1

    def look_at_ended(self) -> None:
        near = self.near
        while near and near[0][1].wait(0):
            self.soak.tasks_ended(*near.popleft())


class Soak:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.beyond = options.minutes * 60 + 2 * GRACE + 600  # far timers never come
        self.faults = Faults()
        self.scheduler = Scheduler(workers=options.workers)
        self.tasks = Tasks(self.scheduler, self.faults)
        self.lane = OrderLane(self.faults)
        self.timers = Timetable()
        self.filled, self.stop = threading.Event(), threading.Event()
        self.popped = 0
        self.memory: list[int] = []

    def never(self) -> None:
        self.faults.check(False, "a far timer does not come")

    def tasks_ended(self, kind: str, job: nextdue.Job) -> None:
        self.faults.check(self.tasks.ended_well(kind, job), "a job ends as it must", kind, job, job.last_error)

    def await_end(self, kind: str, job: nextdue.Job) -> None:
        self.faults.check(job.wait(GRACE), "what is due runs", kind, job)
        self.tasks_ended(kind, job)

    def pop_timers(self, now: int) -> None:
        """Take the timers that are due, which come in order within a pass."""
        run_ats = self.timers.pop_due(now)
        self.popped += len(run_ats)
        self.faults.check(run_ats == sorted(run_ats), "timers come in order")
        self.faults.check(not run_ats or run_ats[-1] <= now, "a timer is not early", now)

    def run(self) -> bool:
        options, faults, tasks = self.options, self.faults, self.tasks
        sowers = [Sower(self, number) for number in range(options.threads)]
        for sower in sowers:
            sower.start()
        while any(len(sower.far) < int(options.timers) // options.threads for sower in sowers):
            time.sleep(0.1)
        print(f"{self.scheduler.stats().waiting:,} timers wait, {resident() / 1e9:.2f} GB", flush=True)
        stuck = [("stuck", tasks.sow("stuck", random.Random(0))) for _ in range(STUCK)]
        filling = sum(sower.operations for sower in sowers)
        started = time.monotonic()
        self.filled.set()
        told = started
        while (now := time.monotonic()) < started + options.minutes * 60 and not faults.seen:
            time.sleep(0.05)
            self.pop_timers(time.monotonic_ns())
            if now >= told + 1:
                self.memory.append(resident())
                told += 1
                if len(self.memory) % 30 == 0:
                    print(
                        f"{now - started:5.0f} s  {self.scheduler.stats()}  {self.memory[-1] / 1e9:.2f} GB", flush=True
                    )
        took = time.monotonic() - started
        self.stop.set()
        for sower in sowers:
            sower.join()
        operations = sum(sower.operations for sower in sowers) - filling

        tasks.release.set()
        for kind, job in stuck + [pair for sower in sowers for pair in sower.near]:
            self.await_end(kind, job)
        for job in tasks.inner:  # complete, since what adds to it has ended
            self.await_end("plain", job)
        self.account(sowers, len(stuck))
        stats = self.scheduler.stats()
        done = self.scheduler.shutdown(timeout=GRACE)
        far = sum(len(sower.far) for sower in sowers)
        faults.check(done == (True, far, 0), "a shutdown cancels what is not due", done)
        lane = self.lane.scheduler.shutdown(timeout=GRACE)
        faults.check(lane.complete, "a shutdown completes", lane)
        self.judge_memory()

        print(f"{took:.0f} s, {operations / took:,.0f} add, move or cancel a second; {stats}")
        print(f"{self.lane.runs:,} runs of one worker and {self.popped:,} timers in order")
        print(f"memory {min(self.memory) / 1e9:.3f} to {max(self.memory) / 1e9:.3f} GB" if self.memory else "")
        return not faults.seen

    def account(self, sowers: list[Sower], stuck: int) -> None:
        faults, stats = self.faults, self.scheduler.stats()
        runs_in_tasks = len(self.tasks.inner)  # each run of that kind also cancelled a job
        scheduled = sum(sower.scheduled for sower in sowers) + stuck + 2 * runs_in_tasks
        cancelled = sum(sower.cancelled for sower in sowers) + runs_in_tasks
        ended = stats.succeeded + stats.failed + stats.cancelled
        faults.check(scheduled == ended + stats.waiting, "every job is accounted for", scheduled, stats)
        faults.check(cancelled == stats.cancelled, "every cancel is accounted for", cancelled, stats)
        faults.check(stats.waiting == sum(len(sower.far) for sower in sowers), "far timers wait", stats)
        faults.check(stats.ready == stats.running == 0, "nothing is left over", stats)
        added = sum(sower.timers_added for sower in sowers)
        gone = sum(sower.timers_cancelled for sower in sowers) + self.popped
        faults.check(added == gone + len(self.timers), "every timer is accounted for", added, gone, len(self.timers))

    def judge_memory(self) -> None:
        """Memory at the end beside that after a fifth of the time, when all has been reached once."""
        fifth = len(self.memory) // 5
        if fifth:
            before, after = max(self.memory[fifth : 2 * fifth]), max(self.memory[-fifth:])
            self.faults.check(after <= 1.05 * before + 32e6, "memory is flat", before, after)


def main() -> int:
    parser = argparse.ArgumentParser(description="Load a scheduler for minutes, and account for every job at the end.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--timers", type=float, default=5e6, help="far timers that wait all along")
    parser.add_argument("--rate", type=float, default=200_000, help="adds, moves and cancels a second, of all threads")
    parser.add_argument("--threads", type=int, default=4, help="that add and cancel")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("nextdue").setLevel(logging.CRITICAL + 1)  # failures are part of it
    threads = set(threading.enumerate())
    print(f"nextdue {nextdue.BACKEND}, Python {sys.version.split()[0]}, seed {options.seed}", flush=True)
    soak = Soak(options)
    soak.run()
    left = set(threading.enumerate()) - threads
    soak.faults.check(not left, "no thread is left over", left)
    print(soak.faults if soak.faults.seen else "all held")
    return 1 if soak.faults.seen else 0


if __name__ == "__main__":
    sys.exit(main())
