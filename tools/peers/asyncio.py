"""CPython's own tests of asyncio: all of them, with our loop wherever they make one of asyncio's with selectors."""

from __future__ import annotations

import pkgutil

from test import test_asyncio

from tools.peers._peer import Peer, Stdlib


class Substitute:
    """A module with a few names exchanged."""

    def __init__(self, module: object, **names: object) -> None:
        self.__dict__.update(vars(module), **names)


def substitute() -> None:
    import asyncio
    from asyncio import base_events, unix_events

    from nextdue.compat.asyncio import EventLoop

    class Bare(EventLoop):
        """For tests that put a mock in the selector's place, where nothing is registered."""

        def _remove_reader(self, fd: object) -> bool:
            return False

    asyncio.SelectorEventLoop = EventLoop
    unix_events.SelectorEventLoop = EventLoop
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = EventLoop
    if hasattr(asyncio, "EventLoop"):  # since 3.13: what `new_event_loop` and `Runner` make
        asyncio.EventLoop = unix_events.EventLoop = EventLoop
    # The tests of the base class, which put a selector of their own into it: they are those of the timers.
    from test.test_asyncio import test_base_events

    test_base_events.base_events = Substitute(base_events, BaseEventLoop=Bare)


PEER = Peer(
    Stdlib(
        *(
            f"test.test_asyncio.{module.name}"
            for module in pkgutil.iter_modules(test_asyncio.__path__)
            if module.name.startswith("test_")
        )
    ),
    substitute,
    page="asyncio",
)
