"""What the target has of a task behind its progress, and where the source continues (records/aligning.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from millstream_kafka.batch import INT32_MAX, advance_sequence, iter_batches, read_header, read_records
from millstream_kafka.client import ClusterClient, UnsupportedApi
from millstream_kafka.protocol import describe_producers
from millstream_kafka.protocol.describe_producers import DescribeProducersRequest, TopicRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition, by_topic

from ..kafka.log_reader import EARLIEST, may_be_compacted, offset_at, read, records_in
from ..partitions.partition_task import HALF_OF_SEQUENCES, PartitionTask
from ..records.aligning import Alignment, Fingerprint, Overlap
from ..records.rewrite import records_to_mirror
from ..runtime.slices import in_turns
from .history import Diverged, History, not_replicated_yet

SCAN_BYTES = 4 << 20
FETCH_BYTES = 1 << 20
MOST_RECORDS = 250_000
"""That are kept in memory to be compared, at some 200 bytes each."""
DESCRIBED_AT_ONCE = 100
"""Partitions in one DescribeProducers: each may have thousands of producers."""


class There(NamedTuple):
    """What the target has of a task after its progress."""

    number: int | None
    """The one that follows its last batch; None without any."""
    is_shorter: bool
    """The target's log ends before the progress's offset, and was read from its start."""
    last: Fingerprint | None
    """The last record."""
    end: int
    """Up to which offset of the target that holds."""


class Producer(NamedTuple):
    """By which the target knows the records of a task."""

    target: TopicPartition
    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TargetState:
    records: list[Fingerprint]
    count: int
    """How many numbers were sent; the target's copy may have lost some of the records to compaction."""
    target_offset: int
    """Behind the last one in the target."""

    @property
    def is_whole(self) -> bool:
        """Whether the target still has all of them."""
        return self.count == len(self.records)


async def numbers_there(at_target: ClusterClient, task: PartitionTask) -> There:
    """What the target has of the task after its progress. Raises BrokerError, ApiError."""
    progress, found, is_shorter = task.acknowledged, None, False
    last: Fingerprint | None = None
    offset = progress.target_offset
    while True:
        answer = await read(at_target, task.target, offset, SCAN_BYTES)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await offset_at(at_target, task.target, EARLIEST)
            is_shorter = is_shorter or start < offset
            offset = start
            continue
        before, data = offset, records_in(answer)
        ours: memoryview | None = None
        async for start, header in in_turns(iter_batches(data)):
            if (header.producer_id, header.producer_epoch) == (
                progress.producer_id,
                progress.producer_epoch,
            ):
                found = advance_sequence(header.last_sequence, 1)
                ours = data[start : start + header.size]
            offset = header.next_offset
        last = last_record(ours) if ours is not None else last
        if offset == before or offset >= answer.high_watermark:
            return There(found, is_shorter, last, offset)


async def target_state_of(at_target: ClusterClient, task: PartitionTask) -> TargetState | None:
    """The task's records in the target that its progress does not count; None: more than can be compared.

    Raises BrokerError, ApiError."""
    progress = task.acknowledged
    records: list[Fingerprint] = []
    following, target_offset = progress.sequence, progress.target_offset
    offset = progress.target_offset
    while True:
        answer = await read(at_target, task.target, offset, FETCH_BYTES)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = await offset_at(at_target, task.target, EARLIEST)
            continue
        before, data = offset, records_in(answer)
        async for start, header in in_turns(iter_batches(data)):
            offset = header.next_offset
            if (header.producer_id, header.producer_epoch) != (progress.producer_id, progress.producer_epoch):
                continue
            after = advance_sequence(header.last_sequence, 1)
            if not 0 < (after - progress.sequence) & INT32_MAX < HALF_OF_SEQUENCES:
                continue
            following, target_offset = after, offset
            for record in read_records(data[start : start + header.size]):
                number = advance_sequence(header.base_sequence, record.offset - header.base_offset)
                if (number - progress.sequence) & INT32_MAX < HALF_OF_SEQUENCES:
                    records.append(Fingerprint.of(record, is_stamped=header.is_log_append_time))
            if len(records) > MOST_RECORDS:
                return None
        if offset == before or offset >= answer.high_watermark:
            return TargetState(records, (following - progress.sequence) & INT32_MAX, target_offset)


