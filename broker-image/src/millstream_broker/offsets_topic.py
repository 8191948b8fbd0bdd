"""`__consumer_offsets` as the group coordinator's driver needs it, on this broker's partitions."""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from typing import TYPE_CHECKING

from .delayed_produce import DelayedProduce
from .internal_topics import OFFSETS_TOPIC
from .topics import NewTopic, ensure_topic

if TYPE_CHECKING:
    from .broker import Broker


class BrokerOffsetsTopic:
    """`groups.store.OffsetsTopic`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def partition_count(self) -> int | None:
        topic = self._broker.metadata.topics.get(OFFSETS_TOPIC)
        return None if topic is None else len(topic.partitions)

    async def create(self) -> int:
        topic = await ensure_topic(self._broker, NewTopic(OFFSETS_TOPIC))
        return len(topic.partitions)

    async def append(self, partition: int, batch: bytes) -> None:
        offsets = self._broker.partition(OFFSETS_TOPIC, partition)
        timeout_ms = self._broker.config.integer("offsets.commit.timeout.ms")
        records = memoryview(bytearray(batch))
        appended = offsets.append(records, int(time() * 1000), timeout_ms=timeout_ms, own=True)
        if isinstance(appended, DelayedProduce):
            await appended

    def read_all(self, partition: int) -> Iterator[bytes]:
        log = self._broker.partition(OFFSETS_TOPIC, partition).log
        return log.batches_from(log.log_start_offset)
