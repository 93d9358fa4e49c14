"""SimPy on our queue: whatever a model does, its trace is SimPy's own."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Generator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simpy.core import EmptySchedule, Infinity
from simpy.events import NORMAL, URGENT

from nextdue.compat.simpy import Environment

ENVIRONMENTS = [simpy.Environment, Environment]
Trace = list[tuple[Any, ...]]


def scheduled(env: simpy.Environment, name: str, delay: Any = 0, priority: Any = NORMAL, *, log: list[Any]) -> Any:
    """An event that is on the queue, and logs its name."""
    event = env.event()
    event._ok, event._value = True, name
    event.callbacks.append(lambda event: log.append(event.value))
    env.schedule(event, priority, delay)
    return event


def model(env: simpy.Environment, trace: Trace, delay: Callable[[random.Random], Any], processes: int) -> None:
    """Processes that wait, queue for a resource, wait for one another, interrupt and are interrupted."""
    chance = random.Random(7)
    resource = simpy.PriorityResource(env, capacity=3)
    store = simpy.Store(env, capacity=2)
    alive: list[simpy.Process] = []

    def note(*what: Any) -> None:
        trace.append((*what, env.now, type(env.now), len(env._queue)))

    def worker(name: int) -> Generator[Any, Any, None]:
        for _ in range(4):
            try:
                choice = chance.randrange(6)
                if choice == 0:
                    with resource.request(priority=chance.randrange(3)) as request:
                        yield request | env.timeout(delay(chance))
                        note(name, "served", request.triggered)
                        yield env.timeout(delay(chance))
                elif choice == 1:
                    yield store.put(name) | env.timeout(delay(chance))
                elif choice == 2:
                    got = yield store.get() | env.timeout(delay(chance), "nothing")
                    note(name, sorted(map(str, got.values())))
                elif choice == 3:
                    yield env.all_of([env.timeout(delay(chance)) for _ in range(3)])
                elif choice == 4 and (others := [p for p in alive[:40] if p.is_alive and p is not env.active_process]):
                    chance.choice(others).interrupt(name)
                yield env.timeout(delay(chance))
                note(name, choice)
            except simpy.Interrupt as interrupt:
                note(name, "interrupted", interrupt.cause)

    alive += [env.process(worker(name)) for name in range(processes)]


DELAYS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda chance: chance.randrange(4),
    "float": lambda chance: chance.choice([0.0, 0.1, 0.25, chance.random()]),
    "int and float": lambda chance: chance.choice([0, 1, 0.5, 1.0]),
    "numpy.float64": lambda chance: np.float64(chance.randrange(4) / 4),
    "numpy.int64": lambda chance: np.int64(chance.randrange(4)),
    "Fraction": lambda chance: Fraction(chance.randrange(4), 3),
    "Decimal": lambda chance: Decimal(chance.randrange(4)) / 4,
    "int beyond 2**53": lambda chance: chance.choice([0, 1, 2**53 + 1]),
    "rarely a Fraction": lambda chance: Fraction(1, 3) if chance.random() < 0.01 else chance.random(),
    "infinity": lambda chance: chance.choice([0, 1.5, float("inf")]),
}


@pytest.mark.parametrize("delay", DELAYS)
def test_trace_when_a_model_runs_then_it_is_that_of_simpy(delay):
    traces = []
    for environment in ENVIRONMENTS:
        env, trace = environment(), []
        model(env, trace, DELAYS[delay], processes=40)
        env.run()
        traces.append((trace, env.now, type(env.now), next(env._eid)))
    assert traces[0] == traces[1]
    assert len(traces[0][0]) > 100


@pytest.mark.parametrize("start", [-5, 3, 2**53 - 2, -0.0, -1e300, 1.7e9, Fraction(1, 3)])
def test_trace_when_the_clock_starts_anywhere_then_it_is_that_of_simpy(start):
    traces = []
    for environment in ENVIRONMENTS:
        env, trace = environment(initial_time=start), []
        model(env, trace, DELAYS["int"], processes=5)
        env.run()
        traces.append(list(map(repr, trace)))  # which tells -0.0 from 0.0
    assert traces[0] == traces[1]
    assert traces[0]


def test_trace_when_processes_are_many_then_it_is_that_of_simpy():
    traces = []
    for environment in ENVIRONMENTS:
        env, trace = environment(), []
        model(env, trace, DELAYS["float"], processes=4000)
        while env.now < 0.3:
            env.step()
        trace.append(env._queue[0][:3])
        env.run()
        traces.append(trace)
    assert traces[0] == traces[1]


TIMES = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, -0.5, 1.0, 1e300, -1e300, 5e-324, 2**53, float(2**53), float("inf"), np.float64(1.0), -0.0]),
    st.floats(allow_nan=False),
    st.sampled_from([2**53 + 1, -(2**53) - 1, 2**80, Fraction(1, 2)]),
)
PRIORITIES = st.one_of(st.sampled_from([URGENT, NORMAL, -1]), st.sampled_from([2047, -2048, 2048, -2049, 0.5, 10**30]))
STEPS = st.lists(st.one_of(st.none(), st.tuples(TIMES, PRIORITIES)), max_size=60)


@given(steps=STEPS)
def test_queue_when_anything_is_scheduled_then_what_comes_next_is_the_same(steps):
    envs = [environment() for environment in ENVIRONMENTS]
    logs: list[list[Any]] = [[], []]
    for name, step in enumerate(steps):
        for env, log in zip(envs, logs, strict=True):
            if step is not None:
                env._now = 0  # schedule at, not after
                scheduled(env, name, *step, log=log)
            elif len(env._queue):
                env.step()
            first = env._queue[0][:3] if len(env._queue) else None
            log.append((repr(env.now), repr(env.peek()), repr(first), len(env._queue)))
    assert logs[0] == logs[1]
    assert sorted(entry[:3] for entry in envs[0]._queue) == sorted(entry[:3] for entry in envs[1]._queue)


def test_events_when_a_time_is_nan_then_none_is_lost():
    """NaN has no place in any order; SimPy takes it."""
    env, log = Environment(), []
    for name, delay in enumerate([1, float("nan"), 2, 0.5]):
        scheduled(env, name, delay, log=log)
    while len(env._queue):
        env.step()
    assert sorted(log) == [0, 1, 2, 3]


def test_peek_when_the_clock_follows_it_then_each_step_is_one():  # B66
    env = Environment(initial_time=1.7e9)

    def ticks():
        while True:
            yield env.timeout(1e-6)

    env.process(ticks())
    env.step()
    for _ in range(10_000):
        before, due = env.now, env.peek()
        env.step()
        assert env.now == due > before


@pytest.mark.parametrize("position", range(4))
def test_ties_when_another_event_is_added_then_they_keep_their_order(position):  # B146
    env, log = Environment(), []
    for place, name in enumerate("ABC"):
        if place == position:
            scheduled(env, "E", 1, log=log)
        scheduled(env, name, 1, log=log)
    if position == 3:
        scheduled(env, "E", 1, log=log)
    env.run()
    assert [name for name in log if name != "E"] == list("ABC")
    assert log.index("E") == position


def test_event_when_added_for_this_time_then_it_runs_at_this_time_behind_its_equals():  # B222
    env, log = Environment(), []
    first = scheduled(env, "first", 1, log=log)
    first.callbacks.append(lambda _: scheduled(env, "added", log=log))
    first.callbacks.append(lambda _: scheduled(env, "urgent", 0, URGENT, log=log))
    scheduled(env, "second", 1, log=log)
    scheduled(env, "later", 1.5, log=log)
    while env.peek() <= 1:
        env.step()
    assert log == ["first", "urgent", "second", "added"]
    assert env.peek() == 1.5


def test_peek_when_a_waiting_process_is_interrupted_then_its_timeout_stays_as_in_simpy():  # B222
    for environment in ENVIRONMENTS:
        env, log = environment(), []

        def sleeper(env=env, log=log):
            try:
                yield env.timeout(10)
            except simpy.Interrupt:
                log.append(env.now)

        process = env.process(sleeper())
        env.step()
        process.interrupt()
        assert env.peek() == 0  # the interruption itself
        env.step()
        assert env.peek() == 0  # the process has ended
        env.step()
        assert (env.peek(), log) == (10, [0])


def test_run_when_stopped_between_callbacks_then_the_others_come_first_when_it_goes_on():
    logs = []
    for environment in ENVIRONMENTS:
        env, log = environment(), []
        stop = env.timeout(1, "stopped")
        stop.callbacks.append(lambda _, log=log: log.append("before"))
        stop.callbacks.append(simpy.core.StopSimulation.callback)
        stop.callbacks.append(lambda _, log=log: log.append("left over"))
        scheduled(env, "urgent", 1, URGENT, log=log)
        scheduled(env, "equal", 1, log=log)
        assert env.run() == "stopped"
        log.append(env._queue[0][:3])
        assert env._queue[0][3] is stop
        env.run()
        logs.append(log)
    assert logs[0] == logs[1]
    assert logs[1] == ["urgent", "before", (1, -1, 3), "left over", "equal"]


def test_run_when_given_an_event_or_a_time_then_it_stops_there():
    for environment in ENVIRONMENTS:
        env = environment()
        assert env.run(until=env.timeout(2, "value")) == "value"
        assert env.now == 2
        env.timeout(1)
        env.run(until=2.5)
        assert (env.now, len(env._queue)) == (2.5, 2)  # the stop leaves its own event behind
        with pytest.raises(ValueError, match=r"^until \(2\) must be greater than the current simulation time$"):
            env.run(until=2)


def test_step_when_nothing_is_scheduled_then_it_says_so():
    env = Environment()
    assert env.peek() is Infinity
    assert len(env._queue) == 0
    for _ in range(2):
        with pytest.raises(EmptySchedule) as caught:
            env.step()
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        scheduled(env, "", Fraction(1), log=[])  # a heap of tuples from now on
        env.run()
        assert env.peek() is Infinity
    with pytest.raises(IndexError):
        env._queue[0]


def test_run_when_its_event_never_comes_then_it_raises_as_simpy_does():
    for environment in ENVIRONMENTS:
        env = environment()
        never = env.event()
        with pytest.raises(RuntimeError, match="No scheduled events left"):
            env.run(until=never)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_step_when_an_event_has_failed_then_a_copy_of_its_error_is_raised(environment):
    env = environment()
    error = LookupError("lost")
    env.event().fail(error)
    with pytest.raises(LookupError, match=r"^lost$") as caught:
        env.run()
    assert caught.value is not error
    assert caught.value.__cause__ is error
    assert env.event().fail(error).defused is False


def test_step_when_a_failed_event_is_defused_then_the_simulation_goes_on():
    env = Environment()
    event = env.event()
    event.callbacks.append(lambda event: setattr(event, "defused", True))
    event.fail(LookupError("lost"))
    env.run()


def test_step_when_a_callback_raises_then_the_rest_of_the_queue_is_left():
    env, log = Environment(), []
    scheduled(env, "bad", 1, log=log).callbacks.insert(0, lambda _: 1 / 0)
    scheduled(env, "good", 1, log=log)
    with pytest.raises(ZeroDivisionError):
        env.run()
    env.run()
    assert log == ["good"]


def test_queue_when_read_then_it_is_a_sequence_in_order():
    env = Environment()
    events = [env.timeout(delay) for delay in (3, 1.5, 2, 1.5)]
    expected = [(1.5, 1, 1, events[1]), (1.5, 1, 3, events[3]), (2, 1, 2, events[2]), (3, 1, 0, events[0])]
    assert env._queue[0] == expected[0]
    assert sorted(env._queue) == expected
    assert len(env._queue) == 4
    assert [type(at) for at, *_ in sorted(env._queue)] == [float, float, int, int]
    assert repr(events[1]) in repr(env._queue)
    assert env._queue[-1][:3] in [entry[:3] for entry in expected]


def test_environment_when_subclassed_or_patched_then_every_step_goes_through_that():
    """SimPy's manual traces a model by replacing `step`."""
    env, seen, log = Environment(), [], []
    step = env.step

    def tracing():
        if len(env._queue):
            seen.append(env._queue[0][:3])
        step()

    env.step = tracing
    scheduled(env, "", 1, log=log)
    scheduled(env, "", 2, log=log)
    env.run()
    assert seen == [(1, NORMAL, 0), (2, NORMAL, 1)]

    class Late(Environment):
        def schedule(self, event, priority=NORMAL, delay=0):
            super().schedule(event, priority, delay + 1)

    env = Late()
    assert isinstance(env, simpy.Environment)
    env.timeout(1)
    assert env.peek() == 2


