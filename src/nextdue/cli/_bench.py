"""``nextdue bench``: the goals of speed, each beside its peers, taken in one run and judged."""

from __future__ import annotations

import json
import math
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nextdue.cli import _plots
from nextdue.cli._arguments import UsageError, count, numbers
from nextdue.cli._console import Console
from nextdue.cli._goals import FULL_SIZE, GOALS, HEADER, Bench, Line, curves, take
from nextdue.cli._measure import FIGURES, TIMES, Row, load_average, machine, measure
from nextdue.cli._peers import Peers

QUICK_SIZE = 10**4
_BUSY = 0.25  # load a core at the start, above which figures are not worth keeping


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what ``nextdue bench`` takes."""
    parser.add_argument(
        "--size", type=count, metavar="N", help="what stands for a million timers or jobs (default: 1e6)"
    )
    parser.add_argument("--repeats", type=count, metavar="N", help="the best of N counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size, once: a look, not a measurement")
    parser.add_argument("--only", type=numbers(GOALS), metavar="N,N", help="these goals and no others")
    parser.add_argument("--figures", action="store_true", help="every figure beside the heapq baselines, not the goals")
    parser.add_argument("--json", metavar="FILE", help="also write every sample there")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIRECTORY",
        help="also measure the cost over the size; write samples and plots there",
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default="benchmarks/peers",
        metavar="DIRECTORY",
        help="sources of the peers in other languages (default: %(default)s)",
    )


def run(options: Namespace, console: Console) -> int:
    """Measure, print the table, write the samples; return the exit status."""
    options.size = options.size or (QUICK_SIZE if options.quick else FULL_SIZE)
    options.repeats = options.repeats or (1 if options.quick else 3)
    if options.json:
        _write(options.json, "")  # better to learn it now than after minutes
    return _figures(options, console) if options.figures else _goals(options, console)


def _figures(options: Namespace, console: Console) -> int:
    with console.progress() as progress:
        rows = list(measure(TIMES + FIGURES, options.size, options.repeats, progress))
    print_rows(rows, f"{options.size:,} timers or jobs, best of {options.repeats}", console)
    if options.json:
        _write(options.json, json.dumps(as_json(rows, options.size), indent=1) + "\n")
    return 0


def _goals(options: Namespace, console: Console) -> int:
    if options.results:
        try:
            options.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--results must be a directory, got {str(options.results)!r}: {error.strerror}"
            ) from error
    began, load = datetime.now(UTC), load_average()
    title = f"{options.size:,} timers or jobs for a million, best of {options.repeats}"
    if options.size != FULL_SIZE:
        title += " (SCALED: the goals are meant for 1,000,000)"
    lines: list[Line] = []
    try:
        with TemporaryDirectory() as scratch, console.progress() as progress:
            peers = Peers(options.peers, Path(scratch))
            bench = Bench(options.size, options.repeats, peers, progress, isolated=options.size > QUICK_SIZE)
            for line in take(bench, options.only or list(GOALS)):
                lines.append(line)
            drawn = curves(bench) if options.results else {}
    except KeyboardInterrupt:  # minutes of work: show what there is
        console.table(f"{title}, interrupted", HEADER, [line.cells() for line in lines])
        raise
    facts = machine()
    facts |= {"date": f"{began:%Y-%m-%d %H:%M} UTC", "load_average": load, "load_average_after": load_average()}
    console.table(title, HEADER, [line.cells() for line in lines])
    for text in notes(lines, bench.missing, facts):
        console.line(text)
    found = {
        "machine": facts,
        "size": options.size,
        "repeats": options.repeats,
        "lines": [line_as_json(line) for line in lines],
        "missing": bench.missing,
        "samples": bench.samples,
        "lags": bench.lags,
        "curves": drawn,
    }
    text = json.dumps(found, indent=1, default=float, ensure_ascii=False) + "\n"
    if options.json:
        _write(options.json, text)
    if options.results:
        whole = options.size == FULL_SIZE and not options.only
        _keep(options.results, "" if whole else "-part", title, lines, found, console)
    return 0


def notes(lines: Iterable[Line], missing: dict[str, str], facts: dict[str, Any]) -> list[str]:
    """Return what has to be known to read the table: how it was taken, what is missing, who else was at work."""
    texts = [
        "",
        f"{facts['python']}, {facts['backend']}, {facts['cpu']}, {facts['cores']} cores, {facts['date']};"
        f" garbage collector {'on' if facts['gc'] else 'off'}",
        "times are a timer or job; ratio: how many times better (where the goal is an upper bound: how many times the"
        " other); a ratio within 10 % of its goal is a draw",
    ]
    if facts["load_average"] is None:
        texts.append("this system tells no load average")
    else:
        busy = facts["load_average"] > _BUSY * (facts["cores"] or 1)
        texts.append(
            f"load average {facts['load_average']} at the start, {facts['load_average_after']} at the end"
            + (": OTHERS WERE AT WORK, do not keep these figures" if busy else "")
        )
    texts += [f"no {peer}: {reason}" for peer, reason in missing.items()]
    texts += [f"goal {line.number} {line.note}" for line in lines if line.note]
    return texts


def line_as_json(line: Line) -> dict[str, object]:
    """Return a line and what follows from it."""
    return {
        "goal": line.number,
        "work": line.work,
        "ours": line.ours,
        "unit": line.unit,
        "peer": line.peer,
        "theirs": line.theirs,
        "ratio": None if line.ratio is None or math.isnan(line.ratio) else line.ratio,
        "bound": str(line.goal) if line.goal else None,
        "verdict": line.verdict,
        "note": line.note,
    }


def _keep(
    directory: Path, suffix: str, title: str, lines: Sequence[Line], found: dict[str, Any], console: Console
) -> None:
    """Write samples, table and plots, named by the version of Python, so that several stand side by side.

    What is scaled or not all has a name of its own: a quick look does not replace a measurement.
    """
    version = ".".join(platform.python_version_tuple()[:2]) + suffix
    header = "\n".join(("| " + " | ".join(HEADER) + " |", "|---|" + "--:|" * (len(HEADER) - 1)))
    rows = "\n".join("| " + " | ".join(line.cells()) + " |" for line in lines)
    remarks = "\n".join(f"- {text}" for text in notes(lines, found["missing"], found["machine"]) if text)
    _write(str(directory / f"goals-{version}.json"), json.dumps(found, default=float, ensure_ascii=False) + "\n")
    _write(str(directory / f"goals-{version}.md"), f"# {title}\n\n{header}\n{rows}\n\n{remarks}\n")
    console.line(_plots.draw(found, directory, version))


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
