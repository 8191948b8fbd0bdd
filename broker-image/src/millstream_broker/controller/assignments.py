"""Changes of assignments on their way to the store: one write of a topic at a time, the newest wish for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord, TopicRecord


class Assignments:
    """By topic and partition's index; a record stands here for its assignment only."""

    __slots__ = ("_wanted", "_writing")

    def __init__(self) -> None:
        self._wanted: dict[str, dict[int, PartitionRecord]] = {}
        self._writing: dict[str, dict[int, PartitionRecord]] = {}

    def want(self, key: TopicPartition, record: PartitionRecord) -> None:
        self._wanted.setdefault(key[0], {})[key[1]] = record

    def is_writing(self, topic: str) -> bool:
        return topic in self._writing

    def is_wanted(self, key: TopicPartition) -> bool:
        """Whether a change is to be written after the present write, if there is one."""
        return key[1] in self._wanted.get(key[0], ())

    def newest(self, key: TopicPartition, stored: PartitionRecord) -> PartitionRecord:
        """What its assignment will be when all is written."""
        topic, index = key
        for changes in (self._wanted.get(topic, {}), self._writing.get(topic, {})):
            if index in changes:
                return changes[index]
        return stored

    def next(self) -> list[tuple[str, Collection[int]]]:
        """Topics that may be written now, with the partitions whose change is wanted."""
        return [
            (topic, tuple(changes)) for topic, changes in self._wanted.items() if topic not in self._writing
        ]

    def drop(self, topic: str) -> None:
        """What was wanted is wanted no longer, or is so already."""
        self._wanted.pop(topic, None)

    def begin(
        self, topic: TopicRecord, records: Mapping[TopicPartition, PartitionRecord]
    ) -> TopicRecord | None:
        """The topic as it is to be written; None where that would change nothing."""
        name = topic.name
        changes = self._wanted.pop(name)
        if all(_same(records[name, index], record) for index, record in changes.items()):
            return None
        self._writing[name] = changes
        count = len(topic.partitions)
        return replace(
            topic, partitions=tuple(changes.get(index, records[name, index]) for index in range(count))
        )

    def written(self, topic: str) -> Mapping[int, PartitionRecord]:
        """The changes that were written."""
        return self._writing.pop(topic, {})


def _same(one: PartitionRecord, other: PartitionRecord) -> bool:
    return (one.replicas, one.adding, one.removing) == (other.replicas, other.adding, other.removing)
