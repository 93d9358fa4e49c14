"""How the cost grows with the size: every time at each size, as a table and, with ``--json``, as samples.

python benchmarks/sizes.py --sizes 1e3,1e4,1e5,1e6,1e7 --json benchmarks/results/sizes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from nextdue.cli._arguments import count
from nextdue.cli._bench import as_json, print_rows
from nextdue.cli._console import open_console
from nextdue.cli._measure import measure, time_of
from nextdue.cli._works import SCHEDULER_WORKS, TIMETABLE_WORKS

MAX_JOBS = 10**6  # ten million jobs in the queue of a plain scheduler's pool want more memory than most have


def sizes(text: str) -> list[int]:
    """Return the sizes in a list with commas."""
    return [count(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure at each size in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=sizes, default="1e3,1e4,1e5,1e6", metavar="N,N")
    parser.add_argument("--repeats", type=count, default="3", metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    console = open_console()
    taken = []
    for size in options.sizes:
        works = TIMETABLE_WORKS + (SCHEDULER_WORKS if size <= MAX_JOBS else ())
        with console.progress() as progress:
            rows = list(measure(map(time_of, works), size, options.repeats, progress))
        print_rows(rows, f"{size:,} timers or jobs, best of {options.repeats}", console)
        taken.append(as_json(rows, size))
    if options.json:
        options.json.write_text(json.dumps(taken, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
