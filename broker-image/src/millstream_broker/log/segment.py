"""One segment of a log: ``BASE.log`` with the batches from offset BASE on, ``BASE.index`` and ``BASE.timeindex``.

The .log file is a sequence of batches and nothing else. After every ``index.interval.bytes`` of batches, one entry is
added to each index (see ``index``). When a segment ends (roll, close), its largest timestamp gets a last entry in the
time index, from which a later start reads it.

Invariants: ``size`` is the position of the next batch, and the file ends there; offsets ascend along the file.
The indexes are hints: the batch found through one must have the offset in the entry, or else they are rebuilt.

A segment that is not in use is a few numbers: no open file, no index in memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from millstream_kafka.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    LARGEST_RECORD,
    LOG_OVERHEAD,
    BatchHeader,
    read_header,
    skim_records,
)

from .config import LogConfig
from .errors import TornWriteError
from .files import FileCache, FileSlice, OpenFile, waiting
from .index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, entries_before_full

SUFFIXES = (".log", ".index", ".timeindex")
_PENDING_ENTRIES = 16  # written out together; after a crash, as many indexed batches must be verified
_SCAN_BYTES = 8192  # read at once when walking headers
_CHECK_RECORDS = 4096  # of a look-up, until it checks again whether it is still wanted
_CRC_BYTES = 1 << 20  # read at once when checking CRCs
_UNKNOWN = -2


class IndexMismatchError(Exception):
    """An index entry points to something that is not its batch."""


class Indexing(NamedTuple):
    """The state of an ended segment's indexes, so far."""

    entries: int
    """Entries of the longer index."""
    since_index: int
    """Bytes appended since the last entry."""
    max_timestamp: int
    """The largest timestamp, also the last one in the time index; -1 without records."""
    max_timestamp_offset: int


