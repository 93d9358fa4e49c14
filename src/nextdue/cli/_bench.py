"""``nextdue bench``: every figure beside those of the heapq baselines, taken in one run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from nextdue.cli._arguments import UsageError, count
from nextdue.cli._console import Console
from nextdue.cli._measure import FIGURES, TIMES, Row, machine, measure


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what ``nextdue bench`` takes."""
    parser.add_argument(
        "--size", type=count, default="1e6", metavar="N", help="timers or jobs in each work (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=count, default="3", metavar="N", help="the best of N counts (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write every sample there")


def run(options: Namespace, console: Console) -> int:
    """Measure, print the table, write the samples; return the exit status."""
    if options.json:
        _write(options.json, "")  # better to learn it now than after minutes
    with console.progress() as progress:
        rows = list(measure(TIMES + FIGURES, options.size, options.repeats, progress))
    print_rows(rows, f"{options.size:,} timers or jobs, best of {options.repeats}", console)
    if options.json:
        _write(options.json, json.dumps(as_json(rows, options.size), indent=1) + "\n")
    return 0


def print_rows(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print a line for each figure and peer, ratios first, and how they were taken."""

    def figure(row: Row, side: str) -> str:
        return f"{row.best(side):,.0f} {row.unit}"

    cells = [
        (row.name, f"{row.ratio(side):.1f} x", figure(row, row.ours), figure(row, side), side)
        for row in rows
        for side in row.others
    ]
    console.table(title, ("work", "ratio", "nextdue", "other", "which"), cells)
    facts = machine()
    console.line(
        f"\n{facts['python']}, {facts['backend']}, {facts['system']}, {facts['cores']} cores;"
        f" ratio: how many times better; times are a timer or job; garbage collector {'on' if facts['gc'] else 'off'}"
    )


def as_json(rows: Sequence[Row], size: int) -> dict[str, object]:
    """Return every sample and what it depends on."""
    return {
        "machine": machine(),
        "size": size,
        "rows": [{"name": row.name, "unit": row.unit, "samples": row.samples} for row in rows],
    }


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--json must be writable, got {path!r}: {error.strerror}") from error
