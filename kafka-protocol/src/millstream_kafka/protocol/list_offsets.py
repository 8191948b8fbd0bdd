"""ListOffsets (key 2): the offset at a timestamp, or at -1 (the end), -2 (the start), -3 (the newest timestamp, v7).

v1 returns one offset rather than a list; v2 adds isolation_level and throttle_time_ms; v4 leader epochs (KIP-320);
v5 allows OFFSET_NOT_AVAILABLE; v6 is flexible; v7 adds the largest timestamp (KIP-734); v8, v9 and v11
bounds of tiered storage: -4 (the local start, KIP-405), -5 (the end of what is tiered, KIP-1005), -6 (the start of what
is not, KIP-1023); v10 a timeout for reading it (KIP-1075).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, int64, string

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
DEBUGGING_REPLICA_ID = -2
"""A `replica_id` of debugging tools: any replica responds, from its own log."""


class ListOffsetsPartition(Struct):
    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Struct):
    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Struct):
    throttle_time_ms: int = int32(since=2)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


API = Api(2, "ListOffsets", (1, 11), flexible=6, request=ListOffsetsRequest, response=ListOffsetsResponse)