def test_events_when_processed_then_the_queue_holds_none_of_them():
    env = Environment()
    gone = [weakref.ref(env.timeout(1)) for _ in range(3000)]
    env.timeout(2)
    while env.peek() < 2:
        env.step()
    assert [ref() for ref in gone] == [None] * 3000
    assert len(env._queue) == 1


@pytest.mark.parametrize("events", [3, 3000])
@pytest.mark.parametrize("delay", [1, Fraction(1)])
def test_environment_when_dropped_with_events_then_it_is_freed(events, delay):
    env = Environment()
    for _ in range(events):
        env.timeout(delay)
    ref = weakref.ref(env)
    del env
    gc.collect()
    assert ref() is None


def test_queue_when_left_alone_then_it_drops_its_events():
    class Orphan:
        callbacks = None

    env, orphan = Environment(), Orphan()
    env.schedule(orphan, delay=1)
    ref = weakref.ref(orphan)
    del orphan
    assert ref() is not None
    del env
    gc.collect()
    assert ref() is None


def test_queue_when_it_changes_under_a_reader_then_what_was_read_is_whole():
    env = Environment()
    for delay in range(10):
        env.timeout(delay)
    reader = iter(sorted(env._queue))
    env.run()
    gc.collect()
    assert [event.processed for *_, event in reader] == [True] * 10


