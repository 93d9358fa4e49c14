"""The event loop of `nextdue.compat.asyncio`: asyncio's, but for where its timers wait.

Time stands still in most tests: a loop's `time` is a method, and these loops read a variable. What is about the
kernel's timers reads the real clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import math
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

import nextdue
from nextdue.compat import asyncio as compat
from nextdue.compat._selector import PreciseSelector
from nextdue.compat.asyncio import EventLoop, run

DAY = 86_400.0
EXTREMES = [2**53, 2**63 / 1000, sys.maxsize, 1e18, 1e300, 10**30, math.inf]


class Waits(selectors.DefaultSelector):
    """Never blocks, and notes for how long it was to."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.timeouts.append(timeout)
        return super().select(0)


class Still:
    """A loop on a clock that moves by hand."""

    def __init__(self, now: float = 1000.0, cls: type[asyncio.SelectorEventLoop] = EventLoop) -> None:
        self.now = now
        self.selector = Waits()

        class Loop(cls):  # type: ignore[misc, valid-type]
            time = staticmethod(lambda: self.now)

        self.loop = Loop(self.selector)
        self.seen: list[object] = []

    def turn(self, to: float | None = None) -> list[object]:
        """Make one pass of the loop, and return what ran."""
        if to is not None:
            self.now = to
        del self.seen[:]
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        return list(self.seen)

    def at(self, when: float, what: object = None) -> asyncio.TimerHandle:
        return self.loop.call_at(when, self.seen.append, when if what is None else what)


@pytest.fixture(params=["plain", "compiled"])
def still(request: pytest.FixtureRequest) -> Iterator[Still]:
    """On the loop in Python alone, too, which serves debug mode and builds without extensions."""
    if request.param == "compiled" and nextdue.BACKEND == "pure":
        pytest.skip("there are no extensions here")
    still = Still(cls=compat._Loop if request.param == "plain" else EventLoop)
    yield still
    still.loop.close()


# ---------------------------------------------------------------- handles


@pytest.mark.parametrize("debug", [False, True])
def test_call_later_when_called_then_it_returns_a_timer_handle_of_asyncio(still: Still, debug: bool) -> None:
    still.loop.set_debug(debug)
    var = contextvars.ContextVar[int]("var")
    context = contextvars.copy_context()
    handle = still.loop.call_later(5, print, 1, 2, context=context)
    original = asyncio.TimerHandle(1005.0, print, (1, 2), still.loop, context)
    assert type(handle) is asyncio.TimerHandle
    assert handle.when() == 1005.0
    assert handle == original
    assert hash(handle) == hash(original)
    assert repr(handle).partition(" created at")[0] == repr(original).partition(" created at")[0]
    assert not handle.cancelled()
    for slot in (*asyncio.Handle.__slots__, *asyncio.TimerHandle.__slots__):
        assert hasattr(handle, slot)
    assert handle._context is context
    assert var not in context
    handle.cancel()
    assert handle.cancelled()
    assert "cancelled" in repr(handle)


@pytest.mark.parametrize("delay", [0, -1, -0.0, -math.inf])
def test_call_later_when_the_delay_is_not_positive_then_a_timer_handle_runs_next(still: Still, delay: float) -> None:
    handle = still.loop.call_later(delay, still.seen.append, "due")  # B54
    assert isinstance(handle, asyncio.TimerHandle)
    assert handle.when() == 1000.0 + delay
    assert not handle.cancelled()
    assert still.turn() == ["due"]


@pytest.mark.parametrize("delay", EXTREMES)
def test_call_later_when_the_delay_is_huge_then_it_waits_and_can_be_cancelled(still: Still, delay: float) -> None:
    handle = still.loop.call_later(delay, still.seen.append, "never")  # B43 B45 B46
    assert still.turn() == []
    assert still.turn(1e15) == []
    handle.cancel()
    assert handle.cancelled()
    assert still.turn(math.inf) == []


def test_wait_when_the_deadline_is_huge_then_it_is_as_long_as_asyncio_has_it(still: Still) -> None:
    still.at(1e300)  # B42
    still.turn()
    still.loop.call_soon(lambda: still.loop.call_soon(still.loop.stop))
    original = asyncio.base_events.MAXIMUM_SELECT_TIMEOUT
    still.loop._run_once()
    still.loop._ready.clear()
    still.loop._run_once()
    assert still.selector.timeouts[-1] == original


