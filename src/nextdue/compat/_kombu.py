# cython: language_level=3, freethreading_compatible=True, annotation_typing=False
"""The hot path of kombu's timer: making an entry, entering it, cancelling it. The rest is in `kombu.py`.

One source, as with the agenda: a plain module and, typed by `_kombu_c.pxd`, the extension `_kombu_c`. What an entry
costs beside its step on the timetable is mostly the collector's work on all the objects that wait. An entry is one
object for it here; kombu's is five: a tuple, the entry, a weak reference, a list and a dict.
"""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import Any, Protocol
from weakref import proxy

from kombu.asynchronous.timer import scheduled

from nextdue import Timetable

try:
    import cython  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    from .. import _cython_shim as cython  # type: ignore[no-redef, unused-ignore]
if not cython.compiled:
    from ._floats import key_of

__all__ = ["Entry", "call_after", "call_at", "described", "enter", "taken"]


class Enters(Protocol):
    """What a timer has that is made of these."""

    Entry: Any
    _queue: Any  # a Timetable; kombu's types, where they are known, say list

    def _enter(self, eta: float, priority: Any, entry: Any) -> Any: ...
    def enter_at(self, entry: Any, eta: Any = None, priority: Any = 0) -> Any: ...


class Entry:
    """A callable with its arguments, to be run by a timer.

    Thread-safety: it may be cancelled from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_canceled",
        "_eta",
        "_kwargs",
        "_last_run",
        "_priority",
        "_timer_id",
        "_waits_on",
        "fun",
    )

    fun: Any
    _args: Any  # None: none were given, and nobody has looked
    _kwargs: Any  # as _args
    _last_run: Any
    _canceled: bool
    _waits_on: Any  # the Timetable, or None
    _timer_id: int
    _eta: float
    _priority: Any

    def __init__(self, fun: Any, args: Any = None, kwargs: Any = None) -> None:
        self.fun = fun
        self._args = args or None
        self._kwargs = kwargs or None
        self._last_run = None
        self._canceled = False
        self._waits_on = None
        self._timer_id = 0
        self._eta = 0.0
        self._priority = 0

    @property
    def args(self) -> Any:
        """The positional arguments."""
        if self._args is None:
            self._args = []
        return self._args

    @args.setter
    def args(self, value: Any) -> None:
        self._args = value

    @property
    def kwargs(self) -> Any:
        """The keyword arguments."""
        if self._kwargs is None:
            self._kwargs = {}
        return self._kwargs

    @kwargs.setter
    def kwargs(self, value: Any) -> None:
        self._kwargs = value

    @property
    def tref(self) -> Any:
        """A weak proxy of the entry."""
        return proxy(self)

    @property
    def canceled(self) -> bool:
        """Whether it was cancelled. Setting it is `cancel`; what was cancelled while it waited does not come back."""
        return self._canceled

    @canceled.setter
    def canceled(self, value: bool) -> None:
        self._canceled = value
        waits_on = self._waits_on
        if value and waits_on is not None:
            self._waits_on = None
            waits_on.cancel(self._timer_id)

    @property
    def cancelled(self) -> bool:
        """The same as `canceled`."""
        return self._canceled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self.canceled = value

    def cancel(self) -> None:
        """Cancel the entry: it leaves its timer at once."""
        self.canceled = True

    def __call__(self) -> Any:
        return self.fun(*(self._args or ()), **(self._kwargs or {}))

    def __repr__(self) -> str:
        return f"<TimerEntry: {self.fun.__name__}(*{self.args!r}, **{self.kwargs!r})"

    # Entries are ordered by identity, as kombu's are; a timer does not look at that.

    def __hash__(self) -> int:
        return id(self) >> 4

    def __eq__(self, other: object) -> bool:
        return self is other

    def __lt__(self, other: object) -> bool:
        return id(self) < id(other)

    def __le__(self, other: object) -> bool:
        return id(self) <= id(other)

    def __gt__(self, other: object) -> bool:
        return id(self) > id(other)

    def __ge__(self, other: object) -> bool:
        return id(self) >= id(other)


def taken(item: Any) -> Any:
    """Return the entry of an item that has left the timetable, or None if it was cancelled."""
    if type(item) is Entry:
        leave(item)
        return item
    return None if item.entry.canceled else item.entry


def leave(entry: Entry) -> None:
    entry._waits_on = None


def described(item: Any) -> scheduled:
    """Return an item of the timetable as kombu's queue has it."""
    return describe(item) if type(item) is Entry else item


def describe(entry: Entry) -> scheduled:
    return scheduled(entry._eta, entry._priority, entry)


def key_at(eta: float) -> int:
    """Return the timetable's instant. Raises: ValueError for NaN."""
    if eta != eta:
        raise ValueError("eta must be a number, got nan")
    return key_of(eta)


def rank_of(priority: Any) -> int:
    """Return the timetable's priority, where the higher comes first; None is 0, as a missing one."""
    return min(max(-(priority or 0), -2048), 2047)


def enter(self: Enters, eta: Any, priority: Any, entry: Any) -> Any:
    """Put an entry on a timer's timetable, at an instant that is a float, and return it."""
    if type(entry) is Entry and put(self._queue, eta, priority, entry):
        return entry
    self._queue.add(key_at(eta), scheduled(eta, priority, entry), priority=rank_of(priority))
    return entry


def put(timetable: Timetable, eta: float, priority: Any, entry: Entry) -> bool:
    """Have an entry wait on a timetable; False, and nothing is done, if it waits already."""
    if entry._waits_on is not None and entry._timer_id in entry._waits_on:
        return False
    if priority:
        entry._timer_id = timetable.add(key_at(eta), entry, priority=rank_of(priority))
    else:
        entry._timer_id = timetable.add(key_at(eta), entry)
    entry._eta = eta
    entry._priority = priority
    entry._waits_on = timetable
    return True


def call_at(self: Enters, eta: Any, fun: Any, args: Any = (), kwargs: Any = None, priority: Any = 0) -> Any:
    """Call a function at an instant, a float as `time.monotonic` has it or a datetime; return its entry."""
    entry = self.Entry(fun, args, kwargs)
    if isinstance(eta, datetime) or eta is None:
        return self.enter_at(entry, eta, priority)
    return self._enter(eta, priority, entry)


def call_after(self: Enters, secs: Any, fun: Any, args: Any = (), kwargs: Any = None, priority: Any = 0) -> Any:
    """Call a function after so many seconds; return its entry."""
    return self._enter(monotonic() + float(secs), priority, self.Entry(fun, args, kwargs))
