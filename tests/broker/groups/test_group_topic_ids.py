"""Positions and recreated topics in a cluster: no consumer skips a record of the new topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import STABLE, until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.wire import Wire
from millstream_kafka.protocol import find_coordinator, offset_fetch
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.soak

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}
RECORDS = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, config=STABLE) as cluster:
        yield cluster


def coordinator(cluster: InProcessCluster, group: str) -> int:
    asked = find_coordinator.FindCoordinatorRequest(group, 0, [group])
    found = -1

    def is_found() -> bool:
        nonlocal found
        for one in cluster.brokers.values():
            if one.is_running:
                with Wire(one.bootstrap) as wire:
                    answer = wire.call(find_coordinator.API, 3, asked)
                found = answer.node_id
                return answer.error_code == 0
        return False

    until(is_found, f"{group} has a coordinator")
    return found


class Scene:
    """A topic without a replica on the group's coordinator, which is not the controller."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUICK})
        controller = cluster.controller()
        self.group = next(
            group for group in map("g{}".format, range(50)) if coordinator(cluster, group) != controller
        )
        cluster.await_in_sync("__consumer_offsets")
        self.coordinator = coordinator(cluster, self.group)
        self.others = [number for number in cluster.brokers if number != self.coordinator]

    def create(self) -> None:
        """Create the topic as soon as its predecessor is gone."""

        def is_created() -> bool:
            topic = NewTopic("t", 1, replica_assignment=[self.others])
            failed = self.admin.create_topics([topic])["t"].exception(30)
            if failed is not None:
                assert isinstance(failed, KafkaException)
                assert failed.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, failed
            return failed is None

        until(is_created, "the topic is created")

    def delete(self) -> None:
        self.admin.delete_topics(["t"])["t"].result(30)

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", **QUICK})
        for value in range(RECORDS):
            producer.produce("t", str(value))
        assert producer.flush(60) == 0

    def read(self, count: int) -> list[int]:
        """The first ``count`` records that a new group member gets; commits the position after them."""
        settings = {
            "bootstrap.servers": self.cluster.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUICK,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["t"])
        try:
            values: list[int] = []
            deadline = time.monotonic() + 60
            while len(values) < count:
                assert time.monotonic() < deadline, f"{len(values)} of {count} came: {values[:3]} …"
                messages = consumer.consume(count - len(values), 0.2)
                values += [int(one.value()) for one in messages if one.error() is None]
            consumer.commit(asynchronous=False)
            return values
        finally:
            consumer.close()

    def committed(self) -> int:
        """The group's position, according to its coordinator."""
        wanted = offset_fetch.OffsetFetchRequestGroup(
            self.group, topics=[offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=[0])]
        )
        while True:
            one = self.cluster.brokers[coordinator(self.cluster, self.group)]
            with Wire(one.bootstrap) as wire:
                request = offset_fetch.OffsetFetchRequest(groups=[wanted])
                found = wire.call(offset_fetch.API, 8, request).groups[0]
            if not found.error_code:
                return found.topics[0].partitions[0].committed_offset
            assert ErrorCode.of(found.error_code).retriable
            time.sleep(0.02)

    def play_first(self) -> None:
        self.create()
        self.write()
        assert self.read(60) == list(range(60))
        assert self.committed() == 60

    def play_successor(self) -> None:
        self.write()
        assert self.read(RECORDS) == list(range(RECORDS))
        assert self.committed() == RECORDS


def test_a_coordinator_without_a_replica_forgets_the_positions_of_a_deleted_topic(
    cluster: InProcessCluster,
) -> None:
    scene = Scene(cluster)
    scene.play_first()
    scene.delete()
    until(lambda: scene.committed() == -1, "the coordinator forgets the position")
    scene.create()
    scene.play_successor()


def test_a_topic_made_anew_while_its_groups_coordinator_is_dead(cluster: InProcessCluster) -> None:
    """Neither its successor nor the old coordinator, once back, restores the old position."""
    scene = Scene(cluster)
    scene.play_first()
    dead: InProcessBroker = cluster.brokers[scene.coordinator]
    dead.kill()
    scene.delete()
    scene.create()
    scene.play_successor()
    dead.start()
    cluster.await_in_sync("__consumer_offsets")
    assert scene.committed() == RECORDS


def test_a_coordinator_that_was_away_does_not_serve_what_it_last_knew(cluster: InProcessCluster) -> None:
    """Every broker that might have seen the deletion restarts: only the record names the position's topic."""
    scene = Scene(cluster)
    scene.play_first()
    cluster.brokers[scene.coordinator].kill()
    scene.delete()
    scene.create()
    for one in cluster.brokers.values():
        one.kill()
    cluster.start()
    cluster.await_in_sync("__consumer_offsets")
    assert scene.committed() == -1
    scene.play_successor()
