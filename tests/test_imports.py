"""Imports point one way: scheduler -> agenda -> timetable; every other room imports these, and they import none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import nextdue

PACKAGE = Path(nextdue.__file__).parent

TIMETABLE = {"_timetable", "_heapq_timetable", "_ready", "_heap", "_queue", "_sort"}
# They know no room.
GROUND = {
    "_units",
    "_libc",
    "_steps",
    "_waits",
    "_wall",
    "errors",
    "recurrence",
    "retry",
    "status",
    "_clock",
    "_cython_shim",
    "_reports",
    "_options",
}
AGENDA = {"agenda", "_agenda_c"}
CHOICE = {"_backend", "pure"}
MAY_IMPORT = {
    **dict.fromkeys(TIMETABLE, TIMETABLE | {"_units"}),
    **dict.fromkeys(GROUND, GROUND),
    **dict.fromkeys(AGENDA, AGENDA | TIMETABLE | GROUND),
    **dict.fromkeys(CHOICE, AGENDA | TIMETABLE),
    "scheduler": AGENDA | CHOICE | GROUND,
    "testing": GROUND,
}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0].split(".")[0]


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it, by the first part of their names."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            if node.level < depth:
                continue  # inside a folder of the package
            names = [f"nextdue.{node.module}"] if node.module else [f"nextdue.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "nextdue" else [node.module]
            )
        else:
            continue
        found |= {name.split(".")[1] for name in names if name and name.startswith("nextdue.")}
    return found


SOURCES = sorted({*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_of_a_room_point_one_way(path):
    allowed = MAY_IMPORT.get(module_of(path))
    if allowed is not None:
        assert imports_of(path) <= allowed


def test_imports_are_found_by_this_test():
    assert imports_of(PACKAGE / "agenda.py") >= {"_units", "errors", "retry", "status", "_heapq_timetable"}
    assert "_backend" in imports_of(PACKAGE / "scheduler.py")


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"_ready", "_heap", "_queue", "_sort", "_clock"}))
def test_no_room_imports_what_stands_beside_it(room):
    beside = {path.stem for path in PACKAGE.glob("*.py")} - set(MAY_IMPORT) | {"compat", "durable", "cli"}
    for path in PACKAGE.glob(f"{room}.py*"):
        assert not imports_of(path) & beside
