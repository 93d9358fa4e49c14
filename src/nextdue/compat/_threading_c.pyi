"""The compiled module has the face of the plain one: one source."""

from ._threading import Books, Waiting, current, use

__all__ = ["Books", "Waiting", "current", "use"]
