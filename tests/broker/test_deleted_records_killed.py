"""DeleteRecords survives kill -9: a response means that no replica has the records after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream_broker.log import checkpoints
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.cluster_load import create
from millstream_harness.wire import Wire
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol import list_offsets
from millstream_kafka.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = pytest.mark.process

EARLIEST = -2


def produce(bootstrap: str, count: int) -> None:
    """One batch, so that deletion begins within it."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1000})
    for number in range(count):
        producer.produce("t", f"{number}".encode(), partition=0)
    assert not producer.flush(30)


def delete_before(bootstrap: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deleted = admin.delete_records([TopicPartition("t", 0, offset)])
    assert next(iter(deleted.values())).result(20).low_watermark == offset


def earliest(bootstrap: str) -> int:
    asked = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, EARLIEST)])]
    with Wire(bootstrap) as wire:
        answer = wire.call(list_offsets.API, 5, ListOffsetsRequest(-1, 0, asked))
    return answer.topics[0].partitions[0].offset


def stored(broker: BrokerProcess) -> int:
    """The start that the next process will find."""
    first = min(int(path.stem) for path in (broker.data / "t-0").glob("*.log"))
    noted = checkpoints.load(str(broker.data / checkpoints.LOG_START_OFFSETS)).offsets
    return max(first, noted.get(("t", 0), 0))


def test_a_single_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        produce(broker.bootstrap, 100)
        delete_before(broker.bootstrap, 60)
        broker.kill()
        broker.start()
        assert earliest(broker.bootstrap) == 60
    finally:
        broker.kill()


def test_all_replicas_of_a_cluster(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "t")
        cluster.await_in_sync("t")
        produce(cluster.bootstrap, 100)
        delete_before(cluster.bootstrap, 60)
        for broker in cluster.brokers.values():
            broker.kill()
        assert [stored(one) for one in cluster.brokers.values()] == [60, 60, 60]
        cluster.start()
        cluster.await_in_sync("t")
        assert earliest(cluster.leader("t").bootstrap) == 60
