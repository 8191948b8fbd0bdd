"""Brokers restored from older copies of their disks, over a real ZooKeeper: none leads if another replica has more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer, holds, read_all
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

PERIOD = {"replica.high.watermark.checkpoint.interval.ms": "200"}


@pytest.fixture
def cluster(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers; topic t has a partition that broker 1 leads."""
    with ClusterProcesses(tmp_path, config=PERIOD, zookeeper=shared_zookeeper) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result(60)
        cluster.await_in_sync("t")
        yield cluster


def copy(broker: BrokerProcess) -> Path:
    """Copy its log directory, as a snapshot would; a running broker is paused meanwhile."""
    target = broker.folder / "copy"
    if broker.process is not None:
        broker.pause()
    shutil.copytree(broker.data, target)
    if broker.process is not None:
        broker.resume()
    return target


def restore(broker: BrokerProcess, copied: Path) -> None:
    shutil.rmtree(broker.data)
    shutil.copytree(copied, broker.data)


def generation(data: Path) -> int:
    return int((data / ".generation").read_text())


def outlive(writer: Writer, broker: BrokerProcess, copied: Path) -> None:
    """Write until ZooKeeper has a later generation than the copy's."""

    def has_risen() -> bool:
        writer.write(10)
        return generation(broker.data) >= generation(copied) + 2

    until(has_risen, "generations rise while logs grow")


def kill_all(cluster: ClusterProcesses) -> None:
    """Kill all at once, so that no broker notices the end of another."""
    for one in cluster.brokers.values():
        one.pause()
    for one in cluster.brokers.values():
        one.kill()


def start_alone(cluster: ClusterProcesses, number: int) -> None:
    """Start that broker alone, and wait until it has left the ISR; it then leads nothing."""
    one = cluster.brokers[number]
    one.start()

    def is_out() -> bool:
        partitions = cluster.partitions("t", one)
        assert all(each.leader_id != number for each in partitions), "the older copy leads"
        return bool(partitions) and all(number not in each.isr_nodes for each in partitions)

    until(is_out, f"broker {number} has left the ISR")


def start_others(cluster: ClusterProcesses) -> None:
    for one in cluster.brokers.values():
        if one.process is None:
            one.start()
    cluster.await_in_sync("t")


def test_a_copy_of_before_is_restored_after_all_were_killed(cluster: ClusterProcesses) -> None:
    writer = Writer(cluster, "t")
    writer.write(500)
    one = cluster.brokers[1]
    one.stop()
    copied = copy(one)
    one.start()
    cluster.await_in_sync("t")
    writer.write(500)
    kill_all(cluster)
    restore(one, copied)
    start_alone(cluster, 1)
    assert f"{one.data} is an older copy" in one.said()
    start_others(cluster)
    writer.write(100)
    holds(cluster, writer)


def test_a_copy_of_a_running_broker_is_restored_after_a_clean_stop(cluster: ClusterProcesses) -> None:
    """Broker 1 is the last in the ISR; broker 2, which left it below the minimum, has every acknowledged record."""
    writer = Writer(cluster, "t")
    writer.write(500)
    one = cluster.brokers[1]
    copied = copy(one)
    writer.write(500)
    for number in (3, 2, 1):
        cluster.brokers[number].stop()
    restore(one, copied)
    start_alone(cluster, 1)
    start_others(cluster)
    writer.write(100)
    holds(cluster, writer)


def test_a_copy_of_a_leader_is_restored_while_others_go_on(cluster: ClusterProcesses) -> None:
    writer = Writer(cluster, "t")
    writer.write(500)
    one = cluster.brokers[1]
    copied = copy(one)
    outlive(writer, one, copied)
    one.kill()
    restore(one, copied)
    writer.write(500)
    one.start()
    cluster.await_in_sync("t")
    assert "is an older copy" in one.said()
    holds(cluster, writer)


def test_of_copies_the_most_complete_one_leads(cluster: ClusterProcesses) -> None:
    """All three disks are older copies. The last to start has the fewest records, and must not lead."""
    writer = Writer(cluster, "t")
    copies = {}
    for number in (3, 1, 2):
        writer.write(300)
        copies[number] = copy(cluster.brokers[number])
    for one in cluster.brokers.values():
        outlive(writer, one, copies[2])
    written = writer.sent
    kill_all(cluster)
    for number, one in cluster.brokers.items():
        restore(one, copies[number])
    for number in (1, 2, 3):
        cluster.brokers[number].start()
    cluster.await_in_sync("t")
    assert cluster.leader("t") is cluster.brokers[2]
    numbers = read_all(cluster, "t")
    assert 900 <= len(numbers) < written
    assert numbers == list(range(len(numbers)))
    Writer(cluster, "t").write(100)
