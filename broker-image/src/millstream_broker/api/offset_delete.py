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
from ..slices import turns
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(offset_delete.API)
async def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    existing = [
        (topic.name, each.partition_index)
        for topic in request.topics
        async for each in turns(topic.partitions)
        if _exists(broker, topic.name, each.partition_index)
    ]
    deleted = await broker.groups.delete_offsets(request.group_id, existing)
    if deleted.error:
        return OffsetDeleteResponse(error_code=deleted.error)
    errors, topics = deleted.partitions, []
    for topic in request.topics:
        topics.append(OffsetDeleteResponseTopic(topic.name, []))
        async for each in turns(topic.partitions):
            index = each.partition_index
            error = errors.get((topic.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics[-1].partitions.append(OffsetDeleteResponsePartition(index, error))
    return OffsetDeleteResponse(topics=topics)


def _exists(broker: Broker, name: str, index: int) -> bool:
    topic = broker.metadata.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)
