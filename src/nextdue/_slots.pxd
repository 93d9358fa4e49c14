"""Where the record of a slot lies: in the chunk of its page, beside its 1,023 neighbours, or alone in the annex.

A slot never moves, since an id names it; but its record may. A chunk of which little is in use moves out: what is in
use becomes a *lodger* of the annex, one open-addressed table for all that lodge, and the chunk is given back. When its
page gets a chunk again they come home. So the records of a few that are left of many take memory by their own number.

A position of the annex is a slot of one of its *hosts*, which are chunks too: who has found the record of a lodger
deals with it as with any other. A lodger that goes leaves its position behind, FREE, until the annex is made anew.

No lock and no Python: raw pointers, and PyMem_Raw*.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    CHUNK_BITS = 10
    CHUNK = 1 << CHUNK_BITS     # slots that are allocated, and given back, together
    WORDS = CHUNK >> 6
    THIN = CHUNK // 4           # a chunk is thin while fewer of its slots are in use
    FEWEST_POSITIONS = 8

cdef extern from *:
    """
    #define NEXTDUE_NOBODY UINT32_MAX
    """
    const uint32_t NOBODY "NEXTDUE_NOBODY"


cdef packed struct Slot:        # 12 bytes: mostly in one cache line
    uint64_t seq                # the ticket of the slot's one live entry; of a free slot: the next free one
    uint32_t gen                # the generation of the id that has the slot, or will have it next


cdef struct Chunk:
    uint64_t[WORDS] held        # bitmaps; together they tell the slot's state, see I2 in `_timetable.pyx`
    uint64_t[WORDS] cancelled
    PyObject** items            # owned references; NULL until the chunk is given its first item
    int64_t index               # its page; ~n for the annex's host n
    int32_t size                # slots: CHUNK, or fewer in the last host
    int32_t free_head           # first free slot, or CHUNK: none; a host gives out none
    int32_t used                # slots that are not free (a retired one never is again)
    Chunk* prev                 # chunks with a free slot are linked
    Chunk* next
    Slot[CHUNK] slots           # at the end: a host may have fewer


cdef struct Annex:
    Chunk** hosts               # position p is slot p & (CHUNK - 1) of host p >> CHUNK_BITS
    uint32_t* homes             # whose record is, or was, at a position: a slot, or NOBODY; found by linear probing
    int64_t capacity            # positions
    int64_t filled              # positions that are not NOBODY's
    int64_t lodgers
    bint with_items             # its hosts have room for items


# ---------------------------------------------------------------- bits of a slot


cdef inline bint bit(const uint64_t* words, int64_t k) noexcept nogil:
    return (words[k >> 6] >> (k & 63)) & 1


cdef inline void set_bit(uint64_t* words, int64_t k) noexcept nogil:
    words[k >> 6] |= 1ULL << (k & 63)


cdef inline void clear_bit(uint64_t* words, int64_t k) noexcept nogil:
    words[k >> 6] &= ~(1ULL << (k & 63))


cdef inline bint is_free(const Chunk* chunk, int64_t k) noexcept nogil:
    return bit(chunk.held, k) and bit(chunk.cancelled, k)


# ---------------------------------------------------------------- chunks


cdef inline int64_t chunk_bytes(int64_t size) noexcept nogil:
    return sizeof(Chunk) - (CHUNK - size) * <int64_t>sizeof(Slot)


cdef inline Chunk* make_chunk(int64_t index, int64_t size, bint with_items) noexcept nogil:
    """A chunk whose slots are FREE; they are not linked, and have no generation. NULL: no memory."""
    cdef Chunk* chunk = <Chunk*>PyMem_RawMalloc(chunk_bytes(size))
    if chunk == NULL:
        return NULL
    memset(chunk, 0, chunk_bytes(0))
    memset(chunk.held, 0xFF, sizeof(chunk.held))
    memset(chunk.cancelled, 0xFF, sizeof(chunk.cancelled))
    chunk.index = index
    chunk.size = <int32_t>size
    chunk.free_head = CHUNK
    if with_items:
        chunk.items = <PyObject**>PyMem_RawCalloc(size, sizeof(PyObject*))
        if chunk.items == NULL:
            PyMem_RawFree(chunk)
            return NULL
    return chunk


cdef inline void free_chunk(Chunk* chunk) noexcept nogil:
    if chunk != NULL:
        PyMem_RawFree(chunk.items)
        PyMem_RawFree(chunk)


cdef inline void move_slot(Chunk* target, int64_t to, Chunk* source, int64_t k) noexcept nogil:
    """Move a record with its state and its item to a place that is FREE; the old place is then FREE."""
    target.slots[to] = source.slots[k]
    if not bit(source.held, k):
        clear_bit(target.held, to)
    if not bit(source.cancelled, k):
        clear_bit(target.cancelled, to)
    if source.items != NULL and source.items[k] != NULL:
        target.items[to] = source.items[k]
        source.items[k] = NULL
    set_bit(source.held, k)
    set_bit(source.cancelled, k)


# ---------------------------------------------------------------- the annex


cdef inline int64_t host_count(const Annex* annex) noexcept nogil:
    return (annex.capacity + CHUNK - 1) >> CHUNK_BITS


cdef inline int64_t annex_bytes(const Annex* annex) noexcept nogil:
    cdef int64_t n, total = annex.capacity * <int64_t>sizeof(uint32_t)
    for n in range(host_count(annex)):
        total += <int64_t>sizeof(Chunk*) + chunk_bytes(annex.hosts[n].size)
        if annex.with_items:
            total += annex.hosts[n].size * <int64_t>sizeof(PyObject*)
    return total


cdef inline void annex_release(Annex* annex) noexcept nogil:
    """Free the hosts; what lodges there is the owner's to care for."""
    cdef int64_t n
    if annex.hosts != NULL:
        for n in range(host_count(annex)):
            free_chunk(annex.hosts[n])
    PyMem_RawFree(annex.hosts)
    PyMem_RawFree(annex.homes)
    memset(annex, 0, sizeof(Annex))


