"""Finds the target's offset for a source offset that the worker does not remember, by reading the logs.

Sequence numbers count a task's records, so the number of the record at a source offset follows from any later record
with a known offset and number, if the source has no holes between them. With holes (transactions, compaction) the
number is too small, by at most the number of missing offsets. The search looks in the target, whose batches carry the
numbers, for the record with that number: at the offset that it would have if the task were alone there, else by
bisection.

If the task has holes, or the number is unknown, the record itself is searched for: the first that the source has from
the offset on, among the task's in the target, from that early place on, or from its timestamp on. If the target has it
no more, the early place counts: a group reads some records again, and skips none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from millstream_kafka.batch import INT32_MAX, BatchHeader, Record, iter_batches, read_records
from millstream_kafka.client import ClusterClient

from ..kafka.log_reader import EARLIEST, LATEST, headers, headers_in, offset_at, read, records_in
from ..partitions.partition_task import HALF_OF_SEQUENCES, PartitionTask
from ..records.aligning import Fingerprint
from ..records.rewrite import records_to_mirror
from ..runtime.slices import in_turns

FIRST_BYTES, MOST_BYTES = 64 << 10, 4 << 20
SEARCHED_BYTES = 256 << 20
"""A search gives up after this many bytes: other writers send much more to that partition than this task."""


class TooFar(Exception):
    """The offset cannot be translated; the message says why."""


class Next(NamedTuple):
    """The source's next record to mirror; None if there is none before some offset, or the source has deleted it."""

    record: Record | None
    is_deleted: bool = False


class Lookup:
    def __init__(self, at_source: ClusterClient, at_target: ClusterClient) -> None:
        self._at_source = at_source
        self._at_target = at_target

    async def find(self, task: PartitionTask, offset: int) -> int:
        """Raises TooFar, BrokerError, ApiError."""
        anchor, progress = task.offsets.start, task.acknowledged
        back = max(0, anchor.offset - offset)
        start = await offset_at(self._at_target, task.target, EARLIEST)
        if offset <= progress.first and progress.producer_epoch == 0:
            return start  # before all mirrored records
        end = await offset_at(self._at_target, task.target, LATEST)
        before_anchor = min(max(anchor.target_offset, start), end)
        if not back:  # all of the task's records lie before
            return before_anchor
        early = None
        if back <= HALF_OF_SEQUENCES and 0 <= progress.first <= offset:
            last = (anchor.sequence - back - 1) & INT32_MAX
            guess = min(max(anchor.target_offset - back - 1, start), end)
            early = await _Search(self._at_target, task, last).between(start, end, guess)
            if progress.is_dense:
                return early
        following = await self._next_record(task, offset, anchor.offset)
        if following.record is not None:
            found = await self._same_record(task, following.record, early, before_anchor)
            early = early if found is None else found
        elif not following.is_deleted:
            return before_anchor
        if early is None:
            raise TooFar(f"{task}: offset {offset} is from before the numbers of this mirror")
        return early

    async def _next_record(self, task: PartitionTask, offset: int, until: int) -> Next:
        """The source's first record to mirror from ``offset`` to before ``until``."""
        while offset < until:
            answer = await read(self._at_source, task.source, offset, FIRST_BYTES, is_committed=True)
            records = records_to_mirror(records_in(answer), offset, answer.aborted_transactions or ())
            if (record := next(records, None)) is not None:
                return Next(record if record.offset < until else None)
            before = offset
            for header in headers_in(answer):
                offset = max(offset, header.next_offset)
            if offset == before:
                return Next(None, is_deleted=True)
        return Next(None)

    async def _same_record(
        self, task: PartitionTask, record: Record, early: int | None, end: int
    ) -> int | None:
        """The target's offset of a record of the source; None if it is not found before ``end``.

        ``early``: an offset that is not after it, if one is known.
        """
        if (low := await self._not_after(task, record, early)) is None:
            return None
        wanted, searched = Fingerprint.of(record), 0
        async with aclosing(_batches(self._at_target, task, low)) as found:
            async for header, data in found:
                searched += header.size
                if header.base_offset >= end or searched > SEARCHED_BYTES:
                    break
                is_mine = header.producer_id == task.acknowledged.producer_id
                if not is_mine or (not header.is_log_append_time and header.max_timestamp < record.timestamp):
                    continue
                async for record in in_turns(read_records(data)):
                    there = Fingerprint.of(record, is_stamped=header.is_log_append_time)
                    if record.offset >= low and wanted.equals(there):
                        return record.offset
        return None

    async def _not_after(self, task: PartitionTask, record: Record, early: int | None) -> int | None:
        """An offset of the target that is not after the record's copy; None if there is none to begin at."""
        at = await offset_at(self._at_target, task.target, record.timestamp) if record.timestamp >= 0 else -1
        if at < 0:
            return early
        answer = await read(self._at_target, task.target, at, 1)
        if any(header.is_log_append_time for header in headers_in(answer)):
            return early  # the broker's own times
        return at if early is None else max(at, early)


async def _batches(
    cluster: ClusterClient, task: PartitionTask, offset: int
) -> AsyncGenerator[tuple[BatchHeader, memoryview]]:
    """The target's batches from an offset on. Raises BrokerError, ApiError."""
    size = FIRST_BYTES
    while True:
        answer = await read(cluster, task.target, offset, size)
        before, data = offset, records_in(answer)
        async for start, header in in_turns(iter_batches(data)):
            yield header, data[start : start + header.size]
            offset = max(offset, header.next_offset)
        if answer.error_code or offset == before or offset >= answer.high_watermark:
            return
        size = min(size * 4, MOST_BYTES)


class _Search:
    """Searches for the offset after the record with the number ``last``."""

    def __init__(self, cluster: ClusterClient, task: PartitionTask, last: int) -> None:
        self._cluster = cluster
        self._task = task
        self._last = last
        self._bytes = 0

    async def between(self, low: int, high: int, guess: int) -> int:
        middle = guess
        while low < high:
            header = await self._next(middle)
            if header is None or (ahead := self._ahead(header)) >= HALF_OF_SEQUENCES:
                high = min(middle, header.base_offset) if header else middle
            elif ahead <= header.last_offset_delta:
                return header.base_offset + ahead + 1
            else:
                low = header.next_offset
            middle = (low + high) // 2
        return low

    def _ahead(self, header: BatchHeader) -> int:
        """Records from this batch's first to the last one; half of all numbers or more: the last one is earlier."""
        return (self._last - header.base_sequence) & INT32_MAX

    async def _next(self, offset: int) -> BatchHeader | None:
        """The task's next batch from an offset on."""
        progress = self._task.acknowledged
        mine = (progress.producer_id, progress.producer_epoch)
        found = headers(self._cluster, self._task.target, offset, first=FIRST_BYTES, most=MOST_BYTES)
        async with aclosing(found):
            async for header in found:
                self._bytes += header.size
                if (header.producer_id, header.producer_epoch) == mine:
                    return header
                if self._bytes > SEARCHED_BYTES:
                    raise TooFar(f"{self._task}: its records lie too far apart in the target")
        return None
