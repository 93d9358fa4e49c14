"""The eleven goals of speed, each with its peers: measured in one run, judged, and kept as lines of one table.

A goal is a function of a `Bench`, which samples the sides in turn, each sample in a fresh process, and keeps all of
them; the best of the repeats counts on every side. A peer that cannot run here leaves a line without a verdict.

What is a million at full size is ``bench.size``; what is ten million, ten times that; lengths in time shrink alike.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from nextdue import Agenda, Scheduler, Timetable
from nextdue.cli._console import Progress
from nextdue.cli._measure import (
    STEADY_TIMERS,
    Report,
    lateness,
    lateness_asyncio,
    percentile,
    phase_times,
    ratio,
    resident_bytes,
    resident_growth,
    run_in_child,
)
from nextdue.cli._peers import Peers, Unavailable
from nextdue.cli._plain_scheduler import PlainAgenda, PlainScheduler
from nextdue.cli._works import (
    HOUR,
    WORKERS,
    Side,
    add_cancel,
    add_cancel_asyncio,
    add_then_cancel,
    add_then_cancel_asyncio,
    add_without_items,
    bare_calls,
    bulk,
    bulk_argsort,
    bulk_heapq,
    end_to_end,
    hold,
    hold_heapq,
    inline,
    job_succeeded,
    many_producers,
    noop,
    one_by_one,
    one_by_one_heapq,
    plain_job_succeeded,
    random_times,
    run_due,
)

R = TypeVar("R")
Figures = Mapping[str, float]
Sampler = Callable[[], Figures]  # one sample: a figure for each name

FULL_SIZE = 10**6
NOISE = 0.1  # figures move: this far from a goal, on either side of it, is a draw
OURS = "nextdue"
PASS, DRAW, MISS, NONE, FAILED = "pass", "draw", "miss", "-", "failed"

_RATE_JOBS_SHARE = 10  # one fixed-rate job for so many timers of the size
_RATE_SLOTS = 10  # at full size; the period is a second
_RATE_GRACE = 60.0  # seconds after the last slot until a run that has not come is lost
_LEAD = 0.5  # seconds to schedule the fixed-rate jobs before the first is due, for each hundred thousand
_LOOK_EVERY = 2**14  # operations between two looks at the memory
_LAG_EDGES_US = [round(10 ** (k / 20), 2) for k in range(101)]  # 1 µs to 100 ms


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound: of a ratio of two sides (unit ``x``), or of our figure itself.

    A ratio is noisy on both sides of its bound, so within a tenth of it is a draw. A figure of our own passes up to
    its bound and draws for a tenth beyond it.
    """

    sign: str
    bound: float
    unit: str

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{' ' + self.unit if self.unit else ''}"

    def judge(self, value: float | None) -> str:
        """Return the verdict on a value: pass, draw or miss.

        >>> [Goal("≥", 10, "x").judge(value) for value in (12, 10.5, 9.5, 8)]
        ['pass', 'draw', 'draw', 'miss']
        >>> [Goal("≤", 40, "B").judge(value) for value in (36, 40, 43, 45)]
        ['pass', 'pass', 'draw', 'miss']
        """
        if value is None or math.isnan(value):
            return NONE
        if self.sign == "≤" and self.bound == 0:
            return PASS if value == 0 else MISS
        beyond = value / self.bound - 1 if self.sign == "≥" else 1 - value / self.bound  # > 0: better than asked
        if abs(beyond) <= NOISE + 1e-9:
            return PASS if self.unit != "x" and beyond >= 0 else DRAW
        return PASS if beyond > 0 else MISS


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. Lower is better on both sides; a goal in ``x`` is judged by the ratio."""

    number: int | str  # or the name of what it is about
    work: str
    ours: float | None
    unit: str
    goal: Goal | None = None
    peer: str = ""
    theirs: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Theirs over ours where that is to be at least something, ours over theirs where at most."""
        if self.ours is None or self.theirs is None:
            return None
        at_most = self.goal is not None and self.goal.unit == "x" and self.goal.sign == "≤"
        return ratio(self.theirs, self.ours) if at_most else ratio(self.ours, self.theirs)

    @property
    def verdict(self) -> str:
        """Pass, draw, miss; ``-`` where nothing can be said or nothing was asked."""
        if self.note.startswith(FAILED):
            return FAILED
        if self.goal is None:
            return NONE
        return self.goal.judge(self.ratio if self.goal.unit == "x" else self.ours)

    def cells(self) -> tuple[str, ...]:
        """Return the line as text: work, ours, peer, ratio, goal, verdict."""
        peer = f"{figure(self.theirs, self.unit)} {self.peer}" if self.theirs is not None else self.peer
        return (
            f"{self.number:>2}  {self.work}",
            figure(self.ours, self.unit),
            peer,
            figure(self.ratio, "x"),
            str(self.goal) if self.goal else "",
            self.verdict,
        )


