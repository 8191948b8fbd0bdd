"""The replicas on this broker, and its view of the cluster, for everything that serves clients.

Only the `ReplicaManager` changes them. `metadata` is replaced as a whole, and only when this broker has applied it: no
client is sent to a partition that is not open yet.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..coordination import ClusterState, PartitionRecord
from ..metadata.cache import Metadata
from .follower import Follower
from .partition import Partition

CATCH_UP_S = 120.0
"""How long to wait for this broker to apply a change: it may have to create thousands of logs."""


class Replicas:
    """All calls are made on the loop."""

    def __init__(self, broker_id: int, state: ClusterState) -> None:
        """`state` is the first one from coordination, not applied yet."""
        self.broker_id = broker_id
        self.partitions: dict[TopicPartition, Partition] = {}
        """The partitions that this broker leads; the hot path uses nothing else."""
        self.followers: dict[TopicPartition, Follower] = {}
        self.unopened: dict[TopicPartition, str] = {}
        """Partitions that should be here and are not, with the reasons."""
        self.latest_image = state
        """The latest image of the cluster from coordination."""
        self.metadata = Metadata(replace(state, brokers={}, topics={}))
        """The image that this broker has applied."""
        self._version, self._applied = 1, 0
        """Versions of the latest and of the applied image."""
        self._waiting: list[asyncio.Future[None]] = []

    # Following coordination

    def receive_image(self, image: ClusterState) -> None:
        self.latest_image = image
        self._version += 1

    @property
    def latest(self) -> tuple[ClusterState, int]:
        """The latest image, and its version for `applied`."""
        return self.latest_image, self._version

    def applied(self, version: int) -> None:
        """The image of this version has been applied."""
        self._applied = version
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @property
    def is_behind(self) -> bool:
        """Whether the latest image has not been applied yet."""
        return self._applied < self._version

    async def caught_up(self) -> None:
        """Return when this broker has applied coordination's latest state. Raises ApiError REQUEST_TIMED_OUT."""
        version = self._version
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while self._applied < version:
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            message = f"it is written, but this broker does not do it yet after {CATCH_UP_S:g} s"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, message) from None

    # Replicas here

    def partition(self, topic: str, index: int) -> Partition:
        """Raises ApiError NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise self.why_not_led(topic, index)
        return partition

    def get(self, key: TopicPartition) -> Partition | Follower:
        """A replica here, led or followed. Raises ApiError."""
        held = self.held(key)
        if held is None:
            raise self.why_not_led(*key)
        return held

    def held(self, key: TopicPartition) -> Partition | Follower | None:
        return self.partitions.get(key) or self.followers.get(key)

    def all(self) -> Iterator[Partition | Follower]:
        """Every replica here, led or followed."""
        yield from self.partitions.values()
        yield from self.followers.values()

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of the topic of that name in coordination's latest state; ZERO_UUID if there is none."""
        return topic_id(self.latest_image, name)

    def known_record(self, partition: Partition) -> PartitionRecord | None:
        """Coordination's latest record of a partition."""
        if self.topic_id(partition.topic) != partition.topic_id:
            return None
        records = self.latest_image.topics[partition.topic].partitions
        return records[partition.index] if partition.index < len(records) else None

    def why_not_led(self, topic: str, index: int) -> ApiError:
        """The error for a partition that this broker does not lead."""
        if (reason := self.unopened.get((topic, index))) is not None:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        record = self.metadata.topics.get(topic)
        if (
            record is None
            or record.topic_id != self.topic_id(topic)
            or not 0 <= index < len(record.partitions)
        ):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether a replica that should be here cannot be used."""
        key = topic, index
        held = self.held(key)
        return key in self.unopened if held is None else held.log.offline is not None

    def high_watermark(self, key: TopicPartition) -> int:
        """Records below it are safe; 0 for a partition that is not served."""
        held = self.held(key)
        return 0 if held is None else held.high_watermark


def topic_id(state: ClusterState, name: str) -> uuid.UUID:
    """The id of the topic of that name; ZERO_UUID if there is none."""
    topic = state.topics.get(name)
    return ZERO_UUID if topic is None else topic.topic_id


def lag(held: Partition | Follower) -> int:
    """The number of committed records that a follower lacks, as in KIP-113."""
    return max(0, held.high_watermark - held.log.log_end_offset)
