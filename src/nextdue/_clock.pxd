"""The monotonic clock without a Python call: what `time.monotonic_ns` reads."""
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1_000_000_000 + t.tv_nsec
