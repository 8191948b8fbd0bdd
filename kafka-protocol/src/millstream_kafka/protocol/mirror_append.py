"""MirrorAppend (key 31000, Millstream's own): appends a source's batches to a mirror's replica of its topic.

Batches keep their offsets, leader epochs and bytes. ``from_offset`` must be the end of the target's log: the
batches are the source's from this offset on. -1 appends nothing and reports the partition. ``log_start_offset`` is the
source's; the target's log start follows it. The response comes once all in-sync replicas have the batches.

Each partition's response has the state of the target's log, if this broker leads it: ``log_end_offset``,
``last_epoch`` (the leader epoch of its last batch, -1 if it has none), ``log_start_offset``. With from_offset -1 also
``last_header``, the first 61 bytes of its last batch, if it has one: a source with the same history has the same batch.

    OFFSET_OUT_OF_RANGE      from_offset is not the end of the log: nothing is written, continue from log_end_offset
    POLICY_VIOLATION         the topic is not a mirror's replica: it is an ordinary one, or was promoted
    INCONSISTENT_TOPIC_ID    it is the replica of another topic
    FENCED_LEADER_EPOCH      the batches are older than the last one here: the two logs have diverged
    NOT_LEADER_OR_FOLLOWER   also while the partition takes a leader epoch above those of the batches: retry
    INVALID_REQUEST          log_start_offset is so far beyond the end of the log that no source can start there
    INVALID_RECORD           control batches that no broker writes, and transactional ones without a producer
"""

from __future__ import annotations

import uuid

from .api import Api
from .schema import Bytes, Struct, array, bytes_, int16, int32, int64, records, string, uuid_


class MirrorPartition(Struct):
    index: int = int32()
    from_offset: int = int64(default=-1)
    log_start_offset: int = int64(default=-1)
    records: Bytes | None = records()


class MirrorTopic(Struct):
    name: str = string()
    source_topic_id: uuid.UUID = uuid_()
    partitions: list[MirrorPartition] = array(MirrorPartition)


class MirrorAppendRequest(Struct):
    source_cluster_id: str = string()
    timeout_ms: int = int32()
    topics: list[MirrorTopic] = array(MirrorTopic)


class MirrorPartitionResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    log_start_offset: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    last_epoch: int = int32(default=-1)
    last_header: Bytes | None = bytes_(nullable=0, default=None)


class MirrorTopicResponse(Struct):
    name: str = string()
    partitions: list[MirrorPartitionResponse] = array(MirrorPartitionResponse)


class MirrorAppendResponse(Struct):
    topics: list[MirrorTopicResponse] = array(MirrorTopicResponse)


API = Api(
    31000,
    "MirrorAppend",
    (0, 0),
    flexible=0,
    request=MirrorAppendRequest,
    response=MirrorAppendResponse,
)
