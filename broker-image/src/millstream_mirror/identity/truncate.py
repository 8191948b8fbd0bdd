"""Identity mode, resync of one partition: find the last common offset, copy the records after it, truncate.

The target's topic is read-only meanwhile. Each round reads both logs again, and the target truncates its log only if
it has not changed since (MirrorTruncate). So a round that is abandoned, or overtaken by another worker, leaves nothing
half done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from millstream_kafka.batch import iter_batches, read_header
from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import MirrorSource
from millstream_kafka.protocol import mirror_truncate, offset_for_leader_epoch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_truncate import (
    MirrorTruncateRequest,
    TruncatedPartition,
    TruncatedPartitionResponse,
    TruncatedTopic,
)
from millstream_kafka.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import SET_ASIDE_SUFFIX
from ..kafka.log_reader import EARLIEST, LATEST, offset_at, read
from ..records.common_offset import CommonOffset
from .diverged_records import CannotResync, DivergedRecords, Room

LEVEL_CHECK_S, LEVEL_S = 0.05, 10.0
"""How often to check replicas that still have to truncate, and the time after which that is an error."""
ROUNDS = 10
"""Rounds of comparing and truncating before the topic has to wait for a retry."""
DELETE_IT = "delete it in the target to mirror the source's from its start"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Both:
    """A topic of the target, and the source's topic with which it is resynced."""

    name: str
    topic_id: str
    source: MirrorSource
    source_topic: str
    partitions: int


