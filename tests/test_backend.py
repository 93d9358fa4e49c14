import os
import subprocess
import sys

import nextdue
from nextdue import pure


def test_backend_is_what_was_asked_for():
    forced = os.environ.get("NEXTDUE_PURE", "") not in ("", "0")
    assert nextdue.BACKEND == ("pure" if forced else "compiled")
    assert type(nextdue.Agenda()).__module__ == ("nextdue.agenda" if forced else "nextdue._agenda_c")


def test_pure_stack_stands_beside_the_chosen_one():
    assert pure.Agenda.__module__ == "nextdue.agenda"
    assert pure.Timetable is nextdue.HeapqTimetable


def test_nextdue_pure_chooses_the_pure_stack():
    code = "import nextdue; print(nextdue.BACKEND, nextdue.Timetable.__name__)"
    env = {**os.environ, "NEXTDUE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pure", "HeapqTimetable"]
