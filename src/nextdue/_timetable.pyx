# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False
"""A heap of timers: which id is due next.

The timetable orders integers. It reads no clock, starts no thread and calls no user code.

The heap is an implicit 4-ary heap of triples (run_at, seq, id), 24 bytes each, in the buffer of a numpy array. No
Python object is in it: what belongs to a timer lies by *slot*, in chunks of 1,024 slots, 12 bytes a slot and 8 more
once a chunk holds an item. An id is `generation << 32 | slot`, so a stale one is refused by one comparison, without
a dict (62 bytes a timer and a cache miss less).

Invariants, asserted by `check()`:

    I1  For every entry but the root: parent <= entry by (run_at, seq). All seq differ.
    I2  A slot is in one of four states, by its bits (held, cancelled):
        WAITING (0, 0) it has exactly one live entry in the heap, with seq == slot.seq;
        HELD    (1, 0) it has none here; its owner keeps the id. With a ticket (slot.seq is a seq that was given out)
                       the owner may arm it again, without one it only waits to be released;
        DOOMED  (0, 1) cancelled: its entry is still here, and when that leaves the slot is free;
        FREE    (1, 1) it is on its chunk's free list, or retired.
    I3  An entry is live if and only if its slot is WAITING, of the same generation, and slot.seq == entry.seq. Whatever
        happens to the slot later, an entry that is dead stays dead: no seq is given out twice.
    I4  _live counts the WAITING slots, _held the HELD ones with a ticket; at rest at most half of the entries are dead.
    I5  _n + _held <= _capacity: a held timer can always be armed again without an allocation.
    I6  A generation is never used twice for a slot: not after wrapping (the slot is retired), and not after its chunk
        was given back (the page remembers where to go on).
    I7  What the collector walks through (pages, chunks, their items) is moved and freed only by a thread that has the
        GIL (on a free-threaded build: that is attached), and filled before it is published. Not for `check()` to see.

Cost, n entries: add O(log4 n) at worst and O(1) on average; pop O(log n); cancel one bit, and O(1) amortised for the
rebuild that runs when more than half of the entries are dead; reschedule as add; adding k >= n / 8 at once heapifies,
O(n + k); taking k of n due ones at once is O(n + k) by partition and radix sort where that beats k pops.

The GIL is given up around work that is long enough to pay for it (`LONG`), never around a step: giving it up and
taking it back costs more than the step, and up to 5 ms beside a busy thread. The lock is then taken and given back
inside the stretch without the GIL, so nobody waits for the GIL while holding the lock.

The shape is that of Go's timer heap (4-ary, lazily deleted) and of OpenJDK's ScheduledThreadPoolExecutor (seq for
FIFO among equals); slot + generation is a slotmap.
"""

import operator

import numpy as np

cimport numpy as cnp
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MIN
from libc.string cimport memcpy, memset

from ._heap cimport ARITY, NEVER, Entry, before, heapify, sift_down, sift_up

cnp.import_array()

ENTRY = np.dtype([("run_at", np.int64), ("seq", np.uint64), ("id", np.int64)])

cdef extern from *:
    """
    #define NEXTDUE_PUBLISH() __atomic_thread_fence(__ATOMIC_RELEASE)
    """
    void publish "NEXTDUE_PUBLISH"() noexcept nogil     # what is written before it is seen before what comes after

cdef enum:
    ENTRY_STRIDE = sizeof(Entry) // sizeof(int64_t)
    FEWEST = 64                 # entries that a heap has room for at least
    LONG = 4096                 # steps from which on the GIL is given up: some 100 us of work
    FEW = 64                    # due timers up to which they are popped one by one, and taken without a second look
    BATCH = 256                 # references that are moved out in one round of the lock
    NO_ROOM = -3                # beside NO_MEMORY and TOO_MANY: grow the heap, then try again

cdef int64_t SLOT_MASK = 0xFFFFFFFF
cdef int64_t MAX_SLOTS = 1 << 31
LAST_GEN = 0x7FFFFFFF                                  # ids stay positive
cdef uint64_t COUNTER_MASK = (1ULL << 52) - 1
# A slot's seq doubles as its free link or NO_TICKET. Counters begin above both, so no entry can ever match them (I3).
cdef uint64_t NO_TICKET = CHUNK + 1
cdef uint64_t FIRST_COUNTER = 1ULL << 32
cdef int MIN_PRIORITY = -2048
cdef int MAX_PRIORITY = 2047


# ---------------------------------------------------------------- at the door


