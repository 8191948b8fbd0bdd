"""DeleteRecords: move the start of partitions up to an offset; -1 is the high watermark (KIP-107).

The answer waits until the followers that are there have moved theirs, within the request's time. Nothing is deleted
from internal topics, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..internal_topics import check_not_internal
from ..protocol import delete_records
from ..protocol.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ..protocol.errors import ApiError, ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

HIGH_WATERMARK = -1


@handler(delete_records.API)
async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    asked = [(topic.name, one) for topic in request.topics for one in topic.partitions]
    deleted = await asyncio.gather(*(_delete(broker, name, one, request.timeout_ms) for name, one in asked))
    results = iter(deleted)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(topic.name, [next(results) for _ in topic.partitions])
            for topic in request.topics
        ]
    )


async def _delete(
    broker: Broker, topic: str, asked: DeleteRecordsPartition, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    try:
        check_not_internal(topic)
        partition = broker.partition(topic, asked.partition_index)
        partition.check_online()
        if not partition.log.config.deletes:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        offset = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        if (followers := partition.delete_records_before(offset, timeout_ms)) is not None:
            await followers
    except ApiError as error:
        return DeleteRecordsPartitionResult(asked.partition_index, -1, error.code)
    return DeleteRecordsPartitionResult(asked.partition_index, partition.low_watermark)
