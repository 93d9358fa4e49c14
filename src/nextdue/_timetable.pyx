# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False
"""A queue of timers: which id is due next.

The timetable orders integers. It reads no clock, starts no thread and calls no user code.

What waits are triples (run_at, seq, id), 24 bytes each: up to a thousand in an implicit 4-ary heap, in the buffer of a
numpy array; beyond that the far ones in a tree, see `_queue.pxd`. No Python object is in either: what
belongs to a timer lies by *slot*, in chunks of 1,024 slots, 12 bytes a slot and 8 more once a chunk holds an item. An
id is `generation << 32 | slot`, so a stale one is refused by one comparison, without a dict (62 bytes a timer and a
cache miss less).

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
        was given back (the page remembers where to go on).
    I7  What the collector walks through (pages, chunks, their items) is moved and freed only by a thread that has the
        GIL (on a free-threaded build: that is attached), and filled before it is published. Not for `check()` to see.

Cost, n entries: add O(1) moves of an entry from leaf to leaf, amortised, and O(log) of the thousand in the heap for
what is near; pop the same and the sorting of the run, O(1) an entry for times that are spread; both a walk down the
tree, O(log32 n). Cancel one bit, and O(1) amortised for the rebuild that runs when more than half of the entries are
dead; reschedule as add; k at once k times as much, in a loop without the GIL.

The lock is held for some 100 us at most, but for `clear`, and where many dead entries in a row come to the front: one
step is short, and what is long is done in rounds of `LONG` steps with the lock given back between them. So others may
see a part of it: what is added at once, in the order of the block; what is taken at once is taken as by as many pops.
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
    dropped: 4 bits a digit                      add 147, hold 626 without an inbox, where 6 bits took 121 and 462
    dropped: 6 bits                              as 5 within the noise; leaves of 16 after a burst, half of 5's
    dropped: leaves to 8,192 or 16,384, burst    fewer places to add to: hold 386-547 without an inbox; but a burst held
    when their turn comes                        the lock for 190-510 us
    dropped: a block that knows how many are     add 150, since the place of the next entry was a miss of its own
    in it
    not done: huge pages for blocks and slots    hold 411-330 instead of 525-503, pop 156-151 instead of 209-193, before
                                                 there was an inbox (glibc.malloc.hugetlb=1, a setting of the process)

The timers' side is as in Go (a 4-ary heap, lazily deleted), with OpenJDK's seq for FIFO among equals
(ScheduledThreadPoolExecutor); slot + generation is a slotmap.
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

cnp.import_array()

ENTRY = np.dtype([("run_at", np.int64), ("seq", np.uint64), ("id", np.int64)])

cdef extern from *:
    """
    #define NEXTDUE_PUBLISH() __atomic_thread_fence(__ATOMIC_RELEASE)
    /* The empty asm is what keeps a function that only prefetches: gcc takes it for one without effects. */
    #define NEXTDUE_PREFETCH(address) do { __builtin_prefetch(address, 1); __asm__ volatile(""); } while (0)
    /* Who waits for the lock is not woken in time to get it between two rounds. From 3.13 on it is handed over. */
    #if PY_VERSION_HEX < 0x030D0000
    #include <unistd.h>
    #define NEXTDUE_GIVE_WAY(round) do { if ((round) % 8 == 7) usleep(50); } while (0)
    #else
    #define NEXTDUE_GIVE_WAY(round) ((void)(round))
    #endif
    """
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
    NO_ROOM = -3                # beside NO_MEMORY and TOO_MANY: grow the heap, then try again

cdef int64_t SLOT_MASK = 0xFFFFFFFF
cdef int64_t MAX_SLOTS = 1 << 31
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


# ---------------------------------------------------------------- what a bulk pop takes


cdef bint reserve(Taken* taken) noexcept nogil:
    """Room for a round more: few at first. False: no memory."""
    cdef int64_t room = min(max(taken.n + (LONG if taken.n > 0 else FEW), taken.n + (taken.n >> 1)), taken.limit)
    cdef int64_t* larger
    if room > taken.room or taken.ids == NULL:
        larger = <int64_t*>PyMem_RawRealloc(taken.ids, max(room, 1) * sizeof(int64_t))
        if larger == NULL:
            return False
        taken.ids = larger
        taken.room = room
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
        queue_init(&self._q)

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
        cdef Entry* first
        cdef PyObject* item = NULL
        cdef bint found, crowded = False
        with self.lock:
            first = self._first()
            found = first != NULL
            if found:
                entry = first[0]
                self._remove(first)
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
                        code = self._add_block(source, target, k, refs, &done)
                else:
                    code = self._add_block(source, target, k, refs, &done)
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
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done
    ) noexcept nogil:
        """Add what is not `done`, round by round. 0, or NO_ROOM, NO_MEMORY, TOO_MANY."""
        cdef int64_t count, code
        while done[0] < k:
            count = min(k - done[0], LONG)
            with self.lock:
                code = self._add_round(
                    source + done[0], target + done[0], count, refs + done[0] if refs != NULL else NULL, done
                )
            if code < 0:
                return code
            give_way(done[0] // LONG)
        return 0

    cdef int64_t _add_round(
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done
    ) noexcept nogil:
        """Add k timers. Unless it is 0, the result is as above, and those that were added are the first ones."""
        cdef int64_t i, taken, put
        if not self._has_room(max(1, min(k, NEAR - self._q.n))) or not self._has_pages(k):
            return NO_ROOM
        for taken in range(k):
            target[taken] = self._take_slot(refs != NULL and refs[taken] != NULL)
            if target[taken] < 0:
                for i in range(taken):
                    self._free_slot(self._find(target[i]), target[i] & (CHUNK - 1))
                return target[taken]
        put = self._put_block(source, target, k)
        for i in range(put if refs != NULL else 0):
            if refs[i] != NULL:
                self._find(target[i]).items[target[i] & (CHUNK - 1)] = refs[i]
        for i in range(put, k):
            self._free_slot(self._find(target[i]), target[i] & (CHUNK - 1))
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
                self._arm_slot(ids[i], entry.seq)
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
            self._arm_slot(ids[i], entry.seq)
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
        cdef int64_t i, timer_id, start = 0, count = 0
        while start < k:
            with self.lock:
                for i in range(start, min(start + LONG, k)):
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
            start += LONG
            give_way(start // LONG)
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
        chunk.slots[k].seq = NO_TICKET
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

        Complexity: that of k pops, without their calls. Should there be no memory for all, those are returned that
        there is memory for, and the rest waits.
        Thread-safety: long work runs without the GIL, in rounds, each of which takes what is the earliest then. What
        others add meanwhile may be taken, but no more in all than waited at first.
        """
        cdef int64_t k = 0
        cdef int64_t* due = self._take_block(instant(now, "now"), limit_of(limit), &k)
        cdef list out = []
        try:
            self._release_block(due, k, 1, out)
        finally:
            PyMem_RawFree(due)
        self._tidy()
        return out

    def pop_due_ids(self, now, limit=None):
        """Remove the timers with run_at <= now, at most `limit`, and return their ids in order; items are released.

        Returns: int64[k]. Complexity: as `pop_due`.
        """
        cdef int64_t k = 0
        cdef int64_t* due = self._take_block(instant(now, "now"), limit_of(limit), &k)
        cdef cnp.ndarray ids
        try:
            self._release_block(due, k, 1, None)
            ids = np.empty(k, dtype=np.int64)
            memcpy(cnp.PyArray_DATA(ids), due, k * sizeof(int64_t))
        finally:
            PyMem_RawFree(due)
        self._tidy()
        return ids

    cdef int64_t* _take_block(self, int64_t now, int64_t limit, int64_t* taken) except NULL:
        """Take what is due into a new block, ids marked by `_part`. The caller frees it."""
        cdef Taken out = Taken(NULL, 0, 0, limit)
        cdef bint more = True
        now = min(now, NEVER - 1)
        while more and out.n < LONG and reserve(&out):
            more = self._drain(now, &out)
        if more and out.n >= LONG:
            with nogil:
                while more and reserve(&out):
                    more = self._drain(now, &out)
                    give_way(out.n // LONG)
        if out.n == 0 and more:
            PyMem_RawFree(out.ids)
            raise MemoryError("no memory to take the due timers; they wait unchanged")
        taken[0] = out.n
        return out.ids

    cdef bint _drain(self, int64_t now, Taken* out) noexcept nogil:
        """Lock, take what is due and has room, in order. False: nothing more is due, or wanted."""
        cdef Entry entry
        cdef Entry* first
        cdef int64_t room
        with self.lock:
            out.limit = min(out.limit, out.n + self._live)      # so that it ends, however much others add
            room = min(out.room, out.limit)
            while out.n < room:
                first = self._first()
                if first.run_at > now:
                    return False
                entry = first[0]
                self._remove(first)
                self._live -= 1
                out.ids[out.n] = self._part(entry.id)
                out.n += 1
        return out.n < out.limit

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
                + self._chunk_count * <int64_t>sizeof(Chunk)
                + self._item_chunks * <int64_t>(CHUNK * sizeof(PyObject*))
                + self._page_capacity * <int64_t>sizeof(Page)
            )
        return total

    def check(self):
        """Assert every invariant; for tests, with nobody else at work. Complexity: O(n log n)."""
        cdef int64_t k, n, page, live = 0, doomed_entries = 0, waiting = 0, doomed = 0, held = 0, chunks = 0
        cdef int64_t with_items = 0, empty = 0, open_ = 0, used, free
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
                        used += chunk.slots[k].gen > LAST_GEN             # retired
                        continue
                    used += 1
                    if chunk.slots[k].gen > LAST_GEN or chunk.slots[k].gen < self._pages[page].gen_floor:
                        wrong = "I6: generations"
                    if bit(chunk.held, k):
                        held += has_ticket(chunk.slots[k].seq)
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
                    k = chunk.slots[k].seq
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
            if total > 2 * self._live:
                wrong = "I4: dead entries"
            if self._q.n + self._held > self._q.capacity:
                wrong = "I5: room for the held"
            if chunks != self._chunk_count or with_items != self._item_chunks or empty != self._empty_chunks:
                wrong = "chunk counts"
        if wrong is None and np.unique(array).size < n:
            wrong = "I1: seq differ"
        assert wrong is None, wrong

    cdef str _check_entry(self, const Entry* entry, int64_t* live, int64_t* doomed):
        cdef Chunk* chunk = self._find(entry.id)
        if self._is_live(entry):
            live[0] += 1
            if chunk.slots[entry.id & (CHUNK - 1)].gen != entry.id >> 32:
                return "I3: generation of a live entry"
        elif chunk != NULL and chunk.slots[entry.id & (CHUNK - 1)].seq == entry.seq:
            doomed[0] += bit(chunk.cancelled, entry.id & (CHUNK - 1))
        return None

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
            and <int64_t>chunk.slots[k].gen == timer_id >> 32
            and bit(chunk.held, k) == held
            and not bit(chunk.cancelled, k)
        )

    cdef inline bint _is_waiting(self, int64_t timer_id) noexcept nogil:
        return self._has(timer_id, False)

    cdef uint64_t _ticket(self, int64_t timer_id) noexcept nogil:
        """The seq of the timer's one live entry, here or with its owner; 0 if there is none."""
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        if (self._has(timer_id, False) or self._has(timer_id, True)) and has_ticket(chunk.slots[k].seq):
            return chunk.slots[k].seq
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
        chunk.slots[k].seq = seq
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
            chunk.slots[k].seq = k + 1
            chunk.slots[k].gen = self._pages[self._gap].gen_floor
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

    cdef inline int64_t _take_slot(self, bint with_item) noexcept nogil:
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
        chunk.free_head = <int32_t>chunk.slots[k].seq
        self._empty_chunks -= chunk.used == 0
        chunk.used += 1
        if chunk.free_head == CHUNK:
            self._unlink(chunk)
        return <int64_t>chunk.slots[k].gen << 32 | chunk.index << CHUNK_BITS | k

    cdef inline void _free_slot(self, Chunk* chunk, int64_t k) noexcept nogil:
        """Any state -> FREE. Its item has been taken out; its generation is over (I6)."""
        set_bit(chunk.held, k)
        set_bit(chunk.cancelled, k)
        chunk.slots[k].gen += 1
        if chunk.slots[k].gen > LAST_GEN:
            chunk.slots[k].seq = NO_TICKET                # retired: not linked, used for good
            return
        if chunk.free_head == CHUNK:
            self._link(chunk)
        chunk.slots[k].seq = chunk.free_head
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
                self._pages[page].gen_floor = max(self._pages[page].gen_floor, chunk.slots[k].gen)
            self._unlink(chunk)
            self._pages[page].chunk = NULL
            self._gap = min(self._gap, page)
            self._chunk_count -= 1
            self._empty_chunks -= 1
            self._item_chunks -= chunk.items != NULL
            chunk.next = dropped
            dropped = chunk
        return dropped

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
        return self._oversized() or self._is_few() or 3 * self._empty_chunks > self._chunk_count + 3

    cdef inline bint _oversized(self) noexcept nogil:
        """The heap has room for three times what it needs: at 24 bytes an entry, twice what a timer needs in all."""
        cdef int64_t needed = self._held + (ROOM if self._q.run != NULL else self._live)
        return self._q.capacity > FEWEST and 3 * needed < self._q.capacity

    cdef inline bint _is_few(self) noexcept nogil:
        """What is left needs no buckets."""
        return self._q.run != NULL and self._live < FEW_FAR and self._live + self._held < self._q.capacity

    cdef inline void _push(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil:
        cdef Entry entry = Entry(run_at, seq, timer_id)
        if self._q.n >= NEAR:
            queue_spread(&self._q, NULL)
        queue_push(&self._q, &entry)

    cdef inline bint _is_live(self, const Entry* entry) noexcept nogil:
        cdef Chunk* chunk = self._find(entry.id)                     # I3
        cdef int64_t k = entry.id & (CHUNK - 1)
        return (
            chunk != NULL
            and chunk.slots[k].seq == entry.seq
            and not bit(chunk.held, k)
            and not bit(chunk.cancelled, k)
        )

    cdef inline void _entry_gone(self, const Entry* entry) noexcept nogil:
        """A dead entry has left the heap: if its slot was only waiting for that, free it (I2)."""
        cdef Chunk* chunk = self._find(entry.id)
        cdef int64_t k = entry.id & (CHUNK - 1)
        if chunk != NULL and chunk.slots[k].seq == entry.seq and bit(chunk.cancelled, k) and not bit(chunk.held, k):
            self._free_slot(chunk, k)

    cdef inline Entry* _first(self) noexcept nogil:
        """The earliest timer's entry, once those before it that are dead are dropped; NULL when nothing waits."""
        cdef Entry* first
        cdef Entry entry
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
        cdef Chunk* chunk = self._find(entry.id)
        if chunk != NULL:
            prefetch(&chunk.slots[entry.id & (CHUNK - 1)])
            if chunk.items != NULL:
                prefetch(&chunk.items[entry.id & (CHUNK - 1)])

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
        cdef int64_t timer_id = self._take_slot(item is not None)
        cdef Chunk* chunk
        if timer_id < 0:
            return timer_id
        chunk = self._find(timer_id)
        if item is not None:
            Py_INCREF(item)
            chunk.items[timer_id & (CHUNK - 1)] = <PyObject*>item
        chunk.slots[timer_id & (CHUNK - 1)].seq = self._new_seq(priority)
        clear_bit(chunk.cancelled, timer_id & (CHUNK - 1))
        self._held += 1
        return timer_id

    cdef inline int64_t _add(self, int64_t run_at, int priority, object item) noexcept:
        """Add a waiting timer where `_has_room(1)`; its id, or a code."""
        cdef int64_t timer_id = self._take_slot(item is not None)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef Chunk* chunk
        cdef uint64_t seq
        if timer_id < 0:
            return timer_id
        chunk = self._find(timer_id)
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
        set_bit(self._find(out.id).held, out.id & (CHUNK - 1))
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
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
        cdef uint64_t seq
        self._counter += 1
        seq = (chunk.slots[k].seq & ~COUNTER_MASK) | self._counter
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
            self._held -= has_ticket(chunk.slots[k].seq)
        chunk.slots[k].seq = NO_TICKET
        return waited

    cdef void _hold(self, int64_t timer_id) noexcept nogil:
        """WAITING -> HELD with a new ticket: its entry is dead, and it may be armed again. Nothing, if it is held.

        Where the heap has no room to keep for it (I5) it grows, or, without buckets, the dead are left out now: one
        place at least is freed by that. Without memory to grow it stays WAITING, and comes due for nothing.
        """
        cdef Chunk* chunk = self._find(timer_id)
        cdef int64_t k = timer_id & (CHUNK - 1)
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
        cdef Chunk* dropped
        with self.lock:
            if not self._crowded():
                return 0
            self._tidying = True
            long_ = queue_count(&self._q) >= LONG
        if long_:
            with nogil:
                dropped = self._sweep()
        else:
            dropped = self._sweep()
        free_chunks(dropped)
        with self.lock:
            self._tidying = False
            needed = self._held + (ROOM if self._q.run != NULL else self._q.n)
            oversized = self._oversized()
        if oversized:
            try:
                self._resize(max(FEWEST, needed + (needed >> 1) + 1))
            except MemoryError:
                pass            # the large array serves as well
        return 0

    cdef Chunk* _sweep(self) noexcept nogil:
        """Lock, and leave the dead out, round by round, where they are too many; what `_trim` parts with."""
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
            return self._trim() if self._roomy() else NULL


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
