"""aiokafka: produce with every codec, all its kinds of groups, admin, offsets by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from millstream_harness.scenario import (
    BASE_TIMESTAMP_MS,
    CODECS,
    DEADLINE_S,
    RECORDS,
    Sample,
    partitions_by_key,
    unique,
)

pytestmark = pytest.mark.process

NewConsumer = Callable[..., Awaitable[Any]]


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    yield client
    await client.close()


@pytest.fixture
async def consumer(bootstrap: str) -> AsyncIterator[NewConsumer]:
    """``await consumer(group, topics, **settings)``: one more consumer, stopped at the end."""
    opened: list[Any] = []

    async def new(group: str | None, *topics: str, **settings: Any) -> Any:
        config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 100}
        one = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, **{**config, **settings})
        opened.append(one)
        await one.start()
        return one

    yield new
    for one in opened:
        await one.stop()


async def create(admin: Any, name: str, partitions: int = 1, **config: str) -> str:
    topic = unique(name)
    configs = {key.replace("_", "."): value for key, value in config.items()}
    response = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
    assert [error[1] for error in response.topic_errors] == [0]
    deadline = time.monotonic() + DEADLINE_S
    while topic not in await admin.list_topics():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return topic


async def produce(bootstrap: str, topic: str, **settings: Any) -> list[Any]:
    """Produce RECORDS; return the acknowledgement of each."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **settings) as producer:
        futures = [
            await producer.send(
                topic,
                key=sample.key,
                value=sample.value,
                headers=list(sample.headers),
                timestamp_ms=sample.timestamp_ms,
            )
            for sample in RECORDS
        ]
        return list(await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_S))


async def take(consumer: Any, count: int) -> list[Any]:
    """The next ``count`` records."""
    async with asyncio.timeout(DEADLINE_S):
        return [await consumer.getone() for _ in range(count)]


