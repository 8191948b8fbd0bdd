"""Consumers that read from a follower (KIP-392), and events that end their polls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from millstream_broker.coordination import TopicRecord
from millstream_harness.clients import consumer
from millstream_harness.replica import (
    THEM,
    US,
    Replicating,
    answered,
    batch,
    fetched,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FIRST, SECOND = batch("a"), batch("b", offset=1)


class Following:
    """Broker 1 follows t-0, which broker 2 leads."""

    def __init__(self, world: Replicating, record: TopicRecord) -> None:
        self.world = world
        self.record = record
        self.follower = world.replicas.followers["t", 0]

    def take(self, records: memoryview | None = None, high_watermark: int = 0) -> None:
        """Handle a leader's response."""
        copied = None if records is None else memoryview(bytearray(records))
        self.follower.answered(fetched(records=copied, high_watermark=high_watermark))

    async def leads(self, leader: int, epoch: int) -> None:
        partitions = (led_by(leader, epoch=epoch),)
        await self.world.told(state(TopicRecord("t", self.record.topic_id, partitions, {})))

    def ask(self, offset: int, *, epoch: int = -1, wait_ms: int = 60_000, version: int = 12) -> FetchResponse:
        answer = self._answer(offset, epoch, wait_ms, version)
        assert isinstance(answer, FetchResponse)
        return answer

    def wait(self, offset: int, *, epoch: int = -1) -> asyncio.Future[FetchResponse]:
        answer = self._answer(offset, epoch, 60_000, 12)
        assert isinstance(answer, asyncio.Future)
        return answer

    def _answer(
        self, offset: int, epoch: int, wait_ms: int, version: int
    ) -> FetchResponse | asyncio.Future[FetchResponse]:
        asked = FetchPartition(0, epoch, offset, -1, -1, 1 << 20)
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic("t", partitions=[asked])]
        )
        return answered(self.world.sessions, request, consumer(), version)


@contextlib.asynccontextmanager
async def following(folder: Path) -> AsyncIterator[Following]:
    record = topic("t", led_by(THEM, epoch=3))
    async with replicating(folder) as world:
        await world.told(state(record))
        yield Following(world, record)


def data_of(response: FetchResponse) -> PartitionData:
    return response.responses[0].partitions[0]


async def test_what_is_safe_is_read(tmp_path: Path) -> None:
    async with following(tmp_path) as one:
        one.take(FIRST, high_watermark=0)
        one.take(SECOND, high_watermark=1)
        data = data_of(one.ask(0))
        assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 1, 1)
        assert len(data.records or b"") == len(FIRST)
        waiting = one.wait(1)
        one.take(high_watermark=2)
        await turns()
        assert len(data_of(waiting.result()).records or b"") == len(SECOND)
        assert not one.follower.waiters


async def test_what_it_does_not_have_its_leader_may(tmp_path: Path) -> None:
    async with following(tmp_path) as one:
        one.take(FIRST, high_watermark=1)
        assert data_of(one.ask(2)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        one.follower.log.delete_records_before(1)
        assert data_of(one.ask(0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert data_of(one.ask(1, epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert data_of(one.ask(1, epoch=4)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert data_of(one.ask(0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert data_of(one.ask(0, version=11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


END: dict[str, tuple[Callable[[Following], object], int]] = {
    "a new epoch": (lambda one: one.leads(THEM, 4), ErrorCode.FENCED_LEADER_EPOCH),
    "it leads": (lambda one: one.leads(US, 4), ErrorCode.FENCED_LEADER_EPOCH),
    "the topic goes": (lambda one: one.world.told(state()), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.parametrize("what", END)
async def test_a_poll_ends_when_the_replica_changes(tmp_path: Path, what: str) -> None:
    happens, code = END[what]
    async with following(tmp_path) as one:
        waiting = one.wait(0, epoch=3)
        await happens(one)  # type: ignore[misc]
        await turns()
        assert data_of(waiting.result()).error_code == code