async def next_source_offset(
    at_source: ClusterClient, history: History, task: PartitionTask, in_target: TargetState
) -> int | None:
    """The source offset where the task continues; None: the source has deleted what follows the progress.

    Raises BrokerError, ApiError; Diverged if the source lacks some of the records, though it was not compacted."""
    position = task.acknowledged.offset
    alignment = Alignment(position, in_target.records)
    is_compacted = task.is_compacted or not in_target.is_whole
    while not alignment.is_over:
        answer = await read(at_source, task.source, position, FETCH_BYTES, is_committed=True)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        before, data = position, records_in(answer)
        aborted = answer.aborted_transactions or ()
        async for record in in_turns(records_to_mirror(data, position, aborted)):
            alignment.add(record.offset, Fingerprint.of(record))
        async for _, header in in_turns(iter_batches(data)):
            is_compacted = is_compacted or header.base_offset > position or may_be_compacted(header)
            position = max(position, header.next_offset)
        if position == before:
            if not (is_compacted or await history.ends_before(task.source, position + 1)):
                raise not_replicated_yet("source", task.source, position)
            break
    if not (alignment.has_found_all or is_compacted):
        raise Diverged(
            f"the source lacks records from offset {alignment.next_offset} on, which were mirrored"
        )
    return alignment.next_offset


async def next_offset_of_rest(
    at_source: ClusterClient, history: History, task: PartitionTask, start: int, in_target: TargetState
) -> int | None:
    """The source offset where the task continues if the source, which begins at ``start``, has deleted the first of the
    records that were sent; None if it has deleted all of them.

    Raises BrokerError, ApiError; Diverged if the source lacks some of the records, though it was not compacted."""
    position = start
    records: list[tuple[int, Fingerprint]] = []
    is_compacted = task.is_compacted or not in_target.is_whole
    while len(records) < len(in_target.records):
        answer = await read(at_source, task.source, position, FETCH_BYTES, is_committed=True)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"reading {task} at offset {position}")
        before, data = position, records_in(answer)
        found = records_to_mirror(data, position, answer.aborted_transactions or ())
        records += [(record.offset, Fingerprint.of(record)) async for record in in_turns(found)]
        async for _, header in in_turns(iter_batches(data)):
            is_compacted = is_compacted or header.base_offset > position or may_be_compacted(header)
            position = max(position, header.next_offset)
        if position == before:
            break
    if not records:
        return None
    if is_compacted:
        alignment = Alignment(start, in_target.records)
        for offset, known in records:
            alignment.add(offset, known)
        return alignment.next_offset if alignment.next_offset > start else None
    # As many as would be left if the deleted offsets had each been a record's. With holes among them, more are left.
    least = in_target.count - (records[0][0] - task.acknowledged.offset)
    common = Overlap([known for _, known in records]).with_end_of(in_target.records, least)
    if common is None:
        if len(records) < least and not await history.ends_before(task.source, position + 1):
            raise not_replicated_yet("source", task.source, position)
        raise Diverged(
            f"the source has other records from offset {records[0][0]} on than those that were mirrored"
        )
    return records[common - 1][0] + 1 if common else None


async def next_numbers(
    at_target: ClusterClient, node: int, producers: Collection[Producer]
) -> dict[Producer, int | None]:
    """The number after the last one that a broker has of each producer; -1: it has none; None: it does not tell.

    From DescribeProducers (KIP-664), which reads no records. Raises BrokerError."""
    found: dict[Producer, int | None] = dict.fromkeys(producers)
    by_target = {producer.target: producer for producer in producers}
    targets = [*by_target]
    for begin in range(0, len(targets), DESCRIBED_AT_ONCE):
        topics = by_topic(targets[begin : begin + DESCRIBED_AT_ONCE])
        request = DescribeProducersRequest([TopicRequest(*each) for each in topics.items()])
        try:
            response = await at_target.call_node(node, describe_producers.API, request)
        except UnsupportedApi:  # Kafka before 2.8
            break
        for answered in response.topics:
            for of_partition in answered.partitions:
                if of_partition.error_code:
                    continue
                producer = by_target[answered.name, of_partition.partition_index]
                numbers = {
                    (state.producer_id, state.producer_epoch): state.last_sequence
                    for state in of_partition.active_producers
                }
                last = numbers.get((producer.id, producer.epoch), -1)
                found[producer] = advance_sequence(last, 1) if last >= 0 else -1
    return found


def is_behind(following: int | None, sequence: int) -> bool:
    """Whether a leader lacks records before this number; ``following`` is after its last one, -1 or None if unknown."""
    return following not in (None, -1) and (sequence - (following or 0)) & INT32_MAX in range(
        1, HALF_OF_SEQUENCES
    )


def last_record(batch: memoryview) -> Fingerprint | None:
    """The last record of a batch; None if it cannot be read, or is compacted away."""
    header = read_header(batch)
    try:
        last = deque(read_records(batch), maxlen=1)
    except (ApiError, ValueError):
        return None
    if not last or last[0].offset != header.last_offset:
        return None
    return Fingerprint.of(last[0], is_stamped=header.is_log_append_time)
