"""The contract of the compiled ready line. Nothing here locks: the caller holds the timetable's lock."""
from libc.stdint cimport int64_t, uint64_t

from ._heap cimport Entry
from ._slots cimport Chunk
from ._timetable cimport Timetable

cdef extern from *:
    """
    /* To be written. The empty asm keeps gcc from dropping a function that only prefetches. */
    #define NEXTDUE_PREFETCH(address) do { __builtin_prefetch(address, 1); __asm__ volatile(""); } while (0)
    #define NEXTDUE_LINE 64
    """
    void prefetch "NEXTDUE_PREFETCH"(const void* address) noexcept nogil
    const int LINE "NEXTDUE_LINE"           # bytes of a cache line


cdef enum:
    GROUP = 8               # memory that is far is fetched for so many timers at a time: the misses overlap then


cdef inline void prefetch_item(const void* item) noexcept nogil:
    """Bring an object of the size of a Job into the cache."""
    prefetch(item)
    prefetch(<const char*>item + LINE)


cdef enum:
    LEVELS = 4096           # one for each priority, the highest first
    BLOCK = 64


cdef struct Level:
    Entry* ring             # in order; capacity is a power of two
    int64_t capacity
    int64_t head
    int64_t count
    Entry* spill            # a heap of what arrived out of order
    int64_t spill_capacity
    int64_t spilled


cdef class ReadyLine:
    cdef Timetable _timetable
    cdef Level* _blocks[BLOCK]              # each NULL, or 64 levels
    cdef uint64_t _used_blocks              # bit b: block b has a level with entries
    cdef uint64_t _used_levels[BLOCK]       # bit k of word b: level 64 b + k has entries
    cdef int64_t _count                     # entries, dead ones included
    cdef int64_t _dead

    cdef Level* _level(self, uint64_t seq) noexcept nogil
    cdef Level* _first(self) noexcept nogil
    cdef Entry* _best(self, Level* level) noexcept nogil
    cdef void _remove(self, Level* level, const Entry* best) noexcept nogil
    cdef void _settle(self, Level* level, int64_t index) noexcept nogil
    cdef Chunk* _chunk(self, int64_t timer_id, int64_t* k) noexcept nogil
    cdef Entry* _ahead(self, Level* level, int64_t k) noexcept nogil
    cdef void _fetch(self, int64_t timer_id) noexcept nogil
    cdef bint _is_live(self, const Entry* entry) noexcept nogil
    cdef void _fetch_ahead(self, Level* level) noexcept nogil

    cdef bint _put(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil
    cdef int64_t _promote(self, int64_t now, int64_t limit) noexcept nogil
    cdef int64_t _pop(self, uint64_t bound) noexcept nogil
    cdef object _item(self, int64_t timer_id)
    cdef int64_t _waiting(self) noexcept nogil
    cdef void _forget(self) noexcept nogil
