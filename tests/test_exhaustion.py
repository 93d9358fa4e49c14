"""No memory: whoever asks gets a MemoryError or what there was memory for, and everything stays whole."""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import nextdue

HERE = Path(__file__).parent / "exhaustion"
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
OPERATIONS = [
    *("add_one_by_one", "add_many", "reschedule", "cancel", "cancel_many", "pop_due", "pop_due_ids", "pop", "clear"),
    *("schedule", "schedule_with_rules", "cancel_jobs", "run_due", "take_due"),
]
CASES = [(stack, operation) for stack in sorted({nextdue.BACKEND, "pure"}) for operation in OPERATIONS]
CASES.append((nextdue.BACKEND, "schedule_on_workers"))  # a scheduler takes the stack that was chosen
EVERYWHERE = ["fail", "order", "repeat", "hear"]


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    """The path of the allocator that can be told to fail."""
    compiler = shutil.which("cc")
    if compiler is None or platform.libc_ver()[0] != "glibc":
        pytest.skip("needs a C compiler, and glibc, before whose allocator it stands")
    path = tmp_path_factory.mktemp("exhaustion") / "allocator.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, HERE / "allocator.c"], check=True)
    return path


@pytest.mark.parametrize(("stack", "operation"), CASES)
def test_an_operation_without_memory_leaves_everything_whole(stack, operation, allocator):
    play(allocator, stack, operation)


@pytest.mark.skipif(FREE_THREADED, reason="Python's objects come from elsewhere there")
@pytest.mark.parametrize("operation", EVERYWHERE)
def test_an_allocation_that_fails_in_any_thread_stops_nothing(operation, allocator):
    """Whoever meets it, the caller, a worker or the watcher: what was added ends, and the others go on."""
    if nextdue.BACKEND == "pure":
        pytest.skip("interpreted rules need memory everywhere, also in the middle of a booking")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer's threads want memory, too, and end the process without")
    play(allocator, nextdue.BACKEND, f"{operation}_everywhere")


def play(allocator, stack, operation):
    # Before the allocator of a sanitizer, which wants to be the first.
    preload = " ".join([str(allocator), *os.environ.get("LD_PRELOAD", "").split()])
    options = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    env = dict(os.environ, LD_PRELOAD=preload, ASAN_OPTIONS=options)
    if not FREE_THREADED:
        env["PYTHONMALLOC"] = "malloc"  # or small objects come from arenas, without a call that could fail
    command = [sys.executable, "-P", str(HERE / "child.py"), stack, operation]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report
    for name, (_, faults) in report.items():
        assert not faults, f"{name}: {faults[0]}, and {len(faults) - 1} more"
    unmet = [name for name, (met, _) in report.items() if met == 0]
    if unmet and FREE_THREADED:  # small objects are mimalloc's there, always: no call that could be made to fail
        pytest.skip(f"no malloc without the GIL in {', '.join(unmet)}")
    assert not unmet, "no allocation failed"
