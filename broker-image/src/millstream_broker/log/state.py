"""State that ``log`` and ``truncation`` share: a log's parts, its durable end, and whether it is usable.

Failures. A disk error other than lack of space, or any failed fsync, takes the log ``offline`` together with its
directory (see ``directory``). A write that cannot be undone takes only the log offline. Every call then raises
KAFKA_STORAGE_ERROR until the log is opened again. A deleted log is ``offline``, too: every call raises
UNKNOWN_TOPIC_OR_PARTITION, and missing files are no failure.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import uuid
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import recovery
from .config import LogConfig
from .durability import Durability
from .epochs import LeaderEpochs
from .errors import DeletedError, TornWriteError
from .files import is_failure
from .folders import STRAY_NOTE
from .producer_state import ProducerStateManager
from .segments import Segments
from .sequence_guard import SequenceGuard

logger = logging.getLogger(__name__)


class LogProgress(NamedTuple):
    """The content of the checkpoints about a log."""

    flushed: int
    moved_start: int | None
    """The log start, if DeleteRecords has moved it beyond the first segment's."""
    first_dirty: int

    @property
    def claims(self) -> int:
        """The checkpoints claim that everything before this offset is on disk or compacted."""
        return max(self.flushed, self.first_dirty)


class Home(Protocol):
    """The log directory of a log."""

    rolled: set[Any]
    """Logs with closed segments that may not be on disk yet."""
    moved: set[Any]
    """Logs whose start has moved since `commit_starts`."""

    def fail(self, error: OSError) -> None:
        """Report that the disk is at fault. Any thread."""

    def check(self, error: OSError) -> None:
        """Handle an error outside a log. Any thread."""

    def checkpoint(self) -> None:
        """Write log starts and other offsets. Blocking, any thread. OSError."""

    def commit_starts(self) -> None:
        """Write the starts of the logs in `moved`. Blocking, any thread. OSError."""


