"""The compiled module has the face of the plain one: one source."""

from ._kombu import Entry, call_after, call_at, described, enter, taken

__all__ = ["Entry", "call_after", "call_at", "described", "enter", "taken"]
