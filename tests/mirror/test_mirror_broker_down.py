"""A broker of the target that is down holds up no topic: it gets its replicas when it is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import create
from millstream_harness.mirror import MirrorProcess, admin, arrived, produce
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


def test_topic_gets_missing_replicas_once_broker_returns(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
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
            arrived(cluster.brokers[1], "west.t", [10])
            assert "1 of 2 replicas run, the others follow when broker 2 is back" in worker.said()
            more = NewPartitions("t", 3, [[1, 2], [1, 2]])
            admin(cluster.brokers[1]).create_partitions([more])["t"].result(30)
            until(
                lambda: "topic west.t: now has 3 partitions: 1 of 2 replicas run" in worker.said(), "it grows"
            )
            cluster.brokers[2].start()
            cluster.await_in_sync("west.t", 2, timeout=60)
        finally:
            worker.kill()
