"""The map of `_floats.py`, inline: for compiled code that keeps float times."""
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcpy


cdef inline int64_t key(double value) noexcept nogil:
    """NaN, which has no place in an order, is the caller's to refuse."""
    cdef int64_t bits
    value += 0.0                        # -0.0 becomes 0.0
    memcpy(&bits, &value, sizeof(bits))
    return bits if bits >= 0 else bits ^ INT64_MAX


cdef inline double time(int64_t key) noexcept nogil:
    cdef double value
    if key < 0:
        key ^= INT64_MAX
    memcpy(&value, &key, sizeof(value))
    return value
