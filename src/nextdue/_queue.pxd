"""A priority queue of entries that stays fast when it is large, and in which no step takes long.

A heap of a million entries is slow because each of its levels misses the cache. Here most entries lie in the leaves of
a tree by the digits of their 128-bit key (run_at, seq), five bits a digit: unsorted, in blocks, and at most LEAF in a
leaf. A leaf that is full bursts into a node with a leaf for each digit. To find the least, the lowest leaf is taken out
of the tree and sorted: it is the `run`, from whose front entries leave. What is added and does not lie behind `bound`,
the end of what the run's leaf stood for, goes into a small heap beside it. What does is noted in the inbox first: the
places in the tree are far apart in memory, and a step that goes to one alone waits for it; 256 together do not.

                                       bound
        run    1 3 4 7 9                 |      inbox   41 17 88 ...
        heap     2   5                   |      tree    . . | . | . . . . | . .

So an entry moves about three times, from the inbox to a leaf, maybe from leaf to leaf, and into the run, each time with
others; and the longest step is one full inbox, with the bursts that it sets off, or one burst and the sorting of one
run. This is a burst trie (Heinz, Zobel, Williams, 2002) with the lazy order of a ladder queue (Tang, Goh, Thng, 2005),
and near kin of a hierarchical timing wheel; but it is exact, needs no tick, and does not mind times that are far apart.

Pops empty the tree from the front, leaf by leaf. When the owner leaves entries out all over it, nodes with few left
become leaves again (`merge`), so that no block of memory stays for each of a few.

    Q1  A leaf holds the entries whose keys have the digits on the way to it. A node's children differ in the digit of
        its level, which is higher than those of the nodes below; above that digit, keys that have their place in a node
        equal its (at, seq). A leaf has one entry or more, and a node one child or more.
    Q2  What is in inbox and tree is greater than bound; the run ascends, and is not greater. So the least of run and
        heap is the least of all while there is a run, or the heap's root is not greater than bound, or nothing else is.
    Q3  An entry needs room in the heap to be pushed, which the owner provides: the heap serves where there is no memory
        for a block. Nothing else fails without memory: a leaf may then be larger than LEAF, the inbox stay full, and
        the run be one entry at a time.

No lock, no Python, no numpy: raw pointers. Blocks of 16 entries are malloc'ed one by one, and a few are kept.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from ._heap cimport Entry, before, heapify, sift_down, sift_up
from ._sort cimport highest_bit, lowest_bit, sort_entries

cdef enum:
    DIGIT = 5
    FAN = 1 << DIGIT
    LOW_LEVELS = 13         # 64 / DIGIT, rounded up: of seq; as many above them, of run_at
    LEVELS = 2 * LOW_LEVELS
    BLOCK = 16              # entries of a block
    LEAF = 1024             # entries of a leaf; then it bursts
    FEW_LEFT = LEAF // 2    # entries of a node that are better off in one leaf
    INBOX = 256             # entries that go to the tree together
    NEAR = 1000             # entries of a heap from which on a tree pays
    KEPT = 8                # free blocks that are kept

cdef enum:
    NODE = -1               # what a Child has for a count if it is a node


cdef struct Block:
    Block* next
    Entry entries[BLOCK]


cdef struct Child:          # a leaf, a node, or nothing
    void* part              # the first Block, which alone may have room; or the Node; or NULL
    int64_t count           # entries of the leaf; NODE; or 0. Here, so that an entry is added without reading a block


cdef struct Node:
    int32_t level           # digit that tells its children apart: 0 is the lowest of seq
    int32_t shift           # where that digit begins in run_at, or in seq
    uint64_t used           # bit d: there is a child d
    int64_t at              # the least key that has its place here
    uint64_t seq
    Child children[FAN]


cdef struct Way:            # from the root of the tree to a leaf
    int depth
    Node* nodes[LEVELS]
    int digits[LEVELS]


cdef struct Queue:
    Entry* heap             # the owner's memory
    int64_t capacity        # of the heap, entries
    int64_t n               # entries in the heap
    Entry* run              # room for LEAF entries; NULL: there has been no tree
    int64_t run_head        # where the run begins, and ends
    int64_t run_end
    Entry* inbox            # room for LEAF more, which serves to sort the run while nothing is in it
    int64_t inbox_n
    Entry bound             # without a tree the greatest key, so that nothing is behind it
    Child tree
    int64_t far_n           # entries in the tree
    int64_t nodes           # in the tree, as are
    int64_t blocks
    Block* free
    int64_t free_n


cdef inline Entry greatest() noexcept nogil:
    return Entry(INT64_MAX, <uint64_t>-1, 0)


cdef inline void queue_init(Queue* q) noexcept nogil:
    memset(q, 0, sizeof(Queue))
    q.bound = greatest()


cdef inline int64_t queue_count(const Queue* q) noexcept nogil:
    return q.n + q.run_end - q.run_head + q.inbox_n + q.far_n


cdef inline bint is_behind(const Queue* q, const Entry* entry) noexcept nogil:
    return before(&q.bound, entry)


# ---------------------------------------------------------------- blocks


cdef inline bint reserve_blocks(Queue* q, int64_t count) noexcept nogil:
    """See to so many free blocks. False: no memory."""
    cdef Block* block
    while q.free_n < count:
        block = <Block*>PyMem_RawMalloc(sizeof(Block))
        if block == NULL:
            return False
        block.next = q.free
        q.free = block
        q.free_n += 1
    return True


cdef inline Block* take_block(Queue* q) noexcept nogil:
    """A free block, of which there is one."""
    cdef Block* block = q.free
    q.free = block.next
    q.free_n -= 1
    q.blocks += 1
    return block


cdef inline void give_block(Queue* q, Block* block) noexcept nogil:
    q.blocks -= 1
    if q.free_n >= KEPT:
        PyMem_RawFree(block)
        return
    block.next = q.free
    q.free = block
    q.free_n += 1


cdef inline int64_t filled(int64_t count) noexcept nogil:
    """Entries in the first block of a leaf of so many, one or more."""
    return ((count - 1) & (BLOCK - 1)) + 1


cdef inline void free_blocks(Block* block) noexcept nogil:
    cdef Block* following
    while block != NULL:
        following = block.next
        PyMem_RawFree(block)
        block = following


# ---------------------------------------------------------------- the tree


cdef inline uint64_t digit_of(const Node* node, const Entry* entry) noexcept nogil:
    """The child that an entry belongs to; FAN or more: none (Q1)."""
    if node.level >= LOW_LEVELS:
        return (<uint64_t>entry.run_at ^ <uint64_t>node.at) >> node.shift
    if entry.run_at != node.at:
        return FAN
    return (entry.seq ^ node.seq) >> node.shift


cdef inline Node* new_node(Queue* q, const Entry* entry, uint64_t at_bits, uint64_t seq_bits) noexcept nogil:
    """A node for the highest digit of some bits, around an entry. NULL: no memory."""
    cdef Node* node = <Node*>PyMem_RawCalloc(1, sizeof(Node))
    cdef uint64_t below
    if node == NULL:
        return NULL
    q.nodes += 1
    node.level = highest_bit(at_bits if at_bits != 0 else seq_bits) // DIGIT
    node.shift = node.level * DIGIT
    below = (<uint64_t>(FAN - 1) << node.shift) | ((1ULL << node.shift) - 1)        # bits past the 64th drop out
    if at_bits != 0:
        node.level += LOW_LEVELS
        # In unsigned order, in which a cleared bit is less.
        node.at = <int64_t>(((<uint64_t>entry.run_at ^ <uint64_t>INT64_MIN) & ~below) ^ <uint64_t>INT64_MIN)
    else:
        node.at = entry.run_at
        node.seq = entry.seq & ~below
    return node


cdef inline Entry end_of(const Node* node, int digit) noexcept nogil:
    """The greatest key that has its place in a child."""
    cdef uint64_t bits = (<uint64_t>digit << node.shift) | ((1ULL << node.shift) - 1)
    if node.level >= LOW_LEVELS:
        return Entry(<int64_t>(<uint64_t>node.at ^ bits), <uint64_t>-1, 0)
    return Entry(node.at, node.seq ^ bits, 0)


cdef inline Child* child_at(Queue* q, const Way* way) noexcept nogil:
    """The leaf at the end of the way."""
    if way.depth == 0:
        return &q.tree
    return &way.nodes[way.depth - 1].children[way.digits[way.depth - 1]]


cdef inline Entry end_at(const Way* way) noexcept nogil:
    """The greatest key that has its place in the leaf at the end of the way."""
    if way.depth == 0:
        return greatest()
    return end_of(way.nodes[way.depth - 1], way.digits[way.depth - 1])


cdef inline Child* leaf_behind(Queue* q, const Entry* key, Way* way) noexcept nogil:
    """The first leaf in which keys behind `key` have their place, of all leaves if that is NULL; NULL if there is none.

    With the end of a leaf as key this goes from leaf to leaf, whatever happens to the tree between two calls.
    """
    cdef uint64_t left[LEVELS]
    cdef Child* child = &q.tree
    cdef Entry end = greatest()
    cdef int last, digit
    way.depth = 0
    if q.tree.part == NULL or (key != NULL and not before(key, &end)):
        return NULL
    while child.count == NODE:
        last = way.depth
        way.depth += 1
        way.nodes[last] = <Node*>child.part
        left[last] = way.nodes[last].used
        while True:
            while left[last] == 0:
                if last == 0:
                    return NULL
                last -= 1
            digit = lowest_bit(left[last])
            left[last] &= left[last] - 1
            end = end_of(way.nodes[last], digit)
            if key == NULL or before(key, &end):
                break
        way.depth = last + 1
        way.digits[last] = digit
        child = &way.nodes[last].children[digit]
    return child


cdef inline void cut_leaf(Queue* q, const Way* way) noexcept nogil:
    """Take a leaf out of the tree, and the nodes that have nothing else in them. Its blocks are the caller's."""
    cdef int depth = way.depth
    cdef Node* node
    cdef Child* child = child_at(q, way)
    q.far_n -= child.count
    child[0] = Child(NULL, 0)
    while depth > 0:
        depth -= 1
        node = way.nodes[depth]
        node.used &= ~(1ULL << way.digits[depth])
        if node.used != 0:
            break
        free_node(q, node)
        child = &way.nodes[depth - 1].children[way.digits[depth - 1]] if depth > 0 else &q.tree
        child[0] = Child(NULL, 0)
    while q.tree.count == NODE:             # a root that tells nothing apart
        node = <Node*>q.tree.part
        child = &node.children[lowest_bit(node.used)]
        if node.used & (node.used - 1) != 0 or child.count != NODE:
            break
        q.tree = child[0]
        free_node(q, node)


