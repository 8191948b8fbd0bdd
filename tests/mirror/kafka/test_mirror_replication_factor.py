"""The replicas of new topics in the target: a broker that is down is not one that does not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millstream_kafka.protocol.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
)
from millstream_mirror.kafka.placement import SETTLED_S, Placement, Placements, placement_at_once


class Target:
    """A cluster with these brokers up, and one topic on others."""

    def __init__(self, up: set[int], *assigned: int) -> None:
        self.up = up
        self.assigned = assigned
        self.queries = 0

    @property
    def brokers(self) -> dict[int, Any]:
        return dict.fromkeys(self.up, ("host", 9092))

    async def metadata(self, topics: object) -> MetadataResponse:
        assert topics is None
        self.queries += 1
        partition = MetadataResponsePartition(0, 0, 1, 0, list(self.assigned), [], [])
        topic = SimpleNamespace(name="t", error_code=0, partitions=[partition])
        brokers = [SimpleNamespace(node_id=one) for one in self.up]
        return SimpleNamespace(brokers=brokers, topics=[topic])  # type: ignore[return-value]


class Now:
    """A clock."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def placements(target: Target, now: Now | None = None) -> Placements:
    return Placements(target, now or Now())  # type: ignore[arg-type]


async def test_enough_brokers_need_no_decision() -> None:
    target = Target({1, 2, 3})
    granted, waiting = await placements(target).of({"a": 3, "b": 1})
    assert (granted, waiting) == ({"a": Placement(3), "b": Placement(1)}, {})
    assert target.queries == 0
    topic = granted["a"].topic("a", 2)
    assert (topic.num_partitions, topic.replication_factor, topic.assignments) == (2, 3, [])
    assert granted["a"].more_partitions("a", 2, 5).assignments is None
    assert granted["a"].later == ""


async def test_stopped_broker_gets_replicas() -> None:
    granted, waiting = await placements(Target({1, 2}, 1, 3)).of({"a": 3, "b": 2})
    assert (granted, waiting) == ({"a": Placement(3, [1, 2], [3]), "b": Placement(2)}, {})
    topic = granted["a"].topic("a", 3)
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    assert [(one.partition_index, one.broker_ids) for one in topic.assignments] == [
        (0, [1, 2, 3]),
        (1, [2, 1, 3]),
        (2, [1, 2, 3]),
    ]
    more = granted["a"].more_partitions("a", 3, 5)
    assert [one.broker_ids for one in more.assignments or []] == [[2, 1, 3], [1, 2, 3]]
    assert granted["a"].later == ": 2 of 3 replicas run, the others follow when broker 3 is back"


async def test_stopped_brokers_take_turns() -> None:
    granted, _ = await placements(Target({1}, 2, 3)).of({"a": 2})
    assert list(granted["a"].replicas(4)) == [[1, 2], [1, 3], [1, 2], [1, 3]]


async def test_small_target_gets_fewer_replicas() -> None:
    """Brokers start one after the other: each begins the wait again."""
    target, now = Target({1}), Now()
    found = placements(target, now)
    waits = (
        "has 3 replicas in the source, and {} brokers run in the target: waiting up to 20 s for more".format
    )
    assert await found.of({"a": 3}) == ({}, {"a": waits(1)})
    now.seconds += SETTLED_S - 1
    target.up.add(2)
    assert await found.of({"a": 3}) == ({}, {"a": waits(2)})
    now.seconds += SETTLED_S - 1
    assert await found.of({"a": 3}) == ({}, {"a": waits(2)})
    now.seconds += 1
    assert await found.of({"a": 3, "b": 4}) == ({"a": Placement(2), "b": Placement(2)}, {})


async def test_set_aside_topic_is_placed_immediately() -> None:
    assert await placement_at_once(Target({1, 2}), 3) == Placement(2)  # type: ignore[arg-type]
    placed = await placement_at_once(Target({1, 2}, 3), 3)  # type: ignore[arg-type]
    assert placed == Placement(3, [1, 2], [3])