@pytest.mark.parametrize("debug", [False, True])
def test_call_when_the_time_is_nan_then_it_is_refused_and_nothing_was_added(still: Still, debug: bool) -> None:
    still.loop.set_debug(debug)
    with pytest.raises(ValueError, match=r"^when must be a number, got nan$"):  # B51
        still.loop.call_later(math.nan, print)
    with pytest.raises(ValueError, match=r"^when must be a number, got nan$"):
        still.loop.call_at(-math.nan, print)
    assert len(still.loop._timers.timetable) == 0
    assert not still.loop._scheduled


def test_sleep_when_the_delay_is_nan_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nan|NaN"):  # B51; the text is asyncio's since 3.13
        run(asyncio.sleep(math.nan))


@pytest.mark.parametrize("cls", [asyncio.SelectorEventLoop, EventLoop])
def test_call_when_an_argument_is_wrong_then_the_error_is_that_of_asyncio(cls: type[EventLoop]) -> None:
    still = Still(cls=cls)
    with pytest.raises(TypeError, match=r"^delay must not be None$"):
        still.loop.call_later(None, print)
    with pytest.raises(TypeError, match=r"^when cannot be None$"):
        still.loop.call_at(None, print)
    with pytest.raises(OverflowError, match=r"^int too large to convert to float$"):
        still.loop.call_later(10**400, print)
    still.loop.close()
    for call in (still.loop.call_at, still.loop.call_later):
        with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
            call(1, print)


@pytest.mark.parametrize("cls", [asyncio.SelectorEventLoop, EventLoop])
def test_call_when_in_debug_mode_then_threads_and_callbacks_are_checked(cls: type[EventLoop]) -> None:
    errors: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def elsewhere() -> None:
            for call in (loop.call_at, loop.call_later):
                try:
                    call(1, print)
                except RuntimeError as error:
                    errors.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        for call in (loop.call_at, loop.call_later):
            with pytest.raises(TypeError, match=r"^coroutines cannot be used with call_at\(\)$"):
                call(1, main)

    with asyncio.Runner(debug=True, loop_factory=cls) as runner:
        runner.run(main())
    assert (
        errors
        == [
            "Non-thread-safe operation invoked on an event loop other than the current one",
        ]
        * 2
    )


def test_handle_when_in_debug_mode_then_it_names_the_line_that_made_it(still: Still) -> None:
    still.loop.set_debug(True)
    for handle in (still.loop.call_later(1, print), still.loop.call_at(1, print)):
        assert handle._source_traceback[-1].filename == __file__
        assert handle._source_traceback[-1].name == sys._getframe().f_code.co_name


def test_slow_callback_when_in_debug_mode_then_it_is_logged(still: Still, caplog: pytest.LogCaptureFixture) -> None:
    def slow() -> None:
        still.now += 1

    still.loop.set_debug(True)
    still.loop.call_at(1000, slow)
    still.turn()
    still.turn()
    (record,) = (record for record in caplog.records if "slow" in record.getMessage())
    assert "TimerHandle" in record.getMessage()
    assert record.getMessage().endswith("took 1.000 seconds")


# ---------------------------------------------------------------- order, and what is due


def test_timers_when_their_times_are_any_floats_then_they_run_in_order(still: Still) -> None:
    draw = random.Random(5)
    times = [draw.choice([-1, 1]) * 10.0 ** draw.uniform(-300, 2) for _ in range(2000)]
    times += [0.0, -0.0, 5e-324, -5e-324, -math.inf, 7, 7, 7]
    for place, when in enumerate(times):
        still.at(when, (when, place))
    assert still.turn() == sorted((when, place) for place, when in enumerate(times))  # B98; equals by their place: FIFO


def test_timers_when_equal_then_callbacks_and_arguments_are_not_compared(still: Still) -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, number: int) -> None:
            still.seen.append(number)

    for number in range(100):  # B143 B147
        still.loop.call_at(1000, Incomparable(), number)
    assert still.turn() == list(range(100))


