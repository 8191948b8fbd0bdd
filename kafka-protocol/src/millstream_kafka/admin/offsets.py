"""Offsets of many partitions, by time or by leader epoch: one request for each leader.

Raises BrokerError if a broker does not answer, and ApiError if a request is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..client.cluster import ClusterClient
from ..protocol import list_offsets, offset_for_leader_epoch
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ..protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ..topic_partition import TopicPartition
from .cluster import P, by_topic

CONSUMER: Final = -1
"""``replica_id`` of a client that is no replica."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels."""
NO_OFFSET_NOW: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""Errors of one partition, which may pass."""


class OffsetAdmin:
    """``timeout`` (s) is that of each request."""

    def __init__(self, cluster: ClusterClient, timeout: float = 30.0) -> None:
        self.cluster = cluster
        self.timeout = timeout

    async def offsets(
        self, wanted: Mapping[P, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """For each partition the offset of the first record at or after a time in milliseconds, -1 if there is none,
        or of one of the bounds in ``list_offsets``; without partitions for which no leader answers now.

        ``read_committed``: the log ends where the first open transaction begins (the last stable offset)."""
        found: dict[TopicPartition, int] = {}
        for leader, times in (await self._by_leader(wanted)).items():
            topics = [
                ListOffsetsTopic(
                    name,
                    [ListOffsetsPartition(index, timestamp=time) for index, time in partitions.items()],
                )
                for name, partitions in by_topic(times).items()
            ]
            request = ListOffsetsRequest(
                CONSUMER, READ_COMMITTED if read_committed else READ_UNCOMMITTED, topics
            )
            response = await self.cluster.call_node(leader, list_offsets.API, request, timeout=self.timeout)
            for topic in response.topics:
                for entry in topic.partitions:
                    if entry.error_code == ErrorCode.NONE:
                        found[topic.name, entry.partition_index] = entry.offset
                    elif entry.error_code not in NO_OFFSET_NOW:
                        code = ErrorCode.of(entry.error_code)
                        raise ApiError(code, f"offsets of {topic.name}-{entry.partition_index}")
        return found

    async def ends_of_epochs(self, broker: int, epochs: Mapping[P, int]) -> dict[TopicPartition, int]:
        """Where leader epochs end, of the partitions that this broker leads; -1 if the log has neither this epoch nor a
        later one."""
        if not epochs:
            return {}
        topics = [
            OffsetForLeaderTopic(
                name,
                [OffsetForLeaderPartition(index, leader_epoch=epoch) for index, epoch in partitions.items()],
            )
            for name, partitions in by_topic(epochs).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)
        response = await self.cluster.call_node(
            broker, offset_for_leader_epoch.API, request, timeout=self.timeout
        )
        return {
            (topic.topic, entry.partition): entry.end_offset
            for topic in response.topics
            for entry in topic.partitions
            if not entry.error_code
        }

    async def _by_leader(self, wanted: Mapping[P, int]) -> dict[int, dict[P, int]]:
        """By the partition's leader, without partitions that have none now. Raises ApiError for unknown ones."""
        response = await self.cluster.metadata({topic for topic, _ in wanted})
        leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in response.topics
            for partition in topic.partitions
        }
        if unknown := wanted.keys() - leaders.keys():
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unknown))
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partitions: {names}")
        alive = {broker.node_id for broker in response.brokers}
        found: dict[int, dict[P, int]] = {}
        for partition, time in wanted.items():
            if (leader := leaders[partition]) in alive:
                found.setdefault(leader, {})[partition] = time
        return found
