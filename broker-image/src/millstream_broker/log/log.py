"""The log of one partition: a folder of segments, in Kafka's format, that grows at its end.

Offsets: ``log_start_offset`` ≤ every readable record < ``log_end_offset``. All records before
``flushed_offset`` (Kafka's recovery point) are on disk. The partition keeps the high watermark; methods that
need it take it.

Threads: the event loop's thread owns a log and may call every method; calls wait for nothing but the disk.
Run these in another thread, as they may take long: :meth:`flush`, :meth:`flush_closed`,
:meth:`remove_deleted_files`, look-ups by time, and opening. One lock separates flush from truncation, close
and delete, which change what flush reads; appending takes no lock.

A write that does not fit the disk leaves the log as it was and raises KAFKA_STORAGE_ERROR; the next append may
succeed. After any other failure the log is ``offline`` (see ``state``). If a part of a write cannot be removed, appends
raise NOT_ENOUGH_REPLICAS_AFTER_APPEND: the next start may find whole batches in it.

A log belongs to a topic id, as does everything stored beside it (see ``checkpoints``).
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

from millstream_kafka.appendable import HeaderRefusedError
from millstream_kafka.batch import INT32_MAX, PLACEMENT, BatchHeader
from millstream_kafka.control_batch import read_marker
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import (
    epochs,
    recovery,
    retention,
    summaries,
    transactions,
    truncation,
    validator,
)
from .append_info import AppendInfo
from .append_origin import CLIENT, ENDS, MARKERS, MIRROR, AppendOrigin
from .config import LogConfig
from .files import FileCache
from .ordinary_append import append_ordinary
from .readable_log import ReadableLog
from .state import Home
from .summaries import Summary
from .transactions import EndedTransaction
from .validator import Validated

logger = logging.getLogger(__name__)

SAVED_AT_ONCE = 100
"""Most producers whose snapshot a roll writes at once; with more, the flushing thread writes it."""


class Log(ReadableLog):
    __slots__ = ()

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
        home: Home | None = None,
        now_ms: int | None = None,
        topic_id: uuid.UUID | None = None,
        summary: Summary | None = None,
        lost_aborted: Collection[int] = (),
    ) -> Log:
        """Open the log in ``directory``, or create it. Blocking, in any thread. Raises OSError.

        ``clean``: the last process closed the log, so no batch needs verification.
        ``page_cache_kept``: the machine has not restarted since the last write, so no completed write is
        lost. Recovery then verifies only batches after the last index entry, otherwise all from
        ``recovery_point`` on.
        ``summary``: from a clean stop; the caller has checked that it still matches the folder
        (`Summary.is_of`).
        ``lost_aborted``: segments whose transaction index has lost something since the last process closed the log.
        """
        files = FileCache() if files is None else files
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        loaded = None
        if summary is not None and summary.start >= log_start_offset:
            loaded = summaries.reopen(str(directory), files, config, summary, now_ms=now_ms)
        is_reopened = loaded is not None
        if loaded is None:
            if not os.path.isdir(directory):
                directory.mkdir(parents=True, exist_ok=True)
            loaded = recovery.load(
                str(directory),
                files,
                config,
                from_offset=None if clean else recovery.NOWHERE if page_cache_kept else recovery_point,
                log_start_offset=log_start_offset,
                now_ms=now_ms,
                lost_aborted=lost_aborted,
            )
        log = cls(config, *loaded, recovery_point=recovery_point, home=home, topic_id=topic_id)
        if is_reopened:
            log.closed_at = log.log_end_offset
        log._save_epochs()
        log._rolled()
        return log

    def reconfigure(self, config: LogConfig) -> None:
        """Use ``config`` from now on. A larger limit of decompressed records may make the log cleanable again."""
        if config.max_decompressed_message_bytes > self.config.max_decompressed_message_bytes:
            self.uncleanable = False
        self.config = config

    # -- appending --------------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytes | bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = CLIENT,
    ) -> AppendInfo:
        """Validate a client's or a coordinator's batches, assign offsets (in place if possible), and write them.

        Raises ApiError: those of ``validator.validate``, ``ProducerStateManager.check`` and ``check_marker``;
        RECORD_LIST_TOO_LARGE if the batches exceed segment.bytes; KAFKA_STORAGE_ERROR. An error leaves the
        log unchanged.
        """
        if (ordinary := append_ordinary(self, batches, leader_epoch, now_ms)) is not None:
            return ordinary
        validated = validator.validate(batches, self.config, now_ms, where=self.segments.path, origin=origin)
        return self.append_validated(validated, leader_epoch=leader_epoch, now_ms=now_ms)

    def validate(self, batches: bytearray, *, now_ms: int, origin: AppendOrigin = CLIENT) -> Validated:
        """The first half of :meth:`append`, with the present configuration. In any thread.

        An error names the invalid records, even if the header alone is reason to refuse the batch.
        """
        config = self.config
        try:
            return validator.validate(batches, config, now_ms, where=self.segments.path, origin=origin)
        except HeaderRefusedError:
            pass
        return validator.validate(batches, config, now_ms, where=self.segments.path, read=True, origin=origin)

    def append_validated(self, validated: Validated, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """The second half of :meth:`append`, for those of :meth:`validate`; or write a mirror's batches unchanged."""
        view, headers, append_time, origin = validated
        if origin is MIRROR:
            if self.offline is not None or self.truncating:
                raise self._refusal()
            return self._append_unchanged(validated, now_ms)
        if self.offline is not None or self.truncating:
            # before sequences, because earlier refused batches are missing from them
            raise self.unless_torn(self._refusal())
        if origin in MARKERS:
            self._check_marker(view, headers[0], origin)
            repeated = None
        else:
            repeated = self.producers.check(headers, origin)
        if repeated is not None:
            return AppendInfo(
                repeated.first_offset,
                repeated.last_offset,
                repeated.timestamp,
                self.log_start_offset,
                duplicate=True,
            )
        if len(view) > self.config.segment_bytes and origin not in ENDS:
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
            placed.append(tuple.__new__(BatchHeader, (offset, length, leader_epoch, *header[3:])))
            offset += header.last_offset_delta + 1
            position += length + 12
        if offset - first > INT32_MAX:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{offset - first} records: a segment has at most {INT32_MAX}",
            )
        self._write(view, placed, now_ms)
        return AppendInfo(first, offset - 1, append_time, self.log_start_offset)

    def _check_marker(self, batch: memoryview, header: BatchHeader, origin: AppendOrigin) -> None:
        marker = read_marker(batch)
        assert marker is not None
        self.producers.check_marker(header, marker, origin)

    def starts_within(self, batches: memoryview) -> bool:
        """Whether a leader's batches restart this empty log before its end, which blocks."""
        is_empty = self.log_start_offset == self.log_end_offset
        return is_empty and int.from_bytes(batches[:8], "big", signed=True) < self.log_end_offset

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int) -> AppendInfo:
        """Write a leader's batches with their offsets and epochs; they begin at or after the end of the log.

        If an empty log ends inside the first batch, it restarts at that batch's base offset, as in Kafka.
        """
        view = memoryview(batches)
        self.check_online()
        is_empty = self.log_start_offset == self.log_end_offset
        validated = validator.validate_copied(view, self.log_end_offset, is_empty)
        if (first := validated[1][0].base_offset) < self.log_end_offset:
            self.truncate_fully_and_start_at(first, now_ms=now_ms)
        return self._append_unchanged(validated, now_ms)

    def _append_unchanged(self, validated: Validated, now_ms: int) -> AppendInfo:
        """Write batches that have their offsets and epochs: those of another log."""
        batches, headers, *_ = validated
        self._write(batches, headers, now_ms)
        return AppendInfo(headers[0].base_offset, headers[-1].last_offset, -1, self.log_start_offset)

    def skip_to(self, offset: int, *, now_ms: int) -> None:
        """Move the end, and the start, forward to ``offset``; the offsets between stay empty.

        Raises ApiError KAFKA_STORAGE_ERROR; the log is unchanged then.
        """
        self.check_online()
        try:
            self.roll(offset, now_ms=now_ms)
        except OSError as error:
            raise self.failed(error) from error
        self.log_end_offset = offset
        self.delete_records_before(offset)

    def _write(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        last = headers[-1]
        markers = transactions.markers_of(data, headers)
        try:
            segment = self.segments.active
            if retention.must_roll(segment, self.config, len(data), headers, now_ms):
                self.roll(headers[0].base_offset, now_ms=now_ms)
                segment = self.segments.active
            segment.append(data, headers)
        except OSError as error:
            raise self.write_failed(error) from error
        self.log_end_offset = last.next_offset
        if last.partition_leader_epoch > self.epochs.latest:
            for header in headers:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            self._save_epochs()
        for header in headers:
            if header.producer_id >= 0:
                ended = self.producers.update(header, now_ms, markers.get(header.base_offset))
                if ended is not None:
                    self._note_aborted(ended)

    def _note_aborted(self, ended: EndedTransaction) -> None:
        """Keep an aborted transaction for readers of committed records."""
        base = self.segments.active.base_offset
        try:
            self.segments.aborted.add(base, ended)
            self.segments.aborted.spill(base)
        except OSError as error:  # written with the next, or by a roll; recovery restores it
            logger.warning("%s: cannot write its aborted transactions: %s", self.segments.path, error)
            self.failed(error)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` at the end of the log: this broker leads now.

        Does nothing in a mirror's replica, which keeps its source's epochs. Its leaders have higher ones.
        """
        if self.config.mirror_source:
            return
        self.epochs.assign(epoch, self.log_end_offset)
        self._save_epochs()

    def roll(self, base_offset: int | None = None, *, now_ms: int) -> None:
        """End the active segment and start the next one. OSError leaves the log as it was."""
        base_offset = self.log_end_offset if base_offset is None else base_offset
        active = self.segments.active
        if base_offset == active.base_offset:
            return
        active.finish()
        self.segments.aborted.spill(active.base_offset)  # a snapshot of the producers is as of here
        at_once = self._home is None or len(self.producers.by_id) <= SAVED_AT_ONCE
        if at_once:
            self.producers.save(recovery.snapshot_path(self.segments.path, base_offset))
        self.segments.create(base_offset, now_ms, self.config.index_interval_bytes)
        if not at_once:
            self.durability.keep(base_offset, self.producers)
        self._rolled()

    def _rolled(self) -> None:
        """Schedule :meth:`flush_closed` if it has work."""
        if self._home is not None and self.durability.is_behind:
            self._home.rolled.add(self)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll an active segment older than segment.ms, so that retention and compaction reach it."""
        active = self.segments.active
        if self.offline is not None or self.truncating:
            return
        if active.size and now_ms - active.created_ms > self.config.segment_ms:
            self.roll(now_ms=now_ms)
            self.segments.active.created_ms = now_ms

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms - self.config.producer_id_expiration_ms)

    # -- removing ---------------------------------------------------------------------------------------------

    def delete_old_segments(
        self, now_ms: int, high_watermark: int | None = None, *, at_most: int = 1 << 30
    ) -> int:
        """Apply retention by time, size and ``log_start_offset``; returns the number of segments removed.

        This only renames files; :meth:`remove_deleted_files` unlinks them. Records at or above the high
        watermark stay. The log rolls first if retention removes the active segment. Raises OSError.
        """
        if self.offline is not None or self.truncating:
            return 0
        limit = self.log_end_offset if high_watermark is None else min(high_watermark, self.log_end_offset)
        count = retention.count_expired(
            self.segments,
            self.config,
            now_ms,
            start=self.log_start_offset,
            end=self.log_end_offset,
            limit=limit,
            at_most=at_most,
        )
        if count == len(self.segments):
            self.roll(now_ms=now_ms)
        return self._drop_first(count)

    def _drop_first(self, count: int) -> int:
        """Remove up to ``count`` segments, none before an unwritten producer snapshot; returns how many."""
        while count and self.segments[count].base_offset >= self.durability.unsaved_from:
            count -= 1
        if count:
            self.segments.set_aside(0, count)
            self._move_start(self.segments.first_offset)
        return count

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._save_epochs()
        self.durability.offset = max(self.flushed_offset, self.log_start_offset)

    def remove_deleted_files(self) -> None:
        """Unlink the files that retention and compaction set aside. Blocking, in any thread."""
        self.segments.remove_deleted_files()

    def delete_records_before(self, offset: int) -> int:
        """Move the start to ``offset``; returns the new start. The caller checks the high watermark.

        It is durable after `Home.commit_starts` (`durable_start`).
        """
        if not 0 <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within 0 and {self.log_end_offset}"
            )
        self._move_start(offset)
        try:
            self._drop_first(self.segments.index_of(self.log_start_offset))
        except OSError as error:
            raise self.failed(error) from error
        self.keep_start()
        return self.log_start_offset

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Remove all batches that end after ``offset``, even one that begins before it. Blocking.

        An epoch that begins there without records goes, too: a follower would report it to the leader for
        ever. Raises ApiError KAFKA_STORAGE_ERROR: the log is unchanged or offline then.
        """
        try:
            truncation.truncate_to(self, offset, now_ms)
        except OSError as error:
            raise self.failed(error) from error

    def is_within_batch(self, offset: int) -> bool:
        """Whether the offset is inside a batch, not at its start. Raises ApiError KAFKA_STORAGE_ERROR."""
        if offset >= self.log_end_offset:
            return False
        try:
            found = next(self.segments.headers_from(offset), None)
        except OSError as error:
            raise self.failed(error) from error
        return found is not None and found.base_offset < offset

    def truncate_led(self, offset: int, *, now_ms: int) -> None:
        """Truncate a leader's log as :meth:`truncate_to` does, and sync it to disk. Blocking.

        The log continues in a new file: a response still being sent from the old end finds its file shorter,
        but never other records.
        """
        self.truncate_to(offset, now_ms=now_ms)
        try:
            self.segments.active.sync()
            self.roll(now_ms=now_ms)
        except OSError as error:
            raise self.failed(error) from error

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove all records and producer snapshots, and continue at ``offset``. Blocking.

        Raises ApiError KAFKA_STORAGE_ERROR: the log is unchanged or offline then.
        """
        try:
            truncation.truncate_fully_and_start_at(self, offset, now_ms)
        except OSError as error:
            raise self.failed(error) from error

    # -- durability -------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """fsync the log; returns the offset before which all records are on disk. Blocking, in any thread.

        Appends may continue meanwhile; the next flush covers them. One fsync serves all waiting callers.
        """
        self.check_online()
        with self.durability.lock:
            try:
                self.durability.flush(self.log_end_offset)  # later records are not covered
            except OSError as error:
                raise self.failed(error) from error
            return self.flushed_offset

    def flush_closed(self) -> bool:
        """fsync some rolled segments; returns whether more remain. Blocking, in any thread.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        self.check_online()
        try:
            return self.durability.flush_closed()
        except OSError as error:
            raise self.failed(error) from error

    def close(self, clean: bool = True) -> None:
        """Write what the next start reads, and release all files. Raises OSError."""
        if clean and self.offline is None:
            self.segments.active.finish()
            self.segments.aborted.spill(self.segments.active.base_offset)
            end, bases = self.log_end_offset, {segment.base_offset for segment in self.segments}
            if self.closed_at != end or self.segments.truncations:
                self.durability.keep(end, self.producers)
                self.durability.save_producers()
            if self.closed_at >= 0 and self.closed_at not in {end, *bases}:
                recovery.unlink(recovery.snapshot_path(self.segments.path, self.closed_at))
            with self.durability.lock:
                if self.epochs.dirty:
                    self.epochs.save()
        self.segments.release()
        self.remove_deleted_files()

    def move(self, directory: Path) -> None:
        """Rename the folder of a deleted log; reads in progress keep their files. Raises OSError."""
        self.give_up()
        with self.durability.lock:
            self.durability.forget_producers()
            self.segments.move(str(directory))
            self.epochs.path = f"{directory}/{epochs.FILE_NAME}"

    def delete(self) -> None:
        """Remove the folder and all its files. Blocking."""
        self.give_up()
        with self.durability.lock:
            self.durability.forget_producers()
            self.segments.release()
            shutil.rmtree(self.segments.path)
