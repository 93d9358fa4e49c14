"""SimPy's tests, and the models of its manual."""

from __future__ import annotations

from pathlib import Path

from tools.peers._peer import Peer, Sdist


def substitute() -> None:
    import simpy

    from nextdue.compat.simpy import Environment

    simpy.Environment = Environment  # type: ignore[misc]


MODELS = Path(__file__).with_name("_simpy_models.py")
PEER = Peer(tests=Sdist("simpy", "tests", str(MODELS)), substitute=substitute, page="simpy")
