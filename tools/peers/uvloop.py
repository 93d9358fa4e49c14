"""uvloop's tests of what an event loop does, those that uvloop runs on asyncio's loop too: ours stands in for it."""

from __future__ import annotations

from tools.peers import asyncio
from tools.peers._peer import Peer, Sdist


def substitute() -> None:
    asyncio.substitute()
    from uvloop._testbase import BaseTestCase

    # It goes by the loop's module, and asks for more than asyncio has of any that is not asyncio's.
    BaseTestCase.is_asyncio_loop = lambda self: self.implementation == "asyncio"


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
