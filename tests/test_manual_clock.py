"""The clock that moves by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nextdue.testing import ManualClock


def test_clock_when_new_stands_at_its_start():
    assert ManualClock()() == 0
    assert ManualClock(7)() == 7
    assert ManualClock(start_ns=-7)() == -7


def test_clock_when_advanced_moves_by_the_duration(clock):
    clock.advance(1.5)
    clock.advance(timedelta(microseconds=1))
    clock.advance(0)
    assert clock() == 1_500_001_000


def test_clock_when_set_moves_there_even_back(clock):
    clock.set_ns(100)
    clock.set_ns(40)
    assert clock() == 40


def test_clock_at_years_of_uptime_keeps_every_nanosecond():  # B49, B65
    clock = ManualClock(300 * 365 * 86_400 * 10**9 // 2)
    before = clock()
    clock.advance(1e-9)
    assert clock() == before + 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda clock: clock.advance(-1), ValueError, "duration must be 0 or more, got -1"),
        (lambda clock: clock.advance(float("nan")), ValueError, "duration must be a finite number of seconds, got nan"),
        (
            lambda clock: clock.advance(True),
            TypeError,
            "duration must be seconds (int or float) or a timedelta, got True",
        ),
        (lambda clock: clock.set_ns(1.0), TypeError, "ns must be int nanoseconds, got 1.0"),
        (lambda clock: clock.set_ns(True), TypeError, "ns must be int nanoseconds, got True"),
        (lambda clock: ManualClock("0"), TypeError, "start_ns must be int nanoseconds, got '0'"),
        (lambda clock: clock.subscribe(3), TypeError, "callback must be callable, got 3"),
    ],
)
def test_clock_when_given_nonsense_says_so_and_does_not_move(clock, call, error, message):
    told = []
    clock.subscribe(lambda: told.append(clock()))
    with pytest.raises(error) as caught:
        call(clock)
    assert str(caught.value) == message
    assert clock() == 0
    assert told == []


def test_subscribers_when_the_clock_moves_are_told_each_time(clock):
    told = []
    clock.subscribe(lambda: told.append(("a", clock())))
    clock.subscribe(lambda: told.append(("b", clock())))
    clock.set_ns(5)
    clock.advance(1e-9)
    assert told == [("a", 5), ("b", 5), ("a", 6), ("b", 6)]


def test_unsubscribe_ends_that_subscription_and_no_other(clock):
    told = []

    def callback():
        told.append(clock())

    first = clock.subscribe(callback)
    clock.subscribe(callback)
    first()
    first()
    clock.set_ns(1)
    assert told == [1]


def test_callback_may_move_subscribe_and_unsubscribe(clock):
    told = []

    def callback():
        told.append(clock())
        unsubscribe()
        clock.subscribe(lambda: told.append(-clock()))
        if clock() == 1:
            clock.set_ns(2)

    unsubscribe = clock.subscribe(callback)
    clock.set_ns(1)
    assert told == [1, -2]


def test_callback_with_an_eq_that_calls_back_meets_no_lock(clock):  # promise 13
    class Callback:
        def __call__(self):
            pass

        def __eq__(self, other):
            clock.advance(1)
            return True

        __hash__ = None

    unsubscribe = clock.subscribe(Callback())
    clock.subscribe(Callback())
    unsubscribe()
    clock.advance(1)
    assert clock() == 10**9


def test_callback_that_raises_does_not_keep_the_others_from_being_told(clock):
    told = []

    def broken():
        raise OSError("broken")

    clock.subscribe(broken)
    clock.subscribe(lambda: told.append(clock()))
    with pytest.raises(OSError, match=r"^broken$"):
        clock.set_ns(3)
    assert told == [3]
    assert clock() == 3


def test_repr_tells_the_instant(clock):
    clock.set_ns(12)
    assert repr(clock) == "<ManualClock at 12 ns>"
