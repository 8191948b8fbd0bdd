"""Failing back to a cluster of three brokers while its leaders and the worker are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from millstream_harness import rejoining
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, Peer, admin, arrived, produce, read_batches
from millstream_harness.mirror_groups import commit, committed
from millstream_harness.rejoining import check_set_aside, records_of
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import Record
from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import KEY
from millstream_mirror.config.config import SET_ASIDE_SUFFIX
from millstream_mirror.identity.diverged_records import AS_THEY_ARE, FOREVER

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
]

StartMirror = Callable[..., MirrorProcess]
PARTITIONS = 2
LOST, LATER = 6000, 3000


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """The old source."""
    with InProcessCluster(tmp_path_factory.mktemp("west")) as cluster:
        yield cluster


def promote(cluster: Peer | InProcessCluster, topic: str) -> None:
    entry = ConfigEntry(KEY, "", incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin(cluster).incremental_alter_configs([resource])[resource].result(30)


def stored(broker: InProcessBroker, topic: str, partition: int) -> bytes:
    folder = broker.data / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def fail_over(
    west: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror, topic: str
) -> list[list[Record]]:
    """Fail over; return the records that only west has."""
    admin(west).create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    west.await_in_sync(topic)
    worker = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        name=f"{topic}-out",
        mode="Identity",
        topics={"include": [topic]},
    )
    produce(west, topic, range(200), PARTITIONS, acks="all")
    arrived(east, topic, [100, 100])
    worker.stop()
    produce(west, topic, range(LOST), PARTITIONS, acks="all", batch_num_messages=100, linger_ms=5)
    promote(east, topic)
    produce(east, topic, range(LATER), PARTITIONS, batch_num_messages=100, linger_ms=5)
    lost = [records_of(west, topic, partition)[100:] for partition in range(PARTITIONS)]
    assert [len(one) for one in lost] == [LOST // 2] * 2
    return lost


def make_set_aside(west: InProcessCluster, topic: str) -> None:
    new = NewTopic(topic + SET_ASIDE_SUFFIX, PARTITIONS, 3, config={**FOREVER, **AS_THEY_ARE})
    admin(west).create_topics([new])[new.topic].result(30)
    west.await_in_sync(new.topic)


def all_are_equal(west: InProcessCluster, east: InProcessBroker, topic: str) -> None:
    """Every replica equals the source, byte for byte."""
    for partition in range(PARTITIONS):
        original = stored(east, topic, partition)
        assert original
        for number, broker in west.brokers.items():
            until(
                partial(is_stored, broker, topic, partition, original),
                f"{topic}-{partition} in broker {number} is as in the source",
                60,
            )


def is_stored(broker: InProcessBroker, topic: str, partition: int, original: bytes) -> bool:
    return stored(broker, topic, partition) == original


def replica(topic: str, cluster: InProcessCluster) -> str:
    """The setting; empty while the client waits for a killed broker."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found = admin(cluster).describe_configs([resource], request_timeout=5)[resource].result(30)
    except (KafkaException, TimeoutError):
        return ""
    value: str = found[KEY].value
    return value


def is_rejoined(cluster: InProcessCluster, topic: str) -> None:
    eventually(
        lambda: replica(topic, cluster),
        lambda value: bool(value) and not value.endswith("/rejoin"),
        "it is a replica",
        120,
    )


def test_followers_truncate_with_leader(
    west: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("cut")
    lost = fail_over(west, east, start_mirror, topic)
    away = next(
        one
        for one in west.brokers.values()
        if one is not west.leader(topic) and one is not west.leader(topic, 1)
    )
    make_set_aside(west, topic)  # the worker would wait for all brokers
    away.kill()  # it returns with the old end when the others have the new one
    until(lambda: all(len(one.isr_nodes) == 2 for one in west.partitions(topic)), "it left the ISRs")
    start_mirror(
        {"east": east.bootstrap},
        west.bootstrap,
        name=f"{topic}-back",
        mode="Identity",
        topics={"include": [topic]},
        rejoin={"requestId": "1"},
    )
    is_rejoined(west, topic)
    arrived(west, topic, [100 + LATER // 2] * 2)
    away.start()
    west.await_in_sync(topic)
    all_are_equal(west, east, topic)
    for partition in range(PARTITIONS):
        check_set_aside(west, topic, partition, lost[partition])


@pytest.mark.parametrize("round_", range(2))
def test_kills_during_resync_lose_no_record(
    west: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror, round_: int
) -> None:
    topic = unique("killed")
    lost = fail_over(west, east, start_mirror, topic)
    worker = start_mirror(
        {"east": east.bootstrap},
        west.bootstrap,
        name=f"{topic}-back",
        mode="Identity",
        topics={"include": [topic]},
        rejoin={"requestId": "1"},
    )
    for step in range(4):
        time.sleep(random.uniform(0, 1.5))
        if step % 2:
            worker.kill()
            worker.start()
        else:
            victim = west.leader(topic, step // 2)
            victim.kill()
            time.sleep(random.uniform(0, 0.5))
            victim.start()
            west.await_in_sync(topic, timeout=60)
    is_rejoined(west, topic)
    arrived(west, topic, [100 + LATER // 2] * 2, seconds=90)
    west.await_in_sync(topic)
    all_are_equal(west, east, topic)
    for partition in range(PARTITIONS):
        check_set_aside(west, topic, partition, lost[partition])
    produce(east, topic, range(100), PARTITIONS)
    arrived(west, topic, [150 + LATER // 2] * 2)
    for partition in range(PARTITIONS):
        batches = asyncio.run(read_batches(west.bootstrap, topic, partition))
        assert batches == asyncio.run(read_batches(east.bootstrap, topic, partition))


def test_resync_waits_for_missing_coordinator(
    tmp_path: Path, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("away")
    config = {"offsets.topic.replication.factor": "1", "min.insync.replicas": "1"}
    with InProcessCluster(tmp_path / "west", 2, config) as west:
        admin(west).create_topics([NewTopic(topic, 2, 2)])[topic].result(30)
        west.await_in_sync(topic, 2)
        rejoining.fail_over(start_mirror, west, east, topic)
        stays = coordinator(west, f"millstream-mirror.{topic}-back.other")
        group = next(one for one in map(unique, itertools.repeat("group")) if coordinator(west, one) != stays)
        commit(west, group, topic, 65, 20)
        away = west.brokers[coordinator(west, group)]
        away.kill()
        worker = rejoining.back(start_mirror, west, east, topic)
        rejoining.error_of(
            worker, "in the target has no leader, so the positions of its groups are not known"
        )
        away.start()
        is_rejoined(west, topic)
        assert committed(west, group, topic) == [50, 20]
        arrived(west, topic, [150, 150])
        worker.stop()


def coordinator(cluster: InProcessCluster, group: str) -> int:
    """The id of the group's coordinator."""

    async def ask() -> int:
        async with ClusterClient(cluster.bootstrap) as client:
            return await client.coordinator(group)

    return asyncio.run(ask())
