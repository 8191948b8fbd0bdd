"""Appends that have to read records first: in a thread, one after the other.

A topic that is compacted, has a `compression.type` of its own or bounds the past of its timestamps needs each record
read, and perhaps decompressed and compressed again: up to half a second for one batch, which the loop must not take.
So its batches queue here. One thread admits them (`log.admission`), one coroutine appends what was admitted: batches
are appended in the order in which they came, and at most one is decompressed at a time, whatever the number of clients.

Small batches that are not compressed are read at once where nothing waits before them.

The bytes that wait count towards `queued.max.request.bytes`: beyond it, no connection that waits for an append is
read. What a client sent before it went is appended all the same, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import TYPE_CHECKING, NamedTuple

from .log.batch import CODEC_MASK, HEADER_SIZE
from .log.log import AppendInfo
from .partition import Partition
from .protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from .broker import Broker

AT_ONCE_BYTES = 4096
"""So much that is not compressed is read on the loop: the least records take less than a millisecond."""
_ATTRIBUTES_END = 23


class Waiting(NamedTuple):
    partition: Partition
    batches: bytearray
    appended: asyncio.Future[AppendInfo]


class Admissions:
    """All calls are made on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, "admit")
        self._queue: deque[Waiting] = deque()
        self._waiting: Counter[Partition] = Counter()
        self._work: asyncio.Task[None] | None = None

    def append(
        self, partition: Partition, batches: memoryview, *, read: bool = False
    ) -> AppendInfo | asyncio.Future[AppendInfo]:
        """Like `Partition.append`, or what will have its result or its ApiError. `read`: always in the thread."""
        if not read and partition not in self._waiting and _is_cheap(batches):
            return partition.append(batches, int(time() * 1000))
        appended: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        self._broker.server.hold(len(batches))
        self._waiting[partition] += 1
        self._queue.append(Waiting(partition, bytearray(batches), appended))
        if self._work is None:
            self._work = asyncio.create_task(self._append_all())
        return appended

    async def _append_all(self) -> None:
        while self._queue:
            one = self._queue.popleft()
            size = len(one.batches)
            try:
                info = await self._append(one)
            except ApiError as error:
                if not one.appended.cancelled():
                    one.appended.set_exception(error)
            else:
                if not one.appended.cancelled():
                    one.appended.set_result(info)
            finally:
                self._waiting[one.partition] -= 1
                if not self._waiting[one.partition]:
                    del self._waiting[one.partition]
                self._broker.server.free_frame(size)
        self._work = None

    async def _append(self, one: Waiting) -> AppendInfo:
        partition, now_ms = one.partition, int(time() * 1000)
        admitted = await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: partition.log.admit(one.batches, now_ms=now_ms)
        )
        if self._broker.partition(partition.topic, partition.index) is not partition:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition.append_admitted(admitted, now_ms)

    async def close(self) -> None:
        """Append nothing more: who waits gets no answer, for the connections are closed by now."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for one in self._queue:
            one.appended.cancel()
        self._thread.shutdown(wait=False)


def _is_cheap(batches: memoryview) -> bool:
    return len(batches) < HEADER_SIZE or (
        len(batches) <= AT_ONCE_BYTES and not batches[_ATTRIBUTES_END - 1] & CODEC_MASK
    )
