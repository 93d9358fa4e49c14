"""What a drop-in says when the project it stands in for is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Name the extra to install where an import in this block misses the package of the same name.

    Raises:
        ImportError: the package is not installed; an error inside of it is left as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != extra:
            raise
        raise ImportError(
            f"nextdue.compat.{extra} needs {extra}: pip install 'nextdue[{extra}]'", name=error.name
        ) from error
