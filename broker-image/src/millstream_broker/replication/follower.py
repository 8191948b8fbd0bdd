"""One partition that this broker follows: what it asks the leader for, and what it does with the answer.

The log grows by what the leader sends, byte for byte, and is cut where the leader says that the two part
(`divergence`). Cutting takes as long as reading what stays of a segment, so it is done in a thread. Meanwhile nothing
else may happen to the log: whoever gives the replica another role, or takes it away, waits for `cutting` first.

Producers that waited for all replicas when this broker led are answered by what becomes of their
records, and so are those who ask again for records that are here (`delayed_produce`). A failure of this log (a full
disk) is this partition's alone: it is tried again later.
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
from ..delayed_produce import DelayedProduce, Purgatory, repeated
from ..log.directory import describe
from ..log.log import AppendInfo, Log
from .divergence import truncation_offset
from .replica import Replica, wake

log = logging.getLogger(__name__)

IN_TRANSITION = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""One of the two has not been told yet what the controller told the other."""


class Outcome(Enum):
    """What an answer of the leader came to."""

    NOTHING_NEW = auto()
    GOES_ON = auto()
    """The log changed: the next request says so."""
    CUTTING = auto()
    """The log is being cut: the result of `Follower.cutting` is what comes of it."""
    OUT_OF_RANGE = auto()
    """The leader does not have the offset: it must be asked where its log is."""
    FAILED = auto()
    """Not now: later."""


class Follower(Replica):
    """All calls are made on the loop."""

    __slots__ = ("_held_back", "_problem", "cutting", "failures", "is_throttled", "purgatory")

    def __init__(
        self, topic: TopicRecord, index: int, log: Log, high_watermark: int, waiting: Purgatory
    ) -> None:
        """`waiting`: producers whose records this broker appended when it led."""
        super().__init__(topic, index, log, min(high_watermark, log.log_end_offset))
        self._held_back = 0
        self.failures = 0
        """In a row."""
        self.is_throttled = False
        """Whether it is to catch up no faster than the broker's throttle allows."""
        self._problem = ""
        self.purgatory = waiting
        self.cutting: asyncio.Task[Outcome] | None = None
        """Cuts the log, in a thread; nobody may cancel it."""

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.index

    def follow(self, record: PartitionRecord) -> None:
        is_new_epoch = record.leader_epoch > self.record.leader_epoch
        self.record = record
        if is_new_epoch:
            wake(self.waiters, 0)

    def step_up(self) -> Purgatory:
        """This broker leads: those who wait for all replicas are the leader's now, consumers ask again."""
        wake(self.waiters, 0)
        return self.purgatory

    def release(self, code: ErrorCode) -> None:
        """The replica is not here any more: all who wait are let go."""
        self.purgatory.fail(code)
        wake(self.waiters, 0)

    def request(self, max_bytes: int) -> FetchPartition:
        log = self.log
        return FetchPartition(
            self.index,
            self.record.leader_epoch,
            log.log_end_offset,
            log.epochs.latest,
            log.log_start_offset,
            max_bytes,
        )

    def answered(self, data: PartitionData) -> Outcome:
        """Do what the leader's answer to `request` says; the log must not have changed in between."""
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
                return self._cut(append, lambda: self._told(data, before))
            append()
        return self._told(data, before)

    def _told(self, data: PartitionData, before: tuple[int, int]) -> Outcome:
        """The records of this answer are in the log, which was from and to `before`: the rest of what it says."""
        end = self.log.log_end_offset
        if (offset := min(data.high_watermark, end)) > self.high_watermark:
            self.high_watermark = offset
            size, self._held_back = self._held_back, 0
            wake(self.waiters, max(size, 1))
            self.purgatory.passed(offset)
        if data.log_start_offset > self.log.log_start_offset:
            self.log.delete_records_before(min(data.log_start_offset, end))
        if self.failures:
            self._recovered()
        now = self.log.log_start_offset, end
        return Outcome.NOTHING_NEW if now == before else Outcome.GOES_ON

    def _truncate(self, leader_epoch: int, leader_end: int) -> Outcome:
        end = self.log.log_end_offset
        offset = truncation_offset(self.log.epochs, end, leader_epoch, leader_end)
        log.info(
            "%s: cut from offset %d to %d: epoch %d of broker %d ends at %d",
            self,
            end,
            offset,
            leader_epoch,
            self.record.leader,
            leader_end,
        )
        return self._cut(lambda: self.log.truncate_to(offset, now_ms=_now_ms()))

    def _cut(
        self, change: Callable[[], object], then: Callable[[], Outcome] = lambda: Outcome.GOES_ON
    ) -> Outcome:
        self.log.truncating = True
        self.cutting = asyncio.create_task(self._cut_in_thread(change, then))
        return Outcome.CUTTING

    async def _cut_in_thread(self, change: Callable[[], object], then: Callable[[], Outcome]) -> Outcome:
        try:
            try:
                await asyncio.to_thread(change)
            finally:
                self.log.truncating, self.cutting = False, None
            start, end = self.log.log_start_offset, self.log.log_end_offset
            self.purgatory.cut(end)
            self.high_watermark = max(min(self.high_watermark, end), start)
            return then()
        except (ApiError, OSError) as error:
            return self._refused(error)

    def append(
        self, batches: memoryview, now_ms: int, *, acks: int, timeout_ms: int
    ) -> AppendInfo | DelayedProduce:
        """Answer a client that asks again, of a broker which led when it asked first; ApiError for other batches.

        As `Partition.append`.
        """
        if acks != -1 or (info := repeated(self.log, batches)) is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if info.last_offset < self.high_watermark:
            return info
        return self.purgatory.add(info.last_offset, DelayedProduce(acks, timeout_ms, info), timeout_ms)

    def begin_within(self, leader_start: int, leader_end: int) -> Outcome:
        """The leader's log is there and this one's end is not within: go on where it is."""
        end = self.log.log_end_offset
        if end > leader_end:
            log.warning(
                "%s: cut from offset %d to %d, where the log of broker %d ends",
                self,
                end,
                leader_end,
                self.record.leader,
            )
            return self._cut(lambda: self.log.truncate_to(leader_end, now_ms=_now_ms()))
        if end < leader_start:
            log.warning(
                "%s: starts anew at offset %d: broker %d has nothing before it any more, this log ended at %d",
                self,
                leader_start,
                self.record.leader,
                end,
            )
            self.purgatory.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return self._cut(lambda: self.log.start_anew(leader_start, now_ms=_now_ms()))
        return Outcome.GOES_ON

    def _refused(self, error: ApiError | OSError) -> Outcome:
        """The log cannot be changed."""
        self._failed(error.message if isinstance(error, ApiError) else describe(error), logging.ERROR)
        return Outcome.FAILED

    def _failed(self, problem: str, level: int) -> None:
        """Say it, once as long as it stays the same."""
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
