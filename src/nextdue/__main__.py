"""``python -m nextdue``: the command ``nextdue``."""

from __future__ import annotations

from nextdue.cli import main

if __name__ == "__main__":  # the demo's child processes import this file too
    raise SystemExit(main())
