"""APScheduler's tests of stores, executors, jobs and schedulers, and a program, with our classes for its own."""

from __future__ import annotations

from pathlib import Path

from tools.peers._peer import Peer, Sdist


def substitute() -> None:
    from apscheduler.jobstores import memory
    from apscheduler.schedulers import background, base

    from nextdue.compat import apscheduler as ours

    # A name is all that the tests look at beside what the classes do.
    memory.MemoryJobStore = base.MemoryJobStore = type("MemoryJobStore", (ours.JobStore,), {})
    background.BackgroundScheduler = ours.BackgroundScheduler
    # So every scheduler that the tests make, save for the blocking one, takes our turns.
    base.BaseScheduler = type("BaseScheduler", (ours.Turns, base.BaseScheduler), {})


# The stores of others need servers. On either side fail, now and then: a process pool that spawns in more than the
# second of grace, and a pool that is given a job before it knows that its process was killed.
ELSEWHERE = ("sqlalchemy", "mongodb", "redis", "rethinkdb", "zookeeper", "etcd", "processpool", "broken_pool")

PEER = Peer(
    Sdist(
        "apscheduler",
        "tests/test_jobstores.py",
        "tests/test_schedulers.py",
        "tests/test_executors.py",
        "tests/test_job.py",
        str(Path(__file__).with_name("_apscheduler_program.py")),
        options=("-k", " and ".join(f"not {name}" for name in ELSEWHERE)),
    ),
    substitute,
    page="apscheduler",
)
