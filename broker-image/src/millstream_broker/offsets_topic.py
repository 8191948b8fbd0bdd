"""`__consumer_offsets` for the group coordinator's driver, on this broker's partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import time

from .delayed_produce import DelayedProduce
from .internal_topics import OFFSETS_TOPIC
from .replication.replicas import Replicas
from .topics import NewTopic, TopicAdministrator

log = logging.getLogger(__name__)


class BrokerOffsetsTopic:
    """`groups.store.OffsetsTopic`."""

    def __init__(
        self, replicas: Replicas, topics: TopicAdministrator, timeout_ms: int, factor: int = 1
    ) -> None:
        """`timeout_ms` is the longest time that an append may wait for the other replicas.

        `factor` is the number of replicas that a new topic has if there are as many brokers.
        """
        self._replicas = replicas
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._factor = factor

    def partition_count(self) -> int | None:
        topic = self._replicas.metadata.topics.get(OFFSETS_TOPIC)
        return None if topic is None else len(topic.partitions)

    async def create(self) -> int:
        topic = await self._topics.ensure_topic(NewTopic(OFFSETS_TOPIC))
        if (replicas := len(topic.partitions[0].replicas)) < self._factor:
            log.warning(
                "%s: created with %d of %d replicas (offsets.topic.replication.factor), because no more brokers"
                " are registered: the controller adds the others when they are",
                OFFSETS_TOPIC,
                replicas,
                self._factor,
            )
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
