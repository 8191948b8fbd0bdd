"""Producers that wait: for their turn to be appended, then for the disk or for all replicas in sync.

An idempotent client must get the truth about appended records: librdkafka takes NOT_LEADER_OR_FOLLOWER and
KAFKA_STORAGE_ERROR as "no broker has them", resends them in other batches, is then refused by a leader that has them,
takes a new epoch, and so duplicates them. These errors are therefore only for records that are certainly in no log.
When a leader becomes a follower, its purgatory stays as it is. The follower learns the records' fate: the new
leader's high watermark passes them, and they are acknowledged (`passed`), or it lacks them, and they are truncated
(`truncated`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from millstream_kafka.appendable import validate
from millstream_kafka.batch import TRANSACTIONAL
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..log.append_info import AppendInfo
from ..log.log import Log

D = TypeVar("D", bound="Delayed")


class Delayed:
    """A waiting request. It ends once: await it, which raises its ApiError, or pass a function to `then`."""

    __slots__ = ("_callback", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: ApiError | None = None
        self._callback: Callable[[], None] | None = None

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end, in the same step; at once if it has already ended."""
        if self.is_done:
            callback()
        else:
            self._callback = callback

    def end(self, error: ApiError | None = None) -> None:
        if error is not None:  # without the stack that raised it, which refers to the batches
            error.__cause__ = error.__context__ = None
            self.error = error.with_traceback(None)
        self.is_done = True
        if (callback := self._callback) is not None:
            self._callback = None
            callback()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda: None if done.done() else done.set_result(None))
            yield from done
        if self.error is not None:
            raise self.error


class DelayedProduce(Delayed):
    """Batches for one partition that wait for their turn, and then for the safety that `acks` requires."""

    __slots__ = ("acks", "info", "timeout_ms")

    def __init__(self, acks: int, timeout_ms: int | None, info: AppendInfo | None = None) -> None:
        self.is_done, self.error, self._callback = False, None, None  # like super().__init__(), but faster
        self.acks = acks
        self.timeout_ms = timeout_ms if acks == -1 else None
        """Limits the wait for all replicas; None means no limit."""
        self.info = info
        """The appended batches, even if `error` says that they may not be safe; None before."""


_NOBODY: deque[tuple[int, float, Delayed]] = deque()
"""Shared by purgatories that were never used: a deque takes 600 bytes, and a broker has thousands of partitions."""


class Purgatory:
    """Requests that wait until an offset is passed."""

    __slots__ = ("_timer", "_timer_at", "_waiting")

    def __init__(self) -> None:
        self._waiting = _NOBODY
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """Of the loop. uvloop's handle does not know it if it is less than half a millisecond away."""

    def add(self, offset: int, delayed: D, timeout_ms: int | None) -> D:
        """Add a request that ends when the offset is passed; with REQUEST_TIMED_OUT after the timeout (None: never)."""
        deadline = float("inf")
        if timeout_ms is not None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + max(timeout_ms, 0) / 1000
            if self._timer is None or self._timer_at > deadline:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer, self._timer_at = loop.call_at(deadline, self._time_is_up), deadline
        if self._waiting is _NOBODY:
            self._waiting = deque()
        self._waiting.append((offset, deadline, delayed))
        return delayed

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def passed(self, offset: int) -> None:
        """Everything below `offset` is safe."""
        waiting = self._waiting
        while waiting and waiting[0][0] < offset:
            waiting.popleft()[2].end()

    def truncated(self, offset: int) -> None:
        """The records from `offset` on are in no valid log: end with NOT_LEADER_OR_FOLLOWER, which means just that."""
        self._end([entry for entry in self._waiting if entry[0] >= offset], ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail(self, code: ErrorCode) -> None:
        """This broker will not learn the fate of the records: they are appended, and the next leader may keep them.

        The error is NOT_ENOUGH_REPLICAS_AFTER_APPEND; Kafka returns `code` here.
        """
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self.refuse(code)

    def refuse(self, code: ErrorCode) -> None:
        """End all with this error: they wait for something else than appended records."""
        self._end(list(self._waiting), code)

    def _time_is_up(self) -> None:
        """One timer covers the earliest deadline, which may belong to a request that has ended since."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        self._end([entry for entry in self._waiting if entry[1] <= now], ErrorCode.REQUEST_TIMED_OUT)
        earliest = min((deadline for _, deadline, _ in self._waiting), default=float("inf"))
        if earliest < float("inf"):
            self._timer, self._timer_at = loop.call_at(earliest, self._time_is_up), earliest

    def _end(self, ended: list[tuple[int, float, Delayed]], code: ErrorCode) -> None:
        if len(ended) == len(self._waiting):
            self._waiting.clear()
        elif ended:
            gone = set(ended)
            self._waiting = deque(entry for entry in self._waiting if entry not in gone)
        for _, _, delayed in ended:
            delayed.end(ApiError(code))


def repeated(log: Log, batches: bytearray | memoryview) -> AppendInfo | None:
    """The response to batches that the log already has; None if it does not have them."""
    try:
        headers = validate(batches, log.config.max_message_bytes, allowed=TRANSACTIONAL)
        stored = log.producers.check(headers)
    except ApiError:
        return None
    if stored is None:
        return None
    start = log.log_start_offset
    return AppendInfo(stored.first_offset, stored.last_offset, stored.timestamp, start, duplicate=True)
