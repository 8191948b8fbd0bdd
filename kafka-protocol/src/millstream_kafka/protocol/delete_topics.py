"""DeleteTopics (key 20): deletes topics.

v1 adds throttle_time_ms; v4 is flexible; v5 adds error messages; v6 names topics by name or id, in topics instead of
topic_names (KIP-516).
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Struct, array, int16, int32, string, uuid_


class DeleteTopicState(Struct):
    name: str | None = string(nullable=0, default=None)
    topic_id: UUID = uuid_()


class DeleteTopicsRequest(Struct):
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array("string", until=5)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable=6)
    topic_id: UUID = uuid_(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable=5, default=None)


class DeleteTopicsResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


API = Api(20, "DeleteTopics", (0, 6), flexible=4, request=DeleteTopicsRequest, response=DeleteTopicsResponse)
