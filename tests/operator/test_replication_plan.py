"""Another replication factor: what moves, what is on its way, what cannot be; nothing when all is as it should be."""

from __future__ import annotations

from millstream_operator.conditions import Reason
from millstream_operator.kafka_admin import PartitionReplicas, Reassignment
from millstream_operator.reconcile.replication import plan_replication


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
