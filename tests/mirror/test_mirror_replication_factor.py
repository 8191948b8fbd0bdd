"""The replication factor of new topics in the target: a broker that is down is not one that does not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
)
from millstream_mirror.replication import SETTLED_S, ReplicationFactors, factor_at_once


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


def factors(target: Target, now: Now | None = None) -> ReplicationFactors:
    return ReplicationFactors(target, now or Now())  # type: ignore[arg-type]


async def test_enough_brokers_are_no_question() -> None:
    target = Target({1, 2, 3})
    assert await factors(target).of({"a": 3, "b": 1}) == ({"a": 3, "b": 1}, {})
    assert target.queries == 0


async def test_a_topic_waits_for_a_broker_that_is_down() -> None:
    target, now = Target({1, 2}, 1, 3), Now()
    found = factors(target, now)
    for _ in range(3):
        granted, waiting = await found.of({"a": 3, "b": 2})
        assert granted == {"b": 2}
        assert waiting == {"a": "needs 3 replicas, and 2 brokers run in the target: start broker 3"}
        now.seconds += SETTLED_S
    target.up.add(3)
    assert await found.of({"a": 3}) == ({"a": 3}, {})


async def test_a_small_target_gets_fewer_replicas_once_its_size_is_known() -> None:
    """Brokers start one after the other: each begins the wait again."""
    target, now = Target({1}), Now()
    found = factors(target, now)
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
    assert await found.of({"a": 3, "b": 4}) == ({"a": 2, "b": 2}, {})


async def test_a_topic_of_one_replica_waits_for_nothing() -> None:
    assert await factors(Target({1}, 1, 2)).of({"a": 1}) == ({"a": 1}, {})


async def test_a_set_aside_topic_gets_as_many_as_there_are_at_once() -> None:
    assert await factor_at_once(Target({1, 2}), 3) == 2  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="start broker 3") as refused:
        await factor_at_once(Target({1, 2}, 3), 3)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
