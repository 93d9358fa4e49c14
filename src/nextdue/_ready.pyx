# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False, nonecheck=False
# nonecheck, which a debug build turns on elsewhere: with it Cython 3.3.1 refuses `self.n += 1` without the GIL.
"""The ready line: due jobs that wait for a worker, by higher priority, then run_at, then seq.

What the timetable hands over comes sorted, so a FIFO ring for each priority in use keeps the order at O(1) a job. What
comes out of order (a clock that went back, a retry, a freed key) goes to a small heap beside the ring; the better of
the two heads is next. Priorities are found by two levels of 64-bit bitmaps: no search, however many are in use.

Entries lie in malloc'ed memory, not in numpy arrays, because a ring grows under the lock, where Python may not
allocate. An entry is live while its slot still has its ticket; dead ones are passed over, and swept when they are half.

Slots and items of very many jobs lie all over memory: each is a miss of the cache, and of the TLB besides, 200 ns. What
the next pops will look at is fetched ahead, for eight entries at a time: a prefetch that misses the TLB holds up what
comes after it, and eight of them overlap. A million jobs in random order through `run_due`, ns a job, with the same for
what the history forgets: 1,155-1,265 without; 614-767 for one entry each time; 601-637 for eight; 623-643 for sixteen.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint64_t

from ._heap cimport Entry, before, heapify, sift_down, sift_up
from ._slots cimport CHUNK, CHUNK_BITS, Chunk
from ._timetable cimport Timetable

cdef extern from *:
    """
    #define NEXTDUE_LOWEST_BIT(word) __builtin_ctzll(word)
    """
    int lowest_bit "NEXTDUE_LOWEST_BIT"(uint64_t word) noexcept nogil

cdef enum:
    FEWEST = 16             # entries that a ring has room for at least
    ROOMY = 4096            # an empty ring larger than this gives its memory back

cdef uint64_t COUNTER_MASK = (1ULL << 52) - 1
cdef int64_t SLOT_MASK = 0xFFFFFFFF


cdef class ReadyLine:
    """Hold the entries that a timetable has handed over. One agenda owns it; see the module for the structure."""

    def __cinit__(self, Timetable timetable not None):
        self._timetable = timetable

    def __dealloc__(self):
        cdef int b, k
        for b in range(BLOCK):
            if self._blocks[b] != NULL:
                for k in range(BLOCK):
                    PyMem_RawFree(self._blocks[b][k].ring)
                    PyMem_RawFree(self._blocks[b][k].spill)
                PyMem_RawFree(self._blocks[b])

    cdef inline Level* _level(self, uint64_t seq) noexcept nogil:
        """The level of a seq's priority; NULL when there is no memory for it."""
        cdef int64_t index = seq >> 52
        cdef Level** block = &self._blocks[index >> 6]
        if block[0] == NULL:
            block[0] = <Level*>PyMem_RawCalloc(BLOCK, sizeof(Level))
            if block[0] == NULL:
                return NULL
        return &block[0][index & 63]

    cdef inline Level* _first(self) noexcept nogil:
        """The highest priority that has entries; NULL when nothing is ready."""
        cdef int b
        if self._used_blocks == 0:
            return NULL
        b = lowest_bit(self._used_blocks)
        return &self._blocks[b][lowest_bit(self._used_levels[b])]

    cdef bint _put(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil:
        """Add an entry; False when there is no memory, and then nothing has changed."""
        cdef Entry entry = Entry(run_at, seq, timer_id)
        cdef Level* level = self._level(seq)
        cdef int64_t index = seq >> 52
        if level == NULL:
            return False
        if level.count == 0 or before(&level.ring[(level.head + level.count - 1) & (level.capacity - 1)], &entry):
            if level.count == level.capacity and not grow_ring(level):
                return False
            level.ring[(level.head + level.count) & (level.capacity - 1)] = entry
            level.count += 1
        else:
            if level.spilled == level.spill_capacity and not grow_spill(level):
                return False
            level.spilled += 1
            sift_up(level.spill, level.spilled - 1, entry)
        self._used_levels[index >> 6] |= 1ULL << (index & 63)
        self._used_blocks |= 1ULL << (index >> 6)
        self._count += 1
        return True

    cdef inline Entry* _best(self, Level* level) noexcept nogil:
        """The next entry of a level that has some: the better of the two heads."""
        if level.spilled == 0:
            return &level.ring[level.head]
        if level.count == 0 or before(&level.spill[0], &level.ring[level.head]):
            return &level.spill[0]
        return &level.ring[level.head]

    cdef inline void _remove(self, Level* level, const Entry* best) noexcept nogil:
        """Remove what `_best` returned."""
        cdef int64_t index = best.seq >> 52
        if best == &level.spill[0] and level.spilled > 0:
            level.spilled -= 1
            if level.spilled > 0:
                sift_down(level.spill, level.spilled, 0, level.spill[level.spilled])
        else:
            level.head = (level.head + 1) & (level.capacity - 1)
            level.count -= 1
        self._count -= 1
        self._settle(level, index)

    cdef inline void _settle(self, Level* level, int64_t index) noexcept nogil:
        """Entries have left a level: note if it is empty, and give its memory back if that is much."""
        if level.count + level.spilled > 0:
            return
        self._used_levels[index >> 6] &= ~(1ULL << (index & 63))
        if self._used_levels[index >> 6] == 0:
            self._used_blocks &= ~(1ULL << (index >> 6))
        level.head = 0
        if level.capacity > ROOMY:
            PyMem_RawFree(level.ring)
            level.ring = NULL
            level.capacity = 0
        if level.spill_capacity > ROOMY:
            PyMem_RawFree(level.spill)
            level.spill = NULL
            level.spill_capacity = 0

    cdef inline bint _is_live(self, const Entry* entry) noexcept nogil:
        cdef int64_t k
        cdef Chunk* chunk = self._chunk(entry.id, &k)
        return chunk != NULL and chunk.slots[k].seq == entry.seq        # no seq is given out twice

    cdef inline Chunk* _chunk(self, int64_t timer_id, int64_t* k) noexcept nogil:
        """As `Timetable._find`: inline, as long as the slot's record is at home."""
        cdef int64_t page = (timer_id & SLOT_MASK) >> CHUNK_BITS
        if page < self._timetable._page_count and self._timetable._pages[page].chunk != NULL:
            k[0] = timer_id & (CHUNK - 1)
            return self._timetable._pages[page].chunk
        return self._timetable._find(timer_id, k)

    cdef inline Entry* _ahead(self, Level* level, int64_t k) noexcept nogil:
        """The k-th entry of a ring behind its head, which has more than k."""
        return &level.ring[(level.head + k) & (level.capacity - 1)]

    cdef void _fetch(self, int64_t timer_id) noexcept nogil:
        """Bring a slot, and the place of its item, into the cache."""
        cdef int64_t k
        cdef Chunk* chunk = self._chunk(timer_id, &k)
        if chunk != NULL and chunk.items != NULL:
            prefetch(&chunk.slots[k])
            prefetch(&chunk.items[k])

    cdef inline void _fetch_ahead(self, Level* level) noexcept nogil:
        """Now and then, bring what the next pops of a ring will look at into the cache: items, and the slots beyond."""
        cdef int64_t k, slot, timer_id
        cdef Chunk* chunk
        if level.head & (GROUP - 1) != 0 or level.count < 3 * GROUP:
            return
        for k in range(GROUP, 2 * GROUP):
            timer_id = self._ahead(level, k).id
            chunk = self._chunk(timer_id, &slot)
            if chunk != NULL and chunk.items != NULL:
                prefetch_item(chunk.items[slot])
        for k in range(2 * GROUP, 3 * GROUP):
            self._fetch(self._ahead(level, k).id)

    cdef int64_t _promote(self, int64_t now, int64_t limit) noexcept nogil:
        """Take up to `limit` due timers over from the timetable; how many. If memory is short, the rest stays."""
        cdef int64_t k = 0
        cdef Entry entry
        while k < limit and self._timetable._take_due(now, &entry):
            if not self._put(entry.run_at, entry.seq, entry.id):
                self._timetable._rearm(entry.id, entry.run_at)
                break
            k += 1
        return k

    cdef int64_t _pop(self, uint64_t bound) noexcept nogil:
        """Remove the next live entry and return its id; -1 when there is none, or its counter is not below `bound`."""
        cdef Level* level
        cdef Entry* best
        cdef int64_t timer_id
        while True:
            level = self._first()
            if level == NULL:
                return -1
            best = self._best(level)
            timer_id = best.id
            if not self._is_live(best):
                self._dead -= 1
                timer_id = -1
            elif best.seq & COUNTER_MASK >= bound:
                return -1
            self._remove(level, best)
            if timer_id >= 0:
                self._fetch_ahead(level)
                return timer_id

    cdef object _item(self, int64_t timer_id):
        """The item of what was just popped; it has one."""
        cdef int64_t k
        cdef Chunk* chunk = self._chunk(timer_id, &k)
        return <object>chunk.items[k]

    cdef int64_t _waiting(self) noexcept nogil:
        return self._count - self._dead

    cdef void _forget(self) noexcept nogil:
        """An entry here has died (its slot was disarmed or armed anew). Sweep when half are dead: O(1) amortised."""
        cdef int b, k
        cdef int64_t i, kept
        cdef Level* level
        cdef Entry entry
        self._dead += 1
        if 2 * self._dead <= self._count:
            return
        self._count = 0
        self._dead = 0
        for b in range(BLOCK):
            if not self._used_blocks >> b & 1:
                continue
            for k in range(BLOCK):
                if not self._used_levels[b] >> k & 1:
                    continue
                level = &self._blocks[b][k]
                kept = 0
                for i in range(level.count):
                    entry = level.ring[(level.head + i) & (level.capacity - 1)]
                    if self._is_live(&entry):
                        level.ring[(level.head + kept) & (level.capacity - 1)] = entry
                        kept += 1
                level.count = kept
                kept = 0
                for i in range(level.spilled):
                    if self._is_live(&level.spill[i]):
                        level.spill[kept] = level.spill[i]
                        kept += 1
                level.spilled = kept
                heapify(level.spill, kept)
                self._count += level.count + level.spilled
                self._settle(level, 64 * b + k)


cdef bint grow_ring(Level* level) noexcept nogil:
    cdef int64_t capacity = max(FEWEST, 2 * level.capacity)
    cdef int64_t i
    cdef Entry* ring = <Entry*>PyMem_RawRealloc(level.ring, capacity * sizeof(Entry))
    if ring == NULL:
        return False
    for i in range(level.head):             # it is full: what had wrapped round goes on behind the old end
        ring[level.capacity + i] = ring[i]
    level.ring = ring
    level.capacity = capacity
    return True


cdef bint grow_spill(Level* level) noexcept nogil:
    cdef int64_t capacity = max(FEWEST, 2 * level.spill_capacity)
    cdef Entry* spill = <Entry*>PyMem_RawRealloc(level.spill, capacity * sizeof(Entry))
    if spill == NULL:
        return False
    level.spill = spill
    level.spill_capacity = capacity
    return True
