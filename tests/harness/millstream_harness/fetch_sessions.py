"""Fetch sessions of a leader: requests of a follower, and the responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import TopicRecord
from millstream_broker.replication.fetch_sessions import Sessions
from millstream_broker.replication.partition import Partition
from millstream_harness.clients import FetchingClient, broker
from millstream_harness.replica import (
    NOW_MS,
    THEM,
    US,
    Replicating,
    answered,
    batch,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    next_session_epoch,
)

EPOCH = 3
FULL = (0, 0)
NO_SESSION = (0, -1)
SIZE = len(batch("news"))


def follower(broker_id: int = THEM, broker_epoch: int = 0) -> FetchingClient:
    """A connection that has authenticated as this broker's."""
    return broker(broker_id, broker_epoch)


def wanted(index: int = 0, offset: int = 0, **more: int) -> FetchPartition:
    given: dict[str, Any] = {"partition_max_bytes": 1 << 20, "log_start_offset": 0, **more}
    return FetchPartition(index, fetch_offset=offset, **{"current_leader_epoch": EPOCH, **given})


def fetch(
    *partitions: FetchPartition, session: tuple[int, int] = FULL, replica: int = THEM, **more: Any
) -> FetchRequest:
    """A request that does not wait unless `max_wait_ms` is given."""
    session_id, epoch = session
    topics = [FetchTopic("t", partitions=list(partitions))] if partitions else []
    given = {"min_bytes": 1, "max_bytes": 1 << 20, **more}
    return FetchRequest(
        replica_id=replica, session_id=session_id, session_epoch=epoch, topics=topics, **given
    )


class Serving:
    """Broker 1, which leads t-0 and t-1; broker 2 follows both, and fetches over one connection."""

    def __init__(self, world: Replicating) -> None:
        self.world = world
        self.connection = follower()
        self.next = FULL

    @property
    def sessions(self) -> Sessions:
        sessions: Sessions = self.world.sessions
        return sessions

    def partition(self, index: int = 0) -> Partition:
        partition: Partition = self.world.replicas.partition("t", index)
        return partition

    def append(self, index: int = 0, value: str = "news") -> None:
        self.partition(index).append(batch(value), NOW_MS, acks=1)

    def ask(self, *partitions: FetchPartition, **more: Any) -> FetchResponse | asyncio.Future[FetchResponse]:
        """The session's next request; the first one begins the session."""
        answer = answered(self.sessions, fetch(*partitions, session=self.next, **more), self.connection, 12)
        session_id, epoch = self.next
        if isinstance(answer, FetchResponse):
            session_id = answer.session_id
        self.next = session_id, next_session_epoch(epoch)
        return answer

    def fetch(self, *partitions: FetchPartition, **more: Any) -> list[PartitionData]:
        """The response, without waiting."""
        answer = self.ask(*partitions, **more)
        assert isinstance(answer, FetchResponse)
        return told(answer)

    def wait(self, *partitions: FetchPartition, **more: Any) -> asyncio.Future[FetchResponse]:
        answer = self.ask(*partitions, **{"max_wait_ms": 60_000, **more})
        assert isinstance(answer, asyncio.Future)
        return answer


def told(answer: FetchResponse) -> list[PartitionData]:
    return [data for topic in answer.responses for data in topic.partitions]


def size(data: PartitionData) -> int:
    return len(data.records or b"")


def summary(answer: Iterable[PartitionData]) -> dict[int, tuple[int, int]]:
    """Error and size of the records, by partition."""
    return {data.partition_index: (data.error_code, size(data)) for data in answer}


def two_partitions(*replicas: int, epoch: int = EPOCH) -> TopicRecord:
    return topic("t", *[led_by(US, *replicas, epoch=epoch)] * 2)


@contextlib.asynccontextmanager
async def leading(folder: Path, record: TopicRecord | None = None) -> AsyncIterator[Serving]:
    async with replicating(folder) as world:
        await world.told(state(record or two_partitions()))
        yield Serving(world)


def refusal(serving: Serving, request: FetchRequest, connection: FetchingClient | None = None) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        answered(serving.sessions, request, connection or serving.connection, 12)
    return error.value.code
