"""What the page on the wall clock shows is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "wall-clock.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def expected(block: str) -> list[str]:
    """The comments of an example: at the end of a print, or on lines of their own, indented by nothing."""
    lines = []
    for line in block.splitlines():
        if line.startswith("# "):
            lines.append(line[2:])
        elif line.startswith("print(") and "  # " in line:
            lines.append(line.split("  # ")[1])
    return lines


@pytest.mark.parametrize("k", range(len(BLOCKS)))
def test_example_of_the_page_prints_its_comments(k: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[k], f"wall-clock.md, example {k}", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert printed == expected(BLOCKS[k])
