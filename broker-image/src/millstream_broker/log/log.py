"""The log of one partition: a folder of segments, in Kafka's format, that grows at its end.

Offsets: ``log_start_offset`` ≤ every readable record < ``log_end_offset``. ``flushed_offset`` (Kafka's recovery point)
is how far fsync has come. The high watermark is the partition's business; methods that must respect it take it.

Threads. The loop's thread owns a log and calls everything; nothing here waits but for the disk. Three methods may run
in another thread at the same time, and are meant to: :meth:`flush`, :meth:`remove_deleted_files`, and opening. These
block for long: flush, close(sync=True), open after an unclean stop. One lock keeps flush apart from truncation,
close and delete, which change what flush reads.

Failures. A write that fails (disk full, EIO) leaves the log as it was and raises KAFKA_STORAGE_ERROR; the next append
may succeed. If what it left cannot be cut off, or an fsync fails (the kernel may have dropped the pages), the log goes
``offline``: every call raises KAFKA_STORAGE_ERROR until it is opened again.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..protocol.errors import ApiError, ErrorCode
from . import admission, epochs, recovery
from .admission import Admitted
from .batch import PLACEMENT, BatchHeader, read_records
from .config import LogConfig as LogConfig  # named here for callers, as FileSlice
from .epochs import LeaderEpochs
from .files import FileCache, fsync_directory
from .files import FileSlice as FileSlice
from .producers import Producers
from .segment import Segment, TornWriteError
from .segments import Segments

logger = logging.getLogger(__name__)


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int
    duplicate: bool = (
        False  # an idempotent producer's retry: nothing was written, the offsets are the first time's
    )


class Log:
    __slots__ = (
        "_flush_lock",
        "_segments",
        "config",
        "epochs",
        "first_dirty_offset",
        "flushed_offset",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "producers",
        "uncleanable",
    )

    def __init__(
        self,
        config: LogConfig,
        segments: Segments,
        start: int,
        end: int,
        producers: Producers,
        epochs: LeaderEpochs,
    ) -> None:
        """Use :meth:`open`."""
        self._segments = segments
        self._flush_lock = threading.Lock()
        self.config = config
        self.producers = producers
        self.epochs = epochs
        self.log_start_offset = start
        self.log_end_offset = end
        self.flushed_offset = start
        self.uncleanable = False  # compaction met a batch that it cannot read
        self.first_dirty_offset = start  # compaction has not been behind this
        self.offline: OSError | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        page_cache_kept: bool = False,
        files: FileCache | None = None,
        now_ms: int | None = None,
    ) -> Log:
        """Open (or make) the log in ``directory``. Blocking, in any thread.

        ``clean``: the last process closed it. Otherwise ``page_cache_kept`` says that the machine has not restarted
        since it was written: then every completed write is there, and only batches behind the last index entry are
        verified; else every batch behind ``recovery_point``.
        """
        directory.mkdir(parents=True, exist_ok=True)
        from_offset = None if clean else recovery.NOWHERE if page_cache_kept else recovery_point
        state = recovery.load(
            str(directory),
            FileCache() if files is None else files,
            config,
            from_offset=from_offset,
            log_start_offset=log_start_offset,
            now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        )
        log = cls(config, *state)
        log._save_epochs()
        log.flushed_offset = min(max(recovery_point, log.log_start_offset), log.log_end_offset)
        return log

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return Path(self._segments.path)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._segments.size

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.flushed_offset

    @property
    def unflushed_bytes(self) -> int:
        """At most this much would have to be written by :meth:`flush`."""
        return sum(segment.size for segment in self.unflushed_segments)

    @property
    def unflushed_segments(self) -> list[Segment]:
        if self.flushed_offset >= self.log_end_offset:
            return []
        return self._segments.from_offset(self.flushed_offset)

    # -- appending --------------------------------------------------------------------------------------------

    def append(
        self, batches: bytes | bytearray | memoryview, *, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Validate a producer's batches, give them offsets (in place, if the buffer can be written) and write them.

        ApiError: what ``admission.admit`` and ``Producers.check`` raise; RECORD_LIST_TOO_LARGE
        when they exceed segment.bytes; KAFKA_STORAGE_ERROR. After an error the log is as before.
        """
        admitted = admission.admit(batches, self.config, now_ms, where=self._segments.path)
        return self.append_admitted(admitted, leader_epoch=leader_epoch, now_ms=now_ms)

    def admit(self, batches: bytearray, *, now_ms: int) -> Admitted:
        """The first half of :meth:`append`, each record read. In any thread."""
        return admission.admit(batches, self.config, now_ms, where=self._segments.path, read=True)

    def append_admitted(self, admitted: Admitted, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """The second half of :meth:`append`, for batches that were admitted in a thread."""
        view, headers, append_time = admitted
        repeated = self.producers.check(headers)
        if repeated is not None:
            return AppendInfo(
                repeated.first_offset,
                repeated.last_offset,
                repeated.timestamp if append_time >= 0 else -1,
                self.log_start_offset,
                duplicate=True,
            )
        if len(view) > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(view)} bytes exceed segment.bytes={self.config.segment_bytes}",
            )
        first = offset = self.log_end_offset
        position = 0
        placed = []
        for header in headers:
            length = header.batch_length
            PLACEMENT.pack_into(view, position, offset, length, leader_epoch)
            placed.append(BatchHeader._make((offset, length, leader_epoch, *header[3:])))
            offset += header.last_offset_delta + 1
            position += length + 12
        self._write(view, placed, now_ms)
        return AppendInfo(first, offset - 1, append_time, self.log_start_offset)

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int = 0) -> AppendInfo:
        """Write batches as another log has them: offsets and epochs stay. Their offsets must not lie before the end."""
        view = memoryview(batches)
        headers = admission.check_copied(view, self.log_end_offset)
        self._write(view, headers, now_ms)
        return AppendInfo(headers[0].base_offset, headers[-1].last_offset, -1, self.log_start_offset)

    def _write(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        if self.offline is not None:
            raise self._storage_error(self.offline)
        last = headers[-1]
        try:
            segment = self._segments.active
            if self._must_roll(segment, len(data), headers, now_ms):
                self.roll(headers[0].base_offset, now_ms=now_ms)
                segment = self._segments.active
            segment.append(data, headers)
        except OSError as error:
            if isinstance(error, TornWriteError):
                self.offline = error
            raise self._storage_error(error) from error
        self.log_end_offset = last.next_offset
        if last.partition_leader_epoch > self.epochs.latest:
            for header in headers:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            self._save_epochs()
        for header in headers:
            if header.producer_id >= 0:
                self.producers.update(header, now_ms)

    def assign_leader_epoch(self, epoch: int) -> None:
        """This broker leads in ``epoch`` from the end of the log on."""
        self.epochs.assign(epoch, self.log_end_offset)
        self._save_epochs()

    def _save_epochs(self) -> None:
        if self.epochs.dirty:
            try:
                self.epochs.save()
            except OSError as error:  # stays dirty; flush and close try again, recovery can do without
                logger.warning("%s: cannot write its leader epochs: %s", self._segments.path, error)

    def _must_roll(self, segment: Segment, size: int, headers: Sequence[BatchHeader], now_ms: int) -> bool:
        if not segment.size:
            return not segment.has_room_for(headers[-1].last_offset)
        config = self.config
        if segment.size + size > config.segment_bytes or not segment.has_room_for(headers[-1].last_offset):
            return True
        start = segment.rolling_timestamp()
        age = now_ms - segment.created_ms
        if start >= 0:  # as Kafka: counted in the time of the records
            age = max([header.max_timestamp for header in headers]) - start
        return age > config.segment_ms or segment.is_index_full(config.index_size_max_bytes)

    def roll(self, base_offset: int | None = None, *, now_ms: int = 0) -> None:
        """End the active segment and start the next one. OSError leaves the log as it was."""
        base_offset = self.log_end_offset if base_offset is None else base_offset
        active = self._segments.active
        if base_offset == active.base_offset:
            return
        active.finish()
        self.producers.save(self._snapshot_path(base_offset))
        self._segments.create(base_offset, now_ms, self.config.index_interval_bytes)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll an active segment that nobody appended to for segment.ms, so that retention and compaction see it."""
        active = self._segments.active
        if active.size and now_ms - active.created_ms > self.config.segment_ms and self.offline is None:
            self.roll(now_ms=now_ms)
            self._segments.active.created_ms = now_ms

    def _snapshot_path(self, offset: int) -> str:
        return recovery.snapshot_path(self._segments.path, offset)

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms - self.config.producer_id_expiration_ms)

    # -- reading ----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> FileSlice | None:
        """Whole batches from the one that has ``offset`` on, all of them below ``upper``; None if there is none.

        At most ``max_bytes``, but with ``min_one`` the first batch whatever its size. Never crosses a segment.
        ApiError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}",
            )
        upper = min(upper, self.log_end_offset)
        if offset >= upper:
            return None
        try:
            return self._segments.read(
                offset, max_bytes, upper, min_one=min_one, log_end_offset=self.log_end_offset
            )
        except OSError as error:
            raise self._storage_error(error) from error

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """Every whole batch from the one that has ``offset`` on (blocking): for internal topics and tools."""
        return self._segments.batches_from(offset)

    # -- look-ups ---------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than ``timestamp_ms``."""
        for segment in self._segments:
            if segment.size and segment.max_timestamp >= timestamp_ms:
                found = segment.records_from_timestamp(timestamp_ms, self.log_start_offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that has the largest timestamp."""
        written = [segment for segment in self._segments if segment.size and segment.max_timestamp >= 0]
        if not written:
            return None
        segment = max(written, key=lambda each: (each.max_timestamp, -each.base_offset))
        for position, header in segment.headers_from(segment.max_timestamp_offset):
            for record in read_records(segment.read(position, header.size)):
                if record.timestamp == header.max_timestamp:
                    return record.timestamp, record.offset, header.partition_leader_epoch
            break
        return None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of the log at most ``epoch`` and the offset after it; (-1, -1) when unknown (KIP-101)."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # -- removing ---------------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Retention by time and by size, and what lies before ``log_start_offset``: how many segments went.

        Their files are renamed only; :meth:`remove_deleted_files` unlinks them. Nothing at or above the high
        watermark goes. When the active segment has to go, the log rolls first.
        """
        if self.offline is not None:
            return 0
        limit = self.log_end_offset if high_watermark is None else min(high_watermark, self.log_end_offset)
        config = self.config
        count = 0
        surplus = self.size - config.retention_bytes if config.retention_bytes >= 0 else -1
        for segment in self._segments:
            active = segment is self._segments.active
            end = self._segments.end_of(segment, self.log_end_offset)
            if end > limit or (active and not segment.size):
                break
            expired = not active and end <= self.log_start_offset
            if config.deletes and not expired:
                expired = surplus >= segment.size
                expired = expired or 0 <= config.retention_ms < now_ms - segment.retention_timestamp()
            if not expired:
                break
            surplus -= segment.size
            count += 1
        if count == len(self._segments):
            self.roll(now_ms=now_ms)
        self._drop_first(count)
        return count

    def _drop_first(self, count: int) -> None:
        if count:
            self._segments.set_aside(0, count)
            self._move_start(self._segments.first_offset)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._save_epochs()
        self.flushed_offset = max(self.flushed_offset, self.log_start_offset)

    def remove_deleted_files(self) -> None:
        """Unlink what retention and compaction put aside. Blocking, in any thread."""
        self._segments.remove_deleted_files()

    def delete_records_before(self, offset: int) -> int:
        """Move the start of the log to ``offset`` (the caller has checked the high watermark); the new start."""
        if not 0 <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within 0 and {self.log_end_offset}"
            )
        self._move_start(offset)
        self._drop_first(self._segments.index_of(self.log_start_offset))
        return self.log_start_offset

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> None:
        """Drop everything from ``offset`` on; a batch that has ``offset`` inside goes as a whole. Blocking."""
        if offset >= self.log_end_offset:
            return
        segments = self._segments
        with self._flush_lock:
            end = offset
            segments.set_aside(segments.index_of(offset) + (offset >= segments.first_offset), len(segments))
            if not segments:
                segments.create(offset, now_ms, self.config.index_interval_bytes)
            else:
                found = next(segments.active.headers_from(offset), None)
                if found is not None:
                    position, header = found
                    end = min(offset, header.base_offset)
                    segments.active.truncate(position)
                # It may have been closed long ago; now it grows again, and its indexes with it.
                recovery.check_tail(segments.active, from_offset=end - 1, checksums=False)
            segments.remove_deleted_files()
            segments.changed()
            self.log_end_offset = end
            self.log_start_offset = min(self.log_start_offset, end)
            self.flushed_offset = min(self.flushed_offset, end)
            self.first_dirty_offset = min(self.first_dirty_offset, end)
            snapshots = recovery.tidy(segments.path).snapshots
            self.producers = recovery.restore_producers(segments, snapshots, end, now_ms)
            self.epochs.truncate_from_end(end)
            self._save_epochs()

    def start_anew(self, offset: int, *, now_ms: int = 0) -> None:
        """Drop everything and go on at ``offset``, behind the end. Blocking."""
        segments = self._segments
        with self._flush_lock:
            segments.set_aside(0, len(segments))
            segments.create(offset, now_ms, self.config.index_interval_bytes)
            segments.remove_deleted_files()
            self.log_start_offset = self.log_end_offset = offset
            self.flushed_offset = self.first_dirty_offset = offset
            self.producers = Producers()
            self.epochs.truncate_from_end(0)
            self._save_epochs()

    # -- durability -------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """fsync what is not on disk yet; the offset before which everything is. Blocking, in any thread.

        Appends may go on meanwhile: what they add is the next flush's. One fsync serves everybody who waits for it.
        """
        if self.offline is not None:
            raise self._storage_error(self.offline)
        with self._flush_lock:
            end = self.log_end_offset  # whatever comes later is not promised
            if end <= self.flushed_offset:
                return self.flushed_offset
            segments = self._segments.from_offset(self.flushed_offset)
            try:
                for segment in segments:
                    self._sync_segment(segment)
                self.epochs.sync()
            except OSError as error:
                self.offline = error
                raise self._storage_error(error) from error
            self.flushed_offset = max(self.flushed_offset, end)
            return self.flushed_offset

    def _sync_segment(self, segment: Segment) -> None:
        try:
            segment.sync()
        except FileNotFoundError:
            if not segment.deleted:  # else retention was faster
                raise
        if not segment.synced:
            fsync_directory(self._segments.path)
            segment.synced = True

    def close(self, clean: bool = True, *, sync: bool = False) -> None:
        """Write out what a restart reads (with ``sync`` durably) and let go of all files."""
        if clean and self.offline is None:
            if sync:
                self.flush()
            with self._flush_lock:
                self._segments.active.finish()
                self.producers.save(self._snapshot_path(self.log_end_offset))
                self._save_epochs()
        self._segments.release()
        self.remove_deleted_files()

    def move(self, directory: Path) -> None:
        """Rename the folder; reads that are going on keep their files."""
        with self._flush_lock:
            self._segments.move(str(directory))
            self.epochs.path = f"{directory}/{epochs.FILE_NAME}"

    def delete(self) -> None:
        """Remove the folder and everything in it (blocking)."""
        with self._flush_lock:
            for segment in self._segments:
                segment.deleted = True
            self._segments.release()
            shutil.rmtree(self._segments.path)

    def _storage_error(self, error: OSError) -> ApiError:
        reason = error.strerror or str(error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._segments.path}: {reason}")
