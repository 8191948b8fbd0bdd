"""On which brokers new topics and partitions of the target get their replicas.

A topic gets as many replicas as wanted, as far as the target has brokers: those that are up and those that hold a
replica of any topic. One that is down holds up nothing: it is assigned its replicas, which follow when it is back.
Until then the others have the records, if they suffice for min.insync.replicas. Nobody adds replicas to a topic later,
so it must not get fewer because a broker is down.

In a target that starts, perhaps nothing tells of the others: so the number of brokers must have been the same for
``SETTLED_S`` before a topic gets fewer replicas than wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from millstream_kafka.protocol.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)

SETTLED_S = 20.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the partitions of a topic get their replicas. If enough brokers are up, the target chooses among them."""

    factor: int
    up: Sequence[int] = ()
    """All brokers that are up, if they are too few."""
    down: Sequence[int] = ()

    @property
    def later(self) -> str:
        """Words about replicas that follow later, for a log line; empty if all are there at once."""
        if not self.up:
            return ""
        missing = ", ".join(map(str, self.down))
        return (
            f": {len(self.up)} of {self.factor} replicas run, the others follow when broker {missing} is back"
        )

    def replicas(self, count: int, first: int = 0) -> Iterator[list[int]]:
        """Those of so many partitions; the brokers that are up lead in turn, and those that are down take turns."""
        for number in range(first, first + count):
            yield [*_turned(self.up, number), *_turned(self.down, number)[: self.factor - len(self.up)]]

    def topic(
        self, name: str, partitions: int, configs: Sequence[CreatableTopicConfig] = ()
    ) -> CreatableTopic:
        if not self.up:
            return CreatableTopic(name, partitions, self.factor, configs=list(configs))
        assignments = [
            CreatableReplicaAssignment(index, brokers)
            for index, brokers in enumerate(self.replicas(partitions))
        ]
        return CreatableTopic(name, -1, -1, assignments, list(configs))

    def more_partitions(self, name: str, before: int, count: int) -> CreatePartitionsTopic:
        """A request for ``count`` partitions in total."""
        if not self.up:
            return CreatePartitionsTopic(name, count, None)
        assignments = [
            CreatePartitionsAssignment(brokers) for brokers in self.replicas(count - before, before)
        ]
        return CreatePartitionsTopic(name, count, assignments)


class Placements:
    """For one worker and target. Raises BrokerError."""

    def __init__(self, target: ClusterClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._brokers, self._since = 0, 0.0
        """The number of brokers that were up, and since when."""

    async def of(self, wanted: Mapping[str, int]) -> tuple[dict[str, Placement], dict[str, str]]:
        """The placements of new topics, by their replication factors; and of those that wait, the reason."""
        if max(wanted.values()) <= len(self._target.brokers):
            return {name: Placement(factor) for name, factor in wanted.items()}, {}
        up, down = await _brokers_of(self._target)
        now = self._clock()
        if len(up) != self._brokers:
            self._brokers, self._since = len(up), now
        granted, waiting = {}, {}
        for name, factor in wanted.items():
            if factor > len(up) + len(down) and now < self._since + SETTLED_S:
                waiting[name] = (
                    f"has {factor} replicas in the source, and {len(up)} brokers run in the target:"
                    f" waiting up to {SETTLED_S:g} s for more"
                )
            else:
                granted[name] = _placed(factor, up, down)
        return granted, waiting


async def placement_at_once(target: ClusterClient, wanted: int) -> Placement:
    """The placement of a topic with this replication factor. Raises BrokerError."""
    return _placed(wanted, *await _brokers_of(target))


async def _brokers_of(target: ClusterClient) -> tuple[list[int], list[int]]:
    """The target's brokers that are up, and those that are down and hold replicas. Raises BrokerError."""
    cluster = await target.metadata(None)
    up = {broker.node_id for broker in cluster.brokers}
    assigned = {
        broker
        for topic in cluster.topics
        for partition in topic.partitions
        for broker in partition.replica_nodes
    }
    return sorted(up), sorted(assigned - up)


def _placed(wanted: int, up: Sequence[int], down: Sequence[int]) -> Placement:
    factor = max(min(wanted, len(up) + len(down)), 1)
    return Placement(factor, up, down) if 0 < len(up) < factor else Placement(factor)


def _turned(brokers: Sequence[int], number: int) -> list[int]:
    first = number % len(brokers) if brokers else 0
    return [*brokers[first:], *brokers[:first]]