cdef inline void free_node(Queue* q, Node* node) noexcept nogil:
    PyMem_RawFree(node)
    q.nodes -= 1


cdef inline bint add_to_leaf(Queue* q, Child* leaf, const Entry* entry) noexcept nogil:
    """Add an entry to a leaf, or to nothing. False: no memory."""
    cdef Block* block = <Block*>leaf.part
    cdef int64_t k = leaf.count & (BLOCK - 1)
    if k == 0:
        if not reserve_blocks(q, 1):
            return False
        block = take_block(q)
        block.next = <Block*>leaf.part
        leaf.part = block
    block.entries[k] = entry[0]
    leaf.count += 1
    return True


cdef inline bint burst(Queue* q, Child* leaf) noexcept nogil:
    """Make a node of a leaf, with a leaf for each digit. False: no memory, and nothing has changed."""
    cdef Block* first = <Block*>leaf.part
    cdef Block* block = first
    cdef Block* following
    cdef Node* node
    cdef uint64_t at_bits = 0, seq_bits = 0
    cdef int64_t i, count = filled(leaf.count)
    while block != NULL:
        for i in range(count):
            at_bits |= <uint64_t>block.entries[i].run_at ^ <uint64_t>first.entries[0].run_at
            seq_bits |= block.entries[i].seq ^ first.entries[0].seq
        block = block.next
        count = BLOCK
    node = new_node(q, &first.entries[0], at_bits, seq_bits)
    if node == NULL:
        return False
    # Each new leaf has one block that is not full; the old blocks serve for the others.
    if not reserve_blocks(q, FAN):
        free_node(q, node)
        return False
    count = filled(leaf.count)
    leaf[0] = Child(node, NODE)
    block = first
    while block != NULL:
        for i in range(count):
            put_below(q, node, &block.entries[i])
        following = block.next
        give_block(q, block)
        block = following
        count = BLOCK
    return True


