"""The drop-in for `sched`: what the original does, beside it, and where it does better."""

from __future__ import annotations

import gc
import os
import random
import re
import sched as original
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import count
from types import ModuleType
from typing import Any

import pytest

from nextdue.compat import sched

PATIENCE = 30.0


class Simulated:
    """A clock that a delay moves."""

    def __init__(self, now: Any = 0) -> None:
        self.now = now

    def __call__(self) -> Any:
        return self.now

    def delay(self, duration: Any) -> None:
        if duration:  # a run's "let others run" is a plain 0 whatever the times are
            self.now += duration


def noop(*args: object) -> None:
    """The action of every event."""


@pytest.fixture
def time() -> Simulated:
    return Simulated()


@pytest.fixture
def scheduler(time: Simulated) -> sched.scheduler:
    return sched.scheduler(time, time.delay)


def test_event_is_the_originals() -> None:
    event = sched.scheduler().enterabs(1, 2, noop, ("a",), {"k": 1})
    assert type(event) is original.Event is sched.Event
    assert event == (1, 2, 0, noop, ("a",), {"k": 1})


@pytest.mark.parametrize(
    "times",
    [
        [3, 1, 2],
        [2.5, 1, -1.0],
        [Fraction(1, 3), Fraction(1, 4), 1],
        [Decimal("0.3"), Decimal("0.1"), 5],
        [2**80, 2**63, -(2**70)],
        [datetime(2024, 1, day, tzinfo=UTC) for day in (3, 1, 2)],
        [float("inf"), 10.0**300, -float("inf")],
    ],
    ids=repr,
)
def test_run_when_times_are_of_any_kind_then_in_their_order(times: list[Any]) -> None:
    time = Simulated(min(times))
    ran: list[Any] = []
    scheduler = sched.scheduler(time, time.delay)
    for at in times:
        scheduler.enterabs(at, 1, ran.append, (at,))
    assert [event.time for event in scheduler.queue] == sorted(times)
    if float("inf") in times:
        time.now = float("inf")
    scheduler.run()
    assert ran == sorted(times)


@pytest.mark.parametrize("priorities", [[3, 1, 2], ["c", "a", "b"], [(1, 2), (1, 1), (0,)]], ids=repr)
def test_run_when_times_are_equal_then_by_priority(scheduler: sched.scheduler, priorities: list[Any]) -> None:
    ran: list[Any] = []
    for priority in priorities:
        scheduler.enterabs(1, priority, ran.append, (priority,))
    scheduler.run()
    assert ran == sorted(priorities)


def test_run_when_all_is_equal_then_first_in_first_out(scheduler: sched.scheduler) -> None:  # B143 B144 B147
    ran: list[int] = []
    for i in range(1000):
        scheduler.enterabs(1, 1, lambda i=i: ran.append(i))
    scheduler.run()
    assert ran == list(range(1000))


def test_run_when_not_blocking_then_what_is_due_and_the_time_until_the_next(
    scheduler: sched.scheduler, time: Simulated
) -> None:
    ran: list[str] = []
    scheduler.enter(0, 1, ran.append, ("now",))
    gone = scheduler.enter(5, 1, ran.append, ("never",))
    scheduler.enter(7, 1, ran.append, argument=("later",))
    scheduler.cancel(gone)
    assert scheduler.run(blocking=False) == 7
    assert (ran, time.now) == (["now"], 0)
    time.now = 7  # due at exactly that time (B65)
    assert scheduler.run(blocking=False) is None
    assert ran == ["now", "later"]


def test_run_when_an_action_raises_then_the_rest_can_be_run(scheduler: sched.scheduler) -> None:
    ran: list[int] = []
    scheduler.enterabs(1, 1, lambda: 1 / 0)
    scheduler.enterabs(2, 1, ran.append, (2,))
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        scheduler.run()
    scheduler.run()
    assert ran == [2]


def test_enter_when_an_action_does_it_then_it_is_run_in_its_place(scheduler: sched.scheduler) -> None:
    ran: list[str] = []
    scheduler.enterabs(1, 1, lambda: scheduler.enterabs(2, 1, ran.append, ("second",)))
    scheduler.enterabs(3, 1, ran.append, ("third",))
    scheduler.run()
    assert ran == ["second", "third"]


