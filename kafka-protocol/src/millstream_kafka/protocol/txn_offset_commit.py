"""TxnOffsetCommit (key 28): stores a group's positions when a transaction commits.

v2 adds committed_leader_epoch (KIP-320); v3 (flexible) names the member, which fences it (KIP-447); v4 allows
TRANSACTION_ABORTABLE; v5 needs no AddOffsetsToTxn (KIP-890).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, int64, string

ADDS_SINCE = 5
"""The first version that adds the group's partition to the transaction."""


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=2, default=-1)
    committed_metadata: str | None = string(nullable=0)


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Struct):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Struct):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


API = Api(
    28,
    "TxnOffsetCommit",
    (0, 5),
    flexible=3,
    request=TxnOffsetCommitRequest,
    response=TxnOffsetCommitResponse,
)
