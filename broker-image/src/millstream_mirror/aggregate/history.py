"""Whether a source still has what was mirrored from it (mode Aggregate).

A source that is restored from an older copy, or elects an unclean leader, lacks records that the target has, and may
give their offsets to other records. So progress contains the last batch that was passed: its offset, its CRC and its
leader epoch. Replicas accept a batch only after an equal log (KIP-101), so a source that has this batch has all before
it, too. Leader epochs alone would not do: a restored cluster uses them again.

A task checks this before its first fetch, over a new connection, and under a new leader epoch. In between, the source
refuses fetches under another epoch (KIP-320).

A new leader may not know yet that its last batches are replicated, and does not return them before. So a batch that is
not returned is missing only if the log itself ends before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from millstream_kafka.batch import BatchHeader
from millstream_kafka.client import ClusterClient, RequestTimedOut
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.batcher import RequestBatcher
from ..kafka.log_reader import EARLIEST, headers_in, may_be_compacted, offset_at, read
from ..kafka.progress import LastBatch
from ..kafka.topics import is_same, leaders_of
from ..partitions.partition_task import PartitionTask, Side

LEADER_CHECK_S, LEADER_CHECK_MAX_S = 0.1, 1.0
AT_ONCE = 32
"""Reads from one broker; over a slow link, one."""
SLOW_S = 60.0
"""How long a link counts as slow after a request has timed out."""


class Led(NamedTuple):
    """A partition that has a leader."""

    leader: int
    epoch: int
    """The leader's; -1 if the source has no epochs."""
    topic_id: str


class Diverged(Exception):
    """The source and the target have different histories; the message says how they differ."""


class History:
    """Checks tasks of one source. Raises Diverged, BrokerError, ApiError."""

    def __init__(self, at_source: ClusterClient) -> None:
        """No one else uses ``at_source``: reads of whole batches would hold up other requests."""
        self._at_source = at_source
        self._led = RequestBatcher(self._ask_leaders)
        self._limits: dict[int, asyncio.Semaphore] = {}
        self._one_by_one: dict[int, asyncio.Lock] = {}
        self._slow_until: dict[int, float] = {}
        """By leader, like the limits: one that does not respond holds up no task of the others."""

    async def epoch(self, partition: TopicPartition) -> int:
        """The leader epoch of a partition; -1 if the source has no epochs."""
        if (led := await self._led.get(partition)) is None:
            topic, number = partition
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{number} has no leader in the source")
        return led.epoch

    async def check(self, task: PartitionTask) -> bool:
        """Raise Diverged unless the source has the task's last batch; then the task may fetch under this leader.

        Waits for a leader. False if the source's topic has another id than before.
        """
        pause = LEADER_CHECK_S
        while True:
            compared_at = time.monotonic()
            if (led := await self._led.get(task.source)) is not None:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, LEADER_CHECK_MAX_S)
        if not is_same(led.topic_id, task.acknowledged.topic_id):
            return False
        async with self._turn(led.leader):
            try:
                last = await self._check_last(task, led.epoch)
            except RequestTimedOut:
                self._slow_until[led.leader] = time.monotonic() + SLOW_S
                raise
            if last is not None:
                task.passed(last)
        task.source_epoch, task.compared_at = led.epoch, compared_at
        return True

    async def ends_before(self, partition: TopicPartition, offset: int, epoch: int = -1) -> bool:
        """Whether the source's log ends before this offset, also where it is not replicated yet."""
        answer = await read(self._at_source, partition, offset, 1, epoch=epoch)
        is_out = answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        return is_out and await offset_at(self._at_source, partition, EARLIEST) <= offset

    async def _check_last(self, task: PartitionTask, epoch: int) -> LastBatch | None:
        """The batch that ends at the task's offset, if its progress does not have it. Raises Diverged."""
        offset, last = task.acknowledged.offset, task.acknowledged.last
        if last is not None:
            theirs = await self._first_batch(task, last.offset, epoch)
            if theirs is not None and theirs.base_offset <= last.offset:
                is_rewritten = may_be_compacted(theirs) and theirs.partition_leader_epoch == last.epoch
                if theirs.base_offset < last.offset or (theirs.crc != last.crc and not is_rewritten):
                    raise Diverged(
                        f"the source has another batch at offset {last.offset} than the mirrored one"
                    )
                if theirs.next_offset == offset:
                    return None
        if await self.ends_before(task.source, offset, epoch):
            raise Diverged(f"the source ends before offset {offset}, up to which it was mirrored")
        if last is None and offset > 0:  # progress of an older release
            found = await self._first_batch(task, offset - 1, epoch)
            if found is not None and found.next_offset == offset:
                return LastBatch(found.base_offset, found.crc, found.partition_leader_epoch)
        return None

    async def _first_batch(self, task: PartitionTask, offset: int, epoch: int) -> BatchHeader | None:
        """The header of the first batch that ends after the offset; None if the source has deleted it."""
        answer = await read(self._at_source, task.source, offset, 1, epoch=epoch)
        if headers := headers_in(answer):
            return headers[0]
        is_out = answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        if is_out and await offset_at(self._at_source, task.source, EARLIEST) > offset:
            return None
        if is_out or await self.ends_before(task.source, offset + 1, epoch):
            raise Diverged(f"the source ends before offset {offset + 1}, up to which it was mirrored")
        raise not_replicated_yet("source", task.source, offset)

    @contextlib.asynccontextmanager
    async def _turn(self, leader: int) -> AsyncIterator[None]:
        async with self._limits.setdefault(leader, asyncio.Semaphore(AT_ONCE)):
            if time.monotonic() < self._slow_until.get(leader, 0.0):
                async with self._one_by_one.setdefault(leader, asyncio.Lock()):
                    yield
            else:
                yield

    async def _ask_leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Led | None]:
        """None for partitions without a leader."""
        ids, leaders, epochs = await leaders_of(self._at_source, {topic for topic, _ in partitions})
        return {
            where: Led(leaders[where], epochs[where], ids[where[0]]) if where in leaders else None
            for where in partitions
        }


def not_replicated_yet(side: Side, partition: TopicPartition, offset: int) -> ApiError:
    """For a cluster that has records from this offset on, and does not return them yet."""
    topic, number = partition
    words = f"is not replicated in the {side} yet: start its brokers that are in the ISR"
    return ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{topic}-{number}: offset {offset} {words}")
