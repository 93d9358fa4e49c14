"""How figures are taken, for ``nextdue bench``, ``nextdue demo`` and ``benchmarks/`` alike.

All sides are sampled in turn, in one run, and the best of the repeats counts on every side. The garbage collector stays
on, as in the programs that will use this. Lower is better for every figure; ratios say how many times better we are.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from nextdue import BACKEND, Scheduler
from nextdue.cli._console import Progress
from nextdue.cli._plain_scheduler import PlainScheduler
from nextdue.cli._works import (
    HOUR,
    INLINE,
    ONE_BY_ONE,
    SCHEDULER_WORKS,
    SCHEDULERS,
    TIMETABLE_WORKS,
    WORKERS,
    Side,
    Work,
    noop,
    random_times,
)

R = TypeVar("R")
Report = Callable[[Any], object]

STEADY_RATE = 1000  # timers a second: far from what any side can do, so that a lag is a lag and not a queue
STEADY_TIMERS = 5000
_LEAD_NS = 100_000_000  # enough to schedule them all before the first is due
_GRACE = 30.0  # seconds after the last one is due until a run that has not come is lost


@dataclass(frozen=True, slots=True)
class Sampling:
    """A way to take figures: ``sample(side, size)`` gives one for each name."""

    names: tuple[str, ...]
    unit: str
    sides: tuple[str, ...]
    sample: Callable[[str, int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """The samples of one figure on every side; the first side is ours."""

    name: str
    unit: str
    samples: Mapping[str, Sequence[float]]

    @property
    def ours(self) -> str:
        """The name of our side."""
        return next(iter(self.samples))

    @property
    def others(self) -> list[str]:
        """The names of the sides we are compared with."""
        return list(self.samples)[1:]

    def best(self, side: str) -> float:
        """The best figure of a side."""
        return min(self.samples[side])

    def ratio(self, side: str) -> float:
        """How many times better than ``side`` we are."""
        return ratio(self.best(self.ours), self.best(side))


def measure(samplings: Iterable[Sampling], size: int, repeats: int, progress: Progress) -> Iterator[Row]:
    """Take every figure ``repeats`` times on every side, the sides in turn."""
    for sampling in samplings:
        taken: dict[str, list[Sequence[float]]] = {side: [] for side in sampling.sides}
        turns = [side for _ in range(repeats) for side in sampling.sides]
        progress.stage(", ".join(sampling.names), len(turns))
        for done, side in enumerate(turns, start=1):
            taken[side].append(sampling.sample(side, size))
            progress.at(done)
        for i, name in enumerate(sampling.names):
            yield Row(name, sampling.unit, {side: [sample[i] for sample in taken[side]] for side in sampling.sides})


def time_of(work: Work) -> Sampling:
    """Nanoseconds an operation, for each phase and, of several, for all together."""
    total = (" + ".join(work.phases),) if len(work.phases) > 1 else ()

    def sample(side: str, size: int) -> list[float]:
        times = [ns / size for ns in phase_times(work.sides[side], size)]
        return times + [sum(times)] * len(total)

    return Sampling(work.phases + total, "ns", tuple(work.sides), sample)


def memory_of(work: Work, name: str) -> Sampling:
    """Bytes an operation of the first phase, by what the resident memory of a fresh process grows in it."""

    def sample(side: str, size: int) -> list[float]:
        return [run_in_child(partial(resident_growth, work.sides[side], size)) / size]

    return Sampling((name,), "B", tuple(work.sides), sample)


def phase_times(side: Side, size: int) -> list[int]:
    """Return the nanoseconds of each phase."""
    steps = side(size)
    next(steps)
    gc.collect()
    times = []
    start = time.perf_counter_ns()
    for _ in steps:
        times.append(time.perf_counter_ns() - start)
        start = time.perf_counter_ns()
    return times


def lateness(scheduler: Scheduler | PlainScheduler, timers: int) -> list[int]:
    """Let jobs come due at the steady rate and return the lag of each run in nanoseconds, smallest first.

    A negative lag is an early run; a list shorter than ``timers`` means that jobs were lost.
    """
    lags: list[int] = []
    done = threading.Event()

    def run(run_at: int) -> None:
        lags.append(time.monotonic_ns() - run_at)
        if len(lags) >= timers:
            done.set()

    first_at = time.monotonic_ns() + _LEAD_NS
    for i in range(timers):
        run_at = first_at + i * 10**9 // STEADY_RATE
        scheduler.schedule(run, at=run_at, args=(run_at,))
    done.wait(timers / STEADY_RATE + _GRACE)
    return sorted(lags)


def lateness_asyncio(timers: int, waiting: int) -> list[int]:
    """Do the same on an event loop on which ``waiting`` timers wait."""
    lags: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def run(run_at: int) -> None:
            lags.append(time.monotonic_ns() - run_at)
            if len(lags) >= timers:
                done.set_result(None)

        for delay in (HOUR + random_times(waiting) / 1e9).tolist():
            loop.call_later(delay, noop)
        gc.collect()
        ahead = time.monotonic_ns() + _LEAD_NS
        for i in range(timers):
            run_at = ahead + i * 10**9 // STEADY_RATE
            loop.call_at(run_at / 1e9, run, run_at)
        await asyncio.wait_for(done, timers / STEADY_RATE + _GRACE)

    asyncio.run(main())
    return sorted(lags)


def ratio(ours: float, theirs: float) -> float:
    """Return how many times ours goes into theirs; nothing (no memory grew at a tiny size) has no ratio.

    >>> ratio(20, 100)
    5.0
    >>> ratio(0, 100)
    nan
    """
    return theirs / ours if ours else math.nan


def percentile(ordered: Sequence[int], percent: float) -> int:
    """Return the smallest value that ``percent`` of the ordered values do not exceed.

    >>> percentile([10, 20, 30, 40], 50)
    20
    >>> percentile([10, 20, 30, 40], 100)
    40
    """
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def run_in_child(function: Callable[[Report], R], on_report: Report = lambda value: None) -> R:
    """Call ``function(report)`` in a fresh process and return its result; what it reports is handed on here.

    A fresh process has an empty heap: memory can be seen to grow, and no side pays for what another left behind.
    """
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(function, writer), daemon=True)
    child.start()
    writer.close()
    try:
        while True:
            ended, value = reader.recv()
            if ended:
                result: R = value
                return result
            on_report(value)
    except EOFError:
        child.join()
        raise RuntimeError(f"the measuring process ended early, exit code {child.exitcode}") from None
    finally:
        child.terminate()
        child.join()
        reader.close()


def _child(function: Callable[[Report], object], writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C for both
    writer.send((True, function(lambda value: writer.send((False, value)))))


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, object]:
    """What a figure depends on besides the code."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "backend": BACKEND,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "gc": gc.isenabled(),
    }


def cpu_model() -> str:
    """Return the processor's name, as far as the system tells."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Return how many processes wanted to run over the last minute, where the system tells."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def resident_growth(side: Side, size: int, report: Report) -> int:
    steps = side(size)
    next(steps)
    gc.collect()
    before = resident_bytes()
    next(steps)
    return resident_bytes() - before


def _sample_lateness(side: str, size: int) -> list[float]:
    scheduler = SCHEDULERS[side](workers=WORKERS)
    for _ in range(size):
        scheduler.schedule(noop, HOUR)
    timers = min(size, STEADY_TIMERS)
    lags = lateness(scheduler, timers)
    scheduler.shutdown()
    if len(lags) < timers or lags[0] < 0:
        raise RuntimeError(f"{side} lost jobs or ran them early: its figures mean nothing")
    return [percentile(lags, 50) / 1000, percentile(lags, 99) / 1000]


TIMES = tuple(map(time_of, TIMETABLE_WORKS + SCHEDULER_WORKS))
FIGURES = (
    Sampling(("lateness p50", "lateness p99"), "µs", tuple(SCHEDULERS), _sample_lateness),
    memory_of(ONE_BY_ONE, "memory a timer"),
    memory_of(INLINE, "memory a job"),
)
