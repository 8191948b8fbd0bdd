"""__consumer_offsets that was made when one broker ran gets its replicas later: no position depends on one disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import QUICK, create
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


def group(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, **QUICK})


def test_positions_survive_the_disk_of_the_first_broker(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    cluster = ClusterProcesses(tmp_path, 3, {"min.insync.replicas": "1"}, zookeeper=shared_zookeeper)
    try:
        first = cluster.brokers[1].start()
        create(cluster, "t", partitions=1, replicas=1)
        consumer = group(first.bootstrap)
        consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        consumer.close()
        assert "__consumer_offsets: created with 1 of 3 replicas" in first.said()
        for number in (2, 3):
            cluster.brokers[number].start()
        cluster.await_in_sync(OFFSETS_TOPIC, 3)
        until(lambda: "__consumer_offsets: 4 partitions get 3 replicas" in first.said(), "it says so")
        first.kill()
        shutil.rmtree(first.data)
        cluster.await_in_sync(OFFSETS_TOPIC, 2)
        consumer = group(cluster.bootstrap)
        assert [one.offset for one in consumer.committed([TopicPartition("t", 0)], 30)] == [7]
        consumer.close()
    finally:
        cluster.kill()