async def settle(consumers: list[Any], accept: Callable[[list[set[int]]], bool]) -> list[set[int]]:
    """Poll the consumers until their assignments are accepted."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for one in consumers:
            await one.getmany(timeout_ms=20)
        owned = [{part.partition for part in one.assignment()} for one in consumers]
        if accept(owned):
            return owned
        assert time.monotonic() < deadline, f"assignments are still {owned}"


def as_sample(record: Any) -> Sample:
    return Sample(record.key, record.value, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize("codec", CODECS)
async def test_a_codec_round_trips(bootstrap: str, admin: Any, consumer: NewConsumer, codec: str) -> None:
    topic = await create(admin, f"aiokafka-{codec}")
    await produce(bootstrap, topic, compression_type=None if codec == "none" else codec)
    reader = await consumer(None)
    reader.assign([TopicPartition(topic, 0)])
    taken = await take(reader, len(RECORDS))
    assert tuple(as_sample(record) for record in taken) == RECORDS
    assert [record.offset for record in taken] == list(range(len(RECORDS)))


@pytest.mark.parametrize("idempotent", [False, True])
async def test_keys_choose_the_partition(
    bootstrap: str, admin: Any, consumer: NewConsumer, idempotent: bool
) -> None:
    topic = await create(admin, "aiokafka-keyed", partitions=4)
    acknowledged = await produce(bootstrap, topic, enable_idempotence=idempotent, acks="all")
    written = partitions_by_key(
        (sample.key, done.partition) for sample, done in zip(RECORDS, acknowledged, strict=True)
    )
    reader = await consumer(unique("reader"), topic)
    taken = await take(reader, len(RECORDS))
    assert partitions_by_key((record.key, record.partition) for record in taken) == written
    assert len(set(written.values())) > 1


async def test_transactions_commit_and_abort_with_positions(
    bootstrap: str, admin: Any, consumer: NewConsumer
) -> None:
    source, target = await create(admin, "aiokafka-copied"), await create(admin, "aiokafka-copies")
    group, part = unique("copier"), TopicPartition(source, 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=target) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(target, b"committed")
        await producer.send_offsets_to_transaction({part: 10}, group)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait(target, b"aborted")
        await producer.send_offsets_to_transaction({part: 20}, group)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(target, b"last")
    for isolation, values in (
        ("read_committed", [b"committed", b"last"]),
        ("read_uncommitted", [b"committed", b"aborted", b"last"]),
    ):
        reader = await consumer(None, isolation_level=isolation)
        reader.assign([TopicPartition(target, 0)])
        assert [record.value for record in await take(reader, len(values))] == values
    assert (await admin.list_consumer_group_offsets(group))[part].offset == 10


async def test_a_group_resumes_where_it_committed(bootstrap: str, admin: Any, consumer: NewConsumer) -> None:
    topic, group = await create(admin, "aiokafka-resume"), unique("resume")
    await produce(bootstrap, topic)
    part = TopicPartition(topic, 0)
    first = await consumer(group, topic)
    await take(first, 50)
    await first.commit({part: OffsetAndMetadata(50, "half-way")})
    await first.stop()
    second = await consumer(group, topic)
    assert await second.committed(part) == 50
    assert (await take(second, 1))[0].offset == 50


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
)
async def test_two_members_share_and_hand_over(
    bootstrap: str, admin: Any, consumer: NewConsumer, assignor: type
) -> None:
    topic, group = await create(admin, "aiokafka-share", partitions=4), unique("share")
    everything = {0, 1, 2, 3}
    first = await consumer(group, topic, partition_assignment_strategy=(assignor,))
    await settle([first], lambda owned: owned == [everything])
    second = await consumer(group, topic, partition_assignment_strategy=(assignor,))
    await settle(
        [first, second],
        lambda now: now[0] | now[1] == everything and len(now[0]) == len(now[1]) == 2,
    )
    await second.stop()
    await settle([first], lambda now: now == [everything])


async def test_a_static_member_returns_without_a_rebalance(
    bootstrap: str, admin: Any, consumer: NewConsumer
) -> None:
    topic, group = await create(admin, "aiokafka-static", partitions=4), unique("static")
    patient = {"session_timeout_ms": 60_000}  # of a member that is away
    first = await consumer(group, topic, group_instance_id="one", **patient)
    second = await consumer(group, topic, group_instance_id="two", **patient)
    before = await settle([first, second], lambda now: now[0] | now[1] == {0, 1, 2, 3} and len(now[0]) == 2)
    await second.stop()  # a static member does not leave
    again = await consumer(group, topic, group_instance_id="two", **patient)
    assert await settle([first, again], lambda now: len(now[1]) == 2) == before


async def test_topics_are_created_described_grown_and_deleted(admin: Any) -> None:
    topic = await create(admin, "aiokafka-admin", partitions=3, retention_ms="3600000")
    (described,) = await admin.describe_topics([topic])
    assert sorted(part["partition"] for part in described["partitions"]) == [0, 1, 2]
    assert {part["leader"] for part in described["partitions"]} == {1}
    (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "3600000" in str(configs.to_object())
    await admin.create_partitions({topic: NewPartitions(5)})
    (grown,) = await admin.describe_topics([topic])
    assert len(grown["partitions"]) == 5
    await admin.delete_topics([topic])
    assert topic not in await admin.list_topics()


async def test_offsets_by_timestamp(bootstrap: str, admin: Any, consumer: NewConsumer) -> None:
    topic = await create(admin, "aiokafka-times")
    await produce(bootstrap, topic, max_batch_size=2048)
    part = TopicPartition(topic, 0)
    reader = await consumer(None)

    async def at(timestamp: int) -> Any:
        return (await reader.offsets_for_times({part: timestamp}))[part]

    assert (await at(BASE_TIMESTAMP_MS)).offset == 0
    assert (await at(BASE_TIMESTAMP_MS + 77)).offset == 77
    assert await at(BASE_TIMESTAMP_MS + len(RECORDS)) is None
    assert await reader.beginning_offsets([part]) == {part: 0}
    assert await reader.end_offsets([part]) == {part: len(RECORDS)}
