# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False
"""What waits in a SimPy environment, and the methods that touch it: `schedule`, `peek`, `step`.

SimPy keeps a heap of tuples (time, priority, eid, event). With many processes each level of it misses the cache: for
the tuple, for its time, for its neighbours in the collector's list. Here an entry is 24 bytes (see `_queue.pxd`) and
says all that the tuple does: run_at is the key of the time (see `_floats.py`), seq is priority and eid, id is the
reference to the event with the kind of its time in the low bits. A tuple is made when someone looks.

    E1  From an entry its tuple can be restored, each value and its type, and entries compare as their tuples do.
    E2  A tuple for which there is no such entry (a time that is a Fraction, an int beyond 2**53, NaN or -0.0; a
        priority beyond 12 bits) moves all that waits to a heap of tuples, as SimPy has it, for good.
    E3  An entry in the queue owns a reference to its event.

Nothing under a critical section runs Python code, so it is not suspended: it stands in for a lock. With a GIL it is
nothing, and nothing is needed, since the GIL is never given up.

Time an event, CPython 3.11, SimPy / this / this with a prefetch of the next event: 100 processes 0.96 / 0.79 / 0.78 us,
100,000 processes 4.9 / 2.6 / 2.4 us (medians of turns). Dropped: a `Timetable` that holds the tuples, 0.90 and 3.9 us;
a prefetch of all that comes near, and a compiled `timeout`, no gain.
"""
cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.number cimport PyNumber_Add
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport signbit
from libc.stdint cimport int64_t, uint64_t

from .._collector cimport PyTypeObject, inquiry, traverseproc, visitproc
from .._heap cimport Entry
from .._queue cimport (
    BLOCK,
    FAN,
    NEAR,
    NODE,
    Block,
    Child,
    Node,
    Queue,
    filled,
    front,
    is_settled,
    next_run,
    queue_count,
    queue_init,
    queue_push,
    queue_release,
    queue_remove,
    queue_retire,
    queue_spread,
)
from ._floats_c cimport key, time

from heapq import heappop, heappush

import numpy as np
from simpy import core, events
from simpy.core import EmptySchedule, StopSimulation

cdef extern from *:
    """
    #define NEXTDUE_PREFETCH(address) __builtin_prefetch(address, 1)
    """
    void prefetch "NEXTDUE_PREFETCH"(const void* address) noexcept nogil

cdef enum:              # kinds of time
    INT
    FLOAT
    FLOAT64             # numpy's: what its arrays give, and every time to which one was added
    KIND = 3            # the bits that a reference leaves free

cdef enum:
    FEWEST = 64         # entries that the heap has room for at least
    FEW = 2 * NEAR // 3     # entries below which the tree is given up

cdef int64_t EXACT = 1 << 53        # ints up to here are doubles too
cdef int64_t PRIORITIES = 1 << 11   # from minus this to below it
cdef int64_t EIDS = 1 << 52
cdef object Float64 = np.float64
cdef object Infinity = core.Infinity
cdef object NORMAL = events.NORMAL


cdef inline bint fits(object number, int64_t least, int64_t end, int64_t* value) except -1:
    """Whether a number is an int from `least` to below `end`, which is then in `value`."""
    cdef int overflow
    if type(number) is not int:
        return False
    value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return overflow == 0 and least <= value[0] < end


cdef inline bint encode(object at, object priority, object eid, object event, Entry* entry) except -1:
    """False: there is no entry for that (E2)."""
    cdef int64_t whole, rank, count
    cdef double value
    if type(at) is float:
        value = at
        entry.id = FLOAT
    elif fits(at, -EXACT, EXACT + 1, &whole):
        value = <double>whole
        entry.id = INT
    elif type(at) is Float64:
        value = at
        entry.id = FLOAT64
    else:
        return False
    if value != value or (value == 0 and signbit(value)):
        return False
    if not fits(priority, -PRIORITIES, PRIORITIES, &rank) or not fits(eid, 0, EIDS, &count):
        return False
    entry.run_at = key(value)
    entry.seq = <uint64_t>(rank + PRIORITIES) << 52 | <uint64_t>count
    entry.id |= <int64_t><PyObject*>event
    return True


cdef inline PyObject* event_of(const Entry* entry) noexcept nogil:
    return <PyObject*>(entry.id & ~<int64_t>KIND)


cdef inline object time_of(const Entry* entry):
    cdef double value = time(entry.run_at)
    cdef int64_t kind = entry.id & KIND
    if kind == FLOAT:
        return value
    return <int64_t>value if kind == INT else Float64(value)


