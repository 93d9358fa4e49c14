"""Run the peers' tests on both sides, print the counts, and judge what only the original passes."""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

from nextdue.cli._console import open_console
from tools import peers
from tools.peers._child import FAILED, NOT_USED, PASSED, SKIPPED
from tools.peers._peer import Peer, Unavailable

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".peers"
PAGES = ROOT / "docs" / "compat"
# The tree comes last: nothing of ours may shadow what the tests import.
BOOT = (
    "import sys; del sys.path[0]; sys.path.append(sys.argv.pop(1));"
    " from tools.peers._child import main; sys.exit(main())"
)
GRACE = 30.0  # seconds beyond its own limit until a child that does not end is killed

Outcomes = dict[str, str]


def names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(peers.__path__) if not module.name.startswith("_")]


def run(name: str, side: str, match: str, timeout: float) -> Outcomes:
    """Run every target of a peer on one side."""
    peer: Peer = import_module(f"tools.peers.{name}").PEER
    started = peer.tests.prepare(KEPT)
    logs = KEPT / "logs" / f"{name}-{side}"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for target in peer.tests.targets:
        label = re.sub(r"\W+", "-", target)
        command = [sys.executable, "-c", BOOT, str(ROOT), name, side, target, str(logs / f"{label}.jsonl")]
        command += ["--match", match, "--timeout", str(timeout)]
        with open(logs / f"{label}.log", "w", encoding="utf-8") as log:
            try:
                done = subprocess.run(
                    command,
                    cwd=started,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=timeout + GRACE,
                )
            except subprocess.TimeoutExpired:
                continue  # the test that hangs has failed, those behind it have no outcome
        if done.returncode == NOT_USED:
            raise Unavailable(f"{target} never imported nextdue.compat.{peer.page}")
    return {
        test: outcome for path in sorted(logs.glob("*.jsonl")) for test, outcome in map(json.loads, path.open())
    }  # the last line of a test counts


def reasons(page: Path) -> dict[str, str]:
    """Return what a page says of tests that do not pass, by test or pattern of tests."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return dict(re.findall(r"^\| `([^`]*test[^`]*)` \| (\S.*?) \|$", text, re.MULTILINE))


def explained(test: str, known: Mapping[str, str]) -> str | None:
    """Return the entry of the page that is about a test."""
    return next((entry for entry in known if entry == test or fnmatchcase(test, entry)), None)


def judge(original: Outcomes, ours: Outcomes, known: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
    """Return the tests that only the original passes, without and with a reason, and the reasons nobody needs.

    A test that is skipped only by us, or has no outcome there, does not pass.
    """
    lost = [test for test, outcome in original.items() if outcome == PASSED and ours.get(test) != PASSED]
    listed = [test for test in lost if explained(test, known)]
    passing = {explained(test, known) for test, outcome in ours.items() if outcome == PASSED}
    idle = passing - {explained(test, known) for test in listed}
    return [test for test in lost if test not in listed], listed, sorted(entry for entry in idle if entry)


def counts(outcomes: Outcomes) -> tuple[str, ...]:
    found = Counter(outcomes.values())
    return tuple(f"{found[outcome]:,}" for outcome in (PASSED, FAILED, SKIPPED))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.peers", description=peers.__doc__)
    parser.add_argument("peers", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all by default")
    parser.add_argument("--match", default="", help="only the tests that -k of their runner selects")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a target may take (default: %(default)g)")
    options = parser.parse_args(arguments)
    unknown = set(options.peers) - set(names())
    if unknown:
        parser.error(f"NAME must be one of {', '.join(names())}, got {', '.join(sorted(unknown))}")
    KEPT.mkdir(exist_ok=True)
    console = open_console()
    rows, remarks, failed = [], [], False
    with console.progress() as progress:
        for name in options.peers or names():
            peer: Peer = import_module(f"tools.peers.{name}").PEER
            progress.stage(name, 2)
            try:
                original = run(name, "original", options.match, options.timeout)
                progress.at(1)
                ours = run(name, "drop-in", options.match, options.timeout)
                progress.at(2)
            except Unavailable as reason:
                remarks.append(f"{name}: not run: {reason}")
                failed = True
                continue
            known = reasons(PAGES / f"{peer.page}.md")
            unexplained, listed, idle = judge(original, ours, known)
            nothing = PASSED not in original.values()
            failed = failed or bool(unexplained) or nothing
            verdict = "nothing ran" if nothing else f"{len(unexplained)} lost" if unexplained else "ok"
            rows.append((name, peer.tests.version(), *counts(original), *counts(ours), verdict))
            remarks += [f"{name}: NOT PASSED {test}: {ours.get(test, 'no outcome')}" for test in unexplained]
            remarks += [f"{name}: known {test}: {known[explained(test, known) or '']}" for test in listed]
            remarks += [f"{name}: passes, but docs/compat/{peer.page}.md lists it: {entry}" for entry in idle]
    header = ("peer", "version", "passed", "failed", "skipped", "ours: passed", "failed", "skipped", "verdict")
    console.table("the peers' own tests: the original, and the drop-in in its place", header, rows)
    for text in ("", *remarks):
        console.line(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
