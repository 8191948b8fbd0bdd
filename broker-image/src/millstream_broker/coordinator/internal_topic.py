"""An internal topic for the runtime of its coordinator, on this broker's partitions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from time import time

from millstream_kafka.protocol.errors import ApiError

from ..administration.topics import NewTopic, TopicAdministrator
from ..log.append_origin import AppendOrigin
from ..log.verifications import VerificationGuard
from ..replication.markers import append_marker
from ..replication.partition import Partition
from ..replication.purgatory import DelayedProduce
from ..replication.replicas import Replicas
from .effects import TransactionalProducer, TransactionMarker
from .writer import Late

log = logging.getLogger(__name__)


class _Commits:
    """A `FetchWaiter` of one leadership: resolves futures, in order, as the high watermark passes offsets."""

    def __init__(self, replicas: Replicas, partition: Partition) -> None:
        self.partition = partition
        self._replicas = replicas
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()

    def reach(self, offset: int) -> asyncio.Future[bool]:
        """True once the record at this offset is committed, False when this broker no longer leads.

        Call it with rising offsets.
        """
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, reached))
        self.partition.waiters.add(self)
        self.advanced(0)
        return reached

    def advanced(self, size: int) -> None:
        waiting, key = self._waiting, (self.partition.topic, self.partition.index)
        while waiting and waiting[0][0] < self.partition.high_watermark:
            _resolve(waiting.popleft()[1], True)
        if self._replicas.partitions.get(key) is not self.partition:
            while waiting:
                _resolve(waiting.popleft()[1], False)
        if not waiting:
            self.partition.waiters.discard(self)

    def committed(self) -> None:
        """The start of the log moved."""


def _resolve(reached: asyncio.Future[bool], is_committed: bool) -> None:
    if not reached.done():  # the writer may have stopped waiting
        reached.set_result(is_committed)


class BrokerInternalTopic:
    """`coordinator.writer.InternalTopic`."""

    def __init__(
        self,
        name: str,
        replicas: Replicas,
        topics: TopicAdministrator,
        *,
        timeout_ms: int,
        factor: int = 1,
        factor_key: str = "",
    ) -> None:
        """`timeout_ms` is the longest time that an append may wait for the other replicas.

        `factor` is the number of replicas that a new topic has if there are as many brokers, `factor_key` the setting
        that it comes from.
        """
        self.name = name
        self._replicas = replicas
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._factor = factor
        self._factor_key = factor_key
        self._commits: dict[int, _Commits] = {}
        """By partition, of its last leadership here in which a batch was late."""

    def partition_count(self) -> int | None:
        topic = self._replicas.metadata.topics.get(self.name)
        return None if topic is None else len(topic.partitions)

    async def create(self) -> int:
        topic = await self._topics.ensure_topic(NewTopic(self.name))
        if (replicas := len(topic.partitions[0].replicas)) < self._factor:
            log.warning(
                "%s: created with %d of %d replicas (%s), because no more brokers are registered: the controller"
                " adds the others when they are",
                self.name,
                replicas,
                self._factor,
                self._factor_key,
            )
        return len(topic.partitions)

    async def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        await append_marker(
            self._replicas.partition(self.name, partition),
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            committed=marker.committed,
            transaction_version=marker.transaction_version,
        )

    async def append(
        self,
        partition: int,
        batch: bytes,
        producer: TransactionalProducer | None = None,
        *,
        is_end: bool = False,
    ) -> None:
        led = self._replicas.partition(self.name, partition)
        if producer is not None and isinstance(producer.guard, VerificationGuard):
            producers = led.log.producers
            if not producers.is_open(producer.producer_id, producer.producer_epoch):
                producers.verifications.verified(producer.guard)
        records = memoryview(bytearray(batch))
        appended = led.append(
            records,
            int(time() * 1000),
            timeout_ms=self._timeout_ms,
            origin=AppendOrigin.COORDINATOR_END if is_end else AppendOrigin.COORDINATOR,
        )
        if isinstance(appended, DelayedProduce):
            try:
                await appended
            except ApiError as error:
                if appended.info is None:
                    raise
                raise Late(error, self._commits_of(led).reach(appended.info.last_offset)) from None

    def _commits_of(self, partition: Partition) -> _Commits:
        known = self._commits.get(partition.index)
        if known is None or known.partition is not partition:
            self._commits[partition.index] = known = _Commits(self._replicas, partition)
        return known

    def read_all(self, partition: int) -> Iterator[bytes]:
        log = self._replicas.partition(self.name, partition).log
        return log.batches_from(log.log_start_offset)
