"""Peers in other languages: small programs under ``benchmarks/peers/``, built when first asked for.

They come with the source tree and not with the package. Whatever is missing to run one (the source, a compiler, Java)
is no error: `Unavailable` says what it is, and the figures stand without that peer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

_LONGEST = 1800.0  # seconds a peer may take


class Unavailable(Exception):
    """This peer cannot run here; the message says why."""


class Peers:
    """The programs in ``sources``; what is built goes to ``scratch``."""

    def __init__(self, sources: Path, scratch: Path) -> None:
        self._sources = sources
        self._scratch = scratch

    def priority_queue(self, size: int, holds: int) -> dict[str, float]:
        """Nanoseconds of ``push``, ``hold`` and ``pop`` of C++'s `std::priority_queue`."""
        return _figures([str(self._priority_queue), str(size), str(holds)])

    def java_waiting(self, size: int, pairs: int) -> dict[str, float]:
        """Nanoseconds of ``schedule``, ``cancel`` and ``pair`` (both at once) of Java's scheduler."""
        return _figures([*self._stpe, "waiting", str(size), str(pairs)])

    def java_end_to_end(self, size: int, workers: int) -> dict[str, float]:
        """Nanoseconds ``end_to_end`` a job of Java's scheduler."""
        return _figures([*self._stpe, "end_to_end", str(size), str(workers)])

    @cached_property
    def _priority_queue(self) -> Path:
        source, built = self._source("priority_queue.cpp"), self._scratch / "priority_queue"
        _run([_program("g++"), "-O2", "-o", str(built), str(source)])
        return built

    @cached_property
    def _stpe(self) -> list[str]:
        return [_program("java"), str(self._source("Stpe.java"))]  # compiled in memory at each start

    def _source(self, name: str) -> Path:
        source = self._sources / name
        if not source.is_file():
            raise Unavailable(f"no {source}: run in the source tree or give --peers")
        return source


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} here")
    return found


def _figures(command: list[str]) -> dict[str, float]:
    figures: dict[str, float] = json.loads(_run(command))
    return figures


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{Path(command[0]).name} failed, exit status {error.returncode}: {last}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} did not run: {type(error).__name__}") from None
    return done.stdout
