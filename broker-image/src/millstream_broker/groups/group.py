"""A group and its members, as the coordinator sees them.

A group passes through the states of Kafka's classic protocol (KIP-62, KIP-394, KIP-345):

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance
      ▲                 ▲        │                                         │ the leader's sync is stored
      │                 │        └──nobody left──► Empty                   ▼
      └── (Dead) ◄──────┴────────join, leave, session over──────────────Stable

``Dead`` is the state reported for a group that does not exist. A group that only stores offsets stays
Empty and has no protocol type.

Invariants: ``generation`` never falls; ``leader`` is a member whenever there is one; ``static`` maps every
group.instance.id to exactly one member; ``votes`` counts, for each protocol, the members that support it.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(enum.StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset; timestamps are milliseconds since the epoch, -1 means none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: uuid.UUID = ZERO_UUID
    """The id of the topic; ZERO_UUID if the record has none."""
    written: int = field(default=0, compare=False)
    """The number of the write that stored it, or less for what was loaded: of two commits, the one later in the log
    counts."""

    @property
    def has_expiry(self) -> bool:
        """Whether it has its own expiry time, independent of the retention."""
        return self.expire_timestamp >= 0


@dataclass(slots=True)
class Member:
    """A member; ``join`` and ``sync`` hold the caller that waits for that reply, or None."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join: object | None = None
    sync: object | None = None
    is_new: bool = False
    """True until its first join gets a reply: it does not know its id yet, so it cannot send heartbeats."""

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    group_id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Member ids that were assigned (KIP-394) but have not joined yet."""
    unsynced: set[str] = field(default_factory=set)
    """Members of this generation whose SyncGroup has not arrived."""
    static: dict[str, str] = field(default_factory=dict)
    votes: Counter[str] = field(default_factory=Counter)
    subscribed: frozenset[str] | None = None
    """Topics that the members of this generation consume; None if unknown."""
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    transactional_offsets: dict[int, dict[tuple[str, int], CommittedOffset]] = field(default_factory=dict)
    """Offsets of open transactions, by producer id."""
    commits_in_flight: Counter[tuple[str, int]] = field(default_factory=Counter)
    transactional_in_flight: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Those of them that are part of transactions."""
    initial_delay_left_ms: int | None = None
    """While an empty group gathers its first members: the time by which the join may still be delayed."""
    member_joined_in_delay: bool = False

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.join is not None for member in self.members.values())

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols can join: every member must support one of them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(self.votes[name] == size for name, _ in protocols)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check a sender: a static member must be the one that holds its group.instance.id (KIP-345)."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_current(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Check a sender, and that it knows the present generation."""
        if error := self.check_member(member_id, instance_id):
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.votes.update(name for name, _ in member.protocols)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.unsynced.discard(member_id)
        self._withdraw(member)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def change_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._withdraw(member)
        member.protocols = protocols
        self.votes.update(name for name, _ in protocols)

    def _withdraw(self, member: Member) -> None:
        self.votes.subtract(name for name, _ in member.protocols)
        self.votes = +self.votes  # drops protocols without votes

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member its new member id; its place in the group, and leadership, stay."""
        assert member.instance_id is not None
        old = member.member_id
        self.members = {(member_id if key == old else key): value for key, value in self.members.items()}
        member.member_id = member_id
        self.static[member.instance_id] = member_id
        if self.leader == old:
            self.leader = member_id
        if old in self.unsynced:
            self.unsynced.remove(old)
            self.unsynced.add(member_id)

    def selected_protocol(self) -> str:
        """Every member votes for the first of its protocols that all members support; most votes win."""
        size = len(self.members)
        ballots = Counter(
            next(name for name, _ in member.protocols if self.votes[name] == size)
            for member in self.members.values()
        )
        return max(ballots, key=ballots.__getitem__)

    def elect_leader(self) -> bool:
        """Keep the leader if it joined, else take the first member that did; False when nobody did."""
        joined = [key for key, member in self.members.items() if member.join is not None]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def is_unstable(self, topic_partition: tuple[str, int]) -> bool:
        """Whether an open transaction may still change the offset."""
        if topic_partition in self.transactional_in_flight:
            return True
        return any(topic_partition in offsets for offsets in self.transactional_offsets.values())

    def commit_if_later(self, topic_partition: tuple[str, int], committed: CommittedOffset) -> None:
        """Take an offset, unless there is one that is later in the log."""
        if topic_partition not in self.offsets or self.offsets[topic_partition].written < committed.written:
            self.offsets[topic_partition] = committed

    def drop_transactional(self, partitions: Iterable[tuple[str, int]], write: int) -> None:
        """These offsets were deleted by that write: transactions have none there any more."""
        if not self.transactional_offsets:
            return
        for topic_partition in partitions:
            for offsets in self.transactional_offsets.values():
                if topic_partition in offsets and offsets[topic_partition].written < write:
                    del offsets[topic_partition]

    def commits_ended(self, partitions: Iterable[tuple[str, int]]) -> None:
        """These commits are no longer in flight."""
        _end(self.commits_in_flight, partitions)

    def transactional_commits_ended(self, partitions: Iterable[tuple[str, int]]) -> None:
        """These commits in transactions are no longer in flight."""
        _end(self.transactional_in_flight, partitions)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes the topic; members with unknown subscriptions may consume any."""
        return self.is_consumer if self.subscribed is None else topic in self.subscribed

    def note_subscriptions(self) -> None:
        """Fix the topics that the members of this generation consume; call it when the generation begins."""
        self.subscribed = None
        if not self.is_consumer:
            return
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return
            found |= topics
        self.subscribed = frozenset(found)


def subscribed_topics(subscription: bytes) -> set[str] | None:
    """The topics of a ConsumerProtocolSubscription (int16 version, array of topic names, …), None for other data."""
    try:
        _version, count = struct.unpack_from(">hi", subscription)
        if count < 0:
            return None
        position, topics = 6, set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, position)
            name = subscription[position + 2 : position + 2 + length]
            if len(name) != length:
                return None
            topics.add(name.decode())
            position += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def _end(in_flight: Counter[tuple[str, int]], partitions: Iterable[tuple[str, int]]) -> None:
    for topic_partition in partitions:
        in_flight[topic_partition] -= 1
        if in_flight[topic_partition] <= 0:
            del in_flight[topic_partition]
