"""Requests to brokers and their responses as plain records, for plans that need no connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

EARLIEST, LATEST = -2, -1  # timestamps that ListOffsets understands
BROKERS_DEFAULT = -1  # a count in CreateTopics
OWNER = "millstream.topic.owner"
"""The topic's setting that names its Topic resource, NAMESPACE/NAME."""


class AdminError(Exception):
    """No broker responds, or a whole request failed; the message is for the user."""


class NotSupported(AdminError):
    """The brokers do not know this request."""


_STRAY = re.compile(r".+-[0-9]+\.([0-9a-f]{32})-stray")


def stray_id(folder: str) -> str | None:
    """The topic id, in hexadecimal, in the name of a stray's folder; None for the name of a topic.

    Brokers list strays, logs that fit no topic and that nobody deleted, by their folders, among the topics.
    """
    found = _STRAY.fullmatch(folder)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's refusal for one topic or group: Kafka's error name and the broker's words."""

    error: str
    message: str

    def __str__(self) -> str:
        return self.message or self.error

    def is_one_of(self, *names: str) -> bool:
        """Compare by Kafka's error names, or a client's ("NonEmptyGroupError")."""
        short = self.error.replace("_", "").removesuffix("Error").lower()
        return short in {name.replace("_", "").lower() for name in names}


class Partition(NamedTuple):
    topic: str
    partition: int


def no_leader(partitions: Iterable[Partition]) -> str:
    """The words for partitions without a leader: the first five of them."""
    names = [f"{one.topic}-{one.partition}" for one in sorted(partitions)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    verb = "has" if len(names) == 1 else "have"
    return f"{', '.join(names[:5])}{more} {verb} no leader: start a broker that has a replica"


MARK_PARTITION = Partition("__consumer_offsets", 0)
"""Partition of a group's mark: a position that no consumer reads."""
MARK = "millstream.dev/"
"""Prefix of a mark's metadata."""


class Mark(NamedTuple):
    """A note that is committed with a group's positions. ``name`` begins with ``MARK``; ``step`` counts its commits."""

    name: str
    step: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's state on the brokers. ``config``: the keys set on the topic itself. ``size_bytes``: all copies."""

    topic_id: str
    partitions: int
    replication_factor: int
    under_replicated: int
    config: Mapping[str, str]
    size_bytes: int | None = None
    even: bool = True
    """Whether all partitions have the same number of replicas."""
    owner: str | None = None
    """The Topic resource that the topic's setting OWNER names; None if the brokers do not know the setting."""


class TopicIdentity(NamedTuple):
    """Identifies a topic: one that is deleted and recreated has another id.

    ``topic_id`` is None if the brokers do not support topic ids.
    """

    topic_id: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """A partition's replicas, the preferred leader first, and its topic's min.insync.replicas."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int = 1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: until it ends, a partition's replicas are the old and the new ones."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


Reassignments = Mapping[tuple[str, int], Reassignment]


class StrayLog(NamedTuple):
    """A stray on a broker; see ``stray_id``."""

    broker: int
    topic_id: str
    size: int
    partition: int = 0


@dataclass(frozen=True, slots=True)
class BrokersState:
    """The live brokers with their racks, and the controller (-1: none)."""

    racks: Mapping[int, str | None]
    controller: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``partitions``, ``replication_factor``: None takes the brokers' default."""

    name: str
    partitions: int | None
    replication_factor: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Keys to set on a topic, and keys to reset to the brokers' default."""

    set: Mapping[str, str]
    reset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMember:
    client_id: str
    host: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """``state`` by Kafka's names: Empty, Stable, PreparingRebalance, CompletingRebalance, Dead (it does not exist)."""

    state: str
    members: tuple[GroupMember, ...]