@pytest.mark.parametrize("now", [1000.0, 2e7, 1e9, 1e12])
@pytest.mark.parametrize("cls", [compat._Loop, EventLoop])
def test_timer_when_it_is_due_exactly_now_then_it_runs_at_any_uptime(now: float, cls: type[EventLoop]) -> None:
    still = Still(now, cls)
    still.at(now)  # B65
    assert still.turn() == [now]
    still.loop.close()


def test_clock_when_it_jumps_from_deadline_to_deadline_then_nothing_stalls(still: Still) -> None:
    when = 1.7e9
    still.at(when)
    for _ in range(1000):  # B66
        assert still.turn(when) == [when]
        when += 0.37
        still.at(when)


def test_timer_when_the_deadline_is_a_tick_away_then_it_does_not_run(still: Still) -> None:
    when = math.nextafter(1000.0, math.inf)
    still.at(when)  # B68 B69: asyncio would run it now
    assert still.turn() == []
    assert still.turn() == []
    assert still.turn(when) == [when]


def test_timer_when_a_callback_takes_long_then_the_delay_counts_from_the_call(still: Still) -> None:
    def slow() -> None:
        still.now += 1
        still.seen.append(still.loop.call_later(1, still.seen.append, "late").when())

    still.loop.call_soon(slow)  # B72
    assert still.turn() == [1002.0]
    assert still.turn(1001.9) == []
    assert still.turn(1002.0) == ["late"]


def test_timer_when_it_is_added_as_due_by_a_timer_then_it_waits_for_the_next_pass(still: Still) -> None:
    def again() -> None:
        still.seen.append("again")
        still.loop.call_later(0, again)

    still.loop.call_later(0, again)  # B100
    assert still.turn() == ["again"]
    assert still.turn() == ["again"]


def test_timers_when_they_fall_due_then_they_run_before_what_they_add(still: Still) -> None:
    still.loop.call_at(1000, still.loop.call_soon, still.seen.append, "added")
    still.at(1000, "second")
    assert still.turn() == ["second"]
    assert still.turn() == ["added"]


