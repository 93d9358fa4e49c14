"""The public face of the timetable: what each method does, at its edges, and what it refuses."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

LATEST = 2**63 - 1
EARLIEST = -(2**63)


class Index:
    """An integer that is not an int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Hostile:
    """A payload that must not be compared (B118, B143)."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError("a payload was compared")

    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __bool__ = __len__ = __eq__


@pytest.fixture
def table(stack):
    table = stack.Timetable()
    yield table
    table.check()


def drain(table):
    """All items, in order."""
    out = []
    while len(table):
        out.append(table.pop()[2])
    return out


# ---------------------------------------------------------------- empty, one, full


def test_empty_table_has_nothing(table):
    assert len(table) == 0
    assert table.next_run_at() is None
    assert table.pop_due(LATEST) == []
    assert table.pop_due_ids(LATEST).tolist() == []
    assert table.pop_due_ids(LATEST).dtype == np.int64


def test_pop_when_empty_raises(table):
    with pytest.raises(IndexError, match=r"^pop from an empty timetable$"):
        table.pop()


def test_one_timer_comes_back_whole(table):
    item = object()
    timer_id = table.add(5, item)
    assert len(table) == 1
    assert timer_id in table
    assert table.next_run_at() == 5
    assert table.pop() == (5, timer_id, item)
    assert timer_id not in table
    assert len(table) == 0


@pytest.mark.parametrize("count", [63, 64, 65, 1023, 1024, 1025, 2048, 4096])
def test_exactly_full_heap_or_chunk_keeps_order(table, count):
    ids = [table.add(count - k, k) for k in range(count)]
    assert len(set(ids)) == count
    assert drain(table) == list(range(count))[::-1]


def test_ids_are_never_used_twice(table):
    seen = set()
    for k in range(3000):
        timer_id = table.add(k)
        assert timer_id not in seen
        seen.add(timer_id)
        if k % 3:
            table.cancel(timer_id)
        if k % 7 == 0:
            table.pop()
    assert all(0 <= timer_id <= LATEST for timer_id in seen)


def test_item_may_be_none(table):
    table.add(1, None)
    table.add_many([2, 3], [None, "x"])
    assert table.pop_due(3) == [None, None, "x"]


def test_items_are_those_of_the_timers_that_wait(table):
    assert table.items() == []
    ids = [table.add(k % 7, f"item {k}") for k in range(3000)]
    table.add(0)
    table.cancel(ids[5])
    table.reschedule(ids[6], 100)
    gone = table.pop()[2]
    assert sorted(table.items()) == sorted({f"item {k}" for k in range(3000)} - {"item 5", gone})
    table.clear()
    assert table.items() == []


def test_repr_tells_how_many_wait_and_until_when(table):
    table.add(7)
    assert repr(table) == f"<{type(table).__name__}: 1 waiting, next at 7>"


def test_capacity_is_only_memory(stack):
    table = stack.Timetable(capacity=1000)
    for k in range(2000):
        table.add(k, k)
    table.check()
    assert table.pop_due(LATEST) == list(range(2000))


def test_table_is_not_callable_with_a_positional_capacity(stack):
    with pytest.raises(TypeError):
        stack.Timetable(5)


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("run_at", [EARLIEST, -1, 0, 1, 2**31, 2**62, LATEST - 1])
def test_due_when_now_is_equal_and_not_before(table, run_at):
    table.add(run_at, "x")
    if run_at > EARLIEST:
        assert table.pop_due(run_at - 1) == []
    assert table.pop_due(run_at) == ["x"]


@pytest.mark.parametrize("run_at", [LATEST, LATEST + 1, 2**64, 10**30])
def test_promise_17_run_at_past_int64_saturates_and_never_comes(table, run_at):  # B43, B45
    timer_id = table.add(run_at, "x")
    assert table.next_run_at() == LATEST
    assert table.pop_due(LATEST) == []
    assert table.pop_due_ids(10**30).tolist() == []
    assert table.pop() == (LATEST, timer_id, "x")


def test_promise_17_run_at_below_int64_saturates(table):
    timer_id = table.add(-(10**30), "x")
    assert table.next_run_at() == EARLIEST
    assert table.pop_due(-(10**30)) == ["x"]
    assert timer_id not in table


def test_never_stays_out_of_a_long_sweep(table):
    table.add_many(np.full(5000, LATEST))
    table.add_many(np.arange(5000), range(5000))
    assert table.pop_due(LATEST) == list(range(5000))
    assert len(table) == 5000


def test_past_times_are_due_in_order(table):
    for run_at in (3, -5, 0, -(2**62), 2):
        table.add(run_at, run_at)
    assert table.pop_due(3) == [-(2**62), -5, 0, 2, 3]


def test_int_like_values_are_taken(table):
    timer_id = table.add(Index(3), "a", priority=Index(2))
    table.add(np.int64(2), "b")
    table.add(np.uint64(2**64 - 1), "never")
    table.add(np.array(1), "c")
    assert np.int64(timer_id) in table
    assert table.pop_due(np.int32(3), limit=Index(2)) == ["c", "b"]
    assert table.cancel(Index(timer_id))


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("count", [10, 5000])
def test_promise_03_equal_times_come_in_order_of_insertion(table, count):  # B144, B147
    table.add_many([7] * count, range(count))
    for k in range(count, count + 10):
        table.add(7, k)
    assert table.pop_due(7) == list(range(count + 10))


def test_promise_03_higher_priority_comes_first_among_equal_times(table):
    for k, priority in enumerate((0, 2047, -2048, 1, 0, -1, 2047)):
        table.add(7, (priority, k), priority=priority)
    table.add(6, "earlier", priority=-2048)
    assert drain(table) == ["earlier", (2047, 1), (2047, 6), (1, 3), (0, 0), (0, 4), (-1, 5), (-2048, 2)]


def test_promise_03_priority_holds_in_a_sorted_block(table):
    priorities = [k * 7919 % 4096 - 2048 for k in range(5000)]
    for k, priority in enumerate(priorities):
        table.add(k % 3, (k % 3, -priority, k), priority=priority)
    due = table.pop_due(3)
    assert due == sorted(due)
    assert len(due) == 5000


def test_reschedule_goes_behind_equals_and_keeps_id_and_priority(table):
    first = table.add(1, "first")
    table.add(1, "second")
    low = table.add(1, "low", priority=-1)
    assert table.reschedule(first, 1)
    assert table.reschedule(low, 1)
    table.add(1, "third")
    assert first in table
    assert drain(table) == ["second", "first", "third", "low"]


def test_order_of_others_does_not_change_when_one_comes_and_goes(stack):  # B146
    for position in range(4):
        table = stack.Timetable()
        for k, name in enumerate("abc"):
            if k == position:
                dummy = table.add(5, "dummy")
            table.add(5, name)
        if position == 3:
            dummy = table.add(5, "dummy")
        assert table.cancel(dummy)
        assert drain(table) == ["a", "b", "c"]


@pytest.mark.parametrize("count", [20, 5000])
def test_payloads_are_never_compared(table, count):  # B118, B143
    items = [Hostile() for _ in range(count)]
    items[0], items[1], items[2] = np.arange(3), {}, lambda: None
    ids = [table.add(1, item) for item in items[: count // 2]]
    ids += table.add_many([1] * (count - count // 2), items[count // 2 :]).tolist()
    assert table.cancel(ids[5])
    assert table.cancel_many(ids[7:9]) == 2
    assert table.reschedule(ids[10], 2)
    assert table.pop()[2] is items[0]
    rest = table.pop_due(2)
    expected = [k for k in range(1, count) if k not in (5, 7, 8, 10)] + [10]
    assert all(item is items[k] for item, k in zip(rest, expected, strict=True))


def test_handle_and_entry_belong_together(table):  # B115
    ids = {k: table.add(k, k) for k in (1, 3, 2)}
    assert table.cancel(ids[3])
    assert drain(table) == [1, 2]


# ---------------------------------------------------------------- cancel


def test_promise_10_cancel_is_true_once(table):
    timer_id = table.add(1, "x")
    assert table.cancel(timer_id) is True
    assert table.cancel(timer_id) is False
    assert len(table) == 0
    assert table.pop_due(LATEST) == []


def test_promise_10_cancel_of_a_popped_id_is_false(table):  # B104
    timer_id = table.add(1, "x")
    table.pop()
    assert table.cancel(timer_id) is False
    assert table.reschedule(timer_id, 5) is False
    assert len(table) == 0


@pytest.mark.parametrize("way", ["pop", "cancel", "pop_due", "clear"])
def test_promise_10_stale_id_never_touches_a_newer_timer(table, way):
    old = table.add(1, "old")
    {
        "pop": table.pop,
        "cancel": lambda: table.cancel(old),
        "pop_due": lambda: table.pop_due(1),
        "clear": table.clear,
    }[way]()
    for _ in range(70):
        table.add(2, "new")
    assert old not in table
    assert not table.cancel(old)
    assert not table.reschedule(old, 0)
    assert table.cancel_many([old]) == 0
    assert drain(table) == ["new"] * 70


@pytest.mark.parametrize(
    "foreign", [-1, 0, 1, 2**31, 2**32, 2**32 + 1, 2**62, LATEST, 2**63, -(2**63), 10**30, -(10**30)]
)
def test_unknown_id_is_no_timer(stack, foreign):
    table = stack.Timetable()
    for known in range(1500):
        table.add(known)
    ids = {table.add(5) for _ in range(3)}
    if foreign in ids or foreign in table:
        foreign = max(ids) + 7
    assert foreign not in table
    assert table.cancel(foreign) is False
    assert table.reschedule(foreign, 1) is False
    assert table.cancel_many([foreign]) == 0
    assert len(table) == 1503


def test_every_bit_of_an_id_counts(table):
    timer_id = table.add(1)
    for bit in range(64):
        assert timer_id ^ (1 << bit) not in table
        assert not table.cancel(timer_id ^ (1 << bit))
    assert timer_id in table


def test_cancel_many_counts_what_waited(table):
    ids = table.add_many(range(10), "abcdefghij")
    table.cancel(int(ids[3]))
    popped = table.pop()[1]
    assert table.cancel_many(np.concatenate([ids[:6], ids[:6], [-5, LATEST, popped]])) == 4
    assert table.pop_due(99) == list("ghij")


@pytest.mark.parametrize("items", [None, range(10_000)])
def test_cancel_many_of_a_long_block_leaves_the_rest(table, items):
    ids = table.add_many(np.arange(10_000), items)
    assert table.cancel_many(ids[::2]) == 5000
    assert table.cancel_many(ids[::2]) == 0
    table.check()
    assert table.pop_due_ids(LATEST).tolist() == ids[1::2].tolist()


def test_cancel_many_does_not_write_to_what_it_is_given(table):
    ids = table.add_many(range(100), range(100))
    before = ids.copy()
    table.cancel_many(ids)
    assert (ids == before).all()


def test_cancelling_the_head_moves_next_run_at(table):
    ids = [table.add(k) for k in range(5)]
    for k in range(4):
        table.cancel(ids[k])
        assert table.next_run_at() == k + 1


def test_clear_then_add_again_starts_clean(table):  # B113
    ids = table.add_many(np.arange(5000), range(5000))
    table.cancel_many(ids[:1000])
    table.clear()
    assert len(table) == 0
    assert table.next_run_at() is None
    assert not any(timer_id in table for timer_id in ids.tolist())
    table.check()
    table.add(1, "x")
    assert drain(table) == ["x"]
    table.clear()
    table.clear()


def test_all_ways_to_look_agree(table):  # B116
    ids = table.add_many(range(20)).tolist()
    table.cancel(ids[0])
    table.cancel_many(ids[1:3])
    table.pop()
    table.pop_due(5)
    table.pop_due_ids(7, 1)
    waiting = [timer_id for timer_id in ids if timer_id in table]
    assert len(waiting) == len(table) == 13
    assert table.next_run_at() == 7


# ---------------------------------------------------------------- bulk


def test_add_many_returns_ids_in_order(table):
    ids = table.add_many([30, 10, 20], "cab")
    assert ids.dtype == np.int64
    assert ids.shape == (3,)
    assert table.pop_due_ids(99).tolist() == [ids[1], ids[2], ids[0]]


def test_add_many_of_nothing_adds_nothing(table):
    assert table.add_many([]).shape == (0,)
    assert table.add_many(np.empty(0, np.int64), []).shape == (0,)
    assert len(table) == 0


def test_add_many_saturates_python_ints(table):
    table.add_many([10**30, -(10**30), LATEST])
    assert table.next_run_at() == EARLIEST
    assert len(table.pop_due_ids(LATEST)) == 1


@pytest.mark.parametrize("before", [0, 100, 3000, 100_000])
def test_add_many_beside_others_keeps_order(table, before):
    table.add_many(np.arange(before) * 2, range(0, 2 * before, 2))
    table.add_many(np.arange(5000) * 2 + 1, range(1, 10_000, 2))
    due = table.pop_due(LATEST)
    assert due == sorted(due)
    assert len(due) == before + 5000


def test_add_many_takes_a_view_that_is_not_contiguous(table):
    table.add_many(np.arange(20)[::-2], range(10))
    assert table.pop_due(99) == list(range(10))[::-1]


def test_add_many_takes_a_read_only_array(table):
    times = np.arange(3)
    times.flags.writeable = False
    ids = table.add_many(times)
    ids.flags.writeable = False
    assert table.cancel_many(ids) == 3


def test_add_many_keeps_no_view_of_what_it_is_given(table):
    times = np.arange(3)
    table.add_many(times)
    times[:] = 100
    assert table.next_run_at() == 0


def test_add_many_takes_a_generator(table):
    table.add_many((k for k in range(3)), (str(k) for k in range(3)))
    assert table.pop_due(9) == ["0", "1", "2"]


@pytest.mark.parametrize("count", [10, 200, 20_000])
@pytest.mark.parametrize("limit", [0, 1, 9, 10, 150, 10_000, 19_999, 20_000, 20_001, 10**30, None, math.inf])
def test_pop_due_takes_at_most_limit(table, count, limit):
    ids = table.add_many(np.arange(count)[::-1].copy())[::-1]
    taken = count if limit is None else int(min(limit, count))
    assert table.pop_due_ids(LATEST - 1, limit).tolist() == ids[:taken].tolist()
    assert len(table) == count - taken
    assert table.next_run_at() == (taken if taken < count else None)


@pytest.mark.parametrize("due", [1, 64, 65, 1000, 4095, 4096, 4097, 30_000])
def test_pop_due_takes_what_is_due_beside_dead_ones(table, due):
    ids = table.add_many(np.arange(40_000) * 7919 % 40_000, range(40_000))
    times = np.arange(40_000) * 7919 % 40_000
    table.cancel_many(ids[times % 3 == 0])
    expected = [int(np.flatnonzero(times == t)[0]) for t in range(0, due, max(1, due // 50)) if t % 3]
    taken = table.pop_due(due - 1)
    assert len(taken) == sum(t % 3 != 0 for t in range(due))
    assert [times[k] for k in taken] == sorted(times[k] for k in taken)
    assert set(expected) <= set(taken)


def test_pop_due_sorts_a_block_over_the_whole_range(table):
    rng = np.random.default_rng(1)
    times = rng.integers(EARLIEST, LATEST, 20_000, endpoint=True)
    times[:6] = [EARLIEST, -1, 0, 1, LATEST - 1, LATEST]
    table.add_many(times, times.tolist())
    due = table.pop_due(LATEST)
    assert due == sorted(times[times < LATEST].tolist())


# ---------------------------------------------------------------- bad input

NO_INTS = [
    math.nan,
    math.inf,
    1.0,
    True,
    False,
    "1",
    b"1",
    None,
    [1],
    1j,
    np.float64(1),
    np.bool_(True),
    np.array([1.5]),
]


def is_refused(table, call, error, message):
    before = len(table), table.next_run_at()
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()
    assert (len(table), table.next_run_at()) == before


@pytest.mark.parametrize("value", NO_INTS, ids=repr)
def test_promise_17_what_is_no_int_is_refused(table, value):
    timer_id = table.add(1, "x")
    for name, call in {
        "run_at": lambda: table.add(value),
        "priority": lambda: table.add(1, priority=value),
        "timer_id": lambda: table.cancel(value),
        "now": lambda: table.pop_due(value),
    }.items():
        is_refused(table, call, TypeError, f"{name} must be an int, got {value!r}")
    is_refused(table, lambda: table.reschedule(value, 1), TypeError, f"timer_id must be an int, got {value!r}")
    is_refused(table, lambda: table.reschedule(timer_id, value), TypeError, f"run_at must be an int, got {value!r}")
    is_refused(table, lambda: table.pop_due_ids(value), TypeError, f"now must be an int, got {value!r}")
    assert value not in table
    assert table.pop() == (1, timer_id, "x")


@pytest.mark.parametrize("value", [v for v in NO_INTS if v is not None and v is not math.inf], ids=repr)
def test_promise_17_limit_that_is_no_int_is_refused(table, value):
    table.add(1)
    is_refused(table, lambda: table.pop_due(1, value), TypeError, f"limit must be an int, got {value!r}")
    is_refused(table, lambda: table.pop_due_ids(1, value), TypeError, f"limit must be an int, got {value!r}")


@pytest.mark.parametrize("value", [-1, -(10**30)])
def test_promise_17_negative_limit_is_refused(table, value):
    table.add(1)
    is_refused(table, lambda: table.pop_due(1, limit=value), ValueError, f"limit must be 0 or more, got {value!r}")
    is_refused(table, lambda: table.pop_due_ids(1, limit=value), ValueError, f"limit must be 0 or more, got {value!r}")


@pytest.mark.parametrize("value", [-2049, 2048, 10**30, -(10**30)])
def test_promise_17_priority_out_of_range_is_refused(table, value):
    message = f"priority must be from -2048 to 2047, got {value!r}"
    is_refused(table, lambda: table.add(1, priority=value), ValueError, message)


@pytest.mark.parametrize("value", [-1, 2**31 + 1, 10**30])
def test_promise_17_capacity_out_of_range_is_refused(stack, value):
    with pytest.raises(ValueError, match=f"^{re.escape(f'capacity must be from 0 to 2**31, got {value!r}')}$"):
        stack.Timetable(capacity=value)


@pytest.mark.parametrize("value", NO_INTS, ids=repr)
def test_promise_17_capacity_that_is_no_int_is_refused(stack, value):
    with pytest.raises(TypeError, match=f"^{re.escape(f'capacity must be an int, got {value!r}')}$"):
        stack.Timetable(capacity=value)


@pytest.mark.parametrize(
    "dtype", ["f8", "f4", "i4", "u8", "i2", "?", ">i8", "O", "U3", "M8[ns]", "m8[ns]", "c16", [("a", "i8")]], ids=str
)
def test_promise_17_array_of_another_dtype_is_refused(table, dtype):
    table.add(1)
    array = np.zeros(3, dtype)
    is_refused(table, lambda: table.add_many(array), TypeError, f"run_at must be int64[n], got {array.dtype!r}")
    is_refused(table, lambda: table.cancel_many(array), TypeError, f"timer_ids must be int64[n], got {array.dtype!r}")


@pytest.mark.parametrize("shape", [(), (2, 3), (1, 1), (0, 0)])
def test_promise_17_array_of_another_shape_is_refused(table, shape):
    table.add(1)
    array = np.zeros(shape, np.int64)
    is_refused(table, lambda: table.add_many(array), ValueError, f"run_at must be int64[n], got shape {shape!r}")
    is_refused(table, lambda: table.cancel_many(array), ValueError, f"timer_ids must be int64[n], got shape {shape!r}")


@pytest.mark.parametrize("value", [None, 5, 1.5, math.nan, True], ids=repr)
def test_promise_17_what_is_no_sequence_is_refused(table, value):
    table.add(1)
    for name, call in {"run_at": table.add_many, "timer_ids": table.cancel_many}.items():
        message = f"{name} must be int64[n] or a sequence of ints, got {value!r}"
        is_refused(table, lambda call=call: call(value), TypeError, message)


@pytest.mark.parametrize("value", NO_INTS, ids=repr)
def test_promise_17_sequence_with_something_else_in_it_is_refused_whole(table, value):
    timer_id = table.add(1)
    is_refused(table, lambda: table.add_many([1, 2, value]), TypeError, f"run_at[2] must be an int, got {value!r}")
    message = f"timer_ids[1] must be an int, got {value!r}"
    is_refused(table, lambda: table.cancel_many([timer_id, value]), TypeError, message)
    assert timer_id in table


def test_promise_17_str_of_times_is_refused(table):
    is_refused(table, lambda: table.add_many("12"), TypeError, "run_at[0] must be an int, got '1'")


@pytest.mark.parametrize("items", [[], ["a"], range(3), itertools.count()])
def test_promise_17_another_number_of_items_is_refused(table, items):
    got = len(items) if isinstance(items, list) else "more"
    message = f"items must be 2 objects, as many as run_at, got {got}"
    is_refused(table, lambda: table.add_many([1, 2], items), ValueError, message)


def test_error_of_a_generator_is_passed_on_and_nothing_is_added(table):
    def times():
        yield 1
        raise LookupError("mine")

    is_refused(table, lambda: table.add_many(times()), LookupError, "mine")
    is_refused(table, lambda: table.add_many([1], times()), LookupError, "mine")


def test_error_of_an_index_is_passed_on_and_nothing_is_added(table):
    class Bad:
        def __index__(self):
            raise LookupError("mine")

    is_refused(table, lambda: table.add(Bad()), LookupError, "mine")
    is_refused(table, lambda: table.add_many([1, Bad()]), LookupError, "mine")


# ---------------------------------------------------------------- check


def test_check_sees_damage():
    """On the pure stack alone: nothing reaches into the compiled one."""
    from nextdue import pure

    def damaged(change):
        table = pure.Timetable()
        for k in range(20):
            table.add(k)
        table.check()
        change(table)
        return table

    def swap(table):
        table._heap[0], table._heap[9] = table._heap[9], table._heap[0]

    def double(table):
        table._heap.append(table._heap[-1])

    def lose(table):
        table._heap.pop()

    def miscount(table):
        table._live += 1

    def bury(table):
        for _ in range(15):
            table._slots.popitem()
            table._live -= 1

    for change in (swap, double, lose, miscount, bury):
        with pytest.raises(AssertionError):
            damaged(change).check()
