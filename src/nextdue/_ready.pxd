"""The contract of the compiled ready line. Nothing here locks: the caller holds the timetable's lock."""
from libc.stdint cimport int64_t, uint64_t

from ._heap cimport Entry
from ._timetable cimport Timetable

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
    cdef bint _is_live(self, const Entry* entry) noexcept nogil

    cdef bint _put(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil
    cdef int64_t _promote(self, int64_t now, int64_t limit) noexcept nogil
    cdef int64_t _pop(self, uint64_t bound) noexcept nogil
    cdef int64_t _waiting(self) noexcept nogil
    cdef void _forget(self) noexcept nogil