cdef tuple decode(const Entry* entry):
    cdef int64_t priority = <int64_t>(entry.seq >> 52) - PRIORITIES
    return time_of(entry), priority, entry.seq & <uint64_t>(EIDS - 1), <object>event_of(entry)


cdef inline object adopt(const Entry* entry):
    """The event of an entry whose reference is the caller's."""
    event = <object>event_of(entry)
    Py_DECREF(event)
    return event


ctypedef int (*Visit)(const Entry*, void*) noexcept


cdef int walk(const Queue* q, Visit visit, void* arg) noexcept:
    """Call `visit` for each entry, in no order, until it returns something else than 0; what it returned last."""
    cdef int answer = walk_some(q.heap, q.n, visit, arg)
    if answer == 0:
        answer = walk_some(q.run + q.run_head, q.run_end - q.run_head, visit, arg)
    if answer == 0:
        answer = walk_some(q.inbox, q.inbox_n, visit, arg)
    return answer if answer != 0 else walk_tree(&q.tree, visit, arg)


cdef int walk_some(const Entry* entries, int64_t n, Visit visit, void* arg) noexcept:
    cdef int64_t i
    cdef int answer
    for i in range(n):
        answer = visit(&entries[i], arg)
        if answer != 0:
            return answer
    return 0


cdef int walk_tree(const Child* child, Visit visit, void* arg) noexcept:
    cdef const Block* block
    cdef int digit, answer = 0
    cdef int64_t count
    if child.count == NODE:
        for digit in range(FAN):
            answer = walk_tree(&(<const Node*>child.part).children[digit], visit, arg)
            if answer != 0:
                break
        return answer
    block = <const Block*>child.part
    count = filled(child.count)
    while block != NULL and answer == 0:
        answer = walk_some(block.entries, count, visit, arg)
        block = block.next
        count = BLOCK
    return answer


cdef int collect(const Entry* entry, void* end) noexcept:
    """Copy an entry, with a reference, to where `end` points."""
    cdef Entry** target = <Entry**>end
    Py_INCREF(<object>event_of(entry))
    target[0][0] = entry[0]
    target[0] += 1
    return 0


cdef class EventQueue:
    """The scheduled events of an environment: to a reader, a sequence of (time, priority, eid, event), the next first.

    Unlike SimPy's list it is read-only, and in order beyond the first, too.
    """

    cdef Queue _q
    cdef list _tuples           # the heap of E2, else None; `_q` is then empty

    def __cinit__(self):
        queue_init(&self._q)

    def __dealloc__(self):
        self._drop()
        queue_release(&self._q)
        PyMem_RawFree(self._q.heap)

    cdef inline int _push(self, object at, object priority, object eid, object event) except -1:
        cdef Entry entry
        if self._tuples is None:
            if encode(at, priority, eid, event, &entry):
                with cython.critical_section(self):
                    self._make_room()
                    Py_INCREF(event)
                    queue_push(&self._q, &entry)
                return 0
            # Making tuples may run finalizers that schedule: these use the new heap already.
            self._tuples = []
            while self._pop(&entry):
                heappush(self._tuples, decode(&entry))
                adopt(&entry)
        heappush(self._tuples, (at, priority, eid, event))
        return 0

    cdef inline int _make_room(self) except -1:
        """For one entry in the heap (Q3)."""
        cdef int64_t capacity
        cdef Entry* heap
        if self._q.n >= NEAR:
            queue_spread(&self._q, NULL)
        if self._q.n == self._q.capacity:
            capacity = max(FEWEST, 2 * self._q.capacity)
            heap = <Entry*>PyMem_RawRealloc(self._q.heap, capacity * sizeof(Entry))
            if heap == NULL:
                raise MemoryError
            self._q.heap = heap
            self._q.capacity = capacity
        return 0

    cdef inline Entry* _first(self) noexcept:
        """The next entry; NULL: there is none."""
        if not is_settled(&self._q):
            next_run(&self._q)
        return front(&self._q)

    cdef inline bint _pop(self, Entry* entry):
        """Take the next entry out; its reference is the caller's. False: there is none."""
        cdef Entry* first
        with cython.critical_section(self):
            first = self._first()
            if first != NULL:
                entry[0] = first[0]
                queue_remove(&self._q, first)
                if self._q.run != NULL and queue_count(&self._q) < FEW:
                    queue_retire(&self._q, 0)
                first = front(&self._q)
                if first != NULL:
                    prefetch(event_of(first))
                return True
        return False

    cdef inline bint _peek(self, Entry* entry):
        """Copy the next entry, with a reference that is the caller's. False: there is none."""
        cdef Entry* first
        with cython.critical_section(self):
            first = self._first()
            if first != NULL:
                entry[0] = first[0]
                Py_INCREF(<object>event_of(entry))
                return True
        return False

    cdef void _drop(self) noexcept:
        cdef Entry entry
        while self._pop(&entry):
            adopt(&entry)

    def __len__(self):
        return queue_count(&self._q) if self._tuples is None else len(self._tuples)

    def __getitem__(self, index):
        """Complexity: O(1) for 0; anything else makes and sorts all the tuples."""
        cdef Entry entry
        if self._tuples is not None:
            return self._tuples[index]
        if index == 0 and self._peek(&entry):
            try:
                return decode(&entry)
            finally:
                adopt(&entry)
        return list(self)[index]

    def __iter__(self):
        cdef int64_t i, n
        cdef Entry* entries
        cdef Entry* end
        if self._tuples is not None:
            return iter(self._tuples)
        with cython.critical_section(self):
            n = queue_count(&self._q)
            entries = end = <Entry*>PyMem_RawMalloc(max(n, 1) * sizeof(Entry))
            if entries == NULL:
                raise MemoryError
            walk(&self._q, collect, &end)
        try:
            return iter(sorted([decode(&entries[i]) for i in range(n)]))
        finally:
            for i in range(n):
                adopt(&entries[i])
            PyMem_RawFree(entries)

    def __repr__(self):
        return repr(list(self))


