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
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import ApiError, ErrorCode
from . import admission, recovery
from .batch import PLACEMENT, BatchHeader, read_records, validate
from .config import LogConfig as LogConfig  # named here for callers, as FileSlice
from .epochs import LeaderEpochs
from .files import FileCache, fsync_directory
from .files import FileSlice as FileSlice
from .producers import Producers
from .segment import IndexMismatchError, Segment, TornWriteError

logger = logging.getLogger(__name__)

_HINTS = 64  # readers whose next position is remembered, a log


@dataclass(frozen=True, slots=True)
class AppendInfo:
    first_offset: int
    last_offset: int
    log_append_time: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int
    duplicate: bool = (
        False  # an idempotent producer's retry: nothing was written, the offsets are the first time's
    )


class Log:
    __slots__ = (
        "_bases",
        "_closed_bytes",
        "_deleted",
        "_files",
        "_flush_lock",
        "_hints",
        "_path",
        "_segments",
        "config",
        "epochs",
        "flushed_offset",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "producers",
    )

    def __init__(self, directory: Path, config: LogConfig, files: FileCache) -> None:
        """Use :meth:`open`."""
        self._path = str(directory)
        self._files = files
        self._segments: list[Segment] = []
        self._bases: list[int] = []  # of the segments, for bisect
        self._closed_bytes = 0  # of all segments but the last
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset a reader will ask for next -> where it is
        self._deleted: list[str] = []
        self._flush_lock = threading.Lock()
        self.config = config
        self.epochs = LeaderEpochs(directory)
        self.producers = Producers()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
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
        log = cls(directory, config, files or FileCache())
        log._load(
            from_offset=None if clean else recovery_point,
            log_start_offset=log_start_offset,
            page_cache_kept=page_cache_kept,
            now_ms=int(time.time() * 1000) if now_ms is None else now_ms,
        )
        log.flushed_offset = min(max(recovery_point, log.log_start_offset), log.log_end_offset)
        return log

    def _load(
        self, *, from_offset: int | None, log_start_offset: int, page_cache_kept: bool, now_ms: int
    ) -> None:
        path, interval = self._path, self.config.index_interval_bytes
        folder = recovery.tidy(path)
        for base in sorted(folder.logs):
            self._add_segment(
                Segment(
                    self._files,
                    path,
                    base,
                    size=folder.logs[base],
                    created_ms=now_ms,
                    index_interval_bytes=interval,
                )
            )
        if not self._segments:
            self._add_segment(self._new_segment(log_start_offset, now_ms))
        first_checked = len(self._segments) - 1
        checksums = from_offset is not None
        if from_offset is None or page_cache_kept:
            from_offset = 2**62
        else:
            first_checked = max(0, bisect_right(self._bases, from_offset) - 1)
        for segment in self._segments[:first_checked]:
            if recovery.needs_new_indexes(folder, segment.base_offset):
                segment.rebuild_indexes()
                segment.unload()
        for index in range(first_checked, len(self._segments)):
            segment = self._segments[index]
            fresh = recovery.needs_new_indexes(folder, segment.base_offset)
            self.log_end_offset, whole = recovery.check_tail(
                segment, from_offset=0 if fresh else from_offset, checksums=checksums
            )
            if not whole:
                logger.warning(
                    "%s: cut at offset %d, byte %d: no valid batch follows",
                    segment.path(),
                    self.log_end_offset,
                    segment.size,
                )
                for later in self._segments[index + 1 :]:
                    logger.warning("%s: dropped, it is behind the cut", later.path())
                    self._unlink(later)
                del self._segments[index + 1 :], self._bases[index + 1 :]
                self._closed_bytes = sum(each.size for each in self._segments[:-1])
                break
            if index < len(self._segments) - 1:
                segment.finish()
        self.log_start_offset = min(max(log_start_offset, self._bases[0]), self.log_end_offset)
        self._restore_producers(folder.snapshots, now_ms)
        self._restore_epochs(from_offset)
        for segment in self._segments:
            segment.unload()

    def _restore_producers(self, snapshots: Sequence[int], now_ms: int) -> None:
        """As of ``log_end_offset``: the newest snapshot, and the batches behind it."""
        self.producers, known = recovery.restore_producers(self._path, list(snapshots), self.log_end_offset)
        keep = {known, *self._bases}
        for offset in snapshots:
            if offset not in keep:
                recovery.unlink(self._snapshot_path(offset))
        if known < self.log_end_offset:
            for header in self._headers_from(max(known, self._bases[0])):
                if header.producer_id >= 0:
                    self.producers.update(header, now_ms)

    def _restore_epochs(self, from_offset: int) -> None:
        """The checkpoint's epochs, and those of the batches that it may not know of."""
        if not self.epochs.load():
            from_offset = 0
        self.epochs.truncate_from_end(self.log_end_offset)
        if from_offset < self.log_end_offset:
            for header in self._headers_from(max(from_offset, self._bases[0])):
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._save_epochs()

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return Path(self._path)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._closed_bytes + self._segments[-1].size

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.flushed_offset

    @property
    def unflushed_bytes(self) -> int:
        """At most this much would have to be written by :meth:`flush`."""
        if self.flushed_offset >= self.log_end_offset:
            return 0
        return sum(segment.size for segment in self._segments[self._index_of(self.flushed_offset) :])

    # -- appending --------------------------------------------------------------------------------------------

    def append(
        self, batches: bytes | bytearray | memoryview, *, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Validate a producer's batches, give them offsets (in place, if the buffer can be written) and write them.

        ApiError: what ``batch.validate``, ``admission.admit`` and ``Producers.check`` raise; RECORD_LIST_TOO_LARGE
        when they exceed segment.bytes; KAFKA_STORAGE_ERROR. After an error the log is as before.
        """
        config = self.config
        view = memoryview(batches)
        if view.readonly:
            view = memoryview(bytearray(view))
        headers = validate(view, config.max_message_bytes)
        view, headers = admission.admit(view, headers, config, now_ms)
        repeated = self.producers.check(headers)
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        if repeated is not None:
            return AppendInfo(
                repeated.first_offset,
                repeated.last_offset,
                repeated.timestamp if append_time >= 0 else -1,
                self.log_start_offset,
                duplicate=True,
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
            segment = self._segments[-1]
            if self._must_roll(segment, len(data), headers, now_ms):
                self.roll(headers[0].base_offset, now_ms=now_ms)
                segment = self._segments[-1]
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
                self.epochs.save(sync=False)
            except OSError as error:  # stays dirty; flush and close try again, recovery can do without
                logger.warning("%s: cannot write its leader epochs: %s", self._path, error)

    def _must_roll(self, segment: Segment, size: int, headers: Sequence[BatchHeader], now_ms: int) -> bool:
        if not segment.size:
            return not segment.has_room_for(headers[-1].last_offset)
        config = self.config
        if segment.size + size > config.segment_bytes or not segment.has_room_for(headers[-1].last_offset):
            return True
        start = segment.rolling_timestamp()
        age = now_ms - segment.created_ms
        if start >= 0:  # as Kafka: counted in the time of the records
            age = max(header.max_timestamp for header in headers) - start
        return age > config.segment_ms or segment.is_index_full(config.index_size_max_bytes)

    def roll(self, base_offset: int | None = None, *, now_ms: int = 0) -> None:
        """End the active segment and start the next one. OSError leaves the log as it was."""
        base_offset = self.log_end_offset if base_offset is None else base_offset
        active = self._segments[-1]
        if base_offset == active.base_offset:
            return
        active.finish()
        self.producers.save(self._snapshot_path(base_offset))
        segment = self._new_segment(base_offset, now_ms)
        self._closed_bytes += active.size
        self._segments.append(segment)
        self._bases.append(base_offset)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll an active segment that nobody appended to for segment.ms, so that retention and compaction see it."""
        active = self._segments[-1]
        if active.size and now_ms - active.created_ms > self.config.segment_ms and self.offline is None:
            self.roll(now_ms=now_ms)
            self._segments[-1].created_ms = now_ms

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        segment = Segment(
            self._files,
            self._path,
            base_offset,
            created_ms=now_ms,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        segment.create()
        return segment

    def _add_segment(self, segment: Segment) -> None:
        if self._segments:
            self._closed_bytes += self._segments[-1].size
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._path}/{offset:020d}.snapshot"

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
            return self._read(offset, max_bytes, upper, min_one)
        except OSError as error:
            raise self._storage_error(error) from error

    def _read(self, offset: int, max_bytes: int, upper: int, min_one: bool) -> FileSlice | None:
        found = self._locate(offset)
        if found is None:
            return None
        segment, position = found
        limit = position + max_bytes
        end_offset = self._end_of(segment)
        if segment.size <= limit and upper >= end_offset:
            end = segment.size
            next_offset: int | None = end_offset
        else:
            try:
                end, next_offset = segment.boundary(position, limit, upper)
            except IndexMismatchError:
                segment.rebuild_indexes()
                end, next_offset = segment.boundary(position, limit, upper)
            if next_offset is None:
                first = segment.header_at(position)
                if not min_one or first is None or first.last_offset >= upper:
                    return None
                end, next_offset = position + first.size, first.next_offset
        if next_offset is not None:
            hints = self._hints
            hints[next_offset] = (segment, end)
            if len(hints) > _HINTS:
                del hints[next(iter(hints))]
        return segment.slice(position, end)

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """Segment and position of the first batch that has ``offset`` or a later one."""
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            return hint
        for segment in self._segments[self._index_of(offset) :]:
            found = next(segment.headers_from(offset), None)
            if found is not None:
                return segment, found[0]
        return None

    def _index_of(self, offset: int) -> int:
        return max(0, bisect_right(self._bases, offset) - 1)

    def _end_of(self, segment: Segment) -> int:
        if segment is self._segments[-1]:
            return self.log_end_offset
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    def _headers_from(self, offset: int) -> Iterator[BatchHeader]:
        for segment in self._segments[self._index_of(offset) :]:
            for _, header in segment.headers_from(offset):
                yield header

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """Every whole batch from the one that has ``offset`` on (blocking): for internal topics and tools."""
        for segment in list(self._segments[self._index_of(offset) :]):
            for position, header in segment.headers_from(offset):
                yield segment.read(position, header.size)

    # -- look-ups ---------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than ``timestamp_ms``."""
        for segment in list(self._segments):
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
        watermark goes.
        """
        if self.offline is not None:
            return 0
        limit = self.log_end_offset if high_watermark is None else min(high_watermark, self.log_end_offset)
        config = self.config
        count = 0
        last = len(self._segments) - 1
        surplus = self.size - config.retention_bytes if config.retention_bytes >= 0 else -1
        for index, segment in enumerate(self._segments):
            end = self._bases[index + 1] if index < last else self.log_end_offset
            if end > limit or (not segment.size and index == last):
                break
            expired = False
            if config.deletes:
                expired = 0 <= config.retention_ms < now_ms - segment.retention_timestamp()
                expired = expired or surplus >= segment.size
            if not expired and not (index < last and end <= self.log_start_offset):
                break
            surplus -= segment.size
            count += 1
        if not count:
            return 0
        if count > last:
            self.roll(now_ms=now_ms)
        self._drop_first(count)
        return count

    def _drop_first(self, count: int) -> None:
        for segment in self._segments[:count]:
            self._set_aside(segment)
        self._closed_bytes -= sum(segment.size for segment in self._segments[:count])
        del self._segments[:count], self._bases[:count]
        self._move_start(self._bases[0])

    def _move_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
        self.epochs.truncate_from_start(self.log_start_offset)
        self._save_epochs()
        self.flushed_offset = max(self.flushed_offset, self.log_start_offset)

    def _set_aside(self, segment: Segment) -> None:
        segment.deleted = True
        segment.release()
        self._hints.clear()
        for suffix in (".log", ".index", ".timeindex", ".snapshot"):
            path = segment.path(suffix)
            try:
                os.rename(path, path + ".deleted")
            except FileNotFoundError:
                continue
            self._deleted.append(path + ".deleted")

    def remove_deleted_files(self) -> None:
        """Unlink what retention and compaction put aside. Blocking, in any thread."""
        while self._deleted:
            recovery.unlink(self._deleted.pop())

    def delete_records_before(self, offset: int) -> int:
        """Move the start of the log to ``offset`` (the caller has checked the high watermark); the new start."""
        if offset > self.log_end_offset or offset < 0:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within 0 and {self.log_end_offset}"
            )
        self._move_start(offset)
        count = bisect_right(self._bases, self.log_start_offset) - 1
        if count > 0:
            self._drop_first(count)
        return self.log_start_offset

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> None:
        """Drop everything from ``offset`` on; a batch that has ``offset`` inside goes as a whole."""
        if offset >= self.log_end_offset:
            return
        with self._flush_lock:
            self._hints.clear()
            keep = bisect_right(self._bases, offset)
            for segment in self._segments[keep:]:
                self._set_aside(segment)
            del self._segments[keep:], self._bases[keep:]
            end = offset
            if not self._segments:
                self._closed_bytes = 0
                self._add_segment(self._new_segment(offset, now_ms))
                self.log_start_offset = min(self.log_start_offset, offset)
            else:
                segment = self._segments[-1]
                found = next(segment.headers_from(offset), None)
                if found is not None:
                    end = min(offset, found[1].base_offset)
                    segment.truncate(found[0])
                    recovery.check_tail(segment, from_offset=end - 1, checksums=False)
                self._closed_bytes = sum(each.size for each in self._segments[:-1])
            self.log_end_offset = end
            self.log_start_offset = min(self.log_start_offset, end)
            self.flushed_offset = min(self.flushed_offset, end)
            snapshots = recovery.tidy(self._path).snapshots
            self._deleted.clear()
            self._restore_producers(snapshots, now_ms)
            self.epochs.truncate_from_end(end)
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
            segments = self._segments[self._index_of(self.flushed_offset) :]
            try:
                for segment in segments:
                    self._sync_segment(segment)
                if self.epochs.unsynced:
                    self.epochs.save(sync=True)
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
            fsync_directory(self._path)
            segment.synced = True

    def close(self, clean: bool = True, *, sync: bool = False) -> None:
        """Write out what a restart reads (with ``sync`` durably) and let go of all files."""
        if clean and self.offline is None:
            if sync:
                self.flush()
            with self._flush_lock:
                self._segments[-1].finish()
                self.producers.save(self._snapshot_path(self.log_end_offset))
                self._save_epochs()
        for segment in self._segments:
            segment.release()
        self.remove_deleted_files()

    def move(self, directory: Path) -> None:
        """Rename the folder; reads that are going on keep their files."""
        with self._flush_lock:
            for segment in self._segments:
                segment.release()
            os.rename(self._path, directory)
            self._path = str(directory)
            for segment in self._segments:
                segment.move(self._path)

    def delete(self) -> None:
        """Remove the folder and everything in it (blocking)."""
        with self._flush_lock:
            for segment in self._segments:
                segment.deleted = True
                segment.release()
            for name in os.listdir(self._path):
                os.unlink(f"{self._path}/{name}")
            os.rmdir(self._path)

    def _unlink(self, segment: Segment) -> None:
        segment.release()
        for suffix in (".log", ".index", ".timeindex", ".snapshot"):
            recovery.unlink(segment.path(suffix))

    def _storage_error(self, error: OSError) -> ApiError:
        reason = error.strerror or str(error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path}: {reason}")
