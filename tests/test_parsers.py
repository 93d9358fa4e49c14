"""Arbitrary bytes and text in what reads them: a result or the documented error, nothing else, in bounded time.

Bounded: what is given here is large, or of a shape that makes a careless parser take years. pytest ends what hangs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextdue import Cron
from nextdue.cli._access_log import MalformedLine, parse_line, read_requests

REASONS = re.compile(
    r"neither a line of an access log nor unix_seconds,client"
    r"|no such time: .+|time must be in the years 1970 to 2262, got -?\d+ s",
    re.DOTALL,
)
LINE = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "http://x/" "Mozilla"'
SEEDS = (LINE, b'807256800.25,"a ""client"""', b"unix_seconds,client", b"", b"\xef\xbb\xbf")


def parsed(line: bytes) -> None:
    """Parse a line, and hold the parser to what it promises."""
    reason = None
    try:
        at_ns, client = parse_line(line)
    except MalformedLine as error:
        reason = str(error)
    if reason is not None:
        assert REASONS.fullmatch(reason)
        return
    assert 0 <= at_ns < 2**63
    assert client
    assert client.replace(b'"', b"") in line.replace(b'"', b"")


# What stands between two marks of a line, in any order and number: close to what is read, and rarely it.
PARTS = st.sampled_from([*re.split(rb"(\W)", LINE), *re.split(rb"(\W)", SEEDS[1]), b"999", b"-", b"\x00", b"\xff"])
LINES = st.lists(PARTS | st.binary(max_size=4), max_size=40).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good line of which a part is replaced, repeated or cut out."""
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted((draw(st.integers(0, len(line))), draw(st.integers(0, len(line)))))
        line = line[:start] + draw(st.binary(max_size=6) | st.just(line[start:end] * 2)) + line[end:]
    return line


@settings(max_examples=500)
@given(st.binary() | LINES | damaged() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
def test_parse_line_when_bytes_are_arbitrary_then_a_request_or_a_reason(line: bytes) -> None:
    parsed(line.strip())


@settings(max_examples=300)
@given(st.lists(st.binary() | LINES | damaged(), max_size=8), st.booleans())
def test_read_requests_when_lines_are_arbitrary_then_each_is_used_reported_or_blank(
    lines: list[bytes], header: bool
) -> None:
    lines = [b"unix_seconds,client\n"] * header + lines
    reported: list[int] = []
    requests = list(read_requests(lines, lambda number, reason: reported.append(number)))
    assert reported == sorted(set(reported))
    assert all(1 <= number <= len(lines) for number in reported)
    passed_over = len(lines) - len(requests) - len(reported)
    blank = sum(not line.strip() for line in lines)
    assert blank <= passed_over <= blank + 1  # a header, or a mark of the byte order alone


UNITS = [
    *(bytes([byte]) for byte in b' "[],.-0a\xff\x00\t\\'),
    *(b'""', b'" ', b'" 200 ', b'" 200 1', b"[]", b"] [", b"0,", b'0,"', LINE, LINE + b" ", b" - ", b'"" 200 -x'),
]
HEADS = [b"", b"x", b"1", b'1,"', b"1.", b"h - - [10/Oct/2000:13:55:36 -0700] ", LINE[:62], LINE[:-1]]


@pytest.mark.parametrize("head", HEADS)
def test_parse_line_when_the_line_is_hostile_and_long_then_it_takes_no_years(head: bytes) -> None:
    """Steps by the square of the length would be 10^11 for each of these."""
    for unit in UNITS:
        parsed((head + unit * (300_000 // len(unit))).strip())


@given(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.binary(max_size=30).filter(lambda agent: b"\n" not in agent),
)
def test_parse_line_when_the_time_is_any_then_it_is_read_or_out_of_range(
    at: datetime, minutes: int, agent: bytes
) -> None:
    local = at.replace(tzinfo=timezone(timedelta(minutes=minutes)), microsecond=0)
    stamp = local.strftime("%d/%b/") + f"{local.year:04}" + local.strftime(":%H:%M:%S %z")
    line = b"host - - [" + stamp.encode() + b'] "GET / HTTP/1.1" 200 5 "' + agent + b'"'
    seconds = (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    if 0 <= seconds < (2**63 - 1) // 10**9:
        assert parse_line(line) == (seconds * 10**9, b"host")
    else:
        with pytest.raises(MalformedLine, match=rf"^time must be in the years 1970 to 2262, got {seconds} s$"):
            parse_line(line)


# ---------------------------------------------------------------- cron

FIELD = st.text("0123456789*/,-#LW?", max_size=8) | st.sampled_from(["*", "0", "*/7", "MON", "jan-DEC", "L", "MON#5"])
EXPRESSIONS = st.one_of(
    st.text(),
    st.lists(FIELD, min_size=5, max_size=6).map(" ".join),
    st.lists(st.text(max_size=5) | FIELD, max_size=7).map(" ".join),
)
INSTANTS = st.datetimes(timezones=st.timezones() | st.just(UTC))


def rule_of(expression: str, tz: str) -> Cron | None:
    """The rule, or None if it was refused as it must be."""
    try:
        return Cron(expression, tz=tz)
    except ValueError as error:
        text = str(error)
        assert text.startswith((f"expression must be a cron expression, got {expression!r} (", "tz must be the name"))
        return None


@settings(max_examples=400)
@given(EXPRESSIONS, st.sampled_from(["UTC", "America/New_York", "Pacific/Apia"]) | st.text(), INSTANTS)
def test_cron_when_text_is_arbitrary_then_refused_with_a_reason_or_it_goes_forward(
    expression: str, tz: str, dt: datetime
) -> None:
    rule = rule_of(expression, tz)
    if rule is None:
        return
    for _ in range(3):
        following = rule.next_after(dt)
        if following is None:
            return
        assert following.astimezone(UTC) > dt.astimezone(UTC)
        dt = following


@pytest.mark.parametrize(
    "expression",
    [
        "*" * 10**6,
        " ".join(["*"] * 10**5),
        ",".join(["*"] * 10**5) + " * * * *",
        "0" * 10**6 + " * * * *",
        "*/" + "9" * 10**6 + " * * * *",
        "0-" * 10**5 + " * * * *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 30 2 MON#5",
        "0 0 29 2 *",
        "59 23 31 12 *",
        "\x00 * * * *",
        "\udc80 * * * *",
        "٣ * * * *",
        "² * * * *",
        "*\u2028*\xa0*\t*\n*",
    ],
    ids=range(15),
)
def test_cron_when_the_expression_is_hostile_then_it_takes_no_years(expression: str) -> None:
    rule = rule_of(expression, "Europe/Prague")
    for year in (1, 1999, 2024, 9999) if rule else ():
        following = rule.next_after(datetime(year, 12, 31, 23, 59, tzinfo=UTC))
        assert following is None or following.astimezone(UTC) > datetime(year, 12, 31, 23, 59, tzinfo=UTC)


@pytest.mark.parametrize("tz", ["", ".", "/", "..", "../UTC", "/etc/passwd", "a" * 10**5, "\x00", "\udc80", "UTC\n"])
def test_cron_when_the_zone_is_hostile_then_refused(tz: str) -> None:
    with pytest.raises(ValueError, match=r"^tz must be the name of a time zone, got "):
        Cron("* * * * *", tz=tz)
