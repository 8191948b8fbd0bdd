"""OffsetFetch (key 9): a group's stored positions; offset -1 where there is none.

v2 asks for all topics by null and adds a top-level error; v3 throttle_time_ms; v5 committed_leader_epoch (KIP-320); v6
is flexible; v7 adds require_stable (KIP-447); v8 asks for many groups at once, in groups (KIP-709).
"""

from __future__ import annotations

from dataclasses import dataclass

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string


@dataclass(slots=True)
class OffsetFetchRequestTopic(Struct):
    name: str = string(until=7)
    partition_indexes: list[int] = array("int32", until=7)


@dataclass(slots=True)
class OffsetFetchRequestTopics(Struct):
    name: str = string(since=8)
    partition_indexes: list[int] = array("int32", since=8)


@dataclass(slots=True)
class OffsetFetchRequestGroup(Struct):
    group_id: str = string(since=8)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, since=8, nullable=8)


@dataclass(slots=True)
class OffsetFetchRequest(Struct):
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@dataclass(slots=True)
class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32(until=7)
    committed_offset: int = int64(until=7)
    committed_leader_epoch: int = int32(since=5, until=7, default=-1)
    metadata: str | None = string(until=7, nullable=0)
    error_code: int = int16(until=7)


@dataclass(slots=True)
class OffsetFetchResponseTopic(Struct):
    name: str = string(until=7)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, until=7)


@dataclass(slots=True)
class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32(since=8)
    committed_offset: int = int64(since=8)
    committed_leader_epoch: int = int32(since=8, default=-1)
    metadata: str | None = string(since=8, nullable=8)
    error_code: int = int16(since=8)


@dataclass(slots=True)
class OffsetFetchResponseTopics(Struct):
    name: str = string(since=8)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, since=8)


@dataclass(slots=True)
class OffsetFetchResponseGroup(Struct):
    group_id: str = string(since=8)
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, since=8)
    error_code: int = int16(since=8)


@dataclass(slots=True)
class OffsetFetchResponse(Struct):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


API = Api(
    key=9,
    name="OffsetFetch",
    versions=(1, 8),
    flexible=6,
    request=OffsetFetchRequest,
    response=OffsetFetchResponse,
)
