"""MirrorMaker 2 copies into Millstream, from another Millstream cluster and from Apache Kafka.

Records, configuration, partitions and positions of groups arrive, and MirrorMaker 2 continues after it was killed. Its
own state (positions of its connectors, offset-syncs, checkpoints) lives in topics of both clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import java_command, run
from millstream_harness.kafka import KafkaProcess
from millstream_harness.mirror import Peer, admin, create, produce, read_batches
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.mirrormaker2 import MirrorMaker2Process
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import read_records

CONFIG = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}
CHECKPOINTS = Path(__file__).parent / "java" / "Checkpoints.java"
ARRIVAL_S = 120.0

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
]


@dataclass(frozen=True, slots=True)
class Mirrored:
    source: Peer
    target: BrokerProcess
    mirror: MirrorMaker2Process


@pytest.fixture(scope="module", params=["millstream", "kafka"])
def mirrored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    folder = tmp_path_factory.mktemp(f"from-{request.param}")
    kind = KafkaProcess if request.param == "kafka" else BrokerProcess
    with ExitStack() as opened:
        source = opened.enter_context(kind(folder / "source", CONFIG))
        target = opened.enter_context(BrokerProcess(folder / "target", CONFIG))
        mirror = MirrorMaker2Process(
            folder / "mirror",
            source.bootstrap,
            target.bootstrap,
            {
                "source->target.topics": "mirrored-.*",
                "source->target.groups": "app-.*",
                "scheduled.rebalance.max.delay.ms": "0",  # a lost worker's tasks restart at once
                "offset.lag.max": "0",  # an offset-sync for each batch, so that positions at the end are exact
            },
        )
        yield Mirrored(source, target, opened.enter_context(mirror))


def seen(broker: Peer, topic: str, partition: int) -> list[tuple[object, ...]]:
    """A consumer's view of each record, except its offset."""
    batches = asyncio.run(read_batches(broker.bootstrap, topic, partition))
    return [
        (record.key, record.value, record.timestamp, tuple(record.headers))
        for batch in batches
        for record in read_records(batch)
    ]


def partitions(broker: Peer, topic: str) -> int:
    found = admin(broker).list_topics(timeout=10).topics.get(topic)
    return len(found.partitions) if found else 0


def ends(broker: Peer, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "log_level": 0})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
            for number in range(partitions(broker, topic))
        ]
    except KafkaException:  # the topic is being created
        return []
    finally:
        consumer.close()


def arrived(broker: Peer, topic: str, count: int) -> None:
    """Wait until each of two partitions has at least this many records."""
    eventually(
        lambda: ends(broker, topic),
        lambda now: len(now) == 2 and min(now) >= count,
        f"records of {topic}",
        ARRIVAL_S,
    )


def setting(broker: Peer, topic: str, key: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    value: str | None = admin(broker).describe_configs([resource])[resource].result(20)[key].value
    return value


def set_config(broker: Peer, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin(broker).incremental_alter_configs([resource])[resource].result(20)


def consumer(broker: Peer, group: str, topic: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",  # every partition must have a position
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    made.subscribe([topic])
    return made


def read(reading: Consumer, count: int) -> list[bytes]:
    """Read this many values, or more."""
    found: list[bytes] = []

    def more() -> list[bytes]:
        messages = reading.consume(100, timeout=0.5)
        assert not [message.error() for message in messages if message.error()]
        found.extend(message.value() or b"" for message in messages)
        return found

    return eventually(more, lambda got: len(got) >= count, "records read", ARRIVAL_S)


def values(numbers: range) -> list[bytes]:
    return [b"value-%d" % number for number in numbers]


def test_records_arrive_as_they_are_and_it_goes_on_after_a_kill(mirrored: Mirrored) -> None:
    topic = unique("mirrored")
    create(mirrored.source, topic, 2)
    produce(mirrored.source, topic, range(400), 2, compression_type="lz4", batch_num_messages=7)
    produce(mirrored.source, topic, range(400, 800), 2, compression_type="zstd")
    arrived(mirrored.target, topic, 400)
    for number in range(2):
        assert seen(mirrored.target, topic, number) == seen(mirrored.source, topic, number)

    mirrored.mirror.kill()
    produce(mirrored.source, topic, range(800, 1000), 2)
    mirrored.mirror.start()
    arrived(mirrored.target, topic, 500)
    for number in range(2):  # it may repeat records, but not leave any out
        here = seen(mirrored.source, topic, number)
        there = eventually(
            lambda number=number: seen(mirrored.target, topic, number),
            lambda now, last=here[-1]: last in now,  # it may follow repeated ones
            "the last record",
            ARRIVAL_S,
        )
        assert list(dict.fromkeys(there)) == here


def test_configuration_and_partitions_follow(mirrored: Mirrored) -> None:
    topic = unique("mirrored")
    create(mirrored.source, topic, 2, retention_ms="86400000000", cleanup_policy="compact")
    eventually(lambda: partitions(mirrored.target, topic), lambda now: now == 2, "the topic", ARRIVAL_S)
    for key, value in (("retention.ms", "86400000000"), ("cleanup.policy", "compact")):
        eventually(
            lambda key=key: setting(mirrored.target, topic, key),
            lambda now, v=value: now == v,
            key,
            ARRIVAL_S,
        )
    set_config(mirrored.source, topic, "retention.ms", "172800000")
    eventually(
        lambda: setting(mirrored.target, topic, "retention.ms"),
        lambda now: now == "172800000",
        "a change",
        ARRIVAL_S,
    )
    admin(mirrored.source).create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    eventually(lambda: partitions(mirrored.target, topic), lambda now: now == 5, "partitions", ARRIVAL_S)


def test_a_group_that_moves_skips_no_record(mirrored: Mirrored) -> None:
    topic, group = unique("mirrored"), unique("app")
    create(mirrored.source, topic, 2)
    produce(mirrored.source, topic, range(1000), 2, batch_num_messages=10)
    commit(mirrored.source, group, topic, 0, 0)
    here = consumer(mirrored.source, group, topic)
    assert sorted(read(here, 1000)) == sorted(values(range(1000)))
    here.commit(asynchronous=False)
    here.close()
    follows(mirrored.target, group, topic, 500, 500, seconds=ARRIVAL_S)
    found = run(java_command(str(CHECKPOINTS), mirrored.target.bootstrap, group)).stdout.splitlines()
    assert sorted(found) == [f"{topic} 0 500", f"{topic} 1 500"]
    assert sum(ends(mirrored.source, "mm2-offset-syncs.target.internal")) > 0

    produce(mirrored.source, topic, range(1000, 1400), 2, batch_num_messages=10)
    arrived(mirrored.target, topic, 700)
    there = consumer(mirrored.target, group, topic)
    assert sorted(read(there, 400)) == sorted(values(range(1000, 1400)))
    there.close()