cdef inline int64_t annex_probe(const Annex* annex, int64_t slot) noexcept nogil:
    """Where a slot's record is, or was, or the position of nobody where it would go; some are always nobody's."""
    cdef int64_t p = (<uint64_t>(<uint32_t>slot * 0x9E3779B1U) * <uint64_t>annex.capacity) >> 32
    while annex.homes[p] != slot and annex.homes[p] != NOBODY:
        p += 1
        if p == annex.capacity:
            p = 0
    return p


cdef inline int64_t annex_find(const Annex* annex, int64_t slot) noexcept nogil:
    """The position where a slot lodges; -1: it does not."""
    cdef int64_t p
    if annex.lodgers == 0:
        return -1
    p = annex_probe(annex, slot)
    if annex.homes[p] == NOBODY or is_free(annex.hosts[p >> CHUNK_BITS], p & (CHUNK - 1)):
        return -1
    return p


cdef inline void annex_take_in(Annex* annex, int64_t slot, Chunk* source, int64_t k) noexcept nogil:
    """Move a record in, where `annex_reserve` has seen to room."""
    cdef int64_t p = annex_probe(annex, slot)
    annex.filled += annex.homes[p] == NOBODY
    annex.homes[p] = <uint32_t>slot
    annex.lodgers += 1
    annex.hosts[p >> CHUNK_BITS].used += 1
    move_slot(annex.hosts[p >> CHUNK_BITS], p & (CHUNK - 1), source, k)


cdef inline bint annex_is_light(const Annex* annex) noexcept nogil:
    """Less than half of it is in use."""
    return 2 * annex.lodgers + 8 * FEWEST_POSITIONS < annex.capacity


cdef inline bint annex_make(Annex* annex, int64_t lodgers, bint with_items) noexcept nogil:
    """An empty annex that will be 3/4 full with so many. False: no memory."""
    cdef int64_t n, capacity = lodgers + lodgers // 3 + FEWEST_POSITIONS
    memset(annex, 0, sizeof(Annex))
    annex.hosts = <Chunk**>PyMem_RawCalloc((capacity + CHUNK - 1) >> CHUNK_BITS, sizeof(Chunk*))
    annex.homes = <uint32_t*>PyMem_RawMalloc(capacity * sizeof(uint32_t))
    annex.capacity = capacity
    annex.with_items = with_items
    if annex.hosts == NULL or annex.homes == NULL:
        annex_release(annex)
        return False
    memset(annex.homes, 0xFF, capacity * sizeof(uint32_t))
    for n in range(host_count(annex)):
        annex.hosts[n] = make_chunk(~n, min(CHUNK, capacity - (n << CHUNK_BITS)), with_items)
        if annex.hosts[n] == NULL:
            annex_release(annex)
            return False
    return True


cdef inline bint annex_reserve(Annex* annex, int64_t extra, bint with_items) noexcept nogil:
    """See to room for so many more lodgers, at most 7/8 full, and that not much is left unused. False: no memory."""
    cdef int64_t p
    cdef Annex fresh
    cdef Chunk* host
    with_items |= annex.with_items
    if annex.lodgers + extra == 0:
        annex_release(annex)
        return True
    if (
        8 * (annex.filled + extra) <= 7 * annex.capacity
        and not annex_is_light(annex)
        and with_items == annex.with_items
    ):
        return True
    if not annex_make(&fresh, annex.lodgers + extra, with_items):
        return False
    for p in range(annex.capacity):
        host = annex.hosts[p >> CHUNK_BITS]
        if not is_free(host, p & (CHUNK - 1)):
            annex_take_in(&fresh, annex.homes[p], host, p & (CHUNK - 1))
    annex_release(annex)
    annex[0] = fresh
    return True