class Segment:
    __slots__ = (
        "_directory",
        "_entries",
        "_files",
        "_first_timestamp",
        "_indexed_timestamp",
        "_log_path",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offsets",
        "_since_index",
        "_suffix",
        "_times",
        "base_offset",
        "created_ms",
        "deleted",
        "index_interval_bytes",
        "size",
        "synced",
    )

    def __init__(
        self,
        files: FileCache,
        directory: str,
        base_offset: int,
        *,
        size: int = 0,
        created_ms: int = 0,
        index_interval_bytes: int = 4096,
        suffix: str = "",
    ) -> None:
        """``suffix`` follows the names of all its files while it does not belong to the log yet."""
        self._files = files
        self._suffix = suffix
        self._directory = directory
        self.base_offset = base_offset
        self._log_path = self.path()
        self.size = size
        self.created_ms = created_ms
        self.index_interval_bytes = index_interval_bytes
        self.synced = False  # its files are in the directory on disk
        self.deleted = False
        self._offsets: SparseIndex | None = None
        self._times: SparseIndex | None = None
        self._first_timestamp = _UNKNOWN
        self._since_index = 0
        self._entries = 0  # of the longer index; known for the active segment
        self._indexed_timestamp = -1  # the last one in the time index; known for the active segment
        self._max_timestamp = -1 if not size else _UNKNOWN
        self._max_timestamp_offset = base_offset  # offset of the last timestamp added

    def __repr__(self) -> str:
        return f"Segment({self.path()}, {self.size} bytes)"

    def path(self, suffix: str = ".log") -> str:
        return f"{self._directory}/{self.base_offset:020d}{suffix}{self._suffix}"

    def move(self, directory: str) -> None:
        """Use the new path after the log's folder was renamed."""
        self._directory = directory
        self._log_path = self.path()

    def settle(self) -> None:
        """Use the final names of its files."""
        self.unload()
        self._suffix = ""
        self._log_path = self.path()

    def release(self) -> None:
        """Release open files, and memory that can be read again."""
        for suffix in SUFFIXES:
            self._files.forget(self.path(suffix))

    # -- indexes ----------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> SparseIndex:
        if self._offsets is None:
            self._offsets = self._offsets_as_stored()
        return self._offsets

    @property
    def times(self) -> SparseIndex:
        if self._times is None:
            self._times = self._times_as_stored()
        return self._times

    def _offsets_as_stored(self) -> SparseIndex:
        """For any thread: only the loop's may keep what it opens."""
        offsets = self._offsets
        return self._open(".index", OFFSET_ENTRY) if offsets is None else offsets

    def _times_as_stored(self) -> SparseIndex:
        """Like `_offsets_as_stored`."""
        times = self._times
        return self._open(".timeindex", TIME_ENTRY) if times is None else times

    def _open(self, suffix: str, entry: struct.Struct) -> SparseIndex:
        return SparseIndex.open(self._files, self.path(suffix), entry)

    def index_entries(self) -> int:
        """Number of entries in the longer of its indexes. Any thread: it keeps nothing that it opens."""
        return max(len(self._offsets_as_stored()), len(self._times_as_stored()))

    def is_index_full(self, max_bytes: int) -> bool:
        most = entries_before_full(max_bytes)
        if self._entries < most:  # neither index has more entries
            return False
        return len(self.offsets) >= max_bytes // OFFSET_ENTRY.size or len(self.times) >= most

    def _is_indexed_batch(self, entry: tuple[int, int]) -> bool:
        """Whether the batch at an entry of the offset index has the entry's offset.

        It is never the first one: a killed Kafka leaves zeros at the end of an index.
        """
        header = self.header_at(entry[1]) if entry[1] else None
        return header is not None and header.last_offset == self.base_offset + entry[0]

    def add_index_entries(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Account for one batch of ``size`` bytes at ``position``: largest timestamp, and index entries when due."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if self._since_index > self.index_interval_bytes:
            self.offsets.append(last_offset - self.base_offset, position)
            self._entries += 1
            self._add_time_entry()
            self._since_index = 0
            if self.offsets.pending >= _PENDING_ENTRIES:
                with contextlib.suppress(OSError):  # a full disk fails the log's own writes; these wait
                    self._spill_indexes()
        self._since_index += size

    def _add_time_entry(self) -> None:
        if self._max_timestamp > self._indexed_timestamp:
            self.times.append(self._max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._indexed_timestamp = self._max_timestamp

    def _spill_indexes(self) -> None:
        """Write both out (no fsync); recovery follows the offset index, so the other one is never behind it."""
        self.times.spill()
        self.offsets.spill()

    def finish(self) -> None:
        """End the segment for now: complete the time index and write both out (no fsync)."""
        if not self.size:
            return
        self._add_time_entry()
        self._spill_indexes()

    def rebuild_indexes(self) -> None:
        """Rewrite both indexes from the batch headers (blocking: reads through the segment)."""

        def rebuild() -> None:
            self.resume_indexing(0)
            for position, header in self.headers(0):
                self.add_index_entries(position, header.size, header.last_offset, header.max_timestamp)
            self._add_time_entry()
            self._spill_indexes()

        waiting(rebuild)

    def resume_indexing(self, offset: int) -> int:
        """Drop index entries from ``offset`` on; return the position from which to account for batches again."""
        self._offsets = self._times = None
        count, time_count, position = 0, 0, 0
        if offset > self.base_offset:
            count, entry = self.offsets.at_most(offset - self.base_offset)
            if entry is not None and self._is_indexed_batch(entry):
                position = entry[1]
                time_count, _ = self.times.at_most(entry[0], member=1)
            else:
                count = 0
        self.offsets.truncate(count)
        self.times.truncate(time_count)
        last = self.times.last
        self._max_timestamp = self._indexed_timestamp = last[0] if last else -1
        self._entries = count
        self._since_index = 0
        return position

    @property
    def indexing(self) -> Indexing | None:
        """The state of the indexes after :meth:`finish`; None if unknown. OSError."""
        if self._max_timestamp != self._indexed_timestamp:
            return None
        entries = self.index_entries() if self.size else 0
        return Indexing(entries, self._since_index, self._max_timestamp, self._max_timestamp_offset)

    def resume(self, indexing: Indexing) -> None:
        """Continue to append where another process has ended."""
        self._entries, self._since_index, self._max_timestamp, self._max_timestamp_offset = indexing
        self._indexed_timestamp = indexing.max_timestamp

    # -- timestamps -------------------------------------------------------------------------------------------

    def _load_max_timestamp(self) -> None:
        """Load it from the last entry of the time index if its batch agrees, else from all headers. Any thread."""
        if self._max_timestamp != _UNKNOWN:
            return
        times = self._times_as_stored()
        last = times.last
        if last is not None and last >= times[0] and self._confirms(last[0], self.base_offset + last[1]):
            self._max_timestamp = last[0]
        else:
            self._max_timestamp = max((header.max_timestamp for _, header in self.headers(0)), default=-1)

    @property
    def max_timestamp(self) -> int:
        """The segment's largest timestamp, -1 without records."""
        self._load_max_timestamp()
        return self._max_timestamp

    def retention_timestamp(self) -> int:
        """The time that retention compares: the largest timestamp, or the file's last modification."""
        if self.max_timestamp >= 0:
            return self._max_timestamp
        try:
            return int(os.stat(self.path()).st_mtime * 1000)
        except FileNotFoundError:
            return self.created_ms

    def rolling_timestamp(self) -> int:
        """The timestamp of the first batch, from which segment.ms counts."""
        if self._first_timestamp == _UNKNOWN:
            header = self.header_at(0)
            self._first_timestamp = header.max_timestamp if header else -1
        return self._first_timestamp

    def records_from_timestamp(
        self,
        timestamp: int,
        start_offset: int,
        largest_record: int = LARGEST_RECORD,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record at or after ``timestamp``.

        May decompress a batch: INVALID_RECORD if that has a record of more than ``largest_record`` bytes. Blocking, in
        any thread. ``check`` is called often, and raises to end it.
        """
        offset = self._offset_before(timestamp)
        for position, header in self.scan_from(max(offset, start_offset)):
            check()
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            records = skim_records(self.read(position, header.size), largest_record)
            for index, (time, offset, _) in enumerate(records, 1):
                if time >= timestamp and offset >= start_offset:
                    return time, offset, header.partition_leader_epoch
                if not index % _CHECK_RECORDS:
                    check()
        return None

    def _offset_before(self, timestamp: int) -> int:
        """An offset before which all batches are older than ``timestamp``."""
        _, entry = self._times_as_stored().at_most(timestamp - 1)
        if entry is not None and self._confirms(entry[0], self.base_offset + entry[1]):
            return self.base_offset + entry[1]
        return self.base_offset

    def _confirms(self, timestamp: int, offset: int) -> bool:
        """Whether the batch at a time index entry has the entry's timestamp."""
        found = next(self.scan_from(offset), None)
        return found is not None and (found[1].max_timestamp, found[1].last_offset) == (timestamp, offset)

    # -- reading ----------------------------------------------------------------------------------------------

    def open_file(self) -> OpenFile:
        return self._files.get(self._log_path)

    def read(self, position: int, length: int) -> bytes:
        return self.open_file().pread(length, position)

    def slice(self, position: int, end: int) -> FileSlice:
        return FileSlice(self.open_file(), position, end - position)

    def header_at(self, position: int) -> BatchHeader | None:
        """The batch header at ``position``, None if there cannot be one."""
        data = self.open_file().pread(HEADER_SIZE, position) if position >= 0 else b""
        if len(data) < HEADER_SIZE:
            return None
        header = read_header(data)
        return header if header.is_plausible and position + header.size <= self.size else None

    def headers(self, position: int, *, suffix: str = ".log") -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers from the batch at ``position`` to the end, or to the first that cannot be one."""
        path = self.path(suffix) if suffix != ".log" else self._log_path
        return scan_headers(self._files.get(path), position, self.size)

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Like :meth:`headers`, from the first batch that has ``offset`` or a later one."""
        _, entry = self.offsets.at_most(offset - self.base_offset)
        if entry is not None and not self._is_indexed_batch(entry):
            self.rebuild_indexes()
            _, entry = self.offsets.at_most(offset - self.base_offset)
        for found in self.headers(entry[1] if entry else 0):
            if found[1].last_offset >= offset:
                yield found

    def scan_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Like :meth:`headers_from`, in any thread: a wrong index is ignored, not rebuilt."""
        _, entry = self._offsets_as_stored().at_most(offset - self.base_offset)
        position = entry[1] if entry is not None and self._is_indexed_batch(entry) else 0
        for found in self.headers(position):
            if found[1].last_offset >= offset:
                yield found

    def boundary(self, position: int, limit: int, upper: int, end_offset: int) -> tuple[int, int | None]:
        """The end of the last whole batch before position ``limit`` and offset ``upper``, and the offset after it.

        ``position`` is the start of a batch; the segment ends before ``end_offset``. The offset is None if no batch
        fits. IndexMismatchError.
        """
        return self._boundary(self.offsets, position, limit, upper, end_offset)

    def load(self, offset: int, max_bytes: int, upper: int, end_offset: int) -> bool:
        """Bring everything needed to find the batch with ``offset``, and the end of a read there, into the page cache.

        Returns whether there is such a batch. Blocking, in any thread.
        """
        if (found := next(self.scan_from(offset), None)) is None:
            return False
        with contextlib.suppress(IndexMismatchError):  # the next reader repairs it
            self._boundary(self._offsets_as_stored(), found[0], found[0] + max_bytes, upper, end_offset)
        return True

    def _boundary(
        self, offsets: SparseIndex, position: int, limit: int, upper: int, end_offset: int
    ) -> tuple[int, int | None]:
        entry = None
        if limit < self.size:
            entry = offsets.at_most(limit, member=1)[1] or (0, 0)
        if upper < end_offset:
            below = offsets.at_most(upper - 1 - self.base_offset)[1] or (0, 0)
            entry = below if entry is None else min(entry, below)
        next_offset = None
        if entry is not None and entry[1] > position:
            position, indexed = entry[1], self.header_at(entry[1])
            if indexed is None or indexed.last_offset != self.base_offset + entry[0]:
                raise IndexMismatchError
            next_offset = indexed.base_offset
            end = position + indexed.batch_length + LOG_OVERHEAD
            if end > limit or indexed.last_offset >= upper:
                return position, next_offset
            position, next_offset = end, indexed.next_offset
        for at, header in self.headers(position):
            if at + header.size > limit or header.last_offset >= upper:
                break
            position, next_offset = at + header.size, header.next_offset
        return position, next_offset

    # -- writing ----------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the files, so that a restart finds the end of the log."""
        for suffix in SUFFIXES:
            self._files.get(self.path(suffix), create=True)

    def remove(self) -> None:
        """Unlink the files of :meth:`create`, after a failure."""
        self.release()
        for suffix in SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(suffix))

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        """Append whole batches. After an OSError the segment is unchanged; TornWriteError if it is not."""
        position = self.size
        self._write(data)
        if not position:
            self._first_timestamp = headers[0].max_timestamp
        for header in headers:
            size = header.batch_length + LOG_OVERHEAD
            self.add_index_entries(position, size, header.last_offset, header.max_timestamp)
            position += size

    def append_ordinary(self, batch: memoryview, size: int, last_offset: int, max_timestamp: int) -> None:
        """Append one batch, not the first, as :meth:`append` does: a header is not needed."""
        position = self.size
        self._write(batch)
        self.add_index_entries(position, size, last_offset, max_timestamp)

    def has_ordinary_room(self, size: int, last_offset: int, max_timestamp: int, config: LogConfig) -> bool:
        """Whether a batch certainly belongs here by `retention.must_roll`, without a look at file or index."""
        start = self._first_timestamp
        return (
            0 < self.size <= config.segment_bytes - size
            and self._entries < config.least_full_index
            and start >= 0
            and max_timestamp - start <= config.segment_ms
            and last_offset - self.base_offset <= INT32_MAX
        )

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        position = self.size
        file = self._files.get(self._log_path)
        try:
            file.pwrite(data, position)
        except OSError:
            try:
                file.truncate(position)
            except OSError as error:
                raise TornWriteError(*error.args) from error
            raise
        self.size = position + len(data)

    def sync(self) -> None:
        """Blocking, any thread: afterwards, log and indexes are on disk.

        FileNotFoundError for a segment that is deleted before its files are open: then the paths may be another log's.
        """
        log = self.open_file()
        indexes: list[tuple[SparseIndex | None, OpenFile]] = []
        for index, suffix in ((self._offsets, ".index"), (self._times, ".timeindex")):
            with contextlib.suppress(FileNotFoundError):  # a restart rebuilds it
                indexes.append((index, self._files.get(self.path(suffix))))
        if self.deleted:
            raise FileNotFoundError(errno.ENOENT, "it was deleted", log.path)
        log.fsync()
        for index, file in indexes:
            if index is not None:
                index.sync(file)
            else:  # written out at the end of the segment
                file.fsync()

    def unload(self) -> None:
        """Keep nothing in memory that can be read again."""
        for index in (self._offsets, self._times):
            if index is not None:
                with contextlib.suppress(OSError):  # reading restores lost entries
                    index.spill()
        self._offsets = self._times = None
        self.release()

    def truncate(self, size: int) -> None:
        """Cut the .log at a batch boundary; the caller restores the indexes.

        Without any batch left, it is a new file: readers of the old one never see other records in their place.
        """
        if size:
            self.open_file().truncate(size)
        else:
            self._replace_log()
        self.size = size
        self._first_timestamp = _UNKNOWN

    def _replace_log(self) -> None:
        path = self.path()
        os.close(os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        os.replace(path + ".tmp", path)
        self._files.forget(path)

    def has_room_for(self, last_offset: int) -> bool:
        return last_offset - self.base_offset <= INT32_MAX

    def intact_end(self, position: int, next_offset: int) -> int:
        """The end of the whole, valid batches that start at ``position`` (blocking; checks CRCs and offsets)."""
        file = self.open_file()
        for at, header in self.headers(position):
            if header.base_offset < next_offset or not self.has_room_for(header.last_offset):
                return at
            crc, start, end = 0, at + CRC_START, at + header.size
            while start < end:
                data = file.pread(min(_CRC_BYTES, end - start), start)
                if not data:
                    return at
                crc = crc32c(data, crc)
                start += len(data)
            if crc != header.crc:
                return at
            position, next_offset = end, header.next_offset
        return position


def scan_headers(file: OpenFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches from byte ``position`` to ``end``, or to the first that cannot be one."""
    if position < 0:  # from a garbled index
        return
    chunk, start, size = b"", position, 0
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > start + len(chunk):
            start = position
            # After a batch longer than a chunk, expect another one.
            chunk = file.pread(min(_SCAN_BYTES if size < _SCAN_BYTES else HEADER_SIZE, end - start), start)
            if len(chunk) < HEADER_SIZE:
                return
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(chunk, position - start))
        size = header.batch_length + LOG_OVERHEAD
        if position + size > end or not header.is_plausible:
            return
        yield position, header
        position += size
