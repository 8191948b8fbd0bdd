"""The target number of brokers, and moves before and after: only an empty broker is removed."""

from __future__ import annotations

import pytest

from millstream_operator.kafka.records import PartitionReplicas, Reassignment, Reassignments
from millstream_operator.models.conditions import Reason
from millstream_operator.reconcile.cluster.scaling import (
    Scaling,
    confirm_scaling,
    plan_scaling,
    plan_spreading,
)

ALIVE: dict[int, str | None] = dict.fromkeys(range(4))


def partition(
    topic: str, index: int, *replicas: int, isr: tuple[int, ...] | None = None
) -> PartitionReplicas:
    return PartitionReplicas(topic, index, replicas, replicas if isr is None else isr)


def test_more_brokers_come_at_once_and_the_same_number_stays() -> None:
    for current in (None, 3, 4):
        for partitions in (None, [partition("a", 0, 0, 1, 2)]):
            scaling = plan_scaling(4, current, partitions, {}, ALIVE)
            assert (scaling.replicas, scaling.moves, scaling.progress) == (4, {}, "")


def test_fewer_brokers_are_drained_first() -> None:
    there = [partition("a", 0, 0, 1, 2), partition("a", 1, 1, 2, 3), partition("b", 0, 3)]
    scaling = plan_scaling(3, 4, there, {}, ALIVE)
    assert scaling.replicas == 4
    assert scaling.moves == {("a", 1): (1, 2, 0), ("b", 0): (2,)}
    assert scaling.progress == "broker 3: 2 partitions left to move"

    # moves in progress are not requested again
    moving = {("a", 1): Reassignment((0,), (3,)), ("b", 0): Reassignment((2,), (3,))}
    there = [partition("a", 0, 0, 1, 2), partition("a", 1, 1, 2, 0, 3), partition("b", 0, 2, 3)]
    scaling = plan_scaling(3, 4, there, moving, ALIVE)
    assert (scaling.replicas, scaling.moves) == (4, {})
    assert scaling.progress == "broker 3: 2 partitions left to move"

    done = [partition("a", 0, 0, 1, 2), partition("a", 1, 1, 2, 0), partition("b", 0, 1)]
    scaling = plan_scaling(3, 4, done, {}, ALIVE)
    assert (scaling.replicas, scaling.moves, scaling.progress) == (3, {}, "")


def test_brokers_leave_only_if_they_themselves_hold_nothing() -> None:
    planned = Scaling(2)
    for held in ({}, {3: 0}, {2: 0, 3: 0}):
        assert confirm_scaling(planned, 4, held) == planned
    kept = confirm_scaling(planned, 4, {3: 5, 2: 0})
    assert (kept.replicas, kept.progress) == (4, "broker 3: 5 replicas left to move")
    silent = confirm_scaling(planned, 4, None)
    assert silent.replicas == 4
    assert silent.progress


def test_what_is_on_its_way_to_a_broker_that_leaves_is_turned_back() -> None:
    there = [partition("a", 0, 0, 1, 3)]  # from 0 and 1 to 0 and 3
    scaling = plan_scaling(3, 4, there, {("a", 0): Reassignment((3,), (1,))}, ALIVE)
    assert scaling.moves == {("a", 0): (0, 1)}


def test_replicas_on_a_broker_that_is_gone_get_another_place() -> None:
    there = [partition("a", 0, 0, 3, isr=(0,)), partition("a", 1, 1, 2)]
    scaling = plan_scaling(3, 3, there, {}, {0: None, 1: None, 2: None})
    assert (scaling.replicas, list(scaling.moves)) == (3, [("a", 0)])
    assert 3 not in scaling.moves["a", 0]


def test_several_brokers_leave_together() -> None:
    there = [partition("a", index, (index + 2) % 4) for index in range(4)]
    scaling = plan_scaling(2, 4, there, {}, ALIVE)
    assert sorted(replicas for replicas in scaling.moves.values()) == [(0,), (1,)]


def test_a_broker_that_is_still_in_an_isr_stays() -> None:
    there = [partition("a", 0, 0, isr=(0, 3))]
    assert plan_scaling(3, 4, there, {("a", 0): Reassignment((), (3,))}, ALIVE).replicas == 4


def test_what_does_not_fit_on_the_rest_is_refused() -> None:
    scaling = plan_scaling(2, 3, [partition("orders", 7, 0, 1, 2)], {}, ALIVE)
    assert (scaling.replicas, scaling.moves) == (3, {})
    assert scaling.problem is not None
    assert scaling.problem.reason is Reason.SCALE_DOWN_REFUSED
    assert scaling.problem.message == (
        "spec.brokers.replicas: 2 is not allowed: orders-7 has 3 replicas, and 2 brokers would stay: lower its Topic's "
        "replicationFactor first; 3 brokers stay"
    )


def test_replicas_move_only_while_all_that_take_them_live() -> None:
    there = [partition("a", 0, 3)]
    scaling = plan_scaling(3, 4, there, {}, {0: None, 2: None, 3: None})
    assert (scaling.replicas, scaling.moves) == (4, {})
    assert scaling.progress == "broker 3: waiting for broker 1 to take replicas"


def test_brokers_that_cannot_be_asked_stay() -> None:
    scaling = plan_scaling(1, 3, None, {}, ALIVE)
    assert (scaling.replicas, scaling.progress) == (3, "brokers 1, 2: the brokers do not answer")


@pytest.mark.parametrize(
    ("brokers", "moving", "some"),
    [
        ((0, 1, 2), {}, False),  # even
        ((0, 1, 2, 3), {}, True),
        ((0, 1, 2, 3), {("a", 0): Reassignment((2,), ())}, False),  # later
    ],
)
def test_a_broker_that_has_nothing_gets_its_share(
    brokers: tuple[int, ...], moving: Reassignments, some: bool
) -> None:
    there = [partition("a", index, index % 3, (index + 1) % 3) for index in range(12)]
    moves = plan_spreading(brokers, there, moving, {})
    assert bool(moves) is some
    assert all(3 in replicas for replicas in moves.values())


def test_a_broker_that_has_something_is_left_as_it_is() -> None:
    there = [*(partition("a", index, 0) for index in range(9)), partition("b", 0, 1)]
    assert plan_spreading((0, 1), there, {}, {}) == {}


def test_without_a_stateful_set_replicas_on_brokers_that_are_gone_move_too() -> None:
    scaling = plan_scaling(2, None, [partition("a", 0, 0, 2)], {}, ALIVE)
    assert (scaling.replicas, scaling.moves) == (2, {("a", 0): (0, 1)})