@pytest.mark.parametrize(("time_", "priority"), [(float("nan"), 1), (Decimal("nan"), 1), (1, float("nan"))], ids=repr)
def test_enter_when_not_a_number_then_refused(scheduler: sched.scheduler, time_: Any, priority: Any) -> None:  # 17
    expected = f"time and priority must be numbers, got {time_!r} and {priority!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        scheduler.enterabs(time_, priority, noop)
    assert scheduler.empty()


def test_enter_when_times_cannot_be_compared_then_nothing_is_entered(scheduler: sched.scheduler) -> None:  # 17
    scheduler.enterabs(5, 1, noop)
    with pytest.raises(TypeError, match="not supported between instances"):
        scheduler.enterabs("soon", 1, noop)
    scheduler.enterabs(4, 1, noop)
    assert [event.time for event in scheduler.queue] == [4, 5]
    scheduler.run()


def test_cancel_when_equal_in_time_and_priority_then_exactly_that_one(scheduler: sched.scheduler) -> None:  # B103 B115
    ran: list[str] = []
    events = [scheduler.enterabs(1, 1, ran.append, (name,)) for name in "abc"]
    scheduler.cancel(events[1])
    scheduler.run()
    assert ran == ["a", "c"]


def test_cancel_when_it_is_an_equal_tuple_then_as_the_event(scheduler: sched.scheduler) -> None:
    event = scheduler.enterabs(1, 1, noop, kwargs={"k": []})
    scheduler.cancel(original.Event(1, 1, event.sequence, noop, (), {"k": []}))
    assert scheduler.empty()


def not_waiting(scheduler: sched.scheduler) -> list[Any]:
    cancelled, ran = scheduler.enterabs(1, 1, noop), scheduler.enterabs(0, 1, noop)
    scheduler.cancel(cancelled)
    scheduler.run()
    waiting = scheduler.enterabs(5, 1, noop)
    other = sched.scheduler().enterabs(6, 1, noop)
    return [cancelled, ran, waiting._replace(priority=2), other._replace(sequence=waiting.sequence), (), None, "event"]


@pytest.mark.parametrize("k", range(7))
def test_cancel_when_it_does_not_wait_then_value_error(scheduler: sched.scheduler, k: int) -> None:
    event = not_waiting(scheduler)[k]
    with pytest.raises(ValueError, match=f"^{re.escape(f'event must be in the queue, got {event!r}')}$"):
        scheduler.cancel(event)
    assert len(scheduler.queue) == 1


def test_cancel_when_an_action_cancels_those_of_the_same_time_then_they_do_not_run(
    scheduler: sched.scheduler,
) -> None:  # B112
    ran: list[str] = []

    def first() -> None:
        for event in others:
            scheduler.cancel(event)

    scheduler.enterabs(1, 0, first)
    others = [scheduler.enterabs(1, 1, ran.append, ("other",)) for _ in range(9)]
    scheduler.run()
    assert ran == []


def test_cancel_then_the_action_and_its_arguments_are_released(scheduler: sched.scheduler) -> None:  # 10, B132
    class Action:
        def __call__(self) -> None: ...

    ran, action = Action(), Action()
    released = [weakref.ref(ran), weakref.ref(action)]
    scheduler.enterabs(1, 1, ran)
    event = scheduler.enterabs(2, 1, action)
    scheduler.enterabs(3, 1, noop)
    scheduler.run(blocking=False)  # so that it is in order
    gc.disable()
    try:
        scheduler.cancel(event)
        del event, action
        assert released[1]() is None
        scheduler.run()
        del ran
        assert released[0]() is None
    finally:
        gc.enable()


def test_run_when_it_waits_then_it_keeps_nothing_of_the_last_event() -> None:  # B137
    class Action:
        def __call__(self) -> None: ...

    time, kept = Simulated(), []

    def delay(duration: int) -> None:
        if duration:
            kept.append(gone())
        time.delay(duration)

    scheduler, action = sched.scheduler(time, delay), Action()
    gone = weakref.ref(action)
    scheduler.enter(0, 1, action)
    scheduler.enter(10, 1, noop)
    gc.disable()
    try:
        del action
        scheduler.run()
        assert kept == [None]
    finally:
        gc.enable()


def test_cancel_when_most_are_cancelled_then_their_memory_goes_back(scheduler: sched.scheduler) -> None:  # 11, B131
    kept = scheduler.enterabs(10**9, 1, noop)
    size = 0
    for k in range(20_000):
        scheduler.cancel(scheduler.enterabs(k, 1, noop))
        size = max(size, len(scheduler._heap or ()) + len(scheduler._new))
    assert size < 200
    assert sys.getsizeof(scheduler._waiting) < 20_000
    assert scheduler.queue == [kept]