HEADER = ("goal, work", OURS, "peer", "ratio", "goal", "verdict")


def figure(value: float | None, unit: str) -> str:
    """Return a figure with three digits or more, and its unit.

    >>> figure(1234.5, "ns"), figure(36.14, "B"), figure(0.614, "x"), figure(0, ""), figure(None, "ns")
    ('1,234 ns', '36.1 B', '0.61 x', '0', '')
    """
    if value is None or math.isnan(value):
        return ""
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


class Bench:
    """Takes samples and keeps them.

    Args:
        size: how many timers or jobs stand for a million.
        repeats: samples of each side; the best counts.
        isolated: each sample in a process of its own, so that none pays for what another left behind.
    """

    def __init__(self, size: int, repeats: int, peers: Peers, progress: Progress, *, isolated: bool = True) -> None:
        self.size = size
        self.repeats = repeats
        self.peers = peers
        self.isolated = isolated
        self.samples: dict[str, dict[str, list[Figures]]] = {}
        self.lags: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, str] = {}  # a peer that cannot run here, and why
        self._progress = progress

    def best(self, label: str, sides: Mapping[str, Sampler], repeats: int | None = None) -> dict[str, Figures]:
        """Sample the sides in turn; return the best of each figure of each side that can run here."""
        taken: dict[str, list[Figures]] = {side: [] for side in sides}
        turns = [side for _ in range(repeats or self.repeats) for side in sides]
        self._progress.stage(label, len(turns))
        for done, side in enumerate(turns, start=1):
            try:
                if side not in self.missing:
                    taken[side].append(sides[side]())
            except Unavailable as reason:
                self.missing[side] = str(reason)
            self._progress.at(done)
        taken = {side: samples for side, samples in taken.items() if samples}
        self.samples[label] = taken
        return {
            side: {name: min(sample[name] for sample in samples) for name in samples[0]}
            for side, samples in taken.items()
        }

    def apart(self, function: Callable[[Report], R]) -> R:
        """Call a function in a fresh process."""
        return run_in_child(function) if self.isolated else function(lambda value: None)

    def times(
        self, side: Callable[..., Iterator[None]], names: Sequence[str], operations: int, *arguments: int
    ) -> Sampler:
        """Nanoseconds an operation of each phase of a side called with ``arguments``, by default ``operations``."""
        call = partial(side, *arguments) if arguments else partial(side, operations)
        return lambda: self.apart(partial(_phases, call, tuple(names), operations))

    def memory(self, side: Side, size: int) -> Sampler:
        """Bytes an operation of the first phase of a side; always in a fresh process, or nothing would be seen."""
        return lambda: {"memory": run_in_child(partial(resident_growth, side, size)) / size}


