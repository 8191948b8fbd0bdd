"""Compares what a lane has sent since its progress, as the target has it, with what the source has (aligning.py)."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_kafka.batch import INT32_MAX, advance_sequence, iter_batches, read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import PartitionData

from .aligning import Alignment, Fingerprint
from .lane import HALF_OF_SEQUENCES, Lane
from .reading import EARLIEST, offset_at, read
from .rewrite import records_to_mirror

FETCH_BYTES = 1 << 20
MOST_RECORDS = 250_000
"""That are kept in memory to be compared, at some 200 bytes each."""


@dataclass(frozen=True, slots=True)
class SentSince:
    records: list[Fingerprint]
    count: int
    """How many numbers were sent; the target's copy may have lost some of the records to compaction."""
    target_offset: int
    """Behind the last one in the target."""


async def sent_since(at_target: ClusterClient, lane: Lane) -> SentSince | None:
    """The lane's records in the target that its progress does not count; None: more than can be compared.

    Raises BrokerError, ApiError."""
    progress = lane.acknowledged
    records: list[Fingerprint] = []
    following, target_offset = progress.sequence, progress.target_offset
    offset = progress.target_offset
    while True:
        answer = await read(at_target, lane.target, offset, FETCH_BYTES)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = await offset_at(at_target, lane.target, EARLIEST)
            continue
        before, data = offset, _records(answer)
        for start, header in iter_batches(data):
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
            return SentSince(records, (following - progress.sequence) & INT32_MAX, target_offset)


async def unsent_from(at_source: ClusterClient, lane: Lane, sent: SentSince) -> int | None:
    """The source offset where the lane continues; None: the source has deleted what follows the progress.

    Raises BrokerError, ApiError."""
    position = lane.acknowledged.offset
    alignment = Alignment(position, sent.records)
    while not alignment.is_over:
        answer = await read(at_source, lane.source, position, FETCH_BYTES, is_committed=True)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        before, data = position, _records(answer)
        aborted = answer.aborted_transactions or ()
        for record in records_to_mirror(data, position, aborted):
            alignment.see(record.offset, Fingerprint.of(record))
        for _, header in iter_batches(data):
            position = max(position, header.next_offset)
        if position == before:
            break
    return alignment.next_offset


def _records(answer: PartitionData) -> memoryview:
    return answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
