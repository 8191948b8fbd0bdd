"""Real brokers whose ZooKeeper is restored from a copy that is seconds old; all brokers were killed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer, holds
from millstream_harness.restored_zookeeper import copy, restore
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

NO_RISE = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
"""Generations of log directories do not rise between the copy and the kills."""


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    yield server
    server.kill()


@pytest.mark.parametrize("first", ["the stale one", "the others"])
def test_a_copy_that_is_seconds_old_costs_no_record(
    zookeeper: ZooKeeperProcess, tmp_path: Path, first: str
) -> None:
    """In the copy, broker 3 is in the ISR; it was killed before the last records, of which its disk knows nothing."""
    with ClusterProcesses(tmp_path, zookeeper=zookeeper, config=NO_RISE) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        admin.create_topics([NewTopic("kept", 1, replica_assignment=[[1, 3, 2]])])["kept"].result(30)
        cluster.await_in_sync("kept")
        writer = Writer(cluster, "kept")
        writer.write(100)
        copied = copy(zookeeper)
        cluster.await_in_sync("kept")
        stale = cluster.brokers[3]
        stale.kill()
        cluster.await_in_sync("kept", 2)
        writer.write(100)
        others = [cluster.brokers[1], cluster.brokers[2]]
        for one in others:
            one.pause()
        for one in others:
            one.kill()
        restore(zookeeper, copied)
        starts = [stale, *others] if first == "the stale one" else [*others, stale]
        starts[0].start()
        if first == "the stale one":
            until(lambda: cluster.partitions("kept", stale)[0].leader_id == 3, "the stale one leads")
        for one in starts[1:]:
            one.start()
        cluster.await_in_sync("kept")
        assert any("was restored from an older copy" in one.said() for one in others)
        holds(cluster, writer)
        writer.write(50)
        holds(cluster, writer)
