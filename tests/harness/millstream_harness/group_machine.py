"""The group coordinator's state machine, with a clock and a store that the test controls."""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream_broker.coordinator.effects import (
    Reply,
    StoreMarker,
    StoreRecords,
    TransactionalProducer,
    TransactionMarker,
)
from millstream_broker.groups.group import Group
from millstream_broker.groups.messages import (
    Commit,
    GroupConfig,
    Join,
    JoinResult,
    LeavingMember,
    OffsetToCommit,
    Sync,
    SyncResult,
    TransactionalCommit,
)
from millstream_broker.groups.records import LoadedGroups, read_groups
from millstream_broker.groups.shard import GroupCoordinatorShard
from millstream_broker.runtime.steps import to_the_end
from millstream_kafka.batch import NO_PRODUCER, Record, build_batch
from millstream_kafka.control_batch import EndTransactionMarker, build_marker
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

START = 1_800_000_000_000
START_ID = uuid.UUID(int=1)
EXPIRING = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    group_max_session_timeout_ms=10**9,
    offsets_retention_minutes=10,
    offsets_retention_check_interval_ms=60_000,
)
"""Offsets expire after `RETENTION_MS`, at a check every minute; sessions may last longer."""
RETENTION_MS = 600_000


def subscription(*topics: str) -> bytes:
    """A consumer's metadata: the topics that it consumes."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


@dataclass(eq=False)
class Call:
    """A pending request; in the end ``replies`` must have exactly one entry."""

    name: str
    replies: list[Any] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return not self.replies

    @property
    def joined(self) -> JoinResult:
        assert len(self.replies) == 1, f"{self.name}: {self.replies}"
        assert isinstance(self.replies[0], JoinResult)
        return self.replies[0]

    @property
    def synced(self) -> SyncResult:
        assert len(self.replies) == 1, f"{self.name}: {self.replies}"
        assert isinstance(self.replies[0], SyncResult)
        return self.replies[0]

    @property
    def result(self) -> Any:
        assert len(self.replies) == 1, f"{self.name}: {self.replies}"
        return self.replies[0]


Store = StoreRecords | StoreMarker


def batch_of(store: Store) -> bytes:
    """What the log has of it."""
    if isinstance(store, StoreMarker):
        marker = store.marker
        return build_marker(
            EndTransactionMarker(marker.committed, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp=0,
        )
    producer = store.producer
    return build_batch(
        [Record(key, value, 0) for key, value in store.records],
        producer_id=NO_PRODUCER if producer is None else producer.producer_id,
        producer_epoch=-1 if producer is None else producer.producer_epoch,
        transactional=producer is not None,
    )


class Machine:
    """Drives a coordinator. Stores succeed at once unless ``hold`` is set; then ``release`` completes the oldest."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        empty: bool = True,
        topics: Mapping[str, uuid.UUID] | None = None,
    ) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.ids = itertools.count(1)
        self.topics = dict(topics or {name: uuid.uuid5(START_ID, name) for name in ("t", "u", "other")})
        """This broker's view of topics; a test may change it without an event."""
        self.coordinator = GroupCoordinatorShard(self.config, lambda: f"id{next(self.ids)}", self.topic_id)
        self.now = 0
        self.hold = False
        self.fail_with = ErrorCode.NONE
        self.held: list[Store] = []
        self.log: list[Store] = []
        self.late: list[Store] = []
        """Stores that are behind those in ``log``, and not committed yet."""
        self.calls: list[Call] = []
        if empty:
            for partition in range(self.config.offsets_topic_num_partitions):
                self.coordinator.loaded(partition, LoadedGroups([]))
            self.wait(0)

    def topic_id(self, name: str) -> uuid.UUID:
        return self.topics.get(name, ZERO_UUID)

    def make_anew(self, name: str) -> None:
        """Replace the topic by another of its name; this broker has not learned of the deletion."""
        self.topics[name] = uuid.uuid5(self.topics[name], name)

    def delete_topic(self, name: str, *, anew: bool = False) -> None:
        """This broker learns that the topic is deleted, and, with ``anew``, that there is another one of that name."""
        deleted = {name: self.topics[name]}
        if anew:
            self.make_anew(name)
        else:
            del self.topics[name]
        to_the_end(self.coordinator.offsets.forget_topics(deleted))
        self.carry_out()

    def wait(self, milliseconds: int) -> None:
        """Let time pass, with a stop at every deadline on the way, as with a timer."""
        until = self.now + milliseconds
        while True:
            deadline = self.coordinator.next_deadline()
            self.now = until if deadline is None or deadline >= until else max(deadline, self.now)
            self.coordinator.advance(self.now, START + self.now)
            self.carry_out()
            if self.now >= until:
                return

    def carry_out(self) -> None:
        while effects := self.coordinator.state.take_effects():
            for effect in effects:
                if isinstance(effect, Reply):
                    assert isinstance(effect.caller, Call)
                    effect.caller.replies.append(effect.result)
                elif self.hold:
                    self.held.append(effect)
                else:
                    self._end(effect, self.fail_with)

    def commit_in_transaction(
        self,
        producer_id: int,
        offset: int,
        *,
        group: str = "g",
        partition: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
    ) -> Call:
        call = self.call(f"commit {offset} of producer {producer_id}")
        offsets = [OffsetToCommit("t", partition, offset, topic_id=self.topic_id("t"))]
        commit = Commit(group, offsets, member, generation, instance)
        event = TransactionalCommit(commit, TransactionalProducer(producer_id, 0))
        self.coordinator.transactional.commit(call, event)
        self.carry_out()
        return call

    def end_transaction(self, producer_id: int, *, committed: bool, group_id: str = "g") -> Call:
        """Store a marker in the partition of the group."""
        call = self.call("end_transaction")
        partition = self.coordinator.state.partition_of(group_id)
        marker = TransactionMarker(producer_id, 0, 0, committed, 2)
        self.coordinator.transactional.complete(call, partition, marker)
        self.carry_out()
        return call

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self._end(self.held.pop(0), error)
        self.carry_out()

    def time_out(self, error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        """The oldest held store is in the log, and not committed in time: ``commit_late`` completes it."""
        store = self.held.pop(0)
        self.late.append(store)
        self.coordinator.state.late([store.write], error)
        self.carry_out()

    def commit_late(self) -> None:
        """The high watermark passes everything that was late."""
        late, self.late = self.late, []
        self.log += late
        self.coordinator.state.stored([store.write for store in late], ErrorCode.NONE)
        self.carry_out()

    def _end(self, store: Store, error: ErrorCode) -> None:
        if not error:
            self.commit_late()  # they are before it in the log
            self.log.append(store)
        self.coordinator.state.stored([store.write], error)

    def reloaded(self) -> Machine:
        """A new coordinator that loads the stored records, with those that were late."""
        self.log, self.late = self.log + self.late, []
        fresh = Machine(self.config, empty=False, topics=self.topics)
        fresh.now, fresh.log, fresh.ids = self.now, self.log, self.ids
        fresh.coordinator.advance(self.now, START + self.now)
        by_partition: dict[int, list[Group]] = {}
        for group in self.stored_groups():
            by_partition.setdefault(fresh.coordinator.state.partition_of(group.group_id), []).append(group)
        for partition in range(self.config.offsets_topic_num_partitions):
            fresh.coordinator.state.begin_load(partition)
            fresh.coordinator.loaded(partition, LoadedGroups(by_partition.get(partition, [])))
        fresh.carry_out()
        return fresh

    def stored_groups(self) -> list[Group]:
        return read_groups(batch_of(store) for store in self.log).groups

    # ---- calls

    def call(self, name: str) -> Call:
        call = Call(f"{len(self.calls)} {name}")
        self.calls.append(call)
        return call

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        client: str = "c",
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        protocol_type: str = "consumer",
        id_required: bool = False,
        skip: bool = False,
    ) -> Call:
        call = self.call(f"join {member_id or client}")
        offered = tuple((protocols or {"range": b"topics"}).items())
        event = Join(
            group,
            member_id,
            client,
            "/h",
            session_ms,
            rebalance_ms,
            protocol_type,
            offered,
            instance,
            id_required,
            skip,
        )
        self.coordinator.classic.join(call, event)
        self.carry_out()
        return call

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Call:
        call = self.call(f"sync {member_id}")
        event = Sync(group, member_id, generation, assignments or {}, instance, protocol_type, protocol)
        self.coordinator.classic.sync(call, event)
        self.carry_out()
        return call

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        error = self.coordinator.classic.heartbeat(group, member_id, generation, instance)
        self.carry_out()
        return error

    def leave(self, member_id: str = "", *, instance: str | None = None) -> None:
        leaving = [LeavingMember(member_id, instance)]
        assert self.coordinator.classic.leave("g", leaving) == (ErrorCode.NONE, [ErrorCode.NONE])
        self.carry_out()

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        topic_id: uuid.UUID | None = None,
    ) -> Call:
        """Commit. ``topic_id``: if it differs from the topic's id in this broker."""
        call = self.call(f"commit {offset}")
        of = self.topic_id(topic) if topic_id is None else topic_id
        offsets = [OffsetToCommit(topic, partition, offset, 3, metadata, of)]
        self.coordinator.offsets.commit(
            call, Commit(group, offsets, member, generation, instance, retention_ms)
        )
        self.carry_out()
        return call

    def committed(self, group: str = "g", topic: str = "t", partition: int = 0) -> int | None:
        found = self.coordinator.offsets.fetch(group, [(topic, partition)]).offsets[topic, partition]
        return None if found is None else found.offset

    def delete(self, group: str = "g") -> Call:
        call = self.call(f"delete {group}")
        self.coordinator.delete_group(call, group)
        self.carry_out()
        return call

    def delete_offsets(self, partitions: Sequence[TopicPartition], *, group: str = "g") -> Call:
        call = self.call(f"delete offsets of {group}")
        self.coordinator.offsets.delete(call, group, partitions)
        self.carry_out()
        return call

    def group(self, group_id: str = "g") -> Group:
        return self.coordinator.groups[group_id]

    def stable(self, members: int = 2, **options: Any) -> tuple[list[str], int]:
        """A group with this many members, all assigned; returns their ids, the leader first, and the generation."""
        first = self.join(client="m1", **options)
        ids = [first.joined.member_id]
        for number in range(2, members + 1):
            newcomer = self.join(client=f"m{number}", **options)
            calls = [self.join(member_id, **options) for member_id in ids]
            assert all(call.joined.error is ErrorCode.NONE for call in calls)
            ids.append(newcomer.joined.member_id)
        generation = self.group().generation
        assignments = {member_id: f"for {member_id}".encode() for member_id in ids}
        syncs = [
            self.sync(member_id, generation, assignments if member_id == ids[0] else None)
            for member_id in ids
        ]
        assert [call.synced.assignment for call in syncs] == list(assignments.values())
        return ids, generation
