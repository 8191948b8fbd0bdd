"""Pure plans that bring a topic to its spec; the converged plan is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millstream_operator.kafka.records import ConfigChange, NewTopic, StrayLog, TopicState
from millstream_operator.models import API_VERSION, Cluster, Topic, TopicSpec
from millstream_operator.models.conditions import Reason
from millstream_operator.models.config_values import ConfigValue
from millstream_operator.reconcile.topic.plan import TopicPlan, plan_topic, warning
from millstream_operator.validation.admission import decode


def spec(**fields: Any) -> TopicSpec:
    document = {
        "apiVersion": API_VERSION,
        "kind": "Topic",
        "metadata": {"name": "flights"},
        "spec": {"clusterRef": {"name": "default"}, **fields},
    }
    topic = decode(document)
    assert isinstance(topic, Topic)
    return topic.spec


def state(partitions: int = 3, replication: int = 1, config: Mapping[str, str] | None = None) -> TopicState:
    return TopicState("id", partitions, replication, 0, config or {})


def test_the_replica_of_a_mirror_stays_as_its_source_says() -> None:
    config = {"millstream.mirror.source": "CLUSTER/TOPIC", "retention.ms": "1"}
    wanted = spec(partitions=6, config={"retention.ms": "2"})
    assert plan_topic("flights", wanted, state(3, config=config), ["cleanup.policy"]) == TopicPlan()
    undone = plan_topic("flights", spec(), state(3, config=config), ["millstream.mirror.source"])
    assert undone.change == ConfigChange({}, ("millstream.mirror.source",)), "the resource itself had set it"
    del config["millstream.mirror.source"]  # promoted
    plan = plan_topic("flights", wanted, state(3, config=config))
    assert (plan.change, plan.partitions) == (ConfigChange({"retention.ms": "2"}, ()), 6)


def test_one_that_does_not_exist_is_created() -> None:
    wanted = spec(partitions=6, config={"retention.ms": "1000"})
    plan = plan_topic("flights", wanted, None)
    assert plan == TopicPlan(create=NewTopic("flights", 6, None, {"retention.ms": "1000"}))


@pytest.mark.parametrize(
    ("brokers", "words"), [({0}, "broker 0 still has"), ({2, 0}, "brokers 0, 2 still have")]
)
def test_one_whose_records_are_strays_is_not_created_again(brokers: set[int], words: str) -> None:
    plan = plan_topic("flights", spec(), None, strays=brokers)
    assert plan.empty
    assert plan.problem is not None
    assert plan.problem.reason is Reason.STRAY_LOGS
    assert words in plan.problem.message
    assert plan_topic("flights", spec(), state(), strays=brokers) == TopicPlan(), "another one is there"


def test_partitions_whose_records_are_strays_are_not_added_again() -> None:
    lost = [StrayLog(0, "id", 5, 2), StrayLog(2, "id", 5, 1), StrayLog(2, "id", 5, 2)]
    plan = plan_topic("flights", spec(partitions=3), state(1), lost=lost)
    assert plan.empty
    assert plan.problem is not None
    assert plan.problem.reason is Reason.STRAY_LOGS
    assert (
        "lost partitions 1, 2 of topic flights, and brokers 0, 2 still have the records"
        in plan.problem.message
    )


def test_counts_that_are_left_out_are_the_brokers_on_creation_and_not_compared_later() -> None:
    assert plan_topic("flights", spec(), None) == TopicPlan(create=NewTopic("flights", None, None, {}))
    assert plan_topic("flights", spec(), state(6, 3)) == TopicPlan()


def test_one_that_is_as_it_should_be_needs_nothing() -> None:
    wanted = spec(partitions=3, config={"retention.ms": "1000"})
    plan = plan_topic("flights", wanted, state(config={"retention.ms": "1000"}), ["retention.ms"])
    assert plan == TopicPlan()
    assert plan.empty


@pytest.mark.parametrize(
    ("kind", "wanted", "there", "is_same"),
    [
        ("LIST", "compact, delete", "compact,delete", True),
        ("LIST", "delete,delete", "delete", True),
        ("LIST", "delete", "compact,delete", False),
        ("DOUBLE", "0.50", "0.5", True),
        ("DOUBLE", "0.0001", "1.0E-4", True),
        ("DOUBLE", "0_1", "1.0", False),
        ("BOOLEAN", "True", "true", True),
        ("BOOLEAN", "false", "true", False),
        ("LONG", " 604800000", "604800000", True),
        ("LONG", "+5", "5", True),
        ("INT", "1_000", "1000", False),
        ("STRING", "zstd ", "zstd", True),
        ("STRING", "0.50", "0.5", False),
        ("", "lz4", "lz4", True),
    ],
)
def test_settings_are_compared_as_brokers_parse_them(
    kind: str, wanted: str, there: str, is_same: bool
) -> None:
    found = state(config={"a.key": ConfigValue(there, kind)})
    assert plan_topic("flights", spec(partitions=3, config={"a.key": wanted}), found).empty == is_same


def test_an_adopted_topic_keeps_configuration_that_the_resource_does_not_name() -> None:
    plan = plan_topic("flights", spec(partitions=3), state(config={"retention.ms": "-1"}))
    assert plan.empty


def test_changed_keys_are_set_and_dropped_ones_are_reset() -> None:
    plan = plan_topic(
        "flights",
        spec(partitions=3, config={"retention.ms": "2", "segment.ms": "9"}),
        state(
            config={
                "retention.ms": "1",
                "segment.ms": "9",
                "max.message.bytes": "5",
                "cleanup.policy": "compact",
            }
        ),
        ["retention.ms", "max.message.bytes", "gone.already"],
    )
    assert plan == TopicPlan(change=ConfigChange({"retention.ms": "2"}, ("max.message.bytes",)))


def test_partitions_are_added() -> None:
    assert plan_topic("flights", spec(partitions=6), state(3)) == TopicPlan(partitions=6)


@pytest.mark.parametrize(
    ("topic", "brokers", "said"),
    [
        ({"replicationFactor": 3, "config": {"min.insync.replicas": "2"}}, {}, ""),
        (
            {"replicationFactor": 2, "config": {"min.insync.replicas": "3"}},
            {},
            "min.insync.replicas is 3, more than there are replicas: 2 of 2",
        ),
        (
            {"replicationFactor": 1},
            {"min.insync.replicas": "2"},
            "min.insync.replicas is 2, more than there are replicas: 1 of 1",
        ),
        ({}, {"min.insync.replicas": "2"}, ""),
        ({"config": {"min.insync.replicas": "1"}}, {"min.insync.replicas": "2"}, ""),
        ({"config": {"min.insync.replicas": "many"}}, {}, ""),
    ],
)
def test_a_minimum_above_the_replicas_is_a_warning(
    topic: dict[str, Any], brokers: dict[str, str], said: str
) -> None:
    document = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": "default"},
        "spec": {"config": brokers},
    }
    cluster = decode(document)
    assert isinstance(cluster, Cluster)
    words = warning(spec(**topic), cluster)
    assert words.startswith(said)
    assert bool(words) is bool(said)


def test_a_minimum_is_held_against_the_replicas_there_are() -> None:
    wanted = spec(config={"min.insync.replicas": "2"})
    document = {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": {"name": "default"}, "spec": {}}
    cluster = decode(document)
    assert isinstance(cluster, Cluster)
    assert warning(wanted, cluster, state(replication=1))
    assert not warning(wanted, cluster, state(replication=2))


def test_what_cannot_be_is_said_and_the_rest_is_done() -> None:
    plan = plan_topic("flights", spec(partitions=2, config={"retention.ms": "1"}), state(3))
    assert plan.problem is not None
    assert plan.problem.reason is Reason.PARTITION_DECREASE_REFUSED
    assert plan.change == ConfigChange({"retention.ms": "1"})
    assert plan.partitions is None
