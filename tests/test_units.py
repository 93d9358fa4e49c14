"""Durations as users give them, turned into nanoseconds once. Promise 17."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextdue._units import NEVER, duration_ns, limit_ns, positive_ns


def whole(message):
    return f"^{re.escape(message)}$"


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (0, 0),
        (1, 10**9),
        (-1, -(10**9)),
        (1.5, 1_500_000_000),
        (1e-9, 1),
        (4e-10, 0),
        (0.1, 100_000_000),
        (2.5e-9, 2),  # half to even, as round() has it
        (3.5e-9, 4),
        (Fraction(1, 4), 250_000_000),
        (np.int64(2), 2 * 10**9),
        (np.float64(0.5), 500_000_000),
        (np.float32(0.5), 500_000_000),
        (timedelta(microseconds=1), 1_000),
        (timedelta(days=-1), -86_400 * 10**9),
        (timedelta(days=36_500, microseconds=1), 36_500 * 86_400 * 10**9 + 1_000),
    ],
)
def test_duration_of_a_number_or_timedelta_is_rounded_to_the_nearest_ns(value, ns):
    assert duration_ns(value, "delay") == ns
    assert type(duration_ns(value, "delay")) is int


@pytest.mark.parametrize(  # B43, B45
    "value", [10**10, 10**30, 1e18, 1e300, 2.0**53, timedelta.max, Fraction(10**400), np.float64(1e300)]
)
def test_duration_past_int64_saturates(value):
    assert duration_ns(value, "delay") == NEVER


def test_duration_past_int64_on_the_other_side_saturates_there():
    assert duration_ns(-(10**30), "delay") == -NEVER
    assert duration_ns(-1e300, "delay") == -NEVER
    assert duration_ns(Fraction(-(10**400)), "delay") == -NEVER


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
def test_duration_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match=whole(f"delay must be a finite number of seconds, got {value!r}")):
        duration_ns(value, "delay")


@pytest.mark.parametrize("value", [True, False, "1", None, Decimal(1), 1j, [], object, np.bool_(True)])
def test_duration_of_another_type_is_refused(value):
    with pytest.raises(TypeError) as caught:
        duration_ns(value, "period")
    assert str(caught.value) == f"period must be seconds (int or float) or a timedelta, got {value!r}"


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, 1e-10, 5e-10, timedelta(0), timedelta(seconds=-1)])
def test_positive_that_rounds_to_zero_or_less_is_refused(value):
    with pytest.raises(ValueError, match=whole(f"period must be more than 0 ns, got {value!r}")):
        positive_ns(value, "period")


def test_positive_of_one_ns_is_taken():
    assert positive_ns(1e-9, "period") == 1


@pytest.mark.parametrize("value", [None, math.inf, np.float32("inf")])  # B52
def test_limit_of_none_or_infinity_is_none(value):
    assert limit_ns(value, "timeout") is None


@pytest.mark.parametrize(
    ("value", "ns"), [(0, 0), (-5, -5 * 10**9), (0.25, 250_000_000), (timedelta(seconds=1), 10**9)]
)
def test_limit_is_given_in_nanoseconds(value, ns):
    assert limit_ns(value, "timeout") == ns


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_limit_that_is_no_limit_is_refused(value):
    with pytest.raises(ValueError, match=whole(f"timeout must be a finite number of seconds, got {value!r}")):
        limit_ns(value, "timeout")


@given(st.timedeltas())
def test_duration_of_a_timedelta_is_exact_or_saturated(value):
    exact = value // timedelta(microseconds=1) * 1_000
    assert duration_ns(value, "delay") == min(max(exact, -NEVER), NEVER)


@given(st.floats(-9e9, 9e9))
def test_duration_of_a_float_is_round_to_even(value):
    assert duration_ns(value, "delay") == round(value * 1e9)
