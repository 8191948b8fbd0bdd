"""What the brokers of a cluster agree on, and the one interface to where it is kept.

Two implementations: `embedded` (a cluster of one broker, a file) and ZooKeeper (a cluster of many). What both
promise:

- A write has happened, durably, when the call returns; it either happened whole or not at all.
- A partition's state (leader, leader epoch, ISR) is written on condition of the version that was read:
  `Conflict` means that somebody else wrote in between, and the state must be read again.
- `changes` is called on the loop after every change, with the state as it is then, whoever made the change.
- A topic that is deleted stays in `deleting` until its brokers have removed its logs (`topics_removed`), so that a
  crash in between is finished after the restart rather than leaving the logs behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..config import Listener
from ..protocol.errors import ApiError, ErrorCode

NO_LEADER = -1
NO_STATE = -1
"""The version of a partition's state that is not there yet."""


class CoordinationError(ApiError):
    """The coordinator cannot be used; the text says why, in one line. Clients are told so, too."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message


class Conflict(CoordinationError):
    """What was to be changed is not what it was when it was read."""


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker that lives."""

    broker_id: int
    listeners: tuple[Listener, ...]
    rack: str | None = None
    epoch: int = 0
    unclean: bool = False
    """Its logs may lack records that it acknowledged (`generations`)."""
    directory: str | None = None
    """The id of its first log directory, which tells its own earlier incarnation from another broker."""

    def endpoint(self, listener_name: str) -> Listener:
        """Where clients of that listener reach the broker."""
        return self.endpoints(listener_name)[0]

    def endpoints(self, listener_name: str) -> list[Listener]:
        """All of its listeners, that one first where there is one."""
        return sorted(self.listeners, key=lambda listener: listener.name != listener_name)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """Where a partition's replicas are and which of them leads; `version` conditions the next write.

    While it is reassigned (KIP-455), `adding` and `removing` name those among `replicas` that come and go. `elr` has
    the replicas outside the ISR that still have every acknowledged record (KIP-966). `suspects` are replicas that could
    have led and registered as unclean before anybody did; none while there is a leader.
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


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic; `config` has its overrides only, as text."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionRecord, ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All of it at one time. Dynamic broker configuration is by broker id, None for the whole cluster's."""

    cluster_id: str
    brokers: Mapping[int, BrokerRecord]
    topics: Mapping[str, TopicRecord]
    controller_id: int
    deleting: Mapping[uuid.UUID, str] = field(default_factory=dict)
    broker_configs: Mapping[int | None, Mapping[str, str]] = field(default_factory=dict)


class Coordination(Protocol):
    """See the module's docstring for what every method promises."""

    changes: Callable[[ClusterState], None]

    def stored_topics(self) -> Mapping[str, TopicRecord]:
        """The topics there are, known before joining: logs are opened by their configuration."""
        ...

    async def generations(self, broker_id: int) -> Mapping[str, int]:
        """The last generation of each of the broker's log directories, by directory id; known before joining."""
        ...

    async def show_generations(self, broker_id: int, generations: Mapping[str, int]) -> None:
        """Raises Conflict where a later one is known: another process uses a copy of that directory."""
        ...

    async def join(self, broker: BrokerRecord, *, takes_over: bool = True) -> ClusterState:
        """Register this broker, under a new epoch; raises CoordinationError when its id is taken.

        `takes_over`: a registration with our directory is that of an earlier process of ours, which is dead.
        """
        ...

    async def create_topic(self, topic: TopicRecord) -> None:
        """Raises Conflict when there is a topic of that name."""
        ...

    async def add_partitions(self, name: str, partitions: tuple[PartitionRecord, ...]) -> None: ...

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None: ...

    async def set_broker_config(self, broker_id: int | None, config: Mapping[str, str]) -> None: ...

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        """Write if the stored version still is `record.version`; returns the record as it now is. Raises Conflict."""
        ...

    async def delete_topic(self, name: str) -> None: ...

    async def topics_removed(self, topic_ids: Collection[uuid.UUID]) -> None: ...

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that nobody else gets, ever."""
        ...

    async def leave(self) -> None: ...
