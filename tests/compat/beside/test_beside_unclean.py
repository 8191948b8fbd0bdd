"""A partition whose only complete replica is gone, and `unclean.leader.election.enable`, in clusters of three brokers.

The setting lets any live replica lead. Ours elects one as soon as it changes. Kafka's controller elects nobody then: it
searches for such partitions every five minutes (`unclean.leader.election.interval.ms`), or the tool asks it to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream_harness.broker import AnyBroker
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.metadata import MetadataResponse, MetadataResponsePartition

pytestmark = [pytest.mark.soak, pytest.mark.once, pytest.mark.timeout(300)]
NOBODY = -1
CONFIG = {"min.insync.replicas": "1", "replica.lag.time.max.ms": "3000"}
KAFKA_CONFIG = CONFIG | {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "unclean.leader.election.interval.ms": "86400000",
}


class Side:
    """A cluster, seen by way of its broker 1, which stays."""

    def __init__(self, brokers: Mapping[int, AnyBroker | KafkaProcess]) -> None:
        self.brokers = brokers

    def admin(self) -> AdminClient:
        """A new one, which knows of no broker that was killed."""
        return AdminClient({"bootstrap.servers": self.brokers[1].bootstrap})

    def create(self, topic: str, *replicas: int) -> None:
        admin = self.admin()
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)])])[topic].result(30)
        until(lambda: self.leader(topic) == replicas[0], f"{topic} is led")

    def _partition(self, topic: str) -> MetadataResponsePartition | None:
        """None while broker 1 does not know the topic."""

        async def ask() -> MetadataResponse:
            async with ClusterClient(self.brokers[1].bootstrap, "test", timeout=20.0) as client:
                return await client.metadata([topic])

        (found,) = asyncio.run(ask()).topics
        return found.partitions[0] if found.partitions else None

    def leader(self, topic: str) -> int:
        """-1 while nobody leads."""
        found = self._partition(topic)
        return found.leader_id if found is not None else NOBODY

    def in_sync(self, topic: str) -> list[int]:
        found = self._partition(topic)
        return sorted(found.isr_nodes) if found is not None else []

    def lose(self, topic: str) -> None:
        """Brokers 2 and 3 have the topic's replicas. 3 misses a record and comes back; 2, which has it, does not."""
        self.create(topic, 2, 3)
        until(lambda: self.in_sync(topic) == [2, 3], f"both replicas of {topic} are in sync")
        self.brokers[3].kill()
        until(lambda: self.in_sync(topic) == [2], "broker 3 leaves the ISR")
        producer = Producer({"bootstrap.servers": self.brokers[1].bootstrap, "acks": "all"})
        producer.produce(topic, b"acknowledged")
        assert producer.flush(60) == 0
        self.brokers[2].kill()
        until(lambda: self.leader(topic) == NOBODY, f"nobody leads {topic}")
        self.brokers[3].start()
        self.create(f"{topic}-barrier", 3)  # the controller has seen that broker 3 is back
        assert self.leader(topic) == NOBODY

    def allow(self, topic: str) -> None:
        entry = ConfigEntry(
            "unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.admin()
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(30)

    def elect(self, topic: str) -> int | None:
        """What the tool gets: the error's code, or None."""
        partition = TopicPartition(topic, 0)
        admin = self.admin()
        (error,) = admin.elect_leaders(ElectionType.UNCLEAN, [partition]).result(60).values()
        return None if error is None else int(error.code())


@pytest.fixture(scope="module")
def ours(shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with ClusterProcesses(tmp_path_factory.mktemp("ours"), 3, CONFIG, zookeeper=shared_zookeeper) as cluster:
        yield Side(cluster.brokers)


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("kafka")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(KafkaProcess(folder / "1", KAFKA_CONFIG))
        brokers = {1: first}
        for number in (2, 3):
            more = KafkaProcess(folder / str(number), KAFKA_CONFIG, number=number, joins=first)
            brokers[number] = stack.enter_context(more.keep_port())
        yield Side(brokers)


def test_allowing_an_unclean_election_elects_at_once_and_in_kafka_nobody(ours: Side, kafka: Side) -> None:
    for side in (ours, kafka):
        side.lose("lost")
        side.allow("lost")
        side.create("lost-later", 3)  # the controller has seen the setting
    until(lambda: ours.leader("lost") == 3, "broker 3 leads")
    assert kafka.leader("lost") == NOBODY
    assert ours.elect("lost") == KafkaError.ELECTION_NOT_NEEDED
    assert kafka.elect("lost") is None
    until(lambda: kafka.leader("lost") == 3, "broker 3 leads in Kafka")
    assert ours.in_sync("lost") == kafka.in_sync("lost") == [3]
