"""What every suite shares: both stacks, side by side, and a clock that moves by hand."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

import nextdue
from nextdue import pure
from nextdue.testing import ManualClock

PURE_ONLY = os.environ.get("NEXTDUE_PURE", "") not in ("", "0")
STACKS = {"pure": SimpleNamespace(name="pure", Timetable=pure.Timetable, Agenda=pure.Agenda, Job=pure.Job)}
if not PURE_ONLY:
    STACKS["compiled"] = SimpleNamespace(
        name="compiled", Timetable=nextdue.Timetable, Agenda=nextdue.Agenda, Job=nextdue.Job
    )

# For every build, also where Hypothesis sees a CI: each run tries new sequences; one that fails is kept in the tree,
# and is what the next run begins with, be that of another interpreter or with a sanitizer.
settings.register_profile(
    "nextdue",
    database=DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples"),
    deadline=None,  # a test measures no speed
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nextdue")


def pytest_report_header() -> str:
    return f"nextdue {nextdue.__version__}: BACKEND={nextdue.BACKEND}, stacks under test: {', '.join(sorted(STACKS))}"


@pytest.fixture(params=sorted(STACKS))
def stack(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Timetable, Agenda and Job of one stack; each test that asks for it runs on both."""
    assert nextdue.BACKEND == ("pure" if PURE_ONLY else "compiled")
    return STACKS[request.param]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def machine_zone(monkeypatch):
    """Put the machine into a time zone, by its name."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system has no time.tzset")

    def move(tz: str) -> None:
        monkeypatch.setenv("TZ", tz)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def switches_in():
    """`switches_in(module)`: the threads that a test starts give way to others at its lines, by chance.

    A short switch interval alone does not: with the GIL hardly a switch falls between two lines, lock or no lock.
    """
    chance = random.Random(1)

    def at_line(frame, event, arg):
        if event == "line" and chance.random() < 0.3:
            time.sleep(0)  # gives up the GIL
        return at_line

    def begin(module):
        threading.settrace(lambda frame, event, arg: at_line if frame.f_code.co_filename == module.__file__ else None)

    yield begin
    threading.settrace(None)  # type: ignore[arg-type]


@pytest.fixture
def unlogged():
    """No log of what fails on purpose, and by the hundred."""
    logger = logging.getLogger("nextdue")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before


class Park:
    """Stands in for the lock that a thread of a scheduler sleeps on: a timed sleep ends when the test says so."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()
        self.sleeps = queue.SimpleQueue()  # for how many seconds each was to be; -1: until it is signalled

    def acquire(self, blocking=True, timeout=-1):
        self.sleeps.put(timeout)
        return self.lock.acquire()

    def release(self):
        self.lock.release()

    def run_out(self):
        """The time of the sleep is over."""
        with suppress(RuntimeError):  # it was signalled meanwhile, and is still to look
            self.release()

    def await_sleep(self):
        """Wait for the next sleep to begin, and return how long it is to be."""
        return self.sleeps.get(timeout=20)


@pytest.fixture
def on_parks(monkeypatch):
    """Make a scheduler whose threads sleep on stand-ins: a list of it, the watcher's and the others'."""

    def make(*, workers, executor=None, **options):
        parks = [Park() for _ in range(2 if executor else 1 + workers)]
        left = iter(parks)
        original = nextdue.scheduler._parked
        with monkeypatch.context() as patch:
            patch.setattr(nextdue.scheduler, "_parked", lambda: next(left, None) or original())
            return [nextdue.Scheduler(workers=workers, executor=executor, **options), *parks]

    return make


def take(agenda) -> list[str | int]:
    """The ids of what is due, in order; it runs from then on."""
    return [job.id for job in agenda.take_due()]


def run_all(agenda) -> int:
    """Run what is due, and what that makes due; how many ran."""
    count = 0
    while ran := agenda.run_due():
        count += ran
    return count
