# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False, nonecheck=False
# nonecheck, which a debug build turns on elsewhere: with it Cython 3.3.1 refuses `self.n += 1` without the GIL.
"""A queue of timers: which id is due next.

The timetable orders integers. It reads no clock, starts no thread and calls no user code.

What waits are triples (run_at, seq, id), 24 bytes each: up to a thousand in an implicit 4-ary heap, in the buffer of a
numpy array; beyond that the far ones in a tree, see `_queue.pxd`. No Python object is in either: what
belongs to a timer lies by *slot*, in chunks of 1,024 slots, 12 bytes a slot and 8 more once a chunk holds an item; what
few and scattered timers are left of many lies in the annex, see `_slots.pxd`. An id is `generation << 32 | slot`, so a
stale one is refused by one comparison, without a dict (62 bytes a timer and a cache miss less).

Invariants, asserted by `check()`; those of the queue are Q1-Q3 in `_queue.pxd`:

    I1  For every entry of the heap but its root: parent <= entry by (run_at, seq). All seq differ.
    I2  A slot is in one of four states, by its bits (held, cancelled):
        WAITING (0, 0) it has exactly one live entry in the queue, with seq == slot.seq;
        HELD    (1, 0) it has none here; its owner keeps the id. With a ticket (slot.seq is a seq that was given out)
                       the owner may arm it again, without one it only waits to be released;
        DOOMED  (0, 1) cancelled: its entry is still here, and when that leaves the slot is free;
        FREE    (1, 1) it is on its chunk's free list, or retired.
    I3  An entry is live if and only if its slot is WAITING, of the same generation, and slot.seq == entry.seq. Whatever
        happens to the slot later, an entry that is dead stays dead: no seq is given out twice.
    I4  _live counts the WAITING slots, _held the HELD ones with a ticket; at rest at most half of the entries are dead.
    I5  The heap has room for _held more: a held timer can always be armed again, whether or not there is memory.
    I6  A generation is never used twice for a slot: not after wrapping (the slot is retired), and not after its chunk
        was given back (the page remembers where to go on; for all pages past the last one, _first_gen does).
    I7  What the collector walks through (pages, chunks, their items, the annex) is moved and freed only by a thread
        that has the GIL (on a free-threaded build: that is attached), and filled before it is published. Not for
        `check()` to see.
    I8  The record of a slot that is not FREE lies in one place: in the chunk of its page, or, while that has none, in
        the annex, where `annex_find` finds it. A page counts its slots that are away; the annex is at most 7/8 filled.

Cost, n entries: add O(1) moves of an entry from leaf to leaf, amortised, and O(log) of the thousand in the heap for
what is near; pop the same and the sorting of the run, O(1) an entry for times that are spread; both a walk down the
tree, O(log32 n). Cancel one bit, and O(1) amortised for the rebuild that runs when more than half of the entries are
dead; reschedule as add; k at once k times as much, in a loop without the GIL. A chunk moves to the annex after at least
three quarters of it were freed, and is made again when all others are full: O(1) for each of those.

The lock is held for some 100 us at most: one step is short, and what is long is done in rounds of `LONG` steps with the
lock given back between them. So others may see a part of it: what is added at once, in the order of the block; what is
taken at once is taken as by as many pops. In one hold, and so in O(n), are only `clear`, `_snapshot`, `_trim`, which
passes over the pages and makes the annex anew, and dead entries that come first in a row, at most half of all.
With 10 M waiting and one hour of times the longest pop took 0.18 ms of CPU time, where buckets took 10 ms; with
1 M, on a machine with five busy processes a core, the latest run of 3,000 was 11 ms late, where with them 150-177 ms.
A mutex that is free for a moment goes to who is awake, not to who waits for it: see `give_way`.

The GIL is given up around work that is long enough to pay for it (`LONG`), never around a step: giving it up and
taking it back costs more than the step, and up to 5 ms beside a busy thread. The lock is then taken and given back
inside the stretch without the GIL, so nobody waits for the GIL while holding the lock.

Tried, with the time a timer at 1 M from Python, CPython 3.13; each line against the state before it, in one run:

    one 4-ary heap of all                        pop 531-560 ns, hold 682-722 ns; bulk add + pop 125-132 ns
    near heap + radix buckets                    pop 315-353, hold 401-456; bulk add + pop 103-107
    slot as one record, fetched ahead            pop 208-222, hold 303-356
    a bulk pop fetches two blocks ahead          bulk pop 54-62, where 73-87 without, in turn on a busy machine
    dropped: blocks of 42 entries                bulk pop 82-96 beside 85-105, before slots were fetched ahead: within
                                                 the noise, for twice the memory in buckets of a few
    dropped: an LSD radix sort of all due        35 ns an entry; by buckets, MSD and insertion, about 15 (perf's share)

From here on CPU time, on a machine with five busy processes a core, which makes every miss dearer; hold also at 10 k:

    near heap + radix buckets, as above          add 81-92, pop 261-300, hold 350-409, at 10 k 224-265; bulk add + pop
                                                 102-114; but the first pop splits up to all in one hold of the lock
    a tree of leaves to 1,024, the lowest sorted add 107-159, pop 164-223, hold 461-680, at 10 k 186-202; bulk 99-113
    and an inbox before it                       add 97-120, pop 190-206, hold 333-376, at 10 k 194-202; bulk 100-118
    a run sorted by one insertion at the end,    pop 180, hold at 10 k 180, where 247 and 232 in buckets in the same run
    not part by part
    dropped: 4 bits a digit                      add 147, hold 626 without an inbox, where 6 bits took 121 and 462
    dropped: 6 bits                              as 5 within the noise; leaves of 16 after a burst, half of 5's
    dropped: leaves to 8,192 or 16,384, burst    fewer places to add to: hold 386-547 without an inbox; but a burst held
    when their turn comes                        the lock for 190-510 us
    dropped: a block that knows how many are     add 150, since the place of the next entry was a miss of its own
    in it
    not done: huge pages for blocks and slots    hold 411-330 instead of 525-503, pop 156-151 instead of 209-193, before
                                                 there was an inbox (glibc.malloc.hugetlb=1, a setting of the process)

By callgrind, 100 k timers at random times, an add takes 665 instructions, where 568 with buckets, and a pop 960, where
881: what the tree spares is not work but waiting, for memory and for the lock.

The timers' side is as in Go (a 4-ary heap, lazily deleted), with OpenJDK's seq for FIFO among equals
(ScheduledThreadPoolExecutor); slot + generation is a slotmap.
"""

import operator
from itertools import islice

import numpy as np

cimport numpy as cnp
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MIN, int32_t
from libc.string cimport memcpy, memset

from ._collector cimport PyTypeObject, inquiry, traverseproc, visitproc
from ._heap cimport ARITY, NEVER, Entry, before, heapify, sift_up
from ._queue cimport (
    BLOCK,
    FAN,
    LEAF,
    NEAR,
    NODE,
    Block,
    Child,
    Node,
    Queue,
    Way,
    cut_leaf,
    digit_of,
    end_at,
    filled,
    front,
    give_block,
    is_behind,
    is_settled,
    leaf_behind,
    merge,
    next_run,
    put_far,
    queue_count,
    queue_init,
    queue_push,
    queue_release,
    queue_remove,
    queue_retire,
    queue_spread,
)
from ._slots cimport (
    CHUNK,
    CHUNK_BITS,
    NOBODY,
    THIN,
    Chunk,
    Slot,
    annex_bytes,
    annex_find,
    annex_is_light,
    annex_release,
    annex_reserve,
    annex_take_in,
    bit,
    chunk_bytes,
    clear_bit,
    free_chunk,
    host_count,
    is_free,
    make_chunk,
    move_slot,
    set_bit,
)

cnp.import_array()

ENTRY = np.dtype([("run_at", np.int64), ("seq", np.uint64), ("id", np.int64)])

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept nogil
    void Py_SET_SIZE(object, Py_ssize_t) noexcept

cdef extern from *:
    """
    #define NEXTDUE_PUBLISH() __atomic_thread_fence(__ATOMIC_RELEASE)
    /* The empty asm is what keeps a function that only prefetches: gcc takes it for one without effects. */
    #define NEXTDUE_PREFETCH(address) do { __builtin_prefetch(address, 1); __asm__ volatile(""); } while (0)
    #ifndef NEXTDUE_DEBUG
    #define NEXTDUE_DEBUG 0
    #endif
    /* Who waits for the lock is not woken in time to get it between two rounds. From 3.13 on it is handed over. */
    #if PY_VERSION_HEX < 0x030D0000
    #include <unistd.h>
    #define NEXTDUE_GIVE_WAY(round) do { if ((round) % 8 == 7) usleep(50); } while (0)
    #else
    #define NEXTDUE_GIVE_WAY(round) ((void)(round))
    #endif
    """
    const bint DEBUG "NEXTDUE_DEBUG"
    void give_way "NEXTDUE_GIVE_WAY"(int64_t round) noexcept nogil      # between rounds of the lock, without the GIL
    void prefetch "NEXTDUE_PREFETCH"(const void* address) noexcept nogil
    void publish "NEXTDUE_PUBLISH"() noexcept nogil     # what is written before it is seen before what comes after

