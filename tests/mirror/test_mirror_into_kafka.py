"""Two Millstream clusters into one Apache Kafka, under load, while workers and Kafka itself are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kafka import KafkaProcess
from millstream_harness.ledger import Load
from millstream_harness.mirror import (
    MirrorProcess,
    Peer,
    arrived,
    create,
    delete,
    numbers,
    produce,
    read_batches,
)
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import Record, read_records

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
PARTITIONS = 4
LOAD: dict[str, Any] = {"partitions": range(PARTITIONS), "pause_s": 0.02, "config": {"linger.ms": "50"}}
"""Several records in a batch: Kafka takes each batch in a request of its own, so many more would take long."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    config = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}
    with KafkaProcess(tmp_path_factory.mktemp("kafka"), config).keep_port() as broker:
        yield broker


def records_of(broker: Peer, topic: str, partition: int) -> list[Record]:
    """Without their offsets, which are Kafka's own."""
    return [
        record._replace(offset=-1)
        for batch in asyncio.run(read_batches(broker.bootstrap, topic, partition))
        for record in read_records(batch)
    ]


def moves_on(*mirrors: MirrorProcess) -> None:
    """Wait until each worker has written more."""
    for mirror in mirrors:
        wanted = mirror.records() + 100
        eventually(mirror.records, lambda now, at=wanted: now >= at, "records written", 90)


def test_log_append_time_of_source_arrives_in_kafka(
    west: InProcessBroker, kafka: KafkaProcess, start_mirror: StartMirror
) -> None:
    topic = unique("append-time")
    create(west, topic, message_timestamp_type="LogAppendTime")
    produce(west, topic, range(100), compression_type="lz4")
    start_mirror({"west": west.bootstrap}, kafka.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(kafka, topic, [100])
    assert records_of(kafka, topic, 0) == records_of(west, topic, 0)


def test_recreated_topic_in_kafka_gets_every_record(
    west: InProcessBroker, kafka: KafkaProcess, start_mirror: StartMirror
) -> None:
    """Also that of an idle mirror: only the new topic's id tells that its records are gone."""
    topic = unique("again")
    create(west, topic)
    produce(west, topic, range(100))
    start_mirror({"west": west.bootstrap}, kafka.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(kafka, topic, [100])
    delete(kafka, topic)
    arrived(kafka, topic, [100])
    produce(west, topic, range(100, 150))
    arrived(kafka, topic, [150])
    assert numbers(kafka, topic) == [*range(150)]


@pytest.mark.timeout(400)
def test_kills_of_workers_and_kafka_repeat_no_record(
    west: InProcessBroker,
    north: InProcessBroker,
    kafka: KafkaProcess,
    start_mirror: StartMirror,
) -> None:
    topic = unique("into")
    sources = {"west": west, "north": north}
    for source in sources.values():
        create(source, topic, PARTITIONS)
    first, second = (
        start_mirror(
            {name: source.bootstrap for name, source in sources.items()},
            kafka.bootstrap,
            topics={"include": [topic]},
            naming="Prefixed",
            name=topic,
        )
        for _ in range(2)
    )
    partitions = range(PARTITIONS)
    with (
        Load(west.bootstrap, topic, name="west", **LOAD) as one,
        Load(north.bootstrap, topic, name="north", **LOAD) as other,
    ):
        moves_on(first, second)
        for _ in range(2):
            first.kill()
            moves_on(second)
            first.start()
            moves_on(first)
            kafka.kill()
            kafka.start()
            moves_on(first, second)
        first.kill()
        second.kill()
        kafka.kill()
        kafka.start()
        first.start()
        moves_on(first)
    assert not one.ledger.failed
    assert not other.ledger.failed
    for name, source in sources.items():
        wanted = [records_of(source, topic, partition) for partition in partitions]
        arrived(kafka, f"{name}.{topic}", [len(each) for each in wanted], 120)
        assert [records_of(kafka, f"{name}.{topic}", partition) for partition in partitions] == wanted
    metrics = first.get("/metrics")
    assert all(f'renumbered_partitions_total{{source="{name}"}} 0' in metrics for name in sources)
