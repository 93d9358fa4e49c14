"""``nextdue demo``: a scheduler at work with a million timers, beside the scheduler one writes in an afternoon.

Each side lives in a process of its own and does the same: add the timers, an hour or more ahead; with all of them
waiting, let some more come due at a steady rate and note how late each runs; cancel most; bring the rest forward to
this moment and run them. Every run is checked against the instant it was promised for, every job for having run once.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nextdue.cli._arguments import count
from nextdue.cli._console import Console, Progress, bar
from nextdue.cli._measure import (
    STEADY_RATE,
    STEADY_TIMERS,
    Report,
    lateness,
    percentile,
    ratio,
    resident_bytes,
    run_in_child,
)
from nextdue.cli._works import HOUR, NEVER, SCHEDULERS, WORKERS, random_times

CANCELLED_SHARE = 0.8
_CHUNK = 10_000  # jobs between two reports of progress
_REPORT_INTERVAL = 0.1  # seconds
_MAX_WAIT = 120.0  # seconds for the last runs, after which they are lost
_LAG_EDGES_US = (25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 50_000)
_LAG_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side did: rates in timers a second, lags in nanoseconds in order, and the promises it broke."""

    rates: dict[str, float]
    lags: list[int]
    early: int
    bytes_a_timer: float
    broken: list[str]

    def lag_us(self, percent: float) -> float:
        """Return the lag that ``percent`` of the steady runs did not exceed, in microseconds."""
        return percentile(self.lags, percent) / 1000 if self.lags else math.nan


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what ``nextdue demo`` takes."""
    parser.add_argument(
        "--timers", type=count, default="1e6", metavar="N", help="how many wait at once (default: %(default)s)"
    )
    parser.add_argument(
        "--steady", type=count, default=STEADY_TIMERS, metavar="N", help="how many to time (default: %(default)s)"
    )


def run(options: Namespace, console: Console) -> int:
    """Run both sides and print them side by side; 1 if a promise broke."""
    console.line(
        f"{options.timers:,} timers wait; {options.steady:,} more come due, {STEADY_RATE:,} a second;"
        f" {CANCELLED_SHARE:.0%} are cancelled; the rest runs at once on {WORKERS} workers"
    )
    with console.progress() as progress:
        outcomes = {side: _run_side(side, options, progress) for side in SCHEDULERS}
    _print_figures(outcomes, console)
    _print_lags(outcomes, options.steady, console)
    broken = [f"{side}: {what}" for side, outcome in outcomes.items() for what in outcome.broken]
    for line in broken:
        console.line(f"promise broken: {line}")
    return 1 if broken else 0


def _run_side(side: str, options: Namespace, progress: Progress) -> Outcome:
    def on_report(report: tuple[str, int] | int) -> None:
        if isinstance(report, int):
            progress.at(report)
        else:
            label, total = report
            progress.stage(f"{side}: {label}", total)

    return run_in_child(partial(_live, side, options.timers, options.steady), on_report)


def _live(side: str, timers: int, steady_timers: int, report: Report) -> Outcome:
    """Take one scheduler through the whole demonstration."""
    delays = (HOUR + random_times(timers) / 1e9).tolist()
    order = np.random.default_rng(3).permutation(timers).tolist()
    chosen = order[: round(timers * CANCELLED_SHARE)]
    kept = order[len(chosen) :]
    arguments = [(i,) for i in range(timers)]
    promised_at = [NEVER] * timers  # a job that runs before it was brought forward runs early
    ran: list[int] = []  # numbers of jobs as they run, ~number for an early run; an append is safe among threads
    all_ran = threading.Event()

    def task(number: int) -> None:
        ran.append(number if time.monotonic_ns() >= promised_at[number] else ~number)
        if len(ran) >= len(kept):
            all_ran.set()

    scheduler = SCHEDULERS[side](workers=WORKERS)
    rates = {}
    gc.collect()
    bytes_before = resident_bytes()

    jobs: list[Any] = []
    start = time.perf_counter()
    for chunk in _chunks("add", range(timers), report):
        jobs += [scheduler.schedule(task, delays[i], args=arguments[i]) for i in chunk]
    rates["add"] = timers / (time.perf_counter() - start)
    bytes_a_timer = (resident_bytes() - bytes_before) / timers

    report((f"{STEADY_RATE:,} timers a second come due", 1))
    lags = lateness(scheduler, steady_timers)
    report(1)

    start = time.perf_counter()
    cancelled = 0
    for chunk in _chunks("cancel", chosen, report):
        cancelled += sum([scheduler.cancel(jobs[i]) for i in chunk])
    rates["cancel"] = len(chosen) / (time.perf_counter() - start)

    start = time.perf_counter()
    deadline = start + _MAX_WAIT
    for chunk in _chunks("bring forward", kept, report):
        for i in chunk:
            promised_at[i] = now = time.monotonic_ns()
            scheduler.reschedule(jobs[i], at=now)
    report(("fire", len(kept)))
    while not all_ran.wait(_REPORT_INTERVAL) and time.perf_counter() < deadline:
        report(len(ran))
    report(len(ran))
    rates["re-arm and fire"] = len(kept) / (time.perf_counter() - start)
    scheduler.shutdown()

    times_run = np.bincount([max(number, ~number) for number in ran], minlength=timers)
    early = sum(number < 0 for number in ran) + sum(lag < 0 for lag in lags)
    faults = {
        "runs that started early": early,
        "cancels of waiting jobs that were refused": len(chosen) - cancelled,
        "jobs that never ran": np.count_nonzero(times_run[kept] == 0) + steady_timers - len(lags),
        "jobs that ran twice": np.count_nonzero(times_run[kept] > 1),
        "jobs that ran though cancelled": np.count_nonzero(times_run[chosen]),
    }
    broken = [f"{number:,} {fault}" for fault, number in faults.items() if number]
    return Outcome(rates, lags, early, bytes_a_timer, broken)


def _chunks(label: str, numbers: Sequence[int], report: Report) -> Iterator[Sequence[int]]:
    report((label, len(numbers)))
    for begin in range(0, len(numbers), _CHUNK):
        yield numbers[begin : begin + _CHUNK]
        report(min(begin + _CHUNK, len(numbers)))


def _print_figures(outcomes: Mapping[str, Outcome], console: Console) -> None:
    ours, plain = outcomes.values()

    def row(name: str, our_figure: float, plain_figure: float, times_better: float) -> tuple[str, ...]:
        return name, f"{times_better:.1f} x", f"{our_figure:,.0f}", f"{plain_figure:,.0f}"

    rows = [
        row(f"{name}, timers/s", our_rate, plain.rates[name], our_rate / plain.rates[name])
        for name, our_rate in ours.rates.items()
    ]
    for name, percent in (("p50", 50), ("p99", 99), ("max", 100)):
        our_lag, plain_lag = ours.lag_us(percent), plain.lag_us(percent)
        rows.append(row(f"lateness {name}, µs", our_lag, plain_lag, ratio(our_lag, plain_lag)))
    rows.append(("early runs", "", f"{ours.early:,}", f"{plain.early:,}"))
    our_bytes, plain_bytes = ours.bytes_a_timer, plain.bytes_a_timer
    rows.append(row("memory a job, B", our_bytes, plain_bytes, ratio(our_bytes, plain_bytes)))
    console.table("the same work on both sides", ("figure", "better", *outcomes), rows)


def _print_lags(outcomes: Mapping[str, Outcome], steady_timers: int, console: Console) -> None:
    console.line(f"\nhow late the {steady_timers:,} steady ones ran, with all the others waiting")
    console.line("  ".join((" " * 10, *(side.ljust(_LAG_BAR_WIDTH) for side in outcomes))).rstrip())
    histograms = [_lag_counts(outcome.lags) for outcome in outcomes.values()]
    labels = [*(f"< {_microseconds(edge)}" for edge in _LAG_EDGES_US), "later"]
    for label, *row in zip(labels, *histograms, strict=True):
        if any(row):
            bars = (bar(part, steady_timers, _LAG_BAR_WIDTH).ljust(_LAG_BAR_WIDTH) for part in row)
            console.line("  ".join((label.rjust(10), *bars)).rstrip())


def _lag_counts(lags: Sequence[int]) -> list[int]:
    counts = [0] * (len(_LAG_EDGES_US) + 1)
    for lag in lags:
        counts[bisect_right(_LAG_EDGES_US, lag / 1000)] += 1
    return counts


def _microseconds(number: int) -> str:
    return f"{number // 1000} ms" if number >= 1000 else f"{number} µs"
