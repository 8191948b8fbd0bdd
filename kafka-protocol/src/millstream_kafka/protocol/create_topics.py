"""CreateTopics (key 19): creates topics.

v1 adds validate_only and error messages; v2 throttle_time_ms; v4 allows -1 for partitions and replication factor, the
broker's defaults (KIP-464); v5 is flexible and returns the configuration (KIP-525); v6 allows
THROTTLING_QUOTA_EXCEEDED; v7 returns the topic id.
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .codec import Codec
from .schema import Struct, array, boolean, int8, int16, int32, string, uuid_


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32()
    broker_ids: list[int] = array("int32")


class CreatableTopicConfig(Struct):
    name: str = string()
    value: str | None = string(nullable=0)


class CreatableTopic(Struct):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Struct):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(since=1)


class CreatableTopicConfigs(Struct):
    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string()
    topic_id: UUID = uuid_(since=7)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable=0)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, since=5, nullable=5, encodable=True
    )


class CreateTopicsResponse(Struct):
    throttle_time_ms: int = int32(since=2)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


API = Api(19, "CreateTopics", (0, 7), flexible=5, request=CreateTopicsRequest, response=CreateTopicsResponse)
CONFIG = Codec(CreatableTopicConfigs, API.flexible)
"""A part of responses that many share (`schema.Encoded`)."""
