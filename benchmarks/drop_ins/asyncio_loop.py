"""`nextdue.compat.asyncio` beside asyncio's own loop."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from benchmarks.drop_ins import at_least, at_most, duel
from nextdue.cli._goals import Bench, Line
from nextdue.cli._works import HOUR, noop, random_times
from nextdue.compat.asyncio import EventLoop

Make = Callable[[], asyncio.AbstractEventLoop]

PEER = "asyncio"
SMALL = 100_000
SLOWER = 0.97


def delays(size: int) -> list[float]:
    return [60 + ns / 1e9 for ns in random_times(size).tolist()]


def one_pass(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def hold_and_cancel(make: Make, size: int) -> Iterator[None]:
    """Add all, then cancel all: the collector sees a million handles, which the caller keeps."""
    loop = make()
    times = delays(size)
    handles: list[asyncio.TimerHandle] = []
    yield
    call_later, keep = loop.call_later, handles.append
    for delay in times:
        keep(call_later(delay, noop))
    yield
    for handle in handles:
        handle.cancel()
    yield
    one_pass(loop)
    loop.close()


def add_and_cancel(make: Make, size: int) -> Iterator[None]:
    """Cancel each at once, as a timeout that does not come does; a pass every thousand sweeps."""
    loop = make()
    times = delays(size)
    yield
    call_later = loop.call_later
    for start in range(0, size, 1000):
        for delay in times[start : start + 1000]:
            call_later(delay, noop).cancel()
        one_pass(loop)
    yield
    loop.close()


def fire(make: Make, size: int) -> Iterator[None]:
    """Run all, which are due, in one pass."""
    loop = make()
    start = loop.time() - 2 * HOUR
    ran = 0

    def run() -> None:
        nonlocal ran
        ran += 1

    for delay in delays(size):
        loop.call_at(start + delay, run)
    yield
    one_pass(loop)
    yield
    if ran != size:
        raise RuntimeError(f"{size - ran} timers did not run")
    loop.close()


def soon(make: Make, size: int) -> Iterator[None]:
    loop = make()
    yield
    call_soon = loop.call_soon
    for start in range(0, size, 1000):
        for _ in range(min(1000, size - start)):
            call_soon(noop)
        one_pass(loop)
    yield
    loop.close()


def coroutine(main: Callable[[int], Coroutine[Any, Any, None]], make: Make, size: int) -> Iterator[None]:
    loop = make()
    yield
    loop.run_until_complete(main(size))
    yield
    loop.close()


async def sleep_zero(size: int) -> None:
    for _ in range(size):
        await asyncio.sleep(0)


async def tasks(size: int) -> None:
    async def task() -> None: ...

    for _ in range(size):
        await asyncio.create_task(task())


async def ping_pong(size: int) -> None:
    """Echo lines over TCP, with a timer waiting, as a server has one."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    asyncio.get_running_loop().call_later(HOUR, noop)
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(size):
            writer.write(b"ping\n")
            await reader.readline()
        writer.close()
        await writer.wait_closed()


async def timed_out(size: int) -> None:
    """What most timers are: a limit around something that is quick."""
    for _ in range(size):
        async with asyncio.timeout(60):
            await asyncio.sleep(0)


def lateness(make: Make) -> float:
    """The median of how late a callback runs, in microseconds; one timer waits at a time."""
    late: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(400):
            when = loop.time() + 0.002 + number % 10 * 0.000_137
            done = loop.create_future()
            loop.call_at(when, lambda when=when, done=done: done.set_result(loop.time() - when))
            late.append(await done * 1e6)

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())
    return statistics.median(late)


def lateness_lines(bench: Bench) -> Iterator[Line]:
    ours, theirs = (
        min(samples)
        for samples in zip(
            *((lateness(EventLoop), lateness(asyncio.SelectorEventLoop)) for _ in range(bench.repeats)), strict=True
        )
    )
    yield Line("", "lateness, median", ours, "us", at_most(1 / 4), PEER, theirs)


def work(label: str, side: Callable[[Make, int], Iterator[None]], size: int, **goals: Any) -> Any:
    return duel(label, partial(side, EventLoop), partial(side, asyncio.SelectorEventLoop), goals, peer=PEER, size=size)


GOALS = [
    work("{size} waiting", hold_and_cancel, 10**6, call_later=None, cancel=None, all=at_least(2)),
    work("{size} cancelled at once", add_and_cancel, 10**6, both=at_least(2)),
    work("{size} due", fire, 10**6, fire=at_least(4)),
    lateness_lines,
    work("{size} call_soon", soon, 10**6, both=at_least(SLOWER)),
    *(
        work(f"{{size}} {label}", partial(coroutine, main), SMALL, each=goal)
        for label, main, goal in (
            ("sleep(0)", sleep_zero, at_least(SLOWER)),
            ("create_task", tasks, at_least(SLOWER)),
            ("echoes over TCP", ping_pong, at_least(SLOWER)),
            ("timeout(60) around sleep(0)", timed_out, None),
        )
    ),
]
