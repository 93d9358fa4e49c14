"""The timetable and the ready line in pure Python, on `heapq`: baseline, oracle and fallback of the compiled ones.

`HeapqTimetable` has the interface of the compiled `Timetable` and its promises. Timers are tuples (run_at, seq, id) in
a list that `heapq` orders; what belongs to an id is a record in a dict. Methods with a leading underscore do not lock:
their caller holds `lock`.

It is a re-entrant lock, since a finalizer or a signal handler may come in between two steps here and call back. CPython
lets them in where a Python function begins, after a call of C code, at the end of a loop's turn, and where a tracked
object is created; not between plain stores and subscripts, and not where a Python function returns to another. So each
method computes first, looks, and then commits in stores that end with the one step on the heap: whoever comes in finds
every waiting timer with its entry. An owner does the same: what it has taken out of the heap or of a line is in hand,
and before it goes on with that it looks whether it still is (`_is_in_hand`).
"""

from __future__ import annotations

import heapq
import math
import operator
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt

NEVER = 2**63 - 1  # a run_at that does not come: it, and all that is past it
LEAST = -(2**63)
MIN_PRIORITY = -2048
MAX_PRIORITY = 2047
MAX_TIMERS = 2**31
NO_ITEM = object()
COUNTER_BITS = 52
COUNTER_MASK = (1 << COUNTER_BITS) - 1

Entry = tuple[int, int, int]  # run_at, seq (12 bits of inverted priority, then a counter), id
Level = tuple[deque[Entry], list[Entry]]

NO_ENTRIES: Level = (deque(), [])


