"""OffsetCommit: store a group's positions; responds once they are stored, with an error for each partition.

A position is stored with the id of the topic that currently has the name, as far as coordination knows.
"""

from __future__ import annotations

from millstream_kafka.protocol import offset_commit
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from ..groups.driver import GroupDriver
from ..groups.messages import Commit, OffsetToCommit
from ..handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..slices import each_in_turn, turns

AT_ONCE = 100
"""Positions stored in one batch and one turn of the loop. The group may rebalance between batches."""


@handler(offset_commit.API)
async def handle(
    groups: GroupDriver, replicas: Replicas, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    known, errors = [], {}
    async for topic, each in turns((one, each) for one in request.topics for each in one.partitions):
        record = replicas.wanted.topics.get(topic.name)
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
    commits = [
        Commit(
            request.group_id,
            known[start : start + AT_ONCE],
            request.member_id,
            request.generation_id_or_member_epoch,
            request.group_instance_id,
            request.retention_time_ms,
        )
        for start in range(0, len(known), AT_ONCE)
    ]
    if len(commits) == 1:
        errors.update(await groups.commit(commits[0]))
    else:
        for of_some in await each_in_turn(groups.commit(commit) for commit in commits):
            errors.update(of_some)
    topics = []
    for topic in request.topics:
        found = [
            OffsetCommitResponsePartition(each.partition_index, errors[topic.name, each.partition_index])
            async for each in turns(topic.partitions)
        ]
        topics.append(OffsetCommitResponseTopic(topic.name, found))
    return OffsetCommitResponse(topics=topics)
