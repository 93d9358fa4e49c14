"""The types of `_kombu.py`, compiled."""
from libc.stdint cimport int64_t

from ._floats_c cimport key as key_of


cdef class Entry:
    cdef public object fun
    cdef public object _last_run
    cdef object _args
    cdef object _kwargs
    cdef object _waits_on
    cdef object _priority
    cdef object __weakref__
    cdef int64_t _timer_id
    cdef double _eta
    cdef object _canceled


cdef int64_t key_at(double eta) except? -1
cdef bint put(object timetable, double eta, object priority, Entry entry) except -1
cdef void leave(Entry entry) noexcept
cdef object describe(Entry entry)