def integer(value: Any, name: str) -> int:
    """What `operator.index` makes of it. That numpy's booleans and float arrays have an `__index__` says nothing."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, got {value!r}")


def instant(value: Any, name: str) -> int:
    """Turn an integer into an int within int64, saturating at both ends; refuse everything else."""
    return min(max(integer(value, name), LEAST), NEVER)


def limit_of(limit: Any) -> int:
    if limit is None or (isinstance(limit, float) and limit == math.inf):
        return NEVER
    result = instant(limit, "limit")
    if result < 0:
        raise ValueError(f"limit must be 0 or more, got {limit!r}")
    return result


def priority_of(priority: Any) -> int:
    result = instant(priority, "priority")
    if not MIN_PRIORITY <= result <= MAX_PRIORITY:
        raise ValueError(f"priority must be from {MIN_PRIORITY} to {MAX_PRIORITY}, got {priority!r}")
    return result


def iterator(items: Any) -> Any:
    try:
        return iter(items)
    except TypeError:
        raise TypeError(f"items must be an iterable or None, got {items!r}") from None


def ints(values: Any, name: str) -> list[int]:
    """Give a list of ints within int64, from int64[n] or a sequence of ints; nothing is cast."""
    if not isinstance(values, np.ndarray):
        try:
            iter(values)
            size = operator.length_hint(values)
        except TypeError:
            raise TypeError(f"{name} must be int64[n] or a sequence of ints, got {values!r}") from None
        if size > MAX_TIMERS:
            raise ValueError(f"{name} must be at most 2**31 ints, got {size}")
        return [instant(value, f"{name}[{k}]") for k, value in enumerate(values)]
    array = np.asarray(values)  # of the base class: one derived from it may say anything about itself
    if array.dtype != np.int64 or not array.dtype.isnative:
        raise TypeError(f"{name} must be int64[n], got {array.dtype!r}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be int64[n], got shape {array.shape!r}")
    if array.size > MAX_TIMERS:  # of a view it may be more than there is memory for
        raise ValueError(f"{name} must be at most 2**31 ints, got {array.size}")
    return array.tolist()  # type: ignore[no-any-return]


class _Slot:
    """What belongs to an id: `seq` of its one live entry (0: none), its item, and whether its owner holds it.

    `line` is the ready line that has the entry of a held one. So whatever kills that entry can say so in the same step.
    """

    __slots__ = ("held", "item", "line", "seq")

    def __init__(self, seq: int, item: object, held: bool) -> None:
        self.seq = seq
        self.item = item
        self.held = held
        self.line: ReadyLine | None = None


class HeapqTimetable:
    """Order timers by (run_at, higher priority, insertion), without a clock, on `heapq`.

    The interface is that of `Timetable`; costs are those of `heapq` and `dict`, and nothing runs without the GIL.

    >>> t = HeapqTimetable()
    >>> late, soon = t.add(20, "late"), t.add(10, "soon")
    >>> t.next_run_at(), len(t)
    (10, 2)
    >>> t.cancel(soon), soon in t
    (True, False)
    >>> t.pop_due(now=20)
    ['late']
    """

    lock: threading.RLock
    _heap: list[Entry]
    _slots: dict[int, _Slot]
    _live: int
    _counter: int
    _last_id: int

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        # Here, as the compiled one: nothing that may be called later takes away what is held.
        self = super().__new__(cls)
        self.lock = threading.RLock()
        self._heap = []
        self._slots = {}
        self._live = 0
        self._counter = 0
        self._last_id = 0
        return self

    def __init__(self, *, capacity: int = 0) -> None:
        if not 0 <= instant(capacity, "capacity") <= MAX_TIMERS:
            raise ValueError(f"capacity must be from 0 to 2**31, got {capacity!r}")

    def __reduce__(self) -> Any:
        raise TypeError("a timetable cannot be copied or pickled")

    # ------------------------------------------------------------ one by one

    def add(self, run_at: int, item: object = None, *, priority: int = 0) -> int:
        """Add a timer and return its id. Complexity: O(log n)."""
        at = instant(run_at, "run_at")
        rank = priority_of(priority)
        with self.lock:
            return self._add(at, rank, item)

    def cancel(self, timer_id: int) -> bool:
        """Cancel a waiting timer; False if it is not waiting. Complexity: O(1), amortised for the rebuild."""
        timer_id = instant(timer_id, "timer_id")
        with self.lock:
            if timer_id not in self._slots or self._slots[timer_id].held:
                return False
            slot = self._slots[timer_id]
            del self._slots[timer_id]
            self._live -= 1
        self._tidy()
        del slot  # and the item, without the lock
        return True

    def reschedule(self, timer_id: int, run_at: int) -> bool:
        """Move a waiting timer to `run_at`, behind equals; False if it is not waiting. Complexity: as `add`."""
        timer_id = instant(timer_id, "timer_id")
        at = instant(run_at, "run_at")
        with self.lock:
            if not self._is_waiting(timer_id) or not self._rearm(timer_id, at):
                return False
        self._tidy()
        return True

    def next_run_at(self) -> int | None:
        """Return the earliest run_at, or None when nothing waits. Complexity: O(1), amortised."""
        with self.lock:
            return self._next() if self._live else None

    def pop(self) -> tuple[int, int, Any]:
        """Remove the earliest timer, due or not, and return (run_at, id, item); IndexError when nothing waits."""
        with self.lock:
            popped = self._pop(NEVER)
        if popped is None:
            raise IndexError("pop from an empty timetable")
        self._tidy()
        return popped

    # ------------------------------------------------------------ in bulk

    def add_many(
        self, run_at: npt.NDArray[np.int64] | Sequence[int], items: Iterable[object] | None = None
    ) -> npt.NDArray[np.int64]:
        """Add a timer for each element, in order; return their ids, int64[n]. Complexity: k times `add`."""
        times = ints(run_at, "run_at")
        objects = [None] * len(times) if items is None else list(islice(iterator(items), len(times) + 1))
        if len(objects) != len(times):
            got = len(objects) if len(objects) < len(times) else "more"  # they may have no end
            raise ValueError(f"items must be {len(times)} objects, as many as run_at, got {got}")
        ids = np.empty(len(times), dtype=np.int64)
        added = 0
        with self.lock:
            try:
                for at, item in zip(times, objects, strict=True):
                    ids[added] = self._add(at, 0, item)
                    added += 1
            except MemoryError:
                for timer_id in ids[:added]:
                    self._drop(int(timer_id))
                raise
        return ids

    def cancel_many(self, timer_ids: npt.NDArray[np.int64] | Sequence[int]) -> int:
        """Cancel each of the timers; return how many were waiting."""
        return sum(self.cancel(timer_id) for timer_id in ints(timer_ids, "timer_ids"))

    def pop_due(self, now: int, limit: int | None = None) -> list[Any]:
        """Remove the timers with run_at <= now, at most `limit`, and return their items in order.

        Should there be no memory for all, those are returned that there is memory for, and the rest waits.
        """
        at = min(instant(now, "now"), NEVER - 1)
        left = limit_of(limit)
        items: list[Any] = []
        with self.lock:
            try:
                while len(items) < left:
                    items.append(NO_ITEM)  # the place first: a timer that is popped and does not get out would be lost
                    if (popped := self._pop(at)) is None:
                        break
                    items[-1] = popped[2]
            except MemoryError:
                if not items or items[0] is NO_ITEM:
                    raise
            if items and items[-1] is NO_ITEM:
                del items[-1]
        self._tidy()
        return items

    def pop_due_ids(self, now: int, limit: int | None = None) -> npt.NDArray[np.int64]:
        """Remove the timers with run_at <= now, at most `limit`, and return their ids in order, int64[k].

        Should there be no memory for all: as `pop_due`.
        """
        at = min(instant(now, "now"), NEVER - 1)
        left = limit_of(limit)
        with self.lock:
            ids = np.empty(min(left, self._live), dtype=np.int64)  # no more than are touched cost anything
            count = 0
            try:
                while count < len(ids) and (popped := self._pop(at)) is not None:
                    ids[count] = popped[1]
                    count += 1
            except MemoryError:
                if count == 0:
                    raise
        self._tidy()
        with suppress(MemoryError):
            ids.resize(count, refcheck=False)
        return ids[:count]

    def clear(self) -> None:
        """Remove every timer; items are released. Ids given out before stay unknown for good."""
        with self.lock:
            dropped = list(self._slots.items())
            for timer_id, slot in dropped:
                if timer_id in self._slots and not slot.held:
                    del self._slots[timer_id]
                    self._live -= 1
        self._tidy()

    # ------------------------------------------------------------ looking

    def items(self) -> list[Any]:
        """Return the items of the waiting timers, in no order; a timer without an item has none here.

        Complexity: O(n).
        """
        return self._snapshot()

    def __len__(self) -> int:
        return self._live

    def __contains__(self, timer_id: object) -> bool:
        try:
            wanted = instant(timer_id, "timer_id")
        except TypeError:
            return False
        with self.lock:
            return self._is_waiting(wanted)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} waiting, next at {self.next_run_at()}>"

    @property
    def nbytes(self) -> int:
        """Memory of the list and the dict with all that is in them, in bytes, by `sys.getsizeof` of one of a kind."""
        with self.lock:
            entry = 56 + 8 + 3 * 32  # a tuple of three, its place in the list, three ints
            return len(self._heap) * entry + len(self._slots) * (56 + 48 + 40)

    def check(self) -> None:
        """Assert every invariant; for tests. Complexity: O(n)."""
        with self.lock:
            heap = self._heap
            assert all(heap[(k - 1) // 2] < heap[k] for k in range(1, len(heap))), "heap order"
            assert sum(map(self._is_live, heap)) == self._live, "one live entry for each waiting slot"
            assert sum(not slot.held for slot in self._slots.values()) == self._live, "live count"
            assert len({seq for _, seq, _ in heap}) == len(heap), "seq differ"
            assert len(heap) <= 2 * self._live, "dead entries"

    # ------------------------------------------------------------ caller holds the lock

    def _is_waiting(self, timer_id: int) -> bool:
        slots = self._slots
        return timer_id in slots and not slots[timer_id].held

    def _is_in_hand(self, timer_id: int) -> bool:
        """Whether a timer that came out of the heap or of a line is still as it was then: nowhere, and with a ticket.

        Who came in since then may have armed it, put it into a line, or ended it.
        """
        slots = self._slots
        return timer_id in slots and slots[timer_id].held and slots[timer_id].line is None and slots[timer_id].seq > 0

    def _ticket(self, timer_id: int) -> int:
        """The seq of the timer's one live entry, here or with its owner; 0 if there is none."""
        slot = self._slots.get(timer_id)
        return 0 if slot is None else slot.seq

    def _item(self, timer_id: int) -> Any:
        """The item of a waiting or held timer, else None."""
        slot = self._slots.get(timer_id)
        return None if slot is None else slot.item

    def _is_live(self, entry: Entry) -> bool:
        slot = self._slots.get(entry[2])
        return slot is not None and slot.seq == entry[1] and not slot.held

    def _has_room(self, extra: int) -> bool:
        return True

    def _crowded(self) -> bool:
        return len(self._heap) > 2 * self._live

    def _new_seq(self, priority: int) -> int:
        self._counter += 1
        return (MAX_PRIORITY - priority) << COUNTER_BITS | self._counter

    def _root(self) -> Entry | None:
        """The earliest live entry, at the root, after the dead ones before it are dropped; None when nothing waits."""
        slots = self._slots
        while self._heap:
            entry = self._heap[0]
            if entry[2] in slots and slots[entry[2]].seq == entry[1] and not slots[entry[2]].held:
                return entry
            heapq.heappop(self._heap)
        return None

    def _occupy(self, priority: int, item: object) -> int:
        """Make an id that is held, with a ticket."""
        timer_id = self._last_id = self._last_id + 1
        self._slots[timer_id] = _Slot(self._new_seq(priority), item, True)
        return timer_id

    def _take(self, now: int) -> Entry | None:
        """Pop the earliest timer if run_at <= now, and hold it. It keeps its ticket.

        The pop comes first: it may fail, and whoever comes in behind it finds an id without an entry at worst.
        """
        heap, slots = self._heap, self._slots
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if entry[2] in slots and slots[entry[2]].seq == entry[1] and not slots[entry[2]].held:
                slots[entry[2]].held = True
                self._live -= 1
                return entry
        return None

    def _pop(self, now: int) -> tuple[int, int, Any] | None:
        """Remove the earliest timer if run_at <= now: (run_at, id, item)."""
        entry = self._take(now)
        return None if entry is None else (entry[0], entry[2], self._release(entry[2]))

    def _drop(self, timer_id: int) -> None:
        """Undo the adding of a timer; nothing happens if it is gone."""
        if self._is_waiting(timer_id):
            del self._slots[timer_id]
            self._live -= 1

    def _add(self, run_at: int, priority: int, item: object) -> int:
        """Add a waiting timer; its id."""
        timer_id = self._last_id = self._last_id + 1
        slot = _Slot(self._new_seq(priority), item, False)
        entry = (run_at, slot.seq, timer_id)
        self._slots[timer_id] = slot
        self._live += 1
        try:
            heapq.heappush(self._heap, entry)
        except MemoryError:
            self._drop(timer_id)
            raise
        return timer_id

    def _next(self) -> int:
        """The earliest run_at; NEVER when nothing waits."""
        entry = self._root()
        return NEVER if entry is None else entry[0]

    def _take_due(self, now: int) -> Entry | None:
        """Pop the earliest timer if it is due, and hold it. It keeps its ticket."""
        return self._take(min(now, NEVER - 1))

    def _give_back(self, entry: Entry) -> None:
        """Undo `_take`; the heap has the room that it had before."""
        if self._is_in_hand(entry[2]) and self._slots[entry[2]].seq == entry[1]:
            self._slots[entry[2]].held = False
            self._live += 1
            heapq.heappush(self._heap, entry)

    def _rearm(self, timer_id: int, run_at: int) -> bool:
        """Arm a held timer that has a ticket, or move a waiting one: behind equals, with its priority.

        Returns: False if it is gone, or its ticket: who came in has ended it.
        """
        slot = self._slots.get(timer_id)
        if slot is None:
            return False
        while True:
            counter = self._counter + 1
            entry = (run_at, slot.seq & ~COUNTER_MASK | counter, timer_id)
            if self._counter < counter:
                break  # else who came in has counted on
        if slot.seq == 0 or timer_id not in self._slots:
            return False
        self._counter = counter
        held, seq, line = slot.held, slot.seq, slot.line
        self._live += held
        slot.held = False
        slot.seq = entry[1]
        if line is not None:
            line._dead += 1
            slot.line = None
        try:
            heapq.heappush(self._heap, entry)
        except MemoryError:
            if slot.seq == entry[1] and not slot.held:
                self._live -= held
                slot.held = held
                slot.seq = seq
                if line is not None:
                    line._dead -= 1
                    slot.line = line
            raise
        return True

    def _disarm(self, timer_id: int) -> bool:
        """Take the ticket of a waiting or held timer away, for good: its entries are dead. True: it was waiting."""
        slot = self._slots[timer_id]
        waited = not slot.held
        self._live -= waited
        slot.held = True
        slot.seq = 0
        if slot.line is not None:
            slot.line._dead += 1
            slot.line = None
        return waited

    def _hold(self, timer_id: int) -> None:
        """Hold a waiting timer, with a new ticket, or take one out of its line: its entry is dead, it may be armed."""
        slot = self._slots.get(timer_id)
        if slot is None:
            return
        if slot.line is not None:
            slot.line._dead += 1
            slot.line = None
        if slot.held:
            return
        self._counter += 1
        self._live -= 1
        slot.held = True
        slot.seq = slot.seq & ~COUNTER_MASK | self._counter

    def _take_due_id(self, now: int) -> int:
        """As `_take_due`, where the id is enough; -1 if nothing is due."""
        entry = self._take_due(now)
        return -1 if entry is None else entry[2]

    def _snapshot(self) -> list[Any]:
        """The items of all waiting and held timers, in no order. Locks."""
        with self.lock:
            return [slot.item for slot in list(self._slots.values()) if slot.item is not None]

    def _release(self, timer_id: int) -> Any:
        """Forget a held timer; its item, for the caller to drop after the lock is given back."""
        return self._slots.pop(timer_id).item

    # ------------------------------------------------------------ memory

    def _make_room(self, extra: int) -> None:
        """Nothing to do: a list and a dict grow by themselves."""

    def _tidy(self) -> None:
        """Leave the dead out when they are more than half."""
        with self.lock:
            if not self._crowded():
                return
            heap = self._heap
            size, counter = len(heap), self._counter
            try:
                kept = [entry for entry in heap if self._is_live(entry)]
            except MemoryError:  # what was asked for is done; the next change tries again
                return
            heapq.heapify(kept)
            # Who came in and added or popped has moved the entries: then this is left to the next call.
            if len(heap) == size and self._counter == counter and self._heap is heap:
                self._heap = kept