class Truncation:
    """Raises BrokerError, ApiError, CannotResync."""

    def __init__(self, at_source: ClusterClient, at_target: ClusterClient, diverged: DivergedRecords) -> None:
        self._at_source = at_source
        self._at_target = at_target
        self._diverged = diverged
        self._truncated: set[tuple[str, int, int]] = set()
        """Logs that this worker has truncated: the topic's id, the partition, and the end."""

    async def check(self, both: Both, partition: int) -> None:
        """Raise CannotResync if the partition cannot be resynced, as far as that shows while producers write to it."""
        where = both.name, partition
        start = await offset_at(self._at_target, where, EARLIEST)
        end = await offset_at(self._at_target, where, LATEST)
        last = await _batch_at(self._at_target, where, end - 1, -1) if end > start else None
        epoch = -1 if last is None else read_header(last).partition_leader_epoch
        here = TruncatedPartitionResponse(partition, 0, None, -1, start, end, epoch, end)
        # What an empty log has had shows only in its leader epochs, which `join` reads.
        await self._common(both, here, is_truncated=last is None)

    async def join(self, both: Both, partition: int, room: Room) -> TruncatedPartitionResponse:
        """Truncate the partition at the common offset; return its state once all possible leaders have it."""
        where = both.name, partition
        for _ in range(ROUNDS):
            here = await self.report(both, partition)
            is_truncated = (both.topic_id, partition, here.log_end_offset) in self._truncated
            if here.high_watermark < here.log_end_offset:
                raise CannotResync(
                    f"partition {partition} ends at offset {here.log_end_offset}, and is replicated to"
                    f" {here.high_watermark}: waiting for its in-sync replicas"
                )
            offset, epoch = await self._common(both, here, is_truncated=is_truncated)
            if (here.log_end_offset, here.last_epoch) == (offset, epoch):
                if (level := await self._await_level(both, here)) is not None:
                    return level
                continue
            if offset < here.log_end_offset:
                await self._diverged.prepare(both.name, room)
                count = await self._diverged.copy(
                    where, both.topic_id, offset, here.log_end_offset, here.leader_epoch
                )
                logger.warning(
                    "%s-%d: the last common offset is %d: %d records that only the target has are in %s-%d",
                    *where,
                    offset,
                    count,
                    both.name + SET_ASIDE_SUFFIX,
                    partition,
                )
            await self._truncate(both, here, offset)
            self._truncated.add((both.topic_id, partition, offset))
        raise CannotResync(f"partition {partition} changes while it is compared: trying again")

    async def _await_level(
        self, both: Both, here: TruncatedPartitionResponse
    ) -> TruncatedPartitionResponse | None:
        """The state once all replicas that may lead next have it; None if it changes. Raises CannotResync."""
        deadline = time.monotonic() + LEVEL_S
        while not here.in_sync:
            if time.monotonic() > deadline:
                raise CannotResync(
                    f"partition {here.index}: a replica that may lead next has not truncated its log yet: waiting"
                    " for its broker"
                )
            await asyncio.sleep(LEVEL_CHECK_S)
            now = await self.report(both, here.index)
            if not is_same_log(now, here):
                return None
            here = now
        return here

    async def _common(
        self, both: Both, here: TruncatedPartitionResponse, *, is_truncated: bool = False
    ) -> tuple[int, int]:
        """The common offset, and the leader epoch of the last common batch (-1 if the target has none).

        ``is_truncated``: this worker has truncated it before, so the end of an empty log is known to be common.
        Raises CannotResync if there is no such offset, or if truncating there would not be safe.
        """
        theirs, ours = (both.source_topic, here.index), (both.name, here.index)
        epoch = await self._source_epoch(both, here.index)
        start = await offset_at(self._at_source, theirs, EARLIEST)
        end = await offset_at(self._at_source, theirs, LATEST)
        if here.log_start_offset == here.log_end_offset:  # nothing to compare, and nothing to lose
            if here.log_end_offset > end:
                raise CannotResync(
                    f"partition {here.index} is empty and ends at offset {here.log_end_offset}, the source's at {end}:"
                    f" {DELETE_IT}"
                )
            is_known = here.log_end_offset <= start or (is_truncated and here.last_epoch < 0)
            if not is_known and await self._bound(both, here, epoch, end) < here.log_end_offset:
                raise CannotResync(
                    f"partition {here.index} is empty and ends at offset {here.log_end_offset}, and it may never have"
                    f" had the source's records before that, from offset {start} on: {DELETE_IT}"
                )
            return here.log_end_offset, -1
        if start >= here.log_end_offset:
            raise CannotResync(
                f"partition {here.index} has no offset in common with the source: it ends at {here.log_end_offset}, and"
                f" the source has deleted everything before {start}: {DELETE_IT}"
            )
        bound = await self._bound(both, here, epoch, end)
        if bound < 0:
            bound = min(end, here.log_end_offset)
        search = CommonOffset(max(start, here.log_start_offset), bound)
        while (offset := search.next_offset) is not None:
            search.compare(
                await _batch_at(self._at_target, ours, offset, here.leader_epoch),
                await _batch_at(self._at_source, theirs, offset, epoch),
            )
        if not search.is_found:
            raise CannotResync(
                f"partition {here.index} has no record in common with the source, of offsets {search.offset} to"
                f" {min(end, here.log_end_offset) - 1}: exclude it, or {DELETE_IT}"
            )
        if search.offset < here.log_end_offset:
            await self._check_epochs(here, theirs, search.offset, end, epoch)
        return search.offset, search.epoch

    async def _bound(self, both: Both, here: TruncatedPartitionResponse, epoch: int, end: int) -> int:
        """The offset up to which the logs may be equal, by their leader epochs; -1 if these do not tell."""
        theirs, ours = (both.source_topic, here.index), (both.name, here.index)
        if here.last_epoch < 0:
            return -1
        last, in_source = await _end_of(self._at_source, theirs, epoch, here.last_epoch)
        if last < 0:
            return -1
        last, in_target = await _end_of(self._at_target, ours, here.leader_epoch, last)
        return min(end, here.log_end_offset, in_source, *([in_target] if last >= 0 else []))

    async def _check_epochs(
        self, here: TruncatedPartitionResponse, theirs: TopicPartition, offset: int, end: int, epoch: int
    ) -> None:
        """Raise CannotResync unless the source's next records have higher leader epochs than those to be truncated.

        They have, if the source was promoted from a replica. Then no epoch stands for records of both logs, and epochs
        alone tell each follower what to truncate, even one that returns later.
        """
        following = await _batch_at(self._at_source, theirs, offset, epoch) if offset < end else None
        source_epoch = epoch if following is None else read_header(following).partition_leader_epoch
        if source_epoch <= here.last_epoch:
            raise CannotResync(
                f"partition {here.index} parted from the source at offset {offset}, and the source's leader epoch"
                f" there, {source_epoch}, is not above the target's, {here.last_epoch}: {DELETE_IT}"
            )

    async def _source_epoch(self, both: Both, partition: int) -> int:
        """The leader epoch of the source's partition. Raises CannotResync if the source's topic was recreated."""
        (topic,) = (await self._at_source.metadata([both.source_topic])).topics
        if topic.error_code:
            raise ApiError(ErrorCode.of(topic.error_code), f"topic {both.source_topic} in the source")
        if topic.topic_id != both.source.topic_id:
            raise CannotResync(f"topic {both.source_topic} was deleted and created again in the source")
        for found in topic.partitions:
            if found.partition_index == partition and found.leader_id >= 0:
                return found.leader_epoch
        raise ApiError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{both.source_topic}-{partition} has no leader in the source"
        )

    # ---- MirrorTruncate

    async def report(self, both: Both, partition: int) -> TruncatedPartitionResponse:
        answer = await self._call(both, TruncatedPartition(partition))
        if answer.error_code:
            self._at_target.forget_leaders(both.name)
            error = ErrorCode.of(answer.error_code)
            raise ApiError(error, answer.error_message or f"{both.name}-{partition} in the target")
        return answer

    async def _truncate(self, both: Both, here: TruncatedPartitionResponse, offset: int) -> None:
        """Truncate the log there unless it has changed; the caller checks the result. Raises BrokerError."""
        requested = TruncatedPartition(
            here.index, here.leader_epoch, here.log_end_offset, here.last_epoch, offset
        )
        answer = await self._call(both, requested)
        if answer.error_code:
            self._at_target.forget_leaders(both.name)
            logger.warning(
                "%s-%d: truncation to offset %d failed: %s",
                both.name,
                here.index,
                offset,
                answer.error_message,
            )
            await asyncio.sleep(LEVEL_CHECK_S)
        elif offset < here.log_end_offset:
            logger.warning(
                "%s-%d: truncated from offset %d to %d", both.name, here.index, here.log_end_offset, offset
            )

    async def _call(self, both: Both, requested: TruncatedPartition) -> TruncatedPartitionResponse:
        request = MirrorTruncateRequest(
            both.source.cluster_id, [TruncatedTopic(both.name, both.source.topic_id, [requested])]
        )
        response = await self._at_target.call_leader(both.name, requested.index, mirror_truncate.API, request)
        return response.topics[0].partitions[0]


