"""Appends whose records must be read first: validated in a thread, one after the other.

If a topic is compacted, has its own `compression.type` or bounds the age of its timestamps, the broker must read each
record, and perhaps decompress and recompress it: up to half a second for one batch, which must not block the loop. So
such batches queue here. One thread validates them (`log.validator`), and one coroutine appends the validated ones:
batches are appended in order of arrival, and at most one is decompressed at a time, whatever the number of clients.

Partitions decide what queues here (`Partition.append`): batches that must be read, and every batch for a partition that
has one waiting. A batch is validated by the configuration at the time of its turn.

Waiting bytes count towards `queued.max.request.bytes`: beyond it, the broker reads no connection that waits for an
append. It still appends requests whose client has disconnected, as Kafka does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_process import supervision

from ..log.append_origin import AppendOrigin
from ..log.log import Log
from ..log.validator import Validated
from ..runtime.request_memory import RequestMemory
from .purgatory import DelayedProduce

log = logging.getLogger(__name__)


class LedPartition(Protocol):
    """The partition to append to: `replication.partition`."""

    @property
    def log(self) -> Log: ...

    def check(self, batches: bytearray, acks: int, origin: AppendOrigin) -> None:
        """Raises ApiError if the batches cannot be appended, whatever their contents."""

    def append_validated(
        self, delayed: DelayedProduce, validated: Validated, batches: bytearray, now_ms: int
    ) -> None:
        """Raises ApiError."""

    def turn_over(self) -> None:
        """These batches have had their turn, whether they were appended or not."""


class AppendQueue:
    """All calls are made on the loop."""

    def __init__(self, memory: RequestMemory, fatal: Callable[[str], None] = lambda why: None) -> None:
        """`fatal` is called if appending fails as a whole: then nobody knows which batch was the last."""
        self._memory = memory
        self._fatal = fatal
        self._thread = ThreadPoolExecutor(1, "validate")
        self._queue: deque[tuple[LedPartition, DelayedProduce, bytearray, AppendOrigin]] = deque()
        self._work: asyncio.Task[None] | None = None

    def put(
        self, partition: LedPartition, delayed: DelayedProduce, batches: bytearray, origin: AppendOrigin
    ) -> None:
        """Queue batches. Their turn calls `Partition.append_validated`, or ends `delayed`; and always `turn_over`."""
        self._memory.hold(len(batches))
        self._queue.append((partition, delayed, batches, origin))
        if self._work is None:
            self._work = supervision.run("appends", self._append_all(), fatal=self._fatal)

    async def _append_all(self) -> None:
        while self._queue:
            partition, delayed, batches, origin = self._queue.popleft()
            try:
                await self._append(partition, delayed, batches, origin)
            except ApiError as error:
                delayed.end(error)
            except Exception as error:  # only this batch fails; the next ones get their turn
                log.exception("%s: cannot append", partition)
                delayed.end(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            finally:
                partition.turn_over()
                self._memory.free(len(batches))
        self._work = None

    async def _append(
        self, partition: LedPartition, delayed: DelayedProduce, batches: bytearray, origin: AppendOrigin
    ) -> None:
        now_ms = int(time() * 1000)
        partition.check(batches, delayed.acks, origin)  # validating them may be pointless by now
        validated = await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: partition.log.validate(batches, now_ms=now_ms, origin=origin)
        )
        partition.append_validated(delayed, validated, batches, now_ms)

    async def close(self) -> None:
        """Append nothing more. Waiting producers get no response, as their connections are closed by now."""
        if self._work is not None:
            await supervision.cancel([self._work])
        self._thread.shutdown(wait=False)
