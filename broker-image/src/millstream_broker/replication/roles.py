"""What this broker is to a partition: its leader, a follower, or neither.

State of a partition that is not served stays in its log: the high watermark of the former role is that of the next.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import BrokerConfig, TopicConfig
from ..coordination import PartitionRecord, TopicRecord
from ..log.log import Log
from ..metadata.effective_configs import EffectiveConfigs
from .append_queue import AppendQueue
from .fetcher_manager import ReplicaFetcherManager
from .follower import Follower
from .isr import Isr
from .log_starts import LogStarts
from .partition import Partition, now_ms
from .purgatory import Purgatory
from .replicas import Replicas
from .throttle import is_listed


class Coordinator(Protocol):
    """A coordinator's interest in the partitions of its internal topic that are led here, with Kafka's names."""

    def set_partition_count(self, count: int) -> None:
        """Set its topic's number of partitions."""

    def on_election(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition from now on, in that epoch or later ones."""

    def on_resignation(self, partition: int) -> None:
        """This broker no longer leads it."""

    def on_topics_deleted(self, deleted: Mapping[str, uuid.UUID]) -> None:
        """Topics of these names and ids were deleted."""


class Roles:
    """Those of one broker, in `Replicas`. A partition is led or followed, never both."""

    def __init__(
        self,
        replicas: Replicas,
        config: BrokerConfig,
        configs: EffectiveConfigs,
        *,
        fetchers: ReplicaFetcherManager,
        append_queue: AppendQueue,
        coordinators: Mapping[str, Coordinator],
        unwritable: Callable[[], None],
        raise_epoch: Callable[[Partition, int, int], None],
        differs: Callable[[Follower], None],
    ) -> None:
        """`differs` is called if the leader has another log than an unconfirmed one here."""
        self._replicas = replicas
        self._config = config
        self._configs = configs
        self._fetchers = fetchers
        self._append_queue = append_queue
        self._coordinators = coordinators
        self._unwritable = unwritable
        self._raise_epoch = raise_epoch
        self._differs = differs
        self.starts = LogStarts()

    def assume(self, topic: TopicRecord, index: int, opened: Log) -> None:
        """Lead or follow, as the topic's record says."""
        config = self._configs.of(topic)
        opened.reconfigure(self._configs.of_logs(topic))
        if topic.partitions[index].leader == self._replicas.broker_id:
            self._lead(topic, index, opened, config)
        else:
            self._follow_leader(topic, index, opened)
            replicas = config.strings("follower.replication.throttled.replicas")
            throttled = is_listed(replicas, index, self._replicas.broker_id)
            self._replicas.followers[topic.name, index].is_throttled = throttled

    def _lead(self, topic: TopicRecord, index: int, opened: Log, config: TopicConfig) -> None:
        key, record = (topic.name, index), topic.partitions[index]
        partition = self._replicas.partitions.get(key)
        if partition is not None:
            if record is not partition.record:
                joined = partition.isr is None and len(record.replicas) > 1
                isr = self._isr(record, opened, partition.high_watermark, config) if joined else None
                was_elected = record.leader_epoch != partition.record.leader_epoch
                partition.lead(record, isr)
                if was_elected:  # again: another broker may have led meanwhile
                    self._tell_coordinator(topic, index, record)
            partition.configure(config)
            return
        opened.confirm(record.leader_epoch)
        high_watermark, waiting = opened.last_high_watermark, None
        if (follower := self._replicas.followers.pop(key, None)) is not None:
            self._fetchers.remove(follower)
            high_watermark, waiting = follower.high_watermark, follower.step_up()
        isr = None
        if len(record.replicas) > 1:
            opened.assign_leader_epoch(record.leader_epoch)
            isr = self._isr(record, opened, max(high_watermark, opened.log_start_offset), config)
        queue = self._append_queue
        self._replicas.partitions[key] = Partition(
            topic,
            index,
            opened,
            config,
            queue,
            isr,
            self._unwritable,
            waiting,
            self._raise_epoch,
            self.starts,
        )
        self._tell_coordinator(topic, index, record)

    def _tell_coordinator(self, topic: TopicRecord, index: int, record: PartitionRecord) -> None:
        if (coordinator := self._coordinators.get(topic.name)) is not None:
            coordinator.on_election(index, record.leader_epoch)

    def _isr(self, record: PartitionRecord, opened: Log, high_watermark: int, config: TopicConfig) -> Isr:
        return Isr(
            self._replicas.broker_id,
            record,
            log_end=opened.log_end_offset,
            high_watermark=high_watermark,
            min_isr=config.integer("min.insync.replicas"),
            max_lag_ms=self._config.integer("replica.lag.time.max.ms"),
            alive=self._replicas.latest_image.brokers,
            now_ms=now_ms(),
        )

    def _follow_leader(self, topic: TopicRecord, index: int, opened: Log) -> None:
        key, record = (topic.name, index), topic.partitions[index]
        follower = self._replicas.followers.get(key)
        if follower is not None:
            was = follower.record
            if (was.leader, was.leader_epoch) == (record.leader, record.leader_epoch):
                follower.follow(record)
                return
            self._fetchers.remove(follower)
            follower.follow(record)
        else:
            high_watermark, waiting = opened.last_high_watermark, Purgatory()
            if (led := self._replicas.partitions.get(key)) is not None:
                high_watermark, waiting = led.high_watermark, led.step_down()
                self.stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            follower = self._replicas.followers[key] = Follower(
                topic, index, opened, high_watermark, waiting, self.starts, self._differs
            )
        self._fetchers.add(follower)

    def lead_on(self, before: Partition, topic: TopicRecord, isr: Isr | None) -> None:
        """Lead the same log under the same record and ISR, with an ISR write perhaps in flight."""
        config, index = self._configs.of(topic), before.index
        partition = Partition(
            topic,
            index,
            before.log,
            config,
            self._append_queue,
            isr,
            self._unwritable,
            raise_epoch=self._raise_epoch,
            starts=self.starts,
        )
        partition.record = before.record if isr is None else isr.record
        self._replicas.partitions[topic.name, index] = partition

    async def truncation_ends(self, key: TopicPartition) -> None:
        """Return when the follower's log is not being truncated: its role may change in this turn of the loop."""
        while (follower := self._replicas.followers.get(key)) is not None and follower.truncation is not None:
            await asyncio.wait([follower.truncation])

    def stop(self, key: TopicPartition, code: ErrorCode) -> None:
        """Neither lead nor follow; the log stays."""
        if (follower := self._replicas.followers.pop(key, None)) is not None:
            self._fetchers.remove(follower)
            follower.log.last_high_watermark = follower.high_watermark
            follower.release(code)
        if (partition := self._replicas.partitions.pop(key, None)) is not None:
            partition.log.last_high_watermark = partition.high_watermark
            partition.release(code)
            if (coordinator := self._coordinators.get(key[0])) is not None:
                coordinator.on_resignation(key[1])
