"""The aborted transactions of a log, which readers of committed records must skip.

``BASE.txnindex`` beside a segment has those whose abort marker is in it, in the order of the markers. Without any,
there is no file. It is in Kafka's format, all integers big-endian:

    version i16 (0) | producer id i64 | first offset i64 | last offset i64 (the marker's) | last stable offset i64

The last stable offset is that of the log after the marker: a reader up to this offset needs no later entry, because
transactions that end later began at or after it.

A file is written after the log, and may lack its last entries after a crash: recovery and truncation remove the entries
from a producer snapshot on, and add those of the markers after it. What the recovery point covers is on disk.

Threads: the loop's owns the indexes. Others may load, collect and sync. A file that is not in memory yet is read by a
thread (`NotCachedError`, see ``files``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import NamedTuple

from .files import NotCachedError, fsync_file, read_file
from .transactions import EndedTransaction

SUFFIX = ".txnindex"
_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_loading = threading.Lock()
"""Two threads may read a file, but only the first may keep it: the other may lack what was added since."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The file of one segment. Its path is a parameter, because folders are renamed."""

    __slots__ = ("_data", "_markers", "_synced", "_written")

    def __init__(self, data: bytes | None = None) -> None:
        """Without ``data`` it is in the file, and not loaded yet."""
        self._data = None if data is None else bytearray(data)
        self._markers = array("q")
        """Their offsets, ascending."""
        self._written = 0
        """Bytes that are in the file."""
        self._synced = -1
        """Bytes that are on disk; -1: unknown."""

    @property
    def is_loaded(self) -> bool:
        return self._data is not None

    def load(self, path: str) -> bytearray:
        """Entries as bytes, up to the first that cannot be one. Blocking. OSError."""
        if (data := self._data) is None:
            try:
                found = read_file(path)
            except FileNotFoundError:  # retention was faster
                found = b""
            data = bytearray(found[: _sound_bytes(found)])
            markers = array("q", (entry[3] for entry in _ENTRY.iter_unpack(data)))
            with _loading:
                if self._data is None:
                    self._markers, self._written, self._data = markers, len(data), data
                data = self._data
        return data

    def add(self, path: str, entry: AbortedTransaction) -> None:
        """Add an entry, in memory: see :meth:`spill`. OSError."""
        data = self.load(path)
        data += _ENTRY.pack(_VERSION, *entry)
        self._markers.append(entry.last_offset)

    def spill(self, path: str) -> None:
        """Write what the file lacks (no fsync). OSError."""
        if (data := self._data) is None or self._written >= len(data):
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            rest = bytes(data[self._written :])
            while rest:
                written = os.pwrite(fd, rest, self._written)
                rest = rest[written:]
                self._written += written
        finally:
            os.close(fd)

    def sync(self, path: str) -> None:
        """Make it durable. Blocking, in any thread. OSError, also while the file lacks entries."""
        if self._data is not None and self._written < len(self._data):
            raise OSError(errno.ENOSPC, "the transaction index is not written yet", path)
        if (written := self._written) != self._synced:
            fsync_file(path)
            self._synced = written

    def truncate_to(self, path: str, offset: int) -> None:
        """Remove the entries of markers at or after ``offset``. Blocking. OSError."""
        data = self.load(path)
        count = bisect_left(self._markers, offset)
        size = count * _ENTRY.size
        del data[size:], self._markers[count:]
        self._written, self._synced = min(self._written, size), -1
        with contextlib.suppress(FileNotFoundError):  # nothing is written yet
            if os.stat(path).st_size > size:
                os.truncate(path, size)

    def collect(self, offset: int, upper: int, found: list[AbortedTransaction]) -> bool:
        """Add those with a marker at or after ``offset`` that begin before ``upper``; whether later ones do not.

        It must be loaded.
        """
        data = self._data
        assert data is not None
        for index in range(bisect_left(self._markers, offset), len(self._markers)):
            _, producer_id, first, last, stable = _ENTRY.unpack_from(data, index * _ENTRY.size)
            if first < upper:
                found.append(AbortedTransaction(producer_id, first, last, stable))
            if stable >= upper:
                return True
        return False


