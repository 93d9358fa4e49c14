"""Cron: the calendar, the changes of the clock, the door."""

from __future__ import annotations

import ast
import doctest
import io
import logging
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nextdue.recurrence
from nextdue.recurrence import Cron, Recurrence

DOCS = Path(__file__).resolve().parent.parent / "docs" / "recurrence.md"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, tz: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)


def runs(rule: Recurrence, dt: datetime, count: int) -> list[str]:
    """The next `count` runs after `dt`, as ISO text; each is checked to be later in UTC than the one before."""
    found = []
    for _ in range(count):
        following = rule.next_after(dt)
        assert following is not None
        assert following.astimezone(UTC) > dt.astimezone(UTC)
        found.append(following.isoformat(sep=" "))
        dt = following
    return found


# The calendar


def test_next_after_at_a_run_gives_the_one_behind_it() -> None:
    assert runs(Cron("0 9 * * *"), utc("2025-01-01 09:00"), 1) == ["2025-01-02 09:00:00+00:00"]


def test_next_after_a_microsecond_before_a_run_gives_it() -> None:
    assert runs(Cron("0 9 * * *"), utc("2025-01-01 08:59:59.999999"), 1) == ["2025-01-01 09:00:00+00:00"]


def test_next_after_a_microsecond_behind_a_run_gives_the_one_behind_it() -> None:
    assert runs(Cron("0 9 * * *"), utc("2025-01-01 09:00:00.000001"), 1) == ["2025-01-02 09:00:00+00:00"]


def test_next_after_dt_in_another_zone_reads_the_rules_own_clock() -> None:
    rule = Cron("0 9 * * *", tz="Asia/Kathmandu")
    expected = ["2025-01-02 09:00:00+05:45"]
    assert runs(rule, utc("2025-01-01 12:00"), 1) == expected
    assert runs(rule, local("2025-01-01 07:00", "America/New_York"), 1) == expected
    assert runs(rule, datetime(2025, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))), 1) == expected


def test_expression_with_six_fields_has_the_second_first() -> None:
    assert runs(Cron("*/20 30 9 * * *"), utc("2025-01-01 09:30:10"), 3) == [
        "2025-01-01 09:30:20+00:00",
        "2025-01-01 09:30:40+00:00",
        "2025-01-02 09:30:00+00:00",
    ]


def test_expression_without_tz_is_read_in_utc() -> None:
    assert Cron("0 9 * * *") == Cron("0 9 * * *", tz="UTC")


def test_weekday_on_the_29th_of_february_is_not_passed_over() -> None:  # B32
    assert runs(Cron("0 * * * 1-5"), utc("2016-02-29 11:00"), 1) == ["2016-02-29 12:00:00+00:00"]


def test_step_on_day_of_month_starts_again_each_month() -> None:  # B34
    days = [text[5:10] for text in runs(Cron("0 0 */10 * *"), utc("2020-12-31 12:00"), 11)]
    assert days == [f"01-{d}" for d in ("01", "11", "21", "31")] + [f"02-{d}" for d in ("01", "11", "21")] + [
        f"03-{d}" for d in ("01", "11", "21", "31")
    ]