def test_timer_when_it_raises_then_the_others_run_and_the_handler_is_told(still: Still) -> None:
    told: list[dict[str, object]] = []
    still.loop.set_exception_handler(lambda loop, context: told.append(context))
    handle = still.loop.call_at(999, int, "x")
    still.at(1000)
    assert still.turn() == [1000]
    (context,) = told
    assert context["handle"] is handle
    assert isinstance(context["exception"], ValueError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_timer_when_it_ends_the_loop_then_the_others_run_in_the_next_pass(
    still: Still, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    still.loop.call_at(998, fail)
    still.at(999)
    still.at(1000)
    with pytest.raises(error):
        still.turn()
    assert still.turn() == [999, 1000]


def test_loop_when_it_is_run_within_a_timer_then_the_other_due_ones_run_there(still: Still) -> None:
    def nested() -> None:
        still.loop._run_once()  # as nest_asyncio does
        still.seen.append("nested")

    still.loop.call_at(998, nested)
    still.at(999)
    still.at(1000)
    assert still.turn() == [999, 1000, "nested"]


# ---------------------------------------------------------------- cancel


def test_cancel_when_several_wait_then_each_handle_is_its_own_timer(still: Still) -> None:
    handles = {when: still.at(when) for when in (1001, 1003, 1002)}  # B115
    handles[1002].cancel()
    handles[1002].cancel()
    assert still.turn(1005) == [1001, 1003]
    handles[1001].cancel()  # it has run
    assert len(still.loop._timers.timetable) == 0


def test_cancel_when_siblings_are_due_too_then_they_do_not_run(still: Still) -> None:
    def cancel() -> None:
        still.seen.append("first")
        for handle in handles:
            handle.cancel()

    still.loop.call_at(1000, cancel)  # B112
    handles = [still.at(1000) for _ in range(9)]
    assert still.turn() == ["first"]
    assert still.turn(2000) == []


def test_cancel_when_far_timers_are_cancelled_by_the_million_then_memory_stays_flat(still: Still) -> None:
    for _ in range(100_000):  # B131
        still.loop.call_later(DAY, print).cancel()
    assert len(still.loop._timers.timetable) == 0
    assert still.loop._timers.timetable.nbytes < 100_000
    assert len(still.loop._scheduled) <= 1


def test_cancel_when_the_timer_is_far_then_callback_and_arguments_are_released_at_once(still: Still) -> None:
    class Thing:
        def method(self) -> None: ...

    thing = Thing()
    gone = weakref.ref(thing)
    handle = still.loop.call_later(DAY, thing.method, thing)
    kept = weakref.ref(handle)
    gc.disable()
    try:
        del thing
        handle.cancel()  # B132 B134
        assert gone() is None
        assert handle._callback is handle._args is None
        del handle
        assert kept() is None
    finally:
        gc.enable()


def test_timer_when_it_has_run_then_reference_counts_free_it(still: Still) -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    gc.disable()
    try:
        kept = weakref.ref(still.loop.call_at(1000, lambda thing=thing: still.loop))  # B135
        del thing
        still.turn()
        assert gone() is kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["run", "cancel"])
def test_handle_when_it_waits_no_more_then_the_collector_frees_a_ring_through_it(still: Still, end: str) -> None:
    class Thing:
        pass

    thing = Thing()
    thing.handle = still.loop.call_at(1000, still.seen.append, 0)  # type: ignore[attr-defined]
    contextvars.Context().run(lambda: None)
    context = thing.handle._context
    context.run(contextvars.ContextVar[object]("ring").set, thing)
    gone = weakref.ref(thing)
    if end == "cancel":
        thing.handle.cancel()
    del thing, context
    still.turn()
    gc.collect()
    assert gone() is None


def test_loop_when_it_is_dropped_with_timers_waiting_then_the_collector_frees_it() -> None:
    class Thing:
        pass

    loop, thing = EventLoop(), Thing()
    for when in (0, 1e300, math.inf):
        loop.call_at(when, print, loop, thing)
    thing.handle = loop.call_later(DAY, print)  # type: ignore[attr-defined]
    gone = [weakref.ref(loop), weakref.ref(thing)]
    gc.collect()
    assert gone[0]() is loop
    del loop, thing

    def collect() -> None:
        for _ in range(3):
            gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed event loop"):
        collect()
    assert [ref() for ref in gone] == [None, None]


def test_close_when_timers_wait_then_all_are_released() -> None:
    class Thing:
        def method(self) -> None: ...

    thing = Thing()
    loop = EventLoop()
    for when in (0, 1e300, math.inf):
        loop.call_at(when, thing.method)
    handle = loop.call_later(1, thing.method)
    loop.call_later(2, thing.method).cancel()
    gone = [weakref.ref(thing), weakref.ref(loop)]
    del thing
    loop.close()
    loop.close()
    handle.cancel()
    assert handle.cancelled()
    gc.disable()
    try:
        del handle, loop
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


# ---------------------------------------------------------------- the wait


def test_wait_when_nothing_is_scheduled_then_it_has_no_end(still: Still) -> None:
    still.turn()
    still.loop._run_once()
    assert still.selector.timeouts[-1] is None
    still.loop.call_at(math.inf, print)
    still.loop._run_once()
    assert still.selector.timeouts[-1] is None


def test_wait_when_a_timer_is_added_then_it_ends_with_the_earliest(still: Still) -> None:
    for when, timeout in ((1010, 10), (1020, 10), (1005, 5)):  # B75
        still.at(when)
        still.loop._run_once()
        assert still.selector.timeouts[-1] == pytest.approx(timeout)
    assert still.turn(1005) == [1005]
    still.loop._run_once()
    assert still.selector.timeouts[-1] == pytest.approx(5)


def test_wait_when_the_earliest_was_cancelled_then_it_ends_early_once(still: Still) -> None:
    still.at(1001).cancel()
    still.at(1010)
    still.loop._run_once()
    assert still.selector.timeouts[-1] == pytest.approx(1)
    assert still.turn(1001) == []
    still.loop._run_once()
    assert still.selector.timeouts[-1] == pytest.approx(9)


def test_loop_when_a_selector_is_given_then_it_is_that_one() -> None:
    selector = selectors.SelectSelector()
    with asyncio.Runner(loop_factory=lambda: EventLoop(selector=selector)) as runner:
        assert runner.get_loop()._selector is selector
        assert runner.run(asyncio.sleep(0.001, "slept")) == "slept"


def test_selector_when_the_kernel_has_no_such_timer_then_it_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise AttributeError("timerfd_create")

    monkeypatch.setattr("nextdue.compat._selector.kernel_timer", missing)
    loop = EventLoop()
    assert type(loop._selector) is selectors.DefaultSelector
    assert loop.run_until_complete(asyncio.sleep(0.001, "slept")) == "slept"
    loop.close()


@pytest.mark.realtime
@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="there is no epoll here")
def test_selector_when_it_waits_then_it_neither_returns_early_nor_counts_its_timer_as_an_event() -> None:
    with PreciseSelector() as selector:
        assert not selector.get_map()
        for timeout in (0.0021, 0.0001, 0.0013, 1e-9):
            end = time.monotonic() + timeout
            assert selector.select(timeout) == []
            assert time.monotonic() >= end
        assert selector.select(0) == []
        assert selector.select(-1) == []
        fd = selector._timer
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="there is no epoll here")
def test_selector_when_deadlines_move_on_then_the_kernel_is_asked_once() -> None:
    asked: list[int] = []
    with PreciseSelector() as selector:
        selector._set_timer = asked.append
        reader, writer = os.pipe()
        selector.register(reader, selectors.EVENT_READ)
        os.write(writer, b"x")
        for timeout in (100, 101, 102):
            assert len(selector.select(timeout)) == 1
        assert len(asked) == 1
        selector.select(50)
        assert len(asked) == 2
        os.close(reader)
        os.close(writer)