cdef object integer(object value, str name):
    """What `operator.index` makes of it. That numpy's booleans and float arrays have an `__index__` says nothing."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, got {value!r}")


cdef int64_t instant(object value, str name) except? -1:
    """Turn an int into int64, saturating at both ends; refuse everything that is not an integer."""
    cdef int overflow = 0
    cdef int64_t result
    if type(value) is not int:
        value = integer(value, name)
    result = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow != 0:
        return NEVER if overflow > 0 else INT64_MIN
    return result


cdef int64_t id_or_none(object timer_id) except? -1:
    """-1 for an int that cannot be an id."""
    cdef int64_t result = instant(timer_id, "timer_id")
    return result if 0 <= result < NEVER else -1


cdef int64_t limit_of(object limit) except -1:
    cdef int64_t result
    if limit is None or isinstance(limit, float) and limit == INFINITY:
        return NEVER
    result = instant(limit, "limit")
    if result < 0:
        raise ValueError(f"limit must be 0 or more, got {limit!r}")
    return result


cdef int priority_of(object priority) except? -1:
    cdef int64_t result = instant(priority, "priority")
    if result < MIN_PRIORITY or result > MAX_PRIORITY:
        raise ValueError(f"priority must be from {MIN_PRIORITY} to {MAX_PRIORITY}, got {priority!r}")
    return <int>result


cdef cnp.ndarray int64_array(object values, str name):
    """Give a contiguous int64[n] that nobody else writes to; sequences of ints are converted, nothing is cast."""
    cdef Py_ssize_t k
    cdef list ints
    if not isinstance(values, np.ndarray):
        try:
            iter(values)
        except TypeError:
            raise TypeError(f"{name} must be int64[n] or a sequence of ints, got {values!r}") from None
        ints = list(values)
        for k in range(len(ints)):
            if type(ints[k]) is not int:
                ints[k] = integer(ints[k], f"{name}[{k}]")
        return np.array([instant(value, name) for value in ints], dtype=np.int64)
    if values.dtype != np.int64 or not values.dtype.isnative:
        raise TypeError(f"{name} must be int64[n], got {values.dtype!r}")
    if values.ndim != 1:
        raise ValueError(f"{name} must be int64[n], got shape {values.shape!r}")
    return np.array(values, dtype=np.int64, order="C")


cdef int64_t raise_add_error(int64_t code) except -1:
    if code == TOO_MANY:
        raise OverflowError("a timetable holds at most 2**31 timers")
    raise MemoryError("no memory for another timer; nothing was added")


cdef inline object adopt(PyObject* item):
    """Turn an owned reference, or NULL, into an object, or None."""
    if item == NULL:
        return None
    result = <object>item
    Py_DECREF(result)
    return result


# ---------------------------------------------------------------- sorting


cdef inline uint64_t sort_key(const Entry* entry, int byte) noexcept nogil:
    """Byte `byte` of the 128-bit key (run_at, seq), least significant first; the sign bit turned for unsigned order."""
    if byte < 8:
        return (entry.seq >> (8 * byte)) & 0xFF
    return ((<uint64_t>entry.run_at ^ (1ULL << 63)) >> (8 * (byte - 8))) & 0xFF


cdef bint sort_entries(Entry* entries, int64_t n) noexcept nogil:
    """Sort by (run_at, seq): an LSD radix sort that passes over the bytes in which all keys agree. False: no memory.

    Six or seven of the sixteen passes remain for a million timers of one second: 35 ns an entry, where popping them
    takes 250 and more.
    """
    cdef int64_t i, sum_, count
    cdef int byte
    cdef uint64_t digit
    cdef int64_t[16][256] counts
    cdef Entry* source = entries
    cdef Entry* target
    cdef Entry* spare
    cdef Entry item
    if n < 64:
        for i in range(1, n):               # insertion sort
            item = entries[i]
            count = i
            while count > 0 and before(&item, &entries[count - 1]):
                entries[count] = entries[count - 1]
                count -= 1
            entries[count] = item
        return True
    spare = <Entry*>PyMem_RawMalloc(n * sizeof(Entry))
    if spare == NULL:
        return False
    memset(counts, 0, sizeof(counts))
    for i in range(n):
        for byte in range(16):
            counts[byte][sort_key(&entries[i], byte)] += 1
    target = spare
    for byte in range(16):
        if counts[byte][sort_key(&source[0], byte)] == n:
            continue
        sum_ = 0
        for digit in range(256):
            count = counts[byte][digit]
            counts[byte][digit] = sum_
            sum_ += count
        for i in range(n):
            digit = sort_key(&source[i], byte)
            target[counts[byte][digit]] = source[i]
            counts[byte][digit] += 1
        source, target = target, source
    if source != entries:
        memcpy(entries, source, n * sizeof(Entry))
    PyMem_RawFree(spare)
    return True


# ---------------------------------------------------------------- bits of a slot


cdef inline bint bit(const uint64_t* words, int64_t k) noexcept nogil:
    return (words[k >> 6] >> (k & 63)) & 1


cdef inline void set_bit(uint64_t* words, int64_t k) noexcept nogil:
    words[k >> 6] |= 1ULL << (k & 63)


cdef inline void clear_bit(uint64_t* words, int64_t k) noexcept nogil:
    words[k >> 6] &= ~(1ULL << (k & 63))


cdef inline bint has_ticket(uint64_t seq) noexcept nogil:
    return (seq & COUNTER_MASK) >= FIRST_COUNTER


cdef class Timetable:
    """Order timers by (run_at, higher priority, insertion), without a clock.

    Times are plain integers of any unit, within int64; what lies outside saturates, and a timer at 2**63 - 1 or later
    is never due.

    Args:
        capacity: how many timers to make room for at once; what lies unused is given back when timers leave.

    Thread-safety: every method may be called from any thread; one lock guards the whole. Nothing runs under it but
    arithmetic: no user code, no allocation by Python.

    >>> t = Timetable()
    >>> late, soon = t.add(20, "late"), t.add(10, "soon")
    >>> t.next_run_at(), len(t)
    (10, 2)
    >>> t.cancel(soon), soon in t
    (True, False)
    >>> t.pop_due(now=20)
    ['late']
    """

    def __cinit__(self, *args, **kwargs):
        self._counter = FIRST_COUNTER

    def __init__(self, *, capacity=0):
        cdef int64_t wanted = instant(capacity, "capacity")
        if wanted < 0 or wanted > MAX_SLOTS:
            raise ValueError(f"capacity must be from 0 to 2**31, got {capacity!r}")
        self._make_room(max(wanted, 1))

    def __dealloc__(self):
        cdef int64_t page, k
        cdef Chunk* chunk
        for page in range(self._page_count):
            chunk = self._pages[page].chunk
            if chunk == NULL:
                continue
            for k in range(CHUNK if chunk.items != NULL else 0):
                Py_XDECREF(chunk.items[k])
            chunk.next = NULL
            free_chunks(chunk)
        PyMem_RawFree(self._pages)
        Py_XDECREF(self._array)

    # ------------------------------------------------------------ one by one

    def add(self, run_at, item=None, *, priority=0):
        """Add a timer and return its id.

        Args:
            run_at: int; saturates at both ends of int64.
            item: any object, kept until the timer is popped or cancelled.
            priority: -2048..2047; among equal run_at the higher comes first.

        Raises: TypeError, ValueError for a parameter that is not as above; OverflowError beyond 2**31 timers.
        Complexity: O(log n) at worst, O(1) on average.
        """
        cdef int64_t at = instant(run_at, "run_at")
        cdef int rank = priority_of(priority)
        cdef int64_t timer_id
        while True:
            with self.lock:
                if self._has_room(1):
                    timer_id = self._add(at, rank, item)
                    break
            self._make_room(1)
        if timer_id < 0:
            raise_add_error(timer_id)
        return timer_id

    def cancel(self, timer_id):
        """Cancel a waiting timer; False if it is not waiting (popped, cancelled, unknown).

        The item is released at once. Complexity: O(1), amortised for the rebuild.
        """
        cdef int64_t wanted = id_or_none(timer_id)
        cdef PyObject* item = NULL
        cdef Chunk* chunk
        cdef bint crowded
        with self.lock:
            if not self._is_waiting(wanted):
                return False
            chunk = self._find(wanted)
            set_bit(chunk.cancelled, wanted & (CHUNK - 1))
            self._live -= 1
            item = self._take_item(wanted)
            crowded = self._crowded()
        if crowded:
            self._tidy()
        Py_XDECREF(item)
        return True

    def reschedule(self, timer_id, run_at):
        """Move a waiting timer to `run_at`, behind equals; False if it is not waiting. It keeps its id and priority.

        Complexity: as `add`; the old entry counts as dead.
        """
        cdef int64_t wanted = id_or_none(timer_id)
        cdef int64_t at = instant(run_at, "run_at")
        cdef bint crowded
        while True:
            with self.lock:
                if not self._is_waiting(wanted):
                    return False
                if self._has_room(1):
                    self._rearm(wanted, at)
                    crowded = self._crowded()
                    break
            self._make_room(1)
        if crowded:
            self._tidy()
        return True

    def next_run_at(self):
        """Return the earliest run_at, or None when nothing waits. Complexity: O(1), amortised."""
        cdef int64_t at
        with self.lock:
            if self._live == 0:
                return None
            at = self._next()
        return at

    def pop(self):
        """Remove the earliest timer, due or not, and return (run_at, id, item).

        Raises: IndexError when nothing waits. Complexity: O(log n).
        """
        cdef Entry entry
        cdef PyObject* item = NULL
        cdef bint found, crowded = False
        with self.lock:
            self._prune()
            found = self._n > 0
            if found:
                entry = self._heap[0]
                self._drop_root()
                self._live -= 1
                item = self._take_item(entry.id)
                self._free_slot(self._find(entry.id), entry.id & (CHUNK - 1))
                crowded = self._crowded()
        if not found:
            raise IndexError("pop from an empty timetable")
        if crowded:
            self._tidy()
        return entry.run_at, entry.id, adopt(item)

    # ------------------------------------------------------------ in bulk

    def add_many(self, run_at, items=None):
        """Add a timer for each element, in order; return their ids.

        Args:
            run_at: int64[n], or a sequence of ints.
            items: None, or a sequence of n objects.

        Returns: int64[n].
        Raises: TypeError, ValueError for another dtype, shape or length; then nothing was added.
        Complexity: O(n + k) for k >= n / 8 (heapify), else k times `add`. Long work runs without the GIL.
        """
        cdef cnp.ndarray at = int64_array(run_at, "run_at")
        cdef int64_t k = at.shape[0]
        cdef cnp.ndarray ids = np.empty(k, dtype=np.int64)
        cdef int64_t* source = <int64_t*>cnp.PyArray_DATA(at)
        cdef int64_t* target = <int64_t*>cnp.PyArray_DATA(ids)
        cdef int64_t done, i
        if items is not None:
            items = list(items)
            if len(items) != k:
                raise ValueError(f"items must be {k} objects, as many as run_at, got {len(items)}")
        if k == 0:
            return ids
        cdef PyObject** refs = NULL
        if items is not None:
            refs = <PyObject**>PyMem_RawMalloc(k * sizeof(PyObject*))
            if refs == NULL:
                raise_add_error(NO_MEMORY)
            for i in range(k):
                refs[i] = NULL if items[i] is None else <PyObject*>items[i]
                if refs[i] != NULL:
                    Py_INCREF(items[i])
        try:
            while True:
                if k >= LONG:
                    with nogil:
                        done = self._add_block(source, target, k, refs)
                else:
                    done = self._add_block(source, target, k, refs)
                if done != NO_ROOM:
                    break
                self._make_room(k)
            if done < 0:
                raise_add_error(done)
        except BaseException:
            for i in range(k if refs != NULL else 0):
                Py_XDECREF(refs[i])
            raise
        finally:
            PyMem_RawFree(refs)
        return ids

    cdef int64_t _add_block(self, int64_t* source, int64_t* target, int64_t k, PyObject** refs) noexcept nogil:
        """Lock, add all k or none. 0, or NO_ROOM, NO_MEMORY, TOO_MANY."""
        cdef int64_t i, done, timer_id
        cdef uint64_t seq
        with self.lock:
            if not self._has_room(k) or not self._has_pages(k):
                return NO_ROOM
            for done in range(k):
                timer_id = self._take_slot(refs != NULL and refs[done] != NULL)
                if timer_id < 0:
                    for i in range(done):
                        self._free_slot(self._find(target[i]), target[i] & (CHUNK - 1))
                    return timer_id
                target[done] = timer_id
            for i in range(k):
                seq = self._new_seq(0)
                self._arm_slot(target[i], seq)
                if refs != NULL and refs[i] != NULL:
                    self._find(target[i]).items[target[i] & (CHUNK - 1)] = refs[i]
                self._heap[self._n + i] = Entry(source[i], seq, target[i])
            self._live += k
            self._n += k
            if k >= self._n >> 3:
                heapify(self._heap, self._n)
            else:
                for i in range(self._n - k, self._n):
                    sift_up(self._heap, i, self._heap[i])
        return 0

    def cancel_many(self, timer_ids):
        """Cancel each of the timers; return how many were waiting.

        Args:
            timer_ids: int64[n], or a sequence of ints.

        Complexity: O(n) + one rebuild at most.
        """
        cdef cnp.ndarray ids = int64_array(timer_ids, "timer_ids")
        cdef int64_t k = ids.shape[0]
        cdef int64_t* source = <int64_t*>cnp.PyArray_DATA(ids)
        cdef int64_t cancelled, with_items = 0
        if k >= LONG:
            with nogil:
                cancelled = self._cancel_block(source, k, &with_items)
        else:
            cancelled = self._cancel_block(source, k, &with_items)
        self._release_block(source, with_items, 1, None)
        self._tidy()
        return cancelled

    cdef int64_t _cancel_block(self, int64_t* ids, int64_t k, int64_t* with_items) noexcept nogil:
        """Lock and cancel; ids whose item is still to be released are left at the front of `ids`, as `_part` marks."""
        cdef int64_t i, timer_id, count = 0
        with self.lock:
            for i in range(k):
                timer_id = ids[i]
                if not self._is_waiting(timer_id):
                    continue
                count += 1
                self._live -= 1
                if self._has_item(timer_id):
                    ids[with_items[0]] = self._part(timer_id)
                    with_items[0] += 1
                else:
                    set_bit(self._find(timer_id).cancelled, timer_id & (CHUNK - 1))
        return count

    cdef inline int64_t _part(self, int64_t timer_id) noexcept nogil:
        """Part with a timer that is no longer WAITING by the count.

        Its id, if the slot is free now; ~id, if the slot is HELD because an item is in it, which only a thread with
        the GIL may take out (`_release_block`).
        """
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        if not self._has_item(timer_id):
            self._free_slot(chunk, k)
            return timer_id
        set_bit(chunk.held, k)
        chunk.seq[k] = NO_TICKET
        return ~timer_id

    cdef int _release_block(self, int64_t* ids, int64_t k, int64_t stride, list out) except -1:
        """Free the slots of marked ids and unmark them; items go to `out`, or are dropped, without the lock."""
        cdef int64_t i, timer_id, start = 0, stop
        cdef PyObject* items[BATCH]
        while start < k:
            stop = min(start + BATCH, k)
            with self.lock:
                for i in range(start, stop):
                    timer_id = ids[i * stride]
                    items[i - start] = NULL
                    if timer_id < 0:
                        ids[i * stride] = ~timer_id
                        items[i - start] = self._take_item(~timer_id)
                        self._free_slot(self._find(~timer_id), ~timer_id & (CHUNK - 1))
            for i in range(start, stop):
                if out is not None:
                    out.append(adopt(items[i - start]))
                else:
                    Py_XDECREF(items[i - start])
            start = stop
        return 0

    def pop_due(self, now, limit=None):
        """Remove the timers with run_at <= now, at most `limit`, and return their items in order.

        Args:
            now: int; saturates. A timer at 2**63 - 1 is not due even then.
            limit: int, 0 or more; None or infinity for no limit.

        Complexity: O(k log n), or O(n) where more than an eighth is due, within the limit. Long work runs without the
        GIL.
        """
        cdef int64_t k = 0
        cdef Entry* due = self._take_block(instant(now, "now"), limit_of(limit), &k)
        cdef list out = []
        try:
            self._release_block(&due.id, k, ENTRY_STRIDE, out)
        finally:
            PyMem_RawFree(due)
        self._tidy()
        return out

    def pop_due_ids(self, now, limit=None):
        """Remove the timers with run_at <= now, at most `limit`, and return their ids in order; items are released.

        Returns: int64[k]. Complexity: as `pop_due`.
        """
        cdef int64_t k = 0
        cdef Entry* due = self._take_block(instant(now, "now"), limit_of(limit), &k)
        cdef cnp.ndarray ids
        cdef int64_t* target
        cdef int64_t i
        try:
            self._release_block(&due.id, k, ENTRY_STRIDE, None)
            ids = np.empty(k, dtype=np.int64)
            target = <int64_t*>cnp.PyArray_DATA(ids)
            for i in range(k):
                target[i] = due[i].id
        finally:
            PyMem_RawFree(due)
        self._tidy()
        return ids

    cdef Entry* _take_block(self, int64_t now, int64_t limit, int64_t* taken) except NULL:
        """Take what is due into a new block, ids marked by `_part`. The caller frees it."""
        cdef int64_t due, room = FEW
        cdef Entry* out = <Entry*>PyMem_RawMalloc(room * sizeof(Entry))
        cdef Entry* larger
        now = min(now, NEVER - 1)
        while out != NULL:
            with self.lock:
                due = self._count_due(now, min(limit, LONG))
                if due <= room and due < LONG:
                    taken[0] = self._sweep_block(now, limit, due, out)
                    return out
            if due >= LONG:
                with nogil:
                    with self.lock:
                        due = self._count_due(now, limit)
                        if due <= room:
                            taken[0] = self._sweep_block(now, limit, due, out)
                            return out
            room = due + (due >> 3)         # others may add while there is no lock
            larger = <Entry*>PyMem_RawRealloc(out, room * sizeof(Entry))
            if larger == NULL:
                PyMem_RawFree(out)
            out = larger
        raise MemoryError("no memory to take the due timers; they wait unchanged")

    def clear(self):
        """Remove every timer; items are released. Ids given out before stay unknown for good. Complexity: O(n)."""
        # The heap is exchanged for an empty one in one round of the lock; the old buffer then serves as the list of
        # what is to be released.
        cdef int64_t k = NO_ROOM, capacity
        cdef bint long_
        cdef cnp.ndarray fresh
        cdef Entry* buffer
        cdef PyObject* owner = NULL
        while k == NO_ROOM:
            with self.lock:
                capacity = max(FEWEST, self._held + (self._held >> 1))
                long_ = self._n >= LONG
            fresh = np.empty(capacity, dtype=ENTRY)
            Py_INCREF(fresh)
            Py_XDECREF(owner)
            owner = <PyObject*>fresh
            buffer = <Entry*>cnp.PyArray_DATA(fresh)
            if long_:
                with nogil:
                    k = self._clear_block(&owner, &buffer, capacity)
            else:
                k = self._clear_block(&owner, &buffer, capacity)
        if k > 0:
            self._release_block(&buffer.id, k, ENTRY_STRIDE, None)
        Py_XDECREF(owner)
        self._tidy()

    cdef int64_t _clear_block(self, PyObject** owner, Entry** buffer, int64_t capacity) noexcept nogil:
        """Lock, exchange the heap for `buffer`, part with all that waited; how many, their ids in what is `buffer` now.

        NO_ROOM: more timers are held than the new heap has room for (I5).
        """
        cdef int64_t i, k = 0
        cdef Entry* old
        with self.lock:
            if self._held > capacity:
                return NO_ROOM
            old = self._heap
            for i in range(self._n):
                if self._is_live(&old[i]):
                    old[k].id = self._part(old[i].id)
                    k += 1
                else:
                    self._entry_gone(&old[i])
            self._live -= k
            self._n = 0
            self._heap, buffer[0] = buffer[0], old
            self._capacity = capacity
            owner[0], self._array = self._array, owner[0]
        return k

    # ------------------------------------------------------------ looking

    def __len__(self):
        with self.lock:
            return self._live

    def __contains__(self, timer_id):
        cdef int64_t wanted
        try:
            wanted = id_or_none(timer_id)
        except TypeError:
            return False
        with self.lock:
            return self._is_waiting(wanted)

    def __repr__(self):
        return f"<{type(self).__name__}: {len(self)} waiting, next at {self.next_run_at()}>"

    @property
    def nbytes(self):
        """Memory of the arrays, in bytes: the heap, the slots, the references to items."""
        cdef int64_t total
        with self.lock:
            total = (
                self._capacity * <int64_t>sizeof(Entry)
                + self._chunk_count * <int64_t>sizeof(Chunk)
                + self._item_chunks * <int64_t>(CHUNK * sizeof(PyObject*))
                + self._page_capacity * <int64_t>sizeof(Page)
            )
        return total

    def check(self):
        """Assert every invariant; for tests, with nobody else at work. Complexity: O(n log n)."""
        cdef int64_t k, n, page, live = 0, doomed_entries = 0, waiting = 0, doomed = 0, held = 0, chunks = 0
        cdef int64_t with_items = 0, empty = 0, open_ = 0, used, free
        cdef Chunk* chunk
        cdef Chunk* previous = NULL
        cdef Entry* entry
        cdef str wrong = None
        cdef cnp.ndarray array = np.empty(self._n, dtype=np.uint64)
        cdef uint64_t* seqs = <uint64_t*>cnp.PyArray_DATA(array)
        with self.lock:
            n = min(self._n, array.shape[0])
            for k in range(n):
                entry = &self._heap[k]
                seqs[k] = entry.seq
                if k > 0 and not before(&self._heap[(k - 1) // ARITY], entry):
                    wrong = "I1: heap order"
                chunk = self._find(entry.id)
                if self._is_live(entry):
                    live += 1
                    if chunk.gen[entry.id & (CHUNK - 1)] != entry.id >> 32:
                        wrong = "I3: generation of a live entry"
                elif chunk != NULL and chunk.seq[entry.id & (CHUNK - 1)] == entry.seq:
                    doomed_entries += bit(chunk.cancelled, entry.id & (CHUNK - 1))
            for page in range(self._page_count):
                chunk = self._pages[page].chunk
                if chunk == NULL:
                    if page < self._gap:
                        wrong = "a page below the gap has no chunk"
                    continue
                if chunk.index != page:
                    wrong = "chunk and page"
                chunks += 1
                with_items += chunk.items != NULL
                open_ += chunk.free_head != CHUNK
                used = 0
                for k in range(CHUNK):
                    if bit(chunk.cancelled, k) and chunk.items != NULL and chunk.items[k] != NULL:
                        wrong = "I2: a cancelled or free slot has no item"
                    if bit(chunk.held, k) and bit(chunk.cancelled, k):
                        used += chunk.gen[k] > LAST_GEN             # retired
                        continue
                    used += 1
                    if chunk.gen[k] > LAST_GEN or chunk.gen[k] < self._pages[page].gen_floor:
                        wrong = "I6: generations"
                    if bit(chunk.held, k):
                        held += has_ticket(chunk.seq[k])
                    elif bit(chunk.cancelled, k):
                        doomed += 1
                    else:
                        waiting += 1
                empty += used == 0
                free = 0
                k = chunk.free_head
                while k < CHUNK and free <= CHUNK:
                    free += 1
                    if not (bit(chunk.held, k) and bit(chunk.cancelled, k)):
                        wrong = "I2: a slot in use is on the free list"
                    k = chunk.seq[k]
                if used != chunk.used or used + free != CHUNK:
                    wrong = "I2: used and free slots"
            chunk = self._open
            while chunk != NULL and open_ >= 0:
                open_ -= 1
                if chunk.prev != previous or chunk.free_head == CHUNK:
                    wrong = "list of chunks with a free slot"
                previous, chunk = chunk, chunk.next
            if open_ != 0:
                wrong = "list of chunks with a free slot"
            if live != waiting or doomed_entries != doomed:
                wrong = "I2: one entry for each waiting or doomed slot"
            if waiting != self._live:
                wrong = "I4: live count"
            if held != self._held:
                wrong = "I4: held count"
            if self._n > 2 * self._live:
                wrong = "I4: dead entries"
            if self._n + self._held > self._capacity:
                wrong = "I5: room for the held"
            if chunks != self._chunk_count or with_items != self._item_chunks or empty != self._empty_chunks:
                wrong = "chunk counts"
        if wrong is None and np.unique(array).size < n:
            wrong = "I1: seq differ"
        assert wrong is None, wrong

    # ------------------------------------------------------------ slots; caller holds the lock

    cdef inline Chunk* _find(self, int64_t timer_id) noexcept nogil:
        """The chunk of an id's slot; NULL if there is none. The generation is not looked at."""
        cdef int64_t page = (timer_id & SLOT_MASK) >> CHUNK_BITS
        return self._pages[page].chunk if page < self._page_count else NULL

    cdef inline bint _has(self, int64_t timer_id, bint held) noexcept nogil:
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        return (
            chunk != NULL
            and <int64_t>chunk.gen[k] == timer_id >> 32
            and bit(chunk.held, k) == held
            and not bit(chunk.cancelled, k)
        )

    cdef bint _is_waiting(self, int64_t timer_id) noexcept nogil:
        return self._has(timer_id, False)

    cdef uint64_t _ticket(self, int64_t timer_id) noexcept nogil:
        """The seq of the timer's one live entry, here or with its owner; 0 if there is none."""
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        if (self._has(timer_id, False) or self._has(timer_id, True)) and has_ticket(chunk.seq[k]):
            return chunk.seq[k]
        return 0

    cdef object _item(self, int64_t timer_id):
        """The item of a waiting or held timer, else None."""
        if (self._has(timer_id, False) or self._has(timer_id, True)) and self._has_item(timer_id):
            return <object>self._find(timer_id).items[timer_id & (CHUNK - 1)]
        return None

    cdef inline bint _has_item(self, int64_t timer_id) noexcept nogil:
        cdef Chunk* chunk = self._find(timer_id)
        return chunk.items != NULL and chunk.items[timer_id & (CHUNK - 1)] != NULL

    cdef inline void _arm_slot(self, int64_t timer_id, uint64_t seq) noexcept nogil:
        """FREE (just taken) or HELD -> WAITING."""
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        chunk.seq[k] = seq
        clear_bit(chunk.held, k)
        clear_bit(chunk.cancelled, k)

    cdef inline void _link(self, Chunk* chunk) noexcept nogil:
        chunk.prev = NULL
        chunk.next = self._open
        if self._open != NULL:
            self._open.prev = chunk
        self._open = chunk

    cdef inline void _unlink(self, Chunk* chunk) noexcept nogil:
        if chunk.prev != NULL:
            chunk.prev.next = chunk.next
        else:
            self._open = chunk.next
        if chunk.next != NULL:
            chunk.next.prev = chunk.prev
        chunk.prev = chunk.next = NULL

    cdef inline bint _has_pages(self, int64_t extra) noexcept nogil:
        """`extra` slots can be taken without moving the pages."""
        return self._page_count + (extra >> CHUNK_BITS) + 1 <= self._page_capacity

    cdef bint _grow_pages(self, int64_t extra) noexcept nogil:
        """See to `_has_pages`; False: no memory. Caller has the GIL (I7)."""
        cdef int64_t capacity = max(self._page_count + (extra >> CHUNK_BITS) + 1, max(4, 2 * self._page_capacity))
        cdef Page* pages = <Page*>PyMem_RawRealloc(self._pages, capacity * sizeof(Page))
        if pages == NULL:
            return False
        memset(&pages[self._page_capacity], 0, (capacity - self._page_capacity) * sizeof(Page))
        self._pages = pages
        self._page_capacity = capacity
        return True

    cdef Chunk* _new_chunk(self) noexcept nogil:
        """Make the chunk of the lowest page that has none; NULL when there is no memory, or no page left."""
        cdef int64_t k
        cdef Chunk* chunk
        while self._gap < self._page_count and self._pages[self._gap].chunk != NULL:
            self._gap += 1
        if self._gap == MAX_SLOTS >> CHUNK_BITS:
            return NULL
        if self._gap == self._page_capacity and not self._grow_pages(1):
            return NULL
        chunk = <Chunk*>PyMem_RawMalloc(sizeof(Chunk))
        if chunk == NULL:
            return NULL
        if self._gap == self._page_count:
            self._pages[self._gap].gen_floor = 1    # so that no id is a bare slot number
        for k in range(CHUNK):
            chunk.seq[k] = k + 1
            chunk.gen[k] = self._pages[self._gap].gen_floor
        memset(chunk.held, 0xFF, sizeof(chunk.held))
        memset(chunk.cancelled, 0xFF, sizeof(chunk.cancelled))
        chunk.items = NULL
        chunk.index = self._gap
        chunk.free_head = 0
        chunk.used = 0
        publish()                                   # I7
        self._pages[self._gap].chunk = chunk
        self._page_count = max(self._page_count, self._gap + 1)
        self._chunk_count += 1
        self._empty_chunks += 1
        self._link(chunk)
        return chunk

    cdef int64_t _take_slot(self, bint with_item) noexcept nogil:
        """Take a free slot, with a place for an item if one is to be stored; its id, or a code. The caller arms it."""
        cdef Chunk* chunk = self._open
        cdef PyObject** items
        cdef int64_t k
        if chunk == NULL:
            chunk = self._new_chunk()
            if chunk == NULL:
                return TOO_MANY if self._gap == MAX_SLOTS >> CHUNK_BITS else NO_MEMORY
        if with_item and chunk.items == NULL:
            items = <PyObject**>PyMem_RawCalloc(CHUNK, sizeof(PyObject*))
            if items == NULL:
                return NO_MEMORY
            publish()                               # I7
            chunk.items = items
            self._item_chunks += 1
        k = chunk.free_head
        chunk.free_head = <int32_t>chunk.seq[k]
        self._empty_chunks -= chunk.used == 0
        chunk.used += 1
        if chunk.free_head == CHUNK:
            self._unlink(chunk)
        return <int64_t>chunk.gen[k] << 32 | chunk.index << CHUNK_BITS | k

    cdef void _free_slot(self, Chunk* chunk, int64_t k) noexcept nogil:
        """Any state -> FREE. Its item has been taken out; its generation is over (I6)."""
        set_bit(chunk.held, k)
        set_bit(chunk.cancelled, k)
        chunk.gen[k] += 1
        if chunk.gen[k] > LAST_GEN:
            chunk.seq[k] = NO_TICKET                # retired: not linked, used for good
            return
        if chunk.free_head == CHUNK:
            self._link(chunk)
        chunk.seq[k] = chunk.free_head
        chunk.free_head = <int32_t>k
        chunk.used -= 1
        self._empty_chunks += chunk.used == 0

    cdef inline PyObject* _take_item(self, int64_t timer_id) noexcept nogil:
        """Move the item out; the caller owns the reference. NULL: there was none."""
        cdef Chunk* chunk = self._find(timer_id)
        cdef PyObject* item
        if chunk.items == NULL:
            return NULL
        item = chunk.items[timer_id & (CHUNK - 1)]
        chunk.items[timer_id & (CHUNK - 1)] = NULL
        return item

    cdef Chunk* _trim(self) noexcept nogil:
        """Part with empty chunks, but a quarter of those in use: what comes and goes needs no allocation.

        They are linked by `next`, for `free_chunks`.
        """
        cdef int64_t page, k, keep = (self._chunk_count - self._empty_chunks) // 4 + 1
        cdef Chunk* chunk
        cdef Chunk* dropped = NULL
        for page in range(self._page_count - 1, -1, -1):
            if self._empty_chunks <= keep:
                break
            chunk = self._pages[page].chunk
            if chunk == NULL or chunk.used > 0:
                continue
            for k in range(CHUNK):
                self._pages[page].gen_floor = max(self._pages[page].gen_floor, chunk.gen[k])
            self._unlink(chunk)
            self._pages[page].chunk = NULL
            self._gap = min(self._gap, page)
            self._chunk_count -= 1
            self._empty_chunks -= 1
            self._item_chunks -= chunk.items != NULL
            chunk.next = dropped
            dropped = chunk
        return dropped

    # ------------------------------------------------------------ the heap; caller holds the lock

    cdef inline bint _has_room(self, int64_t extra) noexcept nogil:
        return self._n + self._held + extra <= self._capacity       # I5

    cdef inline bint _crowded(self) noexcept nogil:
        """More than half of the entries are dead, or much memory is unused: `_tidy` has something to do."""
        return self._n > 2 * self._live or self._roomy()

    cdef inline bint _roomy(self) noexcept nogil:
        return self._oversized() or 3 * self._empty_chunks > self._chunk_count + 3

    cdef inline bint _oversized(self) noexcept nogil:
        """The heap has room for three times what lives: at 24 bytes an entry, twice what a timer needs in all."""
        return self._capacity > FEWEST and 3 * (self._live + self._held) < self._capacity

    cdef inline void _push(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil:
        self._n += 1
        sift_up(self._heap, self._n - 1, Entry(run_at, seq, timer_id))

    cdef inline void _drop_root(self) noexcept nogil:
        self._n -= 1
        if self._n > 0:
            sift_down(self._heap, self._n, 0, self._heap[self._n])

    cdef inline bint _is_live(self, const Entry* entry) noexcept nogil:
        cdef Chunk* chunk = self._find(entry.id)                     # I3
        cdef int64_t k = entry.id & (CHUNK - 1)
        return (
            chunk != NULL
            and chunk.seq[k] == entry.seq
            and not bit(chunk.held, k)
            and not bit(chunk.cancelled, k)
        )

    cdef inline void _entry_gone(self, const Entry* entry) noexcept nogil:
        """A dead entry has left the heap: if its slot was only waiting for that, free it (I2)."""
        cdef Chunk* chunk = self._find(entry.id)
        cdef int64_t k = entry.id & (CHUNK - 1)
        if chunk != NULL and chunk.seq[k] == entry.seq and bit(chunk.cancelled, k) and not bit(chunk.held, k):
            self._free_slot(chunk, k)

    cdef inline void _prune(self) noexcept nogil:
        """Drop dead entries from the root until it is live or the heap is empty."""
        cdef Entry entry
        while self._n > 0 and not self._is_live(&self._heap[0]):
            entry = self._heap[0]
            self._drop_root()
            self._entry_gone(&entry)

    cdef void _rebuild(self) noexcept nogil:
        """Leave the dead out: O(n), paid for by the n / 2 cancels since the last one."""
        cdef int64_t k, kept = 0
        for k in range(self._n):
            if self._is_live(&self._heap[k]):
                self._heap[kept] = self._heap[k]
                kept += 1
            else:
                self._entry_gone(&self._heap[k])
        self._n = kept
        heapify(self._heap, kept)

    cdef int64_t _count_due(self, int64_t now, int64_t limit) noexcept nogil:
        """How many entries are due, dead ones too, counted up to `limit`: the due ones are a tree at the root."""
        cdef int64_t k = 0, count = 0
        while k < self._n and count < limit:
            if self._heap[k].run_at <= now:
                count += 1
                k = ARITY * k + 1 if ARITY * k + 1 < self._n else self._following(k)
            else:
                k = self._following(k)
        return count

    cdef inline int64_t _following(self, int64_t k) noexcept nogil:
        """The node after k and its subtree, in preorder; _n when there is none."""
        while k > 0:
            if (k - 1) % ARITY != ARITY - 1 and k + 1 < self._n:
                return k + 1
            k = (k - 1) // ARITY
        return self._n

    cdef int64_t _pop_block(self, int64_t now, int64_t limit, Entry* out) noexcept nogil:
        """Pop up to `limit` due timers one by one; how many."""
        cdef int64_t k = 0
        while k < limit:
            self._prune()
            if self._n == 0 or self._heap[0].run_at > now:
                break
            out[k] = self._heap[0]
            self._drop_root()
            self._live -= 1
            out[k].id = self._part(out[k].id)
            k += 1
        return k

    cdef int64_t _sweep_block(self, int64_t now, int64_t limit, int64_t due, Entry* out) noexcept nogil:
        """The same where `due` entries are, dead ones included: parted from the rest and sorted, if that is cheaper."""
        cdef int64_t i, k = 0, kept = 0
        if due <= FEW or due < self._n >> 3 or due >= limit:
            return self._pop_block(now, limit, out)
        for i in range(self._n):
            if not self._is_live(&self._heap[i]):
                self._entry_gone(&self._heap[i])
            elif self._heap[i].run_at <= now:
                out[k] = self._heap[i]
                k += 1
            else:
                self._heap[kept] = self._heap[i]
                kept += 1
        if not sort_entries(out, k):
            for i in range(k):              # no memory: put them back, they can still be popped
                self._heap[kept + i] = out[i]
            self._n = kept + k
            heapify(self._heap, self._n)
            return self._pop_block(now, limit, out)
        self._n = kept
        heapify(self._heap, kept)
        self._live -= k
        for i in range(k):
            out[i].id = self._part(out[i].id)
        return k

    # ------------------------------------------------------------ timers that are held; caller holds the lock

    cdef inline uint64_t _new_seq(self, int priority) noexcept nogil:
        self._counter += 1
        return <uint64_t>(MAX_PRIORITY - priority) << 52 | self._counter

    cdef int64_t _occupy(self, int priority, object item) noexcept:
        """Take a slot, HELD with a ticket, where `_has_room(1)`; its id, or a code."""
        cdef int64_t timer_id = self._take_slot(item is not None)
        cdef Chunk* chunk
        if timer_id < 0:
            return timer_id
        chunk = self._find(timer_id)
        if item is not None:
            Py_INCREF(item)
            chunk.items[timer_id & (CHUNK - 1)] = <PyObject*>item
        chunk.seq[timer_id & (CHUNK - 1)] = self._new_seq(priority)
        clear_bit(chunk.cancelled, timer_id & (CHUNK - 1))
        self._held += 1
        return timer_id

    cdef int64_t _add(self, int64_t run_at, int priority, object item) noexcept:
        """Add a waiting timer where `_has_room(1)`; its id, or a code."""
        cdef int64_t timer_id = self._occupy(priority, item)
        cdef uint64_t seq
        if timer_id >= 0:
            seq = self._find(timer_id).seq[timer_id & (CHUNK - 1)]
            self._held -= 1
            self._live += 1
            self._arm_slot(timer_id, seq)
            self._push(run_at, seq, timer_id)
        return timer_id

    cdef int64_t _next(self) noexcept nogil:
        """The earliest run_at; NEVER when nothing waits."""
        self._prune()
        return self._heap[0].run_at if self._n > 0 else NEVER

    cdef int64_t _last_waiting(self) noexcept nogil:
        """The id of some waiting timer, -1 if there is none: the last in the heap, so that to disarm all is O(n)."""
        while self._n > 0:
            if self._is_live(&self._heap[self._n - 1]):
                return self._heap[self._n - 1].id
            self._n -= 1
            self._entry_gone(&self._heap[self._n])
        return -1

    cdef bint _take_due(self, int64_t now, Entry* out) noexcept nogil:
        """Pop the earliest timer if it is due: WAITING -> HELD. It keeps its ticket, and `out` is its entry."""
        self._prune()
        if self._n == 0 or self._heap[0].run_at > now or self._heap[0].run_at == NEVER:
            return False
        out[0] = self._heap[0]
        self._drop_root()
        self._live -= 1
        self._held += 1
        set_bit(self._find(out.id).held, out.id & (CHUNK - 1))
        return True

    cdef void _rearm(self, int64_t timer_id, int64_t run_at) noexcept nogil:
        """Arm a held timer that has a ticket (I5 keeps room), or move a waiting one where `_has_room(1)`.

        It goes behind equals and keeps its priority.
        """
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef uint64_t seq
        self._counter += 1
        seq = (chunk.seq[k] & ~COUNTER_MASK) | self._counter
        if bit(chunk.held, k):
            self._held -= 1
            self._live += 1
        self._arm_slot(timer_id, seq)
        self._push(run_at, seq, timer_id)

    cdef bint _disarm(self, int64_t timer_id) noexcept nogil:
        """Take the ticket of a waiting or held timer away, for good: its entries are dead. True: it was waiting.

        The id stays known until `_release`. The caller sees to `_crowded`.
        """
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef bint waited = not bit(chunk.held, k)
        if waited:
            self._live -= 1
            set_bit(chunk.held, k)
        else:
            self._held -= has_ticket(chunk.seq[k])
        chunk.seq[k] = NO_TICKET
        return waited

    cdef void _hold(self, int64_t timer_id) noexcept nogil:
        """WAITING -> HELD with a new ticket: its entry is dead, and it may be armed again. Nothing, if it is held.

        Where the heap has no room to keep for it (I5), the dead are left out now: one place at least is freed by that.
        """
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        if bit(chunk.held, k):
            return
        self._counter += 1
        chunk.seq[k] = (chunk.seq[k] & ~COUNTER_MASK) | self._counter
        set_bit(chunk.held, k)
        self._live -= 1
        self._held += 1
        if not self._has_room(0):
            self._rebuild()

    cdef int64_t _take_due_id(self, int64_t now) noexcept nogil:
        """As `_take_due`, where the id is enough; -1 if nothing is due."""
        cdef Entry entry
        return entry.id if self._take_due(now, &entry) else -1

    cdef list _snapshot(self):
        """The items of all waiting and held timers, in no order. Locks, and allocates outside of that."""
        cdef int64_t page, k, found, room
        cdef Chunk* chunk
        cdef list items
        while True:
            with self.lock:
                room = self._item_chunks * CHUNK
            items = [None] * room
            found = 0
            with self.lock:
                if self._item_chunks * CHUNK <= room:
                    for page in range(self._page_count):
                        chunk = self._pages[page].chunk
                        if chunk == NULL or chunk.items == NULL:
                            continue
                        for k in range(CHUNK):
                            if chunk.items[k] != NULL:
                                items[found] = <object>chunk.items[k]
                                found += 1
                    room = 0
            if room == 0:
                del items[found:]
                return items

    cdef object _release(self, int64_t timer_id):
        """HELD -> FREE; the item, for the caller to drop after the lock is given back."""
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef PyObject* item = self._take_item(timer_id)
        self._held -= has_ticket(chunk.seq[k])
        self._free_slot(chunk, k)
        return adopt(item)

    # ------------------------------------------------------------ memory; not under the lock

    cdef int _make_room(self, int64_t extra) except -1:
        """Make sure of room for `extra` more entries, unless others take it meanwhile (the caller looks again).

        Leaving dead entries out comes first where they are a quarter: they must not make the heap grow (promise 11).
        """
        cdef int64_t wanted, capacity
        cdef bint rebuild, long_, pages
        with self.lock:
            rebuild = self._n > FEWEST and self._n - self._live > self._n >> 2
            long_ = self._n >= LONG
            if rebuild and not long_:
                self._rebuild()
        if rebuild and long_:
            with nogil:
                with self.lock:
                    self._rebuild()
        with self.lock:
            capacity = self._capacity
            wanted = self._n + self._held + extra
            pages = self._has_pages(extra) or self._grow_pages(extra)
        if not pages:
            raise_add_error(NO_MEMORY)
        if wanted > capacity:
            self._resize(max(wanted, FEWEST, capacity + (capacity if capacity < 1 << 20 else capacity >> 1)))
        return 0

    cdef int _resize(self, int64_t capacity) except -1:
        """Move the heap to a new array of `capacity` entries, if what is in it fits by then."""
        # numpy allocates, and may collect, without the lock; only pointers are exchanged under it.
        cdef cnp.ndarray fresh = np.empty(capacity, dtype=ENTRY)
        cdef PyObject* owner = <PyObject*>fresh
        Py_INCREF(fresh)
        if capacity >= LONG:
            with nogil:
                self._exchange(&owner, <Entry*>cnp.PyArray_DATA(fresh), capacity)
        else:
            self._exchange(&owner, <Entry*>cnp.PyArray_DATA(fresh), capacity)
        Py_XDECREF(owner)
        return 0

    cdef void _exchange(self, PyObject** owner, Entry* heap, int64_t capacity) noexcept nogil:
        with self.lock:
            if self._n + self._held <= capacity:
                if self._n > 0:
                    memcpy(heap, self._heap, self._n * sizeof(Entry))
                self._heap = heap
                self._capacity = capacity
                owner[0], self._array = self._array, owner[0]

    cdef int _tidy(self) except -1:
        """Do what `_crowded` asks for: leave the dead out, give memory back. Called after all that removes."""
        cdef bint long_, crowded, oversized
        cdef int64_t needed
        cdef Chunk* dropped = NULL
        with self.lock:
            crowded = self._crowded()
            long_ = self._n >= LONG
            if crowded and not long_:
                dropped = self._sweep()
        if not crowded:
            return 0
        if long_:
            with nogil:
                with self.lock:
                    dropped = self._sweep()
        free_chunks(dropped)
        with self.lock:
            needed = self._n + self._held
            oversized = self._oversized()
        if oversized:
            try:
                self._resize(max(FEWEST, needed + (needed >> 1)))
            except MemoryError:
                pass            # the large array serves as well
        return 0

    cdef Chunk* _sweep(self) noexcept nogil:
        if self._n > 2 * self._live or self._oversized():
            self._rebuild()
        return self._trim() if self._roomy() else NULL


cdef void free_chunks(Chunk* chunk) noexcept:
    """Free what `_trim` parted with. It takes the GIL, and so no collector looks on (I7)."""
    cdef Chunk* following
    while chunk != NULL:
        following = chunk.next
        PyMem_RawFree(chunk.items)
        PyMem_RawFree(chunk)
        chunk = following


# ---------------------------------------------------------------- the collector
#
# A job refers to a bound method, that to its owner, the owner to the scheduler and so to the timetable: without a
# traverse that shows the items such a ring would never be freed. Cython writes one for Python attributes alone, so
# these stand in for it. They take no lock, since who holds it may be waiting for the GIL, which the collector has: they
# rely on I7. A reference that `_add_block` has not yet stored, or has just stored, is held by its caller's list too.


cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject*, void*) noexcept
    ctypedef int (*traverseproc)(PyObject*, visitproc, void*) noexcept
    ctypedef int (*inquiry)(PyObject*) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
        inquiry tp_clear


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef Page* pages = (<Timetable>self)._pages
    cdef int64_t page, k
    cdef int answer
    cdef Chunk* chunk
    for page in range((<Timetable>self)._page_count):
        chunk = pages[page].chunk
        if chunk == NULL or chunk.items == NULL:
            continue
        for k in range(CHUNK):
            if chunk.items[k] != NULL:
                answer = visit(chunk.items[k], arg)
                if answer != 0:
                    return answer
    return cython_traverse(self, visit, arg)


cdef int clear_items(PyObject* self) noexcept:
    cdef int64_t page, k
    cdef Chunk* chunk
    cdef PyObject* item
    for page in range((<Timetable>self)._page_count):
        for k in range(CHUNK):
            chunk = (<Timetable>self)._pages[page].chunk        # looked up each time: who goes may call back
            if chunk == NULL or chunk.items == NULL:
                break
            item = chunk.items[k]
            chunk.items[k] = NULL
            Py_XDECREF(item)
    return cython_clear(self)


cdef traverseproc cython_traverse = (<PyTypeObject*>Timetable).tp_traverse
cdef inquiry cython_clear = (<PyTypeObject*>Timetable).tp_clear
(<PyTypeObject*>Timetable).tp_traverse = traverse
(<PyTypeObject*>Timetable).tp_clear = clear_items
