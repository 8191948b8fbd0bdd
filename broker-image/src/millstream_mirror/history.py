"""Whether a source still has what was mirrored from it (mode Aggregate).

A source that is restored from an older copy, or elects an unclean leader, lacks records that the target has, and may
give their offsets to other records. So progress contains the last batch that was mirrored: its offset, its CRC and its
leader epoch. Replicas accept a batch only after an equal log (KIP-101), so the source has all earlier batches, too, if
it has this one. Leader epochs alone would not do: a restored cluster uses them again.

A lane checks this before its first fetch, over a new connection, and under a new leader epoch. In between, the source
refuses fetches under another epoch (KIP-320).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from millstream_kafka.batch import BatchHeader
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from .lane import Lane
from .reading import EARLIEST, headers_in, may_be_compacted, offset_at, read
from .together import Together
from .topics import leaders_of

LEADER_LOOK_S = 0.1
REPLICATED_S, REPLICATED_LOOK_S = 10.0, 0.5
"""How long a new leader may take to find out that followers have its last batches, and how often to look."""
AT_ONCE = 32


class Diverged(Exception):
    """The source and the target have different histories; the message says how they differ."""


class History:
    """Checks lanes of one source. Raises Diverged, BrokerError, ApiError."""

    def __init__(self, at_source: ClusterClient) -> None:
        self._at_source = at_source
        self._epochs = Together(self._ask_epochs)
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def epoch(self, partition: TopicPartition) -> int:
        """The leader epoch of a partition; -1 if the source has no epochs."""
        if (epoch := await self._epochs.get(partition)) is None:
            topic, number = partition
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{number} has no leader in the source")
        return epoch

    async def check(self, lane: Lane) -> None:
        """Raise Diverged unless the source has the lane's last batch; then the lane may fetch under this leader."""
        while True:
            compared_at = time.monotonic()
            if (epoch := await self._epochs.get(lane.source)) is not None:
                break
            await asyncio.sleep(LEADER_LOOK_S)
        offset, last = lane.acknowledged.offset, lane.acknowledged.last
        following = -1
        if last is not None:
            theirs = await self._first_batch(lane, last.offset, epoch)
            if theirs is not None and theirs.base_offset <= last.offset:
                is_rewritten = may_be_compacted(theirs) and theirs.partition_leader_epoch == last.epoch
                if theirs.base_offset < last.offset or (theirs.crc != last.crc and not is_rewritten):
                    raise Diverged(
                        f"the source has another batch at offset {last.offset} than the mirrored one"
                    )
                following = theirs.next_offset
        if following != offset:
            async with self._limit:
                answer = await read(self._at_source, lane.source, offset, 1, epoch=epoch)
            if answer.error_code and await offset_at(self._at_source, lane.source, EARLIEST) <= offset:
                raise Diverged(f"the source ends before offset {offset}, up to which it was mirrored")
        lane.source_epoch, lane.compared_at = epoch, compared_at

    async def _first_batch(self, lane: Lane, offset: int, epoch: int) -> BatchHeader | None:
        """The header of the first batch that ends after the offset; None if the source has deleted it.

        Raises Diverged if the source ends before.
        """
        deadline = time.monotonic() + REPLICATED_S
        while True:
            async with self._limit:
                answer = await read(self._at_source, lane.source, offset, 1, epoch=epoch)
            if headers := headers_in(answer):
                return headers[0]
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if await offset_at(self._at_source, lane.source, EARLIEST) > offset:
                    return None
                break
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(REPLICATED_LOOK_S)
        raise Diverged(f"the source ends before offset {offset + 1}, up to which it was mirrored")

    async def _ask_epochs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The leader epochs of partitions; None without a leader."""
        _, leaders, epochs = await leaders_of(self._at_source, {topic for topic, _ in partitions})
        return {where: epochs.get(where, -1) if where in leaders else None for where in partitions}
