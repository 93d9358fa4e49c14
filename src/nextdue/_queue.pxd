"""A priority queue of entries that stays fast when it is large: a small heap for what is near, buckets for what is far.

A heap of a million entries is slow because each of its levels misses the cache. Here the heap holds about a thousand.
What lies behind `base`, a key (run_at, seq), is appended to a bucket: the bucket of the highest 6-bit digit in which
its 128-bit key differs from base, and of the value of that digit there. All of a lower bucket comes before all of a
higher one, so when the heap has run out only the lowest bucket is looked at: if it is small its entries become the heap
and base moves behind it; if not, base becomes its least key and the others move to lower buckets. An entry moves about
log64(n) times, and each move is sequential.

This is a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, 1990) with digits instead of bits, and near kin of a hierarchical
timing wheel such as Seastar's `timer_set`; but it is exact, needs no tick, and base may move back, since what is not
behind it goes to the heap.

    Q1  Every far entry is greater than base, and lies in bucket (level, digit) as above.
    Q2  The heap may hold anything; its root is the least of all if it is not greater than base, or if no far entry is
        less.
    Q3  An entry needs room in the heap to be pushed, which the owner provides. A block for a bucket is taken when there
        is memory for one, and else the heap serves. While a far entry is less than all in the heap, or that is empty,
        the heap has room for one more: so the least can always be brought to the root.

No lock, no Python, no numpy: raw pointers. Blocks of 20 entries are malloc'ed one by one, and a few are kept.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memmove, memset

from ._heap cimport Entry, before, heapify, sift_down, sift_up

cdef extern from *:
    """
    #define NEXTDUE_LOWEST_BIT(word) __builtin_ctzll(word)
    #define NEXTDUE_HIGHEST_BIT(word) (63 - __builtin_clzll(word))
    """
    int lowest_bit "NEXTDUE_LOWEST_BIT"(uint64_t word) noexcept nogil
    int highest_bit "NEXTDUE_HIGHEST_BIT"(uint64_t word) noexcept nogil

cdef enum:
    DIGIT = 6
    FAN = 1 << DIGIT
    LOW_LEVELS = 11         # of seq; as many above them, of run_at
    LEVELS = 2 * LOW_LEVELS
    BLOCK = 20              # entries of a block: half a kilobyte
    LOAD = 512              # a bucket of at most so many goes into the heap whole
    NEAR = 1000             # entries of a heap from which on buckets pay
    CACHED = 8              # free blocks that are kept


cdef struct Block:
    Entry[BLOCK] entries
    int64_t count
    Block* next


cdef struct Bucket:
    Block* first
    Block* last
    int64_t count


cdef struct Far:
    uint64_t[LEVELS] used   # bit d of word l: bucket (l, d) has entries
    Bucket[LEVELS][FAN] buckets


cdef struct Queue:
    Entry* heap             # the owner's memory
    int64_t capacity        # of the heap, entries
    int64_t n               # entries in the heap
    int64_t far_n           # entries in buckets
    Far* far                # NULL until there is something far
    int64_t base_at         # base; without buckets the greatest key, so that nothing is behind it
    uint64_t base_seq
    Block* free
    int64_t free_n
    int64_t blocks          # in buckets


cdef inline void queue_init(Queue* q) noexcept nogil:
    memset(q, 0, sizeof(Queue))
    q.base_at = INT64_MAX
    q.base_seq = <uint64_t>-1


cdef inline void free_blocks(Block* block) noexcept nogil:
    cdef Block* following
    while block != NULL:
        following = block.next
        PyMem_RawFree(block)
        block = following


cdef inline void queue_release(Queue* q) noexcept nogil:
    """Free blocks and buckets, and what is in them; the heap's memory is the owner's."""
    cdef int level, digit
    if q.far != NULL:
        for level in range(LEVELS):
            for digit in range(FAN):
                free_blocks(q.far.buckets[level][digit].first)
        PyMem_RawFree(q.far)
    free_blocks(q.free)
    q.far = NULL
    q.free = NULL
    q.far_n = q.blocks = q.free_n = 0
    q.base_at = INT64_MAX
    q.base_seq = <uint64_t>-1


# ---------------------------------------------------------------- buckets


cdef inline void give_block(Queue* q, Block* block) noexcept nogil:
    q.blocks -= 1
    if q.free_n >= CACHED:
        PyMem_RawFree(block)
        return
    block.next = q.free
    q.free = block
    q.free_n += 1


cdef inline bint append(Queue* q, Bucket* bucket, const Entry* entry) noexcept nogil:
    """False when there is no memory."""
    cdef Block* block = bucket.last
    if block == NULL or block.count == BLOCK:
        block = q.free
        if block != NULL:
            q.free = block.next
            q.free_n -= 1
        else:
            block = <Block*>PyMem_RawMalloc(sizeof(Block))
            if block == NULL:
                return False
        q.blocks += 1
        block.next = NULL
        block.count = 0
        if bucket.last == NULL:
            bucket.first = block
        else:
            bucket.last.next = block
        bucket.last = block
    block.entries[block.count] = entry[0]
    block.count += 1
    bucket.count += 1
    return True


cdef inline void place_of(const Queue* q, const Entry* entry, int* level, int* digit) noexcept nogil:
    """The bucket of an entry that is greater than base (Q1)."""
    cdef uint64_t differing = <uint64_t>entry.run_at ^ <uint64_t>q.base_at
    cdef uint64_t key
    cdef int shift
    if differing != 0:
        key = <uint64_t>entry.run_at ^ (1ULL << 63)     # in unsigned order
        level[0] = LOW_LEVELS
    else:
        differing = entry.seq ^ q.base_seq
        key = entry.seq
        level[0] = 0
    shift = highest_bit(differing) // DIGIT
    level[0] += shift
    digit[0] = <int>((key >> (DIGIT * shift)) & (FAN - 1))


cdef inline bint put_far(Queue* q, const Entry* entry) noexcept nogil:
    """Append an entry that is greater than base to its bucket; False when there is no memory."""
    cdef int level, digit
    place_of(q, entry, &level, &digit)
    if not append(q, &q.far.buckets[level][digit], entry):
        return False
    q.far.used[level] |= 1ULL << digit
    q.far_n += 1
    return True


cdef inline bint is_behind(const Queue* q, const Entry* entry) noexcept nogil:
    return entry.run_at > q.base_at or (entry.run_at == q.base_at and entry.seq > q.base_seq)


cdef inline void into_heap(Queue* q, const Entry* entry) noexcept nogil:
    q.n += 1
    sift_up(q.heap, q.n - 1, entry[0])


cdef inline Bucket* lowest_bucket(Queue* q, int* level, int* digit) noexcept nogil:
    """The bucket of the least far entries, where there are any."""
    level[0] = 0
    while q.far.used[level[0]] == 0:
        level[0] += 1
    digit[0] = lowest_bit(q.far.used[level[0]])
    return &q.far.buckets[level[0]][digit[0]]


cdef inline Entry end_of(const Queue* q, int level, int digit) noexcept nogil:
    """The greatest key that has its place in a bucket: base's above the digit, the digit, and ones below."""
    cdef int shift = DIGIT * (level - LOW_LEVELS if level >= LOW_LEVELS else level)
    cdef uint64_t ones = (1ULL << shift) - 1
    cdef uint64_t part = ((<uint64_t>digit << shift) | ones)
    cdef uint64_t all_ = ((<uint64_t>(FAN - 1) << shift) | ones)        # bits past the 64th drop out
    if level >= LOW_LEVELS:
        part |= (<uint64_t>q.base_at ^ (1ULL << 63)) & ~all_
        return Entry(<int64_t>(part ^ (1ULL << 63)), <uint64_t>-1, 0)
    return Entry(q.base_at, (q.base_seq & ~all_) | part, 0)


