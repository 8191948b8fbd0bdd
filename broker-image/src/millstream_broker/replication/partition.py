"""A partition that this broker leads: its log, its followers, and its high watermark.

The *high watermark* is the offset below which records are safe, and so may be read, and acknowledged for `acks=all`.
Two things hold it back:

- The flush policy: at most `flush.messages - 1` records above the part known to be on disk. If it holds records
  back, one fsync runs in a thread at a time and covers everything appended before it began (group commit);
  acknowledgements wait for it, not the loop. `acks=1` waits for this only.
- The followers, if there are any: every in-sync replica has the record (`replication.isr`). A sole replica has no
  `isr`, and its high watermark follows its log.

Waiting fetches (long polls) are notified of each advance, and have no timer except their own limit: consumers wait for
the high watermark, followers for the end of the log.

Batches are appended in order of arrival, on any path and through any change of the configuration: while one waits (for
its records to be read in a thread, see `append_queue`), each later one waits behind it. A batch belongs to this
leadership, not to the partition's name: after `release` none is appended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import NoReturn

from millstream_kafka.appendable import HeaderRefusedError
from millstream_kafka.batch import CODEC_MASK, HEADER_SIZE
from millstream_kafka.mirror_source import KEY as MIRROR_SOURCE
from millstream_kafka.mirror_source import PROMOTED, REJOIN
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_process import supervision

from ..config.config import TopicConfig
from ..config.config_types import LONG_MAX
from ..coordination import PartitionRecord, TopicRecord
from ..log.append_info import AppendInfo
from ..log.append_origin import BY_THIS_BROKER, CLIENT, MIRROR, AppendOrigin
from ..log.log import Log
from ..log.validator import Validated, validate_mirrored
from ..topic_rules.mirrored_topics import EPOCHS_ABOVE, check_start, far_above, read_only
from .append_queue import AppendQueue
from .isr import Isr
from .log_starts import LogStarts
from .purgatory import Delayed, DelayedProduce, Purgatory, repeated
from .replica import FetchWaiter, Replica, wake
from .source_transactions import SourceTransactions, end_of_source

AT_ONCE_BYTES = 4096
"""Largest uncompressed batch whose records are read on the loop: the smallest records take less than a millisecond."""
_ATTRIBUTES = 22

log = logging.getLogger(__name__)


class Partition(Replica):
    """One partition that this broker leads. All calls are made on the loop."""

    __slots__ = (
        "_appends_at_once",
        "_ended",
        "_flush_messages",
        "_flushing",
        "_goes_with_log",
        "_held_back",
        "_is_outdated",
        "_min_isr",
        "_queue",
        "_queued",
        "_raise_epoch",
        "_secured",
        "_source_transactions",
        "_starts",
        "_undeleted",
        "_unflushed",
        "_unreplicated",
        "_unwritable",
        "followers",
        "isr",
        "min_insync_replicas",
        "source",
    )

    def __init__(
        self,
        topic: TopicRecord,
        index: int,
        log: Log,
        config: TopicConfig,
        queue: AppendQueue,
        isr: Isr | None = None,
        unwritable: Callable[[], None] = lambda: None,
        waiting: Purgatory | None = None,
        raise_epoch: Callable[[Partition, int, int], None] = lambda partition, above, epoch: None,
        starts: LogStarts | None = None,
    ) -> None:
        """`queue` takes batches that cannot be appended at once, `starts` makes moves of the log start durable.

        `unwritable` is called if the disk takes no records and another replica might lead instead, `raise_epoch` if
        this leader needs a leader epoch above the first number, with one to take. It may be called again, with another,
        until `lead` has such an epoch.

        `waiting` holds producers that waited while this broker did not lead.
        """
        super().__init__(topic, index, log, log.log_start_offset if isr is None else isr.high_watermark)
        self.isr = isr
        self.followers: set[FetchWaiter] = set()
        """Followers' fetches, notified when the log grows."""
        self._secured = self.high_watermark
        """The end of this broker's own log, by the flush policy."""
        self._flushing: asyncio.Future[None] | None = None
        self._held_back = 0
        self._queue = queue
        self._queued = 0
        """Batches that wait for their turn."""
        self._ended: ErrorCode | None = None
        """The reason why this broker no longer leads the partition."""
        self._undeleted = Purgatory()
        self._starts = LogStarts() if starts is None else starts
        self._unwritable = unwritable
        self._raise_epoch = raise_epoch
        self._look_at_epoch()
        self.source = ""
        """The topic of which this is a mirror's read-only replica (millstream.mirror.source)."""
        self._unflushed = Purgatory()
        self._unreplicated = Purgatory() if waiting is None else waiting
        self._source_transactions = SourceTransactions(
            log, lambda marker, now_ms: self._append(marker, AppendOrigin.MARKER, -1, now_ms)
        )
        self.configure(config)
        if config.strings(PROMOTED) and not self.source:
            end = end_of_source(log.epochs.entries, self.record.leader_epoch, log.log_end_offset)
            self._source_transactions.promoted(end)

    def configure(self, config: TopicConfig) -> None:
        was, self.source = self.source, config.text(MIRROR_SOURCE)
        if was and not self.source:
            log.info("%s: promoted: it is no longer a mirror of %s", self, was)
            if self.isr is not None:
                self.log.assign_leader_epoch(self.record.leader_epoch)
            if not was.endswith(REJOIN):  # giving up: open transactions are this cluster's own
                self._source_transactions.promoted(self.log.log_end_offset)
        self._min_isr = config.integer("min.insync.replicas")
        self._count_min_isr()
        self._flush_messages = config.integer("flush.messages")
        is_lazy = self._flush_messages == LONG_MAX
        self._choose_path()
        self._goes_with_log = is_lazy and self.isr is None
        self._grown(0)
        if is_lazy:  # it may not have been lazy until now
            self._unflushed.passed(self.log.log_end_offset)

    def _look_at_epoch(self) -> None:
        """Check the leader's epoch: it is below its log's only if coordination was restored from an older copy."""
        self._is_outdated = self.log.epochs.latest > self.record.leader_epoch

    def _choose_path(self) -> None:
        """Choose the path of appends, after a change of the configuration or the queue."""
        self._appends_at_once = not self._queued and not self.log.config.reads_records

    def _count_min_isr(self) -> None:
        """Limit min.insync.replicas to the number of replicas, as in Kafka: otherwise nothing could be written."""
        self.min_insync_replicas = min(self._min_isr, len(self.record.replicas))
        if self.isr is not None:
            self.isr.min_isr = self.min_insync_replicas

    def lead(self, record: PartitionRecord, isr: Isr | None = None) -> None:
        """Continue to lead, with a newer record; `isr` is given when a sole replica gets followers."""
        is_new_epoch = record.leader_epoch > self.record.leader_epoch
        if isr is not None:
            self.isr, self._goes_with_log = isr, False
            self._secured = max(self._secured, self.high_watermark)
        self.record = record
        self._look_at_epoch()
        self._count_min_isr()
        self._source_transactions.retry()
        if self.isr is None:
            return
        self.isr.update(record, self.log.log_end_offset, now_ms())
        self._grown(0)
        if is_new_epoch:
            self.log.assign_leader_epoch(record.leader_epoch)
            wake(self.followers, 0)
            wake(self.waiters, 0)
        self.isr_changed()

    def isr_changed(self) -> None:
        """The stored ISR, or the replicas that may join it, changed: the high watermark may move, or must stop."""
        isr = self.isr
        assert isr is not None
        self.record = isr.record
        if isr.is_under_min:
            self._unreplicated.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._replicated()
        if self._undeleted:
            self._undeleted.passed(self.low_watermark)
        self._source_transactions.retry()

    def _not_enough_replicas(self) -> ApiError:
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The size of the current ISR {list(self.record.isr)} is insufficient to satisfy the min.isr "
            f"requirement of {self.min_insync_replicas} for partition {self}",
        )

    def append(
        self,
        batches: memoryview,
        now_ms: int,
        *,
        acks: int = -1,
        timeout_ms: int | None = None,
        origin: AppendOrigin = CLIENT,
    ) -> AppendInfo | DelayedProduce:
        """Append record batches: returns the result if it is as safe as `acks` requires, else the wait for that.

        Batches that must wait for their turn are copied. ApiError refuses them. `acks` as in Produce; `timeout_ms`
        limits the wait for all replicas. `origin` is any but REPLICATION and MIRROR.
        """
        if self._appends_at_once or (not self._queued and (origin in BY_THIS_BROKER or is_cheap(batches))):
            try:
                info = self._append(batches, origin, acks, now_ms)
            except HeaderRefusedError:  # the thread finds the offending records
                pass
            else:
                return (
                    info
                    if info.last_offset < self.high_watermark
                    else self._until_safe(info, acks, timeout_ms)
                )
        self._check_led(batches)
        delayed = DelayedProduce(acks, timeout_ms)
        self._queue.put(self, delayed, bytearray(batches), origin)
        self._queued += 1
        self._choose_path()
        return delayed

    def append_run(
        self,
        batches: Sequence[memoryview],
        counts: Sequence[int],
        now_ms: int,
        *,
        acks: int,
        timeout_ms: int | None,
    ) -> list[AppendInfo | DelayedProduce] | None:
        """Append one batch of each of several requests, in one write; `counts` are the offsets that they take.

        Returns what `append` would return for each. None if not all are appended now, for any reason: then none is.
        """
        if not self._appends_at_once or self.log.sequence_guard.by_producer:
            return None
        try:
            run = self._append(bytearray().join(batches), CLIENT, acks, now_ms)
        except ApiError:
            return None
        if run.duplicate:
            return None
        appended: list[AppendInfo | DelayedProduce] = []
        is_safe = run.last_offset < self.high_watermark
        first, append_time, start = run.first_offset, run.log_append_time, run.log_start_offset
        for count in counts:
            info = AppendInfo(first, first + count - 1, append_time, start)
            appended.append(info if is_safe else self._until_safe(info, acks, timeout_ms))
            first += count
        return appended

    def _until_safe(self, info: AppendInfo, acks: int, timeout_ms: int | None) -> AppendInfo | DelayedProduce:
        """The appended batches, or the wait until they are as safe as `acks` requires."""
        if (purgatory := self._purgatory_of(info, acks)) is None:
            return info
        delayed = DelayedProduce(acks, timeout_ms, info)
        return purgatory.add(info.last_offset, delayed, delayed.timeout_ms)

    def append_mirrored(
        self,
        source: str,
        batches: memoryview | None,
        from_offset: int,
        log_start: int,
        now_ms: int,
        timeout_ms: int,
    ) -> DelayedProduce | None:
        """Append the batches that the source has from the end of this log on; returns the wait for their replication.

        `source` is the topic they come from. `log_start` is the start of the source's log, which this log follows up to
        its high watermark. Without batches only this happens; a log that ends before the source's start restarts there.
        None: nothing was appended, or it is safe. Raises ApiError; see `protocol.mirror_append`.
        """
        self.check_source(source)
        end = self.log.log_end_offset
        if from_offset != end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self} ends at offset {end}, not {from_offset}")
        check_start(self, log_start, end)
        delayed = None
        if batches:
            validated = validate_mirrored(batches, end, self.log.epochs.latest)
            epoch = validated[1][-1].partition_leader_epoch
            if self.record.leader_epoch < epoch + EPOCHS_ABOVE:
                self._need_epoch(epoch + EPOCHS_ABOVE - 1, far_above(epoch))
            waiting = self._until_safe(self._append_validated(validated, batches, -1, now_ms), -1, timeout_ms)
            delayed = waiting if isinstance(waiting, DelayedProduce) else None
        elif end < log_start and end == self.high_watermark:
            self.log.skip_to(log_start, now_ms=now_ms)
            self._grown(0)
            wake(self.followers, 0)
            wake(self.waiters, 0)
        if (start := min(log_start, self.high_watermark)) > self.log.log_start_offset:
            self._move_start(start)
        return delayed

    def check_source(self, source: str) -> None:
        """Raises ApiError unless this is the replica of that topic."""
        if self._ended is not None:
            raise ApiError(self._ended)
        if not self.source:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"Topic '{self.topic}' is not a mirror's replica, or was promoted"
            )
        if self.source == source + REJOIN:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Topic '{self.topic}' rejoins {source}: nothing is appended before all partitions are compared",
            )
        if source != self.source:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"Topic '{self.topic}' is a mirror of {self.source}, not of {source}",
            )

    def check_epoch_above_records(self) -> None:
        """Raises ApiError, and requests another leader epoch, unless this one is above those of all records.

        Only then can followers tell records appended after a truncation from removed ones. The next epoch is enough: it
        must stay below the source's.
        """
        if (latest := self.log.epochs.latest) >= self.record.leader_epoch:
            self._need_epoch(latest, latest + 1)

    def _need_epoch(self, above: int, epoch: int) -> NoReturn:
        """Request this leader epoch, unless there is one above `above`; until it arrives, the client must retry."""
        self._raise_epoch(self, above, epoch)
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{self} takes a leader epoch above {above}, because of those of its records",
        )

    def append_validated(
        self, delayed: DelayedProduce, validated: Validated, batches: bytearray, now_ms: int
    ) -> None:
        """For the queue alone: append batches that `Log.validate` has prepared, at their turn. Raises ApiError.

        The next wait begins in the step that appends, so it misses no later change.
        """
        delayed.info = info = self._append_validated(validated, batches, delayed.acks, now_ms)
        if (purgatory := self._purgatory_of(info, delayed.acks)) is None:
            delayed.end()
        else:
            purgatory.add(info.last_offset, delayed, delayed.timeout_ms)

    def turn_over(self) -> None:
        """For the queue alone: its first batches are appended, or never will be."""
        self._queued -= 1
        self._choose_path()

    def check(self, batches: bytearray | memoryview, acks: int, origin: AppendOrigin) -> None:
        """Raises ApiError if the batches may not be appended now, whatever they are.

        An ordinary batch gets this leader's epoch, so that must not be below the log's last one: then followers could
        not tell where logs diverge. It never is, unless coordination was restored from an older copy.
        """
        try:
            if self._ended is not None:
                self._check_led(batches)
            if origin is not MIRROR:
                if self.source:
                    raise read_only(self.topic, self.source)
                if self._is_outdated:
                    self._need_epoch(latest := self.log.epochs.latest, far_above(latest))
            if acks == -1 and len(self.record.isr) < self.min_insync_replicas:
                raise self._not_enough_replicas()
            if self.log.sequence_guard.by_producer and origin is not MIRROR:
                self.log.sequence_guard.check(batches, self.log.producers)
        except ApiError as error:
            self.log.sequence_guard.note(batches, error, self.log.producers)
            raise

    def _append(
        self, batches: bytearray | memoryview, origin: AppendOrigin, acks: int, now_ms: int
    ) -> AppendInfo:
        """Validate batches and append them to the leader's log, now. Raises ApiError."""
        self.check(batches, acks, origin)
        try:
            info = self.log.append(
                batches, leader_epoch=self.record.leader_epoch, now_ms=now_ms, origin=origin
            )
        except HeaderRefusedError:
            raise
        except ApiError as error:
            self._refused(error, batches)
            raise
        return self._appended(info, len(batches))

    def _append_validated(
        self, validated: Validated, batches: bytearray | memoryview, acks: int, now_ms: int
    ) -> AppendInfo:
        """Append batches that were validated before. Raises ApiError."""
        self.check(batches, acks, validated[3])
        try:
            info = self.log.append_validated(validated, leader_epoch=self.record.leader_epoch, now_ms=now_ms)
        except ApiError as error:
            self._refused(error, batches)
            raise
        return self._appended(info, len(batches))

    def _appended(self, info: AppendInfo, size: int) -> AppendInfo:
        if not info.duplicate:
            self.received_bytes += size
            self._grown(size)
        elif info.last_offset >= self.high_watermark:
            # Its fsync may have failed, and nothing else retries it.
            self._grown(0)
        return info

    def _purgatory_of(self, info: AppendInfo, acks: int) -> Purgatory | None:
        """The purgatory in which a producer waits for these records; None if they are as safe as `acks` requires."""
        if info.last_offset < self.high_watermark or not acks:
            return None
        if acks == -1 and self.isr is not None:
            return self._unreplicated
        return None if info.last_offset < self._secured else self._unflushed

    def _check_led(self, batches: bytearray | memoryview) -> None:
        """Raises ApiError after `release`.

        NOT_LEADER_OR_FOLLOWER means that no log has the records (`delayed_produce`), which is not true for a duplicate.
        """
        if (code := self._ended) is None:
            return
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and repeated(self.log, batches) is not None:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        raise ApiError(code)

    def _refused(self, error: ApiError, batches: bytearray | memoryview) -> None:
        """Move leadership away if the disk is at fault and the ISR is large enough without this replica."""
        self.log.sequence_guard.note(batches, error, self.log.producers)
        if self.log.offline is not None:  # readers need not wait
            wake(self.waiters, 0)
            wake(self.followers, 0)
        if (
            (error.code is ErrorCode.KAFKA_STORAGE_ERROR or self.log.offline is not None)
            and self.isr is not None
            and len(self.record.isr) > max(self.min_insync_replicas, 1)
        ):
            self._unwritable()

    def delete_records_before(self, offset: int, timeout_ms: int) -> Delayed | None:
        """Move the start of the log. Raises ApiError.

        Returns the wait until the move is durable on all live replicas, None if it is already.
        """
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if self._move_start(offset):
            return None
        return self._undeleted.add(offset - 1, Delayed(), timeout_ms)

    def _move_start(self, offset: int) -> bool:
        """Move the start of the log; returns whether all live replicas have moved theirs."""
        self.log.delete_records_before(offset)
        for waiter in tuple(self.waiters):
            waiter.committed()
        if self.log.durable_start < offset:
            self._starts.commit(self.log, lambda: self._start_written(offset))
        if self.low_watermark >= offset:
            return True
        wake(self.followers, 0)
        return False

    def _start_written(self, offset: int) -> None:
        """The log start is durable, up to `offset` at least; or it could not be written."""
        if self._undeleted:
            self._undeleted.passed(self.low_watermark)
            if self.log.durable_start < offset:
                self._undeleted.refuse(ErrorCode.KAFKA_STORAGE_ERROR)

    @property
    def low_watermark(self) -> int:
        """No live replica has records before it, nor after a crash."""
        start = self.log.durable_start
        return start if self.isr is None else self.isr.low_watermark(start)

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark has reached all values that earlier leaders may have reported (KIP-207)."""
        return self.isr is None or self.isr.is_settled

    def fetched(self, replica: int, offset: int, log_start: int) -> None:
        """A follower has everything from `log_start` to `offset`."""
        assert self.isr is not None
        self.isr.fetched(replica, offset, self.log.log_end_offset, now_ms(), log_start)
        self._replicated()
        if self._undeleted:
            self._undeleted.passed(self.low_watermark)

    def _grown(self, size: int) -> None:
        """Move the high watermark as far as the flush policy and the followers allow, and handle the consequences."""
        end = self.log.log_end_offset
        if self._goes_with_log:
            self._advance(end, size)
            return
        self._held_back += size
        if size and self.followers:
            wake(self.followers, size)
        self._secure(min(end, self.log.flushed_offset + self._flush_messages - 1))
        if self._flushing is None and self._secured < end:
            self._flushing = supervision.keep("acknowledged flush", self._flush)

    def _secure(self, offset: int) -> None:
        """This broker's own log is safe up to `offset`."""
        if offset > self._secured:
            self._secured = offset
            self._unflushed.passed(offset)
        self._replicated()

    def _replicated(self) -> None:
        """The log, the followers or the ISR have changed: the high watermark may move."""
        if self.isr is None:
            offset = self._secured
        else:
            offset = self.isr.advance(self.log.log_end_offset, now_ms(), self._secured)
        if offset > self.high_watermark:
            size, self._held_back = self._held_back, 0
            self._advance(offset, max(size, 1))

    def _advance(self, offset: int, size: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.waiters:
            wake(self.waiters, size)
        if not self._goes_with_log:
            self._unreplicated.passed(offset)
            for follower in self.followers:
                follower.committed()

    async def _flush(self) -> None:
        try:
            while self._secured < self.log.log_end_offset:
                flushed = await asyncio.to_thread(self.log.flush)
                if self._ended is not None:  # the log and the ISR may be another leadership's by now
                    break
                self._secure(min(self.log.log_end_offset, flushed + self._flush_messages - 1))
        except ApiError as error:
            if not self.log.is_deleted:
                log.error("%s: %s", self, error.message)
            self._end_waits(error.code)
        self._flushing = None

    def step_down(self) -> Purgatory:
        """Another broker leads: return the producers that wait for all replicas, and end all other waits."""
        waiting, self._unreplicated = self._unreplicated, Purgatory()
        self.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return waiting

    def release(self, code: ErrorCode) -> None:
        """The partition is offline, led by another broker or deleted: append nothing more, and end all waits."""
        self._ended = code
        self._end_waits(code)

    def _end_waits(self, code: ErrorCode) -> None:
        """End all waits with an error."""
        self._unflushed.fail(code)
        self._unreplicated.fail(code)
        self._undeleted.refuse(code)
        wake(self.waiters, 0)
        wake(self.followers, 0)


def is_cheap(batches: memoryview) -> bool:
    """Whether reading the records is fast: few bytes, uncompressed."""
    return len(batches) < HEADER_SIZE or (
        len(batches) <= AT_ONCE_BYTES and not batches[_ATTRIBUTES] & CODEC_MASK
    )


def now_ms() -> int:
    """Milliseconds of a monotonic clock."""
    return monotonic_ns() // 1_000_000
