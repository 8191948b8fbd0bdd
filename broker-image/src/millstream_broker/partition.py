"""A partition as clients see it: its log, who leads it, and how far its records may be read.

The *high watermark* is the offset below which records are safe as promised, and so may be read and acknowledged.
With one replica it is the log's end, held back by the flush policy: at most `flush.messages - 1` records above what
is known to be on the disk. When the policy holds records back, one fsync runs in a thread at a time and covers all
that was appended before it began (group commit); acknowledgements wait for it, not the loop.

Who waits for records (a long poll) is told on each advance, and waits on no timer but its own limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from .config import LONG_MAX, TopicConfig
from .coordination import PartitionRecord, TopicRecord
from .log.admission import Admitted
from .log.files import FileSlice
from .log.log import AppendInfo, Log
from .protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """Somebody who waits for records."""

    def advanced(self, size: int) -> None:
        """So many more bytes may be read; or the partition changed so that it is worth asking again (size 0)."""
        ...


class Partition:
    """One partition on this broker. All calls are made on the loop."""

    __slots__ = (
        "_flush_messages",
        "_flushing",
        "_held_back",
        "_unacknowledged",
        "acknowledges_at_once",
        "answers_at_once",
        "high_watermark",
        "index",
        "log",
        "min_insync_replicas",
        "record",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(self, topic: TopicRecord, index: int, log: Log, config: TopicConfig) -> None:
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.record = topic.partitions[index]
        self.high_watermark = log.log_start_offset
        self.waiters: set[Waiter] = set()
        self._flushing: asyncio.Future[None] | None = None
        self._held_back = 0
        self._unacknowledged: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.configure(config)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def configure(self, config: TopicConfig) -> None:
        self.min_insync_replicas = config.integer("min.insync.replicas")
        self._flush_messages = config.integer("flush.messages")
        self.acknowledges_at_once = self._flush_messages == LONG_MAX
        """Whether records are acknowledged without waiting for the disk."""
        self.answers_at_once = self.acknowledges_at_once and not self.log.config.reads_records
        """Whether nothing has to be waited for between a Produce request and its response."""
        self._appended(0)

    def lead(self, record: PartitionRecord) -> None:
        """Take the leader epoch that coordination gives."""
        self.record = record

    def check_epoch(self, epoch: int) -> None:
        """Compare the leader epoch a client knows (-1: none); raises ApiError (KIP-320)."""
        if epoch == -1 or epoch == self.record.leader_epoch:
            return
        if epoch < self.record.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_online(self) -> None:
        """Raises ApiError KAFKA_STORAGE_ERROR where the log cannot be used."""
        if (error := self.log.offline) is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self} is offline: {error.strerror or error}")

    def append(self, batches: memoryview, now_ms: int) -> AppendInfo:
        """Append record batches; raises ApiError. `acknowledged` tells when they are safe."""
        info = self.log.append(batches, leader_epoch=self.record.leader_epoch, now_ms=now_ms)
        if not info.duplicate:
            self._appended(len(batches))
        return info

    def append_admitted(self, admitted: Admitted, now_ms: int) -> AppendInfo:
        """Append batches that `log.admit` let in; raises ApiError."""
        info = self.log.append_admitted(admitted, leader_epoch=self.record.leader_epoch, now_ms=now_ms)
        if not info.duplicate:
            self._appended(len(admitted.view))
        return info

    def acknowledged(self, info: AppendInfo) -> asyncio.Future[None] | None:
        """None when the records are safe; else what completes when they are, or fails with ApiError."""
        if info.last_offset < self.high_watermark:
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unacknowledged.append((info.last_offset, waiting))
        return waiting

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, below the high watermark; raises ApiError."""
        return self.log.read(offset, max_bytes, upper=self.high_watermark, min_one=min_one)

    def _appended(self, size: int) -> None:
        """Move the high watermark as far as the flush policy allows, and see to the rest."""
        end = self.log.log_end_offset
        if self.acknowledges_at_once:
            self._advance(end, size)
            return
        self._held_back += size
        self._advance(min(end, self.log.flushed_offset + self._flush_messages - 1), size)
        if self._flushing is None and self.high_watermark < end:
            self._flushing = asyncio.ensure_future(self._flush())

    def _advance(self, offset: int, size: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.waiters:
            self._wake(size)
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0][0] < offset:
            waiting = unacknowledged.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)

    def _wake(self, size: int) -> None:
        for waiter in tuple(self.waiters):
            waiter.advanced(size)

    async def _flush(self) -> None:
        try:
            while self.high_watermark < self.log.log_end_offset:
                size, self._held_back = self._held_back, 0
                flushed = await asyncio.to_thread(self.log.flush)
                self._advance(min(self.log.log_end_offset, flushed + self._flush_messages - 1), size)
        except ApiError as error:
            log.error("%s: %s", self, error.message)
            self.release(error.code)
        finally:
            self._flushing = None

    def release(self, code: ErrorCode) -> None:
        """Let all who wait go, with an error: the partition is offline or gone."""
        while self._unacknowledged:
            waiting = self._unacknowledged.popleft()[1]
            if not waiting.done():
                waiting.set_exception(ApiError(code))
        self._wake(0)
