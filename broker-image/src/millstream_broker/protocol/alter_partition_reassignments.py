"""AlterPartitionReassignments (key 45): moves partitions to other brokers, or (replicas null) stops it (KIP-455).

Flexible from v0.
"""

from __future__ import annotations

from dataclasses import dataclass

from .api import Api
from .schema import Struct, array, int16, int32, string


@dataclass(slots=True)
class ReassignablePartition(Struct):
    partition_index: int = int32()
    replicas: list[int] | None = array("int32", nullable=0, default=None)


@dataclass(slots=True)
class ReassignableTopic(Struct):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@dataclass(slots=True)
class AlterPartitionReassignmentsRequest(Struct):
    timeout_ms: int = int32(default=60000)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@dataclass(slots=True)
class ReassignablePartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


@dataclass(slots=True)
class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@dataclass(slots=True)
class AlterPartitionReassignmentsResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


API = Api(
    key=45,
    name="AlterPartitionReassignments",
    versions=(0, 0),
    flexible=0,
    request=AlterPartitionReassignmentsRequest,
    response=AlterPartitionReassignmentsResponse,
)
