"""Consumer groups of a cluster: the list of them, and their committed offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import list_groups, offset_commit, offset_fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsRequest
from millstream_kafka.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream_kafka.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millstream_kafka.topic_partition import TopicPartition

from .topics import in_parts

COMMIT_BYTES = 500_000
"""Most of one request: half of what __consumer_offsets takes in a batch by default (message.max.bytes)."""
RECORD_BYTES = 64
"""Of a position, beside its names and metadata."""
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
LOADING_S, LOADING_RETRY_S = 2.0, 0.05


@dataclass(frozen=True, slots=True)
class Position:
    """A committed offset with its metadata, and the leader epoch of the record before it (KIP-320); -1: unknown."""

    offset: int
    metadata: str
    leader_epoch: int = -1


async def groups_in(cluster: ClusterClient) -> list[ListedGroup]:
    """The groups that the known brokers coordinate. Raises BrokerError, ApiError.

    A broker that still loads groups responds with an error and the groups loaded so far: it is queried again for two
    seconds, as loading takes milliseconds where the first group of a cluster begins.
    """
    answers = await asyncio.gather(*(_groups_of(cluster, node) for node in list(cluster.brokers)))
    return [group for groups in answers for group in groups]


async def _groups_of(cluster: ClusterClient, node: int) -> list[ListedGroup]:
    deadline = time.monotonic() + LOADING_S
    while True:
        answer = await cluster.call_node(node, list_groups.API, ListGroupsRequest())
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE:
            return answer.groups
        if error not in LOADING or time.monotonic() >= deadline:
            raise ApiError(error, f"listing the groups of broker {node}")
        await asyncio.sleep(LOADING_RETRY_S)


async def positions_of(cluster: ClusterClient, group: str) -> dict[TopicPartition, Position]:
    """All committed offsets of a group. Raises BrokerError, ApiError."""
    request = OffsetFetchRequest(group, None, [OffsetFetchRequestGroup(group, topics=None)])
    response = await cluster.call_coordinator(group, offset_fetch.BY_NAME, request)
    answer = response.groups[0] if response.groups else response
    if answer.error_code:
        error = ErrorCode.of(answer.error_code)
        if is_moved(error):
            cluster.forget_coordinator(group)
        raise ApiError(error, f"reading the positions of group {group}")
    return {
        (topic.name, each.partition_index): Position(
            each.committed_offset, each.metadata or "", each.committed_leader_epoch
        )
        for topic in answer.topics
        for each in topic.partitions
        if each.committed_offset >= 0 and not each.error_code
    }


async def commit(
    cluster: ClusterClient,
    group: str,
    positions: Mapping[TopicPartition, Position],
    member_id: str = "",
    generation: int = -1,
) -> dict[TopicPartition, ErrorCode]:
    """Commit as a member, or, without a member id, as an administrator: then only a group without members accepts it.

    Many go in several requests: Kafka writes all positions of a request in one batch. Returns the error code of each
    partition. Raises BrokerError; some may be committed then.
    """

    def size(item: tuple[TopicPartition, Position]) -> int:
        (topic, _), position = item
        return RECORD_BYTES + len(group.encode()) + len(topic.encode()) + len(position.metadata.encode())

    errors: dict[TopicPartition, ErrorCode] = {}
    for part in in_parts(positions.items(), size, COMMIT_BYTES):
        errors |= await _commit_part(cluster, group, part, member_id, generation)
    if any(is_moved(error) for error in errors.values()):
        cluster.forget_coordinator(group)
    return errors


async def _commit_part(
    cluster: ClusterClient,
    group: str,
    positions: Iterable[tuple[TopicPartition, Position]],
    member_id: str,
    generation: int,
) -> dict[TopicPartition, ErrorCode]:
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), position in positions:
        by_topic.setdefault(topic, []).append(
            OffsetCommitRequestPartition(partition, position.offset, position.leader_epoch, position.metadata)
        )
    topics = [OffsetCommitRequestTopic(topic, partitions=of_topic) for topic, of_topic in by_topic.items()]
    request = OffsetCommitRequest(group, generation, member_id, topics=topics)
    response = await cluster.call_coordinator(group, offset_commit.BY_NAME, request)
    return {
        (topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }


def is_moved(error: ErrorCode) -> bool:
    """Whether the coordinator must be looked up again."""
    return error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
