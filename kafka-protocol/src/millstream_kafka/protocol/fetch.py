"""Fetch (key 1): reads record batches of partitions from an offset on, and waits for min_bytes.

v4 is the first for record batches of format 2 and for isolation levels; v5 adds log_start_offset; v7 fetch sessions
(KIP-227); v9 current_leader_epoch (KIP-320); v10 allows zstd; v11 adds racks (KIP-392); v12 is flexible and lets the
leader say where logs diverge (KIP-595); v13 has the ids of topics instead of their names (KIP-516). v14 to v18 differ
only for tiered storage and for replicas: v15 moves replica_id into replica_state (KIP-903), v16 has leaders' addresses
(KIP-951), v17 directories (KIP-853), v18 the follower's high watermark (KIP-1166).
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import (
    Bytes,
    Sized,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid_,
)

IDS_SINCE = 13
"""The first version with ids instead of names."""
STATE_SINCE = 15
"""The first version with `replica_state` instead of `replica_id`."""


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid_(since=17, tag=0)
    high_watermark: int = int64(since=18, tag=1, default=0x7FFFFFFFFFFFFFFF)


class FetchTopic(Struct):
    topic: str = string(until=12)
    topic_id: UUID = uuid_(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(until=12)
    topic_id: UUID = uuid_(since=13)
    partitions: list[int] = array("int32")


class ReplicaState(Struct):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchRequest(Struct):
    cluster_id: str | None = string(since=12, nullable=12, tag=0, default=None)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState | None = struct(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8()
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


class EpochEndOffset(Struct):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Struct):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = struct(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId | None = struct(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable=0)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Bytes | Sized | None = records()


class FetchableTopicResponse(Struct):
    topic: str = string(until=12)
    topic_id: UUID = uuid_(since=13)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0, default=None)


class FetchResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)


API = Api(1, "Fetch", (4, 18), flexible=12, request=FetchRequest, response=FetchResponse)
BY_NAME = Api(
    1, "Fetch", (4, 12), flexible=12, request=FetchRequest, response=FetchResponse, is_advertised=False
)
"""The versions with names, for clients that do not know the ids."""


def next_session_epoch(epoch: int) -> int:
    """Epoch of a session's next request: 0 would start a session, so 1 follows the largest."""
    return epoch % 0x7FFFFFFF + 1
