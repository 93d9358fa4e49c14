"""Lateness and memory, on every side; the figures stand in ``extra_info``, the time of a row says nothing."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from nextdue.cli._measure import FIGURES, Sampling

SIDES = [
    pytest.param(sampling, side, id=f"{sampling.names[0]}-{side}") for sampling in FIGURES for side in sampling.sides
]


@pytest.mark.parametrize(("sampling", "side"), SIDES)
def test_figure(benchmark: BenchmarkFixture, sampling: Sampling, side: str, size: int) -> None:
    figures = benchmark.pedantic(sampling.sample, args=(side, size), rounds=1)
    benchmark.group = f"{', '.join(sampling.names)}, {size:,}"
    for name, figure in zip(sampling.names, figures, strict=True):
        benchmark.extra_info[f"{name}, {sampling.unit}"] = figure
