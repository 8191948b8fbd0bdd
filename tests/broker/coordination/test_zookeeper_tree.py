"""The classic tree's JSON: reads Kafka's, and writes the same as Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord, PartitionRecord, TopicRecord, tree

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4, unique=True).map(tuple)
PARTITIONS = st.builds(
    PartitionRecord,
    replicas=IDS,
    leader=st.integers(-2, 9),
    leader_epoch=st.integers(0, 2**31 - 1),
    isr=IDS,
    version=st.integers(0, 9),
    controller_epoch=st.integers(0, 9),
    adding=IDS,
    removing=IDS,
    elr=IDS,
)


def of_kafka(text: str) -> bytes:
    return text.encode()


def test_a_broker_as_kafka_registers_it() -> None:
    data = of_kafka(
        '{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","IN":"PLAINTEXT"},'
        '"endpoints":["PLAINTEXT://kafka1:9092","IN://[::1]:9093"],"jmx_port":-1,"port":9092,"host":"kafka1",'
        '"version":5,"timestamp":"1700000000000","rack":"eu-1a"}'
    )
    listeners = (Listener("PLAINTEXT", "kafka1", 9092), Listener("IN", "::1", 9093))
    broker = BrokerRecord(7, listeners, "eu-1a", 42)
    assert tree.broker_from(7, data, 42) == broker
    ours = json.loads(tree.broker_json(broker, 1_700_000_000_000))
    assert {"directory": None, "unclean": False, **json.loads(data)} == ours
    more = BrokerRecord(7, listeners, None, 42, True, "a-directory")
    assert tree.broker_from(7, tree.broker_json(more), 42) == more
    assert "rack" not in json.loads(tree.broker_json(more))


def test_a_topic_as_kafka_writes_it() -> None:
    data = of_kafka(
        '{"removing_replicas":{"1":[3]},"partitions":{"0":[1,2],"1":[2,3,1]},'
        '"topic_id":"AAAAAAAAAAAAAAAAAAAAKg","adding_replicas":{"1":[1]},"version":3}'
    )
    topic = tree.topic_from("flights", data)
    assert topic.topic_id == uuid.UUID(int=42)
    assert [one.replicas for one in topic.partitions] == [(1, 2), (2, 3, 1)]
    assert (topic.partitions[1].adding, topic.partitions[1].removing) == ((1,), (3,))
    assert topic.partitions[0] == PartitionRecord((1, 2), -1, -1, (), tree.NO_STATE)
    assert tree.topic_json(topic) == data
    before_ids = of_kafka('{"version":1,"partitions":{"0":[1]}}')
    assert tree.topic_from("old", before_ids).topic_id == uuid.UUID(int=0)


def test_a_state_as_kafka_writes_it() -> None:
    data = of_kafka('{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}')
    state = tree.with_state("/x", PartitionRecord((1, 2), -1, -1, ()), data, 5)
    assert state == PartitionRecord((1, 2), 1, 3, (1, 2), 5, 9)
    assert tree.state_json(state) == data


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTITIONS, min_size=1, max_size=12), st.uuids())
def test_topics_and_states_read_back(partitions: list[PartitionRecord], topic_id: uuid.UUID) -> None:
    topic = TopicRecord("t", topic_id, tuple(partitions))
    read = tree.topic_from("t", tree.topic_json(topic))
    assert read.topic_id == topic_id
    states = [
        tree.with_state("/x", one, tree.state_json(state), state.version)
        for one, state in zip(read.partitions, partitions, strict=True)
    ]
    assert states == partitions


def test_the_others_as_kafka_writes_them() -> None:
    pairs: list[tuple[bytes, str]] = [
        (tree.cluster_id_json("5Zx"), '{"version":"1","id":"5Zx"}'),
        (
            tree.controller_json(3, 17),
            '{"version":2,"brokerid":3,"timestamp":"17","kraftControllerEpoch":-1}',
        ),
        (tree.config_json({"retention.ms": "1"}), '{"version":1,"config":{"retention.ms":"1"}}'),
        (tree.config_change_json("topics/t"), '{"version":2,"entity_path":"topics/t"}'),
        (tree.isr_change_json([("t", 1)]), '{"version":1,"partitions":[{"topic":"t","partition":1}]}'),
    ]
    for ours, kafkas in pairs:
        assert ours == of_kafka(kafkas)
    assert tree.cluster_id_from(pairs[0][0]) == "5Zx"
    assert tree.controller_from(pairs[1][0]) == 3
    assert tree.config_from("topics/t", pairs[2][0]) == {"retention.ms": "1"}
    assert tree.config_change_from("/x", pairs[3][0]) == "topics/t"
    assert tree.isr_change_from("/x", pairs[4][0]) == [("t", 1)]
    assert tree.controller_epoch_from(b"12") == 12
    assert tree.broker_entity(None) == "brokers/<default>"


@pytest.mark.parametrize(
    "data", [b"", b"no", b"[]", b"{}", b'{"partitions":1,"endpoints":1,"id":1}', b"\xff"]
)
@pytest.mark.parametrize(
    ("read", "path"),
    [
        (lambda data: tree.broker_from(7, data, 1), "/brokers/ids/7"),
        (lambda data: tree.topic_from("t", data), "/brokers/topics/t"),
        (
            lambda data: tree.with_state("/brokers/s", PartitionRecord((1,), 1, 1, ()), data, 0),
            "/brokers/s",
        ),
        (tree.controller_from, "/controller"),
        (tree.controller_epoch_from, "/controller_epoch"),
        (tree.cluster_id_from, "/cluster/id"),
        (lambda data: tree.config_change_from("/c", data), "/c"),
        (lambda data: tree.isr_change_from("/i", data), "/i"),
    ],
)
def test_what_is_not_so_is_named(read: Callable[[bytes], Any], path: str, data: bytes) -> None:
    with pytest.raises(tree.TreeError, match=f"{path} "):
        read(data)


def test_a_secret_that_cannot_be_read_is_not_printed() -> None:
    stored = tree.cluster_secret_json(bytes(range(32)))
    assert tree.cluster_secret_from(stored) == bytes(range(32))
    for damaged in (stored[:-1], b"[" + stored + b"]", b'{"secret": ""}', b'{"secret": 7}', b""):
        with pytest.raises(tree.TreeError, match="/cluster/secret has no secret") as raised:
            tree.cluster_secret_from(damaged)
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
        assert bytes(range(32)).hex()[:16] not in str(raised.value)
