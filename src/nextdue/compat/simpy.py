"""SimPy's `Environment` on a queue that stays fast with many processes.

    env = nextdue.compat.simpy.Environment()        # instead of simpy.Environment()

Everything else is SimPy's own: events, processes, resources, `run`. Traces are identical; see `docs/compat/simpy.md`.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from .._backend import BACKEND
from ._extras import needs

with needs("simpy"):
    import simpy
    from simpy.core import BoundClass, SimTime

__all__ = ["Environment"]

if BACKEND == "pure" or TYPE_CHECKING:

    class Environment(simpy.Environment):
        """`simpy.Environment` as it is: its heap of tuples is the best that pure Python has."""

else:
    from ._simpy_c import Steps

    class Environment(Steps, simpy.Environment):
        """Stand in for `simpy.Environment`.

        Args:
            initial_time: the first value of `now`; any kind of number that can be added to delays and compared.

        Complexity: O(1) on average to schedule an event and to step, where SimPy's are O(log n).
        Thread-safety: as SimPy's: an environment belongs to one thread.
        """

        # `bind_early` looks at the class itself, not at its bases.
        process = BoundClass(simpy.Process)
        timeout = BoundClass(simpy.Timeout)
        event = BoundClass(simpy.Event)
        all_of = BoundClass(simpy.AllOf)
        any_of = BoundClass(simpy.AnyOf)

        def __init__(self, initial_time: SimTime = 0) -> None:
            # In place of SimPy's, which makes the queue a list.
            self._now = initial_time
            self._eid = count()
            self._active_proc = None
            BoundClass.bind_early(self)
