"""What the commands show: lines and tables on stdout, progress on stderr.

With `rich` installed and a terminal to draw on, tables have frames and progress has a bar with the time left. Without
either, the same facts come as plain text that reads well in a pipe, a file, or the log of a CI job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import TaskID

BAR_WIDTH = 32
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Progress:
    """Names each stage on a line of its own as it begins; to be used with ``with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the last stage."""

    def stage(self, label: str, total: int) -> None:
        """End the stage before and begin one of ``total`` steps."""
        print(f"  {label} ...", file=sys.stderr, flush=True)

    def at(self, done: int) -> None:
        """Say how many steps of the stage are done."""


class _PlainBar(Progress):
    """Draws one bar behind another, on a terminal without `rich`."""

    def __init__(self) -> None:
        self._label = ""
        self._total = 0
        self._drawn = ""

    def __exit__(self, *exception: object) -> None:
        if self._drawn:
            print(file=sys.stderr)

    def stage(self, label: str, total: int) -> None:
        self.__exit__()
        self._label, self._total = label, total
        self.at(0)

    def at(self, done: int) -> None:
        share = min(done / self._total, 1) if self._total else 0
        drawn = f"\r  {self._label:<48} {share:4.0%} {bar(share, 1)}"
        if drawn != self._drawn:
            self._drawn = drawn
            print(drawn, end="", file=sys.stderr, flush=True)


class _RichBar(Progress):
    """Draws a bar for each stage, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console as RichOutput
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        label = TextColumn("  {task.description}", markup=False)
        output = RichOutput(stderr=True)
        self._bars = RichProgress(label, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=output)
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def stage(self, label: str, total: int) -> None:
        self._bar = self._bars.add_task(label, total=total)

    def at(self, done: int) -> None:
        if self._bar is not None:
            self._bars.update(self._bar, completed=done)


class Console:
    """Plain text."""

    def line(self, text: str = "") -> None:
        """Print one line."""
        print(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows under a header; the first column is words, the others are figures."""
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        self.line(f"\n{title}")
        for cells in (header, ["-" * width for width in widths], *rows):
            figures = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            self.line("  ".join((cells[0].ljust(widths[0]), *figures)))

    def progress(self) -> Progress:
        """Return where progress goes."""
        return _PlainBar() if sys.stderr.isatty() else Progress()


class _RichConsole(Console):
    """Frames and bars."""

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.console import Console as RichOutput
        from rich.table import Table

        self.line()
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        RichOutput(markup=False, highlight=False).print(table)

    def progress(self) -> Progress:
        return _RichBar()


def open_console() -> Console:
    """Return the best console there is for this stdout and stderr."""
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return _RichConsole() if terminal and find_spec("rich") else Console()


def bar(part: float, whole: float, width: int = BAR_WIDTH) -> str:
    """Return a bar as long as ``part`` of ``whole``, to an eighth of a character; never empty for a part above zero.

    >>> bar(1, 2, width=4)
    '██'
    >>> bar(1, 1000, width=4)
    '▏'
    >>> bar(0, 0)
    ''
    """
    if not part:
        return ""
    full, eighths = divmod(max(1, round(8 * width * part / whole)), 8)
    return "█" * full + _EIGHTHS[eighths].strip()
