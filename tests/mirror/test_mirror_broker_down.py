"""A topic that is mirrored while a broker of the target is down gets all its replicas when the broker is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import create
from millstream_harness.mirror import MirrorProcess, produce
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


def test_a_copy_waits_for_the_broker(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """The cluster is its own source; another topic has a replica on the broker."""
    with ClusterProcesses(tmp_path, 2, {"min.insync.replicas": "1"}, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "t", partitions=1, replicas=2)
        cluster.await_in_sync("t", 2)
        produce(cluster.brokers[1], "t", range(10))
        cluster.brokers[2].kill()
        until(lambda: len(cluster.metadata(of=cluster.brokers[1]).brokers) == 1, "it is gone")
        worker = MirrorProcess(
            tmp_path / "worker",
            {"west": cluster.bootstrap},
            cluster.bootstrap,
            topics={"include": ["t"]},
            mode="Aggregate",
            naming="Prefixed",
        )
        try:
            worker.start()
            until(lambda: "topic west.t: is not created yet: needs 2 replicas" in worker.said(), "it waits")
            cluster.brokers[2].start()
            cluster.await_in_sync("west.t", 2, timeout=60)
        finally:
            worker.kill()