cdef inline void put_below(Queue* q, Node* node, const Entry* entry) noexcept nogil:
    cdef uint64_t digit = digit_of(node, entry)
    node.used |= 1ULL << digit
    add_to_leaf(q, &node.children[digit], entry)


cdef inline int64_t merge(Queue* q, const Entry* key) noexcept nogil:
    """Make a leaf again of each node around a key that has few entries left, from the lowest up; how many moved."""
    cdef Child* way[LEVELS]
    cdef Child* child = &q.tree
    cdef int depth = 0
    cdef uint64_t digit
    cdef int64_t count, moved = 0
    while child.count == NODE:
        way[depth] = child
        depth += 1
        digit = digit_of(<Node*>child.part, key)
        if digit >= FAN:
            break
        child = &(<Node*>child.part).children[digit]
    while depth > 0:
        depth -= 1
        count = count_few(<Node*>way[depth].part)
        if count < 0 or not reserve_blocks(q, 1):
            break
        unburst(q, way[depth])
        moved += count
    return moved


cdef inline int64_t count_few(const Node* node) noexcept nogil:
    """How many entries are in the leaves of a node; -1: more than FEW_LEFT, or it has nodes."""
    cdef uint64_t left = node.used
    cdef const Child* child
    cdef int64_t count = 0
    while left != 0 and count <= FEW_LEFT:
        child = &node.children[lowest_bit(left)]
        left &= left - 1
        if child.count == NODE:
            return -1
        count += child.count
    return count if count <= FEW_LEFT else -1


