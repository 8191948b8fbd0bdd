"""Existing topics and their numbers of partitions; added partitions count within a minute."""

from __future__ import annotations

import time
from typing import Final

from millstream.connection import Cluster
from millstream.errors import BadPartition
from millstream.producing.partitioners import Partitioner

MAX_AGE_S: Final = 60.0


class PartitionCounts:
    """Counts by topic, each at most MAX_AGE_S old."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.known: dict[str, tuple[int, float]] = {}

    def of(self, topic: str) -> int:
        """UnknownTopic if there is none of that name."""
        return self._look(topic) if self.is_old(topic) else self.known[topic][0]

    def is_old(self, topic: str) -> bool:
        """Whether the count is unknown or too old."""
        known = self.known.get(topic)
        return known is None or time.monotonic() - known[1] > MAX_AGE_S

    def choose(self, partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None) -> int:
        """The partitioner's choice; BadPartition if that partition does not exist."""
        count = self.of(topic)
        chosen = partitioner(topic, key, value, count)
        if type(chosen) is int and 0 <= chosen < count:
            return chosen
        name = getattr(partitioner, "__name__", type(partitioner).__name__)
        raise BadPartition(f"partitioner {name} returned {chosen!r} for {topic}", f"return {_allowed(count)}")

    def check(self, topic: str, partition: object) -> None:
        """BadPartition when the topic does not have it; partitions that were added since the last look count."""
        if type(partition) is int and 0 <= partition < self.known[topic][0]:
            return
        count = self._look(topic)
        if type(partition) is not int or not 0 <= partition < count:
            raise BadPartition(f"{topic} has no partition {partition!r}", f"write {_allowed(count)}")

    def _look(self, topic: str) -> int:
        count = len(self._cluster.partitions(topic))
        self.known[topic] = (count, time.monotonic())
        return count


def _allowed(count: int) -> str:
    return f"a number from 0 to {count - 1}: the topic has {count} partition{'s' * (count != 1)}"
