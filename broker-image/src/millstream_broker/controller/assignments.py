"""Pending changes of assignments: one write for each topic at a time, with the newest request for each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord, TopicRecord


class Assignments:
    """Changes by topic and partition index; only the assignment in a record matters here."""

    __slots__ = ("_wanted", "_writing")

    def __init__(self) -> None:
        self._wanted: dict[str, dict[int, PartitionRecord]] = {}
        self._writing: dict[str, dict[int, PartitionRecord]] = {}

    def want(self, key: TopicPartition, record: PartitionRecord) -> None:
        self._wanted.setdefault(key[0], {})[key[1]] = record

    def is_writing(self, topic: str) -> bool:
        return topic in self._writing

    def is_wanted(self, key: TopicPartition) -> bool:
        """Whether a change waits to be written, perhaps after the current write."""
        return key[1] in self._wanted.get(key[0], ())

    def newest(self, key: TopicPartition, stored: PartitionRecord) -> PartitionRecord:
        """The partition's assignment once everything is written."""
        topic, index = key
        for changes in (self._wanted.get(topic, {}), self._writing.get(topic, {})):
            if index in changes:
                return changes[index]
        return stored

    def next(
        self, records: Mapping[TopicPartition, PartitionRecord], deleted: Set[str] = frozenset()
    ) -> list[tuple[str, Collection[int]]]:
        """Topics that may be written now, with their changed partitions; all those of `deleted` topics."""
        found = (
            (topic, tuple(i for i in changes if topic in deleted or self._is_due((topic, i), records)))
            for topic, changes in self._wanted.items()
            if topic not in self._writing
        )
        return [(topic, indexes) for topic, indexes in found if indexes]

    def _is_due(self, key: TopicPartition, records: Mapping[TopicPartition, PartitionRecord]) -> bool:
        """Whether no broker comes back that is still in the ISR since it was a replica: it may have deleted its log."""
        stored = records.get(key)
        if stored is None:
            return True
        back = [r for r in self._wanted[key[0]][key[1]].adding if r not in stored.replicas]
        return not any(r in stored.isr or r in stored.elr for r in back)

    def drop(self, topic: str) -> None:
        """Drop a topic's changes: they are obsolete, or already stored."""
        self._wanted.pop(topic, None)

    def begin(
        self,
        topic: TopicRecord,
        records: Mapping[TopicPartition, PartitionRecord],
        indexes: Collection[int],
    ) -> TopicRecord | None:
        """The topic to write, with the changes of the partitions that `next` returned; None if nothing would change."""
        name = topic.name
        wanted = self._wanted[name]
        changes = {index: wanted.pop(index) for index in indexes}
        if not wanted:
            del self._wanted[name]
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
