"""Offsets that producers commit in transactions (KIP-98, KIP-447): TxnOffsetCommit, and the markers that end them.

Such an offset is stored at once, as part of the producer's transaction, and counts when its commit marker is stored. Of
it and a plain commit the one later in the log counts, whenever the transaction is committed.
"""

from __future__ import annotations

from millstream_kafka.protocol.errors import ErrorCode

from ..coordinator.effects import Caller, TransactionMarker
from .classic import ClassicGroups
from .errors import offset_error
from .group import Group
from .messages import Commit, TransactionalCommit
from .offsets import CommittedOffsets
from .records import offset_record
from .state import State, unavailable


class TransactionalOffsets:
    """The offsets of open transactions, which markers apply or drop."""

    def __init__(self, state: State, groups: ClassicGroups, offsets: CommittedOffsets) -> None:
        self._state = state
        self._groups = groups
        self._offsets = offsets
        self._groups_of: dict[int, set[str]] = {}
        """Group ids with offsets of a transaction, by producer id."""

    def loaded(self, group: Group) -> None:
        for producer_id in group.transactional_offsets:
            self._groups_of.setdefault(producer_id, set()).add(group.group_id)

    def unload(self, group: Group) -> None:
        for producer_id in group.transactional_offsets:
            self._forget(producer_id, group)

    def _forget(self, producer_id: int, group: Group) -> None:
        groups = self._groups_of.get(producer_id)
        if groups is not None:
            groups.discard(group.group_id)
            if not groups:
                del self._groups_of[producer_id]

    def commit(self, caller: Caller, event: TransactionalCommit) -> None:
        """The reply has an error code for each partition."""
        commit = event.commit
        group = self._groups.by_id.get(commit.group_id)
        if error := unavailable(self._state, commit.group_id) or self._check(group, commit):
            self._state.reply(caller, {(each.topic, each.partition): error for each in commit.offsets})
            return
        results, committed = self._offsets.to_store(commit)
        if not committed:
            self._state.reply(caller, results)
            return
        if group is None:
            group = self._groups.by_id[commit.group_id] = Group(commit.group_id)
        reply, producer_id = self._state.replier(caller), event.producer.producer_id

        def stored(error: ErrorCode) -> None:
            group.commits_ended(committed)
            group.transactional_commits_ended(committed)
            if error:
                reply(results | dict.fromkeys(committed, offset_error(error)))
                return
            if self._groups.by_id.get(group.group_id) is group:
                group.transactional_offsets.setdefault(producer_id, {}).update(committed)
                self._groups_of.setdefault(producer_id, set()).add(group.group_id)
            reply(results)

        def late(error: ErrorCode) -> None:
            reply(results | dict.fromkeys(committed, offset_error(error)))

        records = [offset_record(group.group_id, *where, offset) for where, offset in committed.items()]
        group.commits_in_flight.update(committed.keys())
        group.transactional_in_flight.update(committed.keys())
        self._state.store(group.group_id, records, stored, late, event.producer)

    def _check(self, group: Group | None, commit: Commit) -> ErrorCode:
        """Of a group with members, a producer must name none, or a current one."""
        if self._offsets.may_come_from_anybody(group, commit):
            return ErrorCode.NONE
        if group is None:
            return ErrorCode.ILLEGAL_GENERATION
        if commit.generation < 0 and not commit.member_id and commit.instance_id is None:
            return ErrorCode.NONE
        return group.check_current(commit.member_id, commit.instance_id, commit.generation)

    def complete(self, caller: Caller, partition: int, marker: TransactionMarker) -> None:
        """Store the end of a producer's transaction. The reply is an error code."""
        if not self._state.is_active(partition):
            self._state.reply(caller, ErrorCode.NOT_COORDINATOR)
            return

        def stored(error: ErrorCode) -> None:
            if not error:
                self._end(partition, marker)
            self._state.reply(caller, error)

        self._state.store_marker(partition, marker, stored)

    def _end(self, partition: int, marker: TransactionMarker) -> None:
        for group_id in list(self._groups_of.get(marker.producer_id, ())):
            group = self._groups.by_id.get(group_id)
            if group is None or self._state.partition_of(group_id) != partition:
                continue
            offsets = group.transactional_offsets.pop(marker.producer_id, {})
            self._forget(marker.producer_id, group)
            if marker.committed:
                for where, committed in offsets.items():
                    group.commit_if_later(where, committed)
                self._offsets.forget_void(group, offsets)
