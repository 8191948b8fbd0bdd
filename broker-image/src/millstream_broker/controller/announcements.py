"""Collects the controller's updates to brokers, for the end of an event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Mapping

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord, TopicRecord
from ..runtime.ordered_set import OrderedSet
from ..runtime.steps import Steps
from .messages import Push, StopReplicas


class Announcements:
    """Partitions with a newly stored state, and replicas that must stop fetching."""

    __slots__ = ("_announced", "_to_push", "_to_stop")

    def __init__(self) -> None:
        self._announced: dict[str, int] = {}
        """By topic: how many of its partitions brokers have received."""
        self._to_push = OrderedSet[TopicPartition]()
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

    def forget(self, topic: str) -> None:
        self._to_push = OrderedSet(key for key in self._to_push if key[0] != topic)
        self._announced.pop(topic, None)

    def take(
        self, topics: Mapping[str, TopicRecord], deletions: Container[str], brokers: Collection[int]
    ) -> Steps[list[Push | StopReplicas]]:
        """Take everything collected. A topic is first announced as a whole, including partitions without a leader.

        Yields after each partition.
        """
        to_push, self._to_push = self._to_push, OrderedSet[TopicPartition]()
        partitions: dict[TopicPartition, None] = {}
        for key in to_push:
            yield
            name = key[0]
            if name in deletions:
                continue
            count = len(topics[name].partitions)
            for index in range(self._announced.get(name, 0), count):
                partitions[name, index] = None
                yield
            self._announced[name] = count
            partitions[key] = None
        to_stop, self._to_stop = self._to_stop, defaultdict(dict)
        push = [Push(tuple(brokers), partitions)] if partitions and brokers else []
        return [*push, *(StopReplicas(broker, stops, False) for broker, stops in to_stop.items())]
