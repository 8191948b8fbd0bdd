"""The loop of ``--shuffle-callbacks``: it changes what asyncio leaves open, and keeps what asyncio promises."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine

import pytest

from millstream_harness.shuffled_loop import PAUSES_S, ShuffledLoop, ShuffledVirtualTimeLoop

SEEDS = [str(number) for number in range(30)]


def orders(play: Callable[[list[str]], Coroutine[None, None, None]]) -> set[str]:
    """What the scene notes, on loops of several seeds."""
    found = set()
    for seed in SEEDS:
        noted: list[str] = []
        with asyncio.Runner(loop_factory=lambda seed=seed: ShuffledLoop(seed)) as runner:  # type: ignore[misc]
            runner.run(play(noted))
        found.add("".join(noted))
    return found


def test_sockets_are_noticed_in_any_order_and_any_turn() -> None:
    async def play(noted: list[str]) -> None:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in "ab"]
        for name, (ours, theirs) in zip("ab", pairs, strict=True):

            def read(name: str = name, ours: socket.socket = ours) -> None:
                noted.append(name)
                loop.remove_reader(ours)

            loop.add_reader(ours, read)
            theirs.send(b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        noted.append("-")
        while len(noted) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for pair in pairs:
            for one in pair:
                one.close()

    assert orders(play) >= {"ab-", "ba-", "-ab", "-ba"}


def test_a_thread_pauses_before_its_work_and_before_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[object] = []

    def pause(seconds: float) -> None:
        assert seconds in PAUSES_S
        noted.append(threading.current_thread())

    async def work() -> None:
        loop, handed_over = asyncio.get_running_loop(), asyncio.Event()
        await loop.run_in_executor(None, noted.append, "work")
        before, done, *_ = noted
        assert (before is not threading.main_thread(), done) == (True, "work")
        noted.clear()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(handed_over.set))
        thread.start()
        await handed_over.wait()
        thread.join()
        assert noted == [thread]

    monkeypatch.setattr("time.sleep", pause)
    with asyncio.Runner(loop_factory=lambda: ShuffledLoop("1")) as runner:
        runner.run(work())


def test_timers_of_the_same_time_run_in_any_order_and_others_in_theirs() -> None:
    async def play(noted: list[str]) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + 0.001
        for name, later in (("c", 0.001), ("a", 0), ("b", 0)):
            loop.call_at(when + later, noted.append, name)
        while len(noted) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    assert orders(play) == {"abc", "bac"}


def test_what_is_called_soon_keeps_its_order() -> None:
    async def play(noted: list[str]) -> None:
        async def note(name: str) -> None:
            noted.append(name)
            await asyncio.sleep(0)
            noted.append(name.upper())

        asyncio.get_running_loop().call_soon(noted.append, "-")
        await asyncio.gather(*map(note, "abc"))

    assert orders(play) == {"-abcABC"}


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_virtual_time_passes_at_once(seed: str) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1000)
        assert loop.time() == pytest.approx(1000)

    with asyncio.Runner(loop_factory=lambda: ShuffledVirtualTimeLoop(seed)) as runner:
        runner.run(play())