cdef inline int64_t start_of(const Queue* q, int level, int digit) noexcept nogil:
    """The least run_at that has its place in a bucket."""
    cdef int shift
    if level < LOW_LEVELS:
        return q.base_at
    shift = DIGIT * (level - LOW_LEVELS)
    return <int64_t>(<uint64_t>end_of(q, level, digit).run_at & ~((1ULL << shift) - 1))


cdef inline Bucket detach(Queue* q, int level, int digit) noexcept nogil:
    """Take a bucket's entries out: their blocks, which are still counted, are the caller's to give back."""
    cdef Bucket taken = q.far.buckets[level][digit]
    memset(&q.far.buckets[level][digit], 0, sizeof(Bucket))
    q.far.used[level] &= ~(1ULL << digit)
    q.far_n -= taken.count
    return taken


cdef inline void join(Queue* q, Bucket* target, Bucket* source) noexcept nogil:
    """Move all of a bucket to another. A few entries are copied, lest many blocks with little in them be chained."""
    cdef int64_t i = 0
    if source.count <= BLOCK // 2 and target.last != NULL and source.first == source.last:
        while i < source.count and append(q, target, &source.first.entries[i]):
            i += 1
        if i == source.count:
            give_block(q, source.first)
            return
        source.first.count -= i             # no memory: chain what is left
        source.count -= i
        memmove(&source.first.entries[0], &source.first.entries[i], source.count * sizeof(Entry))
    if target.last == NULL:
        target.first = source.first
    else:
        target.last.next = source.first
    target.last = source.last
    target.count += source.count


