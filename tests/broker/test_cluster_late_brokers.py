"""Real brokers whose ZooKeeper is restored while the brokers that know better are down: two histories, and no loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer, read_all
from millstream_harness.restored_zookeeper import restore
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import iter_batches, read_records

pytestmark = pytest.mark.soak

NO_RISE = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
"""Generations of log directories do not rise between the copy and the kill."""


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    yield server
    server.kill()


def test_a_broker_that_leads_before_better_informed_ones_return_costs_no_record(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Broker 1 knows nothing newer than the copy. Since then broker 3 has led, in the epoch after that of the copy.

    Once all are back, one of the two histories is served, and the other one is kept as a stray.
    """
    with ClusterProcesses(tmp_path, zookeeper=zookeeper, config=NO_RISE) as cluster:
        first, second, third = (cluster.brokers[number] for number in (1, 2, 3))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        new = NewTopic("kept", 1, replica_assignment=[[2, 3, 1]], config={"min.insync.replicas": "1"})
        admin.create_topics([new])["kept"].result(30)
        cluster.await_in_sync("kept")
        writer = Writer(cluster, "kept")
        writer.write(100)
        copied = copy_and_kill(zookeeper, first)
        cluster.await_in_sync("kept", 2)
        second.kill()
        cluster.await_in_sync("kept", 1)
        writer.write(100)
        third.kill()
        restore(zookeeper, copied)
        first.start()
        until(lambda: cluster.partitions("kept", first)[0].leader_id == 1, "the early broker leads")
        later = Writer(cluster, "kept")
        later.sent = 1000
        for _ in range(150):
            later.send()
        later.flush()
        assert len(later.acknowledged) == 150
        for one in (second, third):
            one.start()
        cluster.await_in_sync("kept")
        assert all("was restored from an older copy" in one.said() for one in (second, third))
        served = read_all(cluster, "kept")
        assert len(served) == len(set(served))
        kept = {number for one in cluster.brokers.values() for number in in_strays(one)}
        for number in sorted(writer.acknowledged | later.acknowledged):
            assert number in served or number in kept, f"{number} is lost"
        writer = Writer(cluster, "kept")
        writer.sent = 2000
        writer.send()
        writer.flush()
        assert writer.acknowledged <= set(read_all(cluster, "kept"))


def copy_and_kill(zookeeper: ZooKeeperProcess, broker: BrokerProcess) -> Path:
    """A copy of ZooKeeper's data, after which this broker sees nothing."""
    zookeeper.stop(20)
    copied = zookeeper.folder / "copy"
    shutil.copytree(zookeeper.data, copied)
    broker.kill()
    zookeeper.start()
    return copied


def in_strays(broker: BrokerProcess) -> list[int]:
    """The numbers in the broker's strays of the topic."""
    found = []
    for path in broker.data.glob("kept-0.*-stray/*.log"):
        segment = path.read_bytes()
        for position, header in iter_batches(segment):
            found += [
                int(record.value or b"")
                for record in read_records(segment[position : position + header.size])
            ]
    return found
