"""What the timetable keeps alive, what it gives back, what runs while it works: items, finalizers, the collector."""

from __future__ import annotations

import ctypes
import gc
import operator
import weakref

import numpy as np
import pytest

import nextdue

LATEST = 2**63 - 1
ENTRY = 24
SLOT = 12.125
FLOOR = (
    40_000  # bytes that a table may keep whatever was in it: the smallest heap, a chunk with items, the pages of 10**6
)
TREE = 2 * 1024 * ENTRY  # and as long as there are many hundreds: the run, and room to sort it


class Item:
    """Something that can be referred to weakly, and that may refer to others."""


@pytest.fixture(autouse=True)
def without_collector():
    """References alone free what is dropped here; tests of the collector call it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def table(stack):
    table = stack.Timetable()
    yield table
    table.check()


@pytest.fixture
def last_generation():
    """Let the generations of the compiled stack end early: a setter of the last one."""
    if nextdue.BACKEND != "compiled":
        pytest.skip("ids of the pure stack have no generation")
    from nextdue import _timetable

    capsule = _timetable.__pyx_capi__["LAST_GEN"]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.POINTER(ctypes.c_uint32)
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    last = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    before = last[0]
    assert before == 2**31 - 1

    def set_last(value):
        last[0] = value

    yield set_last
    last[0] = before


# ---------------------------------------------------------------- items are let go


@pytest.mark.parametrize("way", ["cancel", "cancel_many", "pop", "pop_due", "pop_due_ids", "clear", "drop"])
@pytest.mark.parametrize("others", [0, 5000])
def test_promise_10_item_is_released_at_once(stack, way, others):  # B132, B134
    table = stack.Timetable()
    table.add_many(np.arange(others) + 2, range(others))
    item = Item()
    dead = weakref.ref(item)
    timer_id = table.add(1, item)
    del item
    assert dead() is not None
    {
        "cancel": lambda: table.cancel(timer_id),
        "cancel_many": lambda: table.cancel_many([timer_id] * 2),
        "pop": table.pop,
        "pop_due": lambda: table.pop_due(1),
        "pop_due_ids": lambda: table.pop_due_ids(1),
        "clear": table.clear,
        "drop": lambda: None,
    }[way]()
    if way == "drop":
        del table
    assert dead() is None


def test_promise_10_items_of_a_long_block_are_released(table):
    items = [Item() for _ in range(6000)]
    dead = [weakref.ref(item) for item in items]
    ids = table.add_many(np.arange(6000), items)
    del items
    assert all(ref() is not None for ref in dead)
    table.cancel_many(ids[:2000])
    assert [ref() is None for ref in dead] == [True] * 2000 + [False] * 4000
    table.pop_due_ids(3999)
    assert [ref() is None for ref in dead] == [True] * 4000 + [False] * 2000
    table.clear()
    assert all(ref() is None for ref in dead)


def test_reschedule_keeps_the_item(table):
    item = Item()
    dead = weakref.ref(item)
    timer_id = table.add(1, item)
    del item
    for k in range(200):
        table.reschedule(timer_id, k)
    assert dead() is not None
    assert table.pop()[2] is dead()


def test_refused_add_many_keeps_no_reference(table):
    item = Item()
    dead = weakref.ref(item)
    with pytest.raises(ValueError, match=r"^items must be 2 objects, as many as run_at, got 1$"):
        table.add_many([1, 2], [item])
    del item
    assert dead() is None


# ---------------------------------------------------------------- the collector


@pytest.mark.parametrize("subclass", [False, True])
@pytest.mark.parametrize("bulk", [0, 5000])
def test_collector_frees_a_ring_through_an_item(stack, subclass, bulk):
    base = stack.Timetable

    class Sub(base):
        def __init__(self):
            super().__init__()
            self.extra = Item()

    table = Sub() if subclass else base()
    item = Item()
    item.table = table
    table.add_many([1] * bulk, [None] * bulk)
    table.add(1, item)
    dead = [weakref.ref(item), weakref.ref(table)]
    if subclass:
        dead.append(weakref.ref(table.extra))
    del item, table
    assert all(ref() is not None for ref in dead)
    gc.collect()
    assert all(ref() is None for ref in dead)


def test_collector_spares_what_a_living_table_holds(table):
    items = [Item() for _ in range(3000)]
    for item in items:
        item.ring = item
    refs = [weakref.ref(item) for item in items]
    table.add_many(range(3000), items)
    del items, item
    gc.collect()
    assert all(ref() is not None for ref in refs)
    table.clear()
    gc.collect()
    assert all(ref() is None for ref in refs)


def test_subclass_that_skips_init_works(stack):
    class Sub(stack.Timetable):
        def __new__(cls, *args):
            return super().__new__(cls)

        def __init__(self, name):
            if stack.name == "pure":
                super().__init__()
            self.name = name

    table = Sub("mine")
    assert table.next_run_at() is None
    table.clear()
    table.check()
    table.add_many([3, 1, 2], "cab")
    assert table.pop_due(9) == ["a", "b", "c"]
    assert table.name == "mine"


# ---------------------------------------------------------------- finalizers


@pytest.mark.parametrize("way", ["cancel", "cancel_many", "pop", "pop_due", "pop_due_ids", "clear"])
def test_promise_13_finalizer_of_an_item_may_call_back(table, way):
    """It runs without the lock: each adds one timer, cancels one, moves one, and looks."""
    left = 3000
    ids = table.add_many(np.arange(1000) + 10**6).tolist()
    seen = []

    class Caller:
        def __del__(self):
            nonlocal left
            left -= 1
            table.add(10**9, left)
            table.cancel(ids[left % 1000])
            table.reschedule(ids[(left + 1) % 1000], 10**8)
            seen.append((len(table), table.next_run_at(), ids[0] in table))

    callers = table.add_many(np.arange(3000), (Caller() for _ in range(3000))).tolist()
    {
        "cancel": lambda: [table.cancel(timer_id) for timer_id in callers],
        "cancel_many": lambda: table.cancel_many(callers),
        "pop": lambda: [table.pop()[0] for _ in range(3000)],
        "pop_due": lambda: table.pop_due(2999).clear(),
        "pop_due_ids": lambda: table.pop_due_ids(2999),
        "clear": table.clear,
    }[way]()
    assert left == 0
    assert len(seen) == 3000
    table.check()
    assert len(table) == 3000  # those that the finalizers added: all others are cancelled or cleared


@pytest.mark.parametrize("cyclic", [False, True])
def test_promise_13_finalizers_run_by_the_collector_may_call_back(table, cyclic):  # B124
    finalized = 0
    added = []

    class Caller:
        def __init__(self):
            self.ring = self if cyclic else None

        def __del__(self):
            nonlocal finalized
            finalized += 1
            added.append(table.add(5))
            if finalized % 3 == 0:
                table.cancel(added.pop())
            if finalized % 100 == 0:
                table.pop()

    count = 100_000
    threshold = gc.get_threshold()
    gc.enable()
    gc.set_threshold(1)
    try:
        for k in range(count):
            if k % 50 == 0:
                Caller()
            table.add(k + 10)
            if k % 7 == 0:
                table.next_run_at()
    finally:
        gc.set_threshold(*threshold)
        gc.disable()
    gc.collect()
    assert finalized == count // 50
    table.check()
    popped = sum(run_at == 5 for run_at in iter(lambda: table.pop()[0] if len(table) else None, None))
    assert popped == finalized - finalized // 3 - finalized // 100


def test_item_that_resurrects_itself_lives_on(table):
    kept = []

    class Phoenix:
        def __del__(self):
            kept.append(self)
            if len(kept) == 1:
                table.add(1, self)

    timer_id = table.add(1, Phoenix())
    table.cancel(timer_id)
    assert len(table) == 1
    assert table.pop()[2] is kept[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["cancel", "cancel_many", "pop_due_ids", "clear"])
def test_finalizer_that_raises_harms_nothing(table, way):
    class Bad:
        def __del__(self):
            raise KeyError("mine")

    ids = table.add_many([1] * 300, [Bad() for _ in range(300)])
    table.add(2, "x")
    {
        "cancel": lambda: [table.cancel(timer_id) for timer_id in ids.tolist()],
        "cancel_many": lambda: table.cancel_many(ids),
        "pop_due_ids": lambda: table.pop_due_ids(1),
        "clear": table.clear,
    }[way]()
    assert len(table) == (way != "clear")


def test_payload_that_cannot_be_compared_or_hashed_is_let_go(table):  # B143
    class Raises:
        __hash__ = None

        def __eq__(self, other):
            raise AssertionError("a payload was compared")

        __lt__ = __bool__ = __len__ = __eq__

    ids = [table.add(1, Raises()) for _ in range(100)]
    table.cancel(ids[0])
    table.cancel_many(ids[1:50])
    assert len(table.pop_due_ids(1)) == 50


# ---------------------------------------------------------------- memory goes back


def needed(live, with_items):
    return live * (ENTRY + SLOT + 8 * with_items)


@pytest.mark.parametrize("with_items", [False, True])
@pytest.mark.parametrize("which", ["first", "last", "middle", "none"])
@pytest.mark.parametrize("many", [False, True])
def test_promise_11_memory_goes_back_after_cancel(stack, which, with_items, many):
    count = 200_000 if stack.name == "compiled" else 20_000
    live = count // 10
    table = stack.Timetable()
    ids = table.add_many(np.arange(count) * 7919 % count, range(count) if with_items else None)
    start = {"first": 0, "last": count - live, "middle": count // 3 + 100, "none": 0}[which]
    stop = start if which == "none" else start + live
    doomed = np.concatenate([ids[:start], ids[stop:]])
    if many:
        table.cancel_many(doomed)
    else:
        for timer_id in doomed.tolist():
            table.cancel(timer_id)
    table.check()
    assert len(table) == stop - start
    if stack.name == "compiled":
        assert table.nbytes <= 4 * needed(len(table), with_items) + FLOOR


def test_promise_11_heap_is_never_much_larger_than_what_lives(stack):
    """At every moment of a long decline, not only at its end; slots go from one side, so that chunks empty."""
    table = stack.Timetable()
    ids = table.add_many(np.arange(100_000 if stack.name == "compiled" else 10_000)).tolist()
    for k, timer_id in enumerate(ids):
        table.cancel(timer_id)
        if stack.name == "compiled" and k % 100 == 0:
            assert table.nbytes <= 4 * needed(len(table), False) + FLOOR
    table.check()


@pytest.mark.parametrize("with_items", [False, True])
@pytest.mark.parametrize("every", [10, 100, 1000])
@pytest.mark.parametrize("many", [False, True])
def test_promise_11_memory_goes_back_though_survivors_are_scattered(stack, every, with_items, many):
    count = 200_000 if stack.name == "compiled" else 20_000
    table = stack.Timetable()
    items = [Item() for _ in range(count)] if with_items else None
    ids = table.add_many(np.arange(count), items)
    full = table.nbytes
    kept = np.arange(count) % every == 3
    for some in [ids[~kept]] if many else ids[~kept].reshape(-1, 9).tolist():
        table.cancel_many(some)
    assert len(table) == count // every
    table.check()
    if stack.name == "compiled":
        assert table.nbytes <= 4 * needed(len(table), with_items) + FLOOR
    else:
        assert table.nbytes <= 4 * full / every  # a list and a dict take what is in them

    again = table.add_many(np.arange(count) + count, items)  # the scattered ones come home
    table.check()
    assert table.nbytes <= 1.2 * full + 4 * needed(count // every, with_items)
    for timer_id in ids[~kept][::7].tolist():
        assert not table.cancel(timer_id)
        assert not table.reschedule(timer_id, 0)
    assert table.pop_due_ids(LATEST).tolist() == ids[kept].tolist() + again.tolist()
    table.check()
    assert table.nbytes <= FLOOR


@pytest.mark.parametrize("with_items", [False, True])
def test_promise_11_memory_goes_back_at_every_moment_of_a_scattered_decline(stack, with_items):
    count = 200_000 if stack.name == "compiled" else 10_000
    table = stack.Timetable()
    ids = table.add_many(np.arange(count), range(count) if with_items else None)
    np.random.default_rng(7).shuffle(ids)
    for k in range(0, count, 100):
        table.cancel_many(ids[k : k + 100])
        if stack.name == "compiled":
            assert table.nbytes <= 4 * needed(len(table), with_items) + FLOOR + TREE * (len(table) > 600)
    table.check()
    assert len(table) == 0
    assert table.nbytes <= FLOOR


@pytest.mark.parametrize("times", ["in order", "scattered"])
@pytest.mark.parametrize("left", ["first", "last", "scattered"])
@pytest.mark.parametrize("many", [False, True])
def test_promise_11_memory_goes_back_though_a_thousand_of_a_million_are_left(stack, times, left, many):
    """Where the survivors are one in each of a thousand leaves of the tree, that is not what they need."""
    count = 1_000_000 if stack.name == "compiled" else 20_000
    live = 1000
    rng = np.random.default_rng(11)
    table = stack.Timetable()
    ids = table.add_many(np.arange(count) if times == "in order" else rng.permutation(count))
    order = {"first": ids, "last": ids[::-1], "scattered": rng.permutation(ids)}[left]
    if many:
        assert table.cancel_many(order[live:]) == count - live
    else:
        for timer_id in order[live:].tolist():
            table.cancel(timer_id)
    table.check()
    if stack.name == "compiled":
        assert table.nbytes <= 4 * needed(live, False) + FLOOR + TREE
    assert sorted(table.pop_due_ids(LATEST).tolist()) == sorted(order[:live].tolist())


def test_promise_11_pages_of_millions_go_back(stack):
    count = 3_000_000 if stack.name == "compiled" else 30_000
    table = stack.Timetable()
    ids = table.add_many(np.arange(count))
    table.cancel_many(ids[:-300])
    table.check()
    if stack.name == "compiled":
        assert table.nbytes <= 2 * needed(300, False) + FLOOR
    assert table.add(5) not in set(ids.tolist())
    assert table.pop()[0] == 5
    assert table.pop_due_ids(LATEST).tolist() == ids[-300:].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_promise_10_stale_id_never_touches_a_newer_timer_however_records_move(stack, seed):
    """Records move to the annex and home again, in waves; each id names one timer for good."""
    rng = np.random.default_rng(seed)
    table = stack.Timetable()
    waiting: dict[int, Item] = {}
    stale: list[int] = []
    for _ in range(12):
        items = [Item() for _ in range(int(rng.integers(1, 9000)))]
        ids = table.add_many(rng.integers(0, 10**6, len(items)), items).tolist()
        assert waiting.keys().isdisjoint(ids)
        assert not set(stale).intersection(ids)
        waiting.update(zip(ids, items, strict=True))
        every = int(rng.choice([2, 5, 10, 100, 1000]))
        doomed = [timer_id for k, timer_id in enumerate(waiting) if k % every]
        if rng.integers(2):
            assert table.cancel_many(doomed) == len(doomed)
        else:
            assert all(table.cancel(timer_id) for timer_id in doomed)
        for timer_id in doomed:
            del waiting[timer_id]
        stale += doomed
        table.check()
        for timer_id in rng.choice(stale, 2000).tolist():
            assert timer_id not in table
            assert not table.cancel(timer_id)
            assert not table.reschedule(timer_id, 1)
        for timer_id in list(waiting)[::3]:
            assert table.reschedule(timer_id, int(rng.integers(0, 10**6)))
        for _ in range(min(len(waiting) // 2, 50)):
            _, timer_id, item = table.pop()
            assert item is waiting.pop(timer_id)
            stale.append(timer_id)
        table.check()
        assert len(table) == len(waiting)
    assert table.cancel_many(list(waiting)) == len(waiting)


def test_collector_sees_the_items_of_scattered_survivors(table):
    items = [Item() for _ in range(20_000)]
    for item in items:
        item.ring = item
    refs = [weakref.ref(item) for item in items]
    ids = table.add_many(range(20_000), items)
    del items, item
    table.cancel_many(ids[np.arange(20_000) % 100 != 0])
    gc.collect()
    assert [ref() is not None for ref in refs] == [k % 100 == 0 for k in range(20_000)]
    table.add_many(range(5_000))
    gc.collect()
    assert [k for k, ref in enumerate(refs) if ref() is not None] == list(range(0, 20_000, 100))
    table.clear()
    gc.collect()
    assert all(ref() is None for ref in refs)


@pytest.mark.parametrize("with_items", [False, True])
def test_promise_11_add_and_cancel_beside_few_live_ones_stays_flat(stack, with_items):  # B131
    table = stack.Timetable()
    for k in range(10):
        table.add(k)
    item = object() if with_items else None
    peak = 0
    for k in range(1_000_000 if stack.name == "compiled" else 50_000):
        table.cancel(table.add(10**15 + k, item))
        if k % 1000 == 0:
            peak = max(peak, table.nbytes)
    table.check()
    assert len(table) == 10
    assert peak <= FLOOR


def test_promise_11_rescheduling_without_end_stays_flat(stack):
    table = stack.Timetable()
    ids = [table.add(k) for k in range(100)]
    start = table.nbytes
    for k in range(50_000):
        table.reschedule(ids[k % 100], 10**15 + k)
    table.check()
    assert table.nbytes <= 4 * start
    assert len(table) == 100


@pytest.mark.parametrize("way", ["pop", "pop_due", "pop_due_ids", "clear", "some"])
def test_promise_11_memory_goes_back_after_pops(stack, way):
    count = 100_000 if stack.name == "compiled" else 10_000
    table = stack.Timetable()
    table.add_many(np.arange(count), range(count))
    table.check()
    if way == "some":
        while len(table):
            assert table.pop_due(LATEST, 3000)
    elif way == "pop":
        for _ in range(count):
            table.pop()
    elif way == "clear":
        table.clear()
    else:
        getattr(table, way)(LATEST)
    table.check()
    assert len(table) == 0
    assert table.nbytes <= FLOOR


def test_memory_of_a_timer_is_at_most_60_bytes(stack):
    if stack.name == "pure":
        pytest.skip("the promise is the compiled one's")
    table = stack.Timetable(capacity=200_000)
    table.add_many(np.arange(200_000), range(200_000))
    assert table.nbytes / 200_000 <= 60
    one_by_one = stack.Timetable()
    for k in range(200_000):
        one_by_one.add(k)
    assert one_by_one.nbytes / 200_000 <= 80


# ---------------------------------------------------------------- ids are not used twice


def test_slot_is_retired_before_its_generation_wraps(last_generation):
    last_generation(3)
    table = nextdue.Timetable()
    seen = set()
    for k in range(20_000):
        timer_id = table.add(k, k)
        assert timer_id not in seen
        assert 0 < timer_id >> 32 <= 3
        seen.add(timer_id)
        if k % 2:
            table.cancel(timer_id)
        else:
            assert table.pop()[1] == timer_id
    table.check()
    assert len(table) == 0
    assert not any(timer_id in table for timer_id in list(seen)[::97])


def test_generation_goes_on_where_it_was_after_a_chunk_was_given_back(stack):
    table = stack.Timetable()
    seen = set()
    peaks = []
    for _ in range(6):
        ids = table.add_many(np.arange(20_000)).tolist()
        assert seen.isdisjoint(ids)
        seen.update(ids)
        peaks.append(table.nbytes)
        table.pop_due_ids(LATEST)
        table.check()
        assert table.nbytes < peaks[0] / 5  # the chunks were given back
        assert not any(timer_id in table for timer_id in ids)
    assert max(peaks) <= 1.1 * peaks[0]


def test_chunks_whose_generations_are_used_up_are_passed_over(last_generation):
    last_generation(2)
    table = nextdue.Timetable()
    seen = set()
    for _ in range(5):
        ids = table.add_many(np.arange(5000)).tolist()
        assert seen.isdisjoint(ids)
        seen.update(ids)
        table.pop_due_ids(LATEST)
        table.check()


@pytest.mark.parametrize("seed", range(6))
def test_promise_17_without_memory_timers_move_and_keep_their_order(stack, seed):
    """Every allocation fails while timers are moved: to what is near, to what is far, and to what is crowded."""
    if stack.name != "compiled":
        pytest.skip("Python's own lists cannot do that")
    testcapi = pytest.importorskip("_testcapi")
    rng = np.random.default_rng(seed)
    table = stack.Timetable()
    count = 6000
    times = rng.integers(10**9, size=count)
    ids = table.add_many(times).tolist()
    order = {timer_id: (at, k) for k, (timer_id, at) in enumerate(zip(ids, times.tolist(), strict=True))}
    moves = count
    for episode in range(8):
        chosen = rng.permutation(list(order))[:1500].tolist()
        targets = (rng.integers(10 ** rng.integers(1, 13), size=len(chosen)) + 10**8 * episode).tolist()
        left = iter(chosen)
        moving = map(table.reschedule, left, targets)
        failed = False
        testcapi.set_nomemory(0)
        try:
            all(moving)
        except MemoryError:
            failed = True
        finally:
            testcapi.remove_mem_hooks()
        moved = len(chosen) - operator.length_hint(left) - failed
        for timer_id, at in zip(chosen[:moved], targets, strict=False):
            moves += 1
            order[timer_id] = (at, moves)
        testcapi.set_nomemory(0)
        try:
            table.next_run_at()  # finds it, and has no memory for the answer
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        expected = sorted(order, key=order.__getitem__)
        for timer_id in expected[:300]:
            assert table.pop()[:2] == (order.pop(timer_id)[0], timer_id)
        table.check()
    assert table.pop_due_ids(LATEST).tolist() == sorted(order, key=order.__getitem__)


def test_pages_whose_generations_are_used_up_are_passed_over_when_survivors_were_scattered(last_generation):
    last_generation(3)
    table = nextdue.Timetable()
    seen = set()
    survivors = []
    for _ in range(8):
        ids = table.add_many(np.arange(6000)).tolist()
        assert seen.isdisjoint(ids)
        assert all(0 < timer_id >> 32 <= 3 for timer_id in ids)
        seen.update(ids)
        table.cancel_many([timer_id for k, timer_id in enumerate(ids) if k % 300])
        survivors += ids[::300]
        table.check()
    assert sorted(table.pop_due_ids(LATEST).tolist()) == sorted(survivors)