def is_sound(path: str, base_offset: int) -> bool:
    """Whether a file has nothing but possible entries of that segment. Blocking. OSError."""
    data = read_file(path)
    if _sound_bytes(data) != len(data):
        return False
    return not data or _ENTRY.unpack_from(data)[3] >= base_offset


def write(path: str, entries: Iterable[AbortedTransaction]) -> None:
    """Write a new file, and make it durable. Blocking. OSError."""
    data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file)


def _sound_bytes(data: bytes) -> int:
    """The bytes of the entries before the first that cannot be one."""
    end, previous = 0, -1
    while end + _ENTRY.size <= len(data):
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, end)
        if version != _VERSION or producer_id < 0 or not 0 <= first < last or stable < 0 or last <= previous:
            break
        end, previous = end + _ENTRY.size, last
    return end


class TransactionIndexes:
    """Those of all segments of a log."""

    __slots__ = ("_bases", "_by_base", "_directory")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._by_base: dict[int, TransactionIndex] = {}
        self._bases: list[int] = []
        """Base offsets of the segments that have one, ascending."""

    def __bool__(self) -> bool:
        """Whether any transaction was aborted."""
        return bool(self._bases)

    @property
    def bases(self) -> list[int]:
        return self._bases.copy()

    def path(self, base: int) -> str:
        return f"{self._directory}/{base:020d}{SUFFIX}"

    def move(self, directory: str) -> None:
        """Use the new path after the folder was renamed."""
        self._directory = directory

    def found(self, base: int) -> None:
        """There is a file of this segment."""
        self._insert(base, TransactionIndex())

    def _insert(self, base: int, index: TransactionIndex) -> None:
        if base not in self._by_base:
            insort(self._bases, base)
        self._by_base[base] = index

    def add(self, base: int, ended: EndedTransaction) -> None:
        """Note a transaction that ended in this segment, if it was aborted, in memory: see :meth:`spill`. OSError."""
        if ended.committed:
            return
        if (index := self._by_base.get(base)) is None:
            index = TransactionIndex(b"")
            self._insert(base, index)
        index.add(
            self.path(base),
            AbortedTransaction(
                ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset
            ),
        )

    def spill(self, base: int) -> None:
        """Write what the files from this segment on lack (no fsync). OSError."""
        for each in self._bases[bisect_left(self._bases, base) :]:
            self._by_base[each].spill(self.path(each))

    def sync(self, base: int) -> None:
        """Make the segment's entries durable. Blocking, in any thread. OSError."""
        if (index := self._by_base.get(base)) is not None:
            index.sync(self.path(base))

    def drop(self, base: int) -> str | None:
        """Forget the segment's index: the path of its file, None if it has none."""
        if self._by_base.pop(base, None) is None:
            return None
        self._bases.remove(base)
        return self.path(base)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of markers at or after ``offset``. Blocking. OSError."""
        for base in self._bases[max(0, bisect_right(self._bases, offset) - 1) :]:
            self._by_base[base].truncate_to(self.path(base), offset)

    def collect(
        self, base: int, offset: int, upper: int, *, may_wait: bool = True
    ) -> list[AbortedTransaction]:
        """Those whose records or marker a reader may meet from ``offset``, in the segment ``base``, up to ``upper``.

        NotCachedError if a file must be loaded and the caller may not wait. OSError.
        """
        found: list[AbortedTransaction] = []
        for each in self._bases[bisect_left(self._bases, base) :]:
            if (index := self._by_base.get(each)) is None:  # another thread, and retention was faster
                continue
            if not index.is_loaded:
                if not may_wait:
                    raise NotCachedError(self.path(each))
                index.load(self.path(each))
            if index.collect(offset, upper, found):
                break
        return found

    def load(self, base: int) -> None:
        """Load the files from this segment on. Blocking, in any thread. OSError."""
        for each in self._bases[bisect_left(self._bases, base) :]:
            if (index := self._by_base.get(each)) is not None:
                index.load(self.path(each))

    def unsound(self) -> Iterable[int]:
        """The segments whose files are damaged. Blocking. OSError."""
        return [base for base in self._bases if not is_sound(self.path(base), base)]