cdef class Steps:
    """The methods of `simpy.Environment` that touch its queue."""

    cdef public object _now
    cdef public object _eid
    cdef readonly EventQueue _queue

    def __cinit__(self, *args, **kwargs):
        self._queue = EventQueue()

    def schedule(self, event, priority=NORMAL, delay=0):
        """Schedule an event with a priority and a delay. Complexity: O(1), amortised, on average."""
        # Cython's own + takes -0.0 + 0 for -0.0.
        self._queue._push(PyNumber_Add(self._now, delay), priority, next(self._eid), event)

    def peek(self):
        """Return the time of the next event, or `simpy.core.Infinity`."""
        cdef EventQueue queue = self._queue
        cdef Entry entry
        if queue._tuples is not None:
            return queue._tuples[0][0] if queue._tuples else Infinity
        if not queue._peek(&entry):
            return Infinity
        adopt(&entry)
        return time_of(&entry)

    def step(self):
        """Process the next event.

        Raises: simpy.core.EmptySchedule when there is none; what a callback raises; the value of an event that has
            failed, unless that was defused.
        """
        cdef EventQueue queue = self._queue
        cdef Entry entry
        if queue._tuples is not None:
            if not queue._tuples:
                raise EmptySchedule
            self._now, _, _, event = heappop(queue._tuples)
        elif queue._pop(&entry):
            event = adopt(&entry)
            self._now = time_of(&entry)
        else:
            raise EmptySchedule

        callbacks = event.callbacks
        event.callbacks = None              # from now on nobody adds to them
        try:
            for callback in callbacks:
                callback(event)
        except StopSimulation:
            # The event is processed when the simulation goes on: first of all, with the callbacks that are left.
            event.callbacks = callbacks[callbacks.index(callback) + 1:]
            self.schedule(event, -1)
            raise
        if not event._ok and not hasattr(event, "_defused"):
            error = type(event._value)(*event._value.args)
            error.__cause__ = event._value
            raise error


# ---------------------------------------------------------------- the collector
#
# An event refers to its environment, and that to the queue: Cython's traverse, which sees Python attributes alone,
# would leave every such ring behind. As in `_timetable.pyx`.


cdef struct Visitor:
    visitproc visit
    void* arg


cdef int show(const Entry* entry, void* visitor) noexcept:
    return (<Visitor*>visitor).visit(event_of(entry), (<Visitor*>visitor).arg)


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef Visitor visitor = Visitor(visit, arg)
    cdef int answer = walk(&(<EventQueue>self)._q, show, &visitor)
    return answer if answer != 0 else cython_traverse(self, visit, arg)


cdef int clear(PyObject* self) noexcept:
    (<EventQueue>self)._drop()
    return cython_clear(self)


cdef traverseproc cython_traverse = (<PyTypeObject*>EventQueue).tp_traverse
cdef inquiry cython_clear = (<PyTypeObject*>EventQueue).tp_clear
(<PyTypeObject*>EventQueue).tp_traverse = traverse
(<PyTypeObject*>EventQueue).tp_clear = clear
