"""A drop-in whose peer is not installed names the extra."""

from __future__ import annotations

import re

import pytest

from nextdue.compat._extras import needs


@pytest.mark.parametrize("module", ["no_such_peer", "no_such_peer.schedulers"])
def test_import_when_the_peer_is_missing_then_the_error_names_the_extra(module: str) -> None:
    expected = "nextdue.compat.no_such_peer needs no_such_peer: pip install 'nextdue[no_such_peer]'"
    with pytest.raises(ImportError, match=f"^{re.escape(expected)}$"), needs("no_such_peer"):
        __import__(module)


def test_import_when_the_peer_misses_something_itself_then_its_error_is_left() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'of_the_peer'$"), needs("no_such_peer"):
        import of_the_peer  # noqa: F401
