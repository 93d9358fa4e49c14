"""Retry policies: every backoff is capped. Promise 9."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextdue import DEFAULT, ExponentialBackoff, FixedBackoff

ERROR = OSError("x")


def test_fixed_waits_the_same_until_the_attempts_are_used_up():
    policy = FixedBackoff(max_attempts=3, delay=timedelta(seconds=2))
    assert [policy(attempt, ERROR) for attempt in (1, 2, 3, 4)] == [2.0, 2.0, None, None]


@pytest.mark.parametrize("limit", [None, math.inf])
def test_policy_without_a_limit_of_attempts_never_gives_up(limit):
    assert FixedBackoff(limit, delay=1)(10**9, ERROR) == 1.0
    assert ExponentialBackoff(limit, base=1, cap=60)(10**9, ERROR) == 60.0


def test_exponential_doubles_up_to_the_cap():
    policy = ExponentialBackoff(max_attempts=7, base=1, cap=10)
    assert [policy(attempt, ERROR) for attempt in range(1, 8)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]


def test_exponential_with_another_factor_multiplies_by_it():
    policy = ExponentialBackoff(None, base=0.5, factor=3, cap=100)
    assert [policy(attempt, ERROR) for attempt in range(1, 5)] == pytest.approx([0.5, 1.5, 4.5, 13.5])


def test_exponential_with_factor_one_stays_at_its_base():
    policy = ExponentialBackoff(None, base=2, factor=1)
    assert policy(10**6, ERROR) == 2.0


def test_exponential_with_base_zero_does_not_wait():
    assert ExponentialBackoff(None, base=0)(10**6, ERROR) == 0


def test_exponential_with_a_base_past_the_cap_waits_the_cap():
    assert ExponentialBackoff(None, base=100, cap=3)(1, ERROR) == 3.0


@pytest.mark.parametrize("attempt", [50, 1023, 1024, 1025, 2000, 5000, 10**6, 10**30])  # B57, B58, B60, B61
@pytest.mark.parametrize("factor", [2, 2.0, 10, 1e300, 1.0000001])
def test_exponential_at_any_attempt_is_finite_and_capped(attempt, factor):
    wait = ExponentialBackoff(None, base=1, factor=factor, cap=5)(attempt, ERROR)
    assert 1 <= wait <= 5
    if factor >= 2:
        assert wait == 5.0


@given(
    st.integers(1, 10**7),
    st.floats(0, 1e6),
    st.floats(1, 1e9),
    st.floats(0, 1e6),
    st.floats(0, 1),
)
def test_exponential_of_anything_lies_between_its_jitter_and_the_cap(attempt, base, factor, cap, jitter):
    policy = ExponentialBackoff(None, base, factor=factor, cap=cap, jitter=jitter)
    longest = ExponentialBackoff(None, base, factor=factor, cap=cap)(attempt, ERROR)
    assert longest <= policy.cap
    assert (1 - policy.jitter) * longest * (1 - 1e-12) <= policy(attempt, ERROR) <= longest


def test_jitter_of_one_spreads_over_the_whole_wait():
    policy = ExponentialBackoff(None, base=1, jitter=1)
    waits = [policy(1, ERROR) for _ in range(500)]
    assert min(waits) < 0.5 < max(waits) <= 1


@pytest.mark.parametrize("make", [lambda n: FixedBackoff(n, delay=1), lambda n: ExponentialBackoff(n, base=1)])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "max_attempts must be 1 or more, got 0"),
        (-1, ValueError, "max_attempts must be 1 or more, got -1"),
        (True, TypeError, "max_attempts must be an int or None, got True"),
        (1.0, TypeError, "max_attempts must be an int or None, got 1.0"),
        (math.nan, TypeError, "max_attempts must be an int or None, got nan"),
        ("3", TypeError, "max_attempts must be an int or None, got '3'"),
    ],
)
def test_policy_with_bad_max_attempts_is_refused(make, value, error, message):
    with pytest.raises(error) as caught:
        make(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FixedBackoff(1, delay=-1), ValueError, "delay must be 0 or more, got -1"),
        (lambda: FixedBackoff(1, delay=math.nan), ValueError, "delay must be a finite number of seconds, got nan"),
        (lambda: FixedBackoff(1, delay="1"), TypeError, "delay must be seconds (int or float) or a timedelta, got '1'"),
        (lambda: ExponentialBackoff(1, base=-0.5), ValueError, "base must be 0 or more, got -0.5"),
        (lambda: ExponentialBackoff(1, 1, cap=-1), ValueError, "cap must be 0 or more, got -1"),
        (lambda: ExponentialBackoff(1, 1, cap=math.inf), ValueError, "cap must be a finite number of seconds, got inf"),
        (lambda: ExponentialBackoff(1, 1, factor=0.5), ValueError, "factor must be finite and 1 or more, got 0.5"),
        (lambda: ExponentialBackoff(1, 1, factor=math.nan), ValueError, "factor must be finite and 1 or more, got nan"),
        (lambda: ExponentialBackoff(1, 1, factor=math.inf), ValueError, "factor must be finite and 1 or more, got inf"),
        (
            lambda: ExponentialBackoff(1, 1, factor=10**309),
            ValueError,
            f"factor must be finite and 1 or more, got {10**309}",
        ),
        (lambda: ExponentialBackoff(1, 1, factor=True), TypeError, "factor must be a number, got True"),
        (lambda: ExponentialBackoff(1, 1, factor="2"), TypeError, "factor must be a number, got '2'"),
        (lambda: ExponentialBackoff(1, 1, jitter=1.5), ValueError, "jitter must be from 0 to 1, got 1.5"),
        (lambda: ExponentialBackoff(1, 1, jitter=-0.1), ValueError, "jitter must be from 0 to 1, got -0.1"),
        (lambda: ExponentialBackoff(1, 1, jitter=math.nan), ValueError, "jitter must be from 0 to 1, got nan"),
        (lambda: ExponentialBackoff(1, 1, jitter=None), TypeError, "jitter must be a number, got None"),
    ],
)
def test_policy_with_a_bad_number_is_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


def test_reprs_tell_the_settings():
    assert repr(FixedBackoff(3, delay=0.5)) == "FixedBackoff(max_attempts=3, delay=0.5)"
    assert (
        repr(ExponentialBackoff(None, base=1, jitter=0.5))
        == "ExponentialBackoff(max_attempts=None, base=1.0, factor=2.0, cap=3600.0, jitter=0.5)"
    )
    assert repr(DEFAULT) == "DEFAULT"
