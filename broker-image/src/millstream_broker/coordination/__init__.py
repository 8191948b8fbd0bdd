"""The shared state of a cluster: live brokers, topics, leaders, and their epochs.

stores             where the tree is stored: ZooKeeper's servers, or a file
tree               the classic tree: paths and JSON
coordination       one broker's reads and writes
controller_store   the controller's reads and writes
configs            configuration of topics, brokers and entities, and the notes of its changes
entities           users, client ids and addresses that have configuration
fencing            which controller requests to accept
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..config.config import Listener

NO_LEADER = -1
NO_STATE = -1
"""The version of a partition's state that does not exist yet."""
OVERRIDE = "unclean.coordination.enable"
"""The configuration key that lets a broker start with data that the tree does not know."""
SHARED = 1000
"""Limit of records that partitions share."""


class CoordinationError(ApiError):
    """Coordination failed; the message says why, in one line. Clients get it too."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message


class Conflict(CoordinationError):
    """The object to change has changed since it was read."""


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A live broker."""

    broker_id: int
    listeners: tuple[Listener, ...]
    rack: str | None = None
    epoch: int = 0
    unclean: bool = False
    """Its logs may lack records that it acknowledged (`generations`)."""
    directory: str | None = None
    """The id of its first log directory, which tells its own earlier incarnation from another broker."""
    ahead: int = 0
    """The number of changes of its log directories that coordination has forgotten (`generations`)."""

    def endpoint(self, listener_name: str) -> Listener:
        """The address for clients of that listener."""
        return self.endpoints(listener_name)[0]

    def endpoints(self, listener_name: str) -> list[Listener]:
        """All of its listeners; the named one comes first if it exists."""
        return sorted(self.listeners, key=lambda listener: listener.name != listener_name)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition's replicas, leader and ISR; `version` conditions the next write.

    During a reassignment (KIP-455), `adding` and `removing` name those among `replicas` that are added and removed.
    `elr` has the replicas outside the ISR that still have every acknowledged record (KIP-966). `suspects` are replicas
    that could have led and registered as unclean before anybody did; none while there is a leader. `doubted`: nobody
    leads until the logs were compared, because the store was restored from an older copy. `compared`: the leader epoch
    of the last leader whom such a comparison elected; logs that end in earlier epochs may be of another history.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int = 0
    controller_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    doubted: bool = False
    compared: int = -1


@lru_cache(maxsize=SHARED)
def shared(record: PartitionRecord) -> PartitionRecord:
    """An equal record that partitions may share: most of thousands have the same state."""
    return record


def same_state(one: PartitionRecord, other: PartitionRecord) -> bool:
    """Whether the states are the same, whatever their versions and assignments."""
    return all(
        getattr(one, field) == getattr(other, field)
        for field in (
            "leader",
            "leader_epoch",
            "isr",
            "elr",
            "suspects",
            "doubted",
            "compared",
            "controller_epoch",
        )
    )


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic; `config` has only its overrides, as text."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionRecord, ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The shared state at one time. Dynamic broker configuration is by broker id, None for the whole cluster."""

    cluster_id: str
    brokers: Mapping[int, BrokerRecord]
    topics: Mapping[str, TopicRecord]
    controller_id: int
    broker_configs: Mapping[int | None, Mapping[str, str]] = field(default_factory=dict)