def is_same_log(log: TruncatedPartitionResponse, other: TruncatedPartitionResponse) -> bool:
    """Whether two reports of a log that is only resynced show the same end."""
    return (log.log_end_offset, log.last_epoch) == (other.log_end_offset, other.last_epoch)


async def _batch_at(
    cluster: ClusterClient, where: TopicPartition, offset: int, epoch: int
) -> memoryview | None:
    """The first batch that ends after the offset; None at the log's end. Raises BrokerError, ApiError."""
    answer = await read(cluster, where, offset, 1, epoch=epoch)
    if answer.error_code:  # the start of the log has moved
        raise ApiError(ErrorCode.of(answer.error_code), f"reading {where[0]}-{where[1]} at offset {offset}")
    records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
    for start, header in iter_batches(records):
        return records[start : start + header.size]
    return None


async def _end_of(
    cluster: ClusterClient, where: TopicPartition, leader_epoch: int, epoch: int
) -> tuple[int, int]:
    """The largest leader epoch of a log up to this one, and where it ends; -1 if none is known.

    Raises BrokerError, ApiError."""
    topic, partition = where
    requested = OffsetForLeaderPartition(partition, leader_epoch, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic, [requested])])
    response = await cluster.call_leader(topic, partition, offset_for_leader_epoch.API, request)
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        cluster.forget_leaders(topic)
        raise ApiError(ErrorCode.of(answer.error_code), f"leader epochs of {topic}-{partition}")
    return answer.leader_epoch, answer.end_offset
