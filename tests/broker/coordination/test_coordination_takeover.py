"""A standalone broker takes over the `coordination.json` of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.coordination import OVERRIDE, CoordinationError, tree
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_broker.coordination.takeover import OLD_FILE_NAME, find_old, take_over
from millstream_broker.log.known_states import FILE_NAME as STATES
from millstream_harness.coordination_file import nodes_in
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.kafka_uuid import uuid_from
from millstream_kafka.protocol import describe_configs, init_producer_id, metadata

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]


def test_topics_configuration_and_ids_are_taken_over(start_broker: StartBroker) -> None:
    broker = start_broker({"num.partitions": "2"})
    with Wire(broker.bootstrap) as wire:
        wire.create("flights", "other")
        assert wire.produce("flights", [record("a")], partition=1).error_code == 0
        before = wire.call(metadata.API, 12, metadata.MetadataRequest(None))
    broker.stop()
    nodes = nodes_in(broker.data)
    (broker.data / FILE_NAME).unlink()
    (broker.data / STATES).unlink()  # version 0.2 had none
    partition = {"replicas": [1], "leader": 1, "leader_epoch": 4, "isr": [1], "version": 9}
    old = {
        "version": 1,
        "cluster_id": before.cluster_id,
        "broker_epoch": 7,
        "next_producer_id": 3000,
        "topics": {
            topic.name: {
                "id": str(topic.topic_id),
                "config": {"retention.ms": "12345678"},
                "partitions": [partition, partition],
            }
            for topic in before.topics
        },
        "deleting": {},
        "broker_configs": {"": {"log.retention.ms": "7777777"}, "1": {"message.max.bytes": "2000000"}},
        "generations": tree.generations_from("", nodes[tree.generations_path(1)]),
    }
    (broker.data / OLD_FILE_NAME).write_text(json.dumps(old))
    for _ in range(2):
        broker.start()
        with Wire(broker.bootstrap) as wire:
            after = wire.call(metadata.API, 12, metadata.MetadataRequest(None))
            assert after.cluster_id == before.cluster_id
            assert {topic.name: topic.topic_id for topic in after.topics} == {
                topic.name: topic.topic_id for topic in before.topics
            }
            assert {one.leader_epoch for topic in after.topics for one in topic.partitions} == {4}
            assert wire.end_offset("flights", 1) == 1
            assert wire.produce("flights", [record("b")]).error_code == 0
            asked = [
                describe_configs.DescribeConfigsResource(2, "flights", ["retention.ms"]),
                describe_configs.DescribeConfigsResource(4, "1", ["log.retention.ms", "message.max.bytes"]),
            ]
            described = wire.call(describe_configs.API, 4, describe_configs.DescribeConfigsRequest(asked))
            values = {one.name: one.value for result in described.results for one in result.configs}
            assert values == {
                "retention.ms": "12345678",
                "log.retention.ms": "7777777",
                "message.max.bytes": "2000000",
            }
            request = init_producer_id.InitProducerIdRequest(None, 1000)
            assert wire.call(init_producer_id.API, 4, request).producer_id >= 3000
        assert not (broker.data / OLD_FILE_NAME).exists()
        assert (broker.data / f"{OLD_FILE_NAME}.taken-over").exists()
        assert "older copy" not in broker.said()
        broker.stop()


async def test_taking_over_can_be_done_again(tmp_path: Path) -> None:
    """As after a crash before the file was put aside: newer state in the tree stays."""
    partition = {"replicas": [1], "leader": 1, "leader_epoch": 4, "isr": [1], "version": 9}
    topic_id = "a3b6b0f0-0000-4000-8000-000000000001"
    old = {
        "version": 1,
        "cluster_id": "5Zx",
        "next_producer_id": 3000,
        "topics": {"t": {"id": topic_id, "config": {}, "partitions": [partition]}},
        "broker_configs": {"": {}},
    }
    (tmp_path / OLD_FILE_NAME).write_text(json.dumps(old))
    found = find_old(tmp_path)
    assert found is not None
    assert found.cluster_id == "5Zx"
    store = FileStore(tmp_path / FILE_NAME)
    store.start()
    for _ in range(2):
        await take_over(store, found, 1)
        await store.set(tree.state_path("t", 0), b"newer")
        (tmp_path / f"{OLD_FILE_NAME}.taken-over").rename(tmp_path / OLD_FILE_NAME)
    await store.close(5.0)
    nodes = nodes_in(tmp_path)
    assert nodes[tree.state_path("t", 0)] == b"newer"
    stored = tree.topic_from("t", nodes[tree.topic_path("t")])
    assert str(stored.topic_id) == topic_id
    assert stored.topic_id != uuid_from("AAAAAAAAAAAAAAAAAAAAAA")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "\x00"])
def test_an_old_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / OLD_FILE_NAME).write_text(text)
    with pytest.raises(CoordinationError, match=r"coordination\.json: cannot be read"):
        find_old(tmp_path)


def test_an_old_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / OLD_FILE_NAME).write_text('{"version": 2}')
    with pytest.raises(CoordinationError, match="version 2 is not known: expected 1"):
        find_old(tmp_path)


def test_a_new_tree_in_zookeeper_takes_over_no_logs(
    start_broker: StartBroker, shared_zookeeper: ZooKeeperProcess
) -> None:
    """Other brokers may have newer logs: a wrong address or a lost tree must bring nothing back."""
    broker = start_broker()
    with Wire(broker.bootstrap) as wire:
        wire.create("t")
        assert wire.produce("t", [record("a")]).error_code == 0
    broker.stop()
    broker.config["zookeeper.connect"] = shared_zookeeper.own_tree()
    with pytest.raises(RuntimeError, match="shows that this broker was a cluster by itself"):
        broker.start()
    broker.config[OVERRIDE] = "true"
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics == []
    (stray,) = broker.data.glob("t-0.*-stray")
    assert f"it is a stray now, kept and not served, in {stray}" in broker.said()