def test_last_day_runs_once_a_month_on_its_true_last_day() -> None:  # B35
    days = [text[:10] for text in runs(Cron("0 0 L * *"), utc("2023-12-31 12:00"), 14)]
    ends = [datetime(2024 + m // 12, m % 12 + 1, 1) - timedelta(days=1) for m in range(1, 15)]
    assert days == [f"{end:%Y-%m-%d}" for end in ends]
    assert days[1] == "2024-02-29"


def test_day_that_a_month_lacks_is_left_out_of_that_month() -> None:  # B29, forwards
    days = [text[:10] for text in runs(Cron("0 0 30 * *"), utc("2013-01-01 00:00"), 3)]
    assert days == ["2013-01-30", "2013-03-30", "2013-04-30"]


def test_29th_of_february_from_a_common_year_is_found() -> None:  # B31, forwards
    assert runs(Cron("0 0 29 2 *"), utc("2021-12-01 00:00"), 2) == [
        "2024-02-29 00:00:00+00:00",
        "2028-02-29 00:00:00+00:00",
    ]


def test_29th_of_february_on_a_weekday_is_found_across_a_common_century() -> None:
    assert runs(Cron("0 0 * 2 MON#5"), utc("2072-03-01 00:00"), 1) == ["2112-02-29 00:00:00+00:00"]


def test_next_after_the_last_run_of_the_calendar_is_none() -> None:
    assert Cron("0 0 1 1 *").next_after(utc("9999-01-01 00:00")) is None
    assert Cron("* * * * *").next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert Cron("* * * * *", tz="Asia/Tokyo").next_after(datetime.max.replace(tzinfo=UTC)) is None


# The clock changes


def test_minute_rule_in_the_repeated_hour_goes_on() -> None:  # B10
    rule = Cron("30 * * * *", tz="Europe/Helsinki")
    later = [f"2017-10-29 0{hour}:30:00+02:00" for hour in (3, 4, 5, 6, 7, 8)]
    assert runs(rule, local("2017-10-29 03:15", "Europe/Helsinki"), 7) == ["2017-10-29 03:30:00+03:00", *later]
    assert runs(rule, local("2017-10-29 03:45", "Europe/Helsinki"), 6) == later
    assert runs(rule, local("2017-10-29 03:45", "Europe/Helsinki", fold=1), 5) == later[1:]


def test_fixed_rule_asked_in_the_second_of_the_equal_hours_goes_on() -> None:  # B10
    rule = Cron("30 3 * * *", tz="Europe/Helsinki")
    for minute in (0, 15, 29, 30, 31, 59):
        dt = local(f"2017-10-29 03:{minute:02}", "Europe/Helsinki", fold=1)
        assert runs(rule, dt, 1) == ["2017-10-30 03:30:00+02:00"]


def test_two_hourly_rule_gets_past_the_autumn_change() -> None:  # B11
    rule = Cron("0 */2 * * *", tz="Europe/Prague")
    assert runs(rule, local("2025-10-26 02:30", "Europe/Prague"), 10) == [
        "2025-10-26 02:00:00+01:00",
        *(f"2025-10-26 {hour:02}:00:00+01:00" for hour in range(4, 22, 2)),
    ]


def test_following_rule_that_always_falls_into_the_gap_is_none(monkeypatch: pytest.MonkeyPatch) -> None:  # B11: a cap
    rule = Cron("*/5 2 * 3 SUN#2", tz="America/New_York")
    steps = 0
    step = Cron._next_match

    def counted(rule: Cron, wall: datetime) -> datetime | None:
        nonlocal steps
        steps += 1
        return step(rule, wall)

    monkeypatch.setattr(Cron, "_next_match", counted)
    assert rule.next_after(utc("2025-01-01 00:00")) is None
    assert steps == 50


def test_following_rule_that_fell_into_the_gap_for_years_runs_when_the_change_moves() -> None:
    rule = Cron("*/5 2 * 4 SUN#1", tz="America/New_York")  # until 2006 the clock went forward there and then
    assert runs(rule, utc("1990-01-01 00:00"), 1) == ["2007-04-01 02:00:00-04:00"]


def test_following_rule_behind_the_second_of_the_equal_hours_begins_with_the_first_of_next_year() -> None:
    rule = Cron("*/30 2 * 10 7L", tz="Europe/Prague")
    assert runs(rule, local("2025-10-26 02:45", "Europe/Prague", fold=1), 3) == [
        "2026-10-25 02:00:00+02:00",
        "2026-10-25 02:30:00+02:00",
        "2026-10-25 02:00:00+01:00",
    ]


def test_fixed_rule_that_always_falls_into_the_gap_runs_behind_it() -> None:
    assert runs(Cron("5 2 * 3 SUN#2", tz="America/New_York"), utc("2025-01-01 00:00"), 2) == [
        "2025-03-09 03:00:00-04:00",
        "2026-03-08 03:00:00-04:00",
    ]


def test_midnight_rule_behind_a_day_of_23_hours_runs_at_midnight() -> None:  # B13
    rule = Cron("0 0 * * Mon", tz="US/Central")
    assert runs(rule, local("2021-03-12 12:00", "US/Central"), 1) == ["2021-03-15 00:00:00-05:00"]


def test_weekly_rule_across_a_change_keeps_its_local_time() -> None:  # B14
    rule = Cron("0 9 * * thu", tz="Europe/Brussels")
    assert runs(rule, local("2019-03-27 12:00", "Europe/Brussels"), 2) == [
        "2019-03-28 09:00:00+01:00",
        "2019-04-04 09:00:00+02:00",
    ]


def test_noon_rule_behind_the_autumn_change_runs_once_whatever_offset_dt_has() -> None:  # B16
    rule = Cron("0 12 * * 1", tz="America/New_York")
    last = datetime(2025, 10, 27, 12, tzinfo=timezone(timedelta(hours=-4)))  # as it was stored
    assert runs(rule, last, 2) == ["2025-11-03 12:00:00-05:00", "2025-11-10 12:00:00-05:00"]


def test_rule_of_each_minute_runs_120_times_in_two_equal_hours() -> None:  # B17
    times = runs(Cron("* * * * *", tz="Europe/Paris"), local("2020-10-25 01:59", "Europe/Paris"), 121)
    assert times[0] == "2020-10-25 02:00:00+02:00"
    assert times[60] == "2020-10-25 02:00:00+01:00"
    assert times[120] == "2020-10-25 03:00:00+01:00"


def test_rule_in_utc_a_week_before_a_change_elsewhere_is_not_moved() -> None:  # B19
    now = local("2025-09-22 10:00", "Pacific/Auckland")  # not yet Monday in UTC; the change is on the 28th
    assert runs(Cron("0 0 * * mon"), now, 2) == ["2025-09-22 00:00:00+00:00", "2025-09-29 00:00:00+00:00"]


def test_local_rule_a_week_before_a_change_has_the_offset_of_its_own_day() -> None:  # B19
    rule = Cron("0 0 * * mon", tz="Pacific/Auckland")
    assert runs(rule, utc("2025-09-20 12:00"), 2) == ["2025-09-22 00:00:00+12:00", "2025-09-29 00:00:00+13:00"]


def test_rule_of_each_second_runs_in_both_equal_hours() -> None:  # B20
    rule = Cron("* * * * * *", tz="Europe/Brussels")
    start = local("2025-10-26 02:59:57", "Europe/Brussels")
    times = runs(rule, start, 3_603)  # each later than the one before: with these ends, none is left out
    assert times[:3] == ["2025-10-26 02:59:58+02:00", "2025-10-26 02:59:59+02:00", "2025-10-26 02:00:00+01:00"]
    assert times[-1] == "2025-10-26 03:00:00+01:00"
    assert len(set(times)) == 3_603


@pytest.mark.parametrize(("start", "offsets"), [("2024-03-08", "554444"), ("2024-11-01", "445555")])
def test_morning_rule_round_a_change_runs_once_a_day(start: str, offsets: str) -> None:  # B22
    first = local(start + " 00:00", "America/New_York")
    expected = [f"{first + timedelta(days=k):%Y-%m-%d} 06:00:00-0{o}:00" for k, o in enumerate(offsets)]
    assert runs(Cron("0 6 * * *", tz="America/New_York"), first, 6) == expected


@pytest.mark.parametrize("machine", ["UTC", "Europe/London", "Asia/Tokyo"])
def test_rule_in_utc_heeds_neither_the_zone_of_dt_nor_the_machines(
    machine: str, machine_zone: Callable[[str], None]
) -> None:  # B23
    machine_zone(machine)
    for text, fold, day in [("01:15", 0, 30), ("01:45", 0, 30), ("01:15", 1, 30), ("01:45", 1, 31)]:
        dt = local(f"2022-10-30 {text}", "Europe/London", fold=fold)  # 01:45 is 00:45 or 01:45 in UTC
        assert runs(Cron("30 1 * * *"), dt, 1) == [f"2022-10-{day} 01:30:00+00:00"]


def test_kind_may_be_chosen_for_any_rule() -> None:  # B25
    start = local("2025-03-08 12:00", "US/Pacific")
    for expression in ("0 2 * * *", "*/60 2 * * *"):
        fixed = Cron(expression, tz="US/Pacific", kind="fixed")
        following = Cron(expression, tz="US/Pacific", kind="following")
        assert (fixed.kind, following.kind) == ("fixed", "following")
        assert runs(fixed, start, 2) == ["2025-03-09 03:00:00-07:00", "2025-03-10 02:00:00-07:00"]
        assert runs(following, start, 1) == ["2025-03-10 02:00:00-07:00"]
    start = local("2025-11-01 12:00", "US/Pacific")
    assert runs(Cron("30 1 * * *", tz="US/Pacific", kind="following"), start, 2) == [
        "2025-11-02 01:30:00-07:00",
        "2025-11-02 01:30:00-08:00",
    ]
    assert runs(Cron("30 * * * *", tz="US/Pacific", kind="fixed"), local("2025-11-02 01:00", "US/Pacific"), 2) == [
        "2025-11-02 01:30:00-07:00",
        "2025-11-02 02:30:00-08:00",
    ]


@pytest.mark.parametrize(("expression", "kind"), [("30 2 * * *", "fixed"), ("*/30 2 * * *", "following")])
def test_kind_that_is_not_given_is_said_by_the_expression(expression: str, kind: str) -> None:
    assert Cron(expression).kind == kind


def test_what_becomes_of_a_skipped_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:  # B25
    start = local("2025-03-08 12:00", "US/Pacific")
    with caplog.at_level(logging.INFO, "nextdue"):
        Cron("30 2 * * *", tz="US/Pacific").next_after(start)
        Cron("30 2 * * *", tz="US/Pacific", kind="following").next_after(start)
        Cron("* * * * *", tz="US/Pacific").next_after(local("2025-03-09 01:59", "US/Pacific"))
        Cron("30 3 * * *", tz="US/Pacific").next_after(start)  # not skipped: nothing to tell
    past = "the clock goes forward past 2025-03-09 02:"
    assert caplog.messages == [
        f"Cron('30 2 * * *', tz='US/Pacific'): {past}30:00 to 2025-03-09 03:00:00: one run then",
        f"Cron('30 2 * * *', tz='US/Pacific', kind='following'): {past}30:00 to 2025-03-09 03:00:00: "
        "no run of what is skipped",
        f"Cron('* * * * *', tz='US/Pacific'): {past}00:00 to 2025-03-09 03:00:00: no run of what is skipped",
    ]


def test_log_handler_that_raises_does_not_keep_a_rule_from_its_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(nextdue.recurrence.logger, "info", fail)
    rule = Cron("0 2 * * *", tz="US/Pacific")
    assert runs(rule, local("2025-03-08 12:00", "US/Pacific"), 1) == ["2025-03-09 03:00:00-07:00"]


def test_fixed_rule_that_is_skipped_runs_once_at_the_end_of_the_gap() -> None:  # B25
    for expression in ("0 2 * * *", "30 2 * * *", "0,30 2 * * *", "0-59 2 * * *", "* 30 2 * * *"):
        first, second = runs(Cron(expression, tz="US/Pacific"), local("2025-03-08 12:00", "US/Pacific"), 2)
        assert first == "2025-03-09 03:00:00-07:00"
        assert second.startswith("2025-03-10 02:")


def test_fixed_rule_with_times_in_and_at_the_end_of_the_gap_runs_there_once() -> None:
    assert runs(Cron("0 2,3 * * *", tz="US/Pacific"), local("2025-03-08 12:00", "US/Pacific"), 2) == [
        "2025-03-09 03:00:00-07:00",
        "2025-03-10 02:00:00-07:00",
    ]


def test_following_rule_that_is_skipped_does_not_run() -> None:  # B25
    assert runs(Cron("*/30 2 * * *", tz="US/Pacific"), local("2025-03-08 12:00", "US/Pacific"), 1) == [
        "2025-03-10 02:00:00-07:00"
    ]


def test_daily_rule_behind_a_skipped_run_keeps_its_time() -> None:  # B26
    rule = Cron("30 2 * * *", tz="Europe/Amsterdam")
    assert runs(rule, local("2025-04-01 02:00", "Europe/Amsterdam"), 1) == ["2025-04-01 02:30:00+02:00"]
    assert runs(rule, local("2025-03-01 00:00", "Europe/Amsterdam"), 32)[29:] == [
        "2025-03-30 03:00:00+02:00",
        "2025-03-31 02:30:00+02:00",
        "2025-04-01 02:30:00+02:00",
    ]


def test_fixed_rule_runs_in_the_first_of_the_equal_hours_only() -> None:
    for expression in ("30 2 * * *", "30 1-23 * * *", "0 30 2 * * *"):
        rule = Cron(expression, tz="Europe/Prague")
        first, second = runs(rule, local("2025-10-26 02:00", "Europe/Prague"), 2)
        assert first == "2025-10-26 02:30:00+02:00"
        assert second in ("2025-10-27 02:30:00+01:00", "2025-10-26 03:30:00+01:00")


def test_following_rule_of_one_night_runs_in_both_equal_hours() -> None:
    rule = Cron("* 2 26 10 *", tz="Europe/Prague")  # its next first hour, a year on, has the same offset
    assert runs(rule, local("2025-10-26 02:59", "Europe/Prague"), 1) == ["2025-10-26 02:00:00+01:00"]
    assert runs(rule, local("2025-10-26 02:59", "Europe/Prague", fold=1), 1) == ["2026-10-26 02:00:00+01:00"]


def test_skipped_midnight_of_a_fixed_rule_runs_at_one_and_of_a_following_rule_never() -> None:
    start = local("2025-03-08 12:00", "America/Havana")
    assert runs(Cron("0 0 * * *", tz="America/Havana"), start, 1) == ["2025-03-09 01:00:00-04:00"]
    assert runs(Cron("*/20 0 * * sun", tz="America/Havana"), start, 1) == ["2025-03-16 00:00:00-04:00"]


def test_change_of_half_an_hour_loses_no_run_of_a_following_rule() -> None:
    rule = Cron("*/15 2 * * *", tz="Australia/Lord_Howe")  # 02:00 back to 01:30: asked long before
    assert runs(rule, utc("2025-04-05 10:20"), 4) == [f"2025-04-06 02:{m}:00+10:30" for m in ("00", "15", "30", "45")]


def test_day_that_a_zone_left_out_is_a_gap_like_any_other() -> None:
    assert runs(Cron("0 12 * * *", tz="Pacific/Apia"), utc("2011-12-30 00:00"), 2) == [
        "2011-12-31 00:00:00+14:00",
        "2011-12-31 12:00:00+14:00",
    ]


# The door

BAD_EXPRESSIONS = [
    ("", "Wrong number of fields"),
    ("* * * *", "Wrong number of fields"),
    ("* * * * * * *", "Wrong number of fields"),
    ("@daily", "Wrong number of fields"),
    ("61 * * * *", "Bad minute"),
    ("-1 * * * *", "Bad minute"),
    ("*/0 * * * *", "Bad minute"),
    ("60 * * * * *", "Bad second"),
    ("0 24 * * *", "Bad hour"),
    ("0 5-3 * * *", "Bad hour"),
    ("0 0 0 * *", "Bad day-of-month"),
    ("0 2 ? * SUN", "Bad day-of-month"),
    ("0 0 1 13 *", "Bad month"),
    ("0 0 * * 8", "Bad day-of-week"),
    ("0 0 * * MON#6", "Bad day-of-week"),
    ("* * 31 2 *", "Bad day-of-month"),
    ("0 0 30,31 2 *", "Bad day-of-month"),
    ("0 0 31 4,6,9,11 *", "Bad day-of-month"),
    ("* * */20 * 1L", "no date matches"),  # the 1st and the 21st are never a last Monday
]


@pytest.mark.parametrize(("expression", "reason"), BAD_EXPRESSIONS)
def test_expression_that_can_never_run_is_refused_with_the_reason(expression: str, reason: str) -> None:  # B28
    with pytest.raises(ValueError, match=r"^expression must be") as caught:
        Cron(expression)
    assert str(caught.value) == f"expression must be a cron expression, got {expression!r} ({reason})"


def test_expression_with_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expression must be a cron expression, got '9{5000} \* \* \* \*' \(.+\)$"):
        Cron("9" * 5000 + " * * * *")


def test_expression_whose_weekday_may_match_instead_of_the_day_is_accepted() -> None:
    assert runs(Cron("0 0 31 2 MON"), utc("2025-01-01 00:00"), 1) == ["2025-02-03 00:00:00+00:00"]


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"] * 5])
def test_expression_that_is_no_str_is_refused(expression: object) -> None:
    with pytest.raises(TypeError, match=r"^expression must be") as caught:
        Cron(expression)  # type: ignore[arg-type]
    assert str(caught.value) == f"expression must be a str, got {expression!r}"


@pytest.mark.parametrize("tz", ["", "Mars/Phobos", "Europe", "../UTC", "/etc/passwd", "a\0b", "\udc80"])
def test_tz_that_is_unknown_is_refused(tz: str) -> None:
    with pytest.raises(ValueError, match=r"^tz must be") as caught:
        Cron("* * * * *", tz=tz)
    assert str(caught.value) == f"tz must be the name of a time zone, got {tz!r}"


@pytest.mark.parametrize("tz", [None, 5, UTC, timezone(timedelta(hours=1))])
def test_tz_of_another_type_is_refused(tz: object) -> None:  # B198: a fixed offset has no name
    with pytest.raises(TypeError, match=r"^tz must be") as caught:
        Cron("* * * * *", tz=tz)  # type: ignore[arg-type]
    assert str(caught.value) == f"tz must be a str or a zoneinfo.ZoneInfo, got {tz!r}"


@pytest.mark.parametrize("kind", ["", "Fixed", True, 0])
def test_kind_that_is_unknown_is_refused(kind: object) -> None:
    with pytest.raises(ValueError, match=r"^kind must be") as caught:
        Cron("* * * * *", kind=kind)  # type: ignore[arg-type]
    assert str(caught.value) == f"kind must be 'fixed', 'following' or None, got {kind!r}"


def test_tz_without_a_name_is_refused() -> None:  # B198
    header = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    zone = ZoneInfo.from_file(io.BytesIO(header + struct.pack(">lbb", 0, 0, 0) + b"ABC\0"))
    with pytest.raises(ValueError, match=r"^tz must be") as caught:
        Cron("* * * * *", tz=zone)
    assert str(caught.value) == f"tz must be the name of a time zone, got {zone!r}"


def test_dt_that_is_naive_is_refused() -> None:  # B37
    dt = datetime(2025, 1, 1, 12)
    with pytest.raises(ValueError, match=r"^dt must be") as caught:
        Cron("* * * * *").next_after(dt)
    assert str(caught.value) == f"dt must be an aware datetime, got {dt!r}"


@pytest.mark.parametrize("dt", [None, 0, 1.5, "2025-01-01", datetime(2025, 1, 1).date()])
def test_dt_that_is_no_datetime_is_refused(dt: object) -> None:
    with pytest.raises(TypeError, match=r"^dt must be") as caught:
        Cron("* * * * *").next_after(dt)  # type: ignore[arg-type]
    assert str(caught.value) == f"dt must be an aware datetime, got {dt!r}"


def test_construction_without_cronsim_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"^Cron needs") as caught:
        Cron("* * * * *")
    assert str(caught.value) == "Cron needs the package cronsim: pip install 'nextdue[cron]'"


def test_import_of_the_room_leaves_cronsim_alone() -> None:
    code = "import nextdue.recurrence, sys; sys.exit('cronsim' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_room_imports_nothing_of_the_package() -> None:
    tree = ast.parse(Path(nextdue.recurrence.__file__).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {"." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "contextlib", "cronsim", "datetime", "logging", "types", "typing", "zoneinfo"}


# A value


def test_repr_evaluates_to_an_equal_rule() -> None:
    rule = Cron("0 9 * * mon-fri", tz="Europe/Prague")
    assert repr(rule) == "Cron('0 9 * * mon-fri', tz='Europe/Prague')"
    assert eval(repr(rule)) == rule
    rule = Cron("0 9 * * *", kind="following")
    assert repr(rule) == "Cron('0 9 * * *', tz='UTC', kind='following')"
    assert eval(repr(rule)) == rule


def test_rules_are_equal_when_expression_and_zone_are() -> None:
    rule = Cron("0 9 * * *", tz="Europe/Prague")
    same = Cron("0 9 * * *", tz=ZoneInfo("Europe/Prague"))
    assert rule == same
    assert hash(rule) == hash(same)
    assert rule != Cron("0 9 * * *", tz="Europe/Berlin")
    assert rule != Cron("1 9 * * *", tz="Europe/Prague")
    assert rule == Cron("0 9 * * *", tz="Europe/Prague", kind="fixed")
    assert rule != Cron("0 9 * * *", tz="Europe/Prague", kind="following")
    assert rule != "0 9 * * *"


def test_rule_that_was_pickled_is_restored_elsewhere_by_the_name_of_its_zone() -> None:  # B198
    rule = Cron("30 2 * * *", tz=ZoneInfo("Europe/Prague"), kind="following")
    data = pickle.dumps(rule)
    assert b"ZoneInfo" not in data
    code = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)), end='')"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True, timeout=60)
    assert done.stdout.decode() == repr(rule)