class ReadyLine:
    """Due jobs that wait for a worker, by higher priority, then run_at, then seq; the twin of the compiled one.

    A FIFO for each priority in use, beside it a heap of what came out of order; the better of the two heads is next.
    """

    def __init__(self, timetable: HeapqTimetable) -> None:
        self._timetable = timetable
        self._levels: dict[int, Level] = {}
        self._order: list[int] = []  # heap of the levels that have entries; a stray one is dropped in passing
        self._count = 0
        self._dead = 0  # counted by the timetable, in the step that kills an entry
        self._moves = 0  # how many entries came and went

    def _is_live(self, entry: Entry) -> bool:
        slots = self._timetable._slots
        return entry[2] in slots and slots[entry[2]].seq == entry[1] and slots[entry[2]].line is self

    def _put(self, run_at: int, seq: int, timer_id: int) -> bool:
        """Add the entry of a timer that is in hand; nothing happens if it is not. False: no memory for it."""
        entry = (run_at, seq, timer_id)
        level = seq >> COUNTER_BITS
        slots = self._timetable._slots
        try:
            while True:
                if level not in self._levels:
                    self._levels.setdefault(level, (deque(), []))
                if level not in self._order:
                    heapq.heappush(self._order, level)
                if not self._timetable._is_in_hand(timer_id) or slots[timer_id].seq != seq:
                    return True
                if level in self._levels and level in self._order:
                    break  # else who came in has swept
            ring, spill = self._levels[level]
            slots[timer_id].line = self
            self._count += 1
            self._moves += 1
            if not ring or ring[-1] < entry:
                ring.append(entry)
            else:
                heapq.heappush(spill, entry)
        except MemoryError:
            if timer_id in slots and slots[timer_id].line is self and slots[timer_id].seq == seq:
                slots[timer_id].line = None
                self._count -= 1
            return False
        return True

    def _promote(self, now: int, limit: int) -> int:
        """Take up to `limit` due timers over from the timetable; how many."""
        count = 0
        while count < limit and (entry := self._timetable._take_due(now)) is not None:
            if not self._put(entry[0], entry[1], entry[2]):
                self._timetable._give_back(entry)
                break
            count += 1
        return count

    def _pop(self, bound: int) -> int:
        """Remove the next live entry and return its id; -1 when there is none, or its counter is not below `bound`."""
        slots = self._timetable._slots
        while self._order:
            level = self._order[0]
            ring, spill = self._levels[level] if level in self._levels else NO_ENTRIES  # noqa: SIM401 (no call here)
            if not ring and not spill:
                heapq.heappop(self._order)
                continue
            from_spill = not ring or (spill and spill[0] < ring[0])
            best = spill[0] if from_spill else ring[0]
            live = best[2] in slots and slots[best[2]].seq == best[1] and slots[best[2]].line is self
            if live and best[1] & COUNTER_MASK >= bound:
                return -1
            self._count -= 1
            self._moves += 1
            if live:
                slots[best[2]].line = None
            else:
                self._dead -= 1
            if from_spill:
                heapq.heappop(spill)
            else:
                ring.popleft()
            if live:
                return best[2]
        return -1

    def _item(self, timer_id: int) -> Any:
        """The item of what was just popped; None if it is gone."""
        return self._timetable._item(timer_id)

    def _waiting(self) -> int:
        return self._count - self._dead

    def _forget(self) -> None:
        """An entry here has died. Sweep when half are dead: O(1) amortised."""
        if 2 * self._dead <= self._count:
            return
        dead, moves = self._dead, self._moves
        levels: dict[int, Level] = {}
        for level, (ring, spill) in list(self._levels.items()):
            if kept := sorted(filter(self._is_live, (*ring, *spill))):
                levels[level] = (deque(kept), [])
        order = sorted(levels)
        count = sum(len(ring) for ring, _ in levels.values())
        # Who came in and put, took or killed an entry has made this stale: then the next death tries again.
        if self._dead == dead and self._moves == moves:
            self._levels = levels
            self._order = order
            self._count = count
            self._dead = 0
