"""The command ``nextdue``: see it work (demo), give it your own log (replay), measure it here (bench)."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from nextdue.cli import _bench, _demo, _replay
from nextdue.cli._arguments import UsageError
from nextdue.cli._console import open_console

_COMMANDS = {
    "demo": (_demo, "keep a million timers waiting, cancel most, fire the rest, beside a plain scheduler"),
    "replay": (_replay, "replay a web access log with an idle timer for each client"),
    "bench": (_bench, "measure the goals of speed beside heapq, asyncio, C++ and Java, in one run"),
}
_INTERRUPTED = 130  # what a shell reports for a command that ended at SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Returns:
        0: done; 1: a promise broke; 2: bad usage or an unusable file; 130: interrupted.
    """
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # bars and file names that its encoding lacks are no reason to fail
        sys.stdout.reconfigure(errors="replace")
    try:
        status: int = options.run(options, open_console())
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"nextdue {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone; keep the exit from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nextdue", description="What is due next, and when?")
    parser.add_argument("--version", action="version", version=f"nextdue {version('nextdue')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
