"""OffsetFetch (key 9): a group's stored positions; offset -1 if there is none.

v2 requests all topics by null and adds a top-level error; v3 throttle_time_ms; v5 committed_leader_epoch (KIP-320); v6
is flexible; v7 adds require_stable (KIP-447); v8 serves many groups at once, in groups (KIP-709);
v9 names the member of a newer group, and v10 has the ids of topics instead of their names (KIP-848).
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string, uuid_

IDS_SINCE = 10
"""The first version with ids of topics instead of their names."""


class OffsetFetchRequestTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("int32")


class OffsetFetchRequestTopics(Struct):
    name: str = string(until=9)
    topic_id: UUID = uuid_(since=10)
    partition_indexes: list[int] = array("int32")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string()
    member_id: str | None = string(since=9, nullable=9, default=None)
    member_epoch: int = int32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=0)


class OffsetFetchRequest(Struct):
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable=0)
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable=0)
    error_code: int = int16()


class OffsetFetchResponseTopics(Struct):
    name: str = string(until=9)
    topic_id: UUID = uuid_(since=10)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Struct):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


class OffsetFetchResponse(Struct):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


API = Api(9, "OffsetFetch", (1, 10), flexible=6, request=OffsetFetchRequest, response=OffsetFetchResponse)
BY_NAME = Api(
    9,
    "OffsetFetch",
    (1, 9),
    flexible=6,
    request=OffsetFetchRequest,
    response=OffsetFetchResponse,
    is_advertised=False,
)
"""The versions with names, for clients that do not know the ids."""
