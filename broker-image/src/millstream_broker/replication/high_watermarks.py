"""Keeps high watermarks beyond the process, in `replication-offset-checkpoint` of each log directory."""

from __future__ import annotations

import asyncio
import uuid

from millstream_kafka.topic_partition import TopicPartition

from ..config.config import BrokerConfig
from ..log.manager import LogManager
from ..runtime.slices import cooperatively
from .follower import Follower
from .replicas import Replicas


class HighWatermarks:
    def __init__(self, replicas: Replicas, logs: LogManager, config: BrokerConfig) -> None:
        self._replicas = replicas
        self._logs = logs
        self._config = config

    async def keep(self) -> None:
        """Write the high watermarks periodically, until it is cancelled."""
        interval_s = self._config.integer("replica.high.watermark.checkpoint.interval.ms") / 1000
        while True:
            await asyncio.sleep(max(interval_s, 0.01))
            await self.write()

    async def write(self) -> None:
        """Write those of replicated partitions, in directories where any has changed."""
        now: dict[TopicPartition, tuple[uuid.UUID | None, int]] = {}
        async for replica in cooperatively(list(self._replicas.all())):
            if isinstance(replica, Follower) or replica.isr is not None:
                now[replica.topic, replica.index] = replica.log.topic_id, replica.high_watermark
        await asyncio.to_thread(self._logs.write_high_watermarks, now)
