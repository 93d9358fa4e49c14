"""The models of SimPy's manual print the traces that the manual shows."""

import runpy
from pathlib import Path

import pytest

TRACES = sorted(Path("docs/examples/code").resolve().glob("*.out"))  # from where the sdist is unpacked


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.stem)
def test_model(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(trace.with_suffix(".py")), run_name="__main__")
    assert capsys.readouterr().out == trace.read_text()
