"""DeleteRecords: move the start of partitions up to an offset; -1 is the high watermark (KIP-107)."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
def handle(broker: Broker, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                topic.name, [_delete(broker, topic.name, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _delete(broker: Broker, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.partition(topic, asked.partition_index)
        partition.check_online()
        if not partition.log.config.deletes:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        offset = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        start = partition.delete_records_before(offset)
    except ApiError as error:
        return DeleteRecordsPartitionResult(asked.partition_index, -1, error.code)
    return DeleteRecordsPartitionResult(asked.partition_index, start)
