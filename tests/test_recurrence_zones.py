"""Cron over zones and their changes, beside a slow oracle and beside croniter.

The last tests read real cron lines, one a line, from the file that NEXTDUE_CRON_LINES names; they take minutes, and say
with `-s` what they counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import pytest
from croniter import croniter
from cronsim import CronSim

from nextdue.recurrence import Cron

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# A year with changes of each zone that has any.
ZONES = {
    "Europe/Helsinki": 2017,
    "Europe/Prague": 2025,
    "America/New_York": 2024,
    "US/Pacific": 2025,
    "Australia/Lord_Howe": 2025,  # by half an hour
    "America/Havana": 2025,  # at midnight
    "Africa/Casablanca": 2025,  # back for Ramadan
    "Pacific/Apia": 2011,  # a day left out
    "Asia/Kathmandu": 1986,  # by a quarter, once
    "UTC": 2025,
    "Antarctica/Troll": 2025,  # by two hours
    "Europe/Dublin": 2025,  # winter is the exception
}
EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/20 2 * * *",
    "0-59 0-3 * * *",
    "0 0 * * *",
    "15,45 0-4 * * *",
    "30 1-23/8 * * *",
    "30 2 * * sun",
    "5 3 */2 * *",
    "0 12 L * 5",
]


def is_fixed(expression: str) -> bool:
    minute, hour = expression.split()[:2]
    return not minute.startswith("*") and not hour.startswith("*")


def offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    found = instant.astimezone(zone).utcoffset()
    assert found is not None
    return found


@cache
def changes(name: str, first_year: int, last_year: int) -> tuple[tuple[datetime, timedelta, timedelta], ...]:
    """The changes of the zone's offset in these years: instant (to the minute), offset before, offset from then on."""
    zone, found = ZoneInfo(name), []
    instant = datetime(first_year, 1, 1, tzinfo=UTC)
    while instant.year <= last_year:
        following = instant + 12 * HOUR
        if offset(zone, following) != offset(zone, instant):
            low, high = instant, following
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                low, high = (middle, high) if offset(zone, middle) == offset(zone, instant) else (low, middle)
            found.append((high, offset(zone, low), offset(zone, high)))
        instant = following
    return tuple(found)


def windows(name: str) -> list[datetime]:
    return [change for change, _, _ in changes(name, ZONES[name], ZONES[name])] or [datetime(2025, 3, 9, 3, tzinfo=UTC)]


