"""Reconciles of a Cluster that grows or shrinks: moves of replicas, and when brokers start and stop."""

from __future__ import annotations

import pytest

from millstream_harness.cluster_looks import (
    SETTLED,
    SOON,
    answers,
    partition,
    running,
)
from millstream_operator.kafka.records import AdminError, BrokersState, Reassignment, Refusal


def test_a_broker_leaves_when_it_has_no_replica() -> None:
    east = running(2)
    east.change(1)
    assert east.look(**answers(partition("a", 0, 1))) == SOON
    assert east.asked("reassign") == [{("a", 0): (0,)}]
    assert east.says("Rebalancing") == ("True", "Draining", "broker 1: 1 partition left to move")
    assert (east.replicas, east.status["brokers"]) == (2, {"desired": 1, "ready": 2})
    assert east.look(**answers(partition("a", 0, 0))) == SETTLED
    assert (east.replicas, east.says("Rebalancing")) == (1, None)


def test_a_broker_that_says_it_holds_replicas_stays_whatever_others_say() -> None:
    east = running(2)
    east.change(1)
    assert east.look(**answers(partition("a", 0, 0), held={1: 2})) == SOON
    assert east.asked("held") == [{1}]
    assert east.says("Rebalancing") == ("True", "Draining", "broker 1: 2 replicas left to move")
    assert east.replicas == 2
    silent = AdminError("no answer")
    assert east.look(**answers(partition("a", 0, 0), held=silent)) == SOON
    assert east.replicas == 2
    gone = BrokersState({0: None}, 0)
    assert east.look(**answers(partition("a", 0, 0), brokers=gone)) == SETTLED
    assert east.replicas == 1


def test_what_brokers_refuse_to_move_is_said() -> None:
    east = running(3)
    east.change(2)
    no = {("b", 1): Refusal("X", "b is busy"), ("a", 2): Refusal("X", "a is busy")}
    there = [partition("a", 2, 2), partition("b", 1, 2)]
    assert east.look(**answers(*there, reassign=no)) == SOON
    assert east.says() == ("False", "ScaleDownRefused", "a-2 cannot leave its broker: a is busy")


def test_brokers_that_cannot_leave_stay_and_say_why() -> None:
    east = running(3)
    east.change(2)
    east.run(True, False, False)
    assert east.look(**answers(partition("a", 0, 0, 1, 2))) == SOON
    status, reason, _ = east.says() or ("", "", "")
    assert (status, reason, east.replicas) == ("False", "ScaleDownRefused", 3)


def test_brokers_that_do_not_answer_stay() -> None:
    east = running(3)
    east.change(2)
    assert east.look(**answers(reassigning=AdminError("nobody listens"))) == SOON
    assert [request for request, *_ in east.memory.brokers.asked] == ["reassigning"]
    assert east.says("Rebalancing") == ("True", "Draining", "broker 2: the brokers do not answer")
    assert east.replicas == 3


@pytest.mark.parametrize("silent", ["reassigning", "replicas", "brokers"])
def test_a_cluster_whose_brokers_do_not_answer_is_looked_at_again_soon(silent: str) -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(partition("a", 0, 0, 1, 2), **{silent: AdminError("no")})) == SOON
    assert east.says() == ("True", "AllBrokersReady", "all 3 brokers are ready")


def test_more_brokers_come_at_once() -> None:
    east = running(1)
    east.change(3)
    assert east.look(**answers(partition("a", 0, 0))) == SOON
    assert east.replicas == 3
    assert east.asked("reassign") == []


UNEVEN = [partition("a", index, index % 2) for index in range(6)]


def test_a_new_broker_gets_its_share_where_that_is_wanted() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(*UNEVEN)) == SOON
    (moves,) = east.asked("reassign")
    assert list(moves.values()) == [(2,), (2,)]
    assert east.says("Rebalancing") == ("True", "Spreading", "2 partitions are being moved")


def test_replicas_on_their_way_to_a_new_broker_are_told() -> None:
    east = running(3, rebalance="Automatic")
    moving = {("a", 0): Reassignment((2,), (0,))}
    assert east.look(**answers(*UNEVEN, reassigning=moving)) == SOON
    assert east.asked("reassign") == []
    assert east.says("Rebalancing") == ("True", "Spreading", "1 partition is being moved")


def test_replicas_stay_where_nobody_wants_them_spread() -> None:
    east = running(3)
    assert east.look(**answers(*UNEVEN)) == SETTLED
    assert east.says("Rebalancing") is None


def test_two_brokers_share_as_well() -> None:
    east = running(2, rebalance="Automatic")
    east.look(**answers(partition("a", 0, 0), partition("a", 1, 0)))
    assert east.asked("reassign") == [{("a", 0): (1,)}]


def test_replicas_are_spread_when_all_brokers_live() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(*UNEVEN, brokers=BrokersState({0: None, 1: None}, 0))) == SETTLED
    assert east.asked("reassign") == []


def test_spreading_keeps_partitions_in_their_racks() -> None:
    east = running(3, rebalance="Automatic")
    there = [partition("a", index, index % 2, 1 - index % 2) for index in range(4)]
    east.look(**answers(*there, brokers=BrokersState({0: "x", 1: "y", 2: "x"}, 0)))
    assert east.asked("reassign") == [{("a", 0): (2, 1), ("a", 1): (1, 2)}]
    east.look(**answers(*there, brokers=BrokersState({0: "", 1: None, 2: ""}, 0)))
    assert [sorted(moves) for moves in east.asked("reassign")] == [[("a", 0), ("a", 1)]]


def test_replicas_are_not_spread_while_there_is_something_else_to_do() -> None:
    east = running(3, rebalance="Automatic")
    east.run(True, True, False)
    east.look(**answers(*UNEVEN))
    assert east.asked("reassign") == []
