"""MirrorTruncate (key 31001, Millstream's own): truncates a topic that becomes a mirror's replica.

Served only while the topic's ``millstream.mirror.source`` is this source, with ``/rejoin`` (`mirror_source`): nobody
writes to the topic then. The log is truncated at ``offset`` if its end and its last leader epoch are still
``end_offset`` and ``last_epoch``, under the leader epoch ``leader_epoch``: repeated or late requests change nothing.
Followers truncate their logs by leader epochs, as always (KIP-101). -1 as ``offset`` only reports the partition.

Each partition's response has the state of the leader's log, if this broker leads it. ``in_sync`` means that every
replica that may lead next has exactly this log.

    OFFSET_OUT_OF_RANGE      the log has another end or last epoch: nothing is truncated
    FENCED_LEADER_EPOCH,     another leader epoch than the partition's: nothing is truncated
    UNKNOWN_LEADER_EPOCH
    NOT_ENOUGH_REPLICAS      records are not replicated yet: retry
    POLICY_VIOLATION         the topic does not rejoin a source: it is an ordinary one, or a replica in service
    INCONSISTENT_TOPIC_ID    it rejoins another source
    INVALID_REQUEST          the offset is outside the log, or inside a batch
"""

from __future__ import annotations

import uuid

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string, uuid_


class TruncatedPartition(Struct):
    index: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)
    last_epoch: int = int32(default=-1)
    offset: int = int64(default=-1)


class TruncatedTopic(Struct):
    name: str = string()
    source_topic_id: uuid.UUID = uuid_()
    partitions: list[TruncatedPartition] = array(TruncatedPartition)


class MirrorTruncateRequest(Struct):
    source_cluster_id: str = string()
    topics: list[TruncatedTopic] = array(TruncatedTopic)


class TruncatedPartitionResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    leader_epoch: int = int32(default=-1)
    log_start_offset: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    last_epoch: int = int32(default=-1)
    high_watermark: int = int64(default=-1)
    in_sync: bool = boolean(default=False)


class TruncatedTopicResponse(Struct):
    name: str = string()
    partitions: list[TruncatedPartitionResponse] = array(TruncatedPartitionResponse)


class MirrorTruncateResponse(Struct):
    topics: list[TruncatedTopicResponse] = array(TruncatedTopicResponse)


API = Api(
    31001,
    "MirrorTruncate",
    (0, 0),
    flexible=0,
    request=MirrorTruncateRequest,
    response=MirrorTruncateResponse,
)
