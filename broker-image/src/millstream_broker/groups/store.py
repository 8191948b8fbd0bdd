"""Writes the coordinator's records into __consumer_offsets.

One append at a time for each partition, in the order of the requests; requests in the meantime share the next batch
(group commit), up to ``BATCH_BYTES`` and ``BATCH_RECORDS``. A reply follows the end of the append, never before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from millstream_kafka.batch import Buffer, Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_process import supervision

from .messages import StoreRecords

BATCH_BYTES = 128 * 1024
"""Well below any sensible max.message.bytes; a larger single write goes alone."""

BATCH_RECORDS = 200
"""Building a batch of this many takes a millisecond or two; a single write may have more, such as a large group's."""

_RECORD_OVERHEAD = 24

logger = logging.getLogger(__name__)


class OffsetsTopic(Protocol):
    """The topic __consumer_offsets, as the coordinator's driver needs it."""

    def partition_count(self) -> int | None:
        """None if the topic does not exist yet."""

    async def create(self) -> int:
        """Create the topic unless it exists; returns its number of partitions. Raises ApiError."""

    async def append(self, partition: int, batch: bytes) -> None:
        """Return when the batch is committed as with acks=all. Raises ApiError."""

    def read_all(self, partition: int) -> Iterator[Buffer]:
        """Snapshot of every batch in the log; iterate it in a thread. OSError, ApiError."""


class OffsetsWriter:
    """``write`` queues an append and returns at once; ``stored(write, error)`` is called when it has ended."""

    def __init__(self, topic: OffsetsTopic, stored: Callable[[list[int], ErrorCode], None]) -> None:
        self._topic = topic
        self._stored = stored
        self._queues: dict[int, deque[StoreRecords]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def write(self, store: StoreRecords) -> None:
        self._queues.setdefault(store.partition, deque()).append(store)
        if store.partition not in self._tasks:
            self._tasks[store.partition] = supervision.keep(
                "writes of groups", partial(self._drain, store.partition)
            )

    def give_up(self, partition: int) -> None:
        """Drop waiting writes: their leadership has ended."""
        if (queue := self._queues.get(partition)) is not None:
            queue.clear()

    async def finish(self, timeout_s: float) -> None:
        """Wait until all queued writes are appended, but not for replicas that may never have them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        await supervision.cancel(self._tasks.values())

    async def _drain(self, partition: int) -> None:
        queue = self._queues[partition]
        while queue:
            stores = self._take(queue)
            error = await self._append(partition, stores)
            self._stored([store.write for store in stores], error)
        del self._tasks[partition]

    @staticmethod
    def _take(queue: deque[StoreRecords]) -> list[StoreRecords]:
        stores = [queue.popleft()]
        size, count = _size(stores[0]), len(stores[0].records)
        while queue:
            size, count = size + _size(queue[0]), count + len(queue[0].records)
            if size > BATCH_BYTES or count > BATCH_RECORDS:
                break
            stores.append(queue.popleft())
        return stores

    async def _append(self, partition: int, stores: list[StoreRecords]) -> ErrorCode:
        now = int(time.time() * 1000)
        batch = build_batch(Record(key, value, now) for store in stores for key, value in store.records)
        try:
            await self._topic.append(partition, batch)
        except ApiError as error:
            logger.warning("__consumer_offsets-%d: cannot append: %s", partition, error)
            return error.code
        except Exception:
            # A defect, or an unknown disk error: never report success.
            logger.exception("__consumer_offsets-%d: cannot append", partition)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE


def _size(store: StoreRecords) -> int:
    return sum(len(key) + len(value or b"") + _RECORD_OVERHEAD for key, value in store.records)
