"""The group coordinator: a state machine without sockets, clock or files. Event in, replies and effects out.

    classic.py      groups of the classic protocol: join, sync, heartbeat, leave, sessions
    offsets.py      committed offsets
    transactional.py  offsets of open transactions
    this module     time; partitions of __consumer_offsets loaded and unloaded; describing, listing and deleting groups

An event method returns its result if that is known at once; one that must wait takes a ``caller``,
which gets exactly one ``Reply`` effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from uuid import UUID

from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.errors import ErrorCode

from ..coordinator.effects import Caller, KeyValue
from .classic import ClassicGroups
from .errors import offset_error
from .group import Group, GroupState
from .messages import GroupConfig, GroupDescription, GroupListing, MemberDescription
from .offsets import CommittedOffsets
from .records import LoadedGroups, group_tombstone, offset_record, read_groups
from .state import State, unavailable
from .transactional import TransactionalOffsets

_EXPIRY = ("expiry", "", "")


class GroupCoordinatorShard:
    """`coordinator.runtime.Shard`."""

    def __init__(
        self, config: GroupConfig, new_id: Callable[[], str], topic_id: Callable[[str], UUID]
    ) -> None:
        self._config = config
        self.state = State(config.offsets_topic_num_partitions)
        self.classic = ClassicGroups(self.state, config, new_id)
        self.offsets = CommittedOffsets(self.state, self.classic, config, topic_id)
        self.transactional = TransactionalOffsets(self.state, self.classic, self.offsets)
        self.state.timers.set(_EXPIRY, config.offsets_retention_check_interval_ms)

    @property
    def groups(self) -> dict[str, Group]:
        return self.classic.by_id

    # ---- time

    def advance(self, now: int, wall_clock: int) -> None:
        """Set the time, in milliseconds of a monotonic clock, and handle everything due."""
        for key in self.state.advance(now, wall_clock):
            if key == _EXPIRY:
                self.state.timers.set(_EXPIRY, now + self._config.offsets_retention_check_interval_ms)
                self._expire()
            else:
                self.classic.due(*key)

    def next_deadline(self) -> int | None:
        """The latest time for the next call of ``advance``."""
        return self.state.timers.earliest()

    # ---- partitions of __consumer_offsets

    def reader(self, partition: int) -> Callable[[Iterable[Buffer]], LoadedGroups]:
        """The function that reads a partition's batches, for use in a thread."""
        return partial(read_groups, partition=partition, partitions=self.state.partition_count)

    def loaded(self, partition: int, loaded: LoadedGroups) -> None:
        """Take the groups in the partition's log."""
        if self.state.is_active(partition):
            return  # loaded twice at once: changes since the first load count
        for group in loaded.groups:
            self.classic.loaded(group)
            self.offsets.loaded(group)
            self.transactional.loaded(group)
        self.state.loaded(partition)

    def unload(self, partition: int) -> None:
        """Forget the partition's groups, because another coordinator has it now, and redirect waiting callers."""
        self.state.unloading(partition)
        for group in [g for g in self.groups.values() if self.state.partition_of(g.group_id) == partition]:
            self.transactional.unload(group)
            self.classic.unload(group)
        self.state.unloaded(partition)

    def answer_all(self, error: ErrorCode) -> None:
        """Reply to every waiting caller, because the broker stops."""
        self.classic.answer_all(error)

    # ---- describing, listing, deleting groups

    def describe(self, group_id: str) -> GroupDescription:
        if error := unavailable(self.state, group_id, may_be_empty=True):
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
        return (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.state.is_loading else ErrorCode.NONE), listings

    def delete_group(self, caller: Caller, group_id: str) -> None:
        """The reply has an error code."""
        error = unavailable(self.state, group_id, may_be_empty=True)
        group = self.groups.get(group_id)
        if group is None:
            self.state.reply(caller, error or ErrorCode.GROUP_ID_NOT_FOUND)
        elif group.state is not GroupState.EMPTY:
            self.state.reply(caller, ErrorCode.NON_EMPTY_GROUP)
        else:
            reply = self.state.replier(caller)
            self._delete(group, lambda error: reply(offset_error(error)))

    def _delete(self, group: Group, then: Callable[[ErrorCode], None]) -> None:
        """Write tombstones for the group and its offsets; commits and members that arrive in between stay.

        ``then`` is called at the end, and before that if the write is late.
        """
        write = self.state.next_write
        partitions = {*group.offsets, *group.commits_in_flight}
        for offsets in group.transactional_offsets.values():
            partitions.update(offsets)
        records: list[KeyValue] = [
            offset_record(group.group_id, *topic_partition, None) for topic_partition in partitions
        ]

        def stored(error: ErrorCode) -> None:
            if not error:
                group.offsets = {k: offset for k, offset in group.offsets.items() if offset.written > write}
                group.drop_transactional(partitions, write)
                busy = (
                    group.offsets or group.commits_in_flight or group.pending or group.transactional_offsets
                )
                if group.state is GroupState.EMPTY and not busy:
                    self.classic.remove(group)
            then(error)

        self.state.store(group.group_id, [*records, group_tombstone(group.group_id)], stored, then)

    # ---- expiry

    def _expire(self) -> None:
        """Remove offsets past offsets.retention.minutes, and groups that have nothing left."""
        for group in list(self.groups.values()):
            expired = self.offsets.expired(group)
            busy = group.pending or group.commits_in_flight or group.transactional_offsets
            empty = group.state is GroupState.EMPTY and not busy
            if empty and len(expired) == len(group.offsets):
                self._delete(group, lambda error: None)
            elif expired:
                self.offsets.forget(group, expired)
