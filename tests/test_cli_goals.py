"""The goals of speed: the verdicts, what a line says, and that the table is complete at a tiny size."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextdue.cli import _bench, _goals, _plots, main
from nextdue.cli._console import Progress
from nextdue.cli._goals import GOALS, Bench, Goal, Line, curves, take
from nextdue.cli._peers import Peers, Unavailable

Capture = pytest.CaptureFixture[str]
SOURCES = Path(__file__).parent.parent / "benchmarks" / "peers"


def bench_of(size: int, scratch: Path, repeats: int = 1, sources: Path = SOURCES) -> Bench:
    return Bench(size, repeats, Peers(sources, scratch), Progress(), isolated=False)


@pytest.mark.parametrize(
    ("sign", "value", "verdict"),
    [
        ("≥", 12.0, "pass"),
        ("≥", 11.01, "pass"),
        ("≥", 11.0, "draw"),
        ("≥", 10.0, "draw"),
        ("≥", 9.0, "draw"),
        ("≥", 8.99, "miss"),
        ("≤", 8.0, "pass"),
        ("≤", 9.0, "draw"),
        ("≤", 11.0, "draw"),
        ("≤", 11.01, "miss"),
    ],
)
def test_judge_when_a_ratio_is_within_a_tenth_then_a_draw(sign: str, value: float, verdict: str) -> None:
    assert Goal(sign, 10, "x").judge(value) == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.0, "pass"), (39.0, "pass"), (40.0, "pass"), (43.9, "draw"), (44.1, "miss")]
)
def test_judge_when_a_figure_of_our_own_keeps_its_bound_then_pass(value: float, verdict: str) -> None:
    assert Goal("≤", 40, "B").judge(value) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(0, "pass"), (1, "miss")])
def test_judge_when_nothing_is_allowed_then_one_is_a_miss(value: float, verdict: str) -> None:
    assert Goal("≤", 0, "").judge(value) == verdict


@pytest.mark.parametrize("value", [None, float("nan")])
def test_judge_when_there_is_no_figure_then_no_verdict(value: float | None) -> None:
    assert Goal("≥", 2, "x").judge(value) == "-"


def test_line_when_the_goal_is_at_least_then_ratio_says_how_many_times_better() -> None:
    line = Line(1, "hold", 20.0, "ns", Goal("≥", 12, "x"), "heapq", 300.0)
    assert (line.ratio, line.verdict) == (15, "pass")
    assert line.cells() == (" 1  hold", "20 ns", "300 ns heapq", "15 x", "≥ 12 x", "pass")


def test_line_when_the_goal_is_at_most_then_ratio_says_how_many_times_the_other() -> None:
    line = Line(7, "run_due", 240.0, "ns", Goal("≤", 8, "x"), "bare calls", 20.0)
    assert (line.ratio, line.verdict) == (12, "miss")


def test_line_when_the_bound_is_of_our_own_figure_then_the_peer_does_not_decide() -> None:
    line = Line(6, "a timer", 36.0, "B", Goal("≤", 40, "B"), "heapq", 18.0)
    assert (line.ratio, line.verdict) == (0.5, "pass")


def test_line_when_the_peer_did_not_run_then_no_verdict() -> None:
    line = Line(8, "end to end", 500.0, "ns", Goal("≥", 1, "x"), "STPE (Java)")
    assert line.cells() == (" 8  end to end", "500 ns", "STPE (Java)", "", "≥ 1 x", "-")


def test_best_when_sides_take_turns_then_the_best_of_each_figure_counts(tmp_path: Path) -> None:
    turns: list[str] = []

    def sampler(side: str, *figures: float) -> _goals.Sampler:
        left = list(figures)

        def sample() -> dict[str, float]:
            turns.append(side)
            return {"p50": left[0], "p99": 10 * left.pop(0)}

        return sample

    bench = bench_of(1, tmp_path, repeats=2)
    best = bench.best("lateness", {"ours": sampler("ours", 3, 2), "theirs": sampler("theirs", 5, 7)})
    assert turns == ["ours", "theirs", "ours", "theirs"]
    assert best == {"ours": {"p50": 2, "p99": 20}, "theirs": {"p50": 5, "p99": 50}}
    assert bench.samples["lateness"]["ours"] == [{"p50": 3, "p99": 30}, {"p50": 2, "p99": 20}]


def test_best_when_a_peer_cannot_run_then_it_is_asked_once_and_the_others_stand(tmp_path: Path) -> None:
    asked: list[int] = []

    def missing() -> dict[str, float]:
        asked.append(1)
        raise Unavailable("no g++ here")

    bench = bench_of(1, tmp_path, repeats=3)
    best = bench.best("hold", {"ours": lambda: {"hold": 1.0}, "C++": missing})
    assert best == {"ours": {"hold": 1.0}}
    assert (len(asked), bench.missing) == (1, {"C++": "no g++ here"})


def test_take_when_a_side_fails_then_its_line_says_so_and_the_next_goal_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(bench: Bench) -> Iterator[Line]:
        """Lose something."""
        raise RuntimeError("did 1 of 2")
        yield

    def kept(bench: Bench) -> Iterator[Line]:
        yield Line(2, "kept", 1.0, "ns")

    monkeypatch.setitem(GOALS, 1, lost)
    monkeypatch.setitem(GOALS, 2, kept)
    failed, measured = take(bench_of(1, tmp_path), [1, 2])
    assert (failed.work, failed.verdict) == ("Lose something", "failed")
    assert failed.note == "failed: RuntimeError('did 1 of 2')"
    assert (measured.work, measured.verdict) == ("kept", "-")


@pytest.mark.realtime
@pytest.mark.parametrize("number", [number for number in GOALS if number != 11])
def test_goal_when_small_then_every_line_has_our_figure(number: int, tmp_path: Path) -> None:
    lines = list(take(bench_of(40, tmp_path, sources=tmp_path), [number]))
    assert lines
    assert [line.note for line in lines] == [""] * len(lines)
    assert {line.number for line in lines} == {number}
    assert all(line.ours is not None and line.ours >= 0 for line in lines)


@pytest.mark.realtime
def test_goal_11_when_few_jobs_then_none_is_lost(tmp_path: Path) -> None:
    lines = {line.work: line for line in take(bench_of(40, tmp_path), [11])}
    assert lines["4 jobs, period 1 s, 2 slots: runs lost"].verdict == "pass"
    assert lines["early runs"].verdict == "pass"


def test_curves_when_small_then_a_point_for_each_size_on_both_sides(tmp_path: Path) -> None:
    drawn = curves(bench_of(200, tmp_path))
    assert set(drawn) == {"nextdue", "heapq"}
    for works in drawn.values():
        assert set(works) == {"hold", "add", "pop", "bulk add + pop"}
        assert all([size for size, _ in points] == [1, 2, 20, 200, 2000] for points in works.values())


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_peers_when_there_is_no_compiler_then_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    peers = Peers(SOURCES, tmp_path)
    with pytest.raises(Unavailable, match=r"^no g\+\+ here$"):
        peers.priority_queue(1, 1)
    with pytest.raises(Unavailable, match=r"^no java here$"):
        peers.java_end_to_end(1, 1)


def test_peers_when_there_is_no_source_then_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as raised:
        Peers(tmp_path, tmp_path).priority_queue(1, 1)
    assert str(raised.value) == f"no {tmp_path / 'priority_queue.cpp'}: run in the source tree or give --peers"


def test_peers_when_a_program_fails_then_its_last_words_are_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "java", "echo 'out of memory' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(Unavailable, match=r"^java failed, exit status 3: out of memory$"):
        Peers(SOURCES, tmp_path).java_waiting(1, 1)


def test_peers_when_a_program_answers_then_its_figures_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "java", 'echo "{\\"end_to_end\\": $4.5}"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert Peers(SOURCES, tmp_path).java_end_to_end(1000, 2) == {"end_to_end": 2.5}


def test_peers_when_cpp_is_built_then_it_does_its_work(tmp_path: Path) -> None:
    try:
        figures = Peers(SOURCES, tmp_path).priority_queue(1000, 2000)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert set(figures) == {"push", "hold", "pop"}


def test_peers_when_java_is_here_then_it_does_its_work(tmp_path: Path) -> None:
    peers = Peers(SOURCES, tmp_path)
    try:
        figures = peers.java_waiting(100, 200) | peers.java_end_to_end(100, 2)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert set(figures) == {"schedule", "cancel", "pair", "end_to_end"}


def test_draw_when_matplotlib_is_missing_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plots, "find_spec", lambda name: None)
    assert _plots.draw({}, tmp_path, "3.13") == f"no plots: matplotlib is not installed; samples are in {tmp_path}"


def test_draw_when_matplotlib_is_here_then_small_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = {
        "size": 10,
        "machine": {"python": "CPython"},
        "curves": {"nextdue": {"hold": [(1, 9.0), (10, 10.0)]}, "heapq": {"hold": [(1, 20.0), (10, 30.0)]}},
        "lags": {"nextdue": {"p50": 1.0, "p99": 2.0, "edges_us": [1, 2, 4], "counts": [1, 2, 3, 0]}},
    }
    _plots.draw(found, tmp_path, "3.13")
    for name in ("cost-3.13.png", "lateness-3.13.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / name).stat().st_size < 100_000


def test_bench_when_only_one_goal_then_table_samples_and_results(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "results"
    assert main(["bench", "--size", "40", "--repeats", "2", "--only", "2", f"--results={results}"]) == 0
    output = capsys.readouterr().out
    assert "40 timers or jobs for a million, best of 2 (SCALED: the goals are meant for 1,000,000)" in output
    assert " 2  add + pop, one by one" in output
    (path,) = results.glob("goals-*-part.json")
    found = json.loads(path.read_text())
    assert [line["goal"] for line in found["lines"]] == [2]
    assert [len(samples) for samples in found["samples"]["add + pop"].values()] == [2, 2]
    assert {"python", "cpu", "date", "load_average"} <= set(found["machine"])
    assert "|  2  add + pop, one by one |" in path.with_suffix(".md").read_text()


def test_bench_when_interrupted_then_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(bench: Bench) -> Iterator[Line]:
        yield Line(2, "measured", 1.0, "ns")
        raise KeyboardInterrupt

    monkeypatch.setitem(GOALS, 2, interrupted)
    assert main(["bench", "--only", "2,3"]) == 130
    output = capsys.readouterr().out
    assert "1,000,000 timers or jobs for a million, best of 3, interrupted" in output
    assert " 2  measured" in output


@pytest.mark.parametrize("text", ["0", "12", "1,", "one", "1.0"])
def test_bench_when_only_is_no_goal_then_usage_error(text: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["bench", f"--only={text}"])
    expected = f"error: argument --only: must be numbers from 1 to 11 with commas, got {text!r}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_bench_when_results_is_a_file_then_status_2_at_once(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "file"
    path.touch()
    assert main(["bench", f"--results={path}"]) == 2
    expected = f"nextdue bench: error: --results must be a directory, got {str(path)!r}: File exists\n"
    assert capsys.readouterr().err == expected


FACTS = {"python": "P", "backend": "b", "cpu": "c", "cores": 2, "date": "d", "gc": True, "load_average_after": 1.0}


@pytest.mark.parametrize(("load", "busy"), [(0.5, False), (0.6, True)])
def test_notes_when_others_were_at_work_then_say_so(load: float, busy: bool) -> None:
    texts = _bench.notes([], {}, FACTS | {"load_average": load})
    assert any("OTHERS WERE AT WORK" in text for text in texts) is busy


def test_notes_when_something_is_missing_or_failed_then_say_why() -> None:
    line = Line(3, "bulk", None, "", note="failed: out of order")
    texts = _bench.notes([line], {"C++": "no g++ here"}, FACTS | {"load_average": None})
    assert texts[-3:] == ["this system tells no load average", "no C++: no g++ here", "goal 3 failed: out of order"]