cdef inline void unburst(Queue* q, Child* child) noexcept nogil:
    """Make a leaf of a node that has leaves only. One free block is enough: one is given for each that is emptied."""
    cdef Node* node = <Node*>child.part
    cdef Block* block
    cdef Block* following
    cdef int64_t i, count
    cdef int digit
    child[0] = Child(NULL, 0)
    for digit in range(FAN):
        block = <Block*>node.children[digit].part
        count = filled(node.children[digit].count)
        while block != NULL:
            for i in range(count):
                add_to_leaf(q, child, &block.entries[i])
            following = block.next
            give_block(q, block)
            block = following
            count = BLOCK
    free_node(q, node)


cdef inline bint put_far(Queue* q, const Entry* entry) noexcept nogil:
    """Add an entry that is greater than bound to the tree. False: no memory."""
    cdef Child* child = &q.tree
    cdef Node* node = NULL
    cdef uint64_t digit = 0
    while True:
        if child.count == NODE:
            digit = digit_of(<Node*>child.part, entry)
            if digit < FAN:
                node = <Node*>child.part
                child = &node.children[digit]
            elif not widen(q, child, entry):
                return False
        # Where there was no memory to burst, that is tried again after as many.
        elif child.count == 0 or child.count & (LEAF - 1) != 0 or not burst(q, child):
            break
    if not add_to_leaf(q, child, entry):
        return False
    if node != NULL:
        node.used |= 1ULL << digit
    q.far_n += 1
    return True


