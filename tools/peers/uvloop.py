"""uvloop's tests of what an event loop does, those that uvloop runs on asyncio's loop too: ours stands in for it."""

from __future__ import annotations

from tools.peers._peer import Peer, Sdist
from tools.peers.asyncio import substitute

NAMES = ("base", "context", "dns", "pipes", "signals", "sockets", "tcp", "udp", "unix")

PEER = Peer(
    Sdist(
        "uvloop",
        *(
            f"tests/test_{name}.py"
            for name in ("base", "context", "dns", "pipes", "signals", "sockets", "tcp", "udp", "unix")
        ),
        options=("--import-mode=append", "-p", "no:cacheprovider", "-k", "AIO or asyncio"),
    ),
    substitute,
    page="asyncio",
)