def test_schedule_when_the_collector_runs_as_the_queue_changes_over_then_no_event_is_lost():  # B124
    env, log = Environment(), []
    for delay in range(100):
        scheduled(env, delay, delay, log=log)

    class Late:
        def __del__(self):
            scheduled(env, "late", 1, log=log)

    event = env.event()
    event._ok = True
    threshold = gc.get_threshold()
    spent = [(n, n, n, n) for n in range(3000)]  # else tuples come off the free list, unseen by the collector
    gc.collect()
    late = Late()  # behind that, so that the next collection, of the young, finds it
    late.itself = late
    del late
    gc.set_threshold(50)  # in the middle of making a hundred tuples
    try:
        env.schedule(event, priority=5000)  # for which there is no entry
    finally:
        gc.set_threshold(*threshold)
    del spent
    gc.collect()
    assert len(env._queue) == 102
    env.run()
    assert sorted(log, key=str) == sorted([*range(100), "late"], key=str)


def test_schedule_when_threads_share_an_environment_then_no_event_is_lost():  # B119
    env, log = Environment(), []
    barrier = threading.Barrier(2)

    def add(first):
        barrier.wait()
        for delay in range(first, 4000, 2):
            scheduled(env, delay, delay, log=log)
            assert env.peek() <= delay
            assert env._queue[0]

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    env.run()
    assert log == list(range(4000))


def test_eids_when_the_counter_is_moved_then_they_are_what_it_gives():
    env = Environment()
    env._eid = itertools.count(100)
    env.timeout(1)
    env._eid = itertools.count(5)
    env.timeout(1)
    assert [eid for _, _, eid, _ in sorted(env._queue)] == [5, 100]
    env._eid = itertools.count(2**52)
    env.timeout(1)
    assert [eid for _, _, eid, _ in sorted(env._queue)] == [5, 100, 2**52]
