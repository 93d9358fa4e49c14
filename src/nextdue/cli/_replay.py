"""``nextdue replay``: the sessions of a web access log, each with an idle timer that every request re-arms.

The log is the clock: the timetable is told the time of each request and reads no other. A session ends when its client
has been idle for the whole limit, so a request at the very instant its timer is due begins a new session (*due* is
``run_at <= now``, here as everywhere). A stamp that lies before one already seen is taken for the latest one seen:
servers write a line when the request ends, and time does not go back for a timer.
"""

from __future__ import annotations

import math
import os
import time
from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from nextdue import HeapqTimetable, Timetable
from nextdue.cli._access_log import NANOSECONDS, read_requests
from nextdue.cli._arguments import UsageError, duration, speed
from nextdue.cli._console import Console, bar
from nextdue.cli._works import AnyTimetable

BACKENDS: Mapping[str, Callable[[], AnyTimetable]] = {"nextdue": Timetable, "heapq": HeapqTimetable}
LAST_INSTANT = 2**63 - 2  # what lies beyond never comes
BATCH = 50_000  # requests parsed ahead, so that the time of the timers is taken without the parser's
MAX_WAIT = 3600.0  # seconds; what a platform can wait for at once is limited
MAX_LISTED = 10  # malformed lines shown one by one
_LENGTHS = ("0 s", "< 10 s", "< 1 min", "< 5 min", "< 15 min", "< 30 min", "< 1 h", "< 3 h", "longer")
_LENGTH_EDGES = [seconds * NANOSECONDS for seconds in (10, 60, 300, 900, 1800, 3600, 10_800)]


@dataclass(slots=True)
class Session:
    """The requests of one client with no idle time between them; instants in nanoseconds of the log."""

    client: bytes
    first_at: int
    last_at: int
    timer_id: int


class Replay:
    """The state of a replay: the sessions alive, their timers, and the counts.

    Args:
        timetable: an empty one, for the timers.
        idle: nanoseconds without a request after which a session ends.
        wait_until: called with each instant of the log at which something happens, before it does.
    """

    def __init__(
        self, timetable: AnyTimetable, idle: int, wait_until: Callable[[int], object] = lambda at: None
    ) -> None:
        self._timetable = timetable
        self._idle = idle
        self._wait_until = wait_until
        self._alive: dict[bytes, Session] = {}
        self._now = 0
        self.requests = self.rearms = self.expiries = self.peak_alive = self.went_back = 0
        self.length_counts = [0] * len(_LENGTHS)

    def request(self, at: int, client: bytes) -> None:
        """Take a request: end the sessions whose time has come, then begin one or re-arm one."""
        if at < self._now:
            self.went_back += 1
        else:
            self._expire_until(at)
            self._wait_until(at)
            self._now = at
        self.requests += 1
        session = self._alive.get(client)
        if session is not None:
            session.last_at = self._now
            self._timetable.reschedule(session.timer_id, self._idle_at())
            self.rearms += 1
            return
        session = Session(client, self._now, self._now, timer_id=0)
        session.timer_id = self._timetable.add(self._idle_at(), session)
        self._alive[client] = session
        self.peak_alive = max(self.peak_alive, len(self._alive))

    def finish(self) -> None:
        """The log has ended: let the remaining sessions run out, each at its time."""
        self._expire_until(math.inf)

    @property
    def operations(self) -> int:
        """How often a timer was added, re-armed or fired."""
        return self.requests + self.expiries

    def _idle_at(self) -> int:
        return min(self._now + self._idle, LAST_INSTANT)

    def _expire_until(self, now: float) -> None:
        while (due_at := self._timetable.next_run_at()) is not None and due_at <= now:
            self._wait_until(due_at)
            for session in self._timetable.pop_due(due_at):
                del self._alive[session.client]
                self.expiries += 1
                length = session.last_at - session.first_at
                self.length_counts[bisect_right(_LENGTH_EDGES, length) + 1 if length else 0] += 1


