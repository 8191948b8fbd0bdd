"""A new replication factor: moves to start, moves in progress, and refusals; an empty plan when all is done."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millstream_harness.in_memory import ToldBrokers, stored
from millstream_harness.manifests import cluster as a_cluster
from millstream_harness.manifests import topic as a_topic
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import (
    BrokersState,
    PartitionReplicas,
    Reassignment,
    Refusal,
    TopicState,
)
from millstream_operator.models import Cluster, Topic, decode_as
from millstream_operator.models.conditions import Reason
from millstream_operator.reconcile.topic.replication import Replication, plan_replication
from millstream_operator.reconcile.topic.replication_apply import replicate

pytestmark = pytest.mark.process


def partition(topic: str, index: int, *replicas: int) -> PartitionReplicas:
    return PartitionReplicas(topic, index, replicas, replicas)


def test_more_replicas_are_spread_and_the_leader_stays() -> None:
    there = [partition("a", index, index % 3) for index in range(6)]
    plan = plan_replication({"a": 3}, there, {}, (0, 1, 2))
    assert all(sorted(replicas) == [0, 1, 2] for replicas in plan.moves.values())
    assert [replicas[0] for _, replicas in sorted(plan.moves.items())] == [0, 1, 2, 0, 1, 2]
    assert plan.progress == {"a": "6 of 6 partitions are being reassigned"}
    assert plan.problems == {}


def test_topics_that_grow_together_do_not_all_take_the_same_broker() -> None:
    there = [partition(f"t{index}", 0, 0) for index in range(8)]
    plan = plan_replication({one.topic: 2 for one in there}, there, {}, (0, 1, 2))
    second = [replicas[1] for replicas in plan.moves.values()]
    assert (second.count(1), second.count(2)) == (4, 4)


def test_what_is_on_its_way_is_left_alone_and_told() -> None:
    there = [partition("a", 0, 0, 1, 2), partition("a", 1, 1), partition("b", 0, 1)]
    moving = {("a", 0): Reassignment((1, 2), ()), ("b", 0): Reassignment((1,), ())}
    plan = plan_replication({"a": 3}, there, moving, (0, 1, 2))
    assert list(plan.moves) == [("a", 1)]
    assert plan.progress == {"a": "2 of 2 partitions are being reassigned, 2 replicas to be copied"}


def test_one_that_is_moved_to_another_broker_keeps_its_factor() -> None:
    there = [partition("a", 0, 0, 1, 2)]  # from 0 and 1 to 0 and 2
    assert plan_replication({"a": 2}, there, {("a", 0): Reassignment((2,), (1,))}, (0, 1, 2)).moves == {}


def test_when_all_have_arrived_there_is_nothing_to_do_or_to_tell() -> None:
    plan = plan_replication({"a": 2}, [partition("a", 0, 0, 1)], {}, (0, 1, 2))
    assert (plan.moves, plan.progress, plan.problems) == ({}, {}, {})


def test_one_that_cannot_be_does_not_stop_the_others() -> None:
    there = [partition("a", 0, 0), partition("b", 0, 0, 1)]
    plan = plan_replication({"a": 4, "b": 1}, there, {}, (0, 1, 2))
    assert plan.moves == {("b", 0): (0,)}
    assert plan.problems["a"].reason is Reason.INVALID_REPLICATION_FACTOR
    assert plan.problems["a"].message == (
        "spec.replicationFactor: 4 is not allowed: 4 replicas need as many brokers: there are 3"
    )


def test_each_topic_that_cannot_be_says_so() -> None:
    there = [partition("a", 0, 0), partition("b", 0, 0), partition("c", 0, 0)]
    plan = plan_replication({"a": 4, "b": 5, "c": 4}, there, {}, (0, 1, 2))
    assert {topic: problem.message[:28] for topic, problem in plan.problems.items()} == {
        "a": "spec.replicationFactor: 4 is",
        "b": "spec.replicationFactor: 5 is",
        "c": "spec.replicationFactor: 4 is",
    }


def state(factor: int, *, even: bool = True) -> TopicState:
    return TopicState("id", 1, factor, 0, {}, even=even)


def a_look(
    told: ToldBrokers, observed: dict[str, TopicState], replicas: int = 3, **status: Any
) -> Replication:
    """Reconcile Topics of two replicas each, in a Cluster of this many brokers."""
    spec = {"brokers": {"replicas": replicas}, "zookeeper": {"replicas": 1}}
    topics = [decode_as(Topic, stored(a_topic(name, replicationFactor=2), status)) for name in observed]
    cluster = decode_as(Cluster, stored(a_cluster("default", **spec)))
    return replicate(cast(KafkaAdmin, told), cluster, topics, observed)


def told_of(
    *partitions: PartitionReplicas, racks: dict[int, str | None] | None = None, **more: Any
) -> ToldBrokers:
    alive = BrokersState(racks or {0: None, 1: None, 2: None}, 0)
    answers = {"brokers": alive, "reassigning": {}, "replicas": list(partitions), "reassign": {}, **more}
    return ToldBrokers(**answers)


def test_topics_that_are_as_they_should_be_cost_no_request() -> None:
    told = ToldBrokers()
    assert a_look(told, {"a": state(2), "b": state(2)}) == Replication()
    assert told.asked == []


def test_a_topic_that_brokers_do_not_show_is_left_alone() -> None:
    topics = [decode_as(Topic, stored(a_topic("a", replicationFactor=2)))]
    cluster = decode_as(Cluster, stored(a_cluster("default")))
    assert replicate(cast(KafkaAdmin, ToldBrokers()), cluster, topics, {}) == Replication()


def test_another_factor_is_brought_about() -> None:
    told = told_of(partition("a", 0, 0))
    assert a_look(told, {"a": state(1)}).moves == {("a", 0): (0, 1)}
    assert told.requests("reassign") == [{("a", 0): (0, 1)}]
    # moves in progress are requested before the partitions
    assert [request for request, *_ in told.asked] == ["brokers", "reassigning", "replicas", "reassign"]


def test_one_partition_that_differs_is_enough() -> None:
    told = told_of(partition("a", 0, 0, 1), partition("a", 1, 0))
    assert list(a_look(told, {"a": state(2, even=False)}).moves) == [("a", 1)]


def test_a_topic_that_was_on_the_move_is_followed_until_it_has_arrived() -> None:
    moving = {"type": "Rebalancing", "status": "True", "reason": "Reassigning", "message": ""}
    told = told_of(partition("a", 0, 0, 1))
    shown = [{**moving, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    assert a_look(told, {"a": state(2)}, conditions=shown) == Replication()
    assert [request for request, *_ in told.asked] == ["brokers", "reassigning", "replicas"]


def test_other_conditions_do_not_concern_replicas() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "TopicReady", "message": ""}
    told = ToldBrokers()
    a_look(told, {"a": state(2)}, conditions=[{**ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    assert told.asked == []


def test_replicas_stay_away_from_brokers_that_are_to_leave() -> None:
    full = [partition("x", index, 1) for index in range(4)]
    assert a_look(told_of(partition("a", 0, 0), *full), {"a": state(1)}).moves == {("a", 0): (0, 2)}
    assert a_look(told_of(partition("a", 0, 0), *full), {"a": state(1)}, replicas=2).moves == {
        ("a", 0): (0, 1)
    }


def test_where_all_live_brokers_are_to_leave_they_have_to_do() -> None:
    told = told_of(partition("a", 0, 3), racks={3: None, 4: None})
    assert a_look(told, {"a": state(1)}).moves == {("a", 0): (3, 4)}


@pytest.mark.parametrize("rack", ["", None])
def test_racks_that_are_known_are_spread_over(rack: str | None) -> None:
    told = told_of(partition("a", 0, 0), racks={0: "east", 1: "east", 2: "west"})
    assert a_look(told, {"a": state(1)}).moves == {("a", 0): (0, 2)}
    told = told_of(partition("a", 0, 0), racks={0: rack, 1: rack, 2: "west"})
    assert a_look(told, {"a": state(1)}).moves == {("a", 0): (0, 1)}


def test_what_brokers_refuse_to_reassign_is_said_by_topic() -> None:
    no = Refusal("INVALID_REPLICA_ASSIGNMENT", "not there")
    told = told_of(partition("a", 0, 0), partition("b", 0, 0), reassign={("b", 0): no})
    found = a_look(told, {"a": state(1), "b": state(1)})
    assert {topic: (one.reason, one.message) for topic, one in found.problems.items()} == {
        "b": ("Refused", "b-0 cannot be reassigned: not there")
    }
