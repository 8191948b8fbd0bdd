"""Which segments of a log are too old, too much, or before its start."""

from __future__ import annotations

from .config import LogConfig
from .segments import Segments


def count_expired(
    segments: Segments, config: LogConfig, now_ms: int, *, start: int, end: int, limit: int, at_most: int
) -> int:
    """How many segments, from the first on, may go: retention.ms, retention.bytes, or all before ``start``.

    ``start`` and ``end`` are the log's. Nothing at or above ``limit`` (the high watermark) goes. OSError.
    """
    surplus = segments.size - config.retention_bytes if config.retention_bytes >= 0 else -1
    count = 0
    for segment in segments:
        active = segment is segments.active
        segment_end = segments.end_of(segment, end)
        if count == at_most or segment_end > limit or (active and not segment.size):
            break
        expired = not active and segment_end <= start
        if config.deletes and not expired:
            expired = surplus >= segment.size
            expired = expired or 0 <= config.retention_ms < now_ms - segment.retention_timestamp()
        if not expired:
            break
        surplus -= segment.size
        count += 1
    return count
