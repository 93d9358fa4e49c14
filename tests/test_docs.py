"""What the documents show is run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import nextdue
from nextdue import pure

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PRINTED = [
    ["hello, world", "tick", "5", "<Status.SCHEDULED: 'scheduled'> True <Status.CANCELLED: 'cancelled'>", "1024"],
    ["3600", "['session 7']"],
    ["168"],
]


def run_examples(test: doctest.DocTest) -> int:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0
    return runner.tries


@pytest.mark.parametrize("name", ["retry", "testing", "agenda", "_heapq_timetable", "scheduler", "cli._goals"])
def test_examples_in_module_give_what_they_say(name: str) -> None:
    module = importlib.import_module(f"nextdue.{name}")
    assert sum(run_examples(test) for test in doctest.DocTestFinder().find(module)) > 0


@pytest.mark.parametrize("cls", [nextdue.Timetable, nextdue.Agenda, pure.Timetable, pure.Agenda])
def test_examples_in_class_give_what_they_say(cls: type) -> None:
    names = vars(importlib.import_module(cls.__module__))
    test = doctest.DocTestParser().get_doctest(cls.__doc__ or "", dict(names), cls.__name__, None, 0)
    assert run_examples(test) > 0


def test_readme_has_an_output_for_each_example() -> None:
    assert len(BLOCKS) == len(PRINTED)


@pytest.mark.realtime
@pytest.mark.parametrize("k", range(len(PRINTED)))
def test_readme_example_prints_what_it_says(k: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[k], f"README.md, example {k}", "exec"), {})
    output = capsys.readouterr().out
    for words in PRINTED[k]:  # not whole lines: jobs may print at the same time
        assert words in output


PAGES = sorted((ROOT / "docs").glob("*.md"))
DROP_INS = sorted((ROOT / "docs" / "compat").glob("*.md"))
EXAMPLES = [
    (page.name, k, block)
    for page in PAGES + DROP_INS
    for k, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


def expected(block: str) -> list[str]:
    """The output that an example tells: comments at the end of a print, or on lines of their own, not indented."""
    lines = []
    for line in block.splitlines():
        if line.startswith("# "):
            lines.append(line[2:])
        elif line.startswith("print(") and "  # " in line:
            lines.append(line.split("  # ")[1])
    return lines


@pytest.mark.realtime
@pytest.mark.parametrize(("page", "k", "block"), EXAMPLES, ids=[f"{page}-{k}" for page, k, _ in EXAMPLES])
def test_example_of_a_page_prints_its_comments(
    page: str, k: int, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(block, f"docs/{page}, example {k}", "exec"), {})
    assert capsys.readouterr().out.splitlines() == expected(block)


def test_pages_and_index_name_each_other() -> None:
    named = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted({"index.md", *named}) == [page.name for page in PAGES]


def test_pages_of_drop_ins_and_their_overview_name_each_other() -> None:
    named = re.findall(r"\]\(compat/([\w-]+\.md)\)", (ROOT / "docs" / "compat.md").read_text(encoding="utf-8"))
    assert sorted(named) == [page.name for page in DROP_INS]


@pytest.mark.parametrize("page", [*PAGES, *DROP_INS, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
