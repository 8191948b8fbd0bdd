"""`__consumer_offsets` for the group coordinator's driver, on this broker's partitions."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

from .delayed_produce import DelayedProduce
from .internal_topics import OFFSETS_TOPIC
from .replication.replicas import Replicas
from .topics import NewTopic, TopicAdministrator


class BrokerOffsetsTopic:
    """`groups.store.OffsetsTopic`."""

    def __init__(self, replicas: Replicas, topics: TopicAdministrator, timeout_ms: int) -> None:
        """`timeout_ms` is the longest time that an append may wait for the other replicas."""
        self._replicas = replicas
        self._topics = topics
        self._timeout_ms = timeout_ms

    def partition_count(self) -> int | None:
        topic = self._replicas.metadata.topics.get(OFFSETS_TOPIC)
        return None if topic is None else len(topic.partitions)

    async def create(self) -> int:
        topic = await self._topics.ensure_topic(NewTopic(OFFSETS_TOPIC))
        return len(topic.partitions)

    async def append(self, partition: int, batch: bytes) -> None:
        offsets = self._replicas.partition(OFFSETS_TOPIC, partition)
        records = memoryview(bytearray(batch))
        appended = offsets.append(records, int(time() * 1000), timeout_ms=self._timeout_ms, own=True)
        if isinstance(appended, DelayedProduce):
            await appended

    def read_all(self, partition: int) -> Iterator[bytes]:
        log = self._replicas.partition(OFFSETS_TOPIC, partition).log
        return log.batches_from(log.log_start_offset)
