"""Runs the group coordinator on the event loop: time, callers that wait, appends and loading.

Each call passes the time and the event to the coordinator, and carries out the effects in order. One timer
on the loop serves the coordinator's earliest deadline. The reply of a caller whose connection has ended
is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..runtime.slices import turns
from .coordinator import GroupCoordinator
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
    Reply,
    Sync,
    SyncResult,
)
from .records import LoadedGroups, read_groups
from .store import OffsetsTopic, OffsetsWriter

T = TypeVar("T")

FINISH_S = 1.0
"""Time limit of running appends when the broker stops; their callers have left by then."""

RETRY_S, LONGEST_RETRY_S = 0.1, 10.0
"""First and longest pause between attempts to load a partition; each is twice the previous one."""

FIRST_LOAD_S = 1.0
"""How long the creation of __consumer_offsets waits for its partitions to be loaded."""

logger = logging.getLogger(__name__)


class GroupDriver:
    """The group APIs as coroutines."""

    unreadable = 0
    """Records that were skipped when groups were loaded, since the start."""

    def __init__(self, config: GroupConfig, topic: OffsetsTopic, topic_id: Callable[[str], UUID]) -> None:
        """``topic_id`` returns the id of the topic that has a name now, ZERO_UUID if none is known."""
        self._topic = topic
        self._coordinator = GroupCoordinator(config, lambda: str(uuid.uuid4()), topic_id)
        self._writer = OffsetsWriter(topic, self._stored, self._late)
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """Of the loop. uvloop's handle does not know it if it is less than half a millisecond away."""
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._forgetting = supervision.Tasks()
        self._creating: asyncio.Task[None] | None = None
        self._closed = False

    # ---- life

    async def ensure_topic(self) -> None:
        """Create __consumer_offsets at the first use of groups. Raises ApiError."""
        if self._topic.partition_count() is not None:
            return
        if self._creating is None:
            self._creating = asyncio.create_task(self._create())  # its error goes to the callers
            self._creating.add_done_callback(self._created)
        await asyncio.shield(self._creating)

    def _created(self, creating: asyncio.Task[None]) -> None:
        self._creating = None
        if not creating.cancelled():
            creating.exception()  # all callers may have left

    async def _create(self) -> None:
        self.has_partitions(await self._topic.create())
        if self._loads:  # so that the first member need not retry
            await asyncio.wait(self._loads.values(), timeout=FIRST_LOAD_S)

    def has_partitions(self, count: int) -> None:
        """Set the number of partitions of __consumer_offsets."""
        self._coordinator.config = replace(self._coordinator.config, offsets_topic_num_partitions=count)

    def lead(self, partition: int) -> None:
        """Load the groups of this partition of __consumer_offsets, because this broker leads it from now on."""
        if partition in self._loads or not self._coordinator.begin_load(partition):
            return
        self._loads[partition] = supervision.keep(
            "loading of groups", partial(self._load, partition), pause_s=RETRY_S
        )

    def resign(self, partition: int) -> None:
        """Another broker leads it: waiting callers get NOT_COORDINATOR; loads and queued writes are abandoned."""
        if (load := self._loads.pop(partition, None)) is not None:
            load.cancel()
        self._writer.give_up(partition)
        self._event(lambda: self._coordinator.unload(partition))

    async def _load(self, partition: int) -> None:
        """Load a partition, retrying until it succeeds or ``resign`` cancels it: an incomplete load would serve wrong
        offsets."""
        pause_s = RETRY_S
        while True:
            try:
                partitions = self._coordinator.config.offsets_topic_num_partitions
                batches = self._topic.read_all(partition)
                loaded = await asyncio.to_thread(read_groups, batches, partition, partitions)
                self._event(partial(self._coordinator.loaded, partition, loaded.groups))
                break
            except (ApiError, OSError) as error:
                logger.error(
                    "__consumer_offsets-%d: cannot load its groups, retrying in %g s: %s",
                    partition,
                    pause_s,
                    error,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        del self._loads[partition]
        self._report(partition, loaded)

    def _report(self, partition: int, loaded: LoadedGroups) -> None:
        if loaded.groups:
            logger.info("__consumer_offsets-%d: %d groups loaded", partition, len(loaded.groups))
        if loaded.unreadable:
            self.unreadable += loaded.unreadable
            logger.error(
                "__consumer_offsets-%d: skipped %d records that cannot be read; the first: %s",
                partition,
                loaded.unreadable,
                "; ".join(loaded.examples),
            )

    async def close(self) -> None:
        """Reply to all waiting callers, and let running appends finish, within ``FINISH_S``."""
        self._closed = True
        self._event(lambda: self._coordinator.answer_all(ErrorCode.NOT_COORDINATOR))
        for task in self._loads.values():
            task.cancel()
        await self._forgetting.cancel()
        await self._writer.finish(FINISH_S)
        if self._timer is not None:
            self._timer.cancel()

    # ---- the APIs

    @property
    def loading(self) -> int:
        """Partitions whose groups are being loaded."""
        return len(self._loads)

    def all(self) -> list[Group]:
        """The groups that this broker coordinates."""
        return list(self._coordinator.groups.values())

    def partition_of(self, group_id: str) -> int:
        return self._coordinator.partition_of(group_id)

    async def join(self, event: Join) -> JoinResult:
        result: JoinResult = await self._ask(lambda caller: self._coordinator.join(caller, event))
        return result

    async def sync(self, event: Sync) -> SyncResult:
        result: SyncResult = await self._ask(lambda caller: self._coordinator.sync(caller, event))
        return result

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        return self._event(lambda: self._coordinator.heartbeat(group_id, member_id, generation, instance_id))

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        return self._event(lambda: self._coordinator.leave(group_id, leaving))

    async def commit(self, event: Commit) -> CommitResult:
        result: CommitResult = await self._ask(lambda caller: self._coordinator.commit(caller, event))
        return result

    def fetch_offsets(self, group_id: str, partitions: Iterable[TopicPartition] | None) -> FetchedOffsets:
        return self._coordinator.fetch_offsets(group_id, partitions)

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        return self._coordinator.committed_partitions(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> DeleteOffsetsResult:
        result: DeleteOffsetsResult = await self._ask(
            lambda caller: self._coordinator.delete_offsets(caller, group_id, partitions)
        )
        return result

    def describe(self, group_id: str) -> GroupDescription:
        return self._coordinator.describe(group_id)

    def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[GroupListing]]:
        return self._coordinator.list_groups(states)

    async def delete_group(self, group_id: str) -> ErrorCode:
        result: ErrorCode = await self._ask(lambda caller: self._coordinator.delete_group(caller, group_id))
        return result

    def forget_topics(self, deleted: Mapping[str, UUID]) -> None:
        """Call this after the deletion of topics, with their ids by name."""
        forgetting = self._forget(deleted)
        if next(forgetting, None) is not None:
            self._forgetting.add(supervision.run("positions in deleted topics", _in_turns(forgetting)))

    def _forget(self, deleted: Mapping[str, UUID]) -> Iterator[bool]:
        """Run each step as an event."""
        steps = self._coordinator.forget_topics(deleted)
        while not self._closed and self._event(lambda: next(steps, True)) is None:
            yield True

    # ---- events and effects

    async def _ask(self, event: Callable[[asyncio.Future[Any]], None]) -> Any:
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        caller: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._event(lambda: event(caller))
        return await caller

    def _event(self, event: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            self._coordinator.advance(int(loop.time() * 1000), int(time.time() * 1000))
            return event()
        finally:  # a defect that shows in one group must not stop the clock of all
            self._set_timer(loop)
            self._carry_out()

    def _carry_out(self) -> None:
        for effect in self._coordinator.take_effects():
            if isinstance(effect, Reply):
                assert isinstance(effect.caller, asyncio.Future)
                if not effect.caller.done():
                    effect.caller.set_result(effect.result)
            else:
                self._writer.write(effect)

    def _stored(self, writes: list[int], error: ErrorCode) -> None:
        self._event(lambda: self._coordinator.stored(writes, error))

    def _late(self, writes: list[int], error: ErrorCode) -> None:
        self._event(lambda: self._coordinator.late(writes, error))

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = self._coordinator.next_deadline()
        if self._closed or deadline is None:
            return
        at = (deadline + 1) / 1000
        if self._timer is not None:
            if self._timer_at <= at:
                return  # it fires early enough, and checks again then
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(at, self._time_is_up), at

    def _time_is_up(self) -> None:
        self._timer = None  # first, because the event may set the next one
        self._event(lambda: None)


async def _in_turns(steps: Iterator[object]) -> None:
    async for _ in turns(steps):
        pass
