"""What a peer is, and where its tests come from."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol


class Unavailable(Exception):
    """This peer cannot run here; the message says why."""


class Tests(Protocol):
    """A peer's own tests; each target is run in a process of its own."""

    runner: str  # "unittest" or "pytest"
    targets: tuple[str, ...]
    options: tuple[str, ...]

    def version(self) -> str: ...

    def prepare(self, directory: Path) -> Path:
        """Make the tests ready in a directory that outlives the run; return where they are to be started."""


@dataclass(frozen=True)
class Peer:
    """A project whose tests are run.

    Args:
        tests: where they come from.
        substitute: puts the drop-in in the original's place; called before any test is imported. What it returns, if
            anything, is registered as a plugin of pytest.
        page: ``docs/compat/<page>.md`` lists the tests that do not pass, with reasons.
    """

    tests: Tests
    substitute: Callable[[], object]
    page: str


class Stdlib:
    """Modules of the running interpreter's ``test`` package, as ``test.test_sched``."""

    runner = "unittest"
    options = ()

    def __init__(self, *targets: str) -> None:
        self.targets = targets

    def version(self) -> str:
        return f"CPython {platform.python_version()}"

    def prepare(self, directory: Path) -> Path:
        for target in self.targets:
            if find_spec(target) is None:
                raise Unavailable(f"{sys.executable} comes without {target}: choose another Python with PYTHON=")
        started = directory / "stdlib"
        started.mkdir(exist_ok=True)
        return started


class Sdist:
    """Files or directories of a project's sdist, run by pytest with ``options``.

    The version is the installed one (the group ``peers`` pins it) unless one is given, for tests of a project that need
    not be installed.
    """

    runner = "pytest"

    def __init__(self, project: str, *targets: str, version: str = "", options: tuple[str, ...] = ()) -> None:
        self.targets = targets
        self.options = options
        self._project = project
        self._version = version

    def version(self) -> str:
        return self._version or metadata.version(self._project)

    def prepare(self, directory: Path) -> Path:
        kept = directory / f"{self._project}-{self.version()}"
        if not kept.exists():
            wanted = f"{self._project}=={self.version()}"
            pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--dest", str(kept / "archive")]
            done = subprocess.run([*pip, "--no-binary", self._project, wanted], stderr=subprocess.PIPE, text=True)
            if done.returncode:
                shutil.rmtree(kept, ignore_errors=True)
                raise Unavailable(f"no sdist of {wanted}: {done.stderr.strip().splitlines()[-1]}")
            (archive,) = (kept / "archive").iterdir()
            shutil.unpack_archive(archive, kept)
        (unpacked,) = (path for path in kept.iterdir() if path.name != "archive")
        for target in self.targets:
            if not (unpacked / target).exists():
                raise Unavailable(f"the sdist of {self._project} {self.version()} comes without {target}")
        return unpacked
