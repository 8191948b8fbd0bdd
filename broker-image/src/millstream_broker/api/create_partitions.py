"""CreatePartitions: more partitions for topics, never fewer; `validate_only` changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..protocol import create_partitions
from ..protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ..protocol.errors import ApiError, ErrorCode
from ..topics import add_partitions, plan_partitions
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(create_partitions.API)
async def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    return CreatePartitionsResponse(
        results=[await _grow(broker, topic, named, request.validate_only) for topic in topics.values()]
    )


async def _grow(
    broker: Broker, topic: CreatePartitionsTopic, named: Counter[str], validate_only: bool
) -> CreatePartitionsTopicResult:
    try:
        if named[topic.name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        assignments = None if topic.assignments is None else [one.broker_ids for one in topic.assignments]
        partitions = plan_partitions(broker, topic.name, topic.count, assignments)
        if not validate_only:
            await add_partitions(broker, topic.name, partitions)
    except ApiError as error:
        return CreatePartitionsTopicResult(topic.name, error.code, error.message)
    return CreatePartitionsTopicResult(topic.name)
