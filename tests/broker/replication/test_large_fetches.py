"""Fetches of many partitions are handled in slices: changes in between are noticed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.replication.fetch_session import AT_ONCE, Answer
from millstream_broker.runtime.steps import Steps, to_the_end
from millstream_harness.clients import broker as client_of
from millstream_harness.clients import consumer
from millstream_harness.replica import (
    NOW_MS,
    OTHERS,
    THEM,
    US,
    Replicating,
    batch,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

COUNT = 3 * AT_ONCE
SIZE = len(batch("news"))
FULL, NO_SESSION = (0, 0), (0, -1)
STEPS = (COUNT // AT_ONCE) * 2
"""Steps of a request for all partitions: half record the request, half read."""


class Large:
    """Broker 1 leads all partitions of t alone."""

    def __init__(self, world: Replicating) -> None:
        self.world = world

    def append(self, index: int) -> None:
        self.world.replicas.partition("t", index).append(batch("news"), NOW_MS)

    def begin(self, session: tuple[int, int] = NO_SESSION, count: int = COUNT, **more: Any) -> Steps[Answer]:
        partitions = [FetchPartition(index, -1, 0, -1, -1, 1 << 20) for index in range(count)]
        request = FetchRequest(
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic("t", partitions=partitions)] if partitions else [],
            **{"max_wait_ms": 600_000, "min_bytes": 1, "max_bytes": 1 << 20, **more},
        )
        return self.world.sessions.answer(request, *consumer(), 12)

    def session(self) -> int:
        """The id of a new session of all partitions."""
        answer = to_the_end(self.begin(FULL, max_wait_ms=0))
        assert isinstance(answer, FetchResponse)
        return answer.session_id

    def watched(self) -> int:
        return sum(len(one.waiters) for one in self.world.replicas.partitions.values())


@contextlib.asynccontextmanager
async def large(folder: Path) -> AsyncIterator[Large]:
    async with replicating(folder) as world:
        await world.told(state(topic("t", *[led_by(US, US)] * COUNT)))
        yield Large(world)


def some(steps: Steps[Answer], count: int) -> None:
    for _ in range(count):
        next(steps)


def sizes(response: FetchResponse) -> dict[int, int]:
    """Record bytes by partition; checks that there are no errors."""
    found = {}
    for one in response.responses:
        for data in one.partitions:
            assert data.error_code == 0
            found[data.partition_index] = len(data.records or b"")
    return found


@pytest.mark.parametrize("session", [FULL, NO_SESSION])
async def test_what_happens_to_a_partition_that_was_read_ends_the_wait(
    tmp_path: Path, session: tuple[int, int]
) -> None:
    async with large(tmp_path) as broker:
        steps = broker.begin(session)
        some(steps, STEPS - 1)
        broker.append(0)
        waiting = to_the_end(steps)
        assert isinstance(waiting, asyncio.Future)
        assert sizes(await waiting)[0] == SIZE


@pytest.mark.parametrize("count", [AT_ONCE, AT_ONCE + 1])
async def test_a_slice_ends_where_partitions_are_watched(tmp_path: Path, count: int) -> None:
    async with large(tmp_path) as broker:
        steps = broker.begin(count=count)
        some(steps, 2)
        broker.append(0)
        waiting = to_the_end(steps)
        assert isinstance(waiting, asyncio.Future)
        assert sizes(await waiting)[0] == SIZE
        await asyncio.sleep(0)
        assert broker.watched() == 0


@pytest.mark.parametrize(("count", "slices"), [(AT_ONCE - 1, 0), (AT_ONCE, 3), (AT_ONCE + 1, 3)])
async def test_few_partitions_are_looked_at_in_one_step(tmp_path: Path, count: int, slices: int) -> None:
    async with large(tmp_path) as broker:
        assert len(list(broker.begin(count=count, max_wait_ms=0))) == slices
        assert broker.watched() == 0


async def test_a_high_watermark_that_moves_meanwhile_ends_the_wait_of_a_follower_that_consumers_may_read(
    tmp_path: Path,
) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(topic("t", *[led_by(US, US, THEM, OTHERS)] * COUNT)))
        world.limit(selects_by_rack=True)
        for broker_id in (THEM, OTHERS):
            connection = client_of(broker_id)
            partitions = [FetchPartition(index, 0, 0, -1, 0, 1 << 20) for index in range(COUNT)]
            request = FetchRequest(
                replica_id=broker_id,
                session_epoch=0,
                max_wait_ms=600_000,
                min_bytes=1 << 20,
                topics=[FetchTopic("t", partitions=partitions)],
            )
            steps = world.sessions.answer(request, *connection, 12)
            if broker_id == OTHERS:
                some(steps, STEPS - 1)
                for session in world.sessions._by_replica.values():
                    for one in session._fetched.values():
                        one.committed()
            waiting = to_the_end(steps)
            assert isinstance(waiting, asyncio.Future)
            await turns()
            assert waiting.done() == (broker_id == OTHERS)


async def test_what_grows_between_slices_does_not_overtake_what_found_no_room(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        broker.append(0)
        broker.append(COUNT - 1)
        session_id = broker.session()
        for epoch in (1, 2):
            steps = broker.begin((session_id, epoch), count=COUNT if epoch == 1 else 0, max_bytes=SIZE)
            if epoch == 1:
                some(steps, STEPS - 1)
                broker.append(0)
            answer = to_the_end(steps)
            assert isinstance(answer, FetchResponse)
            found = {index for index, size in sizes(answer).items() if size}
            assert found == ({0} if epoch == 1 else {COUNT - 1})


async def test_what_happens_meanwhile_counts_towards_min_bytes(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        steps = broker.begin(min_bytes=2 * SIZE)
        some(steps, STEPS - 1)
        broker.append(0)
        waiting = to_the_end(steps)
        assert isinstance(waiting, asyncio.Future)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        broker.append(1)
        found = sizes(await waiting)
        assert (found[0], found[1]) == (SIZE, SIZE)


async def test_what_happens_to_a_partition_that_is_not_read_yet_is_read(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        steps = broker.begin()
        some(steps, STEPS - 1)
        broker.append(COUNT - 1)
        answer = to_the_end(steps)
        assert isinstance(answer, FetchResponse)
        assert sizes(answer)[COUNT - 1] == SIZE
        assert broker.watched() == 0


@pytest.mark.parametrize("done", range(STEPS))
async def test_a_client_that_goes_leaves_nothing(tmp_path: Path, done: int) -> None:
    async with large(tmp_path) as broker:
        steps = broker.begin()
        some(steps, done)
        steps.close()
        assert broker.watched() == 0


async def test_a_session_whose_request_is_broken_off_ends(tmp_path: Path) -> None:
    """Nobody knows which records it has sent."""
    async with large(tmp_path) as broker:
        session_id = broker.session()
        steps = broker.begin((session_id, 1))
        some(steps, STEPS - 1)
        steps.close()
        assert (broker.watched(), len(broker.world.sessions), broker.world.sessions._partitions) == (0, 0, 0)
        with pytest.raises(ApiError, match="FETCH_SESSION_ID_NOT_FOUND"):
            to_the_end(broker.begin((session_id, 2), count=0))


async def test_partitions_are_counted_across_topics(tmp_path: Path) -> None:
    """Many topics of one partition are no less work than one topic with many."""
    topics = [FetchTopic(f"unknown{number}", partitions=[FetchPartition(0)]) for number in range(COUNT)]
    async with large(tmp_path) as broker:
        steps = broker.world.sessions.answer(FetchRequest(topics=topics), *consumer(), 12)
        assert len(list(steps)) == STEPS + COUNT // AT_ONCE, "it also leaves them in steps"


@pytest.mark.parametrize("done", [1, STEPS - 1])
async def test_a_session_that_ends_meanwhile(tmp_path: Path, done: int) -> None:
    async with large(tmp_path) as broker:
        session_id = broker.session()
        steps = broker.begin((session_id, 1))
        some(steps, done)
        assert to_the_end(broker.begin((session_id, -1), count=0, max_wait_ms=0)) is not None
        with pytest.raises(ApiError) as error:
            to_the_end(steps)
        assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (broker.watched(), len(broker.world.sessions), broker.world.sessions._partitions) == (0, 0, 0)


async def test_a_session_handles_one_request_at_a_time(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        session_id = broker.session()
        steps = broker.begin((session_id, 1))
        some(steps, 1)
        with pytest.raises(ApiError) as error:
            to_the_end(broker.begin((session_id, 2), count=0))
        assert error.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        waiting = to_the_end(steps)
        assert isinstance(waiting, asyncio.Future)
        answer = to_the_end(broker.begin((session_id, 2), count=0, max_wait_ms=0))
        assert isinstance(answer, FetchResponse)
        assert await waiting == FetchResponse(session_id=session_id)


async def test_partitions_are_counted_while_they_come(tmp_path: Path) -> None:
    """Otherwise two large requests might both find room for one."""
    async with large(tmp_path) as broker:
        steps = broker.begin(FULL, max_wait_ms=0)
        some(steps, 1)
        assert broker.world.sessions._partitions == COUNT
        answer = to_the_end(steps)
        assert broker.world.sessions._partitions == COUNT
        assert isinstance(answer, FetchResponse)
        steps = broker.begin((answer.session_id, 1), count=AT_ONCE, max_wait_ms=0)
        some(steps, 1)
        assert broker.world.sessions._partitions == COUNT + AT_ONCE
        to_the_end(steps)
        assert broker.world.sessions._partitions == COUNT


async def test_many_partitions_are_forgotten_in_slices(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        session_id = broker.session()
        gone = [ForgottenTopic("t", partitions=[index]) for index in range(COUNT)]
        steps = broker.begin((session_id, 1), count=0, max_wait_ms=0, forgotten_topics_data=gone)
        assert len(list(steps)) == COUNT // AT_ONCE
        assert (broker.watched(), broker.world.sessions._partitions) == (0, 0)


async def test_a_response_of_many_partitions_after_a_wait(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        waiting = to_the_end(broker.begin(min_bytes=COUNT * SIZE))
        assert isinstance(waiting, asyncio.Future)
        for index in range(COUNT):
            broker.append(index)
        assert sizes(await waiting) == dict.fromkeys(range(COUNT), SIZE)
        await turns(STEPS)
        assert broker.watched() == 0


async def test_a_session_that_ends_while_it_waits_answers(tmp_path: Path) -> None:
    async with large(tmp_path) as broker:
        session_id = broker.session()
        waiting = to_the_end(broker.begin((session_id, 1)))
        assert isinstance(waiting, asyncio.Future)
        to_the_end(broker.begin((session_id, -1), count=0, max_wait_ms=0))
        assert sizes(await waiting) == {}
