"""OffsetCommit: stores a group's positions; answered when they are stored, with an error for each partition.

A position is stored with the id of the topic that has the name now, by coordination's newest word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..groups.messages import Commit, OffsetToCommit
from ..protocol import offset_commit
from ..protocol.errors import ErrorCode
from ..protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(offset_commit.API)
async def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    known, errors = [], {}
    for topic in request.topics:
        record = broker.replicas.wanted.topics.get(topic.name)
        for each in topic.partitions:
            if record is None or not 0 <= each.partition_index < len(record.partitions):
                errors[topic.name, each.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            known.append(
                OffsetToCommit(
                    topic.name,
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    record.topic_id,
                )
            )
    if known:
        commit = Commit(
            request.group_id,
            known,
            request.member_id,
            request.generation_id_or_member_epoch,
            request.group_instance_id,
            request.retention_time_ms,
        )
        errors.update(await broker.groups.commit(commit))
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                [
                    OffsetCommitResponsePartition(
                        each.partition_index, errors[topic.name, each.partition_index]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
