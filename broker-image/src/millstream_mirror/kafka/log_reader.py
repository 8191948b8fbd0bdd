"""Reads logs of a cluster: offsets by time, and batches from an offset on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection

from millstream_kafka.batch import DELETE_HORIZON, BatchHeader, iter_batches
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import fetch, list_offsets
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from millstream_kafka.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream_kafka.topic_partition import TopicPartition

from ..runtime.slices import in_turns

LATEST, EARLIEST = -1, -2
THROTTLED_S = 5.0
"""The longest wait for a cluster that throttles, before the caller learns of it."""


async def offset_at(cluster: ClusterClient, where: TopicPartition, timestamp: int) -> int:
    """Raises BrokerError, ApiError."""
    topic, partition = where
    request = ListOffsetsRequest(
        -1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=timestamp)])]
    )
    response = await cluster.call_leader(topic, partition, list_offsets.API, request)
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        cluster.forget_leaders(topic)
        raise ApiError(ErrorCode.of(answer.error_code), f"looking up offsets of {topic}-{partition}")
    return answer.offset


async def offsets_at(
    cluster: ClusterClient, node: int, partitions: Collection[TopicPartition], timestamp: int
) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
    """What one broker reports about partitions that it leads, each perhaps with an error. Raises BrokerError."""
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, partition in partitions:
        requested = ListOffsetsPartition(partition, timestamp=timestamp)
        topics.setdefault(topic, ListOffsetsTopic(topic, [])).partitions.append(requested)
    response = await cluster.call_node(
        node, list_offsets.API, ListOffsetsRequest(-1, 0, list(topics.values()))
    )
    return {
        (of_topic.name, answer.partition_index): answer
        for of_topic in response.topics
        for answer in of_topic.partitions
    }


async def read(
    cluster: ClusterClient,
    where: TopicPartition,
    offset: int,
    size: int,
    *,
    epoch: int = -1,
    is_committed: bool = False,
) -> PartitionData:
    """Fetch about ``size`` bytes once; the response may be OFFSET_OUT_OF_RANGE. Raises BrokerError, ApiError.

    ``epoch`` is the leader epoch; a leader of another epoch responds with an error. -1 means any.
    ``is_committed``: up to the end of finished transactions, and the response lists which were aborted.
    """
    topic, partition = where
    requested = FetchPartition(
        partition, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=size
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=size,
        isolation_level=1 if is_committed else 0,
        topics=[FetchTopic(topic, partitions=[requested])],
    )
    response = await cluster.call_leader(topic, partition, fetch.BY_NAME, request)
    if not response.responses:  # Kafka, while a quota is exceeded
        await asyncio.sleep(min(response.throttle_time_ms / 1000, THROTTLED_S))
        raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"reading {topic}-{partition}")
    answer = response.responses[0].partitions[0]
    if answer.error_code and answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        cluster.forget_leaders(topic)
        raise ApiError(ErrorCode.of(answer.error_code), f"reading {topic}-{partition}")
    return answer


def records_in(answer: PartitionData) -> memoryview:
    """The batches of a response; empty if it has none."""
    return answer.records if isinstance(answer.records, memoryview) else memoryview(b"")


def headers_in(answer: PartitionData) -> list[BatchHeader]:
    return [header for _, header in iter_batches(records_in(answer))]


def may_be_compacted(header: BatchHeader) -> bool:
    """Whether compaction may have rewritten the batch."""
    return header.record_count <= header.last_offset_delta or bool(header.attributes & DELETE_HORIZON)


async def headers(
    cluster: ClusterClient, where: TopicPartition, offset: int, *, first: int, most: int
) -> AsyncGenerator[BatchHeader]:
    """The headers of the batches from ``offset`` to the log's end; none if the log has no such offset.

    Fetches grow from ``first`` to ``most`` bytes. Raises BrokerError, ApiError."""
    size = first
    while True:
        answer = await read(cluster, where, offset, size)
        before = offset
        async for header in in_turns(headers_in(answer)):
            yield header
            offset = header.next_offset
        if answer.error_code or offset == before or offset >= answer.high_watermark:
            return
        size = min(size * 4, most)