def goal_1(bench: Bench) -> Iterator[Line]:
    """Hold, one by one from Python."""
    for size in (bench.size, 10 * bench.size):
        figures = bench.best(
            f"hold at {size:,}",
            {
                OURS: bench.times(partial(hold, Timetable), ["hold"], size),
                "priority_queue (C++)": partial(bench.peers.priority_queue, size, size),
                # The cost of its step does not change from one to the next, so it is spared nine tenths of the wait.
                "heapq": bench.times(hold_heapq, ["hold"], bench.size, size, bench.size),
            },
        )
        yield from _lines(
            1, f"hold at {size:,}", "hold", figures, {"priority_queue (C++)": Goal("≥", 1, "x"), "heapq": _times(12)}
        )


def goal_2(bench: Bench) -> Iterator[Line]:
    """Add all, pop all, one by one from Python."""
    sides = {
        OURS: bench.times(partial(one_by_one, Timetable), ["add", "pop"], bench.size),
        "heapq": bench.times(one_by_one_heapq, ["add", "pop"], bench.size),
    }
    figures = bench.best("add + pop", sides)
    yield from _lines(2, "add + pop, one by one", "all", figures, {"heapq": _times(15)})


def goal_3(bench: Bench) -> Iterator[Line]:
    """Add all, pop all, in two calls."""
    sides = {
        OURS: bench.times(partial(bulk, Timetable), ["add", "pop"], bench.size),
        "heapq": bench.times(bulk_heapq, ["add", "pop"], bench.size),
        "numpy.argsort": bench.times(bulk_argsort, ["sort"], bench.size),
    }
    figures = bench.best("bulk add + pop", sides)
    goals = {"heapq": _times(60), "numpy.argsort": Goal("≤", 1, "x")}
    yield from _lines(3, "add_many + pop_due_ids", "all", figures, goals)


def goal_4(bench: Bench) -> Iterator[Line]:
    """Cancel: all after all were added; then each at once, beside those that wait."""
    size, pairs = bench.size, 10 * bench.size

    def java() -> Figures:
        found = bench.peers.java_waiting(size, pairs)
        return {"all": found["schedule"] + found["cancel"], **found}

    def both(then: Callable[[int], Iterator[None]], at_once: Callable[[int, int], Iterator[None]]) -> Sampler:
        first = bench.times(then, ["schedule", "cancel"], size)
        second = bench.times(at_once, ["pair"], pairs, size, pairs)
        return lambda: {**second(), **first()}  # "all" is that of the first

    sides = {
        OURS: both(partial(add_then_cancel, Timetable), partial(add_cancel, Timetable)),
        "asyncio": both(add_then_cancel_asyncio, add_cancel_asyncio),
        "STPE (Java)": java,
    }
    figures = bench.best("cancel", sides)
    goals = {"asyncio": _times(8), "STPE (Java)": _times(2)}
    yield from _lines(4, "add all, then cancel all", "all", figures, goals)
    yield from _lines(4, f"add + cancel at once, beside {size:,}", "pair", figures, goals)
    churn = {OURS: lambda: run_in_child(partial(_churn_memory, size, pairs))}
    memory = bench.best("memory beside cancels", churn, repeats=1)[OURS]
    need, peak = memory["live"], memory["peak"]
    yield Line(4, "memory in that, at its peak", peak, "B", Goal("≤", 4, "x"), "of the live ones alone", need)


