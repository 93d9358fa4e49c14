"""CPython's `sched`."""

from __future__ import annotations

import sys

from tools.peers._peer import Peer, Stdlib


def substitute() -> None:
    from nextdue.compat import sched

    sys.modules["sched"] = sched


PEER = Peer(Stdlib("test.test_sched"), substitute, page="sched")
