"""``nextdue replay``: sessions, counts and exit statuses, on both backends, without waiting."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextdue.cli import _replay, main
from nextdue.cli._console import Console
from nextdue.cli._replay import BACKENDS, Replay

Run = Callable[..., tuple[int, str, str]]

SECOND = 10**9
MINUTE = 60 * SECOND


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str) -> Run:
    """Return a function that replays the bytes of a log: exit status, stdout, stderr."""

    def run(log: bytes, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "access.log"
        path.write_bytes(log)
        status = main(["replay", str(path), "--idle", "30m", "--backend", backend, *arguments])
        return status, *capsys.readouterr()

    return run


def figures(output: str) -> dict[str, int]:
    """Return the figures in the printed table."""
    found = {}
    for line in output.partition("session length")[0].splitlines():
        name, _, figure = line.rpartition("  ")
        if name and figure.replace(",", "").isdigit():
            found[name.strip()] = int(figure.replace(",", ""))
    return found


def test_replay_when_clients_come_and_go_then_counts_are_exact(replay: Run) -> None:
    # a: 0 s, 20 min (re-arm), 49 min (re-arm), then idle; b: 0 s, 31 min (a session of its own)
    status, output, _ = replay(b"unix_seconds,client\n0,a\n0,b\n1200,a\n1860,b\n2940,a\n")
    assert status == 0
    found = figures(output)
    assert found.pop("timers/s") > 0
    assert found == {
        "requests": 5,
        "re-arms": 2,
        "expiries": 3,
        "most sessions alive at once": 2,
        "times that went back": 0,
    }


def test_replay_when_log_is_in_combined_format_then_counts_are_the_same(replay: Run) -> None:
    log = "".join(
        f'192.0.2.{host} - - [01/Aug/1995:00:{minute:02}:00 -0400] "GET / HTTP/1.0" 200 99 "-" "Mozilla"\n'
        for host, minute in ((1, 0), (2, 1), (1, 29), (2, 32))
    )
    status, output, _ = replay(log.encode())
    assert status == 0
    found = figures(output)
    assert (found["requests"], found["re-arms"], found["expiries"]) == (4, 1, 3)


def test_replay_when_lengths_differ_then_histogram_counts_each_session(replay: Run) -> None:
    _, output, _ = replay(b"0,a\n0,b\n5,b\n0,c\n100,c\n")
    histogram = output.partition("session length\n")[2].splitlines()
    assert [line.split("  ")[-2].strip() for line in histogram if "█" in line] == ["1", "1", "1"]


def test_replay_when_lines_are_malformed_then_counted_and_named(replay: Run) -> None:
    status, output, _ = replay(b"0,a\nnonsense\n\xff\xfe\x00\n1,a\n")
    assert status == 0
    assert "malformed lines: 2\n  line 2: neither a line" in output
    assert "  line 3: neither a line" in output
    assert figures(output)["requests"] == 2


def test_replay_when_most_lines_are_malformed_then_the_list_is_cut(replay: Run) -> None:
    status, output, _ = replay(b"?\n" * 1000 + b"0,a\n")
    assert status == 0
    assert output.count("neither a line") == _replay.MAX_LISTED
    assert "  and 990 more\n" in output


def test_replay_when_times_go_back_then_counted_and_time_stands(replay: Run) -> None:
    # a's second request is stamped 1 min before b's: taken for b's time, so a lives until 40 + 30 min
    _, output, _ = replay(b"0,a\n1740,b\n1680,a\n3539,a\n")
    found = figures(output)
    assert found["times that went back"] == 1
    assert (found["re-arms"], found["expiries"]) == (2, 2)


@pytest.mark.parametrize("log", [b"", b"\n\n", b"unix_seconds,client\n", b"nothing here\n", bytes(range(256))])
def test_replay_when_no_line_is_usable_then_status_2(replay: Run, log: bytes) -> None:
    status, _, errors = replay(log)
    assert status == 2
    assert "nextdue replay: error: FILE must have at least one usable line, got " in errors


def test_replay_when_idle_time_ends_after_the_last_instant_then_sessions_still_end(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"9223372035,a\n")
    assert main(["replay", str(path), "--idle", "999999999d", "--backend", backend]) == 0
    assert figures(capsys.readouterr().out)["expiries"] == 1


def test_replay_when_stdout_is_ascii_then_bars_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0,a\n")
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    assert main(["replay", str(path), "--idle", "1s"]) == 0
    assert b"0 s          1  ????" in output.getvalue()


def test_replay_when_file_is_missing_then_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "no/such.log", "--idle", "30m"]) == 2
    errors = capsys.readouterr().err
    assert errors == "nextdue replay: error: FILE must be readable, got 'no/such.log': No such file or directory\n"


def test_replay_when_file_is_a_directory_then_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path), "--idle", "30m"]) == 2
    assert f"FILE must be readable, got {str(tmp_path)!r}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--idle", value) for value in ("", "30", "0s", "-1s", "nan", "1w", "30m ", "9" * 5000 + "s")),
        *(("--speed", value) for value in ("", "60", "0x", "-1x", "infx", "x", "MAX")),
    ],
)
def test_replay_when_option_is_bad_then_status_2_and_a_clear_error(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {
        "--idle": "a duration above zero such as 90s, 30m or 1h30m",
        "--speed": "max or a factor above zero such as 60x or 1x",
    }[option]
    with pytest.raises(SystemExit) as caught:
        main(["replay", "x.log", "--idle", "30m", f"{option}={value}"])
    assert caught.value.code == 2
    assert f"error: argument {option}: must be {rule}, got {value!r}\n" in capsys.readouterr().err


@given(st.binary() | st.lists(st.sampled_from([b"1,a\n", b"2,b\n", b"1,b\n", b"x", b"\n", b",", b'"'])).map(b"".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_replay_when_bytes_are_arbitrary_then_status_0_or_2(replay: Run, log: bytes) -> None:
    status, _, errors = replay(log)
    assert status in (0, 2)
    assert (status == 2) == ("error:" in errors)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([b"a", b"b", b"c"]))), st.integers(1, 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_replay_when_compared_with_a_plain_loop_then_equal(
    backend: str, requests: list[tuple[int, bytes]], idle: int
) -> None:
    replay = Replay(BACKENDS[backend](), idle)
    alive: dict[bytes, int] = {}
    now = rearms = sessions = peak = 0
    for at, client in requests:
        now = max(now, at)
        alive = {other: last for other, last in alive.items() if last + idle > now}
        rearms += client in alive
        sessions += client not in alive
        alive[client] = now
        peak = max(peak, len(alive))
        replay.request(at, client)
    replay.finish()
    assert (replay.rearms, replay.expiries, replay.peak_alive) == (rearms, sessions, peak)
    assert sum(replay.length_counts) == sessions
    assert replay.requests == len(requests)


class SimulatedTime:
    """A clock that only moves while somebody sleeps; it notes for how long."""

    def __init__(self) -> None:
        self.now = 1000
        self.slept: list[float] = []

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * SECOND)


def run_paced(path: Path, log: bytes, speed: float) -> SimulatedTime:
    path.write_bytes(log)
    simulated = SimulatedTime()
    options = argparse.Namespace(file=str(path), idle=30 * MINUTE, backend="nextdue", speed=speed)
    assert _replay.run(options, Console(), clock=simulated.clock, sleep=simulated.sleep) == 0
    return simulated


def test_replay_when_speed_is_60x_then_waits_between_events(tmp_path: Path) -> None:
    simulated = run_paced(tmp_path / "log", b"600,a\n660,b\n3000,a\n", speed=60)
    # minutes of the log, seconds of ours: a at 10, b at 11; a ends at 40, b at 41; a again at 50, until 80
    assert simulated.slept == pytest.approx([1, 29, 1, 9, 30])


def test_replay_when_speed_is_1x_then_long_waits_are_sliced(tmp_path: Path) -> None:
    simulated = run_paced(tmp_path / "log", b"0,a\n10800,a\n", speed=1)
    assert max(simulated.slept) <= _replay.MAX_WAIT
    assert sum(simulated.slept) == pytest.approx(10_800 + 1800)


def test_replay_when_speed_is_max_then_never_waits(tmp_path: Path) -> None:
    assert run_paced(tmp_path / "log", b"0,a\n10800,a\n", speed=float("inf")).slept == []
