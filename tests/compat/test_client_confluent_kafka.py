"""confluent-kafka (librdkafka): produce with every codec, groups of every kind, admin, offsets by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

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

NewConsumer = Callable[..., Any]
Message = Any  # its accessors are typed as if every message were an error


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[NewConsumer]:
    """``consumer(group, **settings)``: one more consumer, closed at the end."""
    opened: list[Any] = []

    def new(group: str, **settings: Any) -> Any:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,  # how soon a member learns of a rebalance
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        opened.append(Consumer(config))
        return opened[-1]

    yield new
    for one in opened:
        one.close()


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    topic = unique(name)
    spec = NewTopic(
        topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()}
    )
    admin.create_topics([spec])[topic].result(DEADLINE_S)
    return topic


def produce(
    bootstrap: str, topic: str, samples: tuple[Sample, ...] = RECORDS, **settings: Any
) -> list[Message]:
    """Produce them all; returns the delivery reports."""
    reports: list[Message] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    config = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for sample in samples:
        producer.produce(
            topic,
            key=sample.key,
            value=sample.value,
            headers=list(sample.headers),
            timestamp=sample.timestamp_ms,
            on_delivery=delivered,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert len(reports) == len(samples)
    return reports


def take(consumer: Any, count: int) -> list[Message]:
    """The next ``count`` records."""
    taken: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records after {DEADLINE_S} s"
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            taken.append(message)
    return taken


def settle(consumers: list[Any], accept: Callable[[list[set[int]]], bool]) -> list[set[int]]:
    """Poll the consumers until their assignments are accepted."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for one in consumers:
            message = one.poll(0.05)
            assert message is None or message.error() is None, message.error()
        owned = [{part.partition for part in one.assignment()} for one in consumers]
        if accept(owned):
            return owned
        assert time.monotonic() < deadline, f"assignments are still {owned}"


def as_sample(message: Message) -> Sample:
    headers = tuple((name, value) for name, value in message.headers() or [])
    return Sample(message.key(), message.value(), headers, message.timestamp()[1])


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_round_trips(bootstrap: str, admin: AdminClient, consumer: NewConsumer, codec: str) -> None:
    topic = create(admin, f"confluent-{codec}")
    produce(bootstrap, topic, compression_type=codec)
    reader = consumer(unique("reader"), check_crcs=True)
    reader.assign([TopicPartition(topic, 0, 0)])
    taken = take(reader, len(RECORDS))
    assert tuple(as_sample(message) for message in taken) == RECORDS
    assert [message.offset() for message in taken] == list(range(len(RECORDS)))


def test_keys_choose_the_partition(bootstrap: str, admin: AdminClient, consumer: NewConsumer) -> None:
    topic = create(admin, "confluent-keyed", partitions=4)
    reports = produce(bootstrap, topic, partitioner="murmur2_random")
    reader = consumer(unique("reader"))
    reader.subscribe([topic])
    written = partitions_by_key((message.key(), message.partition()) for message in reports)
    read = partitions_by_key((message.key(), message.partition()) for message in take(reader, len(RECORDS)))
    assert read == written
    assert len(set(read.values())) > 1


def test_idempotent_producer(bootstrap: str, admin: AdminClient, consumer: NewConsumer) -> None:
    topic = create(admin, "confluent-idempotent")
    reports = produce(bootstrap, topic, enable_idempotence=True, batch_num_messages=10)
    assert [message.offset() for message in reports] == list(range(len(RECORDS)))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, admin: AdminClient, consumer: NewConsumer, acks: str) -> None:
    topic = create(admin, f"confluent-acks-{acks}")
    produce(bootstrap, topic, acks=acks)
    reader = consumer(unique("reader"))
    reader.subscribe([topic])
    assert len(take(reader, len(RECORDS))) == len(RECORDS)


def test_a_topic_is_created_on_first_use(bootstrap: str, consumer: NewConsumer) -> None:
    topic = unique("confluent-auto")
    produce(bootstrap, topic, RECORDS[:3])
    reader = consumer(unique("reader"))
    reader.subscribe([topic])
    assert len(take(reader, 3)) == 3


def test_a_group_resumes_where_it_committed(
    bootstrap: str, admin: AdminClient, consumer: NewConsumer
) -> None:
    topic, group = create(admin, "confluent-resume"), unique("resume")
    produce(bootstrap, topic)
    first = consumer(group)
    first.subscribe([topic])
    last = take(first, 50)[-1]
    first.commit(
        offsets=[TopicPartition(topic, 0, last.offset() + 1, metadata="half-way")], asynchronous=False
    )
    first.close()
    second = consumer(group)
    (committed,) = second.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert (committed.offset, committed.metadata) == (50, "half-way")
    second.subscribe([topic])
    assert take(second, 1)[0].offset() == 50


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_and_hand_over(
    bootstrap: str, admin: AdminClient, consumer: NewConsumer, strategy: str
) -> None:
    topic, group = create(admin, "confluent-share", partitions=4), unique("share")
    everything = {0, 1, 2, 3}
    first = consumer(group, partition_assignment_strategy=strategy)
    first.subscribe([topic])
    settle([first], lambda owned: owned == [everything])
    second = consumer(group, partition_assignment_strategy=strategy)
    second.subscribe([topic])
    owned = settle(
        [first, second], lambda now: now[0] | now[1] == everything and len(now[0]) == len(now[1]) == 2
    )
    assert not owned[0] & owned[1]
    second.close()
    settle([first], lambda now: now == [everything])


def test_a_static_member_returns_without_a_rebalance(
    bootstrap: str, admin: AdminClient, consumer: NewConsumer
) -> None:
    topic, group = create(admin, "confluent-static", partitions=4), unique("static")
    revoked: list[object] = []
    first = consumer(group, group_instance_id="one")
    first.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
    second = consumer(group, group_instance_id="two")
    second.subscribe([topic])
    before = settle([first, second], lambda now: now[0] | now[1] == {0, 1, 2, 3} and len(now[0]) == 2)
    revoked.clear()
    second.close()  # a static member does not leave
    again = consumer(group, group_instance_id="two")
    again.subscribe([topic])
    after = settle([first, again], lambda now: len(now[1]) == 2)
    assert after == before
    assert not revoked


def test_topics_are_created_described_grown_and_deleted(admin: AdminClient) -> None:
    topic = create(admin, "confluent-admin", partitions=3, retention_ms="3600000")
    described = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
    assert described.error is None
    assert sorted(described.partitions) == [0, 1, 2]
    assert {part.leader for part in described.partitions.values()} == {1}
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert config["retention.ms"].value == "3600000"
    assert config["cleanup.policy"].value == "delete"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_S)
    grown = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
    assert sorted(grown.partitions) == [0, 1, 2, 3, 4]
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_offsets_by_timestamp(bootstrap: str, admin: AdminClient, consumer: NewConsumer) -> None:
    topic = create(admin, "confluent-times")
    produce(bootstrap, topic, batch_num_messages=20)
    reader = consumer(unique("reader"))

    def at(timestamp: int) -> int:
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=DEADLINE_S)
        return int(found.offset)

    assert at(BASE_TIMESTAMP_MS) == 0
    assert at(BASE_TIMESTAMP_MS + 77) == 77
    assert at(BASE_TIMESTAMP_MS + len(RECORDS)) == -1
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (0, len(RECORDS))
