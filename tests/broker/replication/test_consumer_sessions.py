"""Fetch sessions of consumers (KIP-227): repeated data, ownership, and eviction."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream_broker.broker import Broker
from millstream_broker.replication import fetch_session, fetch_sessions
from millstream_broker.replication.fetch_sessions import EVICTION_MS, Sessions
from millstream_broker.replication.replica import Replica
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.in_process import connected, create, delete, running
from millstream_harness.members import until
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import fetch, metadata
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    next_session_epoch,
)
from millstream_kafka.protocol.metadata import MetadataRequest, MetadataRequestTopic
from millstream_kafka.protocol.schema import ZERO_UUID

NEWS = build_batch([record("news")])
SIZE = len(NEWS)
FULL = (0, 0)


def request(
    offsets: dict[int, int],
    session: tuple[int, int] = FULL,
    forgotten: tuple[int, ...] = (),
    topic_id: UUID = ZERO_UUID,
    **more: Any,
) -> FetchRequest:
    """A request for partitions of `t` from these offsets on; it waits only if `max_wait_ms` is given."""
    partitions = [FetchPartition(index, -1, offset, -1, -1, 1 << 20) for index, offset in offsets.items()]
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic("t", topic_id, partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic("t", topic_id, list(forgotten))] if forgotten else [],
        **{"min_bytes": 1, "max_bytes": 1 << 20, **more},
    )


class Consumer:
    """A consumer that sends one request after another, over any connection."""

    version = 12

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.next = FULL
        self.topic_id: UUID | None = None

    def begin_anew(self) -> None:
        """Begin another session, and look up the topic's id again."""
        self.next, self.topic_id = FULL, None

    async def ask(self, offsets: dict[int, int], **more: Any) -> FetchResponse:
        if self.topic_id is None:
            found = await self.connection.call(
                metadata.API, 12, MetadataRequest([MetadataRequestTopic(name="t")])
            )
            self.topic_id = found.topics[0].topic_id
        asked = request(offsets, self.next, topic_id=self.topic_id, **more)
        response: FetchResponse = await self.connection.call(fetch.API, self.version, asked)
        if not response.error_code:
            self.next = response.session_id, next_session_epoch(self.next[1])
        return response

    async def fetch(self, offsets: dict[int, int], **more: Any) -> dict[int, tuple[int, int]]:
        """Error and record bytes, by partition."""
        response = await self.ask(offsets, **more)
        assert response.error_code == 0
        return {
            data.partition_index: (data.error_code, len(data.records or b""))
            for topic in response.responses
            for data in topic.partitions
        }


