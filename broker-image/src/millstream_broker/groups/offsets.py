"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, deleted topics, expiry.

A commit gets its reply when its records are stored, and is visible from then on; of two commits the one later in the
log counts, whichever is stored first.

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

from millstream_kafka.group_mark import PARTITION as MARK_PARTITION
from millstream_kafka.group_mark import is_mark
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..config.config_types import LONG_MAX
from ..coordinator.effects import Caller
from ..runtime.steps import Steps, portions
from .classic import ClassicGroups
from .errors import offset_error
from .group import CommittedOffset, Group, GroupState
from .messages import Commit, DeleteOffsetsResult, FetchedOffsets, GroupConfig
from .records import java_length, offset_record
from .state import State, unavailable

DELETED_TOPICS = 10_000
"""Most deleted topics to remember, so that a later load, or a commit in flight, does not bring one back."""
FORGOTTEN_AT_ONCE = 100
"""Positions in deleted topics that are removed in one step."""


class CommittedOffsets:
    """The committed offsets of groups, whatever their protocol."""

    def __init__(
        self, state: State, groups: ClassicGroups, config: GroupConfig, topic_id: Callable[[str], UUID]
    ) -> None:
        self._state = state
        self._groups = groups
        self._config = config
        self._topic_id = topic_id
        """The id of the topic that has a name now; ZERO_UUID if this broker knows none."""
        self._deleted: dict[UUID, None] = {}
        """Topics, oldest first."""

    def loaded(self, group: Group) -> None:
        """Write what the load shows to be missing from the log."""
        self.forget_void(group, group.offsets)
        self._name_topics(group)

    def commit(self, caller: Caller, event: Commit) -> None:
        """The reply has an error code for each partition."""
        group = self._groups.by_id.get(event.group_id)
        error = unavailable(self._state, event.group_id, may_be_empty=True) or self._check_commit(
            group, event
        )
        if error:
            self._state.reply(caller, {(each.topic, each.partition): error for each in event.offsets})
            return
        if group is None:
            group = Group(event.group_id)
        if event.member_id in group.members:
            self._groups.restart_session(group, group.members[event.member_id])
        self._store_offsets(caller, group, event)
        self._groups.by_id[event.group_id] = group

    def _check_commit(self, group: Group | None, event: Commit) -> ErrorCode:
        if self.may_come_from_anybody(group, event):
            return ErrorCode.NONE
        if group is None:
            return event.if_missing
        if error := group.check_current(event.member_id, event.instance_id, event.generation):
            return error
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    @staticmethod
    def may_come_from_anybody(group: Group | None, event: Commit) -> bool:
        """Whether no member is checked: the commit has no generation, and the group no members."""
        return event.generation < 0 and (group is None or group.state is GroupState.EMPTY)

    def to_store(
        self, event: Commit
    ) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
        """The result for each partition if the next write is stored, and what it must have."""
        expire = min(self._state.wall_clock + event.retention_ms, LONG_MAX) if event.retention_ms >= 0 else -1
        results: dict[TopicPartition, ErrorCode] = {}
        committed: dict[TopicPartition, CommittedOffset] = {}
        for each in event.offsets:
            topic_partition = (each.topic, each.partition)
            results[topic_partition] = ErrorCode.NONE
            if java_length(each.metadata) > self._config.offset_metadata_max_bytes:
                results[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            committed[topic_partition] = CommittedOffset(
                each.offset,
                each.leader_epoch,
                each.metadata,
                self._state.wall_clock,
                expire,
                each.topic_id,
                self._state.next_write,
            )
        return results, committed

    def _store_offsets(self, caller: Caller, group: Group, event: Commit) -> None:
        results, committed = self.to_store(event)
        if not committed:
            self._state.reply(caller, results)
            return

        reply = self._state.replier(caller)

        def stored(error: ErrorCode) -> None:
            group.commits_ended(committed)
            if error:
                reply(results | dict.fromkeys(committed, offset_error(error)))
                return
            for topic_partition, offset in committed.items():
                group.commit_if_later(topic_partition, offset)
            self.forget_void(group, committed)
            reply(results)

        def late(error: ErrorCode) -> None:
            reply(results | dict.fromkeys(committed, offset_error(error)))

        records = [
            offset_record(group.group_id, *topic_partition, offset)
            for topic_partition, offset in committed.items()
        ]
        group.commits_in_flight.update(committed.keys())
        self._state.store(group.group_id, records, stored, late)

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, stable: bool = False
    ) -> FetchedOffsets:
        """Committed offsets of these partitions, or of all that have one.

        With `stable`, those that an open transaction may still change are marked.
        """
        fetched = self._fetch(group_id, partitions)
        group = self._groups.by_id.get(group_id)
        if not stable or group is None:
            return fetched
        return replace(fetched, unstable=frozenset(filter(group.is_unstable, fetched.offsets)))

    def _fetch(self, group_id: str, partitions: Iterable[TopicPartition] | None) -> FetchedOffsets:
        if error := unavailable(self._state, group_id, may_be_empty=True):
            return FetchedOffsets(error)
        group = self._groups.by_id.get(group_id) or Group(group_id)
        offsets = group.offsets
        if partitions is None:
            found = {
                topic_partition: each
                for topic_partition, each in offsets.items()
                if not self._is_void(group, topic_partition)
            }
            return FetchedOffsets(ErrorCode.NONE, found)
        return FetchedOffsets(
            ErrorCode.NONE,
            {
                topic_partition: None
                if self._is_void(group, topic_partition)
                else offsets.get(topic_partition)
                for topic_partition in partitions
            },
        )

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """The partitions in which a group has a position, even a void one."""
        group = self._groups.by_id.get(group_id)
        return [] if group is None else list(group.offsets)

    def delete(self, caller: Caller, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """The reply is a ``DeleteOffsetsResult``: topics that a member consumes are refused."""
        error = unavailable(self._state, group_id)
        group = None if error else self._groups.by_id.get(group_id)
        if group is None:
            self._state.reply(caller, DeleteOffsetsResult(error or ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if group.state is not GroupState.EMPTY and not group.is_consumer:
            self._state.reply(caller, DeleteOffsetsResult(ErrorCode.NON_EMPTY_GROUP))
            return
        consumed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        results = {
            topic_partition: consumed if group.is_subscribed_to(topic_partition[0]) else ErrorCode.NONE
            for topic_partition in partitions
        }
        free = [topic_partition for topic_partition, refusal in results.items() if not refusal]

        reply = self._state.replier(caller)

        def ended(error: ErrorCode) -> None:
            reply(DeleteOffsetsResult(ErrorCode.NONE, results | dict.fromkeys(free, offset_error(error))))

        self.forget(group, free, ended)

    def forget_topics(self, deleted: Mapping[str, UUID]) -> Steps[None]:
        """Topics were deleted, by name: no group keeps a position in them.

        From the first step on, no such position is returned. Each step writes some tombstones.
        """
        self._deleted.update(dict.fromkeys(deleted.values()))
        for oldest in list(self._deleted)[:-DELETED_TOPICS]:
            del self._deleted[oldest]
        void: list[tuple[Group, list[TopicPartition]]] = []
        for group in self._groups.by_id.values():
            of_deleted = [
                topic_partition for topic_partition in group.offsets if topic_partition[0] in deleted
            ]
            for topic_partition in of_deleted:
                if group.offsets[topic_partition].topic_id == ZERO_UUID:
                    group.offsets[topic_partition] = replace(
                        group.offsets[topic_partition], topic_id=deleted[topic_partition[0]]
                    )
            void += ((group, some) for some in portions(of_deleted, FORGOTTEN_AT_ONCE))
        for group, some in void:
            if (
                self._groups.by_id.get(group.group_id) is group
            ):  # otherwise it was unloaded or deleted meanwhile
                self.forget_void(group, some)
            yield

    def forget_void(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        """Write tombstones for void positions among these, except those that a commit in flight replaces."""
        void = [
            topic_partition
            for topic_partition in partitions
            if topic_partition not in group.commits_in_flight and self._is_void(group, topic_partition)
        ]
        self.forget(group, void)

    def _is_void(self, group: Group, topic_partition: TopicPartition) -> bool:
        """Whether the group has a position there that belongs to a deleted topic."""
        committed = group.offsets.get(topic_partition)
        if committed is None or committed.topic_id == ZERO_UUID:
            return False
        present = self._topic_id(topic_partition[0])
        return committed.topic_id in self._deleted or present not in (committed.topic_id, ZERO_UUID)

    def _name_topics(self, group: Group) -> None:
        """Store positions without a topic id again, with the id of the topic that has the name."""
        for topic_partition, committed in group.offsets.items():
            if committed.topic_id != ZERO_UUID or committed.has_expiry:
                continue  # version 1 has no field for an id
            if group.is_unstable(topic_partition):
                continue  # the record would follow that of the transaction, and win
            if (present := self._topic_id(topic_partition[0])) != ZERO_UUID:
                named = replace(committed, topic_id=present, written=self._state.next_write)
                group.offsets[topic_partition] = named
                self._state.store(
                    group.group_id,
                    [offset_record(group.group_id, *topic_partition, named)],
                    lambda error: None,
                )

    def forget(
        self,
        group: Group,
        partitions: Collection[TopicPartition],
        then: Callable[[ErrorCode], None] | None = None,
    ) -> None:
        """Write tombstones, then drop the offsets, unless a later commit has arrived meanwhile.

        ``then`` is called at the end, and before that if the write is late.
        """
        present = [
            topic_partition
            for topic_partition in partitions
            if topic_partition in group.offsets or topic_partition in group.commits_in_flight
        ]
        if not present:
            if then is not None:
                then(ErrorCode.NONE)
            return
        write = self._state.next_write

        def stored(error: ErrorCode) -> None:
            if not error:
                for topic_partition in present:
                    if topic_partition in group.offsets and group.offsets[topic_partition].written < write:
                        del group.offsets[topic_partition]
                group.drop_transactional(present, write)
            if then is not None:
                then(error)

        self._state.store(
            group.group_id,
            [offset_record(group.group_id, *topic_partition, None) for topic_partition in present],
            stored,
            then,
        )

    def expired(self, group: Group) -> list[TopicPartition]:
        """The positions that have expired. A mark lasts as long as the group or any other position does."""
        found = {
            topic_partition: committed
            for topic_partition, committed in group.offsets.items()
            if self._is_expired(group, topic_partition, committed)
        }
        mark = found.get(MARK_PARTITION)
        lasts = group.state is not GroupState.EMPTY or len(found) < len(group.offsets)
        if mark is not None and lasts and is_mark(MARK_PARTITION, mark.metadata):
            del found[MARK_PARTITION]
        return list(found)

    def _is_expired(self, group: Group, topic_partition: TopicPartition, committed: CommittedOffset) -> bool:
        if topic_partition in group.commits_in_flight or group.is_unstable(topic_partition):
            return False
        if self._is_void(group, topic_partition):
            return True
        if group.is_subscribed_to(topic_partition[0]):
            return False
        since = committed.commit_timestamp
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since = group.state_timestamp if group.state_timestamp >= 0 else since
            elif not (group.is_consumer and group.state is GroupState.STABLE):
                return False
        if committed.has_expiry:
            return self._state.wall_clock >= committed.expire_timestamp
        return self._state.wall_clock - since >= self._config.offsets_retention_minutes * 60_000
