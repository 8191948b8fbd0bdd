"""`millstream doctor` names the brokers to start when partitions have no leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millstream.diagnosis import _leaderless


def metadata(live: set[int], **topics: list[tuple[int, list[int]]]) -> Any:
    """Topics with leader and replicas of each partition, as librdkafka's."""
    return SimpleNamespace(
        brokers=dict.fromkeys(live),
        topics={
            name: SimpleNamespace(
                topic=name,
                partitions={
                    number: SimpleNamespace(id=number, leader=leader, replicas=replicas)
                    for number, (leader, replicas) in enumerate(partitions)
                },
            )
            for name, partitions in topics.items()
        },
    )


def problems(found: Any) -> list[str]:
    return [one.problem for one in _leaderless("here:9092", found)]


def test_partitions_with_leaders_are_no_finding() -> None:
    assert problems(metadata({1, 2}, a=[(1, [1, 3]), (2, [2])])) == []


def test_brokers_that_should_have_a_partition_are_named() -> None:
    (problem,) = problems(metadata({1}, a=[(1, [1, 2]), (-1, [1, 3, 2])]))
    assert problem.startswith(
        "1 partition has no leader: a-1; start brokers 2, 3, which should have it; after a"
    )
    (problem,) = problems(metadata({1}, a=[(-1, [2])] * 7))
    assert problem.startswith(
        "7 partitions have no leader: a-0, a-1, a-2, a-3, a-4 and 2 more; start broker 2, which"
    )
    (problem,) = problems(metadata({1, 2}, a=[(-1, [2]), (2, [2])], b=[(7, [1])]))
    assert problem.startswith(
        "2 partitions have no leader: a-0, b-0; all brokers that should have them run; after a"
    )
