"""Requests to brokers and their responses as plain records, for plans that need no connection.

Those of any client of Kafka are `millstream_kafka.admin`'s; plans import all of them from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millstream_kafka import group_mark
from millstream_kafka.acl import OPERATIONS as POSSIBLE_OPERATIONS
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl, AclFilter, QuotaChange, ScramCredential, ScramUser
from millstream_kafka.admin.records import BrokersState, ConfigChange, NewTopic, Reassignment, Refusal
from millstream_kafka.protocol.list_offsets import EARLIEST, LATEST
from millstream_kafka.scram_mechanism import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from millstream_kafka.topic_owner import KEY as OWNER

__all__ = [
    "EARLIEST",
    "LATEST",
    "MARK",
    "MARK_PARTITION",
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "OWNER",
    "POSSIBLE_OPERATIONS",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AdminError",
    "BrokersState",
    "ConfigChange",
    "GroupMember",
    "GroupState",
    "Mark",
    "NewTopic",
    "NotAuthorized",
    "NotSupported",
    "Partition",
    "PartitionReplicas",
    "PatternType",
    "PermissionType",
    "QuotaChange",
    "Reassignment",
    "Reassignments",
    "Refusal",
    "ResourceType",
    "ScramCredential",
    "ScramMechanism",
    "ScramUser",
    "StrayLog",
    "TopicIdentity",
    "TopicState",
    "no_leader",
    "stray_topic",
]


class AdminError(Exception):
    """No broker responds, or a whole request failed; the message is for the user."""


class NotSupported(AdminError):
    """The brokers do not know this request."""


class NotAuthorized(AdminError):
    """The brokers refuse the operator itself."""


_STRAY = re.compile(r"(.+)-[0-9]+\.([0-9a-f]{32})-stray")


class StrayTopic(NamedTuple):
    """The topic of a stray. ``name``: its first 200 characters or less, if it is long; ``topic_id`` in hexadecimal."""

    name: str
    topic_id: str


def stray_topic(folder: str) -> StrayTopic | None:
    """What the name of a stray's folder says of its topic; None for the name of a topic.

    Brokers list strays, logs that fit no topic and that nobody deleted, by their folders, among the topics.
    """
    found = _STRAY.fullmatch(folder)
    return None if found is None else StrayTopic(found[1], found[2])


class Partition(NamedTuple):
    topic: str
    partition: int


def no_leader(partitions: Iterable[Partition]) -> str:
    """The words for partitions without a leader: the first five of them."""
    names = [f"{partition.topic}-{partition.partition}" for partition in sorted(partitions)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    verb = "has" if len(names) == 1 else "have"
    return f"{', '.join(names[:5])}{more} {verb} no leader: start a broker that has a replica"


MARK_PARTITION = Partition(*group_mark.PARTITION)
"""Partition of a group's mark: a position that no consumer reads."""
MARK = group_mark.PREFIX
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


Reassignments = Mapping[tuple[str, int], Reassignment]


class StrayLog(NamedTuple):
    """A stray on a broker. ``topic``: see ``StrayTopic``."""

    broker: int
    topic_id: str
    size: int
    partition: int = 0
    topic: str = ""


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
