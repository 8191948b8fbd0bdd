"""Deletion of topics: complete when no broker has their logs or lists them.

Every live broker learns that the topic is being deleted, and then deletes its replicas; a broker without replicas
confirms at once, and so no longer lists the topic. The controller waits for brokers with replicas that are down until
they return. Only then does it remove the topic from the store, and the name is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord
from ..runtime.steps import Steps
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
    ) -> Steps[None]:
        self.begun = True
        self.replicas = frozenset(replicas)
        for broker in {*live, *self.replicas}:
            self._left[broker] = set(partitions)
            yield

    def arrived(self, broker: int, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """A broker is new or back: ignore its earlier confirmations. Yields after each partition."""
        if self.begun:
            left = self._left[broker] = set[TopicPartition]()
            for key in partitions:
                left.add(key)
                yield

    def gone(self, broker: int) -> None:
        """A broker is gone: without replicas it need not confirm."""
        if broker not in self.replicas:
            self._left.pop(broker, None)

    def stopped(self, broker: int, partitions: Iterable[TopicPartition]) -> None:
        if (left := self._left.get(broker)) is not None:
            left.difference_update(partitions)
            if not left:
                del self._left[broker]

    def left(self, broker: int) -> Set[TopicPartition]:
        """The replicas it must still delete."""
        return self._left.get(broker, frozenset())

    @property
    def is_done(self) -> bool:
        return self.begun and not self._left


def begin(
    deletion: Deletion,
    live: Collection[int],
    partitions: Iterable[TopicPartition],
    records: Mapping[TopicPartition, PartitionRecord],
) -> Steps[list[Push | StopReplicas]]:
    """Announce the deletion to every live broker, and make it delete its replicas. Yields after each partition.

    A broker learns from any partition that its topic is being deleted (`coordination.view`).
    """
    replicas: set[int] = set()
    epochs: dict[TopicPartition, int] = {}
    for key in partitions:
        replicas.update(records[key].replicas, records[key].removing)
        epochs[key] = EPOCH_DURING_DELETE
        yield
    yield from deletion.begin(live, replicas, epochs)
    return [Push(tuple(live), [*epochs][:1]), *(StopReplicas(broker, epochs, True) for broker in live)]


def stopped(deletions: Mapping[str, Deletion], broker: int, partitions: Iterable[TopicPartition]) -> None:
    """A broker has deleted these replicas, of any topics."""
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for key in partitions:
        by_topic[key[0]].append(key)
    for name, keys in by_topic.items():
        if (deletion := deletions.get(name)) is not None:
            deletion.stopped(broker, keys)