# Whatever comes

COMMON = ["*", "*/2", "*/15", "0", "1", "2", "3", "29", "31", "59", "0-59", "1-5", "1,3", "2/6", "mon-fri", "JAN"]
RARE = ["L", "LW", "1L", "MON#2", "L/2", "?", "60", "*/0", "5-1", ",", "/", "-", "#"]
FIELDS = st.sampled_from(COMMON) | st.sampled_from(RARE)
EXPRESSIONS = st.lists(FIELDS, min_size=4, max_size=7).map(" ".join) | st.text("0123456789*/,-#LW? ", max_size=20)
ZONES = ["UTC", "Europe/Prague", "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca"]
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(lambda dt: dt.replace(tzinfo=UTC))


@settings(max_examples=300)
@given(expression=EXPRESSIONS, tz=st.sampled_from(ZONES), dt=INSTANTS)
def test_any_expression_is_refused_with_a_reason_or_goes_forward(expression: str, tz: str, dt: datetime) -> None:
    rule: Cron | None
    try:
        rule = Cron(expression, tz=tz)
    except ValueError as refusal:
        message = str(refusal)
        rule = None
    if rule is None:
        start = f"expression must be a cron expression, got {expression!r} ("
        assert message.startswith(start)
        assert message[len(start) :] in {f"{reason})" for _, reason in BAD_EXPRESSIONS}
        return
    for _ in range(5):
        following = rule.next_after(dt)
        if following is None:
            break
        assert following.utcoffset() is not None
        assert following.astimezone(UTC) > dt.astimezone(UTC)
        dt = following


# The page and the docstrings


def test_examples_of_the_room_give_what_they_say() -> None:
    result = doctest.testmod(nextdue.recurrence)
    assert result.attempted > 0
    assert result.failed == 0


BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("k", range(len(BLOCKS)))
def test_example_of_the_page_prints_its_comments(k: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[k], f"docs/recurrence.md, example {k}", "exec"), {})
    said = re.findall(r"# (.+)$", BLOCKS[k], re.MULTILINE)
    assert said
    assert capsys.readouterr().out.splitlines() == said
