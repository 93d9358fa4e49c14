"""`sched` with a cancel that does not search: ``from nextdue.compat import sched``.

The times of `sched` are whatever can be compared, so nothing here can rest on the timetable's int64. Its structure:

I1. ``_waiting`` holds every event that waits, by its sequence number. It alone says what waits.
I2. ``_heap`` orders entries ``(time, priority, sequence)`` of what waits, and of what has been cancelled since;
    ``_new`` lists the sequence numbers that it lacks. An entry holds no action, so cancelling lets go of it.
I3. Who changes the heap takes it away first: ``_heap`` is None meanwhile. A comparison may call user code (that of a
    `Fraction`, or of a priority) which calls back in, and so may a finalizer: it finds no heap, and makes one of all
    that waits when it needs one, which then stands. A heap whose comparison raised is gone, and is made anew alike.
I4. A finalizer or a signal handler comes in after a call or as something is allocated, not between plain stores: what
    belongs together is computed first and then stored.

Numbers that cannot fail to compare are ordered when a run asks for the first, many at once; anything else is compared
when it is entered, so that what cannot be is refused. Enter and run cost O(log n) comparisons, cancel O(1): past half,
what is cancelled is dropped with the whole heap, and making it anew is paid for by as many cancels.
"""

from __future__ import annotations

import os
import threading
import time as _time
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from sched import Event as Event
from typing import Any
from weakref import WeakSet

from nextdue._waits import LONGEST_WAIT

__all__ = ["scheduler"]

Entry = tuple[Any, Any, int]

_NO_KWARGS: Any = object()
_LEAST_DEAD = 64  # cancelled entries that are not worth making the heap anew
_BULK = 8  # this part of the heap, and it is made anew rather than pushed to
_PLAIN = frozenset((int, float))
_new_event = tuple.__new__  # what a namedtuple's constructor calls, at half the cost


