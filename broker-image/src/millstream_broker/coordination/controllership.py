"""The controller's store, in the controller's own terms.

Every write is fenced: it happens only while `epoch` is the newest controller's; otherwise it raises `Fenced`, and the
controller must stop. Writes to partition states are conditional on the versions in the records.
Watches are level-triggered: a report carries the state after the change, and changes in quick succession may arrive as
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from millstream_kafka.topic_partition import TopicPartition

from . import BrokerRecord, PartitionRecord, TopicRecord


class Fenced(Exception):
    """Another broker is the controller now, or this broker's session is over."""


@dataclass(frozen=True, slots=True)
class Image:
    """The controller's part of the tree, at one time."""

    brokers: Mapping[int, BrokerRecord]
    topics: Mapping[str, TopicRecord]
    """A partition without a state yet has leader NO_LEADER, leader_epoch -1, an empty ISR and version -1."""
    deletions: frozenset[str]
    """The topics to delete (/admin/delete_topics)."""
    known_brokers: frozenset[int] = frozenset()
    """The brokers that ever registered."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    brokers: Mapping[int, BrokerRecord]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that are new, or that another writer changed (partitions added), as in `Image.topics`."""

    topics: Mapping[str, TopicRecord]
    present: frozenset[str]
    """The names of all topics."""


@dataclass(frozen=True, slots=True)
class DeletionsRequested:
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class StatesChanged:
    """Leaders changed the ISRs of these partitions."""

    states: Mapping[TopicPartition, PartitionRecord]


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """The present configurations of topics (the controller needs min.insync.replicas and the like)."""

    topics: Mapping[str, Mapping[str, str]]
    brokers: Mapping[int | None, Mapping[str, str]]


StoreEvent = BrokersChanged | TopicsChanged | DeletionsRequested | StatesChanged | ConfigsChanged


class ControllerStore(Protocol):
    epoch: int
    """This controller's epoch; every controller has a higher one than its predecessors."""

    async def load(self, report: Callable[[StoreEvent], None]) -> Image:
        """Read everything and watch it from then on; `report` is called on the loop. Raises Fenced."""

    async def write_states(
        self, states: Mapping[TopicPartition, PartitionRecord]
    ) -> Mapping[TopicPartition, PartitionRecord]:
        """Write each state whose stored version is the record's (-1: it must not exist).

        Returns the resulting records: written ones with their new version, and the stored ones for states that somebody
        else had changed, so a record with another leader epoch than the written one shows a conflict. Raises Fenced.
        """

    async def write_assignment(self, topic: TopicRecord) -> None:
        """Write /brokers/topics/T: the replicas, adding and removing of these partitions. Raises Fenced.

        Partitions that another writer added meanwhile stay. `removing` may name brokers that are no longer among
        `replicas`: they still have to delete their logs (`reassignment`). Does nothing if the topic is gone.
        """

    async def accept_broker(self, broker: BrokerRecord) -> None:
        """Mark in the broker's registration that the consequences of its `unclean` are written. Raises Fenced.

        Does nothing if the broker is gone or has registered again, which its epoch shows.
        """

    async def remove_topic(self, name: str) -> None:
        """Remove the topic, its states, its configuration and the request for its deletion. Raises Fenced."""

    async def resign(self) -> None:
        """Resign, so that a new controller is elected. Raises Fenced if there already is another."""

    async def refuse_deletion(self, names: Collection[str]) -> None:
        """Remove deletion requests for topics that do not exist. Raises Fenced."""
