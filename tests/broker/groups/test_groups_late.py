"""A deletion of a group that times out, because a follower is silent, takes effect when the follower is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, QUICK, create
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "offsets.commit.timeout.ms": "500",
    "replica.lag.time.max.ms": "120000",
    "zookeeper.session.timeout.ms": "60000",
}


def refusal(admin: AdminClient) -> int:
    """The broker's error. The client may ask the silent broker first who coordinates the group: then it asks again."""
    while True:
        with pytest.raises(KafkaException) as failed:
            admin.delete_consumer_groups(["g"], request_timeout=5)["g"].result(30)
        code: int = failed.value.args[0].code()
        if code != KafkaError._TIMED_OUT:
            return code


def test_memory_follows_the_log(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, CONFIG, zookeeper=shared_zookeeper) as cluster:
        create(cluster, "t", partitions=1)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False, **QUICK}
        )
        consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        cluster.await_in_sync(OFFSETS_TOPIC)
        coordinator = cluster.leader(OFFSETS_TOPIC)
        silent = next(one for one in cluster.brokers.values() if one is not coordinator)

        def position() -> int:
            return consumer.committed([TopicPartition("t", 0)], 30)[0].offset

        silent.pause()
        assert refusal(admin) == KafkaError.REQUEST_TIMED_OUT
        assert position() == 7, "it is not deleted yet"
        silent.resume()
        until(lambda: position() == OFFSET_INVALID, "the group is deleted")
        assert cluster.leader(OFFSETS_TOPIC) is coordinator
        consumer.close()
