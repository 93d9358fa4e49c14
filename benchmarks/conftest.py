"""The sizes to measure at: ``pytest benchmarks --sizes 1e3,1e6``."""

from __future__ import annotations

import pytest

from nextdue.cli._arguments import count


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sizes", default="1e3,1e5", help="timers or jobs, as 1e3,1e6,1e7 (default: %(default)s)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "size" in metafunc.fixturenames:
        sizes = [count(text) for text in metafunc.config.getoption("sizes").split(",")]
        metafunc.parametrize("size", sizes, ids=[f"{size:,}" for size in sizes])