@pytest.mark.parametrize("seed", range(20))
def test_any_course_of_calls_is_that_of_the_original(seed: int) -> None:
    """Both sides do the same; times are drawn from few, so that many are equal."""
    draw = random.Random(seed)
    kinds: list[Callable[[int], Any]] = [int, float, lambda n: Fraction(n, 3)]
    clocks = [Simulated(), Simulated()]
    ours, theirs = (m.scheduler(c, c.delay) for m, c in zip((sched, original), clocks, strict=True))
    ran: tuple[list[int], list[int]] = ([], [])
    events: list[tuple[Any, Any]] = []
    for k in range(400):
        step = draw.random()
        if step < 0.6:
            at, priority = draw.choice(kinds)(clocks[0].now + draw.randrange(40)), draw.randrange(3)
            events.append(
                tuple(s.enterabs(at, priority, r.append, (k,)) for s, r in zip((ours, theirs), ran, strict=True))
            )
        elif step < 0.9 and events:
            pair = draw.choice(events)
            outcomes = []
            for side, event in zip((ours, theirs), pair, strict=True):
                try:
                    outcomes.append(side.cancel(event))
                except ValueError:
                    outcomes.append("missing")
            assert outcomes[0] == outcomes[1]
        elif step < 0.97:
            for clock in clocks:
                clock.now += 3
            assert ours.run(blocking=False) == theirs.run(blocking=False)
        assert [e[:3] for e in ours.queue] == [e[:3] for e in theirs.queue]
        assert ours.empty() == theirs.empty()
    ours.run()
    theirs.run()
    assert ran[0] == ran[1]


