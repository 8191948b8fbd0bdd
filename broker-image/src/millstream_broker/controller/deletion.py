"""Deletion of topics: complete when no broker has their logs or lists them.

Every live broker learns that the topic is being deleted, and then deletes its replicas; a broker without replicas
confirms at once, and so no longer lists the topic. The controller waits for brokers with replicas that are down until
they are back. Only then does it remove the topic from the store, and the name is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord
from .messages import Push, StopReplicas

EPOCH_DURING_DELETE = -2


class Deletion:
    """The deletion of one topic."""

    __slots__ = ("_left", "begun", "name", "removing", "replicas")

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = False
        """Whether the deletion was sent to brokers, which waits for pending writes to the topic's partitions."""
        self.removing = False
        self.replicas: frozenset[int] = frozenset()
        self._left: dict[int, set[TopicPartition]] = {}

    def begin(
        self, live: Collection[int], replicas: Iterable[int], partitions: Collection[TopicPartition]
    ) -> None:
        self.begun = True
        self.replicas = frozenset(replicas)
        self._left = {broker: set(partitions) for broker in {*live, *self.replicas}}

    def arrived(self, broker: int, partitions: Collection[TopicPartition]) -> None:
        """A broker is new or back: ignore its earlier confirmations."""
        if self.begun:
            self._left[broker] = set(partitions)

    def gone(self, broker: int) -> None:
        """A broker is gone: without replicas it need not confirm."""
        if broker not in self.replicas:
            self._left.pop(broker, None)

    def stopped(self, broker: int, partitions: Iterable[TopicPartition]) -> None:
        if (left := self._left.get(broker)) is not None:
            left.difference_update(partitions)
            if not left:
                del self._left[broker]

    def left(self, broker: int) -> Collection[TopicPartition]:
        """The replicas it must still delete."""
        return self._left.get(broker, ())

    @property
    def is_done(self) -> bool:
        return self.begun and not self._left


def begin(
    deletion: Deletion, live: Collection[int], partitions: Mapping[TopicPartition, PartitionRecord]
) -> Iterator[Push | StopReplicas]:
    """Tell every live broker, and have it delete its replicas."""
    replicas = {r for record in partitions.values() for r in (*record.replicas, *record.removing)}
    deletion.begin(live, replicas, partitions.keys())
    yield Push(tuple(live), list(partitions))
    epochs = dict.fromkeys(partitions, EPOCH_DURING_DELETE)
    for broker in live:
        yield StopReplicas(broker, epochs, True)


def stopped(deletions: Mapping[str, Deletion], broker: int, partitions: Iterable[TopicPartition]) -> None:
    """A broker has deleted these replicas, of any topics."""
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for key in partitions:
        by_topic[key[0]].append(key)
    for name, keys in by_topic.items():
        if (deletion := deletions.get(name)) is not None:
            deletion.stopped(broker, keys)
