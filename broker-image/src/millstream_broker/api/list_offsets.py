"""ListOffsets: the offset that belongs to a time.

-1 the end (the high watermark; for a broker that follows the end of the log), -2 the start, -3 the record with the
largest timestamp (v7, KIP-734), else the earliest record that is not older than the timestamp; where there is none,
offset and timestamp are -1. A replica id counts where the connection has proven to be that broker's.

A broker that asks as a debugging replica (replica id -2) gets the end of the log of any replica, and the epoch of its
last record: controllers do (`controller.recovery`).

A leader that has just begun may know a high watermark that is behind what the one before it told: until its followers
have shown theirs, it answers OFFSET_NOT_AVAILABLE instead (v5, KIP-207; LEADER_NOT_AVAILABLE before).

A look-up by time may have to read the end of every segment's time index, and decompress a batch: it runs in a thread,
and what else the request asks for waits with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ..partition import Partition
from ..protocol import list_offsets
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.list_offsets import (
    DEBUGGING_REPLICA_ID,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ..slices import Steps, to_the_end
from . import Answer, RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

MAX_TIMESTAMP_SINCE = 7
OFFSET_NOT_AVAILABLE_SINCE = 5


@handler(list_offsets.API)
def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> Answer:
    steps = _answer(broker, context, request)
    if any(_is_by_time(asked) for topic in request.topics for asked in topic.partitions):
        return asyncio.to_thread(to_the_end, steps)
    return steps


def _is_by_time(asked: ListOffsetsPartition) -> bool:
    return asked.timestamp not in (LATEST, EARLIEST)


def _answer(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse]:
    """In any thread: it only reads."""
    peer = context.authenticator.peer
    is_replica = peer is not None and peer.broker_id == request.replica_id
    is_controller = peer is not None and request.replica_id == DEBUGGING_REPLICA_ID
    topics = []
    for topic in request.topics:
        partitions = []
        times = Counter(asked.partition_index for asked in topic.partitions)
        for asked in {asked.partition_index: asked for asked in topic.partitions}.values():
            yield
            try:
                if times[asked.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                if is_controller and asked.timestamp == LATEST:
                    partitions.append(_log_end(broker, topic.name, asked.partition_index))
                    continue
                partition = broker.partition(topic.name, asked.partition_index)
                partition.check_online()
                if asked.timestamp < (MAX_TIMESTAMP if context.version >= MAX_TIMESTAMP_SINCE else EARLIEST):
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                partition.check_epoch(asked.current_leader_epoch)
                partitions.append(_find(partition, asked, context.version, is_replica=is_replica))
            except ApiError as error:
                partitions.append(ListOffsetsPartitionResponse(asked.partition_index, error.code))
        topics.append(ListOffsetsTopicResponse(topic.name, partitions))
    return ListOffsetsResponse(topics=topics)


def _log_end(broker: Broker, topic: str, index: int) -> ListOffsetsPartitionResponse:
    """Of a replica here, led or followed, with the epoch of its last record. Raises ApiError."""
    held = broker.replicas.get((topic, index))
    held.log.check_online()
    return ListOffsetsPartitionResponse(index, 0, -1, held.log.log_end_offset, held.log.epochs.latest)


def _find(
    partition: Partition, asked: ListOffsetsPartition, version: int, *, is_replica: bool
) -> ListOffsetsPartitionResponse:
    log, epoch = partition.log, partition.record.leader_epoch
    if not is_replica and asked.timestamp != EARLIEST and not partition.is_settled:
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE
            if version >= OFFSET_NOT_AVAILABLE_SINCE
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
    if asked.timestamp == LATEST:
        found = (-1, log.log_end_offset if is_replica else partition.high_watermark, epoch)
    elif asked.timestamp == EARLIEST:
        found = (-1, log.log_start_offset, epoch)
    else:
        of_time = (
            log.max_timestamp()
            if asked.timestamp == MAX_TIMESTAMP
            else log.offset_for_timestamp(asked.timestamp)
        )
        found = of_time if of_time is not None and of_time[1] < partition.high_watermark else (-1, -1, -1)
    timestamp, offset, epoch = found
    return ListOffsetsPartitionResponse(asked.partition_index, 0, timestamp, offset, epoch)
