"""The log of one partition: a folder of segments, in Kafka's format, that grows at its end.

Offsets: ``log_start_offset`` ≤ every readable record < ``log_end_offset``. ``flushed_offset`` (Kafka's recovery point)
is how far fsync has come. The high watermark is the partition's business; methods that must respect it take it.

Threads. The loop's thread owns a log and may call everything; calls only wait for the disk. These may, and should, run
in another thread at the same time, as they may take long: :meth:`flush`, :meth:`flush_closed`,
:meth:`remove_deleted_files`, look-ups by time, and opening. One lock keeps flush apart from truncation, close and
delete, which change what flush reads; appending takes no lock.

A write that does not fit the disk leaves the log as it was and raises KAFKA_STORAGE_ERROR; the next append may
succeed. After any other failure the log is ``offline`` (see ``state``).

A log belongs to a topic id. So does everything stored beside it (see ``checkpoints``).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.batch import INT32_MAX, PLACEMENT, BatchHeader, HeaderRefusedError
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import epochs, recovery, retention, timestamps, truncation, validator
from .config import LogConfig
from .files import FileCache, FileSlice
from .segment import TornWriteError
from .snapshot import LogSnapshot
from .state import Home, LogState
from .validator import Admitted

SAVED_AT_ONCE = 100
"""Up to this many producers, the end of a segment writes their snapshot at once; for more, the flushing thread does."""


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int
    duplicate: bool = False
    """An idempotent producer's retry: nothing was written, the offsets are the first time's."""


class Log(LogState):
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
    ) -> Log:
        """Open (or create) the log in ``directory``. Blocking, in any thread. OSError.

        ``clean``: the last process closed it. Otherwise ``page_cache_kept`` says that the machine has not restarted
        since it was written: then every completed write is there, and only batches behind the last index entry are
        verified; else every batch behind ``recovery_point``.
        """
        directory.mkdir(parents=True, exist_ok=True)
        from_offset = None if clean else recovery.NOWHERE if page_cache_kept else recovery_point
        loaded = recovery.load(
            str(directory),
            FileCache() if files is None else files,
            config,
            from_offset=from_offset,
            log_start_offset=log_start_offset,
            now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        )
        log = cls(config, *loaded, recovery_point=recovery_point, home=home, topic_id=topic_id)
        log._save_epochs()
        log._rolled()
        return log

    # -- appending --------------------------------------------------------------------------------------------

    def append(
        self, batches: bytes | bytearray | memoryview, *, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Validate a producer's batches, give them offsets (in place, if the buffer can be written) and write them.

        ApiError: what ``validator.admit`` and ``ProducerStateManager.check`` raise; RECORD_LIST_TOO_LARGE
        when they exceed segment.bytes; KAFKA_STORAGE_ERROR. After an error the log is as before.
        """
        admitted = validator.admit(batches, self.config, now_ms, where=self.segments.path)
        return self.append_admitted(admitted, leader_epoch=leader_epoch, now_ms=now_ms)

    def admit(self, batches: bytearray, *, now_ms: int) -> Admitted:
        """The first half of :meth:`append`, by the configuration of this moment. In any thread.

        A refusal names the records, even if a header alone suffices to refuse them.
        """
        config = self.config
        try:
            return validator.admit(batches, config, now_ms, where=self.segments.path)
        except HeaderRefusedError:
            pass
        return validator.admit(batches, config, now_ms, where=self.segments.path, read=True)

    def append_admitted(self, admitted: Admitted, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """The second half of :meth:`append`, for batches that were admitted in a thread."""
        view, headers, append_time = admitted
        if self.offline is not None or self.truncating:
            raise self._refusal()  # before sequences: what was refused before this one is missing there
        repeated = self.producers.check(headers)
        if repeated is not None:
            return AppendInfo(
                repeated.first_offset,
                repeated.last_offset,
                repeated.timestamp,
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

    def starts_within(self, batches: memoryview) -> bool:
        """Whether appending a leader's batches restarts this empty log before its end, which blocks."""
        is_empty = self.log_start_offset == self.log_end_offset
        return is_empty and int.from_bytes(batches[:8], "big", signed=True) < self.log_end_offset

    def append_as_follower(self, batches: bytes | bytearray | memoryview, *, now_ms: int) -> AppendInfo:
        """Write batches as another log has them: offsets and epochs stay. Their offsets must not lie before the end.

        An empty log that was to start within the first batch starts where that begins, as in Kafka.
        """
        view = memoryview(batches)
        self.check_online()
        is_empty = self.log_start_offset == self.log_end_offset
        headers = validator.check_copied(view, self.log_end_offset, is_empty)
        if headers[0].base_offset < self.log_end_offset:
            self.start_anew(headers[0].base_offset, now_ms=now_ms)
        self._write(view, headers, now_ms)
        return AppendInfo(headers[0].base_offset, headers[-1].last_offset, -1, self.log_start_offset)

    def _write(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        last = headers[-1]
        try:
            segment = self.segments.active
            if retention.must_roll(segment, self.config, len(data), headers, now_ms):
                self.roll(headers[0].base_offset, now_ms=now_ms)
                segment = self.segments.active
            segment.append(data, headers)
        except OSError as error:
            if isinstance(error, TornWriteError):
                self.offline = error
            raise self.failed(error) from error
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

    def roll(self, base_offset: int | None = None, *, now_ms: int) -> None:
        """End the active segment and start the next one. OSError leaves the log as it was."""
        base_offset = self.log_end_offset if base_offset is None else base_offset
        active = self.segments.active
        if base_offset == active.base_offset:
            return
        active.finish()
        at_once = self._home is None or len(self.producers.by_id) <= SAVED_AT_ONCE
        if at_once:
            self.producers.save(recovery.snapshot_path(self.segments.path, base_offset))
        self.segments.create(base_offset, now_ms, self.config.index_interval_bytes)
        if not at_once:
            self.durability.keep(base_offset, self.producers)
        self._rolled()

    def _rolled(self) -> None:
        """Request a call of :meth:`flush_closed` soon, if it has something to do."""
        if self._home is not None and self.durability.is_behind:
            self._home.rolled.add(self)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll an active segment without appends for segment.ms, so that retention and compaction see it."""
        active = self.segments.active
        if self.offline is not None or self.truncating:
            return
        if active.size and now_ms - active.created_ms > self.config.segment_ms:
            self.roll(now_ms=now_ms)
            self.segments.active.created_ms = now_ms

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms - self.config.producer_id_expiration_ms)

    # -- reading ----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> FileSlice | None:
        """Whole batches from the one that has ``offset`` on, all of them below ``upper``; None if there is none.

        At most ``max_bytes``, but with ``min_one`` the first batch whatever its size. Never crosses a segment.
        ApiError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER while it is truncated.
        """
        if self.offline is not None or self.truncating:
            raise self._refusal()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}",
            )
        upper = min(upper, self.log_end_offset)
        if offset >= upper:
            return None
        try:
            return self.segments.read(
                offset, max_bytes, upper, min_one=min_one, log_end_offset=self.log_end_offset
            )
        except OSError as error:
            raise self.failed(error) from error

    def snapshot(self, offset: int) -> LogSnapshot:
        """The present log from the batch that has ``offset`` on, for readers in any thread. OSError.

        Later changes to the log, its deletion included, do not change what the snapshot reads.
        """
        return LogSnapshot(self.segments, offset, self.log_end_offset)

    def batches_from(self, offset: int) -> Iterator[bytes]:
        """Every whole batch of :meth:`snapshot`, which is taken at once; iterate in any thread (blocking)."""
        return self.snapshot(offset).batches()

    # -- look-ups ---------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the first record that is not older than ``timestamp_ms``.

        Blocking, in any thread. ApiError: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE; what a log that is deleted or
        truncated meanwhile raises, whoever has its folder by then.
        """
        return self._look_up(
            lambda: timestamps.first_from(self.segments, timestamp_ms, self.log_start_offset)
        )

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """The same for the first record with the largest timestamp."""
        return self._look_up(lambda: timestamps.latest(self.segments))

    def _look_up(self, find: Callable[[], timestamps.Found | None]) -> timestamps.Found | None:
        """Run a look-up, and check that the log was neither truncated nor deleted before its end."""
        truncations = self.segments.truncations
        try:
            found = find()
        except Exception as error:
            self._check_unchanged(truncations)
            if isinstance(error, OSError):
                raise self.failed(error) from error
            raise
        self._check_unchanged(truncations)
        return found

    def _check_unchanged(self, truncations: int) -> None:
        if self.offline is not None or self.truncating:
            raise self._refusal()
        if truncations != self.segments.truncations:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.segments.path} was truncated meanwhile")

    # -- removing ---------------------------------------------------------------------------------------------

    def delete_old_segments(
        self, now_ms: int, high_watermark: int | None = None, *, at_most: int = 1 << 30
    ) -> int:
        """Apply retention by time, size and ``log_start_offset``; returns the number of segments removed.

        Their files are renamed only; :meth:`remove_deleted_files` unlinks them. Nothing at or above the high
        watermark goes. When the active segment has to go, the log rolls first. OSError.
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
        """Remove segments; returns how many. Those before an unwritten producer snapshot must stay."""
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
        """Move the start of the log to ``offset`` (the caller has checked the high watermark); the new start."""
        if not 0 <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within 0 and {self.log_end_offset}"
            )
        self._move_start(offset)
        try:
            self._drop_first(self.segments.index_of(self.log_start_offset))
        except OSError as error:
            raise self.failed(error) from error
        return self.log_start_offset

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Drop everything from ``offset`` on; a batch that has ``offset`` inside goes as a whole. Blocking.

        This includes an epoch that begins there without records: a follower that kept it would name it endlessly.
        ApiError KAFKA_STORAGE_ERROR: nothing has changed, or the log is offline.
        """
        try:
            truncation.truncate_to(self, offset, now_ms)
        except OSError as error:
            raise self.failed(error) from error

    def start_anew(self, offset: int, *, now_ms: int) -> None:
        """Drop everything, including producer snapshots, and continue at ``offset``, behind the end. Blocking.

        ApiError KAFKA_STORAGE_ERROR: nothing has changed, or the log is offline.
        """
        try:
            truncation.start_anew(self, offset, now_ms)
        except OSError as error:
            raise self.failed(error) from error

    # -- durability -------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """fsync what is not on disk yet; the offset before which everything is. Blocking, in any thread.

        Appends may continue meanwhile: the next flush covers them. One fsync serves all waiting callers.
        """
        self.check_online()
        with self.durability.lock:
            try:
                self.durability.flush(self.log_end_offset)  # later records are not covered
            except OSError as error:
                raise self.failed(error) from error
            return self.flushed_offset

    def flush_closed(self) -> bool:
        """fsync some closed segments that are not on disk yet; whether there are more. Blocking, in any thread.

        ApiError: KAFKA_STORAGE_ERROR.
        """
        self.check_online()
        try:
            return self.durability.flush_closed()
        except OSError as error:
            raise self.failed(error) from error

    def close(self, clean: bool = True) -> None:
        """Write out what a restart reads and let go of all files. OSError."""
        if clean and self.offline is None:
            self.segments.active.finish()
            self.durability.keep(self.log_end_offset, self.producers)
            self.durability.save_producers()
            with self.durability.lock:
                self._save_epochs()
        self.segments.release()
        self.remove_deleted_files()

    def move(self, directory: Path) -> None:
        """Rename the folder of a deleted log; reads that are going on keep their files. OSError."""
        self.give_up()
        with self.durability.lock:
            self.durability.forget_producers()
            self.segments.move(str(directory))
            self.epochs.path = f"{directory}/{epochs.FILE_NAME}"

    def delete(self) -> None:
        """Remove the folder and everything in it (blocking)."""
        self.give_up()
        with self.durability.lock:
            self.durability.forget_producers()
            self.segments.release()
            shutil.rmtree(self.segments.path)
