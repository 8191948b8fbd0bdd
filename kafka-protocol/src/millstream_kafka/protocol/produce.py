"""Produce (key 0): appends record batches to partitions.

v3 is the first for record batches of format 2, and the oldest version served; v5 adds log_start_offset; v7 allows
zstd; v8 names the records of a batch that were refused (KIP-467); v9 is flexible; v10 names the new leader in an
error (KIP-951); v11 and v12 are v10 with transactions of KIP-890; v13 has the ids of topics instead of their names
(KIP-516). acks is 0, 1 or -1 (all in sync); with 0 there is no response.

Versions 0 to 2 are advertised although no request in them can be decoded: without them, librdkafka before 2.11.1 stops
compressing (librdkafka issue 4956); Kafka 4.0 does the same.
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Bytes, Struct, array, int16, int32, int64, records, string, struct, uuid_

IDS_SINCE = 13
"""The first version with ids of topics instead of their names (KIP-516)."""
ZSTD_SINCE = 7
"""The first version that may carry zstd (KIP-110)."""


class PartitionProduceData(Struct):
    index: int = int32()
    records: Bytes | None = records()


class TopicProduceData(Struct):
    name: str = string(until=12)
    topic_id: UUID = uuid_(since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Struct):
    transactional_id: str | None = string(nullable=0, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable=0, default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, nullable=8, default=None)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Struct):
    name: str = string(until=12)
    topic_id: UUID = uuid_(since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0, default=None)


class ProduceResponse(Struct):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)


API = Api(0, "Produce", (0, 13), served_from=3, flexible=9, request=ProduceRequest, response=ProduceResponse)
BY_NAME = Api(
    0,
    "Produce",
    (3, 12),
    flexible=9,
    request=ProduceRequest,
    response=ProduceResponse,
    is_advertised=False,
)
"""The versions with names, for clients that do not know the ids."""
