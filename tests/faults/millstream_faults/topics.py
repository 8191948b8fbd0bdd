"""The topics of a run, and which of two topics of one name a record belongs to.

STEADY       is never deleted, and keeps every record
ANEW         is recreated, gets partitions, loses records to DeleteRecords and retention
COMPACTED    keeps the last record of each key; it is recreated, too
LISTS        gets the values of transactions; each partition is a list
COPIES       gets the values of LISTS, each copied in a transaction with the position of the copy
ODD          receives a hostile client's batches; no invariant covers it

Clients name topics by their names, so a request that is under way while its topic is deleted may take effect in either
of the two. A request certainly met an id only if the client sent it after the topic was known to exist and got the
response before the deletion was requested. (The name is free only when every replica is gone, so nothing of the old
topic responds after that.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .history import ConfigAltered, Event, RecordsDeleted, TopicCreated, TopicDeleted, TopicLost

STEADY = "faults"
ANEW = "anew"
COMPACTED = "compacted"
LISTS = "lists"
COPIES = "copies"
ODD = "odd"

Place = tuple[str, int]
"""A topic's id and a partition."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How a topic is created."""

    partitions: int
    config: Mapping[str, str]
    replicas: int = 3

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")


FOREVER = {"retention.ms": "-1"}
"""A broker that does not know this setting deletes the records if its clock is an hour ahead."""
PLANS = {
    STEADY: TopicPlan(6, FOREVER),
    # With two replicas, the third broker may coordinate the group: it learns of a deletion in another way.
    ANEW: TopicPlan(3, FOREVER | {"min.insync.replicas": "1"}, replicas=2),
    COMPACTED: TopicPlan(
        3,
        FOREVER
        | {
            "cleanup.policy": "compact",
            "segment.ms": "2000",
            "min.cleanable.dirty.ratio": "0.01",
            # Longer than any replica lags, by any broker's clock: a replica that misses a tombstone keeps the value, as
            # in Kafka.
            "delete.retention.ms": "7240000",
        },
    ),
    # Many segments: transactions that span them, and recovery that begins at a snapshot.
    LISTS: TopicPlan(4, FOREVER | {"segment.bytes": "30000"}),
    COPIES: TopicPlan(4, FOREVER),
    ODD: TopicPlan(
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "1000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1000",
        },
    ),
}
MOST_PARTITIONS = 6


class Lives:
    """The period in which each topic id had its name."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.created: dict[str, TopicCreated] = {}
        self.deleted: dict[str, TopicDeleted | TopicLost] = {}
        """The topics that no longer exist, because somebody deleted them or a restored tree does not know them."""
        self.records_deleted: dict[Place, list[RecordsDeleted]] = defaultdict(list)
        self._retained: set[str] = set()
        for event in events:
            match event:
                case TopicCreated():
                    self.created[event.topic] = event
                case TopicDeleted() | TopicLost():
                    self.deleted[event.topic] = event
                case RecordsDeleted():
                    self.records_deleted[event.topic, event.partition].append(event)
                case ConfigAltered(_, _, topic, key, value) if key.startswith("retention") and value != "-1":
                    self._retained.add(topic)

    def name(self, topic: str) -> str:
        """The name of an id; the id itself if no topic was created with it."""
        return self.created[topic].name if topic in self.created else topic

    def is_steady(self, topic: str) -> bool:
        return topic not in self.deleted

    def is_compacted(self, topic: str) -> bool:
        return topic in self.created and self.created[topic].is_compacted

    def is_certain(self, topic: str, sent: float, answered: float) -> bool:
        """Whether a request sent and answered at these times can only have met this id."""
        created, deleted = self.created.get(topic), self.deleted.get(topic)
        return (created is None or sent >= created.at) and (deleted is None or answered <= deleted.asked)

    def start(self, place: Place) -> float:
        """The offset before which records may be gone, because of DeleteRecords or retention."""
        if place[0] in self._retained:
            return float("inf")
        return max((one.offset for one in self.records_deleted[place]), default=0)

    def kept_from(self, place: Place, asked: float) -> int:
        """The offset before which a request sent at this time may not read."""
        return max(
            (one.offset for one in self.records_deleted[place] if 0 <= one.at < asked),
            default=0,
        )