@pytest.mark.realtime
def test_callbacks_when_they_run_on_the_real_clock_then_never_before_their_time() -> None:
    early: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        draw = random.Random(7)
        left = 10_000

        def check(when: float) -> None:
            nonlocal left
            if loop.time() < when:
                early.append(when)
            left -= 1
            if left == 0:
                done.set_result(None)

        start = loop.time()
        for _ in range(left):  # B68 B69 B71
            when = start + draw.randrange(1, 300) * 0.0004
            loop.call_at(when, check, when)
        await asyncio.wait_for(done, 60)

    run(main())
    assert early == []


@pytest.mark.realtime
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no setitimer here")
def test_wait_when_signals_come_then_it_is_neither_early_nor_late_for_ever() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # B130
    try:
        start = time.monotonic()
        run(asyncio.wait_for(asyncio.sleep(0.1), 60))
        assert time.monotonic() - start >= 0.1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- re-entrancy, contexts, other loops


def test_finalizers_when_they_call_the_loop_then_nothing_hangs(still: Still) -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            still.loop.call_later(DAY, print).cancel()
            still.at(1000, "finalizer")

    threshold = gc.get_threshold()
    gc.set_threshold(5)  # B124
    try:
        for _ in range(500):
            Ring()
            still.loop.call_later(DAY, print).cancel()
    finally:
        gc.set_threshold(*threshold)
    del still.seen[:]
    gc.collect()
    assert still.turn() == ["finalizer"] * 500


def test_timers_when_made_in_a_context_then_each_runs_in_its_own_copy(still: Still) -> None:
    var = contextvars.ContextVar("var", default="unset")

    def change() -> None:
        still.seen.append(var.get())
        var.set("leaked")

    token = var.set("made")
    still.loop.call_at(999, change)  # B213
    still.loop.call_at(1000, change)  # B214
    var.reset(token)
    still.loop.call_at(1000, change)
    assert still.turn() == ["made", "made", "unset"]
    assert var.get() == "unset"


def test_loop_when_built_elsewhere_then_its_timers_run_where_it_runs() -> None:
    loops: list[EventLoop] = []
    thread = threading.Thread(target=lambda: loops.append(EventLoop()))  # B216
    thread.start()
    thread.join()
    (loop,) = loops
    assert run(asyncio.sleep(0.001, 1)) == 1
    assert run(asyncio.sleep(0.001, 2)) == 2
    assert loop.run_until_complete(asyncio.sleep(0.001, 3)) == 3
    loop.close()


def test_run_when_tasks_are_left_then_they_are_cancelled_and_awaited() -> None:
    ended: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            ended.append("cancelled")
            raise

    async def main() -> str:
        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        return task.get_name()

    assert isinstance(run(main()), str)
    assert ended == ["cancelled"]  # B204


def test_run_when_a_loop_is_running_then_it_is_refused() -> None:
    async def main() -> None:
        coroutine = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"^asyncio\.run\(\) cannot be called from a running event loop$"):
            run(coroutine)
        coroutine.close()

    run(main())