cdef inline bint widen(Queue* q, Child* child, const Entry* entry) noexcept nogil:
    """Put a node around a node, so that an entry has its place there too. False: no memory."""
    cdef Node* node = <Node*>child.part
    cdef Entry start = Entry(node.at, node.seq, 0)
    cdef Node* wider = new_node(q, &start, <uint64_t>entry.run_at ^ <uint64_t>node.at, entry.seq ^ node.seq)
    cdef uint64_t digit
    if wider == NULL:
        return False
    digit = digit_of(wider, &start)
    wider.used = 1ULL << digit
    wider.children[digit] = child[0]
    child[0] = Child(wider, NODE)
    return True


# ---------------------------------------------------------------- the queue


cdef inline void into_heap(Queue* q, const Entry* entry) noexcept nogil:
    q.n += 1
    sift_up(q.heap, q.n - 1, entry[0])


cdef inline void queue_push(Queue* q, const Entry* entry) noexcept nogil:
    """Add an entry. The owner has seen to room for one in the heap (Q3)."""
    if is_behind(q, entry) and (q.inbox_n < INBOX or empty_inbox(q)):
        q.inbox[q.inbox_n] = entry[0]
        q.inbox_n += 1
        return
    into_heap(q, entry)


cdef inline bint empty_inbox(Queue* q) noexcept nogil:
    """Move what is in the inbox to the tree. False: no memory for all."""
    cdef int64_t i = 0
    while i < q.inbox_n and put_far(q, &q.inbox[i]):
        i += 1
    q.inbox_n -= i
    memmove(q.inbox, q.inbox + i, q.inbox_n * sizeof(Entry))
    return q.inbox_n == 0


cdef inline Entry* front(const Queue* q) noexcept nogil:
    """The least of run and heap; NULL: there is none."""
    if q.run_head < q.run_end and (q.n == 0 or before(&q.run[q.run_head], &q.heap[0])):
        return &q.run[q.run_head]
    return &q.heap[0] if q.n > 0 else NULL


cdef inline bint queue_spread(Queue* q, const Entry* least) noexcept nogil:
    """Move run and heap, but what is first, to the tree, as far as there is memory: from then on the heap stays small.

    Bound becomes the lesser of what is first and `least`, which may be NULL. False: there is no memory for a tree.
    """
    cdef int64_t i, kept = 0
    cdef const Entry* first
    if q.run == NULL:
        q.run = <Entry*>PyMem_RawMalloc(2 * LEAF * sizeof(Entry))
        if q.run == NULL:
            return False
        q.inbox = q.run + LEAF
    first = front(q)
    if first == NULL or (least != NULL and before(least, first)):
        first = least
    if first == NULL or is_behind(q, first):
        return True
    q.bound = first[0]
    while q.run_head < q.run_end and is_behind(q, &q.run[q.run_end - 1]):
        if not put_far(q, &q.run[q.run_end - 1]):
            q.bound = q.run[q.run_end - 1]
            break
        q.run_end -= 1
    for i in range(q.n):
        if not is_behind(q, &q.heap[i]) or not put_far(q, &q.heap[i]):
            q.heap[kept] = q.heap[i]
            kept += 1
    q.n = kept
    heapify(q.heap, kept)
    return True


cdef inline bint is_settled(const Queue* q) noexcept nogil:
    """The least of run and heap is the least of all (Q2)."""
    return (
        q.run_head < q.run_end
        or q.far_n + q.inbox_n == 0
        or (q.n > 0 and not is_behind(q, &q.heap[0]))
    )


