"""The parser of access logs: what it reads, and what it refuses by line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextdue.cli._access_log import MalformedLine, parse_line, read_requests

SECOND = 10**9
COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326'
COMMON_AT = 971_211_336 * SECOND


def usable(*lines: bytes) -> tuple[list[tuple[int, bytes]], list[int]]:
    """Return the requests in the lines, and the numbers of the malformed ones."""
    malformed: list[int] = []
    requests = list(read_requests(lines, lambda number, reason: malformed.append(number)))
    return requests, malformed


def test_parse_line_when_common_log_format_then_time_and_host() -> None:
    assert parse_line(COMMON) == (COMMON_AT, b"192.0.2.7")


@pytest.mark.parametrize(
    "line",
    [
        COMMON + b' "http://example.org/" "Mozilla/4.08 [en] (X11; I)"',
        COMMON.replace(b"2326", b"-"),
        COMMON.replace(b"/a.gif", rb"/\"quoted\" [x]"),
        COMMON.replace(b"/a.gif", b'/bare"quote'),
        COMMON.replace(b"GET /a.gif HTTP/1.0", b""),
        COMMON.replace(b"GET", b"\xff\x00\xfe"),
        COMMON.replace(b"frank", b"frank the second"),
    ],
)
def test_parse_line_when_the_rest_varies_then_time_and_host(line: bytes) -> None:
    assert parse_line(line) == (COMMON_AT, b"192.0.2.7")


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b"807256800,42", (807_256_800 * SECOND, b"42")),
        (b"807256800.25 , a client", (807_256_800 * SECOND + SECOND // 4, b"a client")),
        (b"1.1234567891,x", (SECOND + 123_456_789, b"x")),
        (b'0,"quoted, ""twice"""', (0, b'quoted, "twice"')),
        (b"5,\xff\x00", (5 * SECOND, b"\xff\x00")),
    ],
)
def test_parse_line_when_csv_then_time_and_client(line: bytes, request_: tuple[int, bytes]) -> None:
    assert parse_line(line) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b",",
        b"5,",
        b"-5,x",
        b"nan,x",
        b"1e9,x",
        b"5,x,y",
        b'5,"x',
        b"unix_seconds,client",
        COMMON[:-10],
        COMMON.replace(b"[", b""),
        b" - - [10/Oct/2000:13:55:36 -0700]",
    ],
)
def test_parse_line_when_neither_form_then_malformed(line: bytes) -> None:
    with pytest.raises(MalformedLine, match=r"^neither a line of an access log nor unix_seconds,client$"):
        parse_line(line)


@pytest.mark.parametrize(
    "stamp",
    [
        b"32/Oct/2000:13:55:36 -0700",
        b"10/Okt/2000:13:55:36 -0700",
        b"10/Oct/2000:24:00:00 +0000",
        b"10.Oct.2000:13:55:36 -0700",
        b"10/Oct/2000:13:55:36 +2400",
    ],
)
def test_parse_line_when_there_is_no_such_time_then_malformed(stamp: bytes) -> None:
    with pytest.raises(MalformedLine, match=r"^no such time: "):
        parse_line(COMMON.replace(b"10/Oct/2000:13:55:36 -0700", stamp))


@pytest.mark.parametrize("line", [b"9999999999,x", COMMON.replace(b"2000", b"1969"), COMMON.replace(b"2000", b"2263")])
def test_parse_line_when_nanoseconds_would_not_fit_then_malformed(line: bytes) -> None:
    with pytest.raises(MalformedLine, match=r"^time must be in the years 1970 to 2262, got -?\d+ s$"):
        parse_line(line)


def test_read_requests_when_first_line_is_a_header_then_skipped() -> None:
    assert usable(b"\xef\xbb\xbfunix_seconds,client\r\n", b"1,a\r\n") == ([(SECOND, b"a")], [])


def test_read_requests_when_lines_are_malformed_then_named_by_number() -> None:
    lines = (b"1,a\n", b"?\n", b"2,b\n", b"unix_seconds,client\n", b"3,c")
    assert usable(*lines) == ([(SECOND, b"a"), (2 * SECOND, b"b"), (3 * SECOND, b"c")], [2, 4])


def test_read_requests_when_lines_are_blank_then_skipped() -> None:
    assert usable(b"\n", b"  \r\n", b"1,a\n", b"") == ([(SECOND, b"a")], [])


@given(st.lists(st.binary()))
def test_read_requests_when_bytes_are_arbitrary_then_each_line_is_used_or_counted(lines: list[bytes]) -> None:
    requests, malformed = usable(*lines)
    assert len(requests) + len(malformed) <= len(lines)


@given(st.text())
def test_parse_line_when_text_is_arbitrary_then_a_request_or_malformed(text: str) -> None:
    try:
        at, client = parse_line(text.encode(errors="surrogatepass").strip())
    except MalformedLine:
        return
    assert 0 <= at < 2**63
    assert client


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2262, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
    st.from_regex(rb"\S+", fullmatch=True),
)
def test_parse_line_when_a_line_is_well_formed_then_it_is_read_back(at: datetime, minutes: int, host: bytes) -> None:
    local = at.replace(tzinfo=timezone(timedelta(minutes=minutes)), microsecond=0)
    line = host + local.strftime(' - - [%d/%b/%Y:%H:%M:%S %z] "GET / HTTP/1.1" 200 5').encode()
    assert parse_line(line) == ((local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * SECOND, host)
