"""Clusters of real broker processes over a real ZooKeeper, with real clients, under faults."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from millstream_harness.cluster import STABLE, ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, QUICK, Writer, create, holds
from millstream_harness.disk import dying_disk
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol import (
    delete_records,
    metadata,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers that a test kills and restarts: sessions outlast `Writer.write`, so the end of a process shows."""
    with ClusterProcesses(tmp_path, config=STABLE, zookeeper=shared_zookeeper) as cluster:
        yield cluster


def test_a_leader_is_killed_and_comes_back(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(2000)
    leader = cluster.leader("t")
    leader.kill()
    writer.write(2000)
    cluster.await_in_sync("t", 2)
    assert cluster.leader("t") is not leader
    leader.start()
    writer.write(2000)
    cluster.await_in_sync("t", 3)
    holds(cluster, writer)


def test_the_controller_is_killed(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    writer = Writer(cluster, "t")
    writer.write(500)
    controller = cluster.controller()
    cluster.brokers[controller].kill()
    until(lambda: cluster.controller() != controller, "another broker is the controller")
    writer.write(500)
    create(cluster, "after", replicas=2)
    cluster.brokers[controller].start()
    cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_broker_that_no_controller_has_told_yet_calls_no_topic_unknown(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """It listens before it knows the cluster; requests wait meanwhile."""
    config = {"zookeeper.session.timeout.ms": "8000"}
    with ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "known", 1, 2)
        controller = cluster.controller()
        restarted = next(one for number, one in cluster.brokers.items() if number != controller)
        restarted.stop()
        cluster.brokers[controller].pause()
        restarted.launch(restarted.command)
        bootstrap = restarted.config["listeners"].split("://")[1]
        until(lambda: connects(bootstrap), "the broker listens")
        with Wire(bootstrap) as wire:
            asked = [metadata.MetadataRequestTopic(name="known")]
            answer = wire.call(metadata.API, 12, metadata.MetadataRequest(asked, False))
        assert [ErrorCode.of(topic.error_code) for topic in answer.topics] == [ErrorCode.NONE]
        assert len(answer.topics[0].partitions) == 1


def connects(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_all_brokers_are_killed_at_once(cluster: ClusterProcesses) -> None:
    create(cluster, "t")
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(3000)
    for one in cluster.brokers.values():
        one.kill()
    cluster.start()
    writer.write(1000)
    cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_broker_that_lost_its_disk_leads_nothing_before_it_has_everything(
    cluster: ClusterProcesses,
) -> None:
    create(cluster, "t", 3)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(2000)
    for number, one in list(cluster.brokers.items())[:2]:
        one.kill()
        shutil.rmtree(one.data)
        one.start()
        assert f"broker.id={number} listeners" in one.said()
        writer.write(500)
        cluster.await_in_sync("t")
    holds(cluster, writer)


def test_a_copy_begins_with_the_batch_in_which_the_log_starts(cluster: ClusterProcesses) -> None:
    """DeleteRecords may end within a batch: an empty replica gets the whole batch."""
    create(cluster, "t", 1)
    cluster.await_in_sync("t")
    leader = cluster.leader("t")
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("t", [record("a"), record("b"), record("c")], acks=-1).error_code == 0
        topics = [delete_records.DeleteRecordsTopic("t", [delete_records.DeleteRecordsPartition(0, 1)])]
        answer = wire.call(delete_records.API, 2, delete_records.DeleteRecordsRequest(topics, 10_000))
        assert answer.topics[0].partitions[0].low_watermark == 1
    follower = next(one for one in cluster.brokers.values() if one is not leader)
    follower.kill()
    shutil.rmtree(follower.data)
    follower.start()
    cluster.await_in_sync("t")
    number = next(number for number, one in cluster.brokers.items() if one is follower)
    leads(cluster, "t", number)
    with Wire(follower.bootstrap) as wire:
        fetched = eventually(
            lambda: wire.fetch("t", 1), lambda found: found.high_watermark == 3, "its high watermark is known"
        )
        assert (fetched.error_code, fetched.log_start_offset) == (0, 1)
        assert wire.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def leads(cluster: ClusterProcesses, topic: str, broker: int) -> None:
    """Stop the others one after the other until this broker leads."""
    for number, one in cluster.brokers.items():
        if number != broker and cluster.partitions(topic)[0].leader_id != broker:
            one.stop()
            until(lambda: cluster.partitions(topic)[0].leader_id > 0, "somebody leads")
    until(lambda: cluster.partitions(topic)[0].leader_id == broker, f"broker {broker} leads")


def test_a_disk_dies_and_others_lead_what_was_on_it(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    flush = {"log.flush.interval.messages": "1", "log.flush.offset.checkpoint.interval.ms": "200"}
    cluster = ClusterProcesses(tmp_path, config={**STABLE, **flush}, zookeeper=shared_zookeeper)
    one = cluster.brokers[1]
    with dying_disk(tmp_path / "dying", 32) as disk:
        one.config["log.dirs"] = f"{one.data},{disk.path}"
        with cluster:
            create(cluster, "t", 6)
            cluster.await_in_sync("t")
            writer = Writer(cluster, "t")
            writer.write(500)
            lost = {int(path.name.removeprefix("t-")) for path in disk.path.glob("t-*")}
            assert 0 < len(lost) < 6
            one.pause()
            disk.die()
            one.resume()
            writer.write(1000)

            def is_settled() -> bool:
                return all(
                    partition.leader_id > 0
                    and (1 not in partition.isr_nodes) == (partition.partition_index in lost)
                    for partition in cluster.partitions("t")
                )

            until(is_settled, "others lead what was on the disk, and broker 1 is in sync with the rest")
            writer.write(500)
            holds(cluster, writer)


def test_a_controlled_shutdown_hands_over_first(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 1)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    writer.write(100)
    leader = cluster.leader("t")
    number = next(number for number, one in cluster.brokers.items() if one is leader)
    assert leader.process is not None
    leader.launch_stop()
    while leader.process.poll() is None:
        writer.send(0)
        writer.poll(0.005)
    writer.flush()
    assert leader.wait(10) == 0
    assert not writer.failures
    assert "stopping without moving leadership" not in leader.said()
    assert any(
        f"broker {number} requests a controlled shutdown" in one.said() for one in cluster.brokers.values()
    )
    gaps = [later - earlier for earlier, later in zip(writer.times, writer.times[1:], strict=False)]
    print(f"the longest gap between two acknowledgements was {max(gaps):.2f} s")
    (partition,) = cluster.partitions("t")
    assert len(partition.isr_nodes) == 2
    assert cluster.brokers[partition.leader_id] is not leader
    holds(cluster, writer)


def test_a_rolling_restart_under_load(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 6)
    cluster.await_in_sync("t")
    writer = Writer(cluster, "t")
    for one in cluster.brokers.values():
        writer.write(300)
        one.stop()
        writer.write(300)
        one.start()
        cluster.await_in_sync("t")
    holds(cluster, writer)


def test_all_brokers_stop_at_once(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """The last brokers have no successor, and do not wait: that would take ten minutes."""
    config = {**STABLE, "controlled.shutdown.retry.backoff.ms": "600000"}
    with ClusterProcesses(tmp_path, config=config, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "t", 6)
        cluster.await_in_sync("t")
        for one in cluster.brokers.values():
            one.launch_stop()
        assert [one.wait(60) for one in cluster.brokers.values()] == [0, 0, 0]


def test_a_zombie_leader_acknowledges_nothing(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """Paused past its session, then resumed: it follows, and records that it alone has are dropped."""
    with ClusterProcesses(tmp_path, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "t", 1)
        cluster.await_in_sync("t")
        writer = Writer(cluster, "t")
        writer.write(500)
        zombie = cluster.leader("t")
        number = next(number for number, one in cluster.brokers.items() if one is zombie)
        zombie.pause()
        until(lambda: _leader_seen_by_another(cluster, number) not in (-1, number), "another leads")
        writer.write(500)
        zombie.resume()
        writer.write(500)
        cluster.await_in_sync("t", 3)
        holds(cluster, writer)


def _leader_seen_by_another(cluster: ClusterProcesses, number: int) -> int:
    other = next(one for other, one in cluster.brokers.items() if other != number)
    return next((one.leader_id for one in cluster.partitions("t", of=other)), -1)


def test_a_group_survives_its_coordinator(cluster: ClusterProcesses) -> None:
    create(cluster, "t", 2)
    writer = Writer(cluster, "t")
    writer.write(1000)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 120_000,
        **QUICK,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    read: list[int] = []

    def read_some(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(read) < count:
            assert time.monotonic() < deadline, f"{len(read)} of {count} are read"
            messages = consumer.consume(count - len(read), 0.2)
            read.extend(int(message.value()) for message in messages if message.error() is None)

    try:
        read_some(400)
        consumer.commit(asynchronous=False)
        assert _committed(consumer) == 400
        cluster.await_in_sync("__consumer_offsets")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        coordinator = admin.describe_consumer_groups(["g"])["g"].result(60).coordinator.id
        cluster.brokers[coordinator].kill()
        read_some(900)
        _commit(consumer)
        writer.write(100)
        read_some(1100)
        _commit(consumer)
        cluster.brokers[coordinator].start()
        cluster.await_in_sync("__consumer_offsets")
        assert _committed(consumer) == 1100
    finally:
        consumer.close()
    assert sorted(read) == list(range(1100))


def _committed(consumer: Consumer) -> int:
    """Committed offsets of all partitions together; an offset below 0 means none."""
    return sum(max(one.offset, 0) for one in consumer.committed(consumer.assignment(), 60))


def _commit(consumer: Consumer) -> None:
    """Commit as an application does: retry while there is no coordinator."""
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.1)
