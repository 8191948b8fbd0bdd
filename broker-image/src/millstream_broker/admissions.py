"""Appends that have to read records first: in a thread, one after the other.

A topic that is compacted, has a `compression.type` of its own or bounds the past of its timestamps needs each record
read, and perhaps decompressed and compressed again: up to half a second for one batch, which the loop must not take.
So its batches queue here. One thread admits them (`log.admission`), one coroutine appends what was admitted: batches
are appended in the order in which they came, and at most one is decompressed at a time, whatever the number of clients.

What queues here is the partitions' decision (`Partition.append`): batches that have to be read, and every batch for a
partition that has one waiting. A batch is admitted by the configuration of the moment when its turn comes.

The bytes that wait count towards `queued.max.request.bytes`: beyond it, no connection that waits for an append is
read. What a client sent before it went is appended all the same, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import time

from .partition import Append, Appended
from .protocol.errors import ApiError, ErrorCode
from .request_memory import RequestMemory

log = logging.getLogger(__name__)


class Admissions:
    """`partition.AppendQueue`. All calls are made on the loop."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, "admit")
        self._queue: deque[tuple[Append, asyncio.Future[Appended]]] = deque()
        self._work: asyncio.Task[None] | None = None

    def put(self, append: Append) -> asyncio.Future[Appended]:
        """See `partition.AppendQueue`."""
        appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._memory.hold(len(append.batches))
        self._queue.append((append, appended))
        if self._work is None:
            self._work = asyncio.create_task(self._append_all())
        return appended

    async def _append_all(self) -> None:
        while self._queue:
            append, appended = self._queue.popleft()
            try:
                result = await self._append(append)
            except ApiError as error:
                if not appended.cancelled():
                    appended.set_exception(_without_batches(error))
            except Exception as error:  # fails this batch alone; those behind it have their turn
                log.exception("%s: cannot append", append.partition)
                if not appended.cancelled():
                    appended.set_exception(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            else:
                if not appended.cancelled():
                    appended.set_result(result)
            finally:
                append.partition.turn_over()
                self._memory.free(len(append.batches))
        self._work = None

    async def _append(self, append: Append) -> Appended:
        partition, now_ms = append.partition, int(time() * 1000)
        partition.check_turn(append, now_ms)
        admitted = await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: partition.log.admit(append.batches, now_ms=now_ms)
        )
        return partition.append_admitted(append, admitted, now_ms)

    async def close(self) -> None:
        """Append nothing more: who waits gets no answer, for the connections are closed by now."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for _, appended in self._queue:
            appended.cancel()
        self._thread.shutdown(wait=False)


def _without_batches(error: ApiError) -> ApiError:
    """The error without the stack that raised it, which holds the batches as long as nobody has taken the error."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
