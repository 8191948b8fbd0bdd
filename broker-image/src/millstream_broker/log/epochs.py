"""Leader epochs of a log with their first offsets (KIP-101), in Kafka's ``leader-epoch-checkpoint``.

    0                      version
    2                      number of entries
    0 0                    epoch, first offset written in it
    3 1200

Invariant: epochs and offsets both ascend strictly; only Kafka before 2.0 wrote epochs without records, which share the
offset of the next. The file is a copy: a log recovers epochs after its recovery point from its batches, so the file is
written lazily, and made durable before the recovery point passes an entry: a flush fails as long as the file cannot be
written.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

from .checkpoints import CheckpointError, parse_lines
from .files import fsync_file, read_file, write_atomically

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochs:
    __slots__ = ("_saving", "dirty", "entries", "path", "unsynced")

    def __init__(self, directory: Path | str) -> None:
        self.path = f"{directory}/{FILE_NAME}"
        self.entries: list[tuple[int, int]] = []
        self.dirty = False  # the file is older than this
        self.unsynced = False  # the file may not be on the disk yet
        self._saving = threading.Lock()

    def load(self) -> bool:
        """Read the file; returns False, and loads nothing, if it is missing or invalid."""
        self.entries = []
        try:
            rows = parse_lines(read_file(self.path).decode(), self.path, columns=2)
            entries = [(int(epoch), int(offset)) for epoch, offset in rows]
        except (OSError, CheckpointError, ValueError):
            return False
        if any(b[0] <= a[0] or b[1] < a[1] for a, b in itertools.pairwise(entries)):
            return False
        self.entries = entries
        return True

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else UNDEFINED

    def is_latest(self, epoch: int) -> bool:
        """Whether a batch of this epoch begins no new one."""
        return bool(self.entries) and self.entries[-1][0] == epoch

    def of_last_record(self, log_end_offset: int) -> int:
        """The epoch of the last record, or of the last one that was deleted; a later epoch may have no record yet."""
        for epoch, offset in reversed(self.entries):
            if offset < log_end_offset:
                return epoch
        return self.entries[0][0] if self.entries else UNDEFINED

    def assign(self, epoch: int, offset: int) -> None:
        """Note that ``epoch`` begins at ``offset``, unless that is known."""
        entries = self.entries
        if epoch < 0 or (entries and epoch <= entries[-1][0]):
            return
        while entries and entries[-1][1] >= offset:  # an epoch without records
            entries.pop()
        entries.append((epoch, offset))
        self.dirty = True

    def truncate_from_end(self, offset: int) -> None:
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
            self.dirty = True

    def truncate_from_start(self, offset: int) -> None:
        """The log starts at ``offset`` now: of the epochs before it, only the last remains, starting there."""
        older = [entry for entry in self.entries if entry[1] <= offset]
        if older and older[-1] != (older[-1][0], offset):
            self.entries[: len(older)] = [(older[-1][0], offset)]
            self.dirty = True
        elif len(older) > 1:
            del self.entries[: len(older) - 1]
            self.dirty = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to ``epoch``, and its end; (-1, -1) if nothing is known."""
        if not self.entries or epoch < 0 or epoch > self.entries[-1][0]:
            return UNDEFINED, UNDEFINED
        if epoch == self.entries[-1][0]:
            return epoch, log_end_offset
        higher = next(index for index, entry in enumerate(self.entries) if entry[0] > epoch)
        floor = self.entries[higher - 1][0] if higher else epoch
        return floor, self.entries[higher][1]

    def save(self) -> None:
        """Write the file, without waiting for the disk. Any thread. Raises OSError: it stays dirty."""
        with self._saving:
            self.dirty = False
            entries = tuple(self.entries)
            lines = ["0", str(len(entries)), *(f"{epoch} {offset}" for epoch, offset in entries)]
            try:
                write_atomically(self.path, ("\n".join(lines) + "\n").encode(), sync=False)
            except OSError:
                self.dirty = True
                raise
            self.unsynced = True

    def sync(self) -> None:
        """Bring the file to the disk, with all entries. Blocking, in any thread. Raises OSError."""
        if self.dirty:  # it could not be written
            self.save()
        if self.unsynced:
            self.unsynced = False
            try:
                fsync_file(self.path)
            except OSError:
                self.unsynced = True
                raise
