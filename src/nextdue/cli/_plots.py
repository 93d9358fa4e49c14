"""Plots of what ``nextdue bench`` kept. They need matplotlib, which is imported here and only when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_COLOURS = {"hold": "tab:blue", "add": "tab:green", "pop": "tab:orange", "bulk add + pop": "tab:red"}
_SIDES = {"nextdue": "-", "heapq": ":"}
_DPI = 80


def draw(found: Mapping[str, Any], directory: Path, version: str) -> str:
    """Draw cost over size and lateness into the directory; return a sentence that says what was done."""
    if not find_spec("matplotlib"):
        return f"no plots: matplotlib is not installed; samples are in {directory}"
    from matplotlib.figure import Figure

    cost, axes = _sheet(Figure, "cost over size", found)
    for side, style in _SIDES.items():
        for work, points in found["curves"].get(side, {}).items():
            sizes, times = zip(*points, strict=True)
            axes.loglog(sizes, times, style, color=_COLOURS[work], marker=".", label=f"{side}: {work}")
    axes.set_xlabel("timers waiting")
    axes.set_ylabel("ns a timer")
    axes.grid(True, which="major", alpha=0.4)
    axes.legend(fontsize="small", ncols=2)
    cost.savefig(directory / f"cost-{version}.png", dpi=_DPI)

    lateness, axes = _sheet(Figure, f"lateness of 1,000 timers a second, {found['size']:,} waiting", found)
    for side, lags in found["lags"].items():
        edges, counts = lags["edges_us"], lags["counts"]
        lefts = [edges[0] * edges[0] / edges[1], *edges]  # below the first edge: as wide a bar as the next
        share = [100 * n / sum(counts) for n in counts]
        label = f"{side}: p50 {lags['p50']:,.0f}, p99 {lags['p99']:,.0f} µs"
        axes.stairs(share, [*lefts, edges[-1] * edges[1] / edges[0]], fill=True, alpha=0.5, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("start of a run after its run_at, µs")
    axes.set_ylabel("% of the runs")
    if found["lags"]:
        axes.legend(fontsize="small")
    lateness.savefig(directory / f"lateness-{version}.png", dpi=_DPI)
    return f"samples, table and plots are in {directory}"


def _sheet(figure: Any, title: str, found: Mapping[str, Any]) -> tuple[Any, Any]:
    sheet = figure(figsize=(8, 5), layout="constrained")
    axes = sheet.add_subplot()
    axes.set_title(f"{title} ({found['machine']['python']})", fontsize="medium")
    return sheet, axes
