"""Reads when which client came, from the lines of a web access log.

Two forms are understood, line by line: Common or Combined Log Format, and CSV ``unix_seconds,client``. Lines are bytes
and stay bytes: a log holds whatever clients sent, in no encoding one could rely on. Both patterns are possessive where
two parts could share a byte, so that a hostile line costs time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

NANOSECONDS = 10**9
MAX_SECONDS = (2**63 - 1) // NANOSECONDS  # the last second whose nanoseconds fit an int64, in the year 2262

_LOG_LINE = re.compile(rb'(\S++) \S++ [^\[]++\[([^\]]{26})\] ".*" (?:\d{3}|-) (?:\d+|-)(?: |$)')
_CSV_LINE = re.compile(rb'(\d{1,10})(?:\.(\d{1,9})\d*+)?\s*+,\s*+(?:"((?:[^"]|"")++)"|([^",]++))')
_CSV_HEADER = re.compile(rb'"?unix_seconds"?\s*,\s*"?client"?', re.IGNORECASE)
_STAMP = re.compile(rb"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)([0-5]\d)")
_MONTHS = {month: 1 + i for i, month in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class MalformedLine(ValueError):
    """The line says neither who came nor when; the message says what is wrong with it."""


def read_requests(lines: Iterable[bytes], on_malformed: Callable[[int, str], None]) -> Iterator[tuple[int, bytes]]:
    """Yield ``(at_ns, client)`` for each usable line: Unix time in nanoseconds, and the client's name.

    Blank lines and a CSV header in the first line are skipped. A line that cannot be used is handed to
    ``on_malformed(line_number, reason)``; it is never fatal.
    """
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if number == 1:
            text = text.removeprefix(_BYTE_ORDER_MARK)
            if _CSV_HEADER.fullmatch(text):
                continue
        if not text:
            continue
        try:
            request = parse_line(text)
        except MalformedLine as error:
            on_malformed(number, str(error))
        else:
            yield request


def parse_line(text: bytes) -> tuple[int, bytes]:
    """Return ``(at_ns, client)`` of one stripped line.

    Raises:
        MalformedLine: the line has neither form, or its time is not one.
    """
    if found := _LOG_LINE.match(text):
        client, stamp = found.groups()
        return _stamp_ns(stamp), client
    if found := _CSV_LINE.fullmatch(text):
        seconds, fraction, quoted, bare = found.groups()
        at_ns = _checked(int(seconds)) * NANOSECONDS + int((fraction or b"").ljust(9, b"0"))
        return at_ns, quoted.replace(b'""', b'"') if bare is None else bare
    raise MalformedLine("neither a line of an access log nor unix_seconds,client")


@lru_cache(maxsize=64)  # a busy server writes many lines in a second
def _stamp_ns(stamp: bytes) -> int:
    found = _STAMP.fullmatch(stamp)
    try:
        if not found:
            raise ValueError
        day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = found.groups()
        offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
        zone = timezone(-offset if sign == b"-" else offset)
        at = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except (ValueError, KeyError):
        raise MalformedLine(f"no such time: {stamp.decode(errors='backslashreplace')}") from None
    return _checked((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)) * NANOSECONDS


def _checked(seconds: int) -> int:
    if not 0 <= seconds < MAX_SECONDS:
        raise MalformedLine(f"time must be in the years 1970 to 2262, got {seconds} s")
    return seconds
