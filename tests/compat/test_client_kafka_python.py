"""kafka-python 3: produce with every codec, groups of every kind, admin, offsets by time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

from millstream_harness.scenario import (
    BASE_TIMESTAMP_MS,
    CODECS,
    DEADLINE_S,
    RECORDS,
    Sample,
    partitions_by_key,
    unique,
)

NewConsumer = Callable[..., Any]

# Its clients leave the sockets that wake their selectors to the garbage collector.
pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collect_its_sockets() -> Iterator[None]:
    """Collect them here, so that they fail no later test."""
    yield
    gc.collect()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[NewConsumer]:
    """``consumer(group, **settings)``: one more consumer, closed at the end."""
    opened: list[Any] = []

    def new(group: str | None, **settings: Any) -> Any:
        config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 100}
        opened.append(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **{**config, **settings}))
        return opened[-1]

    yield new
    for one in opened:
        one.close()


def create(admin: Any, name: str, partitions: int = 1, **config: str) -> str:
    topic = unique(name)
    configs = {key.replace("_", "."): value for key, value in config.items()}
    spec = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    admin.create_topics({topic: spec}, wait_for_metadata=True)
    return topic


def produce(bootstrap: str, topic: str, **settings: Any) -> list[Any]:
    """Produce RECORDS; returns what was acknowledged for each."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, **settings)
    try:
        futures = [
            producer.send(
                topic,
                key=sample.key,
                value=sample.value,
                headers=list(sample.headers),
                timestamp_ms=sample.timestamp_ms,
            )
            for sample in RECORDS
        ]
        producer.flush(DEADLINE_S)
        return [future.get(DEADLINE_S) for future in futures]
    finally:
        producer.close()


def poll(consumer: Any, milliseconds: int = 50) -> list[Any]:
    return [record for records in consumer.poll(milliseconds).values() for record in records]


def take(consumer: Any, count: int) -> list[Any]:
    """At least the next ``count`` records."""
    taken: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records after {DEADLINE_S} s"
        taken += poll(consumer)
    return taken


