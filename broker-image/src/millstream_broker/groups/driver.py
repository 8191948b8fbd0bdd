"""The group coordinator on the event loop, for the handlers of APIs: its state machine on the coordinator runtime."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..coordinator.effects import TransactionMarker
from ..coordinator.runtime import CoordinatorRuntime
from ..coordinator.writer import InternalTopic
from .group import Group
from .messages import (
    Commit,
    CommitResult,
    DeleteOffsetsResult,
    FetchedOffsets,
    GroupConfig,
    GroupDescription,
    GroupListing,
    Join,
    JoinResult,
    LeavingMember,
    Sync,
    SyncResult,
    TransactionalCommit,
)
from .shard import GroupCoordinatorShard


class GroupDriver:
    """The group APIs as coroutines."""

    def __init__(self, config: GroupConfig, topic: InternalTopic, topic_id: Callable[[str], UUID]) -> None:
        """``topic_id`` returns the id of the topic that has a name now, ZERO_UUID if none is known."""
        self._coordinator = GroupCoordinatorShard(config, lambda: str(uuid.uuid4()), topic_id)
        self._runtime = CoordinatorRuntime(self._coordinator, topic, "groups")

    # ---- life

    async def ensure_topic(self) -> None:
        """Create __consumer_offsets at the first use of groups. Raises ApiError."""
        await self._runtime.ensure_topic()

    def set_partition_count(self, count: int) -> None:
        """Set the number of partitions of __consumer_offsets."""
        self._runtime.set_partition_count(count)

    def on_election(self, partition: int, leader_epoch: int) -> None:
        """Load the groups of this partition of __consumer_offsets, because this broker leads it from now on."""
        self._runtime.on_election(partition)

    def on_resignation(self, partition: int) -> None:
        """Another broker leads it: waiting callers get NOT_COORDINATOR; loads and queued writes are abandoned."""
        self._runtime.on_resignation(partition)

    def on_topics_deleted(self, deleted: Mapping[str, UUID]) -> None:
        """Call this after the deletion of topics, with their ids by name."""
        self._runtime.run_steps(
            "positions in deleted topics", self._coordinator.offsets.forget_topics(deleted)
        )

    async def close(self) -> None:
        """Reply to all waiting callers, and let running appends finish, for a limited time."""
        await self._runtime.close()

    # ---- the APIs

    @property
    def loading(self) -> int:
        """Partitions whose groups are being loaded."""
        return self._runtime.loading

    @property
    def unreadable(self) -> int:
        """Records that were skipped when groups were loaded, since the start."""
        return self._runtime.unreadable

    def all(self) -> list[Group]:
        """The groups that this broker coordinates."""
        return list(self._coordinator.groups.values())

    def partition_of(self, group_id: str) -> int:
        return self._coordinator.state.partition_of(group_id)

    async def join(self, event: Join) -> JoinResult:
        result: JoinResult = await self._runtime.call(
            lambda caller: self._coordinator.classic.join(caller, event)
        )
        return result

    async def sync(self, event: Sync) -> SyncResult:
        result: SyncResult = await self._runtime.call(
            lambda caller: self._coordinator.classic.sync(caller, event)
        )
        return result

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        return self._runtime.run(
            lambda: self._coordinator.classic.heartbeat(group_id, member_id, generation, instance_id)
        )

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        return self._runtime.run(lambda: self._coordinator.classic.leave(group_id, leaving))

    async def commit(self, event: Commit) -> CommitResult:
        result: CommitResult = await self._runtime.call(
            lambda caller: self._coordinator.offsets.commit(caller, event)
        )
        return result

    async def commit_in_transaction(self, event: TransactionalCommit) -> CommitResult:
        result: CommitResult = await self._runtime.call(
            lambda caller: self._coordinator.transactional.commit(caller, event)
        )
        return result

    async def complete_transaction(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """Write a marker to a partition of __consumer_offsets: offsets of the transaction count, or are dropped."""
        result: ErrorCode = await self._runtime.call(
            lambda caller: self._coordinator.transactional.complete(caller, partition, marker)
        )
        return result

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, stable: bool
    ) -> FetchedOffsets:
        return self._coordinator.offsets.fetch(group_id, partitions, stable=stable)

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        return self._coordinator.offsets.partitions_of(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> DeleteOffsetsResult:
        result: DeleteOffsetsResult = await self._runtime.call(
            lambda caller: self._coordinator.offsets.delete(caller, group_id, partitions)
        )
        return result

    def describe(self, group_id: str) -> GroupDescription:
        return self._coordinator.describe(group_id)

    def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[GroupListing]]:
        return self._coordinator.list_groups(states)

    async def delete_group(self, group_id: str) -> ErrorCode:
        result: ErrorCode = await self._runtime.call(
            lambda caller: self._coordinator.delete_group(caller, group_id)
        )
        return result
