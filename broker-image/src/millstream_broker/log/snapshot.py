"""A log as it was at one moment, for a reader in another thread.

The snapshot holds the segments' files open. Retention, DeleteRecords, compaction and the deletion of the log only
rename and unlink files, so they take nothing from a snapshot: the kernel keeps a file until its last descriptor is
closed. Appends lie beyond the sizes in the snapshot. Only truncation changes a file in place; an older snapshot then
refuses further reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .files import OpenFile
from .segment import scan_headers

if TYPE_CHECKING:
    from .segments import Segments


class LogSnapshot:
    """Made by ``Log.snapshot``; immutable. It keeps one descriptor per segment open."""

    __slots__ = ("_files", "_segments", "_truncations", "end_offset", "start_offset")

    def __init__(self, segments: Segments, start_offset: int, end_offset: int) -> None:
        """In the loop's thread. OSError."""
        self._segments = segments
        self._truncations = segments.truncations
        self._files: tuple[tuple[OpenFile, int], ...] = tuple(
            (segment.open_file(), segment.size)
            for segment in segments.from_offset(start_offset)
            if segment.size
        )
        self.start_offset = start_offset
        self.end_offset = end_offset

    def batches(self) -> Iterator[bytes]:
        """Every whole batch from the one that has ``start_offset`` on, up to ``end_offset``. Blocking, in any thread.

        ApiError: NOT_LEADER_OR_FOLLOWER if the log was truncated meanwhile (this broker follows by then),
        CORRUPT_MESSAGE if something other than a batch is stored. OSError.
        """
        for file, size in self._files:
            end = 0
            for position, header in scan_headers(file, 0, size):
                end = position + header.size
                if header.last_offset >= self.start_offset:
                    batch = file.pread(header.size, position)
                    self._check_not_truncated()
                    yield batch
            self._check_not_truncated()
            if end < size:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE, f"{file.path}: no valid batch at byte {end} of {size}"
                )

    def _check_not_truncated(self) -> None:
        """Call it after each read: the counter rises before a file is truncated."""
        if self._segments.truncations != self._truncations:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._segments.path} was truncated while it was read"
            )
