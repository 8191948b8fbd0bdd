"""OffsetDelete (key 47): deletes a group's offsets of partitions that it is not subscribed to (KIP-496).

Never flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

from .api import Api
from .schema import Struct, array, int16, int32, string


@dataclass(slots=True)
class OffsetDeleteRequestPartition(Struct):
    partition_index: int = int32()


@dataclass(slots=True)
class OffsetDeleteRequestTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@dataclass(slots=True)
class OffsetDeleteRequest(Struct):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@dataclass(slots=True)
class OffsetDeleteResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


@dataclass(slots=True)
class OffsetDeleteResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@dataclass(slots=True)
class OffsetDeleteResponse(Struct):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)


API = Api(
    key=47,
    name="OffsetDelete",
    versions=(0, 0),
    flexible=None,
    request=OffsetDeleteRequest,
    response=OffsetDeleteResponse,
)
