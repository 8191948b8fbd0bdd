"""One partition that this broker follows: its fetch requests, and the handling of the leader's responses.

The log grows by the leader's batches, byte for byte, and is truncated if the two logs diverge (`divergence`).
Truncation takes as long as reading the rest of a segment, so it runs in a thread. Meanwhile nothing else may use the
log: a change of the replica's role, or its removal, first waits for `truncation`.

Producers that waited for all replicas when this broker led learn the fate of their records, and so do those that retry
records which are here (`delayed_produce`). A failure of this log (a full disk) affects only this partition, which
retries later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from time import time

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, PartitionData
from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord, TopicRecord
from ..log.append_info import AppendInfo
from ..log.append_origin import AppendOrigin
from ..log.directory import describe
from ..log.log import Log
from .divergence import truncation_offset
from .log_starts import LogStarts
from .purgatory import DelayedProduce, Purgatory, repeated
from .replica import Replica, wake

log = logging.getLogger(__name__)

IN_TRANSITION = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Errors while one of the two lacks the controller's latest update."""


class Outcome(Enum):
    """The outcome of a leader's response."""

    NOTHING_NEW = auto()
    GOES_ON = auto()
    """The log changed: the next request has its new end."""
    TRUNCATING = auto()
    """The log is being truncated: `Follower.truncation` resolves to the outcome."""
    OUT_OF_RANGE = auto()
    """The leader does not have the offset: request the range of its log."""
    FAILED = auto()
    """Retry later."""