class Pace:
    """Keeps real time in step with the log's, ``speed`` times as fast; infinity never waits."""

    def __init__(self, speed: float, clock: Callable[[], int], sleep: Callable[[float], object]) -> None:
        self._speed = speed
        self._clock = clock
        self._sleep = sleep
        self._start: tuple[int, int] | None = None  # the same instant in the log and on the clock
        self.waited_ns = 0

    def wait_until(self, at: int) -> None:
        """Sleep until the log's instant ``at`` has come."""
        if self._speed == math.inf:
            return
        now = began = self._clock()
        if self._start is None:
            self._start = at, now
        log_start, clock_start = self._start
        target = clock_start + (at - log_start) / self._speed
        while now < target:
            self._sleep(min((target - now) / NANOSECONDS, MAX_WAIT))
            now = self._clock()
        self.waited_ns += now - began


class Malformed:
    """Counts the lines that could not be used and keeps the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[int, str]] = []

    def __call__(self, line_number: int, reason: str) -> None:
        self.count += 1
        if self.count <= MAX_LISTED:
            self.first.append((line_number, reason))


class CountedLines:
    """The lines of a file, and how many bytes of it they were so far (a pipe cannot ``tell``)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes_read = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self.bytes_read += len(line)
            yield line


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what ``nextdue replay`` takes."""
    parser.add_argument("file", metavar="FILE", help="Common or Combined Log Format, or CSV: unix_seconds,client")
    parser.add_argument(
        "--idle", type=duration, required=True, metavar="TIME", help="idle time that ends a session: 90s, 30m, 1h30m"
    )
    parser.add_argument("--backend", choices=BACKENDS, default="nextdue", help="whose timetable (default: %(default)s)")
    parser.add_argument(
        "--speed",
        type=speed,
        default="max",
        metavar="SPEED",
        help="max, or times real time: 60x, 1x (default: %(default)s)",
    )


def run(
    options: Namespace,
    console: Console,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Replay the log and print what happened.

    Returns:
        The exit status: 0.

    Raises:
        UsageError: the file cannot be read or holds no usable line.
    """
    pace = Pace(options.speed, clock, sleep)
    replay = Replay(BACKENDS[options.backend](), options.idle, pace.wait_until)
    malformed = Malformed()
    batch_size = BATCH if options.speed == math.inf else 1
    busy_ns = 0
    try:
        with open(options.file, "rb") as file, console.progress() as progress:
            lines = CountedLines(file)
            requests = read_requests(lines, malformed)
            progress.stage(f"replay {os.path.basename(options.file)}", os.fstat(file.fileno()).st_size)
            while batch := list(islice(requests, batch_size)):
                start = clock()
                for at, client in batch:
                    replay.request(at, client)
                busy_ns += clock() - start
                progress.at(lines.bytes_read)
            start = clock()
            replay.finish()
            busy_ns += clock() - start
    except OSError as error:
        raise UsageError(f"FILE must be readable, got {options.file!r}: {error.strerror}") from error
    _print_malformed(malformed, console)
    if not replay.requests:
        raise UsageError(f"FILE must have at least one usable line, got {options.file!r}")
    _print_replay(replay, busy_ns - pace.waited_ns, options, console)
    return 0


def _print_malformed(malformed: Malformed, console: Console) -> None:
    if not malformed.count:
        return
    console.line(f"malformed lines: {malformed.count:,}")
    for line_number, reason in malformed.first:
        console.line(f"  line {line_number}: {reason}")
    if malformed.count > len(malformed.first):
        console.line(f"  and {malformed.count - len(malformed.first):,} more")


def _print_replay(replay: Replay, busy_ns: int, options: Namespace, console: Console) -> None:
    figures = {
        "requests": replay.requests,
        "re-arms": replay.rearms,
        "expiries": replay.expiries,
        "most sessions alive at once": replay.peak_alive,
        "times that went back": replay.went_back,
        "timers/s": round(replay.operations * NANOSECONDS / max(busy_ns, 1)),
    }
    rows = [(name, f"{figure:,}") for name, figure in figures.items()]
    console.table(f"{os.path.basename(options.file)}, backend {options.backend}", ("figure", "value"), rows)
    console.line("\nsession length")
    for label, count in zip(_LENGTHS, replay.length_counts, strict=True):
        console.line(f"  {label:>8}  {count:>9,}  {bar(count, max(replay.length_counts))}".rstrip())
