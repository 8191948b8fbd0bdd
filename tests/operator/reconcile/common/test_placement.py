"""Plans that move replicas: no replica is lost, and no replica moves without need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_operator.kafka.records import PartitionReplicas
from millstream_operator.reconcile.common.placement import CannotPlace, drain, rebalance, with_factor


def partition(topic: str, index: int, replicas: Sequence[int]) -> PartitionReplicas:
    return PartitionReplicas(topic, index, tuple(replicas), tuple(replicas), 1)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PartitionReplicas], list[int]]:
    brokers = list(range(draw(st.integers(3, 7))))
    factor = draw(st.integers(1, 3))
    count = draw(st.integers(0, 40))
    held = [draw(st.permutations(brokers)) for _ in range(count)]
    return [partition("t", index, order[:factor]) for index, order in enumerate(held)], brokers


@given(clusters())
def test_draining_moves_only_what_is_on_the_brokers_that_leave(
    cluster: tuple[list[PartitionReplicas], list[int]],
) -> None:
    partitions, brokers = cluster
    leaving, staying = {brokers[-1]}, brokers[:-1]
    if any(len(one.replicas) > len(staying) for one in partitions):
        with pytest.raises(CannotPlace, match="replicationFactor"):
            drain(partitions, leaving, staying)
        return
    moves = drain(partitions, leaving, staying)
    for one in partitions:
        after = moves.get((one.topic, one.partition))
        if after is None:
            assert not leaving & set(one.replicas)
            continue
        assert len(set(after)) == len(one.replicas)
        assert set(after) <= set(staying)
        assert all(a == b for a, b in zip(after, one.replicas, strict=True) if b not in leaving)


def test_draining_to_too_few_brokers_is_refused_with_the_partition() -> None:
    with pytest.raises(CannotPlace, match="t-0 has 3 replicas, and 2 brokers would stay"):
        drain([partition("t", 0, [0, 1, 2])], {2}, [0, 1])


@given(clusters())
def test_rebalancing_evens_out_and_then_leaves_alone(
    cluster: tuple[list[PartitionReplicas], list[int]],
) -> None:
    partitions, brokers = cluster
    moves = rebalance(partitions, brokers)
    after = [
        partition(one.topic, one.partition, moves.get((one.topic, one.partition), one.replicas))
        for one in partitions
    ]
    load = Counter(dict.fromkeys(brokers, 0))
    for one in after:
        assert len(set(one.replicas)) == len(one.replicas)
        load.update(one.replicas)
    assert max(load.values()) - min(load.values()) <= 1
    assert rebalance(after, brokers) == {}


def test_a_new_broker_gets_its_share_and_no_more_than_that_moves() -> None:
    partitions = [partition("t", index, [index % 3, (index + 1) % 3]) for index in range(12)]
    moves = rebalance(partitions, [0, 1, 2, 3])
    assert len(moves) == 6  # 24 replicas on 4 brokers
    assert all(3 in replicas for replicas in moves.values())
    assert sum(replicas[0] == 3 for replicas in moves.values()) in (2, 3, 4)


@given(clusters(), st.integers(1, 7))
def test_another_replication_factor(cluster: tuple[list[PartitionReplicas], list[int]], factor: int) -> None:
    partitions, brokers = cluster
    if factor > len(brokers):
        with pytest.raises(CannotPlace, match=f"{factor} replicas need as many brokers"):
            with_factor(partitions, factor, brokers)
        return
    moves = with_factor(partitions, factor, brokers, partitions)
    for one in partitions:
        after = moves.get((one.topic, one.partition), one.replicas)
        assert len(after) == len(set(after)) == factor
        assert after[0] == one.replicas[0]  # its leader stays
        assert set(after) <= set(one.replicas) or set(after) >= set(one.replicas)


def test_the_replica_that_is_behind_goes_first() -> None:
    one = PartitionReplicas("t", 0, (0, 1, 2), (0, 2), 1)
    assert with_factor([one], 2, [0, 1, 2]) == {("t", 0): (0, 2)}


@given(clusters(), st.data())
def test_a_replica_in_sync_goes_only_when_no_other_is_left(
    cluster: tuple[list[PartitionReplicas], list[int]], data: st.DataObject
) -> None:
    """Even if the preferred leader is dead."""
    partitions, brokers = cluster
    for one in partitions:
        isr = set(data.draw(st.lists(st.sampled_from(one.replicas), min_size=1, unique=True)))
        factor = data.draw(st.integers(1, len(one.replicas)))
        behind = replace(one, isr=tuple(isr))
        after = with_factor([behind], factor, brokers).get((one.topic, one.partition), one.replicas)
        assert len(isr & set(after)) == min(len(isr), factor)
        assert after[0] == next(broker for broker in one.replicas if broker in after), "the order stays"


def test_a_dead_preferred_leader_goes_before_a_follower_in_sync() -> None:
    one = PartitionReplicas("t", 0, (0, 1, 2), (1, 2), 1)
    assert with_factor([one], 2, [1, 2], [one]) == {("t", 0): (1, 2)}
    assert with_factor([one], 1, [1, 2], [one]) == {("t", 0): (1,)}


def test_a_replica_goes_from_the_rack_that_has_two() -> None:
    racks = {0: "a", 1: "b", 2: "b"}
    assert with_factor([partition("t", 0, [1, 0, 2])], 2, [0, 1, 2], racks=racks) == {("t", 0): (1, 0)}


def test_racks_are_spread_over() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert with_factor([partition("t", 0, [0])], 2, [0, 1, 2, 3], racks=racks) == {("t", 0): (0, 2)}


def test_the_fullest_broker_loses_the_replica_that_is_one_too_many() -> None:
    one, other = partition("t", 0, [1, 2, 0]), partition("u", 0, [0])
    assert with_factor([one], 2, [0, 1, 2], [one, other]) == {("t", 0): (1, 2)}


def test_of_brokers_as_full_the_one_that_leads_less_is_taken() -> None:
    # once t-0 is on 0, 2 and 1, each broker has one replica, and 0 comes first
    partitions = [partition("t", 0, [0, 2, 3]), partition("t", 1, [3])]
    assert drain(partitions, {3}, [0, 1, 2]) == {("t", 0): (0, 2, 1), ("t", 1): (1,)}


def test_where_brokers_lead_as_much_a_follower_moves() -> None:
    partitions = [partition("t", 0, [0]), partition("t", 1, [2, 0]), partition("t", 2, [1, 0])]
    assert rebalance(partitions, [0, 1, 2]) == {("t", 1): (2, 1)}


def test_a_partition_that_moves_anyway_moves_before_another_one() -> None:
    partitions = [partition("t", 0, [3, 0]), partition("t", 1, [0, 3])]
    assert rebalance(partitions, [0, 1, 2, 3]) == {("t", 0): (1, 2)}


def test_rebalancing_leaves_no_partition_in_fewer_racks() -> None:
    racks = {0: "a", 1: "b", 2: "a"}
    partitions = [partition("t", index, [index % 2, 1 - index % 2]) for index in range(4)]
    moves = rebalance(partitions, [0, 1, 2], racks)
    # broker 1 is as full as 0, and the only one in its rack
    assert moves == {("t", 0): (2, 1), ("t", 1): (1, 2)}


@given(clusters(), st.data())
def test_rebalancing_keeps_racks_whatever_they_are(
    cluster: tuple[list[PartitionReplicas], list[int]], data: st.DataObject
) -> None:
    partitions, brokers = cluster
    racks = {broker: data.draw(st.sampled_from("abc")) for broker in brokers}
    for (_, index), after in rebalance(partitions, brokers, racks).items():
        before = {racks[broker] for broker in partitions[index].replicas}
        assert len({racks[broker] for broker in after}) >= len(before)
        assert len(set(after)) == len(after)


def test_a_broker_without_a_rack_takes_its_share() -> None:
    partitions = [partition("t", index, [index % 2, 1 - index % 2]) for index in range(3)]
    assert len(rebalance(partitions, [0, 1, 2], {0: "a", 1: "b"})) == 2
