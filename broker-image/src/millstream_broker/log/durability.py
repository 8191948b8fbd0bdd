"""How far a log is on the disk, and getting it there: fsync in a thread, beside a loop that goes on appending."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from .epochs import LeaderEpochs
from .files import fsync_directory, fsync_file
from .segment import Segment
from .segments import Segments

_PORTION = 16  # closed segments that are fsynced before the next question whether to go on


class Durability:
    """Of one log. ``offset``: everything before it is on the disk (Kafka's recovery point).

    ``lock`` keeps :meth:`flush` apart from those who change what it reads. Appending does not: it only adds.
    """

    __slots__ = ("_epochs", "_segments", "lock", "offset")

    def __init__(self, segments: Segments, epochs: LeaderEpochs, offset: int) -> None:
        self._segments = segments
        self._epochs = epochs
        self.offset = offset
        self.lock = threading.Lock()

    def flush(self, end: int) -> None:
        """fsync everything before ``end``. The caller has the lock. Blocking. OSError."""
        if end > self.offset:
            self._sync(self._segments.from_offset(self.offset))
            self.offset = max(self.offset, end)

    def flush_closed(self, snapshot_path: Callable[[int], str]) -> bool:
        """fsync the first of the closed segments that are not on the disk; whether there are more. Blocking. OSError.

        Without the lock: who needs it does not wait for gigabytes.
        """
        truncations = self._segments.truncations
        *closed, following = self._segments.from_offset(self.offset)[: _PORTION + 1]
        end = following.base_offset
        if end <= self.offset:
            return False
        with contextlib.suppress(FileNotFoundError):  # there is one only where this broker closed a segment
            fsync_file(snapshot_path(end))
        self._sync(closed)
        with self.lock:
            if truncations == self._segments.truncations:
                self.offset = max(self.offset, end)
        return following is not self._segments.active

    def _sync(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            try:
                segment.sync()
            except FileNotFoundError:
                if not segment.deleted:  # else retention was faster
                    raise
        if not all(segment.synced for segment in segments):
            fsync_directory(self._segments.path)
            for segment in segments:
                segment.synced = True
        self._epochs.sync()
