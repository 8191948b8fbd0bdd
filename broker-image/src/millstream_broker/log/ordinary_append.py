"""The short path of an append: one batch of which nothing but the header matters.

Most appends have one whole batch, which the topic stores unchanged. The segment has room, the leader epoch is that of
the batches before, and an idempotent producer sends its next sequence. For such a batch, one function replaces the walk
through validation, sequences, roll and index.

It refuses nothing and decides nothing but whether a batch is ordinary. For any other one it returns None and has
changed nothing: then `log.append` validates, refuses, rolls or recognises a duplicate by the rules, which are there
only. An ordinary batch leaves the log, its indexes and its producers as they would.
"""

from __future__ import annotations

from crc32c import crc32c

from millstream_kafka.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LEAST_RECORD,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    PLACEMENT,
    BatchHeader,
)

from .append_info import AppendInfo
from .state import LogState

_unpack = HEADER.unpack_from
_place = PLACEMENT.pack_into


def append_ordinary(
    log: LogState, batches: bytes | bytearray | memoryview, leader_epoch: int, now_ms: int
) -> AppendInfo | None:
    """Append ``batches`` if they are one ordinary batch; None if not. ApiError if its write fails (`Log.append`)."""
    size = len(batches)
    if size < HEADER_SIZE or log.offline is not None or log.truncating:
        return None
    view = memoryview(batches)
    fields = _unpack(view)
    base, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, *rest = fields
    epoch, sequence, count = rest
    config = log.config
    first = log.log_end_offset
    last = first + delta
    segment = log.segments.active
    if (
        base
        or length + LOG_OVERHEAD != size
        or magic != MAGIC
        or attributes not in config.ordinary_attributes
        or count != delta + 1
        or count <= 0
        or count * LEAST_RECORD > size - HEADER_SIZE
        or size > config.max_message_bytes
        or base_timestamp < 0
        or max_timestamp < 0
        or max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or view.readonly
        or not log.epochs.is_latest(leader_epoch)
        or not segment.has_ordinary_room(size, last, max_timestamp, config)
        or (producer_id != NO_PRODUCER and not log.producers.expects(producer_id, epoch, sequence, delta))
        or crc32c(view[CRC_START:]) != crc
    ):
        return None
    _place(view, 0, first, length, leader_epoch)
    try:
        segment.append_ordinary(view, size, last, max_timestamp)
    except OSError as error:
        raise log.write_failed(error) from error
    log.log_end_offset = last + 1
    if producer_id != NO_PRODUCER:
        placed = tuple.__new__(BatchHeader, (first, length, leader_epoch, *fields[3:]))
        log.producers.update(placed, now_ms)
    return AppendInfo(first, last, -1, log.log_start_offset)