def walk(rule: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """The runs after `start` up to `end`, in UTC, each checked to be later than the one before."""
    while (found := rule.next_after(start)) is not None and found.astimezone(UTC) <= end:
        assert found.astimezone(UTC) > start
        start = found.astimezone(UTC)
        yield start


def expected(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """The same by looking at each minute: what the clock shows, and which times it left out since the minute before."""
    naive = (start - 36 * HOUR).replace(tzinfo=None)
    calendar = CronSim(expression, naive)
    times = set()
    while (time := next(calendar)) <= naive + (end - start) + 72 * HOUR:
        times.add(time)
    shown = start.astimezone(zone).replace(tzinfo=None, fold=0)
    instant = start + MINUTE
    while instant <= end:
        clock = instant.astimezone(zone)
        before, shown = shown, clock.replace(tzinfo=None, fold=0)
        if is_fixed(expression):
            skipped = any(before < time < shown for time in times)
            if skipped or (shown in times and clock.fold == 0):
                yield instant
        elif shown in times:
            yield instant
        instant += MINUTE


@pytest.mark.parametrize("name", ZONES)
def test_runs_round_a_change_are_those_that_a_look_at_each_minute_finds(name: str) -> None:
    zone = ZoneInfo(name)
    for middle in windows(name):
        start, end = middle - 6 * HOUR, middle + 6 * HOUR
        for expression in EXPRESSIONS:
            rule = Cron(expression, tz=name)
            assert list(walk(rule, start, end)) == list(expected(expression, zone, start, end)), expression


@pytest.mark.parametrize("name", ZONES)
def test_next_after_any_minute_round_a_change_is_the_earliest_later_run(name: str) -> None:
    zone = ZoneInfo(name)
    for middle in windows(name):
        start, end = middle - 3 * HOUR, middle + 30 * HOUR
        for expression in ("30 2 * * *", "*/20 2 * * *", "15,45 0-4 * * *"):
            rule = Cron(expression, tz=name)
            times = list(expected(expression, zone, start, end))
            dt = start
            while dt < middle + 3 * HOUR:
                found = rule.next_after(dt)
                assert found is not None
                assert found.astimezone(UTC) == next(time for time in times if time > dt), (expression, dt)
                dt += 5 * MINUTE


def differences(
    expression: str, name: str, change: tuple[datetime, timedelta, timedelta], width: timedelta
) -> tuple[int, Counter[str]]:
    """Compare with croniter round a change; return the count of runs, and that of the differences by their cause."""
    middle, before, after = change
    zone = ZoneInfo(name)
    start, end = middle - width, middle + width
    ours = set(walk(Cron(expression, tz=name), start, end))
    theirs = set()
    iterator = croniter(expression, start.astimezone(zone))
    while (found := iterator.get_next(datetime).astimezone(UTC)) <= end:
        theirs.add(found)
    causes: Counter[str] = Counter()
    for instant in ours ^ theirs:
        if (
            instant in ours
            and not is_fixed(expression)
            and instant.astimezone(zone).fold == 1
            and before - after < HOUR
        ):
            cause = "following rule: croniter loses runs where the clock goes back by less than an hour"
        elif instant in ours:
            cause = f"unexplained: only here, {expression} {name} {instant}"
        elif is_fixed(expression) and after < before and instant.astimezone(zone).fold == 1:
            cause = "fixed rule: croniter runs in both equal hours"
        elif not is_fixed(expression) and after > before and instant == middle and expression.split()[1] != "*":
            cause = "following rule: croniter moves what is skipped to the end of the gap"
        else:
            cause = f"unexplained: only croniter, {expression} {name} {instant}"
        causes[cause] += 1
    return len(ours), causes


@pytest.mark.parametrize("name", ZONES)
def test_runs_agree_with_croniter_but_for_what_the_page_says(name: str) -> None:
    none = (windows(name)[0], timedelta(), timedelta())
    for change in changes(name, ZONES[name], ZONES[name]) or [none]:
        for expression in EXPRESSIONS:
            if name == "Pacific/Apia" and not is_fixed(expression):
                continue  # croniter goes minute by minute through the day left out, anew for each minute of it
            _, causes = differences(expression, name, change, 5 * HOUR)
            assert not [cause for cause in causes if cause.startswith("unexplained")]


def test_croniter_runs_a_fixed_rule_in_both_equal_hours() -> None:
    change = changes("Europe/Prague", 2025, 2025)[1]
    assert differences("30 2 * * *", "Europe/Prague", change, 5 * HOUR) == (
        1,
        {"fixed rule: croniter runs in both equal hours": 1},
    )


def test_croniter_moves_a_skipped_following_rule_to_the_end_of_the_gap() -> None:
    change = changes("Europe/Prague", 2025, 2025)[0]
    assert differences("*/20 2 * * *", "Europe/Prague", change, 5 * HOUR) == (
        0,
        {"following rule: croniter moves what is skipped to the end of the gap": 1},
    )


def test_croniter_loses_runs_where_the_clock_goes_back_by_half_an_hour() -> None:
    change = changes("Australia/Lord_Howe", 2025, 2025)[0]
    _, causes = differences("*/7 * * * *", "Australia/Lord_Howe", change, 5 * HOUR)
    assert causes == {"following rule: croniter loses runs where the clock goes back by less than an hour": 4}


# Real cron lines, when there are any

LINES = os.environ.get("NEXTDUE_CRON_LINES")
real_lines = pytest.mark.skipif(LINES is None, reason="NEXTDUE_CRON_LINES names no file of cron lines")


@cache
def parsed() -> tuple[list[str], list[str]]:
    """The lines of the file that are rules, and the messages of those that are refused."""
    assert LINES is not None
    rules, refused = [], []
    for line in Path(LINES).read_text(encoding="utf-8").splitlines():
        try:
            Cron(line)
        except ValueError as error:
            refused.append(str(error))
        else:
            rules.append(line)
    return rules, refused


@real_lines
def test_real_lines_are_parsed_or_refused_with_a_reason() -> None:
    rules, refused = parsed()
    assert rules
    assert all(message.startswith("expression must be a cron expression, got ") for message in refused)
    print(f"\nparsed {len(rules)}, refused {len(refused)}:", *refused, sep="\n  ")


@real_lines
@pytest.mark.parametrize("name", ZONES)
def test_a_thousand_runs_of_real_lines_go_forward(name: str) -> None:
    for line in parsed()[0]:
        rule, dt = Cron(line, tz=name), datetime(2025, 1, 1, tzinfo=UTC)
        for _ in range(1_000):
            found = rule.next_after(dt)
            assert found is not None
            assert found.astimezone(UTC) > dt
            dt = found.astimezone(UTC)


@real_lines
def test_a_thousand_runs_of_real_lines_agree_with_croniter_in_utc() -> None:
    for line in parsed()[0]:
        rule, dt = Cron(line), datetime(2025, 1, 1, tzinfo=UTC)
        iterator = croniter(line, dt)
        for _ in range(1_000):
            found = rule.next_after(dt)
            assert found == iterator.get_next(datetime), line
            dt = found


@real_lines
def test_runs_of_real_lines_agree_with_croniter_round_each_change_of_each_zone() -> None:
    # Away from a change a zone is UTC moved by its offset: it is enough to look round the changes, each kind once.
    causes: Counter[str] = Counter()
    seen = set()
    runs = 0
    for name in sorted(available_timezones()):
        for change in changes(name, 2025, 2027):
            if change in seen:
                continue
            seen.add(change)
            for line in parsed()[0]:
                width = 30 * HOUR if is_fixed(line) else 5 * HOUR
                count, found = differences(line, name, change, width)
                runs += count
                causes += found
    print(f"\n{len(available_timezones())} zones, {len(seen)} changes, {runs} runs compared: {dict(causes)}")
    assert not [cause for cause in causes if cause.startswith("unexplained")]
