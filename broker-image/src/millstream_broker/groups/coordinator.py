"""The group coordinator: a state machine without sockets, clock or files. Event in, replies and effects out.

    membership.py   join, sync, heartbeat, leave, sessions
    this module     time; partitions of __consumer_offsets loaded and unloaded; committed offsets;
                    describing, listing and deleting groups; expiry
    state.py        what both share

An event method returns its result if that is known at once; one that must wait takes a ``caller``,
which gets exactly one ``Reply`` effect. A commit gets its reply when its records are stored, and is
visible from then on; of two commits the one later in the log counts, whichever is stored first.

A position belongs to a group, a topic id and a partition. It is void, and never returned again, once its topic
is known to be deleted, or when another topic has the name; its tombstone is written when the deletion is seen, at the
load, or else at the next check for expired positions. A topic that this broker does not know may still exist: such
positions stay, and expire. A position without an id (its record is older than ids, or in version 1, or Kafka's)
belongs to whatever topic has the name; the load stores it again with that topic's id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..config.config_types import LONG_MAX
from ..runtime.steps import Steps, portions
from .group import CommittedOffset, Group, GroupState
from .membership import Membership
from .messages import (
    Caller,
    Commit,
    DeleteOffsetsResult,
    FetchedOffsets,
    GroupConfig,
    GroupDescription,
    GroupListing,
    KeyValue,
    MemberDescription,
)
from .records import group_tombstone, java_length, offset_record

DELETED_TOPICS = 10_000
"""Most deleted topics to remember, so that a later load, or a commit in flight, does not bring one back."""
FORGOTTEN_AT_ONCE = 100
"""Positions in deleted topics that are removed in one step."""
_EXPIRY = ("expiry", "", "")


class GroupCoordinator(Membership):
    def __init__(
        self, config: GroupConfig, new_id: Callable[[], str], topic_id: Callable[[str], UUID]
    ) -> None:
        super().__init__(config, new_id, topic_id)
        self._deleted: dict[UUID, None] = {}
        """Topics, oldest first."""
        self._timers.set(_EXPIRY, config.offsets_retention_check_interval_ms)

    # ---- time

    def advance(self, now: int, wall_clock: int) -> None:
        """Set the time, in milliseconds of a monotonic clock, and handle everything due."""
        self.now, self.wall_clock = now, wall_clock
        while (key := self._timers.pop_due(now)) is not None:
            what, group_id, member_id = key
            if key == _EXPIRY:
                self._timers.set(_EXPIRY, now + self.config.offsets_retention_check_interval_ms)
                self._expire()
            elif group := self.groups.get(group_id):
                if what == "session":
                    self._session_is_over(group, member_id)
                elif what == "join":
                    self._join_time_is_up(group)
                else:
                    self._sync_time_is_up(group)

    def next_deadline(self) -> int | None:
        """The latest time for the next call of ``advance``."""
        return self._timers.earliest()

    # ---- partitions of __consumer_offsets

    def begin_load(self, partition: int) -> bool:
        """Begin to load a partition; False if it is already loaded."""
        if partition in self._active:
            return False
        self._loading.add(partition)
        return True

    def loaded(self, partition: int, groups: Iterable[Group]) -> None:
        """Take the groups in the partition's log; members get a full session timeout to report back."""
        if partition in self._active:
            return  # loaded twice at once: changes since the first load count
        for group in groups:
            self.groups[group.group_id] = group
            for member in group.members.values():
                self._restart_session(group, member)
            if len(group.members) > self.config.group_max_size:
                self._prepare_rebalance(group)  # group.max.size has become smaller
            self._forget_void(group, group.offsets)
            self._name_topics(group)
        self._loading.discard(partition)
        self._active.add(partition)

    def unload(self, partition: int) -> None:
        """Forget the partition's groups, because another coordinator has it now, and redirect waiting callers."""
        self._loading.discard(partition)
        self._active.discard(partition)
        for group in [g for g in self.groups.values() if self.partition_of(g.group_id) == partition]:
            for member_id in group.members:
                self._answer_waiting(group.members[member_id], ErrorCode.NOT_COORDINATOR)
            self._remove(group)
        given_up = [write for write, (where, _, _) in self._writes.items() if where == partition]
        self.stored(given_up, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _remove(self, group: Group) -> None:
        for member_id in (*group.members, *group.pending):
            self._end_session(group, member_id)
        for what in ("join", "sync"):
            self._timers.cancel((what, group.group_id, ""))
        self._enter(group, GroupState.DEAD)
        del self.groups[group.group_id]

    # ---- committed offsets

    def commit(self, caller: Caller, event: Commit) -> None:
        """The reply has an error code for each partition."""
        group = self.groups.get(event.group_id)
        error = self.unavailable(event.group_id, may_be_empty=True) or self._check_commit(group, event)
        if error:
            self._reply(caller, {(each.topic, each.partition): error for each in event.offsets})
            return
        if group is None:
            group = Group(event.group_id)
        if event.member_id in group.members:
            self._restart_session(group, group.members[event.member_id])
        self._store_offsets(caller, group, event)
        self.groups[event.group_id] = group

    def _check_commit(self, group: Group | None, event: Commit) -> ErrorCode:
        if event.generation < 0 and (group is None or group.state is GroupState.EMPTY):
            return ErrorCode.NONE  # while a group has members, only they commit
        if group is None:
            return event.if_missing
        if error := self._check_member(group, event.member_id, event.instance_id):
            return error
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_offsets(self, caller: Caller, group: Group, event: Commit) -> None:
        expire = min(self.wall_clock + event.retention_ms, LONG_MAX) if event.retention_ms >= 0 else -1
        results: dict[TopicPartition, ErrorCode] = {}
        committed: dict[TopicPartition, CommittedOffset] = {}
        for each in event.offsets:
            where = (each.topic, each.partition)
            results[where] = ErrorCode.NONE
            if java_length(each.metadata) > self.config.offset_metadata_max_bytes:
                results[where] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            committed[where] = CommittedOffset(
                each.offset,
                each.leader_epoch,
                each.metadata,
                self.wall_clock,
                expire,
                each.topic_id,
                self._next_write,
            )
        if not committed:
            self._reply(caller, results)
            return

        reply = self._replier(caller)

        def stored(error: ErrorCode) -> None:
            group.commits_ended(committed)
            if error:
                reply(results | dict.fromkeys(committed, offset_error(error)))
                return
            for where, offset in committed.items():
                if where not in group.offsets or group.offsets[where].written < offset.written:
                    group.offsets[where] = offset
            self._forget_void(group, committed)
            reply(results)

        def late(error: ErrorCode) -> None:
            reply(results | dict.fromkeys(committed, offset_error(error)))

        records = [offset_record(group.group_id, *where, offset) for where, offset in committed.items()]
        group.commits_in_flight.update(committed.keys())
        self._store(group.group_id, records, stored, late)

    def fetch_offsets(self, group_id: str, partitions: Iterable[TopicPartition] | None) -> FetchedOffsets:
        """Committed offsets of these partitions, or of all that have one."""
        if error := self.unavailable(group_id, may_be_empty=True):
            return FetchedOffsets(error)
        group = self.groups.get(group_id) or Group(group_id)
        offsets = group.offsets
        if partitions is None:
            found = {where: each for where, each in offsets.items() if not self._is_void(group, where)}
            return FetchedOffsets(ErrorCode.NONE, found)
        return FetchedOffsets(
            ErrorCode.NONE,
            {where: None if self._is_void(group, where) else offsets.get(where) for where in partitions},
        )

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """The partitions in which a group has a position, even a void one."""
        group = self.groups.get(group_id)
        return [] if group is None else list(group.offsets)

    def delete_offsets(self, caller: Caller, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """The reply is a ``DeleteOffsetsResult``: topics that a member consumes are refused."""
        error = self.unavailable(group_id)
        group = None if error else self.groups.get(group_id)
        if group is None:
            self._reply(caller, DeleteOffsetsResult(error or ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if group.state is not GroupState.EMPTY and not group.is_consumer:
            self._reply(caller, DeleteOffsetsResult(ErrorCode.NON_EMPTY_GROUP))
            return
        consumed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        results = {
            where: consumed if group.is_subscribed_to(where[0]) else ErrorCode.NONE for where in partitions
        }
        free = [where for where, refusal in results.items() if not refusal]

        reply = self._replier(caller)

        def ended(error: ErrorCode) -> None:
            reply(DeleteOffsetsResult(ErrorCode.NONE, results | dict.fromkeys(free, offset_error(error))))

        self._forget_offsets(group, free, ended)

    def forget_topics(self, deleted: Mapping[str, UUID]) -> Steps[None]:
        """Topics were deleted, by name: no group keeps a position in them.

        From the first step on, no such position is returned. Each step writes some tombstones.
        """
        self._deleted.update(dict.fromkeys(deleted.values()))
        for oldest in list(self._deleted)[:-DELETED_TOPICS]:
            del self._deleted[oldest]
        void: list[tuple[Group, list[TopicPartition]]] = []
        for group in self.groups.values():
            of_deleted = [where for where in group.offsets if where[0] in deleted]
            for where in of_deleted:
                if group.offsets[where].topic_id == ZERO_UUID:
                    group.offsets[where] = replace(group.offsets[where], topic_id=deleted[where[0]])
            void += ((group, some) for some in portions(of_deleted, FORGOTTEN_AT_ONCE))
        for group, some in void:
            if self.groups.get(group.group_id) is group:  # otherwise it was unloaded or deleted meanwhile
                self._forget_void(group, some)
            yield

    def _forget_void(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        """Write tombstones for void positions among these, except those that a commit in flight replaces."""
        void = [
            where
            for where in partitions
            if where not in group.commits_in_flight and self._is_void(group, where)
        ]
        self._forget_offsets(group, void)

    def _is_void(self, group: Group, where: TopicPartition) -> bool:
        """Whether the group has a position there that belongs to a deleted topic."""
        committed = group.offsets.get(where)
        if committed is None or committed.topic_id == ZERO_UUID:
            return False
        present = self._topic_id(where[0])
        return committed.topic_id in self._deleted or present not in (committed.topic_id, ZERO_UUID)

    def _name_topics(self, group: Group) -> None:
        """Store positions without a topic id again, with the id of the topic that has the name."""
        for where, committed in group.offsets.items():
            if committed.topic_id != ZERO_UUID or committed.has_expiry:
                continue  # version 1 has no field for an id
            if (present := self._topic_id(where[0])) != ZERO_UUID:
                named = replace(committed, topic_id=present, written=self._next_write)
                group.offsets[where] = named
                self._store(
                    group.group_id, [offset_record(group.group_id, *where, named)], lambda error: None
                )

    def _forget_offsets(
        self,
        group: Group,
        partitions: Collection[TopicPartition],
        then: Callable[[ErrorCode], None] | None = None,
    ) -> None:
        """Write tombstones, then drop the offsets, unless a later commit has arrived meanwhile.

        ``then`` is called at the end, and before that if the write is late.
        """
        present = [
            where for where in partitions if where in group.offsets or where in group.commits_in_flight
        ]
        if not present:
            if then is not None:
                then(ErrorCode.NONE)
            return
        write = self._next_write

        def stored(error: ErrorCode) -> None:
            if not error:
                for where in present:
                    if where in group.offsets and group.offsets[where].written < write:
                        del group.offsets[where]
            if then is not None:
                then(error)

        self._store(
            group.group_id, [offset_record(group.group_id, *where, None) for where in present], stored, then
        )

    def _expire(self) -> None:
        """Remove offsets past offsets.retention.minutes, and groups that have nothing left."""
        for group in list(self.groups.values()):
            expired = [
                where for where, offset in group.offsets.items() if self._is_expired(group, where, offset)
            ]
            empty = group.state is GroupState.EMPTY and not group.pending and not group.commits_in_flight
            if empty and len(expired) == len(group.offsets):
                self._delete(group, lambda error: None)
            elif expired:
                self._forget_offsets(group, expired)

    def _is_expired(self, group: Group, where: TopicPartition, committed: CommittedOffset) -> bool:
        if where in group.commits_in_flight:
            return False
        if self._is_void(group, where):
            return True
        if group.is_subscribed_to(where[0]):
            return False
        since = committed.commit_timestamp
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since = group.state_timestamp if group.state_timestamp >= 0 else since
            elif not (group.is_consumer and group.state is GroupState.STABLE):
                return False
        if committed.has_expiry:
            return self.wall_clock >= committed.expire_timestamp
        return self.wall_clock - since >= self.config.offsets_retention_minutes * 60_000

    # ---- describing, listing, deleting groups

    def describe(self, group_id: str) -> GroupDescription:
        if error := self.unavailable(group_id, may_be_empty=True):
            return GroupDescription(error, group_id)
        group = self.groups.get(group_id)
        if group is None:
            return GroupDescription(ErrorCode.NONE, group_id)
        stable = group.state is GroupState.STABLE
        members = [
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ]
        protocol = (group.protocol or "") if stable else ""
        return GroupDescription(
            ErrorCode.NONE, group_id, group.state, group.protocol_type or "", protocol, members
        )

    def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[GroupListing]]:
        """Groups in one of the states (any case; empty: all); also an error while some are still loading."""
        wanted = {state.casefold() for state in states}
        listings = [
            GroupListing(group.group_id, group.protocol_type or "", group.state)
            for group in self.groups.values()
            if not wanted or group.state.casefold() in wanted
        ]
        return (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._loading else ErrorCode.NONE), listings

    def delete_group(self, caller: Caller, group_id: str) -> None:
        """The reply has an error code."""
        error = self.unavailable(group_id, may_be_empty=True)
        group = self.groups.get(group_id)
        if group is None:
            self._reply(caller, error or ErrorCode.GROUP_ID_NOT_FOUND)
        elif group.state is not GroupState.EMPTY:
            self._reply(caller, ErrorCode.NON_EMPTY_GROUP)
        else:
            reply = self._replier(caller)
            self._delete(group, lambda error: reply(offset_error(error)))

    def _delete(self, group: Group, then: Callable[[ErrorCode], None]) -> None:
        """Write tombstones for the group and its offsets; commits and members that arrive in between stay.

        ``then`` is called at the end, and before that if the write is late.
        """
        write = self._next_write
        partitions = {*group.offsets, *group.commits_in_flight}
        records: list[KeyValue] = [offset_record(group.group_id, *where, None) for where in partitions]

        def stored(error: ErrorCode) -> None:
            if not error:
                group.offsets = {k: offset for k, offset in group.offsets.items() if offset.written > write}
                busy = group.offsets or group.commits_in_flight or group.pending
                if group.state is GroupState.EMPTY and not busy:
                    self._remove(group)
            then(error)

        self._store(group.group_id, [*records, group_tombstone(group.group_id)], stored, then)

    def answer_all(self, error: ErrorCode) -> None:
        """Reply to every waiting caller, because the broker stops."""
        for group in self.groups.values():
            for member in group.members.values():
                self._answer_waiting(member, error)


def offset_error(error: ErrorCode) -> ErrorCode:
    """The error of a commit whose records could not be stored."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case _:
            return error
