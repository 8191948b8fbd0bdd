"""Writes a coordinator's records into its internal topic.

One append at a time for each partition, in the order of the requests; requests in the meantime share the next batch
(group commit), up to ``BATCH_BYTES`` and ``BATCH_RECORDS``, and one by one if the topic's max.message.bytes is lower. A
reply follows the end of the append, never before.

A batch that is in the log, but not on enough replicas in time, is late: the next one follows it, and its writes are
stored when the high watermark passes it. Nobody waits for them any more, so a limit keeps them few
(``MOST_LATE``): beyond it writes are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol

from millstream_kafka.batch import NO_PRODUCER, Buffer, Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_process import supervision

from .effects import StoreMarker, StoreRecords, TransactionalProducer, TransactionMarker

BATCH_BYTES = 128 * 1024
"""A larger single write goes alone."""

BATCH_RECORDS = 200
"""Building a batch of this many takes a millisecond or two; a single write may have more, such as a large group's."""

MOST_LATE = 10_000
"""Writes of a partition that are late; more are refused with NOT_ENOUGH_REPLICAS, and are not in the log."""

_RECORD_OVERHEAD = 24

logger = logging.getLogger(__name__)


class Late(ApiError):
    """A batch is in the log, but not committed in time."""

    def __init__(self, error: ApiError, committed: Awaitable[bool]) -> None:
        """``committed``: True once it is committed; False when this broker no longer leads the partition."""
        super().__init__(error.code, error.message)
        self.committed = committed


class _TooLarge(Exception):
    """A batch of several writes is too large; each of them may not be."""


class InternalTopic(Protocol):
    """A coordinator's topic, as its runtime needs it."""

    @property
    def name(self) -> str: ...

    def partition_count(self) -> int | None:
        """None if the topic does not exist yet."""

    async def create(self) -> int:
        """Create the topic unless it exists; returns its number of partitions. Raises ApiError."""

    async def append(
        self,
        partition: int,
        batch: bytes,
        producer: TransactionalProducer | None = None,
        *,
        is_end: bool = False,
    ) -> None:
        """Return when the batch is committed as with acks=all. Raises ApiError: it is not in the log; or Late.

        The topic's limits of sizes do not apply to an end.
        """

    async def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        """Return when the marker is committed. Raises ApiError: it may be in the log, and can be repeated."""

    def read_all(self, partition: int) -> Iterator[Buffer]:
        """Snapshot of every batch in the log; iterate it in a thread. OSError, ApiError."""


