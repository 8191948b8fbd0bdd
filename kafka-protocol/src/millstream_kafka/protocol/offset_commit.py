"""OffsetCommit (key 8): stores a group's positions, with metadata that is returned unchanged.

v2 to v4 carry a retention time; v3 adds throttle_time_ms; v6 committed_leader_epoch (KIP-320); v7 static members
(KIP-345); v8 is flexible; v9 is v8 for members of the newer group protocol too, and responds with GROUP_ID_NOT_FOUND
for a missing group; v10 has the ids of topics instead of their names (KIP-848).
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Struct, array, int16, int32, int64, string, uuid_

IDS_SINCE = 10
"""The first version with ids of topics instead of their names."""


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    committed_metadata: str | None = string(nullable=0)


class OffsetCommitRequestTopic(Struct):
    name: str = string(until=9)
    topic_id: UUID = uuid_(since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Struct):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, nullable=7, default=None)
    retention_time_ms: int = int64(until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    name: str = string(until=9)
    topic_id: UUID = uuid_(since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Struct):
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


API = Api(8, "OffsetCommit", (2, 10), flexible=8, request=OffsetCommitRequest, response=OffsetCommitResponse)
BY_NAME = Api(
    8,
    "OffsetCommit",
    (2, 9),
    flexible=8,
    request=OffsetCommitRequest,
    response=OffsetCommitResponse,
    is_advertised=False,
)
"""The versions with names, for clients that do not know the ids."""
