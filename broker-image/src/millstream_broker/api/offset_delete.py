"""OffsetDelete: a group forgets positions in topics that none of its members consumes (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import offset_delete
from ..protocol.errors import ErrorCode
from ..protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(offset_delete.API)
async def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    asked = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    deleted = await broker.groups.delete_offsets(
        request.group_id, [where for where in asked if _exists(broker, *where)]
    )
    if deleted.error:
        return OffsetDeleteResponse(error_code=deleted.error)
    errors = deleted.partitions
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                topic.name,
                [
                    OffsetDeleteResponsePartition(
                        each.partition_index,
                        errors.get((topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _exists(broker: Broker, name: str, index: int) -> bool:
    topic = broker.metadata.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)
