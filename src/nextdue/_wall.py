"""Wall-clock instants as users give them, in integer nanoseconds since the epoch; and rules, asked for their next slot.

All of this calls user code (time zones, rules), so none of it is called under a lock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ._units import NEVER, SECOND, index_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def instant_ns(value: Any, name: str, rule: str) -> int:
    """Return an aware datetime in nanoseconds since the epoch, saturating within int64.

    Raises: TypeError for what is no datetime, ValueError for a naive one: `<name> must be <rule>, got <value>`.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be {rule}, got {value!r}")
    if value.utcoffset() is None:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    since = value - EPOCH
    ns = (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000
    return min(max(ns, 1 - NEVER), NEVER)


def moment_of(instant: int) -> datetime:
    """Return an instant of the wall clock as a datetime in UTC, rounded down to its microsecond."""
    return EPOCH + instant // 1_000 * MICROSECOND


def is_calendar(when: Any) -> bool:
    """Whether a rule tells slots of the wall clock, by `next_after`, or of the agenda's own clock, being a callable."""
    if not isinstance(when, type):
        if callable(getattr(when, "next_after", None)):
            return True
        if callable(when):
            return False
    raise TypeError(f"when must have next_after(dt), or be a callable of int nanoseconds, got {when!r}")


def next_slot(when: Any, calendar: bool, base: int) -> int | None:
    """Ask a rule for its first slot after an instant of its clock; None: there is none.

    Raises: what the rule raises; TypeError and ValueError for an answer that is no later instant.
    """
    if not calendar:
        answer = when(base)
        if answer is None:
            return None
        instant = index_of(answer)
        if instant is None:
            raise TypeError(f"when must give int nanoseconds or None, got {answer!r}")
        slot = min(instant, NEVER)
        if slot <= base:
            raise ValueError(f"when must give an instant later than {base}, got {answer!r}")
        return slot
    dt = moment_of(base)
    answer = when.next_after(dt)
    if answer is None:
        return None
    slot = instant_ns(answer, "when", "a rule that gives aware datetimes or None")
    if slot <= base:
        raise ValueError(f"when must give an instant later than {dt!r}, got {answer!r}")
    return slot