def goal_5(bench: Bench) -> Iterator[Line]:
    """How the cost grows with the size."""
    few, many = max(1, bench.size // 100), 10 * bench.size
    sides = {
        "few": bench.times(partial(hold, Timetable), ["hold"], bench.size, few, bench.size),
        "many": bench.times(partial(hold, Timetable), ["hold"], many),
    }
    figures = bench.best("growth of hold", sides)
    ours, theirs = figures["many"]["hold"], figures["few"]["hold"]
    yield Line(5, f"hold at {many:,}", ours, "ns", Goal("≤", 2.5, "x"), f"the same at {few:,}", theirs)


def goal_6(bench: Bench) -> Iterator[Line]:
    """Memory, as the growth of a fresh process."""
    figures = bench.best(
        "memory a timer",
        {OURS: bench.memory(partial(add_without_items, Timetable), bench.size)}
        | {"heapq": bench.memory(one_by_one_heapq, bench.size)},
    )
    yield from _lines(6, "a timer without an item", "memory", figures, {"heapq": Goal("≤", 40, "B")})
    figures = bench.best(
        "memory a job",
        {OURS: bench.memory(partial(inline, Agenda), bench.size)}
        | {"plain scheduler": bench.memory(partial(inline, PlainAgenda), bench.size)},
    )
    yield from _lines(6, "a waiting job", "memory", figures, {"plain scheduler": Goal("≤", 160, "B")})


def goal_7(bench: Bench) -> Iterator[Line]:
    """Run what is due on the caller's thread."""
    phases = ["schedule", "run"]
    sides = {
        OURS: bench.times(partial(run_due, Agenda, job_succeeded), phases, bench.size),
        "plain scheduler": bench.times(partial(run_due, PlainAgenda, plain_job_succeeded), phases, bench.size),
        "bare calls": bench.times(bare_calls, ["run"], bench.size),
    }
    goals = {"plain scheduler": _times(45), "bare calls": Goal("≤", 8, "x")}
    yield from _lines(7, "run_due in random order", "run", bench.best("run_due", sides), goals)


def goal_8(bench: Bench) -> Iterator[Line]:
    """End to end, one producer and two workers."""
    sides: dict[str, Sampler] = {
        OURS: bench.times(partial(end_to_end, Scheduler), ["end_to_end"], bench.size),
        "STPE (Java)": partial(bench.peers.java_end_to_end, bench.size, WORKERS),
        "plain scheduler": bench.times(partial(end_to_end, PlainScheduler), ["end_to_end"], bench.size),
    }
    goals = {"STPE (Java)": _times(1), "plain scheduler": _times(25)}
    yield from _lines(8, f"end to end, {WORKERS} workers", "end_to_end", bench.best("end to end", sides), goals)


def goal_9(bench: Bench) -> Iterator[Line]:
    """The same from four threads; then with three of four workers held."""
    sides = {
        "alone": bench.times(partial(end_to_end, Scheduler), ["job"], bench.size),
        "four": bench.times(many_producers, ["job"], bench.size),
        "held": bench.times(partial(many_producers, sleepers=3), ["job"], bench.size),
    }
    figures = bench.best("end to end from 4 threads", sides)
    theirs = figures["alone"]["job"]
    for side, work in (("four", "4 producers, 4 workers"), ("held", "the same, 3 of 4 workers asleep")):
        yield Line(9, work, figures[side]["job"], "ns", _times(0.6), "1 producer, 2 workers", theirs)


def goal_10(bench: Bench) -> Iterator[Line]:
    """How late a run starts with very many waiting."""
    timers = min(bench.size, STEADY_TIMERS)

    def sample(name: str, function: Callable[[int, int, Report], list[int]]) -> Figures:
        lags = bench.apart(partial(function, bench.size, timers))
        if len(lags) < timers:
            raise RuntimeError(f"{name} lost {timers - len(lags)} of {timers} timers: its figures mean nothing")
        found = {"p50": percentile(lags, 50) / 1000, "p99": percentile(lags, 99) / 1000}
        if name not in bench.lags or found["p50"] < bench.lags[name]["p50"]:
            bench.lags[name] = {**found, "edges_us": _LAG_EDGES_US, "counts": _histogram(lags)}
        return found | {"early": sum(lag < 0 for lag in lags)}

    sides: dict[str, Sampler] = {
        OURS: partial(sample, OURS, _lags_ours),
        "asyncio": partial(sample, "asyncio", _lags_asyncio),
        "plain scheduler": partial(sample, "plain scheduler", _lags_plain),
    }
    figures = bench.best("lateness", sides)
    ours, peers = figures[OURS], {side: found for side, found in figures.items() if side != OURS}
    yield Line(10, "lateness at 1,000 a second, p50", ours["p50"], "µs", Goal("≤", 80, "µs"))
    yield Line(10, "lateness, p99", ours["p99"], "µs", Goal("≤", 220, "µs"))
    early = max(sample["early"] for sample in bench.samples["lateness"][OURS])
    yield Line(10, "early runs, in all repeats", early, "", Goal("≤", 0, ""))
    for side, found in peers.items():
        yield Line(10, "lateness, p50", ours["p50"], "µs", _times(5) if side == "asyncio" else None, side, found["p50"])
        yield Line(10, "lateness, p99", ours["p99"], "µs", None, side, found["p99"])


def goal_11(bench: Bench) -> Iterator[Line]:
    """Very many fixed-rate jobs: every run on its slot."""
    jobs = max(1, bench.size // _RATE_JOBS_SHARE)
    slots = max(2, _RATE_SLOTS * min(bench.size, FULL_SIZE) // FULL_SIZE)
    found = bench.best("fixed rate", {OURS: lambda: bench.apart(partial(_fixed_rate, jobs, slots))}, repeats=1)[OURS]
    work = f"{jobs:,} jobs, period 1 s, {slots} slots"
    yield Line(11, f"{work}: runs lost", found["lost"], "", Goal("≤", 0, ""))
    yield Line(11, "slots skipped", found["skipped"], "", Goal("≤", 0, ""))
    yield Line(11, "early runs", found["early"], "", Goal("≤", 0, ""))
    yield Line(11, "lag behind the slot, p50", found["p50"], "µs")
    yield Line(11, "lag behind the slot, worst", found["worst"], "µs")
    yield Line(11, "CPU use of one core", found["cpu"], "%")


GOALS: dict[int, Callable[[Bench], Iterator[Line]]] = dict(
    enumerate(
        (goal_1, goal_2, goal_3, goal_4, goal_5, goal_6, goal_7, goal_8, goal_9, goal_10, goal_11),
        start=1,
    )
)


def take(
    bench: Bench, numbers: Sequence[int], goals: Mapping[int, Callable[[Bench], Iterator[Line]]] = GOALS
) -> Iterator[Line]:
    """Measure goals; one whose side fails leaves a line that says so."""
    for number in numbers:
        try:
            yield from goals[number](bench)
        except (RuntimeError, OSError, KeyError) as error:
            yield Line(number, (goals[number].__doc__ or "").rstrip("."), None, "", note=f"{FAILED}: {error!r}")


def curves(bench: Bench) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Nanoseconds an operation: by side, by work, at each size from a thousandth of the bench's to ten times it."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {OURS: {}, "heapq": {}}
    for size in sorted({max(1, bench.size * 10**step // 1000) for step in range(5)}):
        holds = max(size, bench.size)
        singles, both = ["add", "pop"], ["bulk add", "bulk pop"]
        sides = {
            "nextdue hold": bench.times(partial(hold, Timetable), ["hold"], holds, size, holds),
            "nextdue one by one": bench.times(partial(one_by_one, Timetable), singles, size),
            "nextdue bulk": bench.times(partial(bulk, Timetable), both, size),
            "heapq hold": bench.times(hold_heapq, ["hold"], bench.size, size, bench.size),
            "heapq one by one": bench.times(one_by_one_heapq, singles, size),
            "heapq bulk": bench.times(bulk_heapq, both, size),
        }
        # Ten million in a heap of tuples take minutes: once is enough for a line on paper with logarithmic axes.
        figures = bench.best(f"all at {size:,}", sides, repeats=1 if size > FULL_SIZE else None)
        for label, taken in figures.items():
            side, _, work = label.partition(" ")
            for name in singles if work == "one by one" else ["hold"] if work == "hold" else ["all"]:
                points = found[side].setdefault("bulk add + pop" if name == "all" else name, [])
                points.append((size, taken[name]))
    return found


def _times(factor: float) -> Goal:
    return Goal("≥", factor, "x")


def _lines(
    number: int, work: str, name: str, figures: Mapping[str, Figures], goals: Mapping[str, Goal]
) -> Iterator[Line]:
    """One line for each peer; one that did not run has no figure."""
    ours = figures[OURS][name]
    unit = "B" if name == "memory" else "ns"
    for peer, goal in goals.items():
        yield Line(number, work, ours, unit, goal, peer, figures[peer][name] if peer in figures else None)


def _phases(call: Callable[[], Iterator[None]], names: Sequence[str], operations: int, report: Report) -> Figures:
    times = [ns / operations for ns in phase_times(lambda size: call(), operations)]
    return dict(zip(names, times, strict=True)) | {"all": sum(times)}


def _churn_memory(size: int, pairs: int, report: Report) -> Figures:
    table, times = Timetable(), random_times(size).tolist()
    gc.collect()
    before = resident_bytes()
    add, cancel = table.add, table.cancel
    for at in times:
        add(at, noop)
    live = peak = resident_bytes() - before
    for done in range(pairs):
        cancel(add(times[done % size], noop))
        if not done % _LOOK_EVERY:
            peak = max(peak, resident_bytes() - before)
    return {"live": live / size, "peak": peak / size}


def _lags_ours(waiting: int, timers: int, report: Report) -> list[int]:
    return _lags_of(Scheduler(workers=WORKERS), waiting, timers)


def _lags_plain(waiting: int, timers: int, report: Report) -> list[int]:
    return _lags_of(PlainScheduler(workers=WORKERS), waiting, timers)


def _lags_asyncio(waiting: int, timers: int, report: Report) -> list[int]:
    return lateness_asyncio(timers, waiting)


def _lags_of(scheduler: Scheduler | PlainScheduler, waiting: int, timers: int) -> list[int]:
    for delay in (HOUR + random_times(waiting) / 1e9).tolist():
        scheduler.schedule(noop, delay)
    gc.collect()
    lags = lateness(scheduler, timers)
    scheduler.shutdown()
    return lags


def _histogram(lags: Sequence[int]) -> list[int]:
    """Count the lags up to each edge and, last, those above all."""
    counts = [0] * (len(_LAG_EDGES_US) + 1)
    for lag in lags:
        counts[bisect_right(_LAG_EDGES_US, lag / 1000)] += 1
    return counts


def _fixed_rate(jobs: int, slots: int, report: Report) -> Figures:
    """Spread the jobs evenly over the period; note each run against the slot it is for."""
    period = 10**9
    starts, runs, lags, ended = [0] * jobs, [0] * jobs, [], threading.Event()
    clock = time.monotonic_ns

    def run(i: int) -> None:
        lags.append(clock() - starts[i] - runs[i] * period)
        runs[i] += 1

    with Scheduler(workers=WORKERS) as scheduler:
        first_at = clock() + round(_LEAD * 1e9 * (1 + jobs / 1e5))
        handles = []
        for i in range(jobs):
            starts[i] = first_at + i * period // jobs
            handles.append(scheduler.schedule_at_fixed_rate(run, 0, 1.0, at=starts[i], args=(i,), max_runs=slots))
        late = clock() >= first_at
        gc.collect()
        time.sleep(max(0.0, (first_at - clock()) / 1e9))
        wall, cpu = time.perf_counter(), time.process_time()
        scheduler.schedule(ended.set, at=first_at + slots * period)
        ended.wait(slots + _RATE_GRACE)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        deadline = time.monotonic() + _RATE_GRACE
        for job in handles:
            job.wait(max(0.0, deadline - time.monotonic()))
    if late:
        raise RuntimeError("the first slots came while jobs were still being added: the figures mean nothing")
    lags.sort()
    return {
        "lost": jobs * slots - sum(runs),
        "skipped": sum(job.skipped for job in handles),
        "early": sum(lag < 0 for lag in lags),
        "p50": percentile(lags, 50) / 1000,
        "worst": lags[-1] / 1000,
        "cpu": 100 * cpu / wall,
    }
