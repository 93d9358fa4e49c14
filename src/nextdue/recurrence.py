"""Recurrences: which wall-clock instant comes next.

A recurrence is any object with `next_after`; `Cron` is the one that ships. cronsim parses the expression and walks the
calendar, in local time without a zone; what a change of the zone's offset does to a local time is decided here.
"""

from __future__ import annotations

import contextlib
import logging
import zoneinfo
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Literal, Protocol

logger = logging.getLogger("nextdue")

_SECOND = timedelta(seconds=1)
# A rule may fall into the skipped hour every year: "*/5 2 * 3 SUN#2" never comes in New York. cronsim gives up after 50
# years without a date; no date and weekday are further apart than 40.
_MAX_GAPS = 50


class Recurrence(Protocol):
    """Tell the next instant of a wall-clock rule."""

    def next_after(self, dt: datetime, /) -> datetime | None:
        """Return the first instant strictly later than the aware datetime `dt`, aware; None when there is none."""
        ...


class Cron:
    """A cron expression in a time zone.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week), or six with the second first.
        tz: the zone whose clock the rule reads: a name, or a ZoneInfo, of which the name is kept.
        kind: "fixed" or "following"; None: "following" if the minute or the hour field starts with `*`, as Debian's
            cron has it.

    Raises: ValueError for an expression that cronsim refuses or that no date ever matches, and for an unknown zone;
    ImportError without cronsim, which the extra `nextdue[cron]` brings.
    Thread-safety: nothing changes after construction. Two are equal when expression and zone are written alike, and
    their kind is the same.

    Where the clock goes back, a fixed rule runs in the first of the two equal hours only; where it goes forward, it
    runs at the end of the gap if its time was skipped. A following rule goes by what the clock shows: twice, or not at
    all. What becomes of a time that is skipped is logged, at level INFO, when the next run is asked for.

    >>> from datetime import datetime, timezone
    >>> rule = Cron("0 9 * * mon-fri", tz="Europe/Prague")
    >>> rule.next_after(datetime(2025, 3, 28, 12, tzinfo=timezone.utc)).isoformat()
    '2025-03-31T09:00:00+02:00'
    """

    __slots__ = ("expression", "kind", "tz")

    def __init__(
        self, expression: str, *, tz: str | zoneinfo.ZoneInfo = "UTC", kind: Literal["fixed", "following"] | None = None
    ) -> None:
        if not isinstance(expression, str):
            raise TypeError(f"expression must be a str, got {expression!r}")
        self.expression = expression
        self.tz = _zone(tz)
        cronsim = _cronsim()
        try:
            date = next(cronsim.CronSim(expression, datetime(2000, 1, 1)), None)
            reason = "no date matches"
        except (cronsim.CronSimError, ValueError) as error:  # ValueError: int() refuses thousands of digits
            date, reason = None, str(error)
        if date is None:
            raise ValueError(f"expression must be a cron expression, got {expression!r} ({reason})")
        if kind not in (None, "fixed", "following"):
            raise ValueError(f"kind must be 'fixed', 'following' or None, got {kind!r}")
        self.kind: Literal["fixed", "following"] = kind or _kind_of(expression)

    def next_after(self, dt: datetime, /) -> datetime | None:
        """Return the first run strictly later than the aware `dt`, in the rule's zone; None when there is none.

        Two datetimes of one zone compare by what the clock on the wall shows, which goes back once a year: compare
        results in UTC, or by `timestamp()`.

        Raises: TypeError when `dt` is no datetime, ValueError when it is naive.
        """
        if not isinstance(dt, datetime):
            raise TypeError(f"dt must be an aware datetime, got {dt!r}")
        if dt.utcoffset() is None:
            raise ValueError(f"dt must be an aware datetime, got {dt!r}")
        try:
            return self._next_after(dt.astimezone(self.tz))
        except OverflowError:  # past the year 9999
            return None

    def _next_after(self, local: datetime) -> datetime | None:
        follows = self.kind == "following"
        wall = local.replace(tzinfo=None, fold=0)
        before, after = self._offsets(wall)
        if before > after:  # this local time comes twice, as all do from `start` on to `end`
            change = self._change(wall, before, after)
            start, end = change + after, change + before
            if follows:
                found = self._next_match(wall)
                fold = local.fold
                if fold == 0 and (found is None or found >= end):
                    found, fold = self._next_match(start - _SECOND), 1
                if found is not None and found < end:
                    return found.replace(tzinfo=self.tz, fold=fold)
            if follows or local.fold == 1:
                wall = end - _SECOND
        for _ in range(_MAX_GAPS):
            found = self._next_match(wall)
            if found is None:
                return None
            before, after = self._offsets(found)
            if before >= after:
                return found.replace(tzinfo=self.tz)
            end = self._change(found, before, after) + after  # of the gap
            with contextlib.suppress(Exception):  # of a log handler
                outcome = "no run of what is skipped" if follows else "one run then"
                logger.info("%r: the clock goes forward past %s to %s: %s", self, found, end, outcome)
            if not follows:
                return end.replace(tzinfo=self.tz)
            wall = end - _SECOND
        return None

    def _next_match(self, wall: datetime) -> datetime | None:
        """Return the first local time after `wall` that the expression matches, whether it exists or not."""
        found: datetime | None = next(_cronsim().CronSim(self.expression, wall), None)
        return found

    def _offsets(self, wall: datetime) -> tuple[timedelta, timedelta]:
        """Return the UTC offset before and after the change that `wall` lies at; equal where there is none.

        Before > after: the local time comes twice. Before < after: it is skipped.
        """
        first = wall.replace(tzinfo=self.tz, fold=0).utcoffset()
        second = wall.replace(tzinfo=self.tz, fold=1).utcoffset()
        assert first is not None  # a ZoneInfo always knows
        assert second is not None
        return first, second

    def _change(self, wall: datetime, before: timedelta, after: timedelta) -> datetime:
        """Return the instant, in UTC without tzinfo, of the change that makes `wall` come twice or not at all."""
        low, high = wall - max(before, after), wall - min(before, after)
        while high - low > _SECOND:  # the change is in (low, high]
            middle = low + (high - low) // _SECOND // 2 * _SECOND
            if middle.replace(tzinfo=UTC).astimezone(self.tz).utcoffset() == before:
                low = middle
            else:
                high = middle
        return high

    def __repr__(self) -> str:
        kind = "" if self.kind == _kind_of(self.expression) else f", kind={self.kind!r}"
        return f"Cron({self.expression!r}, tz={self.tz.key!r}{kind})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cron):
            return NotImplemented
        return self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._state())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._state()

    def _state(self) -> tuple[str, str, str]:
        return self.expression, self.tz.key, self.kind  # the zone by its name: who unpickles has its own zone data


def _restore(expression: str, tz: str, kind: Any = None) -> Cron:  # no kind: pickled when there was none to choose
    return Cron(expression, tz=tz, kind=kind)


def _kind_of(expression: str) -> Literal["fixed", "following"]:
    minute, hour = expression.split()[-5:-3]
    return "following" if minute.startswith("*") or hour.startswith("*") else "fixed"


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError as error:
        raise ImportError("Cron needs the package cronsim: pip install 'nextdue[cron]'") from error
    return cronsim


def _zone(tz: object) -> zoneinfo.ZoneInfo:
    if not isinstance(tz, (str, zoneinfo.ZoneInfo)):
        raise TypeError(f"tz must be a str or a zoneinfo.ZoneInfo, got {tz!r}")
    try:
        return zoneinfo.ZoneInfo(tz if isinstance(tz, str) else tz.key)
    # KeyError: no such zone. ValueError: no such path, or no zone in it. OSError: a folder. TypeError: key is None.
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise ValueError(f"tz must be the name of a time zone, got {tz!r}") from error
