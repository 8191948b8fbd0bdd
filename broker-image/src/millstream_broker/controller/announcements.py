"""Collects the controller's updates to brokers, for the end of an event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord, TopicRecord
from .messages import Push, StopReplicas


class Announcements:
    """Partitions with a newly stored state, and replicas that must stop fetching."""

    __slots__ = ("_announced", "_to_push", "_to_stop")

    def __init__(self) -> None:
        self._announced: dict[str, int] = {}
        """By topic: how many of its partitions brokers have received."""
        self._to_push: set[TopicPartition] = set()
        self._to_stop: dict[int, dict[TopicPartition, int]] = defaultdict(dict)

    def push(self, key: TopicPartition) -> None:
        """Send this partition's stored state to every broker."""
        self._to_push.add(key)

    def stop_leaving(
        self,
        leaving: Collection[int],
        key: TopicPartition,
        before: PartitionRecord,
        after: PartitionRecord,
    ) -> None:
        """A broker that is shutting down and has left the ISR must not fetch itself back into it."""
        for broker in before.isr:
            if broker in leaving and broker not in after.isr:
                self._to_stop[broker][key] = after.leader_epoch

    def forget(self, topic: str, keys: Collection[TopicPartition]) -> None:
        self._to_push.difference_update(keys)
        self._announced.pop(topic, None)

    def take(
        self, topics: Mapping[str, TopicRecord], deletions: Container[str], brokers: Collection[int]
    ) -> Iterator[Push | StopReplicas]:
        """Take everything collected. A topic is first announced as a whole, including partitions without a leader."""
        partitions = {key for key in self._to_push if key[0] not in deletions}
        self._to_push.clear()
        for name in {key[0] for key in partitions}:
            count = len(topics[name].partitions)
            partitions.update((name, index) for index in range(self._announced.get(name, 0), count))
            self._announced[name] = count
        if partitions and brokers:
            yield Push(tuple(brokers), partitions)
        for broker, stops in self._to_stop.items():
            yield StopReplicas(broker, stops, False)
        self._to_stop.clear()
