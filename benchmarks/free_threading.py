"""Two builds of one CPython side by side, with the GIL and without: tasks on two workers, and what one thread pays.

python benchmarks/free_threading.py GIL_PYTHON FREE_THREADED_PYTHON [--rounds N]

Both have nextdue installed. Each round asks one and then the other; the best of all rounds counts. Speed-up is that of
two workers over one, in one process; "ratio" is the free-threaded build's time over that of the build with the GIL.
Beside nextdue's operations stands work that has nothing of nextdue in it: so much of a ratio is the interpreter's. Its
loops do no more than call: without the GIL CPython 3.13 does not specialise what it runs, and a lambda or an attribute
in the loop would cost more than what is measured. The collector is off, since the two builds have different ones.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

COUNT = 100_000  # timers or jobs
TASKS = 16
STEPS = 200_000  # of a task: some 10 ms


def spin() -> int:
    """Keep a core busy, without an object that two threads share."""
    total = 0
    for k in range(STEPS):
        total += k & 3
    return total


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def call_each(function: Callable[[int], object], values: Iterable[int]) -> None:
    for value in values:
        function(value)


def call_times(function: Callable[[], object], count: int) -> None:
    for _ in itertools.repeat(None, count):
        function()


def tasks_on(workers: int) -> float:
    from nextdue import Scheduler

    with Scheduler(workers=workers) as scheduler:

        def run() -> None:
            for future in [scheduler.submit(spin) for _ in range(TASKS)]:
                future.result()

        return seconds(run)


def plain_threads(count: int) -> float:
    """The same tasks without nextdue: what the machine has to give at the moment."""

    def share() -> None:
        for _ in range(TASKS // count):
            spin()

    def run() -> None:
        threads = [threading.Thread(target=share) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return seconds(run)


def single() -> dict[str, float]:
    """Seconds of the CPU for each operation, `COUNT` times on one thread: other processes hardly matter."""
    import numpy as np

    from nextdue import Agenda, Timetable

    def cost(work: Callable[[], object]) -> float:
        return seconds(work, time.thread_time)

    order = np.random.default_rng(1).permutation(COUNT).astype(np.int64)
    times = order.tolist()
    taken = {"a plain loop": cost(spin), "a call": cost(lambda: call_each(operator.invert, times))}

    table = Timetable()
    taken["add"] = cost(lambda: call_each(table.add, times))
    taken["pop"] = cost(lambda: call_times(table.pop, COUNT))

    ids = table.add_many(order).tolist()
    taken["cancel"] = cost(lambda: call_each(table.cancel, ids))

    taken["add_many"] = cost(lambda: table.add_many(order))
    taken["pop_due_ids"] = cost(lambda: table.pop_due_ids(COUNT))

    agenda = Agenda()
    taken["schedule"] = cost(lambda: call_each(functools.partial(agenda.schedule, int), times))
    agenda = Agenda()
    for at in times:
        agenda.schedule(int, at=at)
    taken["run_due"] = cost(agenda.run_due)
    return taken


TASK_WORKS = (tasks_on, plain_threads)


def answer() -> None:
    """One round of one side, as JSON."""
    import nextdue

    assert nextdue.BACKEND == "compiled"
    gc.disable()
    taken = best(single() for _ in range(3))
    taken |= best({f"{work.__name__} {n}": work(n) for work in TASK_WORKS for n in (1, 2)} for _ in range(5))
    print(json.dumps(taken))


def ask(python: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(subprocess.check_output([python, "-P", __file__, "--answer"]))
    return result


def best(rounds: Iterable[dict[str, float]]) -> dict[str, float]:
    """The least of each, over all rounds."""
    rounds = list(rounds)
    return {name: min(taken[name] for taken in rounds) for name in rounds[0]}


def version(python: str) -> str:
    code = (
        "import sys, sysconfig; value = sysconfig.get_config_var; "
        "print(sys.version.split()[0], 'without the GIL' if value('Py_GIL_DISABLED') else 'with the GIL', "
        "'built with PGO' if '--enable-optimizations' in value('CONFIG_ARGS') else 'built without PGO')"
    )
    return subprocess.check_output([python, "-c", code], text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gil", metavar="GIL_PYTHON")
    parser.add_argument("free", metavar="FREE_THREADED_PYTHON")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    pairs = [(ask(options.gil), ask(options.free)) for _ in range(options.rounds)]
    gil, free = (best(side) for side in zip(*pairs, strict=True))
    print(f"GIL:  {version(options.gil)}\nfree: {version(options.free)}")
    print(f"best of {options.rounds} interleaved rounds; {os.cpu_count()} CPUs, load {load:.1f} at the start\n")
    print(f"{'ns each':24}{'GIL':>10}{'free':>10}{'ratio':>8}")
    counts = {"a plain loop": STEPS}
    for name in gil:
        if not name.startswith(tuple(work.__name__ for work in TASK_WORKS)):
            each = counts.get(name, COUNT) / 1e9
            print(f"{name:24}{gil[name] / each:10.1f}{free[name] / each:10.1f}{free[name] / gil[name]:8.2f}")
    print("\nspeed-up by two")
    for work, label in zip(TASK_WORKS, ("workers", "plain threads"), strict=True):
        one, two = f"{work.__name__} 1", f"{work.__name__} 2"
        print(f"{label:24}{gil[one] / gil[two]:10.2f}{free[one] / free[two]:10.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer()
    else:
        main()
