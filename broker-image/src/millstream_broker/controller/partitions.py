"""The partitions as a controller knows them: their stored state, events since, and their brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord, shared
from ..runtime.ordered_set import OrderedSet
from ..runtime.steps import Steps, portions
from . import reassignment


@dataclass(slots=True)
class Notes:
    """The facts for a partition's next state, besides the stored state."""

    restarted: set[int] = field(default_factory=set)
    forgetful: set[int] = field(default_factory=set)
    preferred: bool = False
    unclean: bool = False
    new_epoch: bool = False
    doubted: bool = False
    """The store was restored from an older copy."""
    missed: int = 0
    """Leader epochs that may have been given and forgotten."""

    def add(self, other: Notes) -> None:
        self.restarted |= other.restarted
        self.forgetful |= other.forgetful
        self.preferred |= other.preferred
        self.unclean |= other.unclean
        self.new_epoch |= other.new_epoch
        self.doubted |= other.doubted
        self.missed = max(self.missed, other.missed)


class Partitions:
    """Records by partition, indexed by broker. `dirty` are those to look at."""

    __slots__ = ("_left", "_of_broker", "dirty", "notes", "records")

    def __init__(self) -> None:
        self.records: dict[TopicPartition, PartitionRecord] = {}
        self.notes: dict[TopicPartition, Notes] = {}
        self.dirty = OrderedSet[TopicPartition]()
        self._of_broker: dict[int, OrderedSet[TopicPartition]] = defaultdict(OrderedSet)
        self._left = OrderedSet[TopicPartition]()
        """Partitions that brokers which are no longer replicas must still delete."""

    def of_broker(self, broker: int) -> Set[TopicPartition]:
        """The partitions of which it is a replica, or whose logs it must still delete."""
        return self._of_broker[broker]

    def leads(self, broker: int) -> Iterable[TopicPartition]:
        return (key for key in self._of_broker[broker] if self.records[key].leader == broker)

    def note(self, key: TopicPartition) -> Notes:
        """The notes for the partition's next look, which follows soon."""
        self.dirty.add(key)
        if (notes := self.notes.get(key)) is None:
            notes = self.notes[key] = Notes()
        return notes

    def note_end(self, broker: int) -> Steps[None]:
        """A broker's process or session has ended: in each ISR, it counts as restarted when it returns."""
        for key in self._of_broker[broker]:
            if broker in self.records[key].isr:
                self.note(key).restarted.add(broker)
            yield
        self.dirty.update(self._of_broker[broker])

    def note_return(self, broker: BrokerRecord) -> Steps[None]:
        """A broker has registered."""
        for key in self._of_broker[broker.broker_id]:
            self.dirty.add(key)
            if broker.unclean:
                self.note(key).forgetful.add(broker.broker_id)
            yield

    def doubt(self, missed: int, except_: Container[TopicPartition]) -> Steps[None]:
        """The store was restored from an older copy, and has forgotten this many changes."""
        for key in list(self.records):
            if key in self.records and key not in except_:
                notes = self.note(key)
                notes.doubted, notes.missed = True, max(notes.missed, missed)
            yield

    def add(self, key: TopicPartition, record: PartitionRecord) -> None:
        self.records[key] = record
        leftover = reassignment.leftover(record)
        for broker in (*record.replicas, *leftover):
            self._of_broker[broker].add(key)
        if leftover:
            self._left.add(key)
        else:
            self._left.discard(key)
        self.dirty.add(key)

    def forget(self, key: TopicPartition) -> None:
        for broker in _involved(self.records.pop(key)):
            self._of_broker[broker].discard(key)
        self._left.discard(key)
        self.notes.pop(key, None)
        self.dirty.discard(key)

    def take_state(self, key: TopicPartition, stored: PartitionRecord) -> bool:
        """Take leader and ISR if they are newer than the known ones; returns whether they were."""
        known = self.records[key]
        if stored.version <= known.version:
            return False
        self.records[key] = shared(
            replace(stored, replicas=known.replicas, adding=known.adding, removing=known.removing)
        )
        self.dirty.add(key)
        return True

    def take_assignment(self, key: TopicPartition, stored: PartitionRecord) -> None:
        known = self.records[key]
        for broker in _involved(known):
            self._of_broker[broker].discard(key)
        self.add(
            key, replace(known, replicas=stored.replicas, adding=stored.adding, removing=stored.removing)
        )

    def to_delete(self, broker: int, among: Set[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The partitions of which it is no longer a replica and has not confirmed the deletion, with leader epochs.

        Only those in `among`, if given.
        """
        left = self._left if among is None else self._left & among
        return {
            key: self.records[key].leader_epoch
            for key in left & self._of_broker[broker]
            if broker not in self.records[key].replicas
        }


def topic_portions(
    topics: Iterable[Mapping[TopicPartition, PartitionRecord]], size: int
) -> Iterator[dict[TopicPartition, PartitionRecord]]:
    """The topics' records, `size` or a few more at a time; a topic of up to `size` partitions is in one portion.

    So most topics are written, announced and opened as a whole, never without some of their leaders.
    """
    portion: dict[TopicPartition, PartitionRecord] = {}
    for topic in topics:
        for some in portions(topic.items(), size):
            portion.update(some)
            if len(portion) >= size:
                yield portion
                portion = {}
    if portion:
        yield portion


def _involved(record: PartitionRecord) -> tuple[int, ...]:
    return (*record.replicas, *reassignment.leftover(record))