def settle(consumers: list[Any], accept: Callable[[list[set[int]]], bool]) -> list[set[int]]:
    """Poll the consumers until their assignments are accepted."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for one in consumers:
            poll(one)
        owned = [{part.partition for part in one.assignment()} for one in consumers]
        if accept(owned):
            return owned
        assert time.monotonic() < deadline, f"assignments are still {owned}"


def as_sample(record: Any) -> Sample:
    return Sample(record.key, record.value, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_round_trips(bootstrap: str, admin: Any, consumer: NewConsumer, codec: str) -> None:
    topic = create(admin, f"kafka-python-{codec}")
    produce(bootstrap, topic, compression_type=None if codec == "none" else codec)
    reader = consumer(None)
    reader.assign([TopicPartition(topic, 0)])
    reader.seek_to_beginning()
    taken = take(reader, len(RECORDS))
    assert tuple(as_sample(record) for record in taken) == RECORDS
    assert [record.offset for record in taken] == list(range(len(RECORDS)))


@pytest.mark.parametrize("idempotent", [False, True])
def test_keys_choose_the_partition(
    bootstrap: str, admin: Any, consumer: NewConsumer, idempotent: bool
) -> None:
    topic = create(admin, "kafka-python-keyed", partitions=4)
    acknowledged = produce(bootstrap, topic, enable_idempotence=idempotent, acks="all")
    written = partitions_by_key(
        (sample.key, done.partition) for sample, done in zip(RECORDS, acknowledged, strict=True)
    )
    reader = consumer(unique("reader"))
    reader.subscribe([topic])
    taken = take(reader, len(RECORDS))
    assert len(taken) == len(RECORDS)
    assert partitions_by_key((record.key, record.partition) for record in taken) == written
    assert len(set(written.values())) > 1


def test_transactions_commit_and_abort_with_positions(
    bootstrap: str, admin: Any, consumer: NewConsumer
) -> None:
    source, target = create(admin, "kafka-python-copied"), create(admin, "kafka-python-copies")
    group, part = unique("copier"), TopicPartition(source, 0)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=target)
    producer.init_transactions()
    for value, position in ((b"committed", 10), (b"aborted", 20), (b"last", 15)):
        producer.begin_transaction()
        producer.send(target, value)
        producer.flush()  # an abort drops what was not sent
        producer.send_offsets_to_transaction({part: OffsetAndMetadata(position, "", -1)}, group)
        if value == b"aborted":
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    for isolation, values in (
        ("read_committed", [b"committed", b"last"]),
        ("read_uncommitted", [b"committed", b"aborted", b"last"]),
    ):
        reader = consumer(None, isolation_level=isolation)
        reader.assign([TopicPartition(target, 0)])
        assert [record.value for record in take(reader, len(values))] == values
    checker = consumer(group)
    assert checker.committed(part) == 15


def test_a_group_resumes_where_it_committed(bootstrap: str, admin: Any, consumer: NewConsumer) -> None:
    topic, group = create(admin, "kafka-python-resume"), unique("resume")
    produce(bootstrap, topic)
    part = TopicPartition(topic, 0)
    first = consumer(group, max_poll_records=50)
    first.subscribe([topic])
    take(first, 50)
    first.commit({part: OffsetAndMetadata(50, "half-way", -1)})
    first.close()
    second = consumer(group)
    committed = second.committed(part, metadata=True)
    assert (committed.offset, committed.metadata) == (50, "half-way")
    second.subscribe([topic])
    assert take(second, 1)[0].offset == 50


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, CooperativeStickyAssignor])
def test_two_members_share_and_hand_over(
    bootstrap: str, admin: Any, consumer: NewConsumer, assignor: type
) -> None:
    topic, group = create(admin, "kafka-python-share", partitions=4), unique("share")
    everything = {0, 1, 2, 3}
    first = consumer(group, partition_assignment_strategy=[assignor])
    first.subscribe([topic])
    settle([first], lambda owned: owned == [everything])
    second = consumer(group, partition_assignment_strategy=[assignor])
    second.subscribe([topic])
    settle(
        [first, second],
        lambda now: now[0] | now[1] == everything and len(now[0]) == len(now[1]) == 2,
    )
    second.close()
    settle([first], lambda now: now == [everything])


def test_a_static_member_returns_without_a_rebalance(
    bootstrap: str, admin: Any, consumer: NewConsumer
) -> None:
    topic, group = create(admin, "kafka-python-static", partitions=4), unique("static")
    first = consumer(group, group_instance_id="one")
    first.subscribe([topic])
    second = consumer(group, group_instance_id="two")
    second.subscribe([topic])
    before = settle([first, second], lambda now: now[0] | now[1] == {0, 1, 2, 3} and len(now[0]) == 2)
    generation = first.group_metadata().generation_id
    second.close()  # a static member does not leave
    again = consumer(group, group_instance_id="two")
    again.subscribe([topic])
    assert settle([first, again], lambda now: len(now[1]) == 2) == before
    assert again.group_metadata().generation_id == generation


def test_topics_are_created_described_grown_and_deleted(admin: Any) -> None:
    topic = create(admin, "kafka-python-admin", partitions=3, retention_ms="3600000")
    (described,) = admin.describe_topics([topic])
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    assert {part["leader_id"] for part in described["partitions"]} == {1}
    described_config = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
    assert "3600000" in str(described_config)
    admin.create_partitions({topic: 5})
    (grown,) = admin.describe_topics([topic])
    assert len(grown["partitions"]) == 5
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_groups_are_listed_described_and_deleted(bootstrap: str, admin: Any, consumer: NewConsumer) -> None:
    topic, group = create(admin, "kafka-python-groups"), unique("groups")
    part = TopicPartition(topic, 0)
    member = consumer(group)
    member.subscribe([topic])
    settle([member], lambda owned: owned == [{0}])
    member.commit({part: OffsetAndMetadata(7, "", -1)})
    assert group in str(admin.list_groups())
    assert "Stable" in str(admin.describe_groups([group]))
    member.close()
    assert "7" in str(admin.list_group_offsets({group: [part]}))
    admin.delete_groups([group])
    assert group not in str(admin.list_groups())


def test_offsets_by_timestamp(bootstrap: str, admin: Any, consumer: NewConsumer) -> None:
    topic = create(admin, "kafka-python-times")
    produce(bootstrap, topic, batch_size=2048)
    part = TopicPartition(topic, 0)
    reader = consumer(None)

    def at(timestamp: int) -> Any:
        return reader.offsets_for_times({part: timestamp})[part]

    assert (at(BASE_TIMESTAMP_MS).offset, at(BASE_TIMESTAMP_MS).timestamp) == (0, BASE_TIMESTAMP_MS)
    assert at(BASE_TIMESTAMP_MS + 77).offset == 77
    assert at(BASE_TIMESTAMP_MS + len(RECORDS)) is None
    assert reader.beginning_offsets([part]) == {part: 0}
    assert reader.end_offsets([part]) == {part: len(RECORDS)}
