"""Work in slices: one task at most gets a slice in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from millstream_broker.runtime import slices
from millstream_broker.runtime.slices import cooperatively, finish, gather_in_slices, yield_to_others
from millstream_broker.runtime.steps import Steps


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()
A_SLICE = 1.1 * slices.SLICE_S


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "perf_counter", CLOCK)


async def pass_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def noting(name: str, count: int, noted: list[str], each_s: float = A_SLICE) -> Steps[str]:
    for _ in range(count):
        noted.append(name)
        CLOCK.now += each_s
        yield
    return name


async def test_many_tasks_share_one_slice_an_iteration() -> None:
    noted: list[str] = []
    working = asyncio.gather(*(finish(noting(name, 5, noted)) for name in "abc"))
    while not working.done():
        noted.append(".")
        await asyncio.sleep(0)
    assert await working == ["a", "b", "c"]
    first, *rest = "".join(noted).strip(".").split(".")
    assert first == "abc"
    assert max(map(len, rest)) == 1


async def test_waiting_tasks_get_slices_in_order() -> None:
    noted: list[str] = []
    await asyncio.gather(*(finish(noting(name, 4, noted)) for name in "abc"))
    assert "".join(noted) == "abc" * 4


async def test_work_that_follows_gets_the_rest_of_the_slice() -> None:
    noted: list[str] = []

    async def work() -> None:
        await finish(noting("a", 3, noted, A_SLICE / 4))
        await finish(noting("b", 3, noted, A_SLICE / 4))

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert "".join(noted) == "aaab"
    await working
    assert "".join(noted) == "aaabbb"


async def test_a_cancelled_task_takes_no_slice() -> None:
    noted: list[str] = []
    tasks = [asyncio.create_task(finish(noting(name, 3, noted))) for name in "abc"]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert await asyncio.gather(*tasks, return_exceptions=True) != ["a", "b", "c"]
    assert "".join(noted) == "abcbcbc"


@pytest.mark.parametrize("when", range(8))
async def test_a_task_cancelled_at_any_time_frees_its_slice(when: int) -> None:
    noted: list[str] = []
    first, second = (asyncio.create_task(finish(noting(name, 9, noted))) for name in "ab")
    await pass_turns(when)
    second.cancel()
    assert await first == "a"
    await yield_to_others()
    assert second.cancelled()


async def test_items_are_handed_out_in_slices() -> None:
    seen, between = [], 0

    async def count() -> None:
        nonlocal between
        while True:
            between += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async for item in cooperatively(range(5)):
        seen.append((item, between))
        CLOCK.now += A_SLICE
    counting.cancel()
    assert [item for item, _ in seen] == [0, 1, 2, 3, 4]
    assert len({between for _, between in seen}) == 5


async def test_a_cancelled_wait_cancels_what_has_begun_and_begins_no_more() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def one(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    def work() -> Iterator[Coroutine[None, None, None]]:
        for number in range(100):
            yield one(number)

    waiting = asyncio.create_task(gather_in_slices(work()))
    await pass_turns(9)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert 0 < len(begun) < 100
    assert ended == begun
