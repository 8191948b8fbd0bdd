"""What clients beyond their quota see: a throttle time at once, and then a connection that is not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker
from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.network import requests
from millstream_broker.network.connection import ClientConnection
from millstream_broker.security.mechanisms.inter_broker import InterBroker
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.wire import Wire
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    fetch,
    list_groups,
    metadata,
    produce,
)
from millstream_kafka.protocol.errors import ErrorCode

BATCH = build_batch([Record(None, bytes(10_000), 1)])
ANYONE = Entity(client_id=DEFAULT)


async def limit(broker: Broker, entity: Entity = ANYONE, **quotas: str | None) -> None:
    stored = {key: value for key, value in quotas.items() if value is not None}
    await broker.coordination.change_entity(entity, lambda _: stored)


@asynccontextmanager
async def with_topic(folder: Path, **quotas: str) -> AsyncIterator[tuple[Broker, Connection]]:
    """A broker with a topic t and quotas of every client id, and a client. For quotas, time stands still."""
    async with running(folder) as broker, connected(broker) as client:
        broker.quotas.now_ms = lambda: 1000
        await create(client, "t")
        await limit(broker, **quotas)
        yield broker, client


def a_produce(acks: int = -1, batch: bytes = BATCH) -> produce.ProduceRequest:
    topic = produce.TopicProduceData("t", partition_data=[produce.PartitionProduceData(0, batch)])
    return produce.ProduceRequest(None, acks, 5000, [topic])


async def producing(client: Connection, acks: int = -1) -> int:
    """Produce a batch; returns the throttle time."""
    answer = await client.call(produce.API, 9, a_produce(acks))
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def a_fetch(offset: int = 0, *, session_id: int = 0, epoch: int = -1, **fields: Any) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [fetch.FetchTopic("t", partitions=[partition])] if epoch <= 0 else []
    settings = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 22} | fields
    return fetch.FetchRequest(topics=topics, session_id=session_id, session_epoch=epoch, **settings)


def size_of(answer: fetch.FetchResponse) -> int:
    return sum(len(data.records or b"") for topic in answer.responses for data in topic.partitions)


def connection_of(broker: Broker) -> ClientConnection:
    (only,) = broker.server.connections
    assert isinstance(only, ClientConnection)
    return only


def end_pause(muted: ClientConnection) -> None:
    """As if the throttle time were over."""
    muted.unmute()


async def test_a_producer_beyond_its_quota_is_answered_at_once_and_then_not_read(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="1000") as (broker, client):
        throttled_ms = await producing(client)
        assert 50 <= throttled_ms <= 150  # 10,1xx bytes, of which 10,000 pass
        assert await producing(client) > 10_000
        assert broker.stats.muted == 1
        waiting = asyncio.create_task(producing(client))
        log = broker.replicas.partitions["t", 0].log
        await until(lambda: not connection_of(broker)._channel.is_reading)  # its bytes have arrived
        assert log.log_end_offset == 2
        end_pause(connection_of(broker))
        assert await waiting > 20_000
        assert log.log_end_offset == 3


async def test_the_shortcut_of_producers_has_the_throttle_time(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="1000000") as (broker, client):
        for _ in range(3):
            assert await producing(client) == 0
        await limit(broker, producer_byte_rate="1000")
        assert await producing(client) > 10_000
        end_pause(connection_of(broker))


async def test_a_pipeline_stops_at_the_request_that_is_throttled(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="100") as (broker, client):
        calls = [asyncio.create_task(client.call(produce.API, 9, a_produce(1))) for _ in range(5)]
        first = await calls[0]
        assert first.throttle_time_ms > 80_000
        await until(lambda: connection_of(broker)._backlog is not None)
        assert broker.replicas.partitions["t", 0].log.log_end_offset == 1
        for number in range(1, 5):
            end_pause(connection_of(broker))
            await calls[number]
            assert broker.replicas.partitions["t", 0].log.log_end_offset == number + 1


def wired(broker: Broker) -> Wire:
    """A client that does not wait for responses."""
    (record,) = broker.replicas.metadata.state.brokers.values()
    return Wire(f"127.0.0.1:{record.listeners[0].port}")


async def test_requests_sent_before_a_disconnect_are_handled_after_the_pause(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        async with connected(broker) as client:
            await create(client, "t")
        await limit(broker, producer_byte_rate="100")
        log = broker.replicas.partitions["t", 0].log
        with wired(broker) as producer:
            producer.socket.sendall(b"".join(producer.frame(produce.API, 9, a_produce(0)) for _ in range(2)))
            await until(lambda: broker.stats.muted == 1)
            muted = connection_of(broker)
        assert log.log_end_offset == 1
        await until(lambda: not muted._channel.is_reading)  # the end has arrived
        assert broker.server.connections
        end_pause(muted)
        await until(lambda: log.log_end_offset == 2)
        end_pause(muted)
        await until(lambda: not broker.server.connections)
        assert broker.stats.muted == 0


async def test_a_disconnect_during_the_pause_is_noticed(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="100") as (broker, client):
        await producing(client)
        assert broker.stats.muted == 1
        await client.close()
        await until(lambda: not broker.server.connections)
        assert broker.stats.muted == 0


async def test_a_silent_connection_is_closed_during_the_pause(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="100") as (broker, client):
        await producing(client)
        assert broker.stats.muted == 1
        connection_of(broker).active_at -= broker.server.max_idle_s + 1
        broker.server._close_idle()
        assert not broker.server.connections
        assert broker.stats.muted == 0


async def test_a_consumer_gets_no_topics_until_its_rate_allows_them(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as (broker, client):
        for _ in range(5):
            await producing(client)
        await limit(broker, consumer_byte_rate="3000")
        first = await client.call(fetch.API, 12, a_fetch())
        assert size_of(first) == 2 * len(BATCH)  # of the 30,000 bytes that may pass, whole batches
        assert first.throttle_time_ms == 0
        second = await client.call(fetch.API, 12, a_fetch(2))
        assert second.responses == []
        assert second.throttle_time_ms > 0
        assert broker.stats.muted == 1
        await limit(broker, consumer_byte_rate="1000000")
        end_pause(connection_of(broker))
        third = await client.call(fetch.API, 12, a_fetch(2))
        assert size_of(third) == 3 * len(BATCH)


async def test_a_batch_beyond_all_that_may_pass_is_read_after_a_pause(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as (broker, client):
        await producing(client)
        await producing(client)
        await limit(broker, consumer_byte_rate="100")
        first = await client.call(fetch.API, 12, a_fetch())
        assert size_of(first) == len(BATCH)
        assert first.throttle_time_ms > 80_000
        end_pause(connection_of(broker))
        again = await client.call(fetch.API, 12, a_fetch(1))
        assert (again.responses, again.throttle_time_ms > 80_000) == ([], True)


async def test_a_session_sends_again_what_a_throttled_response_left_out(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as (broker, client):
        await create(client, "two", partitions=2)
        for index in (0, 1):
            topic = produce.TopicProduceData(
                "two", partition_data=[produce.PartitionProduceData(index, BATCH)]
            )
            await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 5000, [topic]))
        await limit(broker, consumer_byte_rate="1100")
        partitions = [
            fetch.FetchPartition(index, fetch_offset=index, partition_max_bytes=1 << 20) for index in (0, 1)
        ]
        opening = a_fetch(epoch=0)
        opening.topics = [fetch.FetchTopic("two", partitions=partitions)]
        opened = await client.call(fetch.API, 12, opening)
        assert (size_of(opened), opened.throttle_time_ms) == (len(BATCH), 0)
        session = opened.session_id
        deleted = delete_records.DeleteRecordsPartition(1, 1)
        topics = [delete_records.DeleteRecordsTopic("two", [deleted])]
        await client.call(delete_records.API, 2, delete_records.DeleteRecordsRequest(topics, 5000))
        throttled = await client.call(fetch.API, 12, a_fetch(session_id=session, epoch=1))
        assert (throttled.responses, throttled.error_code, throttled.session_id) == ([], 0, session)
        assert throttled.throttle_time_ms > 0
        await limit(broker)
        end_pause(connection_of(broker))
        again = await client.call(fetch.API, 12, a_fetch(session_id=session, epoch=2))
        assert size_of(again) == len(BATCH)
        starts = {data.partition_index: data.log_start_offset for data in again.responses[0].partitions}
        assert starts == {0: 0, 1: 1}  # the start of 1 is its only news


async def test_a_waiting_fetch_is_charged_when_it_is_answered(tmp_path: Path) -> None:
    async with with_topic(tmp_path, consumer_byte_rate="1") as (broker, client):
        waiting = asyncio.create_task(client.call(fetch.API, 12, a_fetch(max_wait_ms=60_000)))
        async with connected(broker) as producer:
            await until(lambda: bool(broker.replicas.partitions["t", 0].waiters))
            await producing(producer)
        answer = await waiting
        assert size_of(answer) == len(BATCH)
        assert answer.throttle_time_ms > 1_000_000


async def test_requests_beyond_their_share_of_time_are_throttled_for_a_second_at_most(tmp_path: Path) -> None:
    async with with_topic(tmp_path, request_percentage="0.000001") as (broker, client):
        listed = await client.call(list_groups.API, 4, list_groups.ListGroupsRequest())
        assert listed.throttle_time_ms == 1000
        end_pause(connection_of(broker))
        described = await client.call(metadata.API, 9, metadata.MetadataRequest())
        assert described.throttle_time_ms == 1000
        end_pause(connection_of(broker))
        assert await producing(client) == 1000
        end_pause(connection_of(broker))
        fetched = await client.call(fetch.API, 12, a_fetch())
        assert (fetched.throttle_time_ms, fetched.responses) == (1000, [])


async def test_the_time_of_coroutines_is_charged_without_their_waits(tmp_path: Path) -> None:
    async with with_topic(tmp_path, request_percentage="1000") as (broker, client):
        await create(client, "more", partitions=20)
        uses = {use.quota: use for use in broker.quotas.uses(broker.quotas.now_ms())}
        assert 0 < uses["request_percentage"].rate < 100


async def test_a_large_request_is_charged_too(tmp_path: Path) -> None:
    async with with_topic(tmp_path, request_percentage="0.000001") as (_, client):
        topics = [metadata.MetadataRequestTopic(name=f"none-{number}") for number in range(1000)]
        request = metadata.MetadataRequest(topics, allow_auto_topic_creation=False)
        answer = await client.call(metadata.API, 9, request)
        assert answer.throttle_time_ms == 1000
        assert len(answer.topics) == 1000


async def test_brokers_have_no_quotas(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="1", request_percentage="0.000001") as (broker, _):
        (record,) = broker.replicas.metadata.state.brokers.values()
        peers = InterBroker(5, "PLAINTEXT", broker.coordination.secret, lambda: 7)
        peer = await peers.connect(record, "test", timeout_s=10)
        assert await producing(peer) == 0
        await peer.close()


async def test_a_quota_of_the_user_applies_to_all_its_clients(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as (broker, client):
        await limit(broker, Entity(user="ANONYMOUS"), producer_byte_rate="1000")
        assert await producing(client) < 1000
        async with connected(broker) as other:
            assert await producing(other) > 10_000


async def test_mutations_beyond_the_quota_are_refused_or_throttled_by_version(tmp_path: Path) -> None:
    async with with_topic(tmp_path, controller_mutation_rate="1") as (broker, client):

        async def creating(
            version: int, *names: str, partitions: int = 8
        ) -> create_topics.CreateTopicsResponse:
            topics = [create_topics.CreatableTopic(name, partitions, 1) for name in names]
            request = create_topics.CreateTopicsRequest(topics, 10_000)
            answer = await client.call(create_topics.API, version, request)
            if answer.throttle_time_ms:
                end_pause(connection_of(broker))
            return answer

        exceeded = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        first = await creating(6, "a", "b", "c")  # eleven tokens
        assert [topic.error_code for topic in first.topics] == [0, 0, exceeded]
        assert first.throttle_time_ms == 5000
        lenient = await creating(5, "c")
        assert lenient.topics[0].error_code == 0
        assert lenient.throttle_time_ms == 13_000
        known = await creating(6, "a")
        assert (known.topics[0].error_code, known.throttle_time_ms) == (ErrorCode.TOPIC_ALREADY_EXISTS, 0)

        wider = create_partitions.CreatePartitionsTopic("a", 9, None)
        request = create_partitions.CreatePartitionsRequest([wider], 10_000)
        refused = await client.call(create_partitions.API, 3, request)
        assert refused.results[0].error_code == exceeded
        assert refused.throttle_time_ms == 13_000
        end_pause(connection_of(broker))
        passed = await client.call(create_partitions.API, 2, request)
        assert (passed.results[0].error_code, passed.throttle_time_ms) == (0, 14_000)
        end_pause(connection_of(broker))

        deleted = delete_topics.DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000)
        kept = await client.call(delete_topics.API, 5, deleted)
        assert kept.responses[0].error_code == exceeded
        end_pause(connection_of(broker))
        gone = await client.call(delete_topics.API, 4, deleted)
        assert (gone.responses[0].error_code, gone.throttle_time_ms) == (0, 23_000)


async def test_a_topic_beyond_the_quota_is_not_created_for_metadata_either(tmp_path: Path) -> None:
    async with with_topic(tmp_path, controller_mutation_rate="1") as (broker, client):

        async def asked(*names: str) -> list[int]:
            topics = [metadata.MetadataRequestTopic(name=name) for name in names]
            answer = await client.call(metadata.API, 9, metadata.MetadataRequest(topics))
            return [topic.error_code for topic in answer.topics]

        unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        names = [f"made-{number:02}" for number in range(14)]  # of eleven tokens, and one more that is owed
        assert await asked(*names) == [0] * 12 + [unknown] * 2
        broker.quotas.now_ms = lambda: 3000
        assert await asked(*names[12:]) == [0, 0]


async def test_without_quotas_no_request_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def charge(*_: object) -> None:
        raise AssertionError("a request is charged")

    monkeypatch.setattr(requests, "Charge", charge)
    async with with_topic(tmp_path) as (broker, client):
        await limit(broker, Entity(ip=DEFAULT), connection_creation_rate="1000")
        await producing(client)
        assert size_of(await client.call(fetch.API, 12, a_fetch())) == len(BATCH)
        assert not list(broker.quotas.uses(1000))


async def test_metrics_name_the_clients_that_have_a_quota(tmp_path: Path) -> None:
    async with with_topic(tmp_path, producer_byte_rate="1000") as (broker, client):
        await limit(broker, Entity(user="ANONYMOUS"), controller_mutation_rate="5")
        assert await producing(client) < 1000
        await create(client, "more")
        page = (await broker._metrics.text()).decode()
        of_producer = '{client_id="millstream",quota="producer_byte_rate",user=""}'
        of_user = '{client_id="",quota="controller_mutation_rate",user="ANONYMOUS"}'
        for expected in (
            f"millstream_quota_limit{of_producer} 1000.0",
            f"millstream_quota_rate{of_producer} 10",
            f"millstream_quota_throttled_requests_total{of_producer} 1.0",
            f"millstream_quota_throttle_seconds_total{of_producer} 0.",
            f"millstream_quota_limit{of_user} 5.0",
            'millstream_series_omitted{metric="millstream_quota_limit"} 0.0',
        ):
            assert f"\n{expected}" in page
        assert f"millstream_quota_rate{of_user}" not in page
