"""The segments of a log, in order: finds the segment of an offset, and reads from it.

Invariants: base offsets ascend; the last segment is the active one, the only one that grows; there is always one.

Most readers continue where they stopped. So the end of each read is remembered with the next offset, and a
read that starts there needs no index; one that also ends at the end of the segment reads nothing from the disk.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from millstream_kafka.batch import BatchHeader

from .files import FileCache, FileSlice, fsync_directory, without_waiting
from .segment import SUFFIXES, IndexMismatchError, Segment
from .transaction_index import TransactionIndexes

_HINTS = 64  # readers whose next position is remembered, per log


class Segments:
    __slots__ = (
        "_bases",
        "_closed_bytes",
        "_deleted",
        "_files",
        "_hints",
        "_list",
        "aborted",
        "path",
        "read_end",
        "truncations",
    )

    def __init__(self, path: str, files: FileCache) -> None:
        self.path = path
        self._files = files
        self._list: list[Segment] = []
        self._bases: list[int] = []  # of the segments, for bisect
        self._closed_bytes = 0  # of all but the last
        self._hints: dict[int, tuple[Segment, int]] = {}  # a reader's next offset -> its position
        self._deleted: list[str] = []
        self.aborted = TransactionIndexes(path)
        """The aborted transactions."""
        self.read_end = 0
        """The offset after the batches of the last :meth:`read`."""
        self.truncations = 0
        """Number of truncations; raised before a file changes."""

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(tuple(self._list))

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._list[index]

    @property
    def active(self) -> Segment:
        return self._list[-1]

    @property
    def first_offset(self) -> int:
        return self._bases[0]

    @property
    def size(self) -> int:
        return self._closed_bytes + self._list[-1].size

    def index_of(self, offset: int) -> int:
        """The index of the segment that has ``offset``, or of the first one if it is before all."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that has ``offset``, and all later ones."""
        return self._list[self.index_of(offset) :]

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """The offset after the segment."""
        if segment is self._list[-1]:
            return log_end_offset
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    # -- adding and removing ----------------------------------------------------------------------------------

    def segment(
        self, base_offset: int, *, size: int, created_ms: int, index_interval_bytes: int, suffix: str = ""
    ) -> Segment:
        """A segment of this folder, not in the list yet."""
        return Segment(
            self._files,
            self.path,
            base_offset,
            size=size,
            created_ms=created_ms,
            index_interval_bytes=index_interval_bytes,
            suffix=suffix,
        )

    def create(self, base_offset: int, now_ms: int, index_interval_bytes: int) -> Segment:
        """A new active segment."""
        segment = self.segment(
            base_offset, size=0, created_ms=now_ms, index_interval_bytes=index_interval_bytes
        )
        segment.create()
        self.add(segment)
        return segment

    def add(self, segment: Segment) -> None:
        if self._list:
            self._closed_bytes += self._list[-1].size
        self._list.append(segment)
        self._bases.append(segment.base_offset)

    def set_aside(self, start: int, end: int, *, suffixes: Sequence[str] = (*SUFFIXES, ".snapshot")) -> None:
        """Take segments out; their files are renamed, and unlinked by :meth:`remove_deleted_files`.

        A crash in the middle leaves no hole: from the log's end, the last segment is renamed first.
        """
        self._set_aside(self._list[start:end], suffixes)
        del self._list[start:end], self._bases[start:end]
        self.changed()

    def _set_aside(self, leaving: list[Segment], suffixes: Sequence[str]) -> None:
        for segment in reversed(leaving) if leaving[-1:] == self._list[-1:] else leaving:
            segment.deleted = True
            paths = [segment.path(suffix) for suffix in suffixes]
            if (index := self.aborted.drop(segment.base_offset)) is not None:
                paths.append(index)
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, path + ".deleted")
                    self._deleted.append(path + ".deleted")
            segment.release()  # not earlier: another thread may have opened the file until now

    def prepare(self, base_offset: int, now_ms: int, index_interval_bytes: int) -> Segment:
        """An empty segment for :meth:`replace_all`. OSError: nothing has changed."""
        segment = self.segment(
            base_offset,
            size=0,
            created_ms=now_ms,
            index_interval_bytes=index_interval_bytes,
            suffix=".cleaned",
        )
        try:
            segment.create()
        except OSError:
            segment.remove()
            raise
        return segment

    def replace_all(self, segment: Segment) -> None:
        """Set all segments aside for a prepared one. After an OSError the log must be opened again."""
        self._set_aside(self._list, (*SUFFIXES, ".snapshot"))
        for suffix in SUFFIXES:
            os.rename(segment.path(suffix), segment.path(suffix).removesuffix(".cleaned"))
        segment.settle()
        self._list, self._bases = [segment], [segment.base_offset]
        self.changed()

    def insert(self, index: int, segment: Segment) -> None:
        """Insert a segment in the place of those that were set aside there."""
        self._list.insert(index, segment)
        self._bases.insert(index, segment.base_offset)
        self.changed()

    def changed(self) -> None:
        """Note a change of the files other than an append."""
        self._hints.clear()
        self._closed_bytes = sum(segment.size for segment in self._list[:-1])

    def sync_folder(self) -> None:
        """Make created, renamed and removed files durable. Blocking, in any thread."""
        fsync_directory(self.path)

    def remove_deleted_files(self) -> None:
        """Blocking, in any thread, in several at a time."""
        if self._deleted:  # first make their replacements durable
            self.sync_folder()
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                path = self._deleted.pop()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def release(self) -> None:
        for segment in self._list:
            segment.release()

    def move(self, path: str) -> None:
        """Rename the folder; reads in progress keep their files."""
        for segment in self._list:
            segment.unload()
        os.rename(self.path, path)
        self.path = path
        self.aborted.move(path)
        for segment in self._list:
            segment.release()  # again: another thread may have opened a file until now
            segment.move(path)

    # -- reading ----------------------------------------------------------------------------------------------

    def batches_from(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Segment, position and header of each batch, from the first that has ``offset`` or a later one."""
        for segment in self.from_offset(offset):
            for position, header in segment.headers_from(offset):
                yield segment, position, header

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """Headers from the first batch that has ``offset`` or a later one."""
        for segment in self.from_offset(offset):
            for _, header in segment.headers_from(offset):
                yield header

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper: int,
        *,
        min_one: bool,
        log_end_offset: int,
        may_wait: bool = True,
    ) -> FileSlice | None:
        """See `Log.read`."""
        found = self._hints.get(offset)
        if found is None or found[1] >= found[0].size:
            if not may_wait:
                return without_waiting(
                    lambda: self._read_at(
                        self._locate(offset), max_bytes, upper, min_one=min_one, log_end_offset=log_end_offset
                    )
                )
            found = self._locate(offset)
        # A read that continues another one is near the pages that were sent last, which are cached: it may wait.
        return self._read_at(found, max_bytes, upper, min_one=min_one, log_end_offset=log_end_offset)

    def _read_at(
        self,
        found: tuple[Segment, int] | None,
        max_bytes: int,
        upper: int,
        *,
        min_one: bool,
        log_end_offset: int,
    ) -> FileSlice | None:
        """The same from the batch at a position of a segment."""
        if found is None:
            return None
        segment, position = found
        limit, end_offset = position + max_bytes, self.end_of(segment, log_end_offset)
        end, next_offset = segment.size, end_offset
        if segment.size > limit or upper < end_offset:
            end, next_offset = self._bounds(segment, position, limit, upper, end_offset, min_one=min_one)
            if end == position:
                return None
        self.read_end = next_offset
        hints = self._hints
        hints[next_offset] = (segment, end)
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]
        return segment.slice(position, end)

    def _bounds(
        self, segment: Segment, position: int, limit: int, upper: int, end_offset: int, *, min_one: bool
    ) -> tuple[int, int]:
        """The end of a read from `position`, and the offset after it; `position` if no batch fits."""
        try:
            end, known = segment.boundary(position, limit, upper, end_offset)
        except IndexMismatchError:
            segment.rebuild_indexes()
            end, known = segment.boundary(position, limit, upper, end_offset)
        if known is not None:
            return end, known
        first = segment.header_at(position)
        if not min_one or first is None or first.last_offset >= upper:
            return position, upper
        return position + first.size, first.next_offset

    def loading(self, offset: int, max_bytes: int, upper: int, log_end_offset: int) -> Callable[[], None]:
        """A function to run in a thread: it loads what `read` needs, besides the records, into the page cache."""
        segments = [
            (segment, self.end_of(segment, log_end_offset)) for segment in self.from_offset(offset)[:2]
        ]

        def load() -> None:
            self.aborted.load(segments[0][0].base_offset)
            any(segment.load(offset, max_bytes, upper, end) for segment, end in segments)

        return load

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """Segment and position of the first batch that has ``offset`` or a later one."""
        for segment in self.from_offset(offset):
            found = next(segment.headers_from(offset), None)
            if found is not None:
                return segment, found[0]
        return None
