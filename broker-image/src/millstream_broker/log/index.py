"""Sparse indexes: files of fixed-size entries in ascending order, searched in place.

    .index      offset relative to the segment's base  i32 | position of that offset's batch in the .log  i32
    .timeindex  largest timestamp so far  i64              | offset that has it, relative to the base      i32

As in Kafka, the entry of the offset index names the *last* offset of the batch that starts at its position. Kafka
preallocates these files; we do not, so a file holds exactly its entries (Kafka reads both).

Memory: of the file, only the block that the last search read is kept, because a reader's next search is mostly a
little further on. Both members grow about evenly along a segment, so a search guesses the entry's place and reads a
block around it through the page cache: two or three reads, whatever the size. New entries gather in a short tail and
are written together, because a segment's index can be rebuilt from its log and so need not be written entry by entry.
Entries are not trusted: every user checks the batch that an entry points to (see ``segment``).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right

from .files import FileCache, OpenFile

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
_BLOCK = 128  # entries read at once in a search
_BEHIND = 32  # so many of them are before the guessed place


def entries_before_full(max_bytes: int) -> int:
    """Entries of the longer index that certainly fit segment.index.bytes.

    One entry of the time index stays free for the largest timestamp at the segment's end.
    """
    return max_bytes // TIME_ENTRY.size - 1


class SparseIndex:
    """One index file. Entries are pairs; both members ascend.

    The loop's thread owns it; only :meth:`sync` and :meth:`at_most` may run in another.
    """

    __slots__ = ("_files", "_kept", "_path", "_pending", "entry")

    def __init__(self, files: FileCache, path: str, entry: struct.Struct, *, stored: int) -> None:
        self._files = files
        self._path = path
        self.entry = entry
        # One tuple, so that sync() in its thread sees both members at one moment.
        self._pending: tuple[int, bytearray] = (stored, bytearray())
        # The last search's block: the number of its first entry, and the entries. A truncation begins a new list,
        # so a search that another thread began before keeps its block where nobody looks.
        self._kept: list[tuple[int, bytes]] = []

    @classmethod
    def open(cls, files: FileCache, path: str, entry: struct.Struct) -> SparseIndex:
        """Open an index; a missing file is an empty index, half an entry at the end is ignored."""
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
        return cls(files, path, entry, stored=size // entry.size)

    def __len__(self) -> int:
        stored, tail = self._pending
        return stored + len(tail) // self.entry.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        stored, tail = self._pending
        size = self.entry.size
        if index >= stored:
            first, second = self.entry.unpack_from(tail, (index - stored) * size)
        else:
            data = self._files.get(self._path).pread(size, index * size)
            if (
                len(data) < size
            ):  # the file was truncated from outside: return an entry that no batch confirms
                return 0, 0
            first, second = self.entry.unpack(data)
        return first, second

    @property
    def last(self) -> tuple[int, int] | None:
        count = len(self)
        return self[count - 1] if count else None

    def append(self, first: int, second: int) -> None:
        tail = self._pending[1]
        tail += self.entry.pack(first, second)

    @property
    def pending(self) -> int:
        """Number of entries that are not in the file yet."""
        return len(self._pending[1]) // self.entry.size

    def at_most(self, target: int, *, member: int = 0) -> tuple[int, tuple[int, int] | None]:
        """Number of entries with a ``member`` (0 or 1) of at most ``target``, and the last of them."""
        if kept := self._kept:
            ((start, block),) = kept
            unpack = self.entry.unpack_from
            if unpack(block)[member] <= target < unpack(block, len(block) - self.entry.size)[member]:
                return self._at_most_in(block, start, target, member)
        stored, tail = self._pending
        high = stored if tail else stored - 1
        if high < 0:
            return 0, None
        above = self[high]
        if above[member] > target:
            return self._at_most_stored(target, member, high, above[member], kept)
        return self._at_most_in(tail, stored, target, member) if tail else (stored, above)

    def _at_most_stored(
        self, target: int, member: int, high: int, above: int, kept: list[tuple[int, bytes]]
    ) -> tuple[int, tuple[int, int] | None]:
        """The same among the stored entries before ``high``, whose member ``above`` is too large.

        The last block that it reads goes into ``kept``.
        """
        size = self.entry.size
        low, below, found, turn = 0, min(0, target), None, 0
        while low < high:  # entries before low are at most target, those from high on are not
            turn += 1
            guess = low + (high - low) * (target - below) // (above - below)
            if turn % 3 == 0:  # they are less even than that
                guess = (low + high) // 2
            start = max(low, min(guess - _BEHIND, high - _BLOCK))
            block = self._files.get(self._path).pread(min(_BLOCK, high - start) * size, start * size)
            if len(block) < size:  # the file was truncated from outside
                high = start
            elif (first := self.entry.unpack_from(block)[member]) > target:
                high, above = start, first
            else:
                low, found = self._at_most_in(block, start, target, member)
                below = found[member]
                if low < start + len(block) // size:
                    kept[:] = [(start, block)]
                    break
        return low, found

    def _at_most_in(
        self, block: bytes | bytearray, start: int, target: int, member: int
    ) -> tuple[int, tuple[int, int]]:
        """The same in a block of the entries from ``start`` on, the first of which is at most ``target``."""
        unpack, size = self.entry.unpack_from, self.entry.size
        count = bisect_right(
            range(len(block) // size), target, lo=1, key=lambda index: unpack(block, index * size)[member]
        )
        first, second = unpack(block, (count - 1) * size)
        return start + count, (first, second)

    def spill(self) -> None:
        """Write the tail into the file (no fsync)."""
        stored, tail = self._pending
        if tail:
            self._files.get(self._path, create=True).pwrite(tail, stored * self.entry.size)
            self._pending = (stored + len(tail) // self.entry.size, bytearray())

    def sync(self, file: OpenFile) -> None:
        """Blocking, in any thread: afterwards, the present entries are on disk. ``file`` is the index's file.

        The tail is written but kept: the loop's thread will write the same bytes to the same place once more.
        """
        stored, tail = self._pending
        data = bytes(tail)
        if not stored and not data:
            return
        if data:
            file.pwrite(data, stored * self.entry.size)
        file.fsync()

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries, and nothing after them in the file."""
        stored, tail = self._pending
        size = self.entry.size
        if count >= stored:
            self._pending = (stored, tail[: (count - stored) * size])
        else:
            self._pending = (count, bytearray())
        self._kept = []  # not earlier: another thread might keep a block of the old entries in it
        stored = min(count, stored)
        try:
            if os.stat(self._path).st_size > stored * size:
                os.truncate(self._path, stored * size)
        except FileNotFoundError:
            pass


def read_all(path: str, entry: struct.Struct) -> list[tuple[int, int]]:
    """Every whole entry of an index file (blocking): for tests and tools."""
    data = OpenFile(path).pread(os.stat(path).st_size, 0)
    whole = len(data) // entry.size * entry.size
    return [(first, second) for first, second in entry.iter_unpack(data[:whole])]
