"""Celery's tests of what uses kombu's timer, and a worker, with our timer in its place."""

from __future__ import annotations

from pathlib import Path

from tools.peers._peer import Peer, Sdist
from tools.peers.kombu import substitute

PEER = Peer(
    Sdist(
        "celery",
        "t/unit/utils/test_timer2.py",
        *(
            f"t/unit/worker/test_{name}.py"
            for name in (
                "components",
                "consumer",
                "control",
                "eta_query_task",
                "heartbeat",
                "loops",
                "strategy",
                "worker",
            )
        ),
        str(Path(__file__).with_name("_celery_program.py")),
    ),
    substitute,
    page="kombu",
)