cdef inline void set_base(Queue* q, int64_t at, uint64_t seq) noexcept nogil:
    """Move base back, to a lesser key. Buckets below the level where old and new differ become one there (Q1)."""
    cdef Entry old = Entry(q.base_at, q.base_seq, 0)
    cdef Bucket source
    cdef int level, digit, lower, d
    q.base_at = at
    q.base_seq = seq
    if q.far_n == 0 or (at == old.run_at and seq == old.seq):
        return
    place_of(q, &old, &level, &digit)
    for lower in range(level):
        while q.far.used[lower] != 0:
            d = lowest_bit(q.far.used[lower])
            q.far.used[lower] &= q.far.used[lower] - 1
            source = q.far.buckets[lower][d]
            memset(&q.far.buckets[lower][d], 0, sizeof(Bucket))
            join(q, &q.far.buckets[level][digit], &source)
            q.far.used[level] |= 1ULL << digit


# ---------------------------------------------------------------- the queue


cdef inline void queue_push(Queue* q, const Entry* entry) noexcept nogil:
    """Add an entry. The owner has seen to room for one in the heap (Q3)."""
    if is_behind(q, entry) and put_far(q, entry):
        return
    into_heap(q, entry)


cdef inline bint queue_spread(Queue* q, const Entry* least) noexcept nogil:
    """Move the heap, but its root, to buckets, as far as there is memory: from then on it stays small.

    Base becomes the lesser of root and `least`, which may be NULL. False: there is no memory for buckets.
    """
    cdef int64_t i, kept = 0
    cdef const Entry* base = least
    if q.far == NULL:
        q.far = <Far*>PyMem_RawCalloc(1, sizeof(Far))
        if q.far == NULL:
            return False
    if q.n > 0 and (base == NULL or before(&q.heap[0], base)):
        base = &q.heap[0]
    if base == NULL or is_behind(q, base):
        return True
    set_base(q, base.run_at, base.seq)
    for i in range(q.n):
        if not is_behind(q, &q.heap[i]) or not put_far(q, &q.heap[i]):
            q.heap[kept] = q.heap[i]
            kept += 1
    q.n = kept
    heapify(q.heap, kept)
    return True


