# cython: language_level=3, freethreading_compatible=True
"""The map of `_floats.py`, compiled."""


def key_of(double value, /):
    """Return the int64 whose order among keys is that of `value` among floats. Raises: ValueError for NaN."""
    if value != value:
        raise ValueError("time must be a number, got nan")
    return key(value)


def float_of(int64_t key, /):
    """Return the float that has this key (0.0 for both zeros)."""
    return time(key)
