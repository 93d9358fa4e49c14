"""kombu's tests of its timer and its hub, with our timer in the place of its own."""

from __future__ import annotations

from tools.peers._peer import Peer, Sdist


def substitute() -> None:
    from kombu.asynchronous import hub, timer

    from nextdue.compat import kombu as ours

    timer.Entry = ours.Entry
    timer.Timer = hub.Timer = ours.Timer


PEER = Peer(
    Sdist("kombu", "t/unit/asynchronous/test_timer.py", "t/unit/asynchronous/test_hub.py"), substitute, page="kombu"
)
