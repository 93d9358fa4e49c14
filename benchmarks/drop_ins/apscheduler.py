"""APScheduler: its store in memory, and a recurring job's turn, among a hundred thousand jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from apscheduler.executors.debug import DebugExecutor
from apscheduler.job import Job
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers import background
from apscheduler.schedulers.base import STATE_RUNNING
from apscheduler.triggers.interval import IntervalTrigger

from benchmarks.drop_ins import at_least, duel
from nextdue.cli._works import HOUR, noop
from nextdue.compat import apscheduler as ours

WAITING = 100_000
OPERATIONS = 2_000


def waiting_job(name: str, when: datetime) -> Any:
    """What a store looks at of a job; made whole it would take half a minute for all."""
    job = object.__new__(Job)
    job.id, job.next_run_time = name, when
    return job


def add_and_remove(make: type[Any], size: int) -> Iterator[None]:
    store, random, now = make(), Random(1), datetime.now(UTC)

    def jobs(prefix: str, count: int) -> list[Any]:
        return [waiting_job(f"{prefix}{k}", now + timedelta(seconds=random.random() * HOUR)) for k in range(count)]

    for job in sorted(jobs("waiting", size), key=lambda job: job.next_run_time):
        store.add_job(job)
    more = jobs("more", OPERATIONS)
    yield
    for job in more:
        store.add_job(job)
    yield
    for job in more:
        store.remove_job(job.id)
    yield
    assert len(store.get_all_jobs()) == size


def turns(make: type[Any], executors: Any, size: int) -> Iterator[None]:
    """Of so many jobs some are due: each is submitted, run, and put in again behind all others."""
    scheduler = make(timezone=UTC, executors=executors())
    scheduler.start(paused=True)
    now = datetime.now(UTC)
    for k in range(OPERATIONS):
        trigger = IntervalTrigger(seconds=2 * HOUR, start_date=now, timezone=UTC)
        due_at = now - timedelta(milliseconds=OPERATIONS - k)
        scheduler.add_job(noop, trigger, id=f"due{k}", next_run_time=due_at, misfire_grace_time=None)
    store = scheduler._jobstores["default"]
    for k in range(size - OPERATIONS):
        store.add_job(waiting_job(f"waiting{k}", now + timedelta(seconds=600 + k / size * HOUR)))
    scheduler.state = STATE_RUNNING  # without waking its thread: the pass below is ours
    executor = scheduler._executors["default"]
    yield
    scheduler._process_jobs()
    executor.shutdown()
    yield
    assert all(job.id.startswith("due") for job in store.get_all_jobs()[-OPERATIONS:])
    scheduler.shutdown()


def in_place() -> dict[str, Any]:
    return {"default": DebugExecutor()}


GOALS = [
    duel(
        "a store of {size} jobs",
        partial(add_and_remove, ours.JobStore),
        partial(add_and_remove, MemoryJobStore),
        {"add": None, "remove": None, "all": at_least(5)},
        peer="APScheduler",
        size=WAITING,
        operations=OPERATIONS,
    ),
    duel(
        "a recurring job's turn among {size}, on the default executor",
        partial(turns, ours.BackgroundScheduler, dict),
        partial(turns, background.BackgroundScheduler, dict),
        {"turn": at_least(3)},
        peer="APScheduler",
        size=WAITING,
        operations=OPERATIONS,
    ),
    duel(
        "a recurring job's turn among {size}, on the scheduler's thread",
        partial(turns, ours.BackgroundScheduler, in_place),
        partial(turns, background.BackgroundScheduler, in_place),
        {"turn": at_least(3)},
        peer="APScheduler",
        size=WAITING,
        operations=OPERATIONS,
    ),
]