@pytest.fixture(autouse=True, params=[12, 13], ids=["names", "ids"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of consumers' requests: with names, or with ids of topics."""
    monkeypatch.setattr(Consumer, "version", request.param)
    return int(request.param)


class Serving:
    def __init__(self, broker: Broker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.consumer = Consumer(connection)

    @property
    def sessions(self) -> Sessions:
        return self.broker.fetch_sessions

    def append(self, index: int) -> None:
        batch = memoryview(bytearray(build_batch([record("news")])))
        self.broker.replicas.partition("t", index).append(batch, int(time.time() * 1000))

    def watchers(self) -> list[int]:
        return [len(self.broker.replicas.partition("t", index).waiters) for index in range(3)]

    async def poll_waits(self) -> None:
        """Wait until a session's request waits for records."""
        while not any(session._delayed for session in self.sessions._consumers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(folder: Path, **config: str) -> AsyncIterator[Serving]:
    """A broker with the topic t of three partitions."""
    overrides = {key.replace("_", "."): value for key, value in config.items()}
    async with running(folder, overrides) as broker, connected(broker) as connection:
        await create(connection, "t", 3)
        yield Serving(broker, connection)


async def test_only_what_is_new_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        broker.append(0)
        assert await consumer.fetch({0: 0, 1: 0, 2: 0}) == {0: (0, SIZE), 1: (0, 0), 2: (0, 0)}
        assert await consumer.fetch({0: 1}) == {}
        broker.append(2)
        assert await consumer.fetch({}) == {2: (0, SIZE)}
        assert await consumer.fetch({}) == {2: (0, SIZE)}, "until the consumer gets on"
        assert await consumer.fetch({2: 1}) == {}
        broker.broker.replicas.partition("t", 2).delete_records_before(1, 0)
        assert await consumer.fetch({}) == {2: (0, 0)}, "the log starts elsewhere"


async def test_a_poll_that_waits_for_a_topic_which_is_made_anew(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as broker, connected(broker.broker) as other:
        consumer = broker.consumer
        await consumer.fetch({0: 0})
        waiting = asyncio.create_task(consumer.fetch({}, max_wait_ms=600_000))
        await broker.poll_waits()
        await delete(other, "t")
        assert await waiting == {0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
        await create(other, "t", 3)
        broker.append(0)
        anew = {12: (0, SIZE), 13: (ErrorCode.INCONSISTENT_TOPIC_ID, 0)}
        assert await consumer.fetch({}) == {0: anew[version]}
        consumer.begin_anew()
        assert await consumer.fetch({0: 0}) == {0: (0, SIZE)}


async def test_an_id_that_the_broker_learns_later_is_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        topics = broker.broker.replicas.metadata.topics_by_id
        consumer = Consumer(broker.connection)
        consumer.version = 13
        assert await consumer.fetch({7: 0}) == {7: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
        assert consumer.topic_id is not None
        known = topics.pop(consumer.topic_id)
        assert await consumer.fetch({0: 0}) == {
            0: (ErrorCode.UNKNOWN_TOPIC_ID, 0),
            7: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        }
        topics[consumer.topic_id] = known
        broker.append(0)
        assert await consumer.fetch({}, forgotten=(7,)) == {0: (0, SIZE)}


async def test_a_session_has_names_or_ids(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        await consumer.fetch({0: 0})
        consumer.version = 25 - consumer.version
        assert (await consumer.ask({})).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        consumer.version = 25 - consumer.version
        assert await consumer.fetch({}) == {}


async def test_a_poll_of_a_session_waits_for_any_of_its_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        await consumer.fetch({0: 0, 1: 0, 2: 0})
        waiting = asyncio.create_task(consumer.fetch({}, max_wait_ms=600_000, min_bytes=2 * SIZE))
        await broker.poll_waits()
        broker.append(1)
        broker.append(2)
        assert await waiting == {1: (0, SIZE), 2: (0, SIZE)}


async def test_news_that_was_not_sent_is_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        first = await it.consumer.ask({0: 0, 1: 0})
        assert (await it.consumer.ask({})).responses == []
        to_the_end(it.sessions.take_back(first))
        (again,) = (await it.consumer.ask({})).responses
        assert [data.partition_index for data in again.partitions] == [0, 1]


async def test_a_change_of_rights_is_checked_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as it:
        await it.consumer.ask(dict.fromkeys(range(3), 0))
        (session,) = it.sessions._consumers.values()
        for at_once, turns in ((1, 3), (2, 1), (3, 1), (4, 0)):
            monkeypatch.setattr(fetch_session, "AT_ONCE", at_once)
            assert len(list(session.rights_changed())) == turns


async def test_partitions_come_and_go(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        await consumer.fetch({0: 0})
        assert await consumer.fetch({1: 0}, forgotten=(0, 7)) == {1: (0, 0)}
        broker.append(0)
        broker.append(1)
        assert await consumer.fetch({}) == {1: (0, SIZE)}
        response = await consumer.ask({}, forgotten=(1,))
        assert (response.session_id, response.responses) == (0, []), "nothing is left of it"
        assert (len(broker.sessions), broker.watchers()) == (0, [0, 0, 0])


async def test_any_connection_goes_on_with_a_session_by_its_id_and_epoch(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, connected(broker.broker) as other:
        consumer = broker.consumer
        await consumer.fetch({0: 0})
        consumer.connection = other
        assert await consumer.fetch({}) == {}
        session_id, epoch = consumer.next
        for session, code in {
            (session_id, epoch - 1): ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            (session_id, epoch + 1): ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            (session_id % 1000 + 1, epoch): ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        }.items():
            response = await other.call(fetch.API, 12, request({}, session))
            assert (response.error_code, response.session_id, response.responses) == (code, 0, [])
        assert await consumer.fetch({}) == {}, "that has not harmed it"


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_request_ends_the_session_that_it_names(tmp_path: Path, epoch: int) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        await consumer.fetch({0: 0})
        before, _ = consumer.next
        response = await broker.connection.call(fetch.API, 12, request({1: 0}, (before, epoch)))
        assert [(data.partition_index, data.error_code) for data in response.responses[0].partitions] == [
            (1, 0)
        ]
        assert (response.session_id == 0) == (epoch == -1)
        assert response.session_id != before
        assert await broker.connection.call(fetch.API, 12, request({}, consumer.next)) == FetchResponse(
            error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        )


async def test_an_error_is_told_until_the_partition_is_well_or_forgotten(
    tmp_path: Path, version: int
) -> None:
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        assert await consumer.fetch({0: 0, 5: 0}, max_wait_ms=600_000) == {0: (0, 0), 5: unknown}
        assert await consumer.fetch({}, max_wait_ms=600_000) == {5: unknown}
        assert await consumer.fetch({}, forgotten=(5,)) == {}
        await delete(broker.connection, "t")
        assert (await consumer.fetch({}))[0][0] != 0
        await create(broker.connection, "t", 3)
        assert await consumer.fetch({}) == {0: (0 if version == 12 else ErrorCode.INCONSISTENT_TOPIC_ID, 0)}
        consumer.begin_anew()
        assert await consumer.fetch({0: 0}) == {0: (0, 0)}
        broker.append(0)
        assert await consumer.fetch({}) == {0: (0, SIZE)}


async def test_records_that_come_while_nobody_asks_are_noted_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        consumer = broker.consumer
        await consumer.fetch({0: 0, 1: 0, 2: 0})
        assert broker.watchers() == [1, 1, 1]
        broker.append(1)
        assert broker.watchers() == [1, 0, 1], "a producer pays nothing for a consumer that is away"
        broker.append(1)
        assert await consumer.fetch({}) == {1: (0, 2 * SIZE)}


async def test_a_request_without_a_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        broker.append(0)
        response = await broker.connection.call(fetch.API, 12, request({0: 0, 1: 0}, (0, -1)))
        assert (response.session_id, len(response.responses[0].partitions)) == (0, 2)
        await broker.connection.call(fetch.API, 12, request({1: 0}, (0, -1), max_wait_ms=1))
        assert (len(broker.sessions), broker.watchers()) == (0, [0, 0, 0])


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(fetch_sessions, "monotonic", lambda: self.now)


async def test_where_there_is_no_room_a_consumer_goes_without_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with serving(tmp_path, max_incremental_fetch_session_cache_slots="2") as broker:
        one, two, three = (Consumer(broker.connection) for _ in range(3))
        await one.fetch({0: 0, 1: 0})
        await two.fetch({0: 0})
        assert (await three.ask({0: 0, 1: 0, 2: 0})).session_id == 0, "the others are young"
        clock.now += EVICTION_MS / 2000
        await one.fetch({})
        clock.now += EVICTION_MS / 2000
        three.next = FULL
        assert (await three.ask({0: 0, 1: 0, 2: 0})).session_id == 0, "not for so long"
        clock.now += 0.001
        three.next = FULL
        await three.fetch({0: 0})
        assert three.next[0] != 0, "the second was not used for long"
        assert (await two.ask({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert await one.fetch({}) == {}


async def test_a_larger_session_takes_the_place_of_a_smaller_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with serving(tmp_path, max_incremental_fetch_session_cache_slots="2") as broker:
        small, large, new = (Consumer(broker.connection) for _ in range(3))
        await small.fetch({0: 0})
        await large.fetch({0: 0, 1: 0})
        clock.now += EVICTION_MS / 1000
        await large.fetch({0: 0})
        await small.fetch({0: 0})
        assert (await new.ask({0: 0, 1: 0})).session_id == 0, "none is old"
        new.next = FULL
        clock.now += 0.001
        assert (await new.ask({0: 0})).session_id == 0, "it is not larger"
        new.next = FULL
        assert (await new.ask({0: 0, 1: 0})).session_id != 0
        assert (await small.ask({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert await large.fetch({}) == {}


@pytest.mark.parametrize("drawn", [min, max])
async def test_ids_are_positive_integers_of_32_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda limit: drawn(0, limit - 1))
    async with serving(tmp_path) as broker:
        assert (await broker.consumer.ask({0: 0})).session_id == drawn(1, (1 << 31) - 1)


async def test_without_slots_there_are_no_sessions(tmp_path: Path) -> None:
    async with serving(tmp_path, max_incremental_fetch_session_cache_slots="0") as broker:
        assert (await broker.consumer.ask({0: 0})).session_id == 0
        assert broker.watchers() == [0, 0, 0]


async def test_partitions_of_all_sessions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown partitions count, too; forgotten ones make room, and a session that would grow too large ends."""
    monkeypatch.setattr(fetch_sessions, "MOST_PARTITIONS", 6)
    async with serving(tmp_path) as broker:
        one, other = Consumer(broker.connection), Consumer(broker.connection)
        assert (await one.ask(dict.fromkeys(range(4), 0))).session_id != 0
        assert (await other.ask(dict.fromkeys(range(100, 103), 0))).session_id == 0
        assert (await one.ask({4: 0, 5: 0})).error_code == 0
        assert (await one.ask({}, forgotten=(1, 2, 4, 5))).error_code == 0
        other.next = FULL
        assert (await other.ask(dict.fromkeys(range(100, 103), 0))).session_id != 0
        for asked in (dict.fromkeys(range(10, 15), 0), {}):
            assert (await one.ask(asked)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert len(broker.sessions) == 1
        one.next = FULL
        assert (await one.ask(dict.fromkeys(range(3), 0))).session_id != 0


@pytest.mark.parametrize(("isolation", "batches"), [(0, 2), (1, 1)])
async def test_read_committed_ends_at_the_last_stable_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: int, batches: int
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        for _ in range(2):
            partition.append(memoryview(bytearray(NEWS)), 1, acks=1)
        await until(lambda: partition.high_watermark == 2)
        monkeypatch.setattr(Replica, "last_stable_offset", 1)
        found = await client.call(fetch.API, 12, request({0: 0}, isolation_level=isolation))
        (data,) = found.responses[0].partitions
        assert (data.high_watermark, data.last_stable_offset) == (2, 1)
        assert len(data.records or b"") == batches * SIZE
