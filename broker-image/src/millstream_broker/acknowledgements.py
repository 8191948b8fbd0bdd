"""Producers that wait for their records to be safe, by the offset that has to be passed.

An idempotent client must be told the truth about records that were appended: librdkafka takes NOT_LEADER_OR_FOLLOWER
and KAFKA_STORAGE_ERROR for "nobody has them", puts them into other batches when it sends them again, is then refused by
a leader that has them, takes a new epoch, and has them written twice. So these errors are for records that are in no
log for certain. Who waits while the leader changes goes on waiting with the follower that the leader becomes, which
learns what became of the records: they are acknowledged when the new leader's high watermark passes them (`passed`), or
cut off because it does not have them (`cut`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from .log.batch import validate
from .log.log import AppendInfo, Log
from .protocol.errors import ApiError, ErrorCode


class Acknowledgements:
    """Producers that wait until an offset is passed."""

    __slots__ = ("_timer", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, last_offset: int, timeout_ms: int | None) -> asyncio.Future[None]:
        """What completes when the offset is passed; REQUEST_TIMED_OUT after the time, None: never."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        deadline = float("inf")
        if timeout_ms is not None:
            deadline = loop.time() + max(timeout_ms, 0) / 1000
            if self._timer is None or self._timer.when() > deadline:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_at(deadline, self._time_is_up)
        self._waiting.append((last_offset, deadline, waiting))
        return waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def passed(self, offset: int) -> None:
        """Everything below `offset` is safe."""
        waiting = self._waiting
        while waiting and waiting[0][0] < offset:
            one = waiting.popleft()[2]
            if not one.done():
                one.set_result(None)

    def cut(self, offset: int) -> None:
        """The records from `offset` on are in no log that counts: NOT_LEADER_OR_FOLLOWER, which says so."""
        left: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        for one in self._waiting:
            if one[0] < offset:
                left.append(one)
            elif not one[2].done():
                one[2].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._waiting = left

    def fail(self, code: ErrorCode) -> None:
        """What becomes of the records will not be known here: they are appended, and may be kept by the next leader.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND says that, where Kafka says what `code` does.
        """
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        while self._waiting:
            one = self._waiting.popleft()[2]
            if not one.done():
                one.set_exception(ApiError(code))

    def _time_is_up(self) -> None:
        """One timer stands for the earliest deadline, or one that has been answered in the meantime."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        left: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        for last_offset, deadline, waiting in self._waiting:
            if waiting.done():
                continue
            if deadline <= now:
                waiting.set_exception(ApiError(ErrorCode.REQUEST_TIMED_OUT))
            else:
                left.append((last_offset, deadline, waiting))
        self._waiting = left
        earliest = min((deadline for _, deadline, _ in left), default=float("inf"))
        if earliest < float("inf"):
            self._timer = loop.call_at(earliest, self._time_is_up)


def repeated(log: Log, batches: bytearray | memoryview) -> AppendInfo | None:
    """What a leader answers to batches that its log has already; None where this log does not have them."""
    try:
        stored = log.producers.check(validate(batches, log.config.max_message_bytes))
    except ApiError:
        return None
    if stored is None:
        return None
    start = log.log_start_offset
    return AppendInfo(stored.first_offset, stored.last_offset, stored.timestamp, start, duplicate=True)