class LogState:
    """See ``log.Log``."""

    __slots__ = (
        "_claims_end",
        "_confirmed_epoch",
        "_home",
        "claimed",
        "closed_at",
        "config",
        "durability",
        "durable_start",
        "epochs",
        "first_dirty_offset",
        "last_high_watermark",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "producers",
        "segments",
        "sequence_guard",
        "topic_id",
        "truncating",
        "uncleanable",
        "unconfirmed",
    )

    def __init__(
        self,
        config: LogConfig,
        segments: Segments,
        start: int,
        end: int,
        producers: ProducerStateManager,
        epochs: LeaderEpochs,
        *,
        recovery_point: int,
        home: Home | None,
        topic_id: uuid.UUID | None,
    ) -> None:
        """Use ``Log.open``."""
        self.topic_id = topic_id
        self._home = home
        self.segments = segments
        self.durability = Durability(segments, epochs, min(max(recovery_point, start), end))
        self.config = config
        self.producers = producers
        self.sequence_guard = SequenceGuard()
        self.epochs = epochs
        self.log_start_offset = self.durable_start = start
        """No restart shows records before `durable_start`, not even after kill -9 or a power loss."""
        self.log_end_offset = end
        self.uncleanable = False  # compaction failed on it (see ``compaction.give_up``)
        self.first_dirty_offset = start  # compaction has not gone beyond this offset
        self.last_high_watermark = 0
        """As of the replica's last leadership or following; meanwhile, the replica has a newer one."""
        self.closed_at = -1
        """The end of a log opened from its summary: there is a producer snapshot for it; else -1."""
        self.unconfirmed = False
        """No leader has confirmed the log since it was a stray, or coordination was restored (see ``strays``)."""
        self._confirmed_epoch = -1
        """The epoch of the leader that has confirmed it last; not kept on disk."""
        self.truncating = False
        """A thread is truncating the log; set and cleared on the loop, which does not use the log meanwhile."""
        self.offline: OSError | None = None
        self.claimed = recovery.NOWHERE
        """No checkpoint on disk claims that anything after this offset is on disk or compacted."""
        self._claims_end = recovery.NOWHERE  # the end of a truncation in progress

    @property
    def directory(self) -> Path:
        return Path(self.segments.path)

    def confirm(self, leader_epoch: int) -> None:
        """The leader of this epoch has this log as far as it goes, or this broker leads: the log may be truncated."""
        self._confirmed_epoch = leader_epoch
        if self.unconfirmed:
            self.unconfirmed = False
            with contextlib.suppress(OSError):  # then it stays unconfirmed after a restart
                os.unlink(f"{self.segments.path}/{STRAY_NOTE}")

    def is_suspect(self, compared: int) -> bool:
        """Whether it may have records that nobody else has: then it is neither truncated nor deleted, but kept.

        Nobody knows that of a log which ends before the last comparison of logs (in the epoch `compared`, see
        `controller.comparison`), whenever its broker is back, until a leader since then has confirmed it: that of an
        idle partition has no later epoch, either. A mirror's replica has its source's epochs, and gets its records
        again.
        """
        if self.unconfirmed:
            return True
        return max(self.epochs.latest, self._confirmed_epoch) < compared and not self.config.mirror_source

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self.segments.size

    @property
    def is_deleted(self) -> bool:
        """Scheduled for deletion: its files may be gone."""
        return isinstance(self.offline, DeletedError)

    @property
    def flushed_offset(self) -> int:
        """Everything before it is certainly on disk (Kafka's recovery point)."""
        return self.durability.offset

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.flushed_offset

    @property
    def unflushed_bytes(self) -> int:
        """Upper bound of the bytes that :meth:`flush` would have to write."""
        if not self.unflushed_messages:
            return 0
        return sum(segment.size for segment in self.segments.from_offset(self.flushed_offset))

    def _save_epochs(self) -> None:
        if self.epochs.dirty:
            try:
                self.epochs.save()
            except OSError as error:  # stays dirty; flush and close retry, and fail with it
                logger.warning("%s: cannot write its leader epochs: %s", self.segments.path, error)
                self.failed(error)

    def ends_at(self, end: int, producers: ProducerStateManager) -> None:
        """Note the new end after the segments were truncated there."""
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_start = min(self.durable_start, end)
        self.durability.offset = min(self.flushed_offset, end)
        self.first_dirty_offset = min(self.first_dirty_offset, end)
        self.producers = producers

    def write_failed(self, error: OSError) -> ApiError:
        """The refusal of an append whose write has failed."""
        if isinstance(error, TornWriteError):
            self.offline = error
        return self.unless_torn(self.failed(error))

    def unless_torn(self, refusal: ApiError) -> ApiError:
        """The refusal of an append; after a torn write another one, as the next start keeps what is whole.

        Then nobody may say that the log has none of them: see `delayed_produce`.
        """
        if isinstance(self.offline, TornWriteError):
            return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, refusal.message)
        return refusal

    def forget_epochs_from(self, offset: int) -> None:
        with self.durability.lock:
            self.epochs.truncate_from_end(offset)
            self._save_epochs()

    # -- checkpoints ------------------------------------------------------------------------------------------

    def claim_nothing_behind(self, end: int) -> None:
        """Let no checkpoint claim that anything after ``end`` is on disk or compacted. Blocking. OSError.

        Until :meth:`release_claims`: other records will be there, or none.
        """
        self._claims_end = end
        if self.claimed > end:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Blocking. OSError."""
        if self._home is not None:
            self._home.checkpoint()

    def release_claims(self) -> None:
        self._claims_end = recovery.NOWHERE

    def progress(self) -> LogProgress:
        """The progress at one moment, limited to what a truncation leaves. In any thread."""
        with self.durability.lock:
            limit = self._claims_end
            progress = LogProgress(
                min(self.flushed_offset, limit), self.moved_start(), min(self.first_dirty_offset, limit)
            )
            self.claimed = max(self.claimed, progress.claims)
            return progress

    # -- the start --------------------------------------------------------------------------------------------

    @property
    def home(self) -> Home | None:
        """Its log directory."""
        return self._home

    def keep_start(self) -> None:
        """Include the start in the next `Home.commit_starts`."""
        if self._home is None:
            self.durable_start = self.log_start_offset
        else:
            self._home.moved.add(self)

    def moved_start(self) -> int | None:
        """The start for the checkpoint; None if the first segment has it. Any thread."""
        start = self.log_start_offset
        return start if start > self.segments.first_offset else None

    def sync_removals(self) -> None:
        """Make the removal of segments durable, unless the checkpoint has the start. Blocking. OSError."""
        if self.moved_start() is None:
            try:
                self.segments.sync_folder()
            except FileNotFoundError:
                if not self.is_deleted:  # otherwise the folder was renamed
                    raise

    def start_is_durable(self, start: int) -> None:
        """The start is in the checkpoint, or is the first segment's. Any thread."""
        with self.durability.lock:  # a truncation may have moved it down
            self.durable_start = max(self.durable_start, min(start, self.log_start_offset))

    # -- failures ---------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Mark the log as deleted before its files are, so that a missing file is no disk failure.

        A reader that opens a segment's file, and then finds this mark unset, has opened a file of this log.
        """
        self.offline = DeletedError(errno.ENOENT, "it was deleted")
        for segment in self.segments:
            segment.deleted = True

    def failed(self, error: OSError) -> ApiError:
        """Handle an error from the disk; returns the error to raise. Any thread.

        Only this method distinguishes a disk failure from a file that was deleted with its log.
        """
        if is_failure(error) and not (self.is_deleted and isinstance(error, FileNotFoundError)):
            if not self.is_deleted:
                self.offline = error
            if self._home is not None:
                self._home.fail(error)
        return self._storage_error(error)

    def check_online(self) -> None:
        """ApiError KAFKA_STORAGE_ERROR after the disk has failed."""
        if self.offline is not None:
            raise self._storage_error(self.offline)

    def _refusal(self) -> ApiError:
        if self.offline is not None:
            return self._storage_error(self.offline)
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.segments.path} is being truncated")

    def _storage_error(self, error: OSError) -> ApiError:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self.is_deleted else ErrorCode.KAFKA_STORAGE_ERROR
        reason = error.strerror or str(error)
        return ApiError(code, f"{self.segments.path}: {reason}")
