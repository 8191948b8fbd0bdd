"""When a segment ends, and which segments exceed retention by time or size, or lie before the log's start."""

from __future__ import annotations

from collections.abc import Sequence

from millstream_kafka.batch import BatchHeader

from .config import LogConfig
from .segment import Segment
from .segments import Segments


def must_roll(
    segment: Segment, config: LogConfig, size: int, headers: Sequence[BatchHeader], now_ms: int
) -> bool:
    """Whether the active segment must end before these batches: segment.bytes, segment.ms, a full index."""
    last = headers[-1]
    if not segment.has_room_for(last.base_offset + last.last_offset_delta):
        return True
    if not segment.size:
        return False
    if segment.size + size > config.segment_bytes or segment.is_index_full(config.index_size_max_bytes):
        return True
    start = segment.rolling_timestamp()
    age = now_ms - segment.created_ms
    if start >= 0:  # as in Kafka, by the records' timestamps
        newest = last if len(headers) == 1 else max(headers, key=lambda header: header.max_timestamp)
        age = newest.max_timestamp - start
    return age > config.segment_ms


def count_expired(
    segments: Segments, config: LogConfig, now_ms: int, *, start: int, end: int, limit: int, at_most: int
) -> int:
    """Number of first segments that may be deleted: by retention.ms, retention.bytes, or all before ``start``.

    In a mirror's replica only ``start`` counts: it is the source's.
    ``start`` and ``end`` are the log's. Nothing at or above ``limit`` (the high watermark) is deleted. OSError.
    """
    count, size = 0, segments.size
    for segment in segments:
        active = segment is segments.active
        segment_end = segments.end_of(segment, end)
        if count == at_most or segment_end > limit or (active and not segment.size):
            break
        expired = not active and segment_end <= start
        if config.deletes and not config.mirror_source and not expired:
            expired = 0 <= config.retention_bytes <= size - segment.size
            expired = expired or 0 <= config.retention_ms < now_ms - segment.retention_timestamp()
        if not expired:
            break
        size -= segment.size
        count += 1
    return count