class Follower(Replica):
    """All calls are made on the loop."""

    __slots__ = (
        "_differs",
        "_held_back",
        "_leader_start",
        "_problem",
        "_reported_start",
        "_requested_epoch",
        "_starts",
        "committing",
        "failures",
        "is_throttled",
        "purgatory",
        "truncation",
    )

    def __init__(
        self,
        topic: TopicRecord,
        index: int,
        log: Log,
        high_watermark: int,
        waiting: Purgatory,
        starts: LogStarts | None = None,
        differs: Callable[[Follower], None] | None = None,
    ) -> None:
        """`waiting` holds producers whose records this broker appended when it led.

        `starts` makes moves of the log start durable. `differs` is called, once, if the leader has another log than an
        unconfirmed one (see ``log.strays``), which is not truncated then.
        """
        super().__init__(topic, index, log, min(high_watermark, log.log_end_offset))
        self._requested_epoch = -1
        """The leader epoch of the last request."""
        self._held_back = 0
        self.failures = 0
        """Consecutive failures."""
        self.is_throttled = False
        """Whether the broker's throttle limits how fast it catches up."""
        self._problem = ""
        self.purgatory = waiting
        self._starts = LogStarts() if starts is None else starts
        self._differs = differs
        self.committing: asyncio.Future[None] | None = None
        """Ends when a moved log start has been written."""
        self._leader_start = self._reported_start = 0
        """The leader's log start, as far as this log reaches; this log's in the last request."""
        self.truncation: asyncio.Task[Outcome] | None = None
        """Truncates the log, in a thread; must not be cancelled."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.index

    def follow(self, record: PartitionRecord) -> None:
        is_new_epoch = record.leader_epoch > self.record.leader_epoch
        self.record = record
        if is_new_epoch:
            wake(self.waiters, 0)

    def step_up(self) -> Purgatory:
        """This broker leads now: return the producers that wait for all replicas; consumers fetch again."""
        wake(self.waiters, 0)
        return self.purgatory

    def release(self, code: ErrorCode) -> None:
        """The replica is no longer here: end all waits."""
        self.purgatory.fail(code)
        wake(self.waiters, 0)

    def request(self, max_bytes: int) -> FetchPartition:
        log = self.log
        self._reported_start = log.durable_start  # the leader acknowledges it to clients
        self._requested_epoch = self.record.leader_epoch
        return FetchPartition(
            self.index,
            self.record.leader_epoch,
            log.log_end_offset,
            log.epochs.latest,
            self._reported_start,
            max_bytes,
        )

    def answered(self, data: PartitionData) -> Outcome:
        """Apply the leader's response to `request`; the log must not have changed in between."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Outcome.OUT_OF_RANGE
        if data.error_code:
            code = ErrorCode.of(data.error_code)
            level = logging.DEBUG if code in IN_TRANSITION else logging.WARNING
            self._failed(f"it answers {code.name}", level)
            return Outcome.FAILED
        try:
            return self._take(data)
        except (ApiError, OSError) as error:
            return self._refused(error)

    def _take(self, data: PartitionData) -> Outcome:
        parted = data.diverging_epoch
        if parted is not None and parted.end_offset >= 0:
            return self._truncate(parted.epoch, parted.end_offset)
        before = self.log.log_start_offset, self.log.log_end_offset
        records = data.records
        if isinstance(records, memoryview) and records:
            self._held_back += len(records)
            append = partial(self.log.append_as_follower, records, now_ms=_now_ms())
            if self.log.starts_within(records):
                return self._begin_truncation(append, lambda: self._apply_rest(data, before))
            append()
        return self._apply_rest(data, before)

    def _apply_rest(self, data: PartitionData, before: tuple[int, int]) -> Outcome:
        """Apply the rest of a response, after its records are in the log, which had the range `before`."""
        end = self.log.log_end_offset
        if (offset := min(data.high_watermark, end)) > self.high_watermark:
            self.high_watermark = offset
            size, self._held_back = self._held_back, 0
            wake(self.waiters, max(size, 1))
            self.purgatory.passed(offset)
        if data.log_start_offset > self.log.log_start_offset:
            self.log.delete_records_before(min(data.log_start_offset, end))
        self._leader_start = min(data.log_start_offset, end)
        if self._leader_start > self.log.durable_start and self.committing is None:
            self.committing = asyncio.get_running_loop().create_future()
            self._starts.commit(self.log, self._committed)
        if self.failures:
            self._recovered()
        self.log.confirm(self._requested_epoch)
        now = self.log.log_start_offset, end
        return Outcome.NOTHING_NEW if now == before else Outcome.GOES_ON

    def _committed(self) -> None:
        if self.committing is not None:
            self.committing.set_result(None)
            self.committing = None

    @property
    def owes_start(self) -> bool:
        """Whether the leader does not know yet that this log has moved its start, too."""
        return self._leader_start > self._reported_start

    @property
    def may_report_start(self) -> bool:
        return self.log.durable_start > self._reported_start

    def _truncate(self, leader_epoch: int, leader_end: int) -> Outcome:
        end = self.log.log_end_offset
        offset = truncation_offset(self.log.epochs, end, leader_epoch, leader_end)
        if offset < end and self.log.is_suspect(self.record.compared):
            return self._is_other()
        log.info(
            "%s: truncated from offset %d to %d: epoch %d of broker %d ends at %d",
            self,
            end,
            offset,
            leader_epoch,
            self.record.leader,
            leader_end,
        )
        return self._begin_truncation(lambda: self.log.truncate_to(offset, now_ms=_now_ms()))

    def _is_other(self) -> Outcome:
        """Not truncated: nobody knows whether its records count. The next request follows in another log."""
        if self._differs is not None:
            self._differs(self)
            self._differs = None
        return Outcome.FAILED

    def _begin_truncation(
        self, change: Callable[[], object], then: Callable[[], Outcome] = lambda: Outcome.GOES_ON
    ) -> Outcome:
        self.log.truncating = True
        self.truncation = asyncio.create_task(self._truncate_in_thread(change, then))
        return Outcome.TRUNCATING

    async def _truncate_in_thread(self, change: Callable[[], object], then: Callable[[], Outcome]) -> Outcome:
        try:
            try:
                await asyncio.to_thread(change)
            finally:
                self.log.truncating, self.truncation = False, None
            start, end = self.log.log_start_offset, self.log.log_end_offset
            self.purgatory.truncated(end)
            self.high_watermark = max(min(self.high_watermark, end), start)
            return then()
        except (ApiError, OSError) as error:
            return self._refused(error)

    def append(
        self,
        batches: memoryview,
        now_ms: int,
        *,
        acks: int,
        timeout_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo | DelayedProduce:
        """Handle the retry of a client whose first attempt met this broker as the leader; ApiError for other batches.

        Same parameters and result as `Partition.append`.
        """
        if acks != -1 or (info := repeated(self.log, batches)) is None:
            error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.log.sequence_guard.note(batches, error, self.log.producers)
            raise error
        if info.last_offset < self.high_watermark:
            return info
        return self.purgatory.add(info.last_offset, DelayedProduce(acks, timeout_ms, info), timeout_ms)

    def begin_within(self, leader_start: int, leader_end: int) -> Outcome:
        """This log's end is outside the leader's log, which has this range: continue within it."""
        end = self.log.log_end_offset
        if (
            end != self.log.log_start_offset
            and self.log.is_suspect(self.record.compared)
            and not leader_start <= end <= leader_end
        ):
            return self._is_other()
        if end > leader_end:
            log.warning(
                "%s: truncated from offset %d to %d, where the log of broker %d ends",
                self,
                end,
                leader_end,
                self.record.leader,
            )
            return self._begin_truncation(lambda: self.log.truncate_to(leader_end, now_ms=_now_ms()))
        if end < leader_start:
            log.warning(
                "%s: restarts at offset %d: broker %d has nothing before it, and this log ended at %d",
                self,
                leader_start,
                self.record.leader,
                end,
            )
            self.purgatory.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return self._begin_truncation(
                lambda: self.log.truncate_fully_and_start_at(leader_start, now_ms=_now_ms())
            )
        return Outcome.GOES_ON

    def _refused(self, error: ApiError | OSError) -> Outcome:
        """Handle a failure to change the log."""
        self._failed(error.message if isinstance(error, ApiError) else describe(error), logging.ERROR)
        return Outcome.FAILED

    def _failed(self, problem: str, level: int) -> None:
        """Log a problem, once while it stays the same."""
        self.failures += 1
        if problem != self._problem and level > logging.DEBUG:
            log.log(level, "%s: cannot follow broker %d: %s", self, self.record.leader, problem)
            self._problem = problem

    def _recovered(self) -> None:
        self.failures = 0
        if self._problem:
            log.info("%s: follows broker %d again", self, self.record.leader)
            self._problem = ""


def _now_ms() -> int:
    return int(time() * 1000)