cdef inline bint least_to_heap(Queue* q, Bucket* bucket, int64_t room) noexcept nogil:
    """Move the least of the lowest bucket to the heap, unless the root is less (then False) (Q2)."""
    cdef Block* block = bucket.first
    cdef Block* where = block
    cdef Entry* least = NULL
    cdef int64_t i
    while block != NULL:
        for i in range(block.count):
            if least == NULL or before(&block.entries[i], least):
                least = &block.entries[i]
                where = block
        block = block.next
    if least == NULL or room < 1 or (q.n > 0 and before(&q.heap[0], least)):
        return False
    into_heap(q, least)
    where.count -= 1
    least[0] = where.entries[where.count]
    bucket.count -= 1
    q.far_n -= 1
    return True


cdef inline bint refill(Queue* q, int64_t room) noexcept nogil:
    """Move the least of the far entries, one or more, to the heap, at most `room` beside what is there.

    False: nothing, since the root is less than all of them, or no memory to split the lowest bucket: its least entry is
    then in the heap, and base has not moved.
    """
    cdef int level, digit
    cdef Bucket* bucket = lowest_bucket(q, &level, &digit)
    cdef Bucket taken
    cdef Block* block
    cdef Entry old, key
    cdef int64_t i
    if bucket.count <= min(room, LOAD):
        key = end_of(q, level, digit)
        taken = detach(q, level, digit)
        q.base_at = key.run_at
        q.base_seq = key.seq
        while taken.first != NULL:
            block = taken.first
            for i in range(block.count):
                into_heap(q, &block.entries[i])
            taken.first = block.next
            give_block(q, block)
        return True
    if not least_to_heap(q, bucket, room):
        return False
    # The root is the least of all. Base moves on to it, inside the lowest bucket: all others keep their place.
    old = Entry(q.base_at, q.base_seq, 0)
    key = q.heap[0]
    taken = detach(q, level, digit)
    q.base_at = key.run_at
    q.base_seq = key.seq
    while taken.first != NULL:
        block = taken.first
        for i in range(block.count):
            if not put_far(q, &block.entries[i]):
                block.count -= i            # no memory: all back into one bucket
                memmove(&block.entries[0], &block.entries[i], block.count * sizeof(Entry))
                undo_split(q, &taken, &old, level, digit)
                return False
        taken.count -= block.count
        taken.first = block.next
        give_block(q, block)
    return True


cdef inline void undo_split(Queue* q, Bucket* rest, const Entry* old, int level, int digit) noexcept nogil:
    """Put the rest of a bucket back, and what has left it already."""
    cdef Block* block = rest.first
    rest.count = 0
    while block != NULL:
        rest.count += block.count
        block = block.next
    q.far.buckets[level][digit] = rest[0]
    q.far.used[level] |= 1ULL << digit
    q.far_n += rest.count
    set_base(q, old.run_at, old.seq)


cdef inline bint queue_settle(Queue* q, int64_t reserved) noexcept nogil:
    """Bring the least entry to the root of the heap; False when there is none. `reserved` places stay free (Q3)."""
    while q.far_n > 0 and (q.n == 0 or is_behind(q, &q.heap[0])):
        if not refill(q, q.capacity - q.n - reserved):
            break
    return q.n > 0


cdef inline void queue_pop(Queue* q) noexcept nogil:
    """Remove the root of the heap."""
    q.n -= 1
    if q.n > 0:
        sift_down(q.heap, q.n, 0, q.heap[q.n])


cdef inline bint queue_retire(Queue* q, int64_t reserved) noexcept nogil:
    """Give up the buckets: what is far moves to the heap, if it has room for all beside `reserved` places."""
    cdef int level, digit
    cdef Bucket taken
    cdef Block* block
    cdef int64_t i
    if q.far == NULL or q.n + q.far_n + reserved > q.capacity:
        return False
    while q.far_n > 0:
        lowest_bucket(q, &level, &digit)
        taken = detach(q, level, digit)
        while taken.first != NULL:
            block = taken.first
            for i in range(block.count):
                into_heap(q, &block.entries[i])
            taken.first = block.next
            give_block(q, block)
    queue_release(q)
    return True