class PartitionWriter:
    """``write`` queues an append and returns at once; ``stored(write, error)`` is called when it has ended.

    ``late(write, error)`` is called before that if the append is late.
    """

    def __init__(
        self,
        topic: InternalTopic,
        stored: Callable[[list[int], ErrorCode], None],
        late: Callable[[list[int], ErrorCode], None],
        entries: str,
    ) -> None:
        """``entries`` names what is written, in the names of tasks."""
        self._topic = topic
        self._entries = entries
        self._stored = stored
        self._late = late
        self._waiting = supervision.Tasks()
        """For the commits of late batches."""
        self._late_writes: Counter[int] = Counter()
        """Their writes, by partition."""
        self._failing: dict[int, ErrorCode] = {}
        """Partitions whose last append was refused: clients try again many times a second, and the log says it once."""
        self._queues: dict[int, deque[StoreRecords | StoreMarker]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def write(self, store: StoreRecords | StoreMarker) -> None:
        self._queues.setdefault(store.partition, deque()).append(store)
        if store.partition not in self._tasks:
            self._tasks[store.partition] = supervision.keep(
                f"writes of {self._entries}", partial(self._drain, store.partition)
            )

    def give_up(self, partition: int) -> None:
        """Drop waiting writes: their leadership has ended."""
        self._failing.pop(partition, None)
        if (queue := self._queues.get(partition)) is not None:
            queue.clear()

    async def finish(self, timeout_s: float) -> None:
        """Wait until all queued writes are appended, but not for replicas that may never have them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks.values())
        await supervision.cancel(self._tasks.values())
        await self._waiting.cancel()

    async def _drain(self, partition: int) -> None:
        queue = self._queues[partition]
        alone = 0
        while queue:
            if isinstance(marker := queue[0], StoreMarker):
                queue.popleft()
                await self._append_marker(marker)
                continue
            stores = self._take(queue, BATCH_RECORDS if not alone else 0)
            alone = max(alone - 1, 0)
            writes = [store.write for store in stores]
            if self._late_writes[partition] >= MOST_LATE:
                self._stored(writes, ErrorCode.NOT_ENOUGH_REPLICAS)
                continue
            try:
                error = await self._append(partition, stores)
            except Late as late:
                logger.warning("%s-%d: not committed in time: %s", self._topic.name, partition, late)
                self._late_writes[partition] += len(writes)
                self._waiting.add(
                    supervision.run(
                        f"late writes of {self._entries}", self._wait(partition, writes, late.committed)
                    )
                )
                self._late(writes, late.code)
            except _TooLarge:
                queue.extendleft(reversed(stores))
                alone = len(stores)
            else:
                self._stored(writes, error)
        del self._tasks[partition]

    async def _wait(self, partition: int, writes: list[int], committed: Awaitable[bool]) -> None:
        """Wait until late writes are committed. If this broker no longer leads, `unload` has ended them."""
        try:
            if await committed:
                self._stored(writes, ErrorCode.NONE)
        finally:
            self._late_writes[partition] -= len(writes)

    def _refused(self, partition: int, error: ApiError) -> ErrorCode:
        if self._failing.get(partition) is not error.code:
            self._failing[partition] = error.code
            logger.warning("%s-%d: cannot append: %s", self._topic.name, partition, error)
        return error.code

    @staticmethod
    def _take(queue: deque[StoreRecords | StoreMarker], most: int) -> list[StoreRecords]:
        """The next stores for one batch, one in any case; those of a transaction are in batches of their own."""
        first = queue.popleft()
        assert isinstance(first, StoreRecords)
        stores, size, count = [first], _size(first), len(first.records)
        while queue and isinstance(following := queue[0], StoreRecords):
            size, count = size + _size(following), count + len(following.records)
            if size > BATCH_BYTES or count > most or first.producer or following.producer:
                break
            stores.append(following)
            queue.popleft()
        return stores

    async def _append_marker(self, store: StoreMarker) -> None:
        error = ErrorCode.NONE
        try:
            await self._topic.append_marker(store.partition, store.marker)
        except ApiError as refusal:
            error = refusal.code
        except Exception:  # a defect, or an unknown disk error: never report success
            logger.exception("%s-%d: cannot append a marker", self._topic.name, store.partition)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        self._stored([store.write], error)

    async def _append(self, partition: int, stores: list[StoreRecords]) -> ErrorCode:
        now = int(time.time() * 1000)
        producer = stores[0].producer
        batch = build_batch(
            (Record(key, value, now) for store in stores for key, value in store.records),
            producer_id=NO_PRODUCER if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.producer_epoch,
            base_sequence=-1 if producer is None else 0,  # as Kafka's, whose tools show it
            transactional=producer is not None,
        )
        try:
            await self._topic.append(partition, batch, producer, is_end=all(store.is_end for store in stores))
        except Late:
            raise
        except ApiError as error:
            if len(stores) > 1 and error.code in (
                ErrorCode.MESSAGE_TOO_LARGE,
                ErrorCode.RECORD_LIST_TOO_LARGE,
            ):
                raise _TooLarge from error
            return self._refused(partition, error)
        except Exception:
            # A defect, or an unknown disk error: never report success.
            logger.exception("%s-%d: cannot append", self._topic.name, partition)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if self._failing.pop(partition, None) is not None:
            logger.info("%s-%d: appends again", self._topic.name, partition)
        return ErrorCode.NONE


def _size(store: StoreRecords) -> int:
    return sum(len(key) + len(value or b"") + _RECORD_OVERHEAD for key, value in store.records)