cdef inline void next_run(Queue* q) noexcept nogil:
    """Make the lowest leaf the run, where there is none but something is behind bound."""
    cdef Way way
    cdef Child* leaf
    cdef Block* block
    cdef Block* following
    cdef int64_t count
    if not empty_inbox(q):
        next_alone(q)
        return
    leaf = leaf_behind(q, NULL, &way)
    while leaf.count > LEAF:
        if not burst(q, leaf):
            next_alone(q)
            return
        leaf = leaf_behind(q, NULL, &way)
    block = <Block*>leaf.part
    count = filled(leaf.count)
    q.bound = end_at(&way)
    cut_leaf(q, &way)
    q.run_head = q.run_end = 0
    while block != NULL:
        memcpy(&q.run[q.run_end], block.entries, count * sizeof(Entry))
        q.run_end += count
        following = block.next
        give_block(q, block)
        block = following
        count = BLOCK
    sort_entries(q.run, q.run_end, q.inbox)


cdef inline void next_alone(Queue* q) noexcept nogil:
    """Make the least entry of inbox and tree, alone, the run: there is no memory to do better."""
    cdef Way way
    cdef Child* leaf = leaf_behind(q, NULL, &way)
    cdef Block* block = <Block*>leaf.part if leaf != NULL else NULL
    cdef Entry* least = q.inbox if q.inbox_n > 0 else NULL
    cdef bint in_tree = False
    cdef int64_t i, count = filled(leaf.count) if leaf != NULL else 0
    for i in range(1, q.inbox_n):
        if before(&q.inbox[i], least):
            least = &q.inbox[i]
    while block != NULL:
        for i in range(count):
            if least == NULL or before(&block.entries[i], least):
                least = &block.entries[i]
                in_tree = True
        block = block.next
        count = BLOCK
    q.run_head = 0
    q.run_end = 1
    q.run[0] = q.bound = least[0]
    if not in_tree:
        q.inbox_n -= 1
        least[0] = q.inbox[q.inbox_n]
        return
    block = <Block*>leaf.part
    count = filled(leaf.count)
    least[0] = block.entries[count - 1]
    if leaf.count == 1:
        cut_leaf(q, &way)
        give_block(q, block)
        return
    leaf.count -= 1
    q.far_n -= 1
    if count == 1:
        leaf.part = block.next
        give_block(q, block)


cdef inline void queue_remove(Queue* q, const Entry* first) noexcept nogil:
    """Remove what `front` has given."""
    if first != q.heap:
        q.run_head += 1
        return
    q.n -= 1
    if q.n > 0:
        sift_down(q.heap, q.n, 0, q.heap[q.n])


cdef inline bint queue_retire(Queue* q, int64_t reserved) noexcept nogil:
    """Give up the tree: all goes to the heap, if it has room for it beside `reserved` places."""
    if q.run == NULL or queue_count(q) + reserved > q.capacity:
        return False
    while True:
        while q.run_head < q.run_end:
            into_heap(q, &q.run[q.run_head])
            q.run_head += 1
        if q.far_n + q.inbox_n == 0:
            break
        next_run(q)
    queue_release(q)
    return True


cdef inline void queue_release(Queue* q) noexcept nogil:
    """Free the tree and the run, and what is in them; the heap's memory is the owner's."""
    free_child(&q.tree)
    free_blocks(q.free)
    PyMem_RawFree(q.run)
    q.free = NULL
    q.run = q.inbox = NULL
    q.run_head = q.run_end = q.inbox_n = q.far_n = q.nodes = q.blocks = q.free_n = 0
    q.bound = greatest()


cdef inline void free_child(Child* child) noexcept nogil:
    cdef int digit
    if child.count != NODE:
        free_blocks(<Block*>child.part)
    else:
        for digit in range(FAN):
            free_child(&(<Node*>child.part).children[digit])
        PyMem_RawFree(child.part)
    child[0] = Child(NULL, 0)
