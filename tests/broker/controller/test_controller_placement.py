"""Placement of new partitions: properties over all shapes of clusters, and Kafka's errors."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.controller.placement import place
from millstream_broker.coordination import BrokerRecord
from millstream_kafka.protocol.errors import ApiError, ErrorCode


def brokers(racks: list[str | None]) -> dict[int, BrokerRecord]:
    return {number: BrokerRecord(number, (), rack) for number, rack in enumerate(racks, 1)}


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[str | None], int, int]:
    racks = draw(st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=12))
    return racks, draw(st.integers(1, 60)), draw(st.integers(1, len(racks)))


@given(requests())
def test_what_always_holds(request: tuple[list[str | None], int, int]) -> None:
    racks, count, factor = request
    placed = place(brokers(racks), count, factor)
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        in_rack = Counter(racks[one - 1] for one in replicas)
        assert len(in_rack) == min(factor, len(set(racks))), "as many racks as can be"
        fullest = max(in_rack.values())
        for rack, brokers_there in Counter(racks).items():
            assert in_rack[rack] >= min(fullest - 1, brokers_there), "no rack twice before each once"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 60), st.data())
def test_racks_of_one_size_are_even(racks: int, in_each: int, count: int, data: st.DataObject) -> None:
    there = brokers([f"rack-{number % racks}" for number in range(racks * in_each)])
    placed = place(there, count, data.draw(st.integers(1, len(there))))
    assert difference(there, [one for replicas in placed for one in replicas]) <= 1, "replicas"
    assert difference(there, [replicas[0] for replicas in placed]) <= 1, "leaders"


@given(requests())
def test_uneven_racks_still_have_leaders_everywhere(request: tuple[list[str | None], int, int]) -> None:
    racks, _, factor = request
    there = brokers(racks)
    placed = place(there, 10 * len(there), factor)
    assert {replicas[0] for replicas in placed} == set(there)


def difference(there: dict[int, BrokerRecord], named: list[int]) -> int:
    counts = Counter(named)
    return max(counts[one] for one in there) - min(counts[one] for one in there)


def test_what_a_broker_leads_is_followed_by_all_others() -> None:
    placed = place(brokers([None] * 6), 6 * 20, 3, random.Random(1))
    pairs = {(replicas[0], follower) for replicas in placed for follower in replicas[1:]}
    assert pairs == {(leader, other) for leader in range(1, 7) for other in range(1, 7) if leader != other}


def test_the_start_is_random() -> None:
    assert {place(brokers([None] * 3), 1, 1)[0][0] for _ in range(200)} == {1, 2, 3}


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0, "Replication factor was set to an invalid non-positive value."),
        (-2, "Replication factor was set to an invalid non-positive value."),
        (4, "The target replication factor of 4 cannot be reached because only 3 broker(s) are registered."),
    ],
)
def test_factors_that_cannot_be(factor: int, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        place(brokers([None] * 3), 1, factor)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused.value.message is not None
    assert said in refused.value.message
