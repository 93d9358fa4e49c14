"""Compare `Cron` with croniter, rule by rule, over all zones: `make cron LINES=file`.

For each rule and each zone a walk of 1,000 runs (`--runs`) begins six hours before the zone's first change from 2025
on, and another before its first change the other way, unless the first walk has passed it; where there is no change,
one begins in January 2025. Each run has to be later in UTC than the one before, and croniter has to give the same runs,
but for what docs/recurrence.md says of it; such differences are counted by their cause, any other ends the comparison
with an error.

Cron rules read the clock on the wall alone. So zones whose changes, from 2025 to 2087, show the same on that clock are
one kind, whatever their offsets are, and one of them is walked for all of its kind: New York for Chicago, too.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones, reset_tzpath

from croniter import croniter

from nextdue.recurrence import Cron

FIRST, LAST = datetime(2025, 1, 1, tzinfo=UTC), datetime(2088, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

Change = tuple[datetime, timedelta]  # what the clock showed as it was changed, and by how much


def offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    found = instant.astimezone(zone).utcoffset()
    assert found is not None
    return found


def changes(zone: ZoneInfo) -> Iterator[Change]:
    instant, before = FIRST, offset(zone, FIRST)
    while instant < LAST:
        after = offset(zone, instant + DAY)
        if after != before:
            low, high = instant, instant + DAY
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
            yield (high + before).replace(tzinfo=None), after - before
        instant, before = instant + DAY, after


def kinds_of_zones() -> dict[tuple[Change, ...], list[str]]:
    kinds = defaultdict(list)
    for name in sorted(available_timezones()):
        kinds[tuple(changes(ZoneInfo(name)))].append(name)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))


def starts(kind: tuple[Change, ...], zone: ZoneInfo) -> list[datetime]:
    found = {}
    for shown, step in kind:
        found.setdefault(step > timedelta(), shown)
    if not found:
        return [FIRST]
    return [(shown - 6 * HOUR).replace(tzinfo=zone).astimezone(UTC) for shown in found.values()]


def our_runs(rule: Cron, start: datetime, count: int) -> list[datetime]:
    runs: list[datetime] = []
    while len(runs) < count and (found := rule.next_after(start)) is not None:
        found = found.astimezone(UTC)
        if found <= start:
            sys.exit(f"{rule!r} gives {found} after {start}")
        runs.append(start := found)
    return runs


def their_runs(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    iterator = croniter(expression, start.astimezone(zone))
    while (found := iterator.get_next(datetime).astimezone(UTC)) <= end:
        yield found


def cause(expression: str, zone: ZoneInfo, instant: datetime, is_ours: bool) -> str:
    """Why only one of the two has a run, as docs/recurrence.md has it."""
    minute, hour = expression.split()[:2]
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    local = instant.astimezone(zone)
    back = offset(zone, local.replace(fold=0)) - offset(zone, local.replace(fold=1)) if local.fold else timedelta()
    ends_gap = offset(zone, instant) > offset(zone, instant - MINUTE)
    if is_ours and not is_fixed and timedelta() < back < HOUR:
        return "following rule, clock back by less than an hour: croniter loses runs"
    if not is_ours and is_fixed and back:
        return "fixed rule, repeated hour: croniter runs in both"
    if not is_ours and not is_fixed and ends_gap and hour != "*":
        return "following rule, skipped hour: croniter runs at its end"
    sys.exit(f"unexplained: only {'nextdue' if is_ours else 'croniter'} has {instant} of {expression!r} in {zone.key}")


def rules_of(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    rules, refused = [], []
    for line in lines:
        try:
            Cron(line)
        except ValueError as error:
            refused.append(str(error))
        else:
            rules.append(line)
    return rules, refused


def main() -> None:
    reset_tzpath(())  # the zones of the package tzdata, whose version is known
    parser = argparse.ArgumentParser(description="Compare Cron with croniter over all zones.")
    parser.add_argument("lines", type=Path, help="a file of cron expressions, one a line")
    parser.add_argument("--runs", type=int, default=1000, help="of each walk (1000)")
    parser.add_argument("--after", type=int, default=0, help="kinds of zones that were compared before (0)")
    options = parser.parse_args()
    lines = options.lines.read_text(encoding="utf-8").splitlines()
    rules, refused = rules_of(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))
    kinds = kinds_of_zones()
    zones = sum(map(len, kinds.values()))
    print(f"croniter {version('croniter')}, tzdata {version('tzdata')}: {len(rules)} rules, {zones} zones of", end=" ")
    print(f"{len(kinds)} kinds; refused:", *(refused or ["none"]), sep="\n  ", flush=True)
    walks = runs = passed = 0
    causes: Counter[str] = Counter()
    for k, (kind, names) in enumerate(kinds.items(), 1):
        if k <= options.after:
            continue
        zone = ZoneInfo(names[0])
        for expression in rules:
            end = FIRST
            for start in starts(kind, zone):
                if start + DAY < end:
                    passed += 1
                    continue
                ours = our_runs(Cron(expression, tz=zone), start, options.runs)
                end = ours[-1]
                theirs = set(their_runs(expression, zone, start, end))
                for instant in set(ours) ^ theirs:
                    causes[cause(expression, zone, instant, instant in ours)] += 1
                walks += 1
                runs += len(ours)
        print(f"kind {k}: {names[0]} and {len(names) - 1} more; {walks} walks, {runs} runs", flush=True)
    print(f"{walks} walks, {runs} runs; {passed} walks were left out, as another had passed their change")
    for reason, count in sorted(causes.items()):
        print(f"  {count:>9,}  {reason}")


if __name__ == "__main__":
    main()