cdef enum:
    ENTRY_STRIDE = sizeof(Entry) // sizeof(int64_t)
    FEWEST = 64                 # entries that the heap has room for at least
    ROOM = 1024                 # and that it needs room for beside buckets: NEAR, and some
    FEW_FAR = 2 * NEAR // 3     # timers below which buckets are given up
    LONG = 4096                 # steps of one round of the lock, some 100 us; beyond them the GIL is given up too
    FEW = 64                    # due timers that are taken without a second look
    AHEAD = 12                  # timers of the run whose slots are fetched before their turn
    BATCH = 256                 # references that are moved out in one round of the lock
    FEWEST_PAGES = 1024         # pages that are not worth a thought: those of a million slots, 16 kB
    PAGES_OF_A_CHUNK = 64       # and that a chunk in use may have: 1 kB beside 12
    NO_ROOM = -3                # beside NO_MEMORY and TOO_MANY: grow the heap, then try again

cdef int64_t SLOT_MASK = 0xFFFFFFFF
cdef int64_t MAX_SLOTS = 1 << 31
cdef int64_t MAX_PAGES = 1 << 31 - CHUNK_BITS
LAST_GEN = 0x7FFFFFFF                                  # ids stay positive
cdef uint64_t COUNTER_MASK = (1ULL << 52) - 1
# A slot's seq doubles as its free link or NO_TICKET. Counters begin above both, so no entry can ever match them (I3).
cdef uint64_t NO_TICKET = CHUNK + 1
cdef uint64_t FIRST_COUNTER = 1ULL << 32
cdef Entry LEAST = Entry(INT64_MIN, 0, 0)               # no entry is less, or equal
cdef object ZERO = 0
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
    cdef cnp.ndarray result
    cdef int64_t* into
    if not isinstance(values, np.ndarray):
        try:
            iter(values)
            size = operator.length_hint(values)
        except TypeError:
            raise TypeError(f"{name} must be int64[n] or a sequence of ints, got {values!r}") from None
        if size > MAX_SLOTS:
            raise ValueError(f"{name} must be at most 2**31 ints, got {size}")
        ints = list(values)
        for k in range(len(ints)):
            if type(ints[k]) is not int:
                ints[k] = integer(ints[k], f"{name}[{k}]")
        result = np.empty(len(ints), dtype=np.int64)
        into = <int64_t*>cnp.PyArray_DATA(result)
        for k in range(len(ints)):
            into[k] = instant(ints[k], name)
        return result
    values = np.asarray(values)  # of the base class: one derived from it may say anything about itself
    if values.dtype != np.int64 or not values.dtype.isnative:
        raise TypeError(f"{name} must be int64[n], got {values.dtype!r}")
    if values.ndim != 1:
        raise ValueError(f"{name} must be int64[n], got shape {values.shape!r}")
    if values.size > MAX_SLOTS:  # of a view it may be more than there is memory for
        raise ValueError(f"{name} must be at most 2**31 ints, got {values.size}")
    return np.array(values, dtype=np.int64, order="C")


cdef object iterator(object items):
    try:
        return iter(items)
    except TypeError:
        raise TypeError(f"items must be an iterable or None, got {items!r}") from None


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


# ---------------------------------------------------------------- what a bulk pop takes


cdef int reserve(Taken* taken, cnp.ndarray ids, list items) except -1:
    """Make places for more, few at first: in `ids`, and in `items` unless that is None. If it raises, `taken` holds."""
    cdef int64_t room = min(max(taken.n + (LONG if taken.n > 0 else FEW), taken.n + (taken.n >> 1)), taken.limit)
    if items is not None:
        items += [None] * (room - len(items))
    ids.resize(room, refcheck=False)
    taken.ids = <int64_t*>cnp.PyArray_DATA(ids)
    taken.room = room
    return 0


cdef void cut_list(list items, Py_ssize_t n):
    """Let the places behind the first n go, all of them None."""
    cdef Py_ssize_t surplus = len(items) - n
    try:
        del items[n:]
    except MemoryError:                 # even this takes memory
        for _ in range(surplus):
            Py_DECREF(None)
        Py_SET_SIZE(items, n)


cdef void cut_array(cnp.ndarray array, Py_ssize_t n):
    """Let all behind the first n go."""
    try:
        array.resize(n, refcheck=False)
    except MemoryError:
        cnp.PyArray_DIMS(array)[0] = n


# ---------------------------------------------------------------- the lock


cdef inline void expect_lock(Timetable table) noexcept nogil:
    """In a debug build: the caller holds the lock, or at least somebody does."""
    if DEBUG and not table._guarded and not table.lock.locked():
        Py_FatalError("the lock of a timetable must be held")


# ---------------------------------------------------------------- bits of a slot


cdef inline bint has_ticket(uint64_t seq) noexcept nogil:
    return (seq & COUNTER_MASK) >= FIRST_COUNTER


cdef inline bint has_id(const Chunk* chunk, int64_t k, int64_t timer_id) noexcept nogil:
    return chunk != NULL and <int64_t>chunk.slots[k].gen == timer_id >> 32


cdef inline bint is_waiting(const Chunk* chunk, int64_t k, int64_t timer_id) noexcept nogil:
    """Whether the slot that `_find` has found is that of the id, and WAITING."""
    return has_id(chunk, k, timer_id) and not bit(chunk.held, k) and not bit(chunk.cancelled, k)


cdef inline bint has_item(const Chunk* chunk, int64_t k) noexcept nogil:
    return chunk.items != NULL and chunk.items[k] != NULL


cdef inline void arm_slot(Chunk* chunk, int64_t k, uint64_t seq) noexcept nogil:
    """FREE (just taken) or HELD -> WAITING."""
    chunk.slots[k].seq = seq
    clear_bit(chunk.held, k)
    clear_bit(chunk.cancelled, k)


