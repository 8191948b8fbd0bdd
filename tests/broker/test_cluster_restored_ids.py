"""A real broker whose ZooKeeper is restored from an older copy: producer ids are given out once."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.cluster_load import Writer, create, read_all
from millstream_harness.restored_zookeeper import copy, restore
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak


def test_records_of_a_new_producer_are_no_repetitions_of_an_earlier_ones(tmp_path: Path) -> None:
    """The earlier one got its id after the copy. Both send one batch, with the same sequence numbers."""
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper").start()
    try:
        with ClusterProcesses(tmp_path, 1, zookeeper=zookeeper) as cluster:
            create(cluster, "t", partitions=1, replicas=1)
            copied = copy(zookeeper)
            Writer(cluster, "t").write(10)
            cluster.brokers[1].stop(20)
            restore(zookeeper, copied)
            cluster.brokers[1].start()
            Writer(cluster, "t").write(10)
            assert read_all(cluster, "t") == [*range(10), *range(10)]
    finally:
        zookeeper.kill()
