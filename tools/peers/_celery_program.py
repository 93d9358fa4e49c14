"""A Celery worker (memory transport, solo pool): tasks with a countdown and an eta, a retry, one that is revoked."""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.contrib.testing.worker import start_worker

PATIENCE = 120

app = Celery("smoke", broker="memory://", backend="cache+memory://")
OURS = sys.modules.get("nextdue.compat.kombu")  # where the drop-in is under test
if OURS is not None:
    app.conf.worker_timer = "nextdue.compat.kombu:Timer"

started: dict[str, list[float]] = {}
all_ran, retried = threading.Event(), threading.Event()
EXPECTED = {"late", "soon", "eta", "now"}


@app.task
def note(name):
    started.setdefault(name, []).append(time.monotonic())
    if EXPECTED <= started.keys():
        all_ran.set()


@app.task(bind=True, max_retries=2)
def stubborn(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    retried.set()


def test_program() -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE) as worker:
        assert OURS is None or type(worker.timer) is OURS.WorkerTimer
        called_at = time.monotonic()
        note.apply_async(("late",), countdown=1.5)
        note.apply_async(("soon",), countdown=0.5)
        note.apply_async(("eta",), eta=datetime.now(UTC) + timedelta(seconds=1))
        revoked = note.apply_async(("revoked",), countdown=1.2)
        app.control.revoke(revoked.id)
        note.apply_async(("now",))
        stubborn.apply_async()
        assert all_ran.wait(PATIENCE), started
        assert retried.wait(PATIENCE)
    at = {name: times[0] - called_at for name, times in started.items()}
    assert all(len(times) == 1 for times in started.values()), started
    assert at["soon"] >= 0.5, at
    assert at["late"] >= 1.5, at
    assert at["now"] < at["late"], at
    assert at["soon"] < at["eta"] < at["late"], at
