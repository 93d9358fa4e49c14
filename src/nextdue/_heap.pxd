"""Steps of an implicit d-ary heap of entries, on raw pointers: no lock, no Python, no allocation."""
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

cdef enum:
    ARITY = 4           # half the levels of a binary heap, and the four children of a node in two cache lines

cdef extern from *:
    """
    #define NEXTDUE_NEVER INT64_MAX
    """
    const int64_t NEVER "NEXTDUE_NEVER"     # a run_at that does not come: it, and all that is past it


cdef struct Entry:      # 24 bytes, ordered by (run_at, seq)
    int64_t run_at
    uint64_t seq        # 12 bits of inverted priority, then a 52-bit counter
    int64_t id          # generation << 32 | slot


cdef inline bint before(const Entry* a, const Entry* b) noexcept nogil:
    return a.run_at < b.run_at or (a.run_at == b.run_at and a.seq < b.seq)


cdef inline void sift_up(Entry* heap, int64_t k, Entry entry) noexcept nogil:
    """Put `entry` at k or above, toward the root."""
    cdef int64_t parent
    while k > 0:
        parent = (k - 1) // ARITY
        if not before(&entry, &heap[parent]):
            break
        heap[k] = heap[parent]
        k = parent
    heap[k] = entry


cdef inline void sift_down(Entry* heap, int64_t n, int64_t k, Entry entry) noexcept nogil:
    """Put `entry` at k or below, in a heap of n."""
    cdef int64_t child, best, last
    while True:
        child = ARITY * k + 1
        if child >= n:
            break
        last = min(child + ARITY, n)
        best = child
        for child in range(child + 1, last):
            if before(&heap[child], &heap[best]):
                best = child
        if not before(&heap[best], &entry):
            break
        heap[k] = heap[best]
        k = best
    heap[k] = entry


cdef inline void heapify(Entry* heap, int64_t n) noexcept nogil:
    """Floyd's heap construction, O(n)."""
    cdef int64_t k
    if n < 2:
        return
    for k in range((n - 2) // ARITY, -1, -1):
        sift_down(heap, n, k, heap[k])
