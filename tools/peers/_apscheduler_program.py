"""A program on APScheduler: interval, cron and date jobs in two stores, a pause, a failure, a shutdown."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timedelta

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.schedulers import background

PATIENCE = 120


def test_program() -> None:
    scheduler = background.BackgroundScheduler(timezone="Europe/Berlin", job_defaults={"misfire_grace_time": 60})
    runs: Counter[str] = Counter()
    early: list[timedelta] = []
    enough = {name: threading.Event() for name in ("interval", "cron", "date", "fails")}

    def note(event):
        if event.code == EVENT_JOB_MISSED:
            return
        lag = datetime.now(event.scheduled_run_time.tzinfo) - event.scheduled_run_time
        if lag < timedelta(0):
            early.append(lag)
        runs[event.job_id] += 1
        if runs[event.job_id] >= {"interval": 5, "cron": 2}.get(event.job_id, 1):
            enough[event.job_id].set()

    def fail():
        raise ValueError("on purpose")

    scheduler.add_listener(note, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
    scheduler.add_job(int, "interval", seconds=0.2, id="interval")  # pending: the scheduler has not been started
    scheduler.start()
    scheduler.add_jobstore("nextdue", "second")  # by the entry point
    scheduler.add_job(int, "cron", second="*", id="cron", jobstore="second")
    scheduler.add_job(int, "date", run_date=datetime.now(scheduler.timezone) + timedelta(seconds=0.3), id="date")
    scheduler.add_job(fail, id="fails")
    paused = scheduler.add_job(fail, "interval", seconds=0.05, id="paused")
    paused.pause()
    for name, event in enough.items():
        assert event.wait(PATIENCE), f"{name} did not run often enough: {runs}"
    assert {job.id for job in scheduler.get_jobs()} == {"interval", "cron", "paused"}
    scheduler.remove_job("interval")
    scheduler.shutdown()
    assert not scheduler.running
    assert runs["date"] == runs["fails"] == 1
    assert runs["paused"] == 0
    assert not early, early
