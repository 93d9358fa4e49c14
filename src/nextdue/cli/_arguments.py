"""What the command line accepts where argparse has no type of its own; argparse puts the parameter's name in front."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection

_NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|[smhd]))+")


class UsageError(Exception):
    """What was asked for cannot be done; the message is for the user, the exit status is 2."""


def count(text: str) -> int:
    """Return a whole number from 1 to 1e9, written as ``1000000``, ``1_000_000`` or ``1e6``."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (1 <= number <= 1e9 and number.is_integer()):
        raise ArgumentTypeError(f"must be a whole number from 1 to 1e9, got {text!r}")
    return int(number)


def duration(text: str) -> int:
    """Return the nanoseconds of a duration such as ``500ms``, ``90s``, ``30m`` or ``1h30m``."""
    parts = re.findall(r"([0-9]+)([a-z]+)", text) if _DURATION.fullmatch(text) else []
    nanoseconds = sum(int(number) * _NANOSECONDS[unit] for number, unit in parts)
    if nanoseconds == 0:
        raise ArgumentTypeError(f"must be a duration above zero such as 90s, 30m or 1h30m, got {text!r}")
    return nanoseconds


def speed(text: str) -> float:
    """Return how many times faster than real time: infinity for ``max``, else the number in ``60x`` or ``0.5x``."""
    if text == "max":
        return math.inf
    factor = float(text[:-1]) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?x", text) else 0.0
    if factor == 0:
        raise ArgumentTypeError(f"must be max or a factor above zero such as 60x or 1x, got {text!r}")
    return factor


def numbers(allowed: Collection[int]) -> Callable[[str], list[int]]:
    """Return what takes a list of some of the allowed numbers, such as ``1,4,10``."""

    def parse(text: str) -> list[int]:
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and int(part) in allowed for part in parts):
            raise ArgumentTypeError(f"must be numbers from {min(allowed)} to {max(allowed)} with commas, got {text!r}")
        return [int(part) for part in parts]

    return parse
