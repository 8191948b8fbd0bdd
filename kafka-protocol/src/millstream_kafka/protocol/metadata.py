"""Metadata (key 3): brokers, and topics with their partitions, leaders and replicas.

In v0 an empty list requests all topics; from v1 on null does, and an empty list requests none. v1 adds rack,
controller_id and is_internal; v2 cluster_id; v3 throttle_time_ms; v4 allow_auto_topic_creation; v5 offline_replicas; v7
leader_epoch (KIP-320); v8 to v10 carry authorized operations (KIP-430); v9 is flexible; v10 adds topic ids (KIP-516),
v12 allows requests by id, with a null name, and v13
adds a top-level error (KIP-1102).
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .codec import Codec
from .schema import Struct, array, boolean, int16, int32, string, uuid_


class MetadataRequestTopic(Struct):
    topic_id: UUID = uuid_(since=10)
    name: str | None = string(nullable=10)


class MetadataRequest(Struct):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable=1, default=None)


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    offline_replicas: list[int] = array("int32", since=5)


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable=12)
    topic_id: UUID = uuid_(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, encodable=True)
    topic_authorized_operations: int = int32(since=8, default=-2147483648)


class MetadataResponse(Struct):
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, encodable=True)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-2147483648)
    error_code: int = int16(since=13)


API = Api(3, "Metadata", (0, 13), flexible=9, request=MetadataRequest, response=MetadataResponse)
TOPIC = Codec(MetadataResponseTopic, API.flexible)
PARTITION = Codec(MetadataResponsePartition, API.flexible)
"""Parts of responses that many share (`schema.Encoded`)."""
