"""The command as a whole: options, exit statuses, demo and bench at tiny sizes, both kinds of console."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from nextdue.cli import _console, _demo, main
from nextdue.cli._plain_scheduler import PlainJob, PlainScheduler

Capture = pytest.CaptureFixture[str]


def test_version_when_asked_then_name_and_number(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("nextdue 0.")


def test_command_when_missing_then_status_2(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err


def test_module_when_run_then_it_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "argv", ["nextdue", "--help"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("nextdue", run_name="__main__")
    assert caught.value.code == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "nan", "inf", "1e400", "2e9", "many", ""])
def test_count_when_bad_then_status_2_and_a_clear_error(value: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", f"--size={value}"])
    assert caught.value.code == 2
    assert f"argument --size: must be a whole number from 1 to 1e9, got {value!r}\n" in capsys.readouterr().err


def test_main_when_interrupted_then_status_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nextdue.cli.open_console", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.realtime
def test_demo_when_small_then_both_sides_keep_their_promises(capsys: Capture) -> None:
    assert main(["demo", "--timers", "200", "--steady", "20"]) == 0
    output = capsys.readouterr().out
    for figure in ("add, timers/s", "cancel, timers/s", "re-arm and fire, timers/s", "lateness p99", "memory a job"):
        assert figure in output
    assert output.split("early runs")[1].split()[:2] == ["0", "0"]


class EarlyScheduler(PlainScheduler):
    """Takes every delay for zero."""

    def _run_at(self, delay: float, at: int | None) -> int:
        return 0


class LosingScheduler(PlainScheduler):
    """Forgets what it is told to bring forward."""

    def reschedule(self, job: PlainJob, delay: float = 0, *, at: int | None = None) -> bool:
        return True


@pytest.mark.parametrize(
    ("scheduler", "faults"),
    [
        (EarlyScheduler, ["runs that started early", "cancels of waiting jobs", "jobs that ran though cancelled"]),
        (LosingScheduler, ["20 jobs that never ran"]),
    ],
)
def test_demo_when_a_promise_breaks_then_status_1_and_named(
    scheduler: type[PlainScheduler], faults: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(_demo.SCHEDULERS, "nextdue", scheduler)  # type: ignore[misc]
    monkeypatch.setattr(_demo, "run_in_child", lambda function, on_report: function(on_report))
    monkeypatch.setattr(_demo, "_MAX_WAIT", 0)
    assert main(["demo", "--timers", "100", "--steady", "2"]) == 1
    output = capsys.readouterr().out
    for fault in faults:
        assert fault in output
    assert "promise broken: nextdue: " in output
    assert "promise broken: plain" not in output


@pytest.mark.realtime
def test_bench_when_figures_are_asked_for_then_table_and_samples(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "samples.json"
    assert main(["bench", "--figures", "--size", "40", "--repeats", "2", "--json", str(path)]) == 0
    output = capsys.readouterr().out
    samples = json.loads(path.read_text())
    assert samples["size"] == 40
    assert samples["machine"]["gc"] is True
    for row in samples["rows"]:
        assert row["name"] in output
        assert all(len(figures) == 2 for figures in row["samples"].values())


def test_bench_when_json_cannot_be_written_then_status_2_at_once(tmp_path: Path, capsys: Capture) -> None:
    assert main(["bench", "--json", str(tmp_path)]) == 2
    assert f"nextdue bench: error: --json must be writable, got {str(tmp_path)!r}: " in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stdout and stderr by one terminal."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def show(console: _console.Console) -> None:
    console.table("title", ("figure", "value"), [("requests", "12"), ("a [bracket]", "1,234")])
    with console.progress() as progress:
        progress.stage("first", 2)
        progress.at(1)
        progress.at(2)
        progress.stage("second", 0)
        progress.at(0)


def test_console_when_output_is_a_pipe_then_plain_lines(capsys: Capture) -> None:
    show(_console.open_console())
    output, errors = capsys.readouterr()
    assert output == (
        "\ntitle\n"
        "figure       value\n"
        "-----------  -----\n"
        "requests        12\n"
        "a [bracket]  1,234\n"
    )  # fmt: skip
    assert errors == "  first ...\n  second ...\n"


def test_console_when_on_a_terminal_without_rich_then_plain_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(_console, "find_spec", lambda name: None)
    show(_console.open_console())
    lines = terminal.getvalue().split("\r")
    assert "100% " + "█" * _console.BAR_WIDTH in lines[3]
    assert lines[4].strip().startswith("second")


def test_console_when_on_a_terminal_with_rich_then_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = open_terminal(monkeypatch)
    show(_console.open_console())
    assert "┏━━━━━━━━━━━━━┳━━━━━━━┓" in terminal.getvalue()
    assert "│ a [bracket] │ 1,234 │" in terminal.getvalue()
    assert "second" in terminal.getvalue()


def test_main_when_the_reader_has_gone_then_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        monkeypatch.setattr("nextdue.cli.open_console", lambda: print("a line"))
        monkeypatch.setattr(_demo, "run", lambda options, console: 0)
        assert main(["demo"]) == 1
