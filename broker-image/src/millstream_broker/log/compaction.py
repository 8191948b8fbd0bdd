"""cleanup.policy=compact: keeps only the latest record of each key; offsets never change.

A pass reads the *dirty* part of a log (everything appended since the last pass, without the active segment), notes
the latest offset of each key in it, and rewrites all segments up to its end without the records that a later one of
the same key replaces. A record without value (a tombstone) deletes its key, and itself later: the first pass that
has noted it stamps its batch with a delete horizon, now + delete.retention.ms, and the first pass after that horizon
drops it (KIP-534). Batches keep their range of offsets; a batch that loses all its records is removed, except two
kinds that stay, empty: a producer's last one, so that its sequence is not forgotten, and the last of a log whose active
segment is empty, so that a follower which copies the log reaches its end. Transactions: see ``cleaned_transactions``.
Only what is before the last stable offset is compacted.

``clean_until`` is the end of the noted part, perhaps in the middle of a segment. Batches after it are copied unchanged:
a tombstone there has not removed its key's older value yet, so its horizon may be neither set nor applied.

Segments are replaced in groups that fit one segment, with Kafka's names and steps:

    BASE.log.cleaned, BASE.index.cleaned, …   being written; removed at start
    BASE.log.swap                             written and fsynced: this rename is the moment that counts
    the old files -> .deleted                 removed at start
    BASE.txnindex.swap -> BASE.txnindex       completed at start
    BASE.log.swap -> BASE.log                 completed at start

So a kill at any moment leaves the old segments or the new one. Readers keep their files.

Memory: at most ``Allowance.max_keys`` keys (by digest, KEY_BYTES each); a dirty part with more takes several passes.

Threads: :meth:`Compaction.work` in any thread, :meth:`Compaction.commit` in the loop's, in turns::

    while await to_thread(compaction.work):
        compaction.commit()
    compaction.finish()

OSError from either, or a log that is deleted or truncated meanwhile, ends the pass; the next one starts again. So
does :meth:`Compaction.cancel`. After any other error (a batch that cannot be read) the log is ``uncleanable``: it is
not compacted again before a restart, or before max.decompressed.message.bytes is raised.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from millstream_kafka.batch import (
    DELETE_HORIZON,
    INT32_MAX,
    INT64_MAX,
    BatchHeader,
    Record,
    TooManyHeadersError,
    build_batch,
    crc_matches,
    empty_batch,
    read_header,
    read_records,
    skim_records,
)
from millstream_kafka.control_batch import read_marker
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import transaction_index
from .cleaned_transactions import CleanedTransactions
from .files import fsync_directory
from .index import TIME_ENTRY
from .log import Log
from .segment import SUFFIXES, Segment

logger = logging.getLogger(__name__)

KEY_BYTES = 180
"""Memory of a key with its latest offset: a digest, a number, and their places in a growing dict."""
_WINDOW_S = 0.3  # an idle throttle lets this much through at once
_SHORTEST_WORK_S = 0.002  # less is not worth a pause


class Throttler:
    """``log.cleaner.io.max.bytes.per.second``: a token bucket for the reads and writes of all passes together."""

    def __init__(self, rate: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` returns bytes a second, and is called each time. ``clock`` counts seconds."""
        self._rate = rate
        self._clock = clock
        self._free_at = -math.inf
        self._lock = threading.Lock()

    def take(self, size: int) -> float:
        """Account for `size` bytes; returns the seconds to wait. Any thread."""
        cost = size / max(self._rate(), 1.0)
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _WINDOW_S) + cost
            return max(0.0, self._free_at - now)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The resources of one pass."""

    share: float = 1.0
    """Share of one core: the pass sleeps between batches."""
    max_keys: int = 200_000
    throttle: Throttler | None = None


def pause_after(worked_s: float, share: float) -> float:
    """Time to sleep, to use no more than this share of the processor."""
    return worked_s * (1 - share) / share if worked_s > _SHORTEST_WORK_S else 0.0


class CancelledError(Exception):
    """`Compaction.cancel` ended the pass."""


class Compaction:
    """One pass over one log, up to ``end``."""

    def __init__(self, log: Log, end: int, *, now_ms: int, allowance: Allowance | None = None) -> None:
        """In the loop's thread. ``end`` is the start of a closed segment or of the active one."""
        self.log = log
        self.clean_until = max(log.first_dirty_offset, log.segments.first_offset)
        """Everything before it is compacted after the pass."""
        self._truncations = log.segments.truncations
        self._closed = [
            (segment, log.segments.end_of(segment, log.log_end_offset))
            for segment in log.segments
            if segment.base_offset < end
        ]
        """The segments at the start, and the offset after each: other threads change the list."""
        self._end = end
        self._now_ms = now_ms
        self._allowance = allowance or Allowance()
        self._largest = log.config.max_decompressed_message_bytes
        self._worked_from = time.monotonic()
        self._cancelled = threading.Event()
        self._complete = False
        self._latest: dict[bytes, int] | None = None
        self._staying = {producer.last.last_offset for producer in log.producers.by_id.values()}
        """Last offsets of batches that stay although they lose all records."""
        self._staying.add(log.log_end_offset - 1)
        self._staying_markers = {
            producer_id: producer.epoch
            for producer_id, producer in log.producers.by_id.items()
            if not producer.batches
        }
        """Epochs that only a marker remembers: it stays, perhaps empty."""
        self._groups: list[list[Segment]] = []
        self._done: tuple[list[Segment], Segment] | None = None
        self._transactions = CleanedTransactions([])
        """Those that the rewritten batches belong to."""
        self._replaced = False
        self._skipped = False
        self._keeps_tombstones = False
        """A batch before them stays whole, perhaps with values that they delete."""

    # -- in a thread ------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Prepare one replacement; False if there is nothing more to do. Blocking. OSError if the disk fails."""
        self._worked_from = time.monotonic()
        try:
            return self._work()
        except CancelledError:
            return False
        except OSError:
            raise
        except Exception as error:
            if self._is_current() and not self._limit_was_raised():
                give_up(self.log, error)
            return False

    def _work(self) -> bool:
        if self._latest is None:
            self._latest = self._note_latest()
            self._transactions = self._transactions_from(0)
            self._groups = self._grouped()
        while self._groups:
            group = self._groups.pop(0)
            if any(segment.deleted for segment in group):
                self._skip(group)
                continue
            cleaned, changed = self._clean(group)
            if changed or len(group) > 1:
                self._done = group, cleaned
                return True
            self._discard(cleaned)
        if self._replaced:  # before a later pass relies on its removals
            fsync_directory(self.log.segments.path)
        self._complete = not self._skipped
        return False

    def _skip(self, group: list[Segment]) -> None:
        """Leave the log uncompacted, because retention has removed some of these segments."""
        self._skipped = self._skipped or not all(segment.deleted for segment in group)

    def _note_latest(self) -> dict[bytes, int]:
        """The latest offset of each key from the first dirty offset on, as far as memory allows."""
        latest: dict[bytes, int] = {}
        start = self.clean_until
        transactions = self._transactions_from(start)
        most = self._allowance.max_keys
        for segment, end in self._closed:
            if end <= start:
                continue
            for position, header in segment.scan_from(start):
                if len(latest) >= most:
                    return latest
                self._throttle(header.size)
                if header.is_control:
                    transactions.drops_marker(header, read_marker(_read(segment, position, header)))
                elif not transactions.drops_data(header):
                    for _, offset, key in skim_records(_read(segment, position, header), self._largest):
                        if key is not None:
                            latest[_digest(key)] = offset
                self.clean_until = header.next_offset
                self._rest()
        self.clean_until = self._end
        return latest

    def _transactions_from(self, offset: int) -> CleanedTransactions:
        segments = self.log.segments
        base = segments[segments.index_of(offset)].base_offset
        return CleanedTransactions(segments.aborted.collect(base, offset, self._end))

    def _grouped(self) -> list[list[Segment]]:
        """Neighbours that fit one segment together."""
        groups: list[list[Segment]] = []
        size = entries = 0
        for segment, end in self._closed:
            if segment.base_offset >= self.clean_until:
                break
            indexed = segment.index_entries() + 1  # joining may add one more
            if (
                groups
                and size + segment.size <= self.log.config.segment_bytes
                and (entries + indexed) * TIME_ENTRY.size <= self.log.config.index_size_max_bytes
                and end - groups[-1][0].base_offset <= INT32_MAX
            ):
                groups[-1].append(segment)
                size += segment.size
                entries += indexed
            else:
                groups.append([segment])
                size, entries = segment.size, indexed
        return groups

    def _clean(self, group: list[Segment]) -> tuple[Segment, bool]:
        first = group[0]
        cleaned = self.log.segments.segment(
            first.base_offset,
            size=0,
            created_ms=first.created_ms,
            index_interval_bytes=first.index_interval_bytes,
            suffix=".cleaned",
        )
        self._discard(cleaned)  # remains of an earlier attempt
        changed = False
        self._transactions.needed.clear()
        try:
            cleaned.create()
            for batch in self._batches(group):
                retained = self._retained(read_header(batch), batch)
                self._throttle(len(batch))
                if retained is not None:
                    self._check_current()
                    cleaned.append(retained, [read_header(retained)])
                    self._throttle(len(retained))
                changed = changed or retained is not batch
                self._rest()
            self._check_current()
            cleaned.finish()
            cleaned.sync()
            if {segment.base_offset for segment in group}.intersection(self.log.segments.aborted.bases):
                transaction_index.write(cleaned.path(transaction_index.SUFFIX), self._transactions.needed)
        except BaseException:
            self._discard(cleaned)
            raise
        return cleaned, changed

    @staticmethod
    def _batches(group: list[Segment]) -> Iterator[bytes]:
        for segment in group:
            end = 0
            for position, header in segment.headers(0):
                yield _read(segment, position, header)
                end = position + header.size
            if end < segment.size:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{segment.path()}: no valid batch at byte {end} of {segment.size}",
                )

    def _retained(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The batch with its remaining records; None if it has none."""
        if header.is_control:
            return self._retained_marker(header, batch)
        is_aborted = self._transactions.drops_data(header)
        if header.base_offset >= self.clean_until:
            return batch
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        try:
            records = () if is_aborted else read_records(batch, self._largest)
            kept = [record for record in records if self._stays(record, horizon)]
        except TooManyHeadersError:  # appended when the topic was not compacted: it stays whole
            self._keeps_tombstones = True
            return batch
        tombstones = any(record.value is None for record in kept)
        if not kept and header.last_offset not in self._staying:
            return None
        if len(kept) == header.record_count and (horizon is not None or not tombstones):
            return batch
        if not kept:
            return empty_batch(header)
        if tombstones and horizon is None:
            horizon = min(self._now_ms + self.log.config.delete_retention_ms, INT64_MAX)
        return _rebuilt(header, kept, horizon if tombstones else None)

    def _retained_marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """A control batch, perhaps with a delete horizon, or empty; None if it goes."""
        may_go = self._transactions.drops_marker(header, read_marker(batch))
        if not may_go or header.base_offset >= self.clean_until:
            return batch
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        if header.record_count and horizon is None:
            horizon = min(self._now_ms + self.log.config.delete_retention_ms, INT64_MAX)
            return _rebuilt(header, read_records(batch, self._largest), horizon)
        if header.record_count and horizon is not None and self._now_ms < horizon:
            return batch
        stays = (
            header.last_offset in self._staying
            or self._staying_markers.get(header.producer_id) == header.producer_epoch
        )
        if not stays:
            return None
        return empty_batch(header) if header.record_count else batch

    def _stays(self, record: Record, horizon: int | None) -> bool:
        assert self._latest is not None
        if record.key is None or record.offset < self._latest.get(_digest(record.key), record.offset):
            return False
        is_due = horizon is not None and self._now_ms >= horizon
        return record.value is not None or not is_due or self._keeps_tombstones

    def _rest(self) -> None:
        """Leave the processor to the loop for the rest of each period. A deleted log ends the pass here."""
        self._check_current()
        self._wait(pause_after(time.monotonic() - self._worked_from, self._allowance.share))

    def _throttle(self, size: int) -> None:
        if (throttle := self._allowance.throttle) is not None:
            self._wait(throttle.take(size))

    def _wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise CancelledError
        if seconds:
            self._worked_from = time.monotonic()

    # -- in the loop ------------------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Put the prepared segment into the log; False if the log changed meanwhile (then nothing happens)."""
        if self._done is None:
            return False
        (group, cleaned), self._done = self._done, None
        segments = self.log.segments
        start = segments.index_of(group[0].base_offset)
        if not self._is_current() or segments[start : start + len(group)] != group:
            self._discard(cleaned)
            self._skip(group)
            return False
        cleaned.release()
        swap = cleaned.path(".log").removesuffix(".cleaned") + ".swap"
        index = cleaned.path(transaction_index.SUFFIX).removesuffix(".cleaned")
        has_index = os.path.exists(index + ".cleaned")
        if has_index:
            os.rename(index + ".cleaned", index + ".swap")
        os.rename(cleaned.path(".log"), swap)
        try:
            segments.set_aside(start, start + len(group), suffixes=SUFFIXES)
            if has_index:
                os.rename(index + ".swap", index)
                segments.aborted.found(cleaned.base_offset)
            os.rename(swap, swap.removesuffix(".swap"))
            if has_index and not os.path.getsize(index):
                segments.aborted.drop(cleaned.base_offset)
                os.unlink(index)
            for suffix in SUFFIXES[1:]:
                os.rename(cleaned.path(suffix), cleaned.path(suffix).removesuffix(".cleaned"))
        except OSError as error:  # half replaced: the next start completes it
            if not self.log.is_deleted:
                self.log.offline = error
            raise
        cleaned.settle()
        segments.insert(start, cleaned)
        self._replaced = True
        return True

    def _is_current(self) -> bool:
        """Whether the log is still the one that the pass began with."""
        log = self.log
        changes = log.truncating or log.segments.truncations != self._truncations
        return log.offline is None and not changes

    def _limit_was_raised(self) -> bool:
        """Whether the next pass may read records that were too large for this one."""
        return self.log.config.max_decompressed_message_bytes > self._largest

    def _check_current(self) -> None:
        """Check after each batch, and before each write: during a sleep, the path may have become another log's."""
        if not self._is_current():
            raise CancelledError

    def _discard(self, cleaned: Segment) -> None:
        if self.log.is_deleted:  # the files moved with its folder, and the path may be another log's
            cleaned.release()
        else:
            cleaned.remove()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(cleaned.path(transaction_index.SUFFIX))

    def cancel(self) -> None:
        """Make :meth:`work` return soon."""
        self._cancelled.set()

    def finish(self) -> None:
        """End the pass: the next one continues from here. No effect if the pass was cancelled or failed."""
        if self._complete and self._is_current():
            self.log.first_dirty_offset = max(self.log.first_dirty_offset, self.clean_until)


def give_up(log: Log, error: Exception) -> None:
    """Stop compacting this log until a restart, or until max.decompressed.message.bytes is raised, and log it.

    Others get their turn. Any thread.
    """
    log.uncleanable = True
    if isinstance(error, ApiError):
        logger.error("%s is no longer compacted: %s", log.directory, error.message)
    else:
        logger.error("%s is no longer compacted: %r", log.directory, error, exc_info=error)


def _rebuilt(header: BatchHeader, records: Iterable[Record], horizon: int | None) -> bytes:
    """The batch of a header with some of its records, and with a delete horizon or without."""
    return build_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        compression=header.compression,
        transactional=header.is_transactional,
        control=header.is_control,
        append_time=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon=horizon,
    )


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def _read(segment: Segment, position: int, header: BatchHeader) -> bytes:
    """Read a batch and check its CRC, because the rewritten one gets a valid CRC."""
    batch = segment.read(position, header.size)
    if len(batch) < header.size or not crc_matches(batch):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
    return batch
