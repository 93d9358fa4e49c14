"""An asyncio event loop whose timers wait in a timetable.

    asyncio.run(main(), loop_factory=EventLoop)     # Python 3.12 and newer
    nextdue.compat.asyncio.run(main())              # the same, on 3.11 too

It is asyncio's own selector loop: only the store of its timers is exchanged, and on Linux the selector waits to the
microsecond. `call_later` and `call_at` return `asyncio.TimerHandle`s.

For the maintainer. The base class knows of one timer, the *alarm*: a handle in its `_scheduled` at the earliest
deadline, or before (at that of a timer which was cancelled since). It sleeps until the alarm and runs it as any other
handle; the alarm runs what is due then, and is set anew. A loop without timers has no alarm. So nothing of `_run_once`
is copied, and a pass without a due timer costs what it costs in asyncio.

`_Loop` is the whole of it; where there are extensions `EventLoop` takes a few methods for the common case from
`_timers.pyx`. What the loop adds to an instance is one attribute: beyond thirty, which asyncio nearly has, Python keeps
an instance in a dictionary of its own, and everything is slower.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import selectors
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from .. import BACKEND, Timetable
from ._floats import float_of, key_of
from ._selector import best_selector

__all__ = ["EventLoop", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Alarm(TimerHandle):
    """What the base class knows of our timers."""

    __slots__ = ()
    _loop: _Loop | None  # None once the loop is closed: no ring is left for the collector

    def __init__(self, loop: _Loop) -> None:
        super().__init__(math.inf, _Loop._run_due, (), loop, contextvars.Context())

    def _run(self) -> None:
        # Not in the context of the alarm: each timer has its own.
        if self._loop is not None:
            self._loop._run_due()


class _Timers:
    """What waits in a loop."""

    __slots__ = ("alarm", "alarm_at", "timetable")
    alarm: Any

    def __init__(self) -> None:
        self.timetable = Timetable()
        self.alarm_at = math.inf  # no timer has an earlier deadline; infinity when no alarm is set


class _Loop(asyncio.SelectorEventLoop):
    _make_timers: Callable[[], Any] = _Timers

    if TYPE_CHECKING:  # of the base class, and not in typeshed
        _debug: bool
        _ready: deque[asyncio.Handle]
        _scheduled: list[TimerHandle]

        def _check_closed(self) -> None: ...
        def _check_thread(self) -> None: ...
        def _check_callback(self, callback: object, method: str) -> None: ...

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._timers = self._make_timers()
        super().__init__(best_selector() if selector is None else selector)
        self._timers.alarm = _Alarm(self)

    def _call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> TimerHandle:
        if when is None:
            raise TypeError("when cannot be None")
        self._check_closed()
        if self._debug:
            self._check_thread()
            self._check_callback(callback, "call_at")
        if not when >= self._timers.alarm_at:
            self._set_alarm(when)
        timer: Any = TimerHandle(when, callback, args, self, context)
        if timer._source_traceback:
            del timer._source_traceback[-1]
        timer._scheduled = self._timers.timetable.add(key_of(when), timer)  # an id is more than 0
        return timer  # type: ignore[no-any-return]

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if handle._scheduled:
            self._timers.timetable.cancel(handle._scheduled)

    def _set_alarm(self, when: float) -> None:
        """Set the alarm earlier. Raises: ValueError for NaN, which is neither earlier nor later."""
        self._check_closed()
        if when != when:
            raise ValueError(f"when must be a number, got {when!r}")
        alarm = self._timers.alarm
        # The base class takes for due what is less than now plus a tick of the clock, and after half a year of uptime
        # that sum is now itself. The float before the deadline is less than any time that has reached the deadline.
        alarm._when = math.nextafter(when, -math.inf)
        if not alarm._scheduled:
            heapq.heappush(self._scheduled, alarm)
            alarm._scheduled = True
        self._timers.alarm_at = float(when)

    def _run_due(self) -> None:
        """Run what is due by now; what these add runs in the next pass, even if it is due at once."""
        try:
            due = self._pop_due(self.time())
        finally:
            following = self._timers.timetable.next_run_at()
            self._timers.alarm_at = math.inf
            if following is not None and (when := float_of(following)) < math.inf:
                self._set_alarm(when)
        # By way of `_ready`, where asyncio has them: an exception, or a loop that is run within a callback, finds the
        # others there. Their place is before what this pass has added.
        ready, n = self._ready, len(due)
        due.reverse()
        ready.extendleft(due)
        del due
        if self._debug:
            return  # the base class runs them in its next pass, and reports slow ones
        while n > 0 and ready:
            n -= 1
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _pop_due(self, now: float) -> list[TimerHandle]:
        return self._timers.timetable.pop_due(key_of(now))  # type: ignore[no-any-return]

    call_at = _call_at

    def close(self) -> None:
        super().close()
        self._timers.alarm_at = math.nan  # whoever comes now is sent to `_set_alarm`, and refused
        self._pop_due(math.inf)
        self._timers.alarm._loop = None


class EventLoop(_Loop):
    """asyncio's selector loop, with a timetable for its timers: a `loop_factory` for `asyncio.run` or `asyncio.Runner`.

    Args:
        selector: any of `selectors`; by default one that is not bound to whole milliseconds, where there is one.

    Raises:
        ValueError: from `call_later` and `call_at`, for NaN.

    Complexity: `call_later`, `call_at` O(1) on average; `TimerHandle.cancel` O(1), and the loop lets go of the handle
        at once; k timers that are due together O(k).
    Thread-safety: that of asyncio's loops.
    """

    if BACKEND == "compiled":
        from . import _timers as _c

        _make_timers = _c.Timers
        call_later = _c.call_later
        call_at = _c.call_at
        _timer_handle_cancelled = _c._timer_handle_cancelled
        _pop_due = _c._pop_due
        del _c


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Do as `asyncio.run`, on an `EventLoop`.

    Args:
        main: a coroutine.
        debug: as in `asyncio.run`.

    Returns: what `main` returns.
    Raises: what `main` raises; RuntimeError in a thread where a loop is running.

    >>> run(asyncio.sleep(0, "done"))
    'done'
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=EventLoop) as runner:
        return runner.run(main)
