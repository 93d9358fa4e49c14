"""One target of a peer's tests, run in this process; each outcome is a line of a file, so that a hang loses only one.

A test has an outcome before it ends: what never reports another has failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import signal
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.peers._peer import Peer

PASSED, SKIPPED, FAILED = ORDER = "passed", "skipped", "failed"  # from good to bad
NOT_USED = 3  # exit status
Record = Callable[[str, str], None]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("side", choices=("original", "drop-in"))
    parser.add_argument("target")
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--timeout", type=float, required=True)
    options = parser.parse_args()
    peer: Peer = importlib.import_module(f"tools.peers.{options.name}").PEER
    faulthandler.dump_traceback_later(options.timeout, exit=True)
    # A shell's background jobs ignore it, and so would tests that interrupt themselves until it works.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plugin = peer.substitute() if options.side == "drop-in" else None
    with open(options.outcomes, "a", encoding="utf-8") as file:

        def record(test: str, outcome: str) -> None:
            file.write(json.dumps([test, outcome]) + "\n")
            file.flush()

        run = {"unittest": run_unittest, "pytest": run_pytest}[peer.tests.runner]
        run(options.target, options.match, peer.tests.options, plugin, record)
    if options.side == "drop-in" and f"nextdue.compat.{peer.page}" not in sys.modules:
        return NOT_USED
    return 0


def run_unittest(target: str, match: str, options: tuple[str, ...], plugin: object, record: Record) -> None:
    from test import support

    support.use_resources = []  # no network, no minutes of work

    class Result(unittest.TextTestResult):
        """Report the worst that was said of a test: a subtest's failure comes before the test's end."""

        outcome = PASSED

        def startTest(self, test: unittest.TestCase) -> None:
            self.outcome = PASSED
            record(test.id(), FAILED)
            super().startTest(test)

        def stopTest(self, test: unittest.TestCase) -> None:
            record(test.id(), self.outcome)
            super().stopTest(test)

        def _failed(self, test: Any) -> None:
            self.outcome = FAILED
            if not isinstance(test, unittest.TestCase):  # a class or module that could not be set up
                record(test.id(), FAILED)

        def addError(self, test: unittest.TestCase, err: Any) -> None:
            self._failed(test)
            super().addError(test, err)

        def addFailure(self, test: unittest.TestCase, err: Any) -> None:
            self._failed(test)
            super().addFailure(test, err)

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            self._failed(test)
            super().addUnexpectedSuccess(test)

        def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
            if err is not None:
                self.outcome = FAILED
            super().addSubTest(test, subtest, err)

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:
            if self.outcome == PASSED:
                self.outcome = SKIPPED
            super().addSkip(test, reason)

    arguments = ["unittest", "-v", *(["-k", match] if match else []), target]
    unittest.main(
        module=None, argv=arguments, exit=False, testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2)
    )


def run_pytest(target: str, match: str, options: tuple[str, ...], plugin: object, record: Record) -> None:
    import pytest

    class Recorder:
        outcome = ""

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self.outcome = PASSED
            record(nodeid, FAILED)

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.outcome = max(self.outcome, report.outcome, key=ORDER.index)
            if report.when == "teardown":
                record(report.nodeid, self.outcome)

    plugins = [Recorder(), *([plugin] if plugin is not None else [])]
    pytest.main([target, *options, *(["-k", match] if match else [])], plugins=plugins)
