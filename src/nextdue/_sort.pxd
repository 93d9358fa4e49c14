"""Sorting entries by (run_at, seq): no lock, no Python, no allocation."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from ._heap cimport Entry, before

cdef extern from *:
    """
    #define NEXTDUE_LOWEST_BIT(word) __builtin_ctzll(word)
    #define NEXTDUE_HIGHEST_BIT(word) (63 - __builtin_clzll(word))
    """
    int lowest_bit "NEXTDUE_LOWEST_BIT"(uint64_t word) noexcept nogil
    int highest_bit "NEXTDUE_HIGHEST_BIT"(uint64_t word) noexcept nogil

cdef enum:
    SORT_BITS = 10          # at most so many bits in one pass: its counters fit into a page
    FEW_TO_SORT = 24


cdef inline void sort_few(Entry* entries, int64_t n) noexcept nogil:
    """Sort by insertion."""
    cdef int64_t i, j
    cdef Entry item
    for i in range(1, n):
        if before(&entries[i], &entries[i - 1]):
            item = entries[i]
            j = i
            while j > 0 and before(&item, &entries[j - 1]):
                entries[j] = entries[j - 1]
                j -= 1
            entries[j] = item


cdef inline void sort_entries(Entry* entries, int64_t n, Entry* spare) noexcept nogil:
    """Sort, with room for n more entries in `spare`.

    An MSD radix sort: one pass over the highest bits in which the keys differ leaves parts of a few entries, which are
    sorted by insertion. The depth is at most 128 / 5, since each pass takes 5 bits or all that are left.
    """
    cdef int64_t i, j, sum_, count, size
    cdef int bits, shift
    cdef uint64_t differing
    cdef int32_t[1 << SORT_BITS] counts
    cdef bint ascending, by_seq
    if n <= FEW_TO_SORT:
        sort_few(entries, n)
        return
    differing = 0
    ascending = True
    for i in range(1, n):
        differing |= <uint64_t>entries[i].run_at ^ <uint64_t>entries[0].run_at
        ascending &= before(&entries[i - 1], &entries[i])
    if ascending:
        return
    by_seq = differing == 0
    if by_seq:
        for i in range(1, n):
            differing |= entries[i].seq ^ entries[0].seq
    bits = min(highest_bit(<uint64_t>n), SORT_BITS)
    shift = max(highest_bit(differing) + 1 - bits, 0)
    size = 1 << bits
    memset(counts, 0, size * sizeof(int32_t))
    for i in range(n):
        counts[sort_digit(&entries[i], by_seq, shift) & (size - 1)] += 1
    sum_ = 0
    for i in range(size):
        count = counts[i]
        counts[i] = <int32_t>sum_
        sum_ += count
    for i in range(n):
        j = sort_digit(&entries[i], by_seq, shift) & (size - 1)
        spare[counts[j]] = entries[i]
        counts[j] += 1
    memcpy(entries, spare, n * sizeof(Entry))
    i = 0
    for j in range(size):                       # counts[j] is where part j ends
        if counts[j] - i > FEW_TO_SORT:
            sort_entries(entries + i, counts[j] - i, spare)
        i = counts[j]
    sort_few(entries, n)                        # nothing leaves its part


cdef inline int64_t sort_digit(const Entry* entry, bint by_seq, int shift) noexcept nogil:
    """The bits from `shift` up, in unsigned order."""
    if by_seq:
        return entry.seq >> shift
    return (<uint64_t>entry.run_at ^ (1ULL << 63)) >> shift
