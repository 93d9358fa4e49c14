# cython: language_level=3, freethreading_compatible=True, annotation_typing=False, cdivision=True, wraparound=False
"""The hot path of `threading.Timer`: making one, starting it, cancelling it. The rest is in `threading.py`.

One source, as with the agenda: a plain module and, typed by `_threading_c.pxd`, the extension `_threading_c`.

One lock, the timetable's, guards timers and books, and the rules of the agenda hold for it: under it nothing is created
that the collector tracks and no reference is dropped that could be the last, so that no user code runs there. What is
seldom asked for (the events, a name, empty arguments) is made when it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from threading import current_thread
from typing import Any

try:
    import cython  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    from .. import _cython_shim as cython  # type: ignore[no-redef, unused-ignore]
if not cython.compiled:
    import math
    from time import monotonic_ns

    from .._heapq_timetable import HeapqTimetable as Timetable

    NEVER = 2**63 - 1

    def up(ns: float) -> int:
        """Round up."""
        return math.ceil(ns)

    def is_bound(method: Any, function: Any) -> bool:
        """Tell whether a method is that function's."""
        return getattr(method, "__func__", None) is function


__all__ = ["Books", "Waiting", "current", "use"]

_AWAKE = -(2**63)  # no start has to wake the watcher
_FAR = 9.2e9  # seconds; the timetable ends a little later
_UNASKED: Any = object()  # arguments that were not given, and nobody has looked
_RUN = threading.Timer.run
_books: Books


class Books:
    """The timers of a process that wait, and how many it waits for. A subclass has the threads, and is told of
    changes by `begin_to_watch`, `wake`, `release` and `hold_exit`, without the lock.
    """

    def __init__(self) -> None:
        self.table = Timetable()
        self._armed_at = _AWAKE  # until when the watcher sleeps
        self._holding = 0  # timers that are alive and no daemons: the process waits for them
        self._is_watched = False
        self._is_awaited = False  # somebody waits until none is left
        self._is_exiting = False  # those who wait for them at exit have been here

    def claim_watch(self, claimed: bool = True) -> bool:
        """Tell whether the caller is the one to start the watcher; with False, give that back."""
        with self.table.lock:
            was = self._is_watched
            self._is_watched = claimed
        return not was

    def arm(self) -> int:
        """Return the instant until which the watcher sleeps. Who starts an earlier timer calls `wake`, once."""
        with self.table.lock:
            self._armed_at = self.table._next()
            return self._armed_at

    def disarm(self) -> None:
        """The watcher is awake."""
        with self.table.lock:
            self._armed_at = _AWAKE

    def is_held(self) -> bool:
        """Tell whether there are timers that the process waits for; if so, `release` is called when there are none."""
        with self.table.lock:
            self._is_awaited = True
            return self._holding > 0

    def exit(self) -> None:
        """From now on nobody waits for timers unless `hold_exit` does."""
        with self.table.lock:
            self._is_exiting = True


