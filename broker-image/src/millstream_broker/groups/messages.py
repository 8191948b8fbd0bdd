"""Events and replies of the group coordinator, as plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..coordinator.effects import TransactionalProducer
from .group import CommittedOffset, GroupState


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings, by Kafka's names and defaults."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50


@dataclass(frozen=True, slots=True)
class Join:
    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    instance_id: str | None = None
    member_id_required: bool = False
    """JoinGroup v4 and later (KIP-394): a new dynamic member gets its id first and joins with it."""
    may_skip_assignment: bool = False
    """JoinGroup v9 and later (KIP-814): the response tells a returning static leader not to assign again."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    group_id: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Commit:
    group_id: str
    offsets: Sequence[OffsetToCommit]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    retention_ms: int = -1
    if_missing: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    """The error for a member of a group that does not exist."""


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    """A commit that counts once the producer's transaction is committed."""

    commit: Commit
    producer: TransactionalProducer


CommitResult = Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsResult:
    error: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    error: ErrorCode
    group_id: str
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[MemberDescription] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset | None] = field(default_factory=dict)
    unstable: frozenset[TopicPartition] = frozenset()
    """If stable ones are required: partitions whose offsets an open transaction may still change."""
