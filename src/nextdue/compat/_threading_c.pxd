"""The types of `_threading.py`, compiled."""
from libc.stdint cimport int64_t

cimport cython
from cpython.method cimport PyMethod_Check, PyMethod_GET_FUNCTION
from cpython.object cimport PyObject

from .._clock cimport monotonic_ns
from .._heap cimport NEVER
from .._timetable cimport Timetable


cdef inline int64_t up(double ns) noexcept nogil:
    cdef int64_t whole = <int64_t>ns
    return whole + (whole < ns)


cdef inline bint is_bound(object method, object function):
    return PyMethod_Check(method) and <PyObject*>PyMethod_GET_FUNCTION(method) == <PyObject*>function


cdef class Books:
    cdef readonly Timetable table
    cdef int64_t _armed_at
    cdef int64_t _holding
    cdef bint _is_watched
    cdef bint _is_awaited
    cdef bint _is_exiting


cdef class Waiting:
    cdef public object interval
    cdef public object function
    cdef object _positional
    cdef object _keywords
    cdef public object _daemonic
    cdef readonly Books _books
    cdef readonly object _event
    cdef object _over
    cdef public int64_t _id
    cdef bint _holds
    cdef bint _alive
    cdef readonly bint _finished

    cdef bint _leave(self, Books books) noexcept


cdef Books _books
cdef object _RUN
cdef double _FAR


@cython.locals(seconds=double, now=int64_t, ns=int64_t)
cdef int64_t due_at(object interval) except? -1


@cython.locals(at=int64_t, run_at=int64_t, wakes=bint, first=bint, entered=bint)
cdef int enter(Waiting timer, Books books) except -1
