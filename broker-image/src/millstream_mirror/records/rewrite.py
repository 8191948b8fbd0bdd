"""Prepares fetched record batches for producing, without parsing or decompressing records.

Only the header changes, in place: base offset 0 and no leader epoch, as a producer sends them; producer id, epoch and
base sequence of the task; the transactional flag off; and the CRC, after checking the old one, so that data
corrupted on the way does not get a valid CRC.

Left out are control batches, batches of aborted transactions (KIP-98), and records before the position. The few
batches that a broker would not accept from a producer (gaps left by compaction, a start in the middle of a batch,
LogAppendTime) are rebuilt from their records, with the timestamps that consumers of the source see.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from millstream_kafka.batch import (
    CRC_OFFSET,
    CRC_START,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    advance_sequence,
    build_batch,
    iter_batches,
    read_records,
)
from millstream_kafka.control_batch import is_abort
from millstream_kafka.protocol.fetch import AbortedTransaction

from ..kafka.progress import LastBatch
from ..runtime.slices import AT_ONCE

_EPOCH = struct.Struct(">i")
_EPOCH_OFFSET = 12
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_OFFSET = 43
_CRC = struct.Struct(">I")
_BASE_OFFSET = struct.Struct(">q")


class UnusableBatch(Exception):
    """A batch of the source cannot be forwarded; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch to produce. ``next_offset`` and ``next_sequence`` follow it, in the source and in the task."""

    data: memoryview
    start: int
    """Its position in the fetched buffer; -1 if it was rebuilt."""
    base_sequence: int
    next_sequence: int
    next_offset: int
    records: int
    source: LastBatch | None = None
    """Which batch of the source it was; None in mode Identity."""
    runs: tuple[range, ...] = ()
    """The offsets of the records in the source, if it was rebuilt; otherwise they are consecutive."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    batches: list[Outgoing]
    position: int
    """The source offset to fetch next: beyond the batches, and beyond what was left out behind them."""
    is_dense: bool = True
    """No offset is missing before that: nothing was compacted away."""
    last: LastBatch | None = None
    """The batch before ``position``, even if it was left out; None without any."""


def rewrite(
    fetched: memoryview,
    *,
    position: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    aborted: Iterable[AbortedTransaction] = (),
) -> Generator[None, None, Rewritten]:
    """Number the batches of ``fetched`` (a writable buffer) from ``position`` on; raises UnusableBatch.

    Yields after each ``AT_ONCE`` batches, and after one that is rebuilt: others need the loop, too."""
    batches = []
    abort = _Aborted(aborted)
    is_dense, source = True, None
    for number, (start, header) in enumerate(iter_batches(fetched), 1):
        if number % AT_ONCE == 0:
            yield
        if header.next_offset <= position:
            continue
        is_dense = is_dense and header.base_offset <= position and not _has_holes(header)
        if header.magic != MAGIC:
            raise UnusableBatch(
                f"offset {header.base_offset}: message format {header.magic}, only 2 is mirrored"
            )
        data = fetched[start : start + header.size]
        if crc32c(data[CRC_START:]) != header.crc:
            raise UnusableBatch(f"offset {header.base_offset}: the CRC does not match the batch")
        source = LastBatch(header.base_offset, header.crc, header.partition_leader_epoch)
        if not abort.leaves_out(header, data):
            rebuilt = needs_rebuilding(header, position)
            runs: tuple[range, ...] = ()
            if rebuilt:
                data, count, runs = _rebuild(header, data, position)
                yield
            else:
                count = header.record_count
            if count:
                _stamp(
                    data, header.attributes if not rebuilt else None, producer_id, producer_epoch, sequence
                )
                following = advance_sequence(sequence, count)
                where = -1 if rebuilt else start
                batches.append(
                    Outgoing(data, where, sequence, following, header.next_offset, count, source, runs)
                )
                sequence = following
        position = header.next_offset
    return Rewritten(batches, position, is_dense, source)


def records_to_mirror(
    fetched: memoryview, position: int, aborted: Iterable[AbortedTransaction]
) -> Iterator[Record]:
    """The records that `rewrite` would number from ``position`` on, as the source has them. Raises ApiError."""
    for _, data in _batches_to_mirror(fetched, position, aborted):
        for record in read_records(data):
            if record.offset >= position:
                yield record


def ranges_to_mirror(
    fetched: memoryview, position: int, aborted: Iterable[AbortedTransaction]
) -> Iterator[range]:
    """The offsets of the same records. Decompresses only batches that compaction has rewritten. Raises ApiError."""
    for header, data in _batches_to_mirror(fetched, position, aborted):
        if _has_holes(header):
            yield from (
                range(record.offset, record.offset + 1)
                for record in read_records(data)
                if record.offset >= position
            )
        else:
            yield range(max(header.base_offset, position), header.next_offset)


def _batches_to_mirror(
    fetched: memoryview, position: int, aborted: Iterable[AbortedTransaction]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    abort = _Aborted(aborted)
    for start, header in iter_batches(fetched):
        data = fetched[start : start + header.size]
        if header.next_offset > position and not abort.leaves_out(header, data):
            yield header, data


def joined(fetched: memoryview, batches: list[Outgoing]) -> memoryview | bytes:
    """The batches in one buffer: the fetched one if they are adjacent in it."""
    end = first = batches[0].start
    for batch in batches:
        if batch.start != end or end < 0:
            return b"".join(part.data for part in batches) if len(batches) > 1 else batch.data
        end += len(batch.data)
    return fetched[first:end]


def needs_rebuilding(header: BatchHeader, position: int) -> bool:
    begins_before = header.base_offset < position
    return begins_before or _has_holes(header) or bool(header.attributes & (DELETE_HORIZON | LOG_APPEND_TIME))


def _has_holes(header: BatchHeader) -> bool:
    return header.record_count != header.last_offset_delta + 1


def _rebuild(
    header: BatchHeader, data: memoryview, position: int
) -> tuple[memoryview, int, tuple[range, ...]]:
    """The batch without records before the position, their number, and their offsets."""
    records = [record for record in read_records(data) if record.offset >= position]
    if not records:
        return data, 0, ()
    runs: list[range] = []
    for record in records:
        begins = runs.pop().start if runs and runs[-1].stop == record.offset else record.offset
        runs.append(range(begins, record.offset + 1))
    moved = [record._replace(offset=-1) for record in records]
    batch = memoryview(bytearray(build_batch(moved, compression=header.compression)))
    return batch, len(records), tuple(runs)


def _stamp(
    data: memoryview, attributes: int | None, producer_id: int, producer_epoch: int, sequence: int
) -> None:
    _BASE_OFFSET.pack_into(data, 0, 0)
    _EPOCH.pack_into(data, _EPOCH_OFFSET, -1)
    if attributes is not None and attributes & TRANSACTIONAL:
        _ATTRIBUTES.pack_into(data, CRC_START, attributes & ~TRANSACTIONAL)
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer_id, producer_epoch, sequence)
    _CRC.pack_into(data, CRC_OFFSET, crc32c(data[CRC_START:]))


class _Aborted:
    """The batches of a fetch that belong to aborted transactions: from the first offset listed to the abort marker."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(transactions, key=lambda transaction: transaction.first_offset))
        self._open: set[int] = set()

    def leaves_out(self, header: BatchHeader, data: memoryview) -> bool:
        while self._ahead and self._ahead[0].first_offset <= header.last_offset:
            self._open.add(self._ahead.popleft().producer_id)
        if header.is_control:
            if any(map(is_abort, read_records(data))):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
