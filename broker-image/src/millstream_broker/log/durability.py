"""Tracks the durable part of a log, and fsyncs the log in a thread while the loop continues to append.

Large producer snapshots, which a log takes at the end of each segment, are written there, too. Until one is, a
restart restores the state from an older one and the later batches; so the segments before it must stay
(:attr:`Durability.unsaved_from`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from . import recovery
from .epochs import LeaderEpochs
from .files import fsync_directory, fsync_file
from .producer_state import ProducerStateManager
from .segment import Segment
from .segments import Segments

_PORTION = 16  # closed segments to fsync before checking whether to continue


class Durability:
    """The durability of one log. Everything before ``offset`` is on disk (Kafka's recovery point).

    ``lock`` separates :meth:`flush` from calls that change what it reads. Appending takes no lock: it only adds.
    """

    __slots__ = ("_epochs", "_segments", "_unsaved", "flushed_ms", "lock", "offset")

    def __init__(self, segments: Segments, epochs: LeaderEpochs, offset: int) -> None:
        self._segments = segments
        self._epochs = epochs
        self.offset = offset
        self.flushed_ms: int | None = None
        """When `upkeep` last found the log flushed, from which flush.ms counts; None before its first look."""
        self.lock = threading.Lock()
        self._unsaved: list[tuple[int, ProducerStateManager]] = []

    @property
    def is_behind(self) -> bool:
        """Whether :meth:`flush_closed` has something to do."""
        return self.offset < self._segments.active.base_offset or bool(self._unsaved)

    def keep(self, offset: int, producers: ProducerStateManager) -> None:
        """Queue the snapshot of this offset for :meth:`save_producers`."""
        self._unsaved.append((offset, producers.frozen()))

    @property
    def unsaved_from(self) -> int:
        """The offset of the first producer snapshot that is not written yet."""
        try:
            return self._unsaved[0][0]
        except IndexError:  # it may just have become empty
            return recovery.NOWHERE

    def save_producers(self) -> None:
        """Write the snapshots of ended segments (no fsync). Blocking, in any thread. OSError.

        One that cannot be written is skipped, because retention must be able to free a full disk; the next one has
        everything.
        """
        while self._unsaved:
            with self.lock:  # a truncation may forget them, a deletion moves the folder
                if self._unsaved:
                    offset, producers = self._unsaved[0]
                    try:
                        producers.save(recovery.snapshot_path(self._segments.path, offset))
                    finally:
                        del self._unsaved[0]

    def forget_producers(self, offset: int = -1) -> None:
        """Write no snapshot after this offset: the log was truncated there, or deleted. The caller has the lock."""
        while self._unsaved and self._unsaved[-1][0] > offset:
            self._unsaved.pop()

    def flush(self, end: int) -> None:
        """fsync everything before ``end``. The caller has the lock. Blocking. OSError."""
        if end > self.offset:
            self._sync(self._segments.from_offset(self.offset))
            self.offset = max(self.offset, end)

    def flush_closed(self) -> bool:
        """fsync the first closed segments that are not on disk; return whether there are more. Blocking. OSError.

        Takes no lock, so that nobody waits for gigabytes.
        """
        self.save_producers()
        truncations = self._segments.truncations
        *closed, following = self._segments.from_offset(self.offset)[: _PORTION + 1]
        end = following.base_offset
        if end <= self.offset:
            return False
        with contextlib.suppress(FileNotFoundError):  # it exists only if this broker closed a segment
            fsync_file(recovery.snapshot_path(self._segments.path, end))
        self._sync(closed)
        with self.lock:
            if truncations == self._segments.truncations:
                self.offset = max(self.offset, end)
        return following is not self._segments.active

    def _sync(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            try:
                segment.sync()
                self._segments.aborted.sync(segment.base_offset)
            except FileNotFoundError:
                if not segment.deleted:  # otherwise retention was faster
                    raise
        if not all(segment.synced for segment in segments):
            fsync_directory(self._segments.path)
            for segment in segments:
                segment.synced = True
        self._epochs.sync()
