"""DeleteTopics: by name, and from v6 by id (KIP-516). The answer comes when clients can no longer reach the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import delete_topics
from ..protocol.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.schema import ZERO_UUID
from ..topics import delete_topic
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(delete_topics.API)
async def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    asked = (
        request.topics if context.version >= 6 else [DeleteTopicState(name) for name in request.topic_names]
    )
    return DeleteTopicsResponse(responses=[await _delete(broker, topic) for topic in asked])


async def _delete(broker: Broker, asked: DeleteTopicState) -> DeletableTopicResult:
    cluster = broker.metadata
    result = DeletableTopicResult(asked.name, asked.topic_id)
    try:
        if asked.name is None:
            if (topic := cluster.topics_by_id.get(asked.topic_id)) is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        elif asked.topic_id != ZERO_UUID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        else:
            topic = cluster.topic(asked.name)
        await delete_topic(broker, topic)
        result.name, result.topic_id = topic.name, topic.topic_id
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
    return result
