"""Real brokers whose restored ZooKeeper has lost a partition, which is then added again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer
from millstream_harness.cluster_load import create as create_topic
from millstream_harness.restored_zookeeper import copy, restore
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak


def test_a_lost_partition_that_is_added_again_costs_no_record(tmp_path: Path) -> None:
    """The broker that leads it has no log of the lost one; the others keep theirs as strays, and follow."""
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper").start()
    try:
        with ClusterProcesses(tmp_path, zookeeper=zookeeper) as cluster:
            lose_and_add(cluster, zookeeper)
    finally:
        zookeeper.kill()


def lose_and_add(cluster: ClusterProcesses, zookeeper: ZooKeeperProcess) -> None:
    create_topic(cluster, "grown", partitions=1)
    copied = copy(zookeeper)
    cluster.await_in_sync("grown")
    grow(cluster)
    lost = Writer(cluster, "grown")
    for _ in range(100):
        lost.send(1)
    lost.flush()
    assert len(lost.acknowledged) == 100
    stop_all(cluster)
    restore(zookeeper, copied)
    for one in cluster.brokers.values():
        one.start()
    cluster.await_in_sync("grown")
    until(lambda: all(map(strays, cluster.brokers.values())), "the logs of the lost partition are strays")
    first = cluster.brokers[1]
    first.stop(20)
    for path in strays(first):
        shutil.rmtree(path)
    first.start()
    cluster.await_in_sync("grown")
    kept = [size for number in (2, 3) for size in map(bytes_in, strays(cluster.brokers[number]))]
    grow(cluster)
    for _ in range(2):
        cluster.await_in_sync("grown")
        assert [size for number in (2, 3) for size in map(bytes_in, strays(cluster.brokers[number]))] == kept
        stop_all(cluster)
        for one in cluster.brokers.values():
            one.start()
    writer = Writer(cluster, "grown")
    cluster.await_in_sync("grown")
    for _ in range(50):
        writer.send(1)
    writer.flush()
    assert len(writer.acknowledged) == 50


def grow(cluster: ClusterProcesses) -> None:
    """Add partition 1, which broker 1 leads, as Kafka's tools do."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    new = NewPartitions("grown", 2, replica_assignment=[[1, 2, 3]])
    admin.create_partitions([new])["grown"].result(30)
    cluster.await_in_sync("grown")


def strays(broker: BrokerProcess) -> list[Path]:
    return list(broker.data.glob("grown-1.*-stray"))


def bytes_in(stray: Path) -> int:
    """Of its records."""
    return sum(path.stat().st_size for path in stray.glob("*.log"))


def stop_all(cluster: ClusterProcesses) -> None:
    for one in cluster.brokers.values():
        one.stop(20)
