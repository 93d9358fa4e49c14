"""kombu's timer on nextdue's timetable.

    -from kombu.asynchronous.timer import Timer
    +from nextdue.compat.kombu import Timer

or, for a Celery worker whose transport has no event loop, ``app.conf.worker_timer = "nextdue.compat.kombu:Timer"``.

kombu's `Timer` keeps a heap of tuples, which are compared in Python where times are equal, and a cancelled entry stays
in it until its time has come. Here an entry waits on the timetable, and leaves it when it is cancelled. Times are
seconds in a float, as kombu has them, and keep their order exactly (`_floats`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Self

from nextdue import BACKEND, Timetable
from nextdue._waits import LONGEST_WAIT

from ._extras import needs
from ._floats import float_of, key_of

with needs("kombu"):
    from kombu.asynchronous import timer as theirs
    from kombu.asynchronous.timer import to_timestamp

if BACKEND == "compiled":
    from ._kombu_c import Entry, call_after, call_at, described, enter, taken
else:
    from ._kombu import Entry, call_after, call_at, described, enter, taken

__all__ = ["Entry", "Timer", "WorkerTimer", "to_timestamp"]


class Timer(theirs.Timer):
    """`kombu.asynchronous.timer.Timer`: entries that a hub, or who else iterates, runs when they are due.

    With `on_tick`, which Celery gives the timer of a worker that has no event loop, it is a `WorkerTimer`.

    Complexity: entering O(log n) at worst, cancelling O(1).
    Thread-safety: entries may be entered and cancelled from any thread.
    """

    Entry = Entry

    def __new__(cls, *args: Any, on_tick: Any = None, **kwargs: Any) -> Self:
        kind: type[Any] = WorkerTimer if cls is Timer and on_tick is not None else cls
        timer: Self = super().__new__(kind)
        return timer

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The short ways go around these two: a class that has its own gets kombu's way, which calls them.
        if cls.enter_at is not theirs.Timer.enter_at or cls.enter_after is not theirs.Timer.enter_after:
            for name in {"call_at", "call_after"} - vars(cls).keys():
                setattr(cls, name, getattr(theirs.Timer, name))

    def __init__(self, max_interval: float | None = None, on_error: Any = None, **kwargs: Any) -> None:
        super().__init__(max_interval, on_error, **kwargs)
        self._queue = Timetable()  # a hub keeps it, and asks for its truth

    call_at = call_at
    call_after = call_after
    _enter = enter

    def __iter__(
        self, min: Callable[..., float] = min, nowfun: Callable[[], float] = monotonic
    ) -> Iterator[tuple[float | None, Any]]:
        """Yield ``(None, entry)`` when it is due, ``(seconds, None)`` to wait so long, ``(None, None)`` when empty."""
        max_interval = self.max_interval
        timetable = self._queue
        while True:
            if not timetable:
                yield None, None
                continue
            now = nowfun()
            due = timetable.pop_due(key_of(now), 1)
            if due:
                entry = taken(due.pop())
                if entry is not None:
                    yield None, entry
                    entry = None  # or a long wait would keep it
                continue
            next_at = timetable.next_run_at()
            if next_at is not None:
                yield min(float_of(next_at) - now, max_interval), None

    def clear(self) -> None:
        """Drop all entries."""
        self._queue.clear()

    @property
    def queue(self) -> list[Any]:
        """What waits, as a list of ``(eta, priority, entry)`` by eta and priority."""
        waiting = [described(item) for item in self._queue.items()]
        return sorted(waiting, key=lambda entry: (entry.eta, entry.priority or 0))


def _complain(error: BaseException) -> None:
    theirs.logger.error("Error in timer: %r", error, exc_info=True)


class WorkerTimer(Timer):
    """A timer that runs its entries on a thread of its own, started by the first of them.

    It stands in for `celery.utils.timer2.Timer`, and notices at once when an entry comes before the one it waits for.

    Args:
        max_interval: longest wait at once, in seconds.
        on_error: called with what an entry raised.
        on_tick: called with the seconds before each wait.
    """

    def __init__(
        self,
        max_interval: float | None = None,
        on_error: Any = None,
        on_tick: Callable[[float], object] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_interval, on_error, **kwargs)
        self.on_tick = on_tick
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._wakes_at = math.inf  # while the thread is awake: who enters something then has it look again

    def __bool__(self) -> bool:
        return True

    def _enter(self, eta: float, priority: Any, entry: Any) -> Any:
        enter(self, eta, priority, entry)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        if eta < self._wakes_at:
            self._woken.set()
        return entry

    def stop(self) -> None:
        """End the thread, after the entry that it runs; what waits stays, and the next entry starts a thread again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="nextdue-kombu-timer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        entries = iter(self)
        while True:
            try:
                if not self._step(entries):
                    return
            except BaseException as error:  # also one that was thrown into the thread; `apply_entry` sees to most
                _complain(error)
                entries = iter(self)

    def _step(self, entries: Iterator[tuple[float | None, Any]]) -> bool:
        """Run an entry, or wait; False when the thread is to end."""
        self._wakes_at = math.inf
        self._woken.clear()
        if self._thread is not threading.current_thread():
            return False  # stopped, and perhaps replaced
        seconds, entry = next(entries)
        if entry is not None:
            self.apply_entry(entry)
            return True
        if seconds is not None:
            self._tick(seconds)
            self._wakes_at = monotonic() + seconds
        self._woken.wait(None if seconds is None else min(seconds, LONGEST_WAIT))
        return True

    def _tick(self, seconds: float) -> None:
        try:
            if self.on_tick is not None:
                self.on_tick(seconds)
        except BaseException as error:  # here: what goes wrong each time must not keep the thread from waiting
            _complain(error)