class scheduler:
    """Run events in order of time, then priority (lower first), then entering, as `sched.scheduler` does.

    Args:
        timefunc: the present time: numbers of any kind that can be compared and subtracted.
        delayfunc: waits so long. The default, `time.sleep`, stands for a wait that an earlier event cuts short; any
            other is called as it is.

    Thread-safety: every method may be called from any thread, and from actions, delays and comparisons. Times and
    priorities are compared under the scheduler's lock, which is re-entrant; nothing else is called under it.

    >>> now = [0]
    >>> s = scheduler(lambda: now[0], lambda delay: now.__setitem__(0, now[0] + delay))
    >>> late, soon = s.enter(20, 1, print, ("late",)), s.enter(10, 1, print, ("soon",))
    >>> s.cancel(late)
    >>> s.run()
    soon
    """

    def __init__(
        self, timefunc: Callable[[], Any] = _time.monotonic, delayfunc: Callable[[Any], object] = _time.sleep
    ) -> None:
        self.timefunc = timefunc
        self.delayfunc = delayfunc
        self._sequence = count()
        self._waiting: dict[int, Event] = {}
        self._heap: list[Entry] | None = []
        self._new: list[int] = []
        self._plain = True  # no time or priority but int and float has been entered
        self._renew_lock()
        _schedulers.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()
        self._earlier = threading.Condition(self._lock)  # notified when an event becomes the first
        self._sleeping = 0  # runs that wait for it

    def enterabs(
        self,
        time: Any,
        priority: Any,
        action: Callable[..., object],
        argument: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> Event:
        """Enter an event at an absolute time and return it; it is what `cancel` takes.

        Raises:
            ValueError: the time is not a number, so it has no place in an order.

        Complexity: O(log n). When a comparison raises, nothing is entered.
        """
        if time != time or priority != priority:
            raise ValueError(f"time and priority must be numbers, got {time!r} and {priority!r}")
        sequence = next(self._sequence)
        event = _new_event(Event, (time, priority, sequence, action, argument, {} if kwargs is _NO_KWARGS else kwargs))
        if type(time) not in _PLAIN or type(priority) not in _PLAIN:
            self._plain = False
        with self._lock:
            self._waiting[sequence] = event
            self._new.append(sequence)
            if self._sleeping or not self._plain:
                try:
                    first = self._ordered()[0]
                except BaseException:
                    self._waiting.pop(sequence, None)
                    raise
                if first[2] == sequence:
                    self._earlier.notify_all()
        return event

    def enter(
        self,
        delay: Any,
        priority: Any,
        action: Callable[..., object],
        argument: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> Event:
        """Enter an event at a time from now, as `enterabs` does."""
        return self.enterabs(self.timefunc() + delay, priority, action, argument, kwargs)

    def cancel(self, event: Event) -> None:
        """Take exactly this event out of the queue.

        Raises:
            ValueError: it is not in the queue (any more).

        Complexity: O(1), amortised.
        """
        sequence = event[2] if isinstance(event, tuple) and len(event) == 6 else None
        with self._lock:
            waiting = self._waiting.get(sequence) if type(sequence) is int else None
            if waiting is event and event is not None:
                del self._waiting[sequence]
                heap = self._heap
                if heap is not None and len(heap) + len(self._new) > 2 * len(self._waiting) + _LEAST_DEAD:
                    fresh: dict[int, Event] = {}
                    left, self._heap, self._new = self._waiting, [], []
                    self._waiting = fresh  # a dict gives no memory back by itself
                    fresh.update(left)
                    self._new.extend(fresh)
                return  # the heap, and what the event held, go without the lock
        if waiting is None or waiting != event:
            raise ValueError(f"event must be in the queue, got {event!r}")
        self.cancel(waiting)

    def empty(self) -> bool:
        """Tell whether no event waits."""
        with self._lock:
            return not self._waiting

    def run(self, blocking: bool = True) -> Any:
        """Run events until none waits; with ``blocking=False`` those that are due, and return how long until the next.

        Exceptions of an action or a delay are not caught; run may be called again.

        Complexity: O(log n) an event.
        """
        timefunc, delayfunc = self.timefunc, self.delayfunc
        while self._waiting or not self.empty():
            now = timefunc()
            with self._lock:  # after a fork, another one
                heap = self._heap
                if self._new or not heap:
                    heap = self._ordered()
                    if not heap:
                        continue
                entry = heap[0]
                delay = entry[0] > now and entry[2] in self._waiting
                if not delay:
                    self._heap = None  # I3
                    if heappop(heap) is entry and self._heap is None:
                        self._heap = heap
                    event = self._waiting.pop(entry[2], None)
                elif blocking and delayfunc is _time.sleep:
                    self._sleep(entry[0] - now)
                    continue
            if not delay:
                if event is not None:  # else cancelled
                    event.action(*event.argument, **event.kwargs)
                    event = None  # or a long wait would keep it
                    delayfunc(0)  # lets other threads run
            elif blocking:
                delayfunc(entry[0] - now)
            else:
                return entry[0] - now
        return None

    @property
    def queue(self) -> list[Event]:
        """The events that wait, in order. Complexity: O(n log n)."""
        with self._lock:
            events = list(self._waiting.values())
        return sorted(events)

    def _ordered(self) -> list[Entry]:
        """Return the heap with all that waits in it. Caller holds the lock."""
        heap, new = self._heap, self._new
        self._heap, self._new = None, []  # I3
        if heap is None or len(new) > len(heap) // _BULK:
            heap = [event[:3] for event in list(self._waiting.values())]
            heapify(heap)
        else:
            for sequence in new:
                event = self._waiting.get(sequence)
                if event is not None:
                    heappush(heap, event[:3])
        if self._heap is None:
            self._heap = heap
        return self._heap

    def _sleep(self, delay: Any) -> None:
        """Wait so long, or until an earlier event is entered. Caller holds the lock."""
        self._sleeping += 1
        try:
            self._earlier.wait(min(float(delay), LONGEST_WAIT))
        finally:
            self._sleeping -= 1


_schedulers: WeakSet[scheduler] = WeakSet()


def _after_fork() -> None:
    # A lock that another thread held is held for ever; whatever it was at, I3 mends.
    for each in list(_schedulers):
        each._renew_lock()
        each._heap = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
