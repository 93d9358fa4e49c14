"""Measure the drop-ins, print the table, and keep it when asked."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import drop_ins
from nextdue.cli._arguments import count
from nextdue.cli._bench import notes
from nextdue.cli._console import Console, open_console
from nextdue.cli._goals import HEADER, Bench, Line, take
from nextdue.cli._measure import load_average, machine
from nextdue.cli._peers import Peers

QUICK_SIZE = 10**4
RESULTS = Path(__file__).parents[1] / "results" / "drop-ins.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    names = [module.name for module in pkgutil.iter_modules(drop_ins.__path__) if not module.name.startswith("_")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drop_ins")
    parser.add_argument("drop_ins", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--size", type=count, default=drop_ins.FULL_SIZE, help="what stands for a million")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size, once: a look, not a measurement")
    parser.add_argument("--results", action="store_true", help=f"also write the table to {RESULTS.name}")
    options = parser.parse_args(arguments)
    unknown = set(options.drop_ins) - set(names)
    if unknown:
        parser.error(f"NAME must be one of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    size, repeats = (QUICK_SIZE, 1) if options.quick else (options.size, 3)
    facts = machine() | {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "load_average": load_average()}
    console = open_console()
    lines: list[Line] = []
    with TemporaryDirectory() as scratch, console.progress() as progress:
        bench = Bench(size, repeats, Peers(Path(scratch), Path(scratch)), progress)
        for name in options.drop_ins or names:
            goals = import_module(f"benchmarks.drop_ins.{name}").GOALS
            lines += [replace(line, number=name) for line in take(bench, range(len(goals)), dict(enumerate(goals)))]
    facts["load_average_after"] = load_average()

    def show(console: Console) -> None:
        console.table(f"drop-ins, best of {repeats}", HEADER, [line.cells() for line in lines])
        for text in notes(lines, bench.missing, facts):
            console.line(text)

    show(console)
    if options.results:
        RESULTS.parent.mkdir(exist_ok=True)
        with open(RESULTS, "w", encoding="utf-8") as file, redirect_stdout(file):
            show(Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