class Waiting:
    """What a timer is until it runs."""

    interval: Any
    function: Any
    _positional: Any  # not `_args`: a thread has one
    _keywords: Any
    _daemonic: Any
    _books: Books | None  # since it was started
    _event: threading.Event | None  # of `finished`
    _over: threading.Event | None  # set when it is not alive any more
    _id: int  # in its timetable
    _holds: bool  # counted in the books
    _alive: bool  # waits or runs
    _finished: bool

    def __init__(
        self,
        interval: float | None,
        function: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.interval = interval
        self.function = function
        self._positional = args if args is not None else _UNASKED
        self._keywords = kwargs if kwargs is not None else _UNASKED
        self._daemonic = current_thread()._daemonic  # type: ignore[attr-defined]
        self._books = None
        self._event = None
        self._over = None
        self._id = 0
        self._holds = False
        self._alive = False
        self._finished = False

    @property
    def args(self) -> Any:
        """The positional arguments."""
        if self._positional is _UNASKED:
            self._positional = []
        return self._positional

    @args.setter
    def args(self, args: Any) -> None:
        self._positional = args

    @property
    def kwargs(self) -> Any:
        """The keyword arguments."""
        if self._keywords is _UNASKED:
            self._keywords = {}
        return self._keywords

    @kwargs.setter
    def kwargs(self, kwargs: Any) -> None:
        self._keywords = kwargs

    @property
    def finished(self) -> threading.Event:
        """Set by `cancel`, and when the callback has returned."""
        spare = threading.Event()
        with _books.table.lock:
            if self._event is None:
                self._event = spare
            event = self._event
            is_set = self._finished
        if is_set:
            event.set()
        return event

    def start(self) -> None:
        """Begin to wait.

        Raises:
            RuntimeError: it was started before; no thread can be started (any more).
            ValueError, TypeError: interval is not a number.
        """
        if not is_bound(self.run, _RUN):  # type: ignore[attr-defined]
            self._start_thread()  # type: ignore[attr-defined]
        elif not enter(self, _books):
            raise RuntimeError("threads can only be started once")

    def cancel(self) -> None:
        """Keep the callback from being called, if it has not been; a callback that runs goes on."""
        books = _books
        table = books.table
        item = over = None
        crowded = released = False
        with table.lock:
            self._finished = True
            event = self._event
            # Behind a fork nothing is left of it.
            if self._alive and self._books is books and table._is_waiting(self._id):
                table._disarm(self._id)
                item = table._release(self._id)
                crowded = table._crowded()
                over = self._over
                released = self._leave(books)
        del item
        if crowded:
            table._tidy()
        if event is not None:
            event.set()
        if over is not None:
            over.set()
        if released:
            books.release()  # type: ignore[attr-defined]

    def _end(self) -> None:
        """Book that it was taken off the table, and has run."""
        books = _books
        with books.table.lock:
            over = self._over
            released = self._leave(books)
        if over is not None:
            over.set()
        if released:
            books.release()  # type: ignore[attr-defined]

    def _waits_or_runs(self) -> bool:
        return self._alive and self._books is _books  # else a fork came between, and this is the child

    def _until_over(self) -> threading.Event | None:
        """What is set when it is not alive any more; None if it is not."""
        spare = threading.Event()
        over = None
        with _books.table.lock:
            if self._alive and self._books is _books:
                if self._over is None:
                    self._over = spare
                over = self._over
        return over

    def _leave(self, books: Books) -> bool:
        """Book that it is not alive; True if the last that the process waits for has left. Caller holds the lock."""
        self._alive = False
        if not self._holds:
            return False
        self._holds = False
        books._holding -= 1
        return books._is_awaited and books._holding == 0


def enter(timer: Waiting, books: Books) -> int:
    """Have a timer wait; 0 if it was started before."""
    run_at = due_at(timer.interval)
    holds = not timer._daemonic
    if not books._is_watched:
        books.begin_to_watch()  # type: ignore[attr-defined]
    at = -1
    wakes = first = entered = False
    while not entered:
        with books.table.lock:
            if timer._books is not None:
                return 0
            entered = books.table._has_room(1)
            if entered:
                timer._books = books
                if timer._finished:  # cancelled before it was started
                    return 1
                at = books.table._add(run_at, 0, timer)
                if at < 0:
                    timer._books = None
                    break
                timer._id = at
                timer._alive = True
                timer._holds = holds
                if holds:
                    books._holding += 1
                    first = books._is_exiting and books._holding == 1
                wakes = run_at < books._armed_at
                if wakes:
                    books._armed_at = _AWAKE
        if not entered:
            books.table._make_room(1)
    if at < 0:
        raise MemoryError("no memory for another timer")
    if wakes:
        books.wake()  # type: ignore[attr-defined]
    if first:
        books.hold_exit()  # type: ignore[attr-defined]
    return 1


def due_at(interval: Any) -> int:
    """Return nanoseconds on the monotonic clock."""
    if interval is None:
        return NEVER
    if type(interval) is not float and type(interval) is not int and not isinstance(interval, Real):
        raise TypeError(f"interval must be a number of seconds, got {interval!r}")
    try:
        seconds = float(interval)
    except OverflowError:
        seconds = _FAR if interval > 0 else 0.0  # type: ignore[operator]
    if seconds != seconds:
        raise ValueError(f"interval must be a number of seconds, got {interval!r}")
    if seconds >= _FAR:
        return NEVER
    now = monotonic_ns()
    ns = up(seconds * 1e9) if seconds > 0 else 0
    return NEVER if ns > NEVER - now else now + ns


def current() -> Books:
    """Return the books of this process."""
    return _books


def use(books: Books) -> None:
    """Have these be the books: at first, and in the child of a fork."""
    global _books
    _books = books