cdef inline PyObject* take_item(Chunk* chunk, int64_t k) noexcept nogil:
    """Move the item out; the caller owns the reference. NULL: there was none."""
    cdef PyObject* item
    if chunk.items == NULL:
        return NULL
    item = chunk.items[k]
    chunk.items[k] = NULL
    return item


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
        self._first_gen = 1             # so that no id is a bare slot number
        self._thin_limit = 1
        queue_init(&self._q)

    def __init__(self, *, capacity=0):
        cdef int64_t wanted = instant(capacity, "capacity")
        if wanted < 0 or wanted > MAX_SLOTS:
            raise ValueError(f"capacity must be from 0 to 2**31, got {capacity!r}")
        self._make_room(max(wanted, 1))

    def __reduce__(self):
        raise TypeError("a timetable cannot be copied or pickled")

    def __dealloc__(self):
        cdef int64_t n, k
        cdef Chunk* chunk
        for n in range(-host_count(&self._annex), self._page_count):
            chunk = self._chunk_at(n)
            if chunk == NULL:
                continue
            for k in range(chunk.size if chunk.items != NULL else 0):
                Py_XDECREF(chunk.items[k])
            if n >= 0:
                free_chunk(chunk)
        annex_release(&self._annex)
        PyMem_RawFree(self._pages)
        queue_release(&self._q)
        PyMem_RawFree(self._raw)
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
        cdef int rank = 0 if priority is ZERO else priority_of(priority)
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
        cdef int64_t k
        cdef bint crowded
        with self.lock:
            chunk = self._find(wanted, &k)
            if not is_waiting(chunk, k, wanted):
                return False
            set_bit(chunk.cancelled, k)
            self._live -= 1
            item = take_item(chunk, k)
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
        cdef Entry* first
        cdef PyObject* item = NULL
        cdef Chunk* chunk
        cdef int64_t k
        cdef bint found, crowded = False
        with self.lock:
            first = self._first()
            found = first != NULL
            if found:
                entry = first[0]
                self._remove(first)
                self._live -= 1
                chunk = self._find(entry.id, &k)
                item = take_item(chunk, k)
                self._free_slot(chunk, k)
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
        Complexity: k times `add`, and less for a large k.
        Thread-safety: long work runs without the GIL, in rounds; others may meanwhile see the first of the timers.
        """
        cdef cnp.ndarray at = int64_array(run_at, "run_at")
        cdef int64_t k = at.shape[0]
        cdef cnp.ndarray ids = np.empty(k, dtype=np.int64)
        cdef int64_t* source = <int64_t*>cnp.PyArray_DATA(at)
        cdef int64_t* target = <int64_t*>cnp.PyArray_DATA(ids)
        cdef int64_t i, code, done = 0, with_items = 0
        if items is not None:
            items = list(islice(iterator(items), k + 1))
            if len(items) != k:
                got = len(items) if len(items) < k else "more"          # they may have no end
                raise ValueError(f"items must be {k} objects, as many as run_at, got {got}")
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
                code = NO_MEMORY
                if k >= LONG:
                    with nogil:
                        code = self._add_block(source, target, k, refs, &done, False)
                if code in (NO_MEMORY, TOO_MANY):       # or only for want of the GIL
                    code = self._add_block(source, target, k, refs, &done, True)
                if code != NO_ROOM:
                    break
                self._make_room(k - done)
            if code < 0:
                raise_add_error(code)
        except BaseException:
            for i in range(done, k if refs != NULL else 0):
                Py_XDECREF(refs[i])
            self._cancel_block(target, done, &with_items)
            self._release_block(target, with_items, 1, None)
            self._tidy()
            raise
        finally:
            PyMem_RawFree(refs)
        return ids

    cdef int64_t _add_block(
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done, bint attached
    ) noexcept nogil:
        """Add what is not `done`, round by round. 0, or NO_ROOM, NO_MEMORY, TOO_MANY. `attached`: with the GIL."""
        cdef int64_t count, code
        while done[0] < k:
            count = min(k - done[0], LONG)
            with self.lock:
                code = self._add_round(
                    source + done[0], target + done[0], count, refs + done[0] if refs != NULL else NULL, done, attached
                )
            if code < 0:
                return code
            give_way(done[0] // LONG)
        return 0

    cdef int64_t _add_round(
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done, bint attached
    ) noexcept nogil:
        """Add k timers. Unless it is 0, the result is as above, and those that were added are the first ones."""
        cdef int64_t i, taken, put
        if not self._has_room(max(1, min(k, NEAR - self._q.n))) or not self._has_pages(k):
            return NO_ROOM
        for taken in range(k):
            target[taken] = self._take_slot(refs != NULL and refs[taken] != NULL, attached)
            if target[taken] < 0:
                for i in range(taken):
                    self._free_slot(self._home(target[i]), target[i] & (CHUNK - 1))
                return target[taken]
        put = self._put_block(source, target, k)
        for i in range(put if refs != NULL else 0):
            if refs[i] != NULL:
                self._home(target[i]).items[target[i] & (CHUNK - 1)] = refs[i]
        for i in range(put, k):
            self._free_slot(self._home(target[i]), target[i] & (CHUNK - 1))
        self._live += put
        done[0] += put
        return 0 if put == k else NO_MEMORY

    cdef int64_t _put_block(self, const int64_t* at, const int64_t* ids, int64_t k) noexcept nogil:
        """Arm k slots and put their entries in; how many, fewer where there is no memory."""
        cdef Queue* q = &self._q
        cdef Entry entry
        cdef int64_t i
        if q.run == NULL and q.n + k < NEAR and q.n + self._held + k <= q.capacity:
            for i in range(k):
                entry = Entry(at[i], self._new_seq(0), ids[i])
                arm_slot(self._home(ids[i]), ids[i] & (CHUNK - 1), entry.seq)
                q.heap[q.n + i] = entry
            q.n += k
            if k >= q.n >> 3:
                heapify(q.heap, q.n)
            else:
                for i in range(q.n - k, q.n):
                    sift_up(q.heap, i, q.heap[i])
            return k
        entry = Entry(at[0], <uint64_t>MAX_PRIORITY << 52 | self._counter, 0)      # less than all of them
        for i in range(1, k):
            entry.run_at = min(entry.run_at, at[i])
        if (q.n + k >= NEAR or q.n + self._held + k >= q.capacity) and not is_behind(q, &entry):
            queue_spread(q, &entry)             # all go to the tree, without a heap's steps
        for i in range(k):
            entry = Entry(at[i], self._new_seq(0), ids[i])
            if not is_behind(q, &entry) or not put_far(q, &entry):
                if q.n >= NEAR:
                    queue_spread(q, NULL)
                if q.n + self._held + 1 >= q.capacity:
                    return i
                queue_push(q, &entry)
            arm_slot(self._home(ids[i]), ids[i] & (CHUNK - 1), entry.seq)
        return k

    def cancel_many(self, timer_ids):
        """Cancel each of the timers; return how many were waiting.

        Args:
            timer_ids: int64[n], or a sequence of ints.

        Complexity: O(n) + one rebuild at most.
        Thread-safety: long work runs without the GIL, in rounds.
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
        """Cancel, round by round; ids whose item is still to be released are left at the front, as `_part` marks."""
        cdef int64_t i, j, timer_id, start = 0, count = 0
        cdef Chunk* chunk
        while start < k:
            with self.lock:
                for i in range(start, min(start + LONG, k)):
                    timer_id = ids[i]
                    chunk = self._find(timer_id, &j)
                    if not is_waiting(chunk, j, timer_id):
                        continue
                    count += 1
                    self._live -= 1
                    if has_item(chunk, j):
                        ids[with_items[0]] = self._part(timer_id)
                        with_items[0] += 1
                    else:
                        set_bit(chunk.cancelled, j)
            start += LONG
            give_way(start // LONG)
        return count

    cdef inline int64_t _part(self, int64_t timer_id) noexcept nogil:
        """Part with a timer that is no longer WAITING by the count.

        Its id, if the slot is free now; ~id, if the slot is HELD because an item is in it, which only a thread with
        the GIL may take out (`_release_block`).
        """
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        if not has_item(chunk, k):
            self._free_slot(chunk, k)
            return timer_id
        set_bit(chunk.held, k)
        chunk.slots[k].seq = NO_TICKET
        return ~timer_id

    cdef int _release_block(self, int64_t* ids, int64_t k, int64_t stride, list out) except -1:
        """Free the slots of marked ids and unmark them; items go to their places in `out`, or are dropped."""
        cdef int64_t i, j, timer_id, start = 0, stop
        cdef Chunk* chunk
        cdef PyObject* items[BATCH]
        while start < k:
            stop = min(start + BATCH, k)
            with self.lock:
                for i in range(start, stop):
                    timer_id = ids[i * stride]
                    items[i - start] = NULL
                    if timer_id < 0:
                        ids[i * stride] = ~timer_id
                        chunk = self._find(~timer_id, &j)
                        items[i - start] = take_item(chunk, j)
                        self._free_slot(chunk, j)
            for i in range(start, stop):
                if out is None:
                    Py_XDECREF(items[i - start])
                elif items[i - start] != NULL:
                    out[i] = adopt(items[i - start])
            start = stop
        return 0

    def pop_due(self, now, limit=None):
        """Remove the timers with run_at <= now, at most `limit`, and return their items in order.

        Args:
            now: int; saturates. A timer at 2**63 - 1 is not due even then.
            limit: int, 0 or more; None or infinity for no limit.

        Complexity: that of k pops, without their calls. Should there be no memory for all, those are returned that
        there is memory for, and the rest waits.
        Thread-safety: long work runs without the GIL, in rounds, each of which takes what is the earliest then. What
        others add meanwhile may be taken, but no more in all than waited at first.
        """
        cdef Taken taken = Taken(NULL, 0, 0, limit_of(limit))
        cdef list items = []
        cdef cnp.ndarray ids = self._take_block(instant(now, "now"), &taken, items)
        self._release_block(<int64_t*>cnp.PyArray_DATA(ids), taken.n, 1, items)
        cut_list(items, taken.n)
        self._tidy()
        return items

    def pop_due_ids(self, now, limit=None):
        """Remove the timers with run_at <= now, at most `limit`, and return their ids in order; items are released.

        Returns: int64[k]. Complexity: as `pop_due`.
        """
        cdef Taken taken = Taken(NULL, 0, 0, limit_of(limit))
        cdef cnp.ndarray ids = self._take_block(instant(now, "now"), &taken, None)
        self._release_block(taken.ids, taken.n, 1, None)
        cut_array(ids, taken.n)
        self._tidy()
        return ids

    cdef cnp.ndarray _take_block(self, int64_t now, Taken* taken, list items):
        """Take what is due; the ids, marked by `_part`, in the array that `taken` points into.

        Nothing is taken before there is a place for it there and, unless that is None, in `items`.
        """
        cdef cnp.npy_intp none = 0
        cdef cnp.ndarray ids = cnp.PyArray_EMPTY(1, &none, cnp.NPY_INT64, False)
        cdef bint more
        now = min(now, NEVER - 1)
        more = self._drain(now, taken)
        while more:
            try:
                reserve(taken, ids, items)
            except MemoryError:
                if taken.n == 0:
                    raise MemoryError("no memory to take the due timers; they wait unchanged") from None
                break
            if taken.n < LONG:      # as far as is known this is short
                more = self._drain(now, taken)
                continue
            with nogil:
                while more and taken.n < taken.room:
                    more = self._drain(now, taken)
                    give_way(taken.n // LONG)
        return ids

    cdef bint _drain(self, int64_t now, Taken* out) noexcept nogil:
        """Lock, and take what is due and has a place, in order, a round at most. True: more is due, and wanted."""
        cdef Entry entry
        cdef Entry* first
        cdef int64_t stop
        with self.lock:
            out.limit = min(out.limit, out.n + self._live)      # so that it ends, however much others add
            stop = min(out.room, out.n + LONG)
            while out.n < out.limit:
                first = self._first()
                if first.run_at > now:
                    break
                if out.n == stop:
                    return True
                entry = first[0]
                self._remove(first)
                self._live -= 1
                out.ids[out.n] = self._part(entry.id)
                out.n += 1
        return False

    def clear(self):
        """Remove every timer; items are released. Ids given out before stay unknown for good. Complexity: O(n)."""
        # The queue is exchanged for an empty one in one round of the lock; the old one then serves as the list of what
        # is to be released.
        cdef int64_t capacity, count
        cdef bint long_, done = False
        cdef cnp.ndarray fresh
        cdef Queue old
        cdef Child* leaf
        cdef Block* block
        cdef Entry* raw = NULL
        cdef PyObject* owner = NULL
        cdef Way way
        cdef Entry behind = LEAST
        while not done:
            with self.lock:
                capacity = max(FEWEST, self._held + (self._held >> 1) + 1)
                long_ = queue_count(&self._q) >= LONG
            fresh = np.empty(capacity, dtype=ENTRY)
            Py_INCREF(fresh)
            Py_XDECREF(owner)
            owner = <PyObject*>fresh
            queue_init(&old)
            old.heap = <Entry*>cnp.PyArray_DATA(fresh)
            old.capacity = capacity
            if long_:
                with nogil:
                    done = self._clear_block(&owner, &raw, &old)
            else:
                done = self._clear_block(&owner, &raw, &old)
        if old.n > 0:
            self._release_block(&old.heap[0].id, old.n, ENTRY_STRIDE, None)
        if old.run_head < old.run_end:
            self._release_block(&old.run[old.run_head].id, old.run_end - old.run_head, ENTRY_STRIDE, None)
        if old.inbox_n > 0:
            self._release_block(&old.inbox[0].id, old.inbox_n, ENTRY_STRIDE, None)
        leaf = leaf_behind(&old, &behind, &way)
        while leaf != NULL:
            block = <Block*>leaf.part
            count = filled(leaf.count)
            while block != NULL:
                self._release_block(&block.entries[0].id, count, ENTRY_STRIDE, None)
                block = block.next
                count = BLOCK
            behind = end_at(&way)
            leaf = leaf_behind(&old, &behind, &way)
        queue_release(&old)
        PyMem_RawFree(raw)
        Py_XDECREF(owner)
        self._tidy()

    cdef bint _clear_block(self, PyObject** owner, Entry** raw, Queue* queue) noexcept nogil:
        """Lock, exchange the queue for an empty one, part with all that waited; their ids are in `queue` then.

        False: more timers are held than the new heap has room for (I5).
        """
        cdef Queue* q = &self._q
        cdef Child* leaf
        cdef Block* block
        cdef int64_t count
        cdef Way way
        cdef Entry behind = LEAST
        with self.lock:
            if self._held >= queue.capacity:
                return False
            self._part_all(q.heap, q.n)
            self._part_all(q.run + q.run_head, q.run_end - q.run_head)
            self._part_all(q.inbox, q.inbox_n)
            leaf = leaf_behind(q, &behind, &way)
            while leaf != NULL:
                block = <Block*>leaf.part
                count = filled(leaf.count)
                while block != NULL:
                    self._part_all(block.entries, count)
                    block = block.next
                    count = BLOCK
                behind = end_at(&way)
                leaf = leaf_behind(q, &behind, &way)
            self._live = 0
            q[0], queue[0] = queue[0], q[0]
            raw[0], self._raw = self._raw, NULL
            owner[0], self._array = self._array, owner[0]
        return True

    cdef void _part_all(self, Entry* entries, int64_t n) noexcept nogil:
        """Part with the live ones; what is left of a dead one is no id that `_release_block` would look at."""
        cdef int64_t i
        for i in range(n):
            if self._is_live(&entries[i]):
                entries[i].id = self._part(entries[i].id)
            else:
                self._entry_gone(&entries[i])
                entries[i].id = 0

    # ------------------------------------------------------------ looking

    def items(self):
        """Return the items of the waiting timers, in no order; a timer without an item has none here.

        Complexity: O(n).
        """
        return self._snapshot()

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
        """Memory of the arrays, in bytes: the queue, the slots, the references to items."""
        cdef int64_t total
        with self.lock:
            total = (
                self._q.capacity * <int64_t>sizeof(Entry)
                + (self._q.blocks + self._q.free_n) * <int64_t>sizeof(Block)
                + self._q.nodes * <int64_t>sizeof(Node)
                + (<int64_t>(2 * LEAF * sizeof(Entry)) if self._q.run != NULL else 0)
                + self._chunk_count * chunk_bytes(CHUNK)
                + self._item_chunks * <int64_t>(CHUNK * sizeof(PyObject*))
                + annex_bytes(&self._annex)
                + self._page_capacity * <int64_t>sizeof(Page)
            )
        return total

    def check(self):
        """Assert every invariant; for tests, with nobody else at work. Complexity: O(n log n)."""
        cdef int64_t k, n, page, live = 0, doomed_entries = 0, waiting = 0, doomed = 0, held = 0, chunks = 0
        cdef int64_t with_items = 0, thin = 0, open_ = 0, used, free
        cdef int64_t count, blocks = 0
        cdef Way way
        cdef Entry behind = LEAST
        cdef Chunk* chunk
        cdef Chunk* previous = NULL
        cdef Block* block
        cdef Child* leaf
        cdef str wrong = None
        cdef int64_t total = queue_count(&self._q)
        cdef cnp.ndarray array = np.empty(total, dtype=np.uint64)
        cdef uint64_t* seqs = <uint64_t*>cnp.PyArray_DATA(array)
        with self.lock:
            n = 0
            for k in range(min(self._q.n, total)):
                if k > 0 and not before(&self._q.heap[(k - 1) // ARITY], &self._q.heap[k]):
                    wrong = "I1: heap order"
                seqs[n] = self._q.heap[k].seq
                n += 1
                wrong = self._check_entry(&self._q.heap[k], &live, &doomed_entries) or wrong
            for k in range(self._q.run_head, self._q.run_end):
                if n < total:
                    seqs[n] = self._q.run[k].seq
                n += 1
                if k > self._q.run_head and not before(&self._q.run[k - 1], &self._q.run[k]):
                    wrong = "Q2: order of the run"
                if is_behind(&self._q, &self._q.run[k]):
                    wrong = "Q2: run and bound"
                wrong = self._check_entry(&self._q.run[k], &live, &doomed_entries) or wrong
            for k in range(self._q.inbox_n):
                if n < total:
                    seqs[n] = self._q.inbox[k].seq
                n += 1
                if not is_behind(&self._q, &self._q.inbox[k]):
                    wrong = "Q2: inbox and bound"
                wrong = self._check_entry(&self._q.inbox[k], &live, &doomed_entries) or wrong
            leaf = leaf_behind(&self._q, &behind, &way)
            while leaf != NULL:
                behind = end_at(&way)
                block = <Block*>leaf.part
                used = filled(leaf.count)
                count = 0
                while block != NULL:
                    blocks += 1
                    for k in range(used):
                        if n < total:
                            seqs[n] = block.entries[k].seq
                        n += 1
                        count += 1
                        wrong = check_place(&self._q, &block.entries[k], &way) or wrong
                        wrong = self._check_entry(&block.entries[k], &live, &doomed_entries) or wrong
                    block = block.next
                    used = BLOCK
                if count != leaf.count:
                    wrong = "Q1: entries in a leaf"
                leaf = leaf_behind(&self._q, &behind, &way)
            if n != total or blocks != self._q.blocks or count_nodes(&self._q.tree) != self._q.nodes:
                wrong = "Q1: counts"
            block = self._q.free
            while block != NULL:
                blocks -= 1
                block = block.next
            if self._q.blocks - blocks != self._q.free_n:
                wrong = "free blocks"
            if self._q.run == NULL and self._q.tree.part != NULL:
                wrong = "Q1: a tree without a run"
            for page in range(-host_count(&self._annex), self._page_count):
                chunk = self._chunk_at(page)
                if chunk == NULL:
                    if page < self._gap and self._pages[page].gen_floor <= LAST_GEN:
                        wrong = "a page below the gap may be given a chunk"
                    continue
                if chunk.index != page or (page >= 0 and self._pages[page].away > 0):
                    wrong = "chunk and page"
                used = 0
                for k in range(chunk.size):
                    if bit(chunk.cancelled, k) and chunk.items != NULL and chunk.items[k] != NULL:
                        wrong = "I2: a cancelled or free slot has no item"
                    if is_free(chunk, k):
                        used += page >= 0 and chunk.slots[k].gen > LAST_GEN         # retired
                        continue
                    used += 1
                    if chunk.slots[k].gen > LAST_GEN:
                        wrong = "I6: generations"
                    if bit(chunk.held, k):
                        held += has_ticket(chunk.slots[k].seq)
                    elif bit(chunk.cancelled, k):
                        doomed += 1
                    else:
                        waiting += 1
                if page < 0:
                    wrong = self._check_host(chunk, used) or wrong
                    continue
                chunks += 1
                with_items += chunk.items != NULL
                open_ += chunk.free_head != CHUNK
                thin += used < THIN
                free = 0
                k = chunk.free_head
                while k < CHUNK and free <= CHUNK:
                    free += 1
                    if not is_free(chunk, k):
                        wrong = "I2: a slot in use is on the free list"
                    k = chunk.slots[k].seq
                if used != chunk.used or used + free != CHUNK:
                    wrong = "I2: used and free slots"
            wrong = self._check_annex() or wrong
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
            if total > 2 * self._live:
                wrong = "I4: dead entries"
            if self._q.n + self._held > self._q.capacity:
                wrong = "I5: room for the held"
            if chunks != self._chunk_count or with_items != self._item_chunks or thin != self._thin_chunks:
                wrong = "chunk counts"
        if wrong is None and np.unique(array).size < n:
            wrong = "I1: seq differ"
        assert wrong is None, wrong

    cdef str _check_entry(self, const Entry* entry, int64_t* live, int64_t* doomed):
        cdef int64_t k
        cdef Chunk* chunk = self._find(entry.id, &k)
        if self._is_live(entry):
            live[0] += 1
            if chunk.slots[k].gen != entry.id >> 32:
                return "I3: generation of a live entry"
        elif chunk != NULL and chunk.slots[k].seq == entry.seq:
            doomed[0] += bit(chunk.cancelled, k)
        return None

    cdef str _check_host(self, const Chunk* host, int64_t used):
        """I8 for each lodger of a host."""
        cdef int64_t k, position, slot, page
        if host.used != used or host.free_head != CHUNK or host.prev != NULL or host.next != NULL:
            return "I8: a host of the annex"
        if self._annex.with_items != (host.items != NULL):
            return "I8: items of a host"
        for k in range(host.size):
            position = ~host.index << CHUNK_BITS | k
            slot = self._annex.homes[position]
            if is_free(host, k):
                continue
            page = slot >> CHUNK_BITS
            if slot == NOBODY or annex_find(&self._annex, slot) != position:
                return "I8: a lodger is found"
            if page < self._page_count and self._pages[page].chunk != NULL:
                return "I8: a lodger's page has no chunk"
            if host.slots[k].gen >= (self._pages[page].gen_floor if page < self._page_count else self._first_gen):
                return "I6: the generation of a lodger"
        return None

    cdef str _check_annex(self):
        """The counts of I8."""
        cdef int64_t p, page, lodgers = 0, used = 0
        cdef cnp.ndarray array = np.zeros(self._page_count, dtype=np.int64)
        cdef int64_t* away = <int64_t*>cnp.PyArray_DATA(array)
        for p in range(self._annex.capacity):
            used += self._annex.homes[p] != NOBODY
            if not is_free(self._annex.hosts[p >> CHUNK_BITS], p & (CHUNK - 1)):
                lodgers += 1
                page = self._annex.homes[p] >> CHUNK_BITS
                if page < self._page_count:
                    away[page] += 1
        for page in range(self._page_count):
            if away[page] != self._pages[page].away:
                return "I8: lodgers of a page"
        if lodgers != self._annex.lodgers or used != self._annex.filled or 8 * used > 7 * self._annex.capacity:
            return "I8: counts of the annex"
        return None

    # ------------------------------------------------------------ slots; caller holds the lock

    cdef inline Chunk* _find(self, int64_t timer_id, int64_t* k) noexcept nogil:
        """The chunk that has the record of an id's slot, and where in it; NULL: there is none.

        Whether the slot is FREE, and of which generation, is not looked at.
        """
        cdef int64_t page = (timer_id & SLOT_MASK) >> CHUNK_BITS
        cdef int64_t position
        expect_lock(self)
        k[0] = timer_id & (CHUNK - 1)
        if page < self._page_count and self._pages[page].chunk != NULL:
            return self._pages[page].chunk
        position = self._lodging(timer_id)
        if position < 0:
            return NULL
        k[0] = position & (CHUNK - 1)
        return self._annex.hosts[position >> CHUNK_BITS]

    cdef int64_t _lodging(self, int64_t timer_id) noexcept nogil:
        # Not inline: this is the rare way of what is inlined everywhere.
        return annex_find(&self._annex, timer_id & SLOT_MASK)

    cdef inline Chunk* _home(self, int64_t timer_id) noexcept nogil:
        """The chunk of a slot that was just taken."""
        return self._pages[(timer_id & SLOT_MASK) >> CHUNK_BITS].chunk

    cdef inline Chunk* _chunk_at(self, int64_t index) noexcept nogil:
        """The chunk of a page, which may be NULL, or the annex's host ~index: from -host_count to _page_count."""
        return self._pages[index].chunk if index >= 0 else self._annex.hosts[~index]

    cdef inline bint _is_waiting(self, int64_t timer_id) noexcept nogil:
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        return is_waiting(chunk, k, timer_id)

    cdef uint64_t _ticket(self, int64_t timer_id) noexcept nogil:
        """The seq of the timer's one live entry, here or with its owner; 0 if there is none."""
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        if has_id(chunk, k, timer_id) and not bit(chunk.cancelled, k) and has_ticket(chunk.slots[k].seq):
            return chunk.slots[k].seq
        return 0

    cdef object _item(self, int64_t timer_id):
        """The item of a waiting or held timer, else None."""
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        if not has_id(chunk, k, timer_id) or bit(chunk.cancelled, k) or not has_item(chunk, k):
            return None
        return <object>chunk.items[k]

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

    cdef Chunk* _new_chunk(self, bint attached) noexcept nogil:
        """Make the chunk of the lowest page that may have one; its lodgers come home. NULL: no memory, or no page left.

        Without the GIL (`attached` tells) a page with lodgers is passed over, since their items would move (I7).
        """
        cdef int64_t k, page = self._gap
        cdef Page* at
        cdef Chunk* chunk
        while True:
            if page == self._page_count and not self._new_page(attached):
                return NULL
            at = &self._pages[page]
            if at.chunk != NULL or at.gen_floor > LAST_GEN:
                self._gap += page == self._gap
            elif at.away == 0 or (attached and at.away < CHUNK):
                break
            page += 1
        chunk = make_chunk(page, CHUNK, at.away > 0 and self._annex.with_items)
        if chunk == NULL:
            return NULL
        for k in range(CHUNK):
            chunk.slots[k] = Slot(k + 1, at.gen_floor)
        chunk.free_head = 0
        if at.away > 0:
            self._bring_home(chunk)
        publish()                                   # I7
        at.chunk = chunk
        self._chunk_count += 1
        self._item_chunks += chunk.items != NULL
        self._thin_chunks += chunk.used < THIN
        self._set_thin_limit()
        self._link(chunk)
        return chunk

    cdef void _bring_home(self, Chunk* chunk) noexcept nogil:
        """Move the lodgers of a page to its new chunk, and link the slots that are left."""
        cdef int64_t k, position
        cdef Chunk* host
        chunk.free_head = CHUNK
        for k in range(CHUNK - 1, -1, -1):
            position = annex_find(&self._annex, chunk.index << CHUNK_BITS | k)
            if position < 0:
                chunk.slots[k].seq = chunk.free_head
                chunk.free_head = <int32_t>k
                continue
            host = self._annex.hosts[position >> CHUNK_BITS]
            move_slot(chunk, k, host, position & (CHUNK - 1))
            chunk.used += 1
            self._lodger_gone(host, position & (CHUNK - 1))

    cdef bint _new_page(self, bint attached) noexcept nogil:
        """Begin another page. False: no memory, or no page left."""
        cdef int64_t k, page = self._page_count
        cdef uint32_t away = 0
        if page == MAX_PAGES or page == self._page_capacity and not (attached and self._grow_pages(1)):
            return False
        for k in range(CHUNK if self._annex.lodgers > 0 else 0):
            away += annex_find(&self._annex, page << CHUNK_BITS | k) >= 0
        self._pages[page] = Page(NULL, self._first_gen, away)
        publish()                                   # I7
        self._page_count += 1
        return True

    cdef inline int64_t _take_slot(self, bint with_item, bint attached) noexcept nogil:
        """Take a free slot, with a place for an item if one is to be stored; its id, or a code. The caller arms it."""
        cdef Chunk* chunk = self._open
        cdef PyObject** items
        cdef int64_t k
        expect_lock(self)
        if chunk == NULL:
            chunk = self._new_chunk(attached)
            if chunk == NULL:
                return TOO_MANY if self._page_count == MAX_PAGES else NO_MEMORY
        if with_item and chunk.items == NULL:
            items = <PyObject**>PyMem_RawCalloc(CHUNK, sizeof(PyObject*))
            if items == NULL:
                return NO_MEMORY
            publish()                               # I7
            chunk.items = items
            self._item_chunks += 1
        k = chunk.free_head
        chunk.free_head = <int32_t>chunk.slots[k].seq
        chunk.used += 1
        self._thin_chunks -= chunk.used == THIN
        if chunk.free_head == CHUNK:
            self._unlink(chunk)
        return <int64_t>chunk.slots[k].gen << 32 | chunk.index << CHUNK_BITS | k

    cdef inline void _free_slot(self, Chunk* chunk, int64_t k) noexcept nogil:
        """Any state -> FREE. Its item has been taken out; its generation is over (I6)."""
        expect_lock(self)
        set_bit(chunk.held, k)
        set_bit(chunk.cancelled, k)
        if chunk.free_head == CHUNK and chunk.index < 0:
            self._lodger_gone(chunk, k)
            return
        chunk.slots[k].gen += 1
        if chunk.slots[k].gen > LAST_GEN:
            chunk.slots[k].seq = NO_TICKET                # retired: not linked, used for good
            return
        if chunk.free_head == CHUNK:
            self._link(chunk)
        chunk.slots[k].seq = chunk.free_head
        chunk.free_head = <int32_t>k
        self._thin_chunks += chunk.used == THIN
        chunk.used -= 1

    cdef void _lodger_gone(self, Chunk* host, int64_t k) noexcept nogil:
        """A place in the annex has become FREE."""
        cdef int64_t page = self._annex.homes[~host.index << CHUNK_BITS | k] >> CHUNK_BITS
        host.used -= 1
        self._annex.lodgers -= 1
        if page < self._page_count:
            self._pages[page].away -= 1
        self._set_thin_limit()

    cdef inline void _set_thin_limit(self) noexcept nogil:
        self._thin_limit = -1 if annex_is_light(&self._annex) else self._chunk_count // 3 + 1

    cdef void _trim(self) noexcept nogil:
        """Give memory of slots back. Caller has the GIL (I7).

        Thin chunks move out, but a quarter of those in use: what comes and goes needs no allocation. So do chunks so
        far up that their page costs more than they hold; then the pages end where the last chunk is.
        """
        cdef int64_t page, lodgers = 0
        cdef int64_t in_use = self._chunk_count - self._thin_chunks
        cdef int64_t keep = in_use // 4 + 1
        cdef int64_t bound = FEWEST_PAGES + PAGES_OF_A_CHUNK * in_use
        cdef bint with_items = False, has_room
        cdef Chunk* chunk
        cdef Chunk* movers = NULL
        for page in range(self._page_count - 1, -1, -1):
            if self._thin_chunks <= keep and page < bound:
                break
            chunk = self._pages[page].chunk
            if chunk == NULL or (chunk.used >= THIN and page < bound):
                continue
            if chunk.free_head != CHUNK:
                self._unlink(chunk)
            self._chunk_count -= 1
            self._thin_chunks -= chunk.used < THIN
            self._item_chunks -= chunk.items != NULL
            lodgers += chunk.used
            with_items |= chunk.items != NULL and chunk.used > 0
            chunk.next = movers
            movers = chunk
        has_room = annex_reserve(&self._annex, lodgers, with_items)
        while movers != NULL:
            chunk = movers
            movers = chunk.next
            chunk.next = NULL
            if chunk.used == 0 or has_room:
                self._move_out(chunk)
                continue
            if chunk.free_head != CHUNK:            # no memory: it stays
                self._link(chunk)
            self._chunk_count += 1
            self._thin_chunks += chunk.used < THIN
            self._item_chunks += chunk.items != NULL
        self._drop_pages(bound)
        self._thin_limit = max(self._chunk_count // 3 + 1, self._thin_chunks)

    cdef void _move_out(self, Chunk* chunk) noexcept nogil:
        """Move what is in use of a chunk to the annex, which has room, and free it."""
        cdef Page* page = &self._pages[chunk.index]
        cdef int64_t k
        for k in range(CHUNK):
            page.gen_floor = max(page.gen_floor, chunk.slots[k].gen)
        page.gen_floor += chunk.used > 0        # a generation that is in use will be over (I6)
        for k in range(CHUNK if chunk.used > 0 else 0):
            if not is_free(chunk, k):
                annex_take_in(&self._annex, chunk.index << CHUNK_BITS | k, chunk, k)
                page.away += 1
        page.chunk = NULL
        self._gap = min(self._gap, chunk.index)
        free_chunk(chunk)

    cdef void _drop_pages(self, int64_t bound) noexcept nogil:
        """End the pages where the last chunk is, and at `bound` if all above are away.

        A page of whose generations more than half are used up stays: pages begin where those that went have ended.
        """
        cdef Page* page
        cdef Page* pages
        while self._page_count > 0:
            page = &self._pages[self._page_count - 1]
            if page.chunk != NULL or page.gen_floor > LAST_GEN >> 1 or (page.away > 0 and self._page_count <= bound):
                break
            self._first_gen = max(self._first_gen, page.gen_floor)
            self._page_count -= 1
        self._gap = min(self._gap, self._page_count)
        if self._page_capacity > FEWEST_PAGES and 4 * self._page_count < self._page_capacity:
            pages = <Page*>PyMem_RawRealloc(self._pages, max(FEWEST_PAGES, 2 * self._page_count) * sizeof(Page))
            if pages != NULL:
                self._pages = pages
                self._page_capacity = max(FEWEST_PAGES, 2 * self._page_count)

    # ------------------------------------------------------------ the queue; caller holds the lock

    cdef inline bint _has_room(self, int64_t extra) noexcept nogil:
        """I5 still holds with `extra` more in the heap, or HELD. Room is made if that needs no Python."""
        return self._q.n + self._held + extra < self._q.capacity or self._make_way(extra)

    cdef bint _make_way(self, int64_t extra) noexcept nogil:
        """The heap is full: leave the dead out if they are many, or move it to buckets. False: it has to grow."""
        if self._q.run == NULL and self._dead() > self._q.n >> 2:
            self._rebuild_near()
        if self._q.n >= NEAR:
            queue_spread(&self._q, NULL)
        return self._q.n + self._held + extra < self._q.capacity

    cdef inline int64_t _dead(self) noexcept nogil:
        return queue_count(&self._q) - self._live

    cdef inline bint _crowded(self) noexcept nogil:
        """More than half of the entries are dead, or much memory is unused: `_tidy` has something to do."""
        return (self._dead() > self._live or self._roomy()) and not self._tidying

    cdef inline bint _roomy(self) noexcept nogil:
        return self._oversized() or self._is_few() or self._thin_chunks > self._thin_limit

    cdef inline bint _oversized(self) noexcept nogil:
        """The heap has room for three times what it needs: at 24 bytes an entry, twice what a timer needs in all."""
        cdef int64_t needed = self._held + (ROOM if self._q.run != NULL else self._live)
        return self._q.capacity > FEWEST and 3 * needed < self._q.capacity

    cdef inline bint _is_few(self) noexcept nogil:
        """What is left needs no buckets."""
        return self._q.run != NULL and self._live < FEW_FAR and self._live + self._held < self._q.capacity

    cdef inline void _push(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil:
        cdef Entry entry = Entry(run_at, seq, timer_id)
        expect_lock(self)
        if self._q.n >= NEAR:
            queue_spread(&self._q, NULL)
        queue_push(&self._q, &entry)

    cdef inline bint _is_live(self, const Entry* entry) noexcept nogil:
        cdef int64_t k
        cdef Chunk* chunk = self._find(entry.id, &k)                 # I3
        return (
            chunk != NULL
            and chunk.slots[k].seq == entry.seq
            and not bit(chunk.held, k)
            and not bit(chunk.cancelled, k)
        )

    cdef inline void _entry_gone(self, const Entry* entry) noexcept nogil:
        """A dead entry has left the heap: if its slot was only waiting for that, free it (I2)."""
        cdef int64_t k
        cdef Chunk* chunk = self._find(entry.id, &k)
        if chunk != NULL and chunk.slots[k].seq == entry.seq and bit(chunk.cancelled, k) and not bit(chunk.held, k):
            self._free_slot(chunk, k)

    cdef inline Entry* _first(self) noexcept nogil:
        """The earliest timer's entry, once those before it that are dead are dropped; NULL when nothing waits."""
        cdef Entry* first
        cdef Entry entry
        expect_lock(self)
        while True:
            if not is_settled(&self._q):
                self._settle()
            first = front(&self._q)
            if first == NULL or self._is_live(first):
                return first
            entry = first[0]
            self._remove(first)
            self._entry_gone(&entry)

    cdef void _settle(self) noexcept nogil:
        """Sort the next run, and bring what its first timers need into the cache."""
        cdef int64_t k
        next_run(&self._q)
        for k in range(self._q.run_head, min(self._q.run_head + AHEAD, self._q.run_end)):
            self._fetch(&self._q.run[k])

    cdef inline void _remove(self, Entry* first) noexcept nogil:
        """Remove what `_first` has given, and bring what a later timer needs into the cache: a miss takes longer."""
        queue_remove(&self._q, first)
        if self._q.run_head + AHEAD <= self._q.run_end:
            self._fetch(&self._q.run[self._q.run_head + AHEAD - 1])

    cdef inline void _fetch(self, const Entry* entry) noexcept nogil:
        cdef int64_t k
        cdef Chunk* chunk = self._find(entry.id, &k)
        if chunk != NULL:
            prefetch(&chunk.slots[k])
            if chunk.items != NULL:
                prefetch(&chunk.items[k])

    cdef inline int64_t _keep_live(self, Entry* entries, int64_t n) noexcept nogil:
        """Leave the dead out, in place; how many are left."""
        cdef int64_t k, kept = 0
        for k in range(n):
            if self._is_live(&entries[k]):
                entries[kept] = entries[k]
                kept += 1
            else:
                self._entry_gone(&entries[k])
        return kept

    cdef void _rebuild_near(self) noexcept nogil:
        """Leave the dead out of heap, run and inbox."""
        cdef Queue* q = &self._q
        q.n = self._keep_live(q.heap, q.n)
        heapify(q.heap, q.n)
        q.run_end = q.run_head + self._keep_live(q.run + q.run_head, q.run_end - q.run_head)
        q.inbox_n = self._keep_live(q.inbox, q.inbox_n)

    cdef bint _rebuild_far(self, Entry* behind) noexcept nogil:
        """Leave the dead out of the leaves behind a key, as many as make a round, and move the key. False: of all."""
        cdef Way way
        cdef int64_t seen = 0
        cdef Child* leaf
        while seen < LONG:
            leaf = leaf_behind(&self._q, behind, &way)
            if leaf == NULL:
                return False
            behind[0] = end_at(&way)
            seen += leaf.count
            self._compact(leaf, &way)
            seen += merge(&self._q, behind)
        return True

    cdef void _compact(self, Child* leaf, const Way* way) noexcept nogil:
        """Leave the dead of a leaf out, in place: what is kept moves to the front, and blocks that are left go."""
        cdef Block* block = <Block*>leaf.part
        cdef Block* target = block
        cdef Block* previous = NULL
        cdef int64_t i, count = filled(leaf.count), kept = 0
        while block != NULL:
            for i in range(BLOCK if block.next != NULL else 0):
                self._fetch(&block.next.entries[i])
            for i in range(count):
                if not self._is_live(&block.entries[i]):
                    self._entry_gone(&block.entries[i])
                    continue
                if kept > 0 and kept & (BLOCK - 1) == 0:
                    previous, target = target, target.next      # not past `block`: no more was kept than was read
                target.entries[kept & (BLOCK - 1)] = block.entries[i]
                kept += 1
            block = block.next
            count = BLOCK
        block = <Block*>leaf.part
        if kept == 0:
            cut_leaf(&self._q, way)
        else:
            self._q.far_n -= leaf.count - kept
            leaf.count = kept
            block = target.next
            target.next = NULL
            if previous != NULL:                # the one that has room comes first
                previous.next = NULL
                target.next = <Block*>leaf.part
                leaf.part = target
        while block != NULL:
            target = block.next
            give_block(&self._q, block)
            block = target

    # ------------------------------------------------------------ timers that are held; caller holds the lock

    cdef inline uint64_t _new_seq(self, int priority) noexcept nogil:
        self._counter += 1
        return <uint64_t>(MAX_PRIORITY - priority) << 52 | self._counter

    cdef inline int64_t _occupy(self, int priority, object item) noexcept:
        """Take a slot, HELD with a ticket, where `_has_room(1)`; its id, or a code."""
        cdef int64_t timer_id = self._take_slot(item is not None, True)
        cdef Chunk* chunk
        if timer_id < 0:
            return timer_id
        chunk = self._home(timer_id)
        if item is not None:
            Py_INCREF(item)
            chunk.items[timer_id & (CHUNK - 1)] = <PyObject*>item
        chunk.slots[timer_id & (CHUNK - 1)].seq = self._new_seq(priority)
        clear_bit(chunk.cancelled, timer_id & (CHUNK - 1))
        self._held += 1
        return timer_id

    cdef inline int64_t _add(self, int64_t run_at, int priority, object item) noexcept:
        """Add a waiting timer where `_has_room(1)`; its id, or a code."""
        cdef int64_t timer_id = self._take_slot(item is not None, True)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef Chunk* chunk
        cdef uint64_t seq
        if timer_id < 0:
            return timer_id
        chunk = self._home(timer_id)
        if item is not None:
            Py_INCREF(item)
            chunk.items[k] = <PyObject*>item
        seq = self._new_seq(priority)
        chunk.slots[k].seq = seq
        clear_bit(chunk.held, k)
        clear_bit(chunk.cancelled, k)
        self._live += 1
        self._push(run_at, seq, timer_id)
        return timer_id

    cdef int64_t _next(self) noexcept nogil:
        """The earliest run_at; NEVER when nothing waits."""
        cdef Entry* first = self._first()
        return first.run_at if first != NULL else NEVER

    cdef bint _take_due(self, int64_t now, Entry* out) noexcept nogil:
        """Pop the earliest timer if it is due: WAITING -> HELD. It keeps its ticket, and `out` is its entry."""
        cdef int64_t k
        cdef Chunk* chunk
        cdef Entry* first = self._first()
        if first == NULL or first.run_at > now or first.run_at == NEVER:
            return False
        # What was in the heap leaves its place there for when it is armed again (I5).
        if first != self._q.heap and not self._has_place() and not self._reserve_held():
            return False
        out[0] = first[0]
        self._remove(first)
        self._live -= 1
        self._held += 1
        chunk = self._find(out.id, &k)
        set_bit(chunk.held, k)
        return True

    cdef inline bint _has_place(self) noexcept nogil:
        return self._q.n + self._held < self._q.capacity

    cdef bint _reserve_held(self) noexcept nogil:
        """Let the heap grow, in plain memory, as what was far becomes held (I5). False: it cannot take one more."""
        cdef Queue* q = &self._q
        cdef int64_t capacity = q.n + 2 * self._held + 2 * ROOM
        cdef Entry* heap = <Entry*>PyMem_RawMalloc(capacity * sizeof(Entry))
        if heap == NULL:
            return q.n + self._held < q.capacity
        memcpy(heap, q.heap, q.n * sizeof(Entry))
        PyMem_RawFree(self._raw)
        self._raw = q.heap = heap
        q.capacity = capacity
        return True

    cdef void _rearm(self, int64_t timer_id, int64_t run_at) noexcept nogil:
        """Arm a held timer that has a ticket (I5 keeps room), or move a waiting one where `_has_room(1)`.

        It goes behind equals and keeps its priority.
        """
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        cdef uint64_t seq
        self._counter += 1
        seq = (chunk.slots[k].seq & ~COUNTER_MASK) | self._counter
        if bit(chunk.held, k):
            self._held -= 1
            self._live += 1
        arm_slot(chunk, k, seq)
        self._push(run_at, seq, timer_id)

    cdef bint _disarm(self, int64_t timer_id) noexcept nogil:
        """Take the ticket of a waiting or held timer away, for good: its entries are dead. True: it was waiting.

        The id stays known until `_release`. The caller sees to `_crowded`.
        """
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        cdef bint waited = not bit(chunk.held, k)
        if waited:
            self._live -= 1
            set_bit(chunk.held, k)
        else:
            self._held -= has_ticket(chunk.slots[k].seq)
        chunk.slots[k].seq = NO_TICKET
        return waited

    cdef void _hold(self, int64_t timer_id) noexcept nogil:
        """WAITING -> HELD with a new ticket: its entry is dead, and it may be armed again. Nothing, if it is held.

        Where the heap has no room to keep for it (I5) it grows, or, without buckets, the dead are left out now: one
        place at least is freed by that. Without memory to grow it stays WAITING, and comes due for nothing.
        """
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        if bit(chunk.held, k):
            return
        if self._q.run != NULL and not self._has_room(1) and not self._reserve_held():
            return
        self._counter += 1
        chunk.slots[k].seq = (chunk.slots[k].seq & ~COUNTER_MASK) | self._counter
        set_bit(chunk.held, k)
        self._live -= 1
        self._held += 1
        if not self._has_room(0):
            self._rebuild_near()

    cdef int64_t _take_due_id(self, int64_t now) noexcept nogil:
        """As `_take_due`, where the id is enough; -1 if nothing is due."""
        cdef Entry entry
        return entry.id if self._take_due(now, &entry) else -1

    cdef list _snapshot(self):
        """The items of all waiting and held timers, in no order. Locks, and allocates outside of that."""
        cdef int64_t n, k, found, room
        cdef Chunk* chunk
        cdef list items
        while True:
            with self.lock:
                room = self._item_chunks * CHUNK + self._annex.lodgers
            items = [None] * room
            found = 0
            with self.lock:
                if self._item_chunks * CHUNK + self._annex.lodgers <= room:
                    for n in range(-host_count(&self._annex), self._page_count):
                        chunk = self._chunk_at(n)
                        if chunk == NULL or chunk.items == NULL:
                            continue
                        for k in range(chunk.size):
                            if chunk.items[k] != NULL:
                                items[found] = <object>chunk.items[k]
                                found += 1
                    room = 0
            if room == 0:
                del items[found:]
                return items

    cdef object _release(self, int64_t timer_id):
        """HELD -> FREE; the item, for the caller to drop after the lock is given back."""
        cdef int64_t k
        cdef Chunk* chunk = self._find(timer_id, &k)
        cdef PyObject* item = take_item(chunk, k)
        self._held -= has_ticket(chunk.slots[k].seq)
        self._free_slot(chunk, k)
        return adopt(item)

    # ------------------------------------------------------------ memory; not under the lock

    cdef int _make_room(self, int64_t extra) except -1:
        """Make sure of room for `extra` more entries, unless others take it meanwhile (the caller looks again).

        Leaving dead entries out comes first where they are a quarter: they must not make the heap grow (promise 11).
        """
        cdef int64_t wanted, capacity
        cdef bint pages
        with self.lock:
            if self._q.n > FEWEST and self._dead() > self._q.n >> 2:
                self._rebuild_near()
        with self.lock:
            capacity = self._q.capacity
            wanted = self._held + max(self._q.n + 1, min(self._q.n + extra, NEAR)) + 1
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
            if self._q.n + self._held < capacity:
                if self._q.n > 0:
                    memcpy(heap, self._q.heap, self._q.n * sizeof(Entry))
                self._q.heap = heap
                self._q.capacity = capacity
                PyMem_RawFree(self._raw)
                self._raw = NULL
                owner[0], self._array = self._array, owner[0]

    cdef int _tidy(self) except -1:
        """Do what `_crowded` asks for: leave the dead out, give memory back. Called after all that removes."""
        cdef bint long_, oversized
        cdef int64_t needed
        with self.lock:
            if not self._crowded():
                return 0
            self._tidying = True
            long_ = queue_count(&self._q) >= LONG
        if long_:
            with nogil:
                self._sweep()
        else:
            self._sweep()
        with self.lock:
            self._tidying = False
            if self._thin_chunks > self._thin_limit:
                self._trim()
            needed = self._held + (ROOM if self._q.run != NULL else self._q.n)
            oversized = self._oversized()
        if oversized:
            try:
                self._resize(max(FEWEST, needed + (needed >> 1) + 1))
            except MemoryError:
                pass            # the large array serves as well
        return 0

    cdef void _sweep(self) noexcept nogil:
        """Lock, and leave the dead out, round by round, where they are too many."""
        cdef Entry behind
        cdef bint more
        cdef int64_t rounds = 0
        with self.lock:
            self._rebuild_near()
            more = self._dead() > self._live or self._is_few()
        while more:
            behind = LEAST
            while more:
                with self.lock:
                    more = self._rebuild_far(&behind)
                rounds += 1
                give_way(rounds)
            with self.lock:
                self._rebuild_near()
                more = self._dead() > self._live        # others have cancelled meanwhile
        with self.lock:
            if self._is_few():
                queue_retire(&self._q, self._held)


cdef str check_place(Queue* q, const Entry* entry, const Way* way):
    cdef int k
    if not is_behind(q, entry):
        return "Q2: tree and bound"
    for k in range(way.depth):
        if digit_of(way.nodes[k], entry) != <uint64_t>way.digits[k]:
            return "Q1: place of an entry"
        if k > 0 and way.nodes[k].level >= way.nodes[k - 1].level:
            return "Q1: levels"
    return None


cdef int64_t count_nodes(const Child* child) except -1:
    """How many nodes there are from here on."""
    cdef int64_t count = 1
    cdef const Node* node
    cdef int digit
    if child.count != NODE:
        return 0
    node = <const Node*>child.part
    for digit in range(FAN):
        assert bit(&node.used, digit) == (node.children[digit].part != NULL), "Q1: bits of the children"
        count += count_nodes(&node.children[digit])
    return count


# ---------------------------------------------------------------- the collector
#
# A job refers to a bound method, that to its owner, the owner to the scheduler and so to the timetable: without a
# traverse that shows the items such a ring would never be freed. Cython writes one for Python attributes alone, so
# these stand in for it. They take no lock, since who holds it may be waiting for the GIL, which the collector has: they
# rely on I7. A reference that `_add_block` has not yet stored, or has just stored, is held by its caller's list too.


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef int64_t n, k
    cdef int answer
    cdef Chunk* chunk
    for n in range(-host_count(&(<Timetable>self)._annex), (<Timetable>self)._page_count):
        chunk = (<Timetable>self)._chunk_at(n)
        if chunk == NULL or chunk.items == NULL:
            continue
        for k in range(chunk.size):
            if chunk.items[k] != NULL:
                answer = visit(chunk.items[k], arg)
                if answer != 0:
                    return answer
    return cython_traverse(self, visit, arg)


cdef int clear_items(PyObject* self) noexcept:
    cdef int64_t n, k
    cdef Chunk* chunk
    cdef PyObject* item
    for n in range(-host_count(&(<Timetable>self)._annex), (<Timetable>self)._page_count):
        for k in range(CHUNK):
            # Looked up each time: who goes may call back.
            if n < -host_count(&(<Timetable>self)._annex) or n >= (<Timetable>self)._page_count:
                break
            chunk = (<Timetable>self)._chunk_at(n)
            if chunk == NULL or chunk.items == NULL or k >= chunk.size:
                break
            item = chunk.items[k]
            chunk.items[k] = NULL
            Py_XDECREF(item)
    return cython_clear(self)


cdef traverseproc cython_traverse = (<PyTypeObject*>Timetable).tp_traverse
cdef inquiry cython_clear = (<PyTypeObject*>Timetable).tp_clear
(<PyTypeObject*>Timetable).tp_traverse = traverse
(<PyTypeObject*>Timetable).tp_clear = clear_items