class Nested:
    """A priority whose comparison calls back into the queue."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __lt__(self, other: object) -> bool:
        self.call()
        return id(self) < id(other)


@pytest.mark.parametrize("what", ["enter", "cancel", "run", "queue"])
def test_compare_when_it_calls_the_queue_then_nothing_is_lost(what: str) -> None:  # B118
    time, ran, depth, numbers = Simulated(), [], [0], count()
    scheduler = sched.scheduler(time, time.delay)
    entered: list[int] = []

    def enter(priority: Any) -> None:
        number = next(numbers)
        scheduler.enterabs(1, priority, ran.append, (number,))
        entered.append(number)

    def call() -> None:
        if depth[0] or len(entered) > 200:
            return
        depth[0] += 1
        if what == "enter":
            enter(Nested(call))
        elif what == "cancel" and scheduler.queue:
            cancelled.append(scheduler.queue[-1])
            scheduler.cancel(cancelled[-1])
        elif what == "run":
            scheduler.run(blocking=False)
        else:
            assert len(scheduler.queue) <= len(entered) + 1
        depth[0] -= 1

    cancelled: list[Any] = []
    for _ in range(50):
        enter(Nested(call))
    time.now = 1
    scheduler.run()
    assert scheduler.empty()
    assert sorted(ran) == sorted(set(entered) - {event.argument[0] for event in cancelled})


def test_compare_when_it_raises_in_a_run_then_nothing_is_lost(scheduler: sched.scheduler) -> None:
    failing = [False]

    def call() -> None:
        if failing[0]:
            raise ArithmeticError("no order")

    ran: list[int] = []
    for k in range(20):
        scheduler.enterabs(1, Nested(call), ran.append, (k,))
    failing[0] = True
    with pytest.raises(ArithmeticError, match=r"^no order$"):
        scheduler.run()
    failing[0] = False
    scheduler.run()
    assert sorted(ran) == list(range(20))


def test_enter_and_cancel_when_a_finalizer_does_them_then_nothing_is_lost(scheduler: sched.scheduler) -> None:  # B124
    ran: list[int] = []
    finalized: list[int] = []

    class Cycle:
        def __init__(self, k: int) -> None:
            self.me, self.k = self, k

        def __del__(self) -> None:
            scheduler.cancel(scheduler.enterabs(self.k, 1, noop))
            scheduler.enterabs(self.k, 1, ran.append, (-self.k,))
            finalized.append(-self.k)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for k in range(1, 2000):
            Cycle(k)
            scheduler.cancel(scheduler.enterabs(Fraction(k, 7), 1, noop))
            scheduler.enterabs(k, 1, ran.append, (k,))
            if k % 100 == 0:
                scheduler.run(blocking=False)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    scheduler.run()
    assert len(finalized) == 1999
    assert sorted(ran) == sorted([*range(1, 2000), *finalized])


def test_payload_is_never_compared(scheduler: sched.scheduler) -> None:  # B143
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, *args: object) -> None: ...

    events = [scheduler.enterabs(1, 1, Incomparable(), (Incomparable(),)) for _ in range(50)]
    scheduler.cancel(events[7])
    assert len(scheduler.queue) == 49
    scheduler.run()


def test_no_lock_is_held_while_an_action_or_a_clock_runs() -> None:  # 13
    def from_another_thread() -> None:
        thread = threading.Thread(target=scheduler.enter, args=(0, 1, noop))
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    calls = iter([1, 1, 1, 1])

    def clock() -> int:
        if threading.current_thread() is threading.main_thread() and next(calls, None):
            from_another_thread()
        return 0

    scheduler = sched.scheduler(clock, noop)
    scheduler.enterabs(0, 1, from_another_thread)
    scheduler.run()
    assert scheduler.empty()


@pytest.mark.realtime
def test_enter_when_a_run_waits_for_a_later_event_then_the_earlier_runs_at_its_time() -> None:  # B76, B75
    scheduler = sched.scheduler()
    order: list[str] = []
    early, waits = threading.Event(), threading.Event()
    late = scheduler.enter(3600, 1, order.append, ("late",))
    timefunc = scheduler.timefunc
    scheduler.timefunc = lambda: (waits.set(), timefunc())[1]
    runner = threading.Thread(target=scheduler.run)
    runner.start()
    assert waits.wait(PATIENCE)
    for k in range(20):
        done = threading.Event()
        scheduler.enter(0.001, 1, done.set)
        assert done.wait(PATIENCE), k
    scheduler.enter(0.01, 1, early.set)
    assert early.wait(PATIENCE)
    scheduler.cancel(late)
    scheduler.enter(0, 1, noop)
    runner.join(PATIENCE)
    assert not runner.is_alive()
    assert order == []


@pytest.mark.realtime
@pytest.mark.parametrize("delay", [10**9, 1e18, float("inf"), Fraction(10**30)], ids=repr)
def test_run_when_the_delay_is_enormous_then_it_waits(delay: Any) -> None:  # B42 B43 B45
    scheduler = sched.scheduler()
    never = scheduler.enter(delay, 1, noop)
    done = threading.Event()
    runner = threading.Thread(target=scheduler.run)
    runner.start()
    scheduler.enter(0.01, 1, done.set)
    assert done.wait(PATIENCE)
    scheduler.cancel(never)
    scheduler.enter(0, 1, noop)
    runner.join(PATIENCE)
    assert not runner.is_alive()


def test_threads_when_many_enter_and_cancel_then_each_is_accounted_for(
    switches_in: Callable[[ModuleType], None],
) -> None:  # B119 B106
    switches_in(sched)
    scheduler = sched.scheduler(lambda: 0, noop)
    kept = [0] * 4

    def work(i: int) -> None:
        draw = random.Random(i)
        mine = []
        for k in range(400):
            mine.append(scheduler.enterabs(draw.randrange(100) - 50, 1, noop))
            if k % 3 == 0:
                event = mine.pop(draw.randrange(len(mine)))
                with suppress(ValueError):  # it has run
                    scheduler.cancel(event)
            if k % 50 == 0:
                scheduler.run(blocking=False)
        kept[i] = sum(event.time > 0 for event in mine)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    scheduler.run(blocking=False)
    assert [event.time for event in scheduler.queue] == sorted(event.time for event in scheduler.queue)
    assert len(scheduler.queue) == sum(kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_when_another_thread_holds_the_lock_then_the_child_can_use_it(scheduler: sched.scheduler) -> None:  # B209
    scheduler.enterabs(2, 1, noop)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with scheduler._lock:
            held.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        scheduler.enterabs(1, 1, noop)
        os._exit(0 if [event.time for event in scheduler.queue] == [1, 2] else 1)
    done.set()
    holder.join(PATIENCE)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_scheduler_when_dropped_then_freed_without_the_collector() -> None:  # B135
    scheduler = sched.scheduler(lambda: 0, noop)
    scheduler.enterabs(0, 1, scheduler.run)
    scheduler.run()
    gone = weakref.ref(scheduler)
    gc.disable()
    try:
        del scheduler
        assert gone() is None
    finally:
        gc.enable()
