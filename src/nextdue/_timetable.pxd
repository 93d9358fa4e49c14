"""The contract of the compiled timetable: what `_ready.pyx` and the compiled agenda may reach.

Methods with a leading underscore do not lock: their caller holds `lock`. They are straight-line C without an
allocation of Python objects and without a dropped reference, so no finalizer, no collection and no wait for the GIL
happens under the lock. A reference that a method takes out is the caller's to drop, after it has given the lock back.
"""
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

cimport cython
cimport numpy as cnp

from ._heap cimport Entry
from ._queue cimport Child, Queue, Way
from ._slots cimport Annex, Chunk

cdef enum:
    NO_MEMORY = -1              # what `_add` returns instead of an id
    TOO_MANY = -2


cdef struct Page:
    Chunk* chunk                # NULL: given back, or never used
    uint32_t gen_floor          # where generations begin when the chunk is made again; past LAST_GEN: never again
    uint32_t away               # slots whose record lodges in the annex, while there is no chunk


cdef struct Taken:              # what a bulk pop has taken so far
    int64_t* ids                # in order, marked by `_part`; the memory of an array
    int64_t n
    int64_t room                # places that there are
    int64_t limit               # n will not pass it


cdef uint32_t LAST_GEN          # a slot whose generation has passed it is retired; tests lower it (`__pyx_capi__`)


