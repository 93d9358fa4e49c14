"""The timers of CPython's `threading`."""

from __future__ import annotations

import threading

from tools.peers._peer import Peer, Stdlib


def substitute() -> None:
    from nextdue.compat.threading import Timer

    threading.Timer = Timer  # type: ignore[misc]


PEER = Peer(Stdlib("test.test_threading"), substitute, page="threading")