def test_run_when_debug_is_given_then_the_loop_has_it() -> None:
    async def main() -> tuple[bool, type]:
        loop = asyncio.get_running_loop()
        return loop.get_debug(), type(loop)

    assert run(main(), debug=True) == (True, EventLoop)
    assert run(main(), debug=False) == (False, EventLoop)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio.run takes a loop_factory since 3.12")
def test_asyncio_run_when_the_loop_is_the_factory_then_it_is_used() -> None:
    async def main() -> type:
        await asyncio.sleep(0.001)
        return type(asyncio.get_running_loop())

    assert asyncio.run(main(), loop_factory=EventLoop) is EventLoop


def test_interpreter_when_it_ends_with_timers_waiting_then_it_ends_quietly() -> None:
    program = """
import asyncio, atexit, threading
from nextdue.compat.asyncio import EventLoop, run
def rearm():
    run(asyncio.sleep(0.001))
    print("ran at exit")
atexit.register(rearm)
def late():
    threading.main_thread().join()
    run(asyncio.sleep(0.001))
    print("ran after the main thread")
threading.Thread(target=late).start()
run(asyncio.sleep(0))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)  # B207
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == ["ran after the main thread", "ran at exit"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_fork_when_timers_wait_then_the_child_runs_a_loop_of_its_own() -> None:
    program = """
import asyncio, os, sys
from nextdue.compat.asyncio import EventLoop, run
loop = EventLoop()
handle = loop.call_later(1000, print)
child = os.fork()
if child == 0:
    run(asyncio.sleep(0.001))
    handle.cancel()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert loop.run_until_complete(asyncio.sleep(0.001, "parent")) == "parent"
loop.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)  # B209
    assert (done.returncode, done.stderr) == (0, "")


def test_module_when_there_are_no_extensions_then_the_loop_is_the_plain_one() -> None:
    program = """
import asyncio
from nextdue.compat.asyncio import EventLoop, _Loop, run
assert EventLoop.call_at is _Loop.call_at
print(run(asyncio.sleep(0.001, "slept")))
"""
    environment = os.environ | {"NEXTDUE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.stdout, done.stderr) == ("slept\n", "")


def test_streams_when_clients_time_out_then_the_others_are_served() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line != b"hang\n":
                writer.write(line)
        writer.close()

    async def ask(port: int, number: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        hangs = number % 5 == 0
        try:
            for _ in range(10):
                writer.write(b"ping\n")
                async with asyncio.timeout(60):
                    assert await reader.readline() == b"ping\n"
            writer.write(b"hang\n" if hangs else b"ping\n")
            await asyncio.wait_for(reader.readline(), 0.05 if hangs else 60)
        except TimeoutError:
            return False
        finally:
            writer.close()
        return True

    async def main() -> list[bool]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.gather(*(ask(port, number) for number in range(50)))

    assert run(main(), debug=False) == [number % 5 != 0 for number in range(50)]


def test_programs_when_aiohttp_serves_and_asks_under_load_then_timeouts_hold() -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is of the dependency group peers")
    web = importlib.import_module("aiohttp.web")

    async def answer(request: object) -> object:
        await asyncio.sleep(DAY if request.path == "/hangs" else 0.001)  # type: ignore[attr-defined]
        return web.Response(text=request.path)  # type: ignore[attr-defined]

    async def ask(session: object, base: str, number: int) -> str:
        path = "/hangs" if number % 10 == 0 else f"/{number}"
        limit = aiohttp.ClientTimeout(total=0.2 if path == "/hangs" else 60)
        try:
            async with session.get(base + path, timeout=limit) as response:  # type: ignore[attr-defined]
                assert await response.text() == path
        except TimeoutError:
            return "timed out"
        return "answered"

    async def main() -> list[str]:
        application = web.Application()
        application.router.add_get("/{name}", answer)
        runner = web.AppRunner(application, keepalive_timeout=30, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200)) as session:
            answers = await asyncio.gather(*(ask(session, f"http://127.0.0.1:{port}", n) for n in range(500)))
        await runner.cleanup()
        return answers

    assert run(main()) == ["timed out" if number % 10 == 0 else "answered" for number in range(500)]
