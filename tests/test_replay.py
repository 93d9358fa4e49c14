"""What once made a test fail is tried first by the next run, whatever build and interpreter that has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

MACHINE = """
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

class Machine(RuleBasedStateMachine):
    @rule(number=st.integers(0, 10**6))
    def step(self, number):
        print("step", number)
        assert number < 1234

TestMachine = Machine.TestCase
"""


def test_sequence_that_failed_is_what_the_next_run_begins_with_also_in_ci(tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tests)
    (tests / "test_machine.py").write_text(MACHINE)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-s", str(tests)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first, second = (
        subprocess.run(command, cwd=cwd, env=os.environ | {"CI": "true"}, capture_output=True, text=True, timeout=300)
        for cwd in (tmp_path, elsewhere)
    )
    assert (first.returncode, second.returncode) == (1, 1), first.stderr + second.stderr
    steps = [line for line in second.stdout.splitlines() if line.startswith("step ")]
    assert steps[0] == "step 1234"
