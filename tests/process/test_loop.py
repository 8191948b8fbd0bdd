"""The event loop measures how long it is held, and the log names the cause."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from millstream_process import loop as loop_module
from millstream_process.loop import Stalls, loop_factory, stalls

Factory = Callable[[], asyncio.AbstractEventLoop]
HELD_S = 0.05


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """The garbage collector would hold the loop, too, and takes long in a process of many tests."""
    gc.disable()
    yield
    gc.enable()


def without_uvloop() -> Factory:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "uvloop", None)
        return loop_factory()


@pytest.fixture(params=[loop_factory, without_uvloop], ids=["uvloop", "asyncio"])
def factory(request: pytest.FixtureRequest) -> Factory:
    made: Factory = request.param()
    return made


def run(factory: Factory, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def hold(seconds: float = HELD_S) -> None:
    """Compute, so that both the clock and the processor's time count it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def wait() -> None:
    time.sleep(HELD_S)


async def settled() -> Stalls:
    """The stalls so far, once their marks have had their turn."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return stalls()


async def by_task() -> None:
    hold()


async def by_callback() -> None:
    asyncio.get_running_loop().call_soon(hold)


async def by_timer() -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0, hold)
    loop.call_at(loop.time(), lambda: None)
    await asyncio.sleep(0.001)


async def by_thread() -> None:
    await asyncio.to_thread(asyncio.get_running_loop().call_soon_threadsafe, hold)


async def by_many_steps() -> None:
    """Each step is short, but together they keep others waiting as long."""
    for _ in range(100):
        asyncio.get_running_loop().call_soon(hold, HELD_S / 100)
    await asyncio.sleep(0)


@pytest.mark.parametrize("holding", [by_task, by_callback, by_timer, by_thread, by_many_steps])
def test_a_stall_is_counted(factory: Factory, holding: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await settled()
        before = stalls().by_clock.seconds, stalls().by_processor.seconds
        await asyncio.create_task(holding())
        found = await settled()
        # An earlier mark counts the time up to then.
        assert found.by_clock.seconds - before[0] >= 0.9 * HELD_S
        assert found.by_processor.seconds - before[1] >= 0.9 * HELD_S

    run(factory, main())


def test_waiting_for_others_takes_no_time_of_the_processor(factory: Factory) -> None:
    async def main() -> None:
        hold(0.001)
        before = (await settled()).by_processor.seconds
        wait()
        found = await settled()
        assert found.by_clock.seconds >= HELD_S
        assert found.by_processor.seconds - before < HELD_S / 2

    run(factory, main())


def test_a_loop_that_waits_is_not_held(factory: Factory) -> None:
    async def main() -> None:
        await asyncio.sleep(HELD_S)
        assert (await settled()).by_processor.seconds < HELD_S / 2

    run(factory, main())


def test_a_socket_that_can_be_read_is_a_step(factory: Factory) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def readable(word: str) -> None:
            assert (word, ours.recv(1)) == ("word", b"x")
            hold()
            loop.remove_reader(ours)
            loop.add_writer(ours, done.set)

        with ours, theirs:
            loop.add_reader(ours, readable, "word")
            theirs.send(b"x")
            await done.wait()
            loop.remove_writer(ours)
            assert (await settled()).by_processor.seconds >= HELD_S

    run(factory, main())


def test_what_holds_the_loop_is_named(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_module, "NAMED_S", 0.01)

    async def culprit() -> None:
        hold()
        await asyncio.sleep(0)

    async def main() -> None:
        stalls().are_named = True
        await asyncio.create_task(culprit(), name="Metadata")
        asyncio.get_running_loop().call_soon(hold)
        await asyncio.sleep(0)

    run(factory, main())
    held = [one for one in caplog.messages if "held" in one]  # others too, if they were preempted
    (of_task,) = (one for one in held if "by the task Metadata (" in one and ", now in " in one)
    assert f"culprit, now in {__file__}:" in of_task
    assert any(one.endswith("by hold") for one in held)


def test_an_error_in_a_callback_reaches_the_loop(factory: Factory) -> None:
    said: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context))
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    run(factory, main())
    assert isinstance(said[0]["exception"], ZeroDivisionError)
