"""Look-ups by time in the segments of a log, in any thread beside the loop's.

Timestamps are the producers' and need not ascend. So the first record that is not older than a time is in the first
segment whose largest timestamp is not older, whatever follows; each segment remembers its own after reading it from
its time index. Nothing here writes: if an index is wrong, the batch headers are read instead.

Segments may be deleted or compacted meanwhile, which shows as a missing file: then the look-up starts over.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream_kafka.batch import LARGEST_RECORD

from .segment import Segment
from .segments import Segments

Found = tuple[int, int, int]
"""Timestamp, offset and leader epoch of a record."""

_ATTEMPTS = 20


def first_from(
    segments: Segments,
    timestamp: int,
    start_offset: int,
    largest_record: int = LARGEST_RECORD,
    check: Callable[[], None] = lambda: None,
) -> Found | None:
    """The first record from ``start_offset`` on that is not older than ``timestamp``. Blocking. OSError.

    ``check`` is called often, and raises to end the look-up.
    """

    def find() -> Found | None:
        for segment in segments:
            check()
            if segment.max_timestamp >= timestamp:
                found = segment.records_from_timestamp(timestamp, start_offset, largest_record, check)
                if found is not None:
                    return found
        return None

    return _while_segments_go(segments, find)


def latest(
    segments: Segments, largest_record: int = LARGEST_RECORD, check: Callable[[], None] = lambda: None
) -> Found | None:
    """The first record with the largest timestamp. Blocking. OSError. ``check`` as in :func:`first_from`."""

    def largest(segment: Segment) -> int:
        check()
        return segment.max_timestamp

    def find() -> Found | None:
        segment = max(segments, key=largest, default=None)  # the first of several
        if segment is None or segment.max_timestamp < 0:
            return None
        return segment.records_from_timestamp(
            segment.max_timestamp, segment.base_offset, largest_record, check
        )

    return _while_segments_go(segments, find)


def _while_segments_go(segments: Segments, find: Callable[[], Found | None]) -> Found | None:
    for _ in range(_ATTEMPTS):
        before = tuple(segments)
        try:
            return find()
        except FileNotFoundError:
            if tuple(segments) == before:
                raise
    return find()