cdef class Timetable:
    cdef cython.pymutex lock    # guards every field below
    cdef Queue _q               # all entries, dead ones included; its heap pointer is re-read after every lock
    cdef PyObject* _array       # owned: the numpy array in whose buffer the heap lies
    cdef Entry* _raw            # where it lies instead, when it had to grow under the lock; else NULL
    cdef int64_t _live          # waiting timers; all other entries are dead
    cdef int64_t _held          # slots without an entry here that may be re-armed
    cdef uint64_t _counter      # last one given out
    cdef Page* _pages
    cdef int64_t _page_count
    cdef int64_t _page_capacity
    cdef Chunk* _open           # head of the list of chunks with a free slot
    cdef int64_t _chunk_count
    cdef int64_t _item_chunks
    cdef int64_t _thin_chunks
    cdef int64_t _thin_limit    # more of them are worth a `_trim`; -1: the annex is
    cdef int64_t _gap           # no page below it may be given a chunk
    cdef uint32_t _first_gen    # where generations begin on a page past the last one
    cdef Annex _annex           # records of slots whose page has no chunk; a page past the last may have some too
    cdef bint _guarded          # by an agenda's lock, the one of its first timetable, in place of its own
    cdef bint _tidying          # some thread is at it, round by round; no other needs to
    cdef object _collected      # unused: a Python attribute makes this a type that the collector visits
    cdef object __weakref__

    # Slots.
    cdef Chunk* _find(self, int64_t timer_id, int64_t* k) noexcept nogil
    cdef int64_t _lodging(self, int64_t timer_id) noexcept nogil
    cdef Chunk* _home(self, int64_t timer_id) noexcept nogil
    cdef Chunk* _chunk_at(self, int64_t index) noexcept nogil
    cdef bint _is_waiting(self, int64_t timer_id) noexcept nogil
    cdef uint64_t _ticket(self, int64_t timer_id) noexcept nogil
    cdef object _item(self, int64_t timer_id)
    cdef void _link(self, Chunk* chunk) noexcept nogil
    cdef void _unlink(self, Chunk* chunk) noexcept nogil
    cdef Chunk* _new_chunk(self, bint attached) noexcept nogil
    cdef bint _new_page(self, bint attached) noexcept nogil
    cdef void _bring_home(self, Chunk* chunk) noexcept nogil
    cdef int64_t _take_slot(self, bint with_item, bint attached) noexcept nogil
    cdef void _free_slot(self, Chunk* chunk, int64_t k) noexcept nogil
    cdef void _lodger_gone(self, Chunk* host, int64_t k) noexcept nogil
    cdef void _set_thin_limit(self) noexcept nogil
    cdef void _trim(self) noexcept nogil
    cdef void _move_out(self, Chunk* chunk) noexcept nogil
    cdef void _drop_pages(self, int64_t bound) noexcept nogil
    cdef bint _has_pages(self, int64_t extra) noexcept nogil
    cdef bint _grow_pages(self, int64_t extra) noexcept nogil

    # The queue.
    cdef bint _has_room(self, int64_t extra) noexcept nogil
    cdef bint _make_way(self, int64_t extra) noexcept nogil
    cdef int64_t _dead(self) noexcept nogil
    cdef bint _crowded(self) noexcept nogil
    cdef bint _roomy(self) noexcept nogil
    cdef bint _oversized(self) noexcept nogil
    cdef bint _is_few(self) noexcept nogil
    cdef uint64_t _new_seq(self, int priority) noexcept nogil
    cdef void _push(self, int64_t run_at, uint64_t seq, int64_t timer_id) noexcept nogil
    cdef Entry* _first(self) noexcept nogil
    cdef void _remove(self, Entry* first) noexcept nogil
    cdef void _settle(self) noexcept nogil
    cdef void _fetch(self, const Entry* entry) noexcept nogil
    cdef bint _is_live(self, const Entry* entry) noexcept nogil
    cdef void _entry_gone(self, const Entry* entry) noexcept nogil
    cdef int64_t _keep_live(self, Entry* entries, int64_t n) noexcept nogil
    cdef void _rebuild_near(self) noexcept nogil
    cdef bint _rebuild_far(self, Entry* behind) noexcept nogil
    cdef void _compact(self, Child* leaf, const Way* way) noexcept nogil
    cdef bint _has_place(self) noexcept nogil
    cdef bint _reserve_held(self) noexcept nogil
    cdef str _check_entry(self, const Entry* entry, int64_t* live, int64_t* doomed)
    cdef str _check_host(self, const Chunk* host, int64_t used)
    cdef str _check_annex(self)

    # In bulk.
    cdef int64_t _add_round(
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done, bint attached
    ) noexcept nogil
    cdef int64_t _put_block(self, const int64_t* at, const int64_t* ids, int64_t k) noexcept nogil
    cdef int64_t _part(self, int64_t timer_id) noexcept nogil
    cdef void _part_all(self, Entry* entries, int64_t n) noexcept nogil

    # Timers that are taken, held and armed again under one id: what an owner of jobs needs.
    cdef int64_t _occupy(self, int priority, object item) noexcept
    cdef int64_t _add(self, int64_t run_at, int priority, object item) noexcept
    cdef int64_t _next(self) noexcept nogil
    cdef bint _take_due(self, int64_t now, Entry* out) noexcept nogil
    cdef void _rearm(self, int64_t timer_id, int64_t run_at) noexcept nogil
    cdef bint _disarm(self, int64_t timer_id) noexcept nogil
    cdef void _hold(self, int64_t timer_id) noexcept nogil
    cdef int64_t _take_due_id(self, int64_t now) noexcept nogil
    cdef object _release(self, int64_t timer_id)
    cdef list _snapshot(self)                       # locks

    # These lock, or allocate: not under the lock.
    cdef int64_t _add_block(
        self, int64_t* source, int64_t* target, int64_t k, PyObject** refs, int64_t* done, bint attached
    ) noexcept nogil
    cdef bint _drain(self, int64_t now, Taken* out) noexcept nogil
    cdef int64_t _cancel_block(self, int64_t* ids, int64_t k, int64_t* with_items) noexcept nogil
    cdef bint _clear_block(self, PyObject** owner, Entry** raw, Queue* queue) noexcept nogil
    cdef int _release_block(self, int64_t* ids, int64_t k, int64_t stride, list out) except -1
    cdef cnp.ndarray _take_block(self, int64_t now, Taken* taken, list items)
    cdef int _make_room(self, int64_t extra) except -1
    cdef int _resize(self, int64_t capacity) except -1
    cdef void _exchange(self, PyObject** owner, Entry* heap, int64_t capacity) noexcept nogil
    cdef int _tidy(self) except -1
    cdef void _sweep(self) noexcept nogil
