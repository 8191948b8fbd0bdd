"""The mirror worker with Apache Kafka as the source, transactions included, and as the target."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from millstream_harness.in_process_broker import CopiedInProcessBroker, InProcessBroker
from millstream_harness.kafka import KafkaProcess
from millstream_harness.mirror import MirrorProcess, Peer, admin, arrived, create, produce, read_batches
from millstream_harness.mirror_groups import commit, follows, in_step
from millstream_harness.mirror_groups import values as records
from millstream_harness.scenario import eventually, unique
from millstream_harness.transactional_writer import TransactionalWriter
from millstream_kafka.batch import read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ErrorCode
from millstream_mirror.kafka.group_offsets import Position, positions_of
from millstream_mirror.kafka.group_offsets import commit as commit_positions
from millstream_mirror.kafka.producer_ids import new_producer

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
NEVER_COMMITS = (
    "import sys; from millstream_mirror import main, source; source.COMMIT_S = 900.0;"
    " sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker that commits no progress after that with which it begins."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    with KafkaProcess(
        tmp_path_factory.mktemp("kafka"),
        {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"},
    ) as broker:
        yield broker


async def values(broker: Peer, topic: str) -> list[bytes | None]:
    batches = await read_batches(broker.bootstrap, topic, 0)
    return [record.value for batch in batches for record in read_records(batch)]


async def test_kafka_source_omits_aborted_transactions(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("from-kafka")
    create(kafka, topic)
    produce(kafka, topic, range(1000), compression_type="zstd")
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0, "linger.ms": 0}
    )
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%s-%d" % (b"aborted" if number % 2 else b"committed", number))
        producer.flush(60)
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    produce(kafka, topic, range(1000, 1200))
    mirror = start_mirror({"kafka": kafka.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [1203])
    assert await values(east, topic) == [
        *(b"value-%d" % number for number in range(1000)),
        *(b"committed-%d" % number for number in (0, 2, 4)),
        *(b"value-%d" % number for number in range(1000, 1200)),
    ]
    eventually(mirror.status, lambda status: status["lag"]["records"] == 0, "lag")


async def test_lost_records_between_markers_come_again(
    kafka: KafkaProcess, start_mirror: StartMirror, copied: CopiedInProcessBroker
) -> None:
    """The task has nothing to send, and the source has more offsets than records."""
    topic = unique("lost")
    create(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)

    def write(numbers: range) -> None:
        for number in numbers:
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number)
            producer.commit_transaction(60)

    mirror = start_mirror(
        {"kafka": kafka.bootstrap}, copied.bootstrap, topics={"include": [topic]}, name=topic
    )
    write(range(40))
    arrived(copied, topic, [40])
    copied.copy()
    write(range(40, 100))
    arrived(copied, topic, [100])
    mirror.pause()
    copied.restore()
    copied.start()
    mirror.resume()
    arrived(copied, topic, [100])
    assert await values(copied, topic) == [b"%d" % number for number in range(100)]


async def test_kafka_target_continues_after_kill(
    kafka: KafkaProcess, west: InProcessBroker, start_mirror: StartMirror, tmp_path: Path
) -> None:
    topic = unique("into-kafka")
    create(west, topic, retention_ms="86400000000")
    produce(west, topic, range(5000), batch_num_messages=10)
    mirror = start_mirror({"west": west.bootstrap}, kafka.bootstrap, topics={"include": [topic]}, name=topic)
    eventually(
        lambda: topic in admin(kafka).list_topics(timeout=20).topics,
        lambda there: there,
        "the topic in Kafka",
    )
    mirror.kill()
    mirror.start()
    produce(west, topic, range(5000, 6000), batch_num_messages=10)
    arrived(kafka, topic, [6000])
    assert await values(kafka, topic) == [b"value-%d" % number for number in range(6000)]


async def test_positions_between_transactions_are_exact_after_restart(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("transactions"), unique("app")
    create(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for number in range(30):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, b"%d" % (number * 10 + each))
        producer.commit_transaction(60)
    mirror = start_mirror(
        {"kafka": kafka.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )
    arrived(east, topic, [300])
    source, target = await records(kafka, topic), await records(east, topic)
    assert source[-1][0] == 328, "thirty markers"
    exact = {at: next(to for to in range(301) if in_step(source, target, at, to)) for at in (5, 25, 150, 329)}
    for offset in (329, 150, 5, 25):
        commit(kafka, group, topic, offset)
        follows(east, group, topic, exact[offset])
    mirror.kill()
    mirror.start()
    produce(kafka, topic, range(10))
    arrived(east, topic, [310])
    for offset in (25, 150, 329, 5, 150):
        commit(kafka, group, topic, offset)
        follows(east, group, topic, exact[offset])


async def test_records_deleted_before_commit_come_once(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """The worker is killed before it commits any progress, and markers lie between the records."""
    topic = unique("overtaken")
    create(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)

    def write(numbers: range) -> None:
        for number in numbers:
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number)
            producer.commit_transaction(60)

    config: dict[str, Any] = {"topics": {"include": [topic]}, "name": topic}
    mirror = start_mirror(
        {"kafka": kafka.bootstrap}, east.bootstrap, entering=(sys.executable, "-c", NEVER_COMMITS), **config
    )
    write(range(100))
    arrived(east, topic, [100])
    mirror.kill()
    write(range(100, 120))
    # Of those that were mirrored, the last 20 are left.
    where = TopicPartition(topic, 0, 160)
    admin(kafka).delete_records([where])[where].result(20)
    mirror = start_mirror({"kafka": kafka.bootstrap}, east.bootstrap, **config)
    arrived(east, topic, [120])
    assert await values(east, topic) == [b"%d" % number for number in range(120)]
    assert 'missing_records_total{source="kafka"} 0' in mirror.get("/metrics")


async def test_positions_are_copied_into_kafka(
    kafka: KafkaProcess, west: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("positions"), unique("app")
    create(west, topic)
    create(kafka, topic)
    produce(kafka, topic, range(10_000, 10_037))
    produce(west, topic, range(500), batch_num_messages=10)
    mirror = start_mirror(
        {"west": west.bootstrap},
        kafka.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group]},
        name=topic,
    )
    arrived(kafka, topic, [537])
    commit(west, group, topic, 123)
    follows(kafka, group, topic, 160)
    mirror.kill()
    mirror.start()
    commit(west, group, topic, 321)
    follows(kafka, group, topic, 358)


async def test_kafka_topic_has_replica(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("replica"), unique("app")
    create(kafka, topic, retention_ms="86400000", max_message_bytes="2000000")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(kafka, topic, range(500), compression_type=codec, enable_idempotence=True)
    commit(kafka, group, topic, 1234)
    mirror = start_mirror(
        {"kafka": kafka.bootstrap},
        east.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
        groups={"include": [group]},
    )
    arrived(east, topic, [2500])
    assert await read_batches(east.bootstrap, topic, 0) == await read_batches(kafka.bootstrap, topic, 0)
    follows(east, group, topic, 1234)
    status = eventually(mirror.status, lambda now: now["lag"]["records"] == 0, "lag")
    assert status["sources"][0]["lastError"] == ""
    mirror.stop()
    produce(kafka, topic, range(500))
    mirror.start()
    arrived(east, topic, [3000])
    assert await read_batches(east.bootstrap, topic, 0) == await read_batches(kafka.bootstrap, topic, 0)


async def test_kafka_topic_with_transactions_has_replica(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("transactions")
    create(kafka, topic)
    produce(kafka, topic, range(10))
    writer = TransactionalWriter(kafka.bootstrap, topic)
    for ends in (writer.commit, writer.abort):
        writer.begin(b"v")
        ends()
    writer.begin(b"open")
    mirror = start_mirror(
        {"kafka": kafka.bootstrap}, east.bootstrap, name=topic, mode="Identity", topics={"include": [topic]}
    )
    arrived(east, topic, [15])
    assert await read_batches(east.bootstrap, topic, 0) == await read_batches(kafka.bootstrap, topic, 0)
    writer.commit()
    arrived(east, topic, [16])
    assert await read_batches(east.bootstrap, topic, 0) == await read_batches(kafka.bootstrap, topic, 0)
    assert mirror.status()["sources"][0]["lastError"] == ""


def test_kafka_as_target_of_replicas_is_refused(
    kafka: KafkaProcess, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("no-replica")
    create(east, topic)
    mirror = start_mirror(
        {"east": east.bootstrap}, kafka.bootstrap, name=topic, mode="Identity", topics={"include": [topic]}
    )
    eventually(
        lambda: mirror.status()["sources"][0]["lastError"],
        lambda error: "mode Identity needs a Millstream as the target" in error,
        "the refusal",
    )
    assert topic not in admin(kafka).list_topics(timeout=20).topics


async def test_kafka_grants_thousands_of_producer_ids(kafka: KafkaProcess) -> None:
    async with ClusterClient(kafka.bootstrap) as target:
        found = await asyncio.gather(*(new_producer(target) for _ in range(3000)))
    assert len(set(found)) == 3000


async def test_positions_beyond_one_batch_are_committed(kafka: KafkaProcess) -> None:
    topic, partitions = unique("many-positions"), 400
    create(kafka, topic, partitions)
    positions = {(topic, number): Position(number, "x" * 4000) for number in range(partitions)}
    async with ClusterClient(kafka.bootstrap) as target:
        errors = await commit_positions(target, topic, positions)
        assert errors == dict.fromkeys(positions, ErrorCode.NONE)
        assert await positions_of(target, topic) == positions
