"""OffsetCommit: store a group's positions; responds once they are stored, with an error for each partition.

A position is stored with the id of the topic: that of the request (v10), or that of the topic that currently has the
name, as far as coordination knows.
"""

from __future__ import annotations

from uuid import UUID

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import offset_commit
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from ..coordination import TopicRecord
from ..groups.driver import GroupDriver
from ..groups.messages import Commit, OffsetToCommit
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively, gather_in_slices
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right, on_group

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
AT_ONCE = 100
"""Positions stored in one batch and one turn of the loop. The group may rebalance between batches."""

GROUP_NOT_FOUND_SINCE = 9


def _refused(request: OffsetCommitRequest, error: ApiError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [
                    OffsetCommitResponsePartition(each.partition_index, error.code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handler(offset_commit.API, rights=[on_group(READ), Right(READ, TOPIC, "each topic")], refused=_refused)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    context: RequestContext,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse:
    by_id = context.version >= offset_commit.IDS_SINCE
    missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records: dict[tuple[UUID, str], TopicRecord | None] = {}
    known, errors = [], {}
    async for topic, each in cooperatively(
        (entry, each) for entry in request.topics for each in entry.partitions
    ):
        key = topic.topic_id, topic.name
        if key not in records:  # once for all its partitions, although the topic may be recreated meanwhile
            by_ids, by_names = replicas.metadata.topics_by_id, replicas.latest_image.topics
            records[key] = by_ids.get(topic.topic_id) if by_id else by_names.get(topic.name)
        record = records[key]
        name = topic.name if record is None else record.name
        if (record is not None or not by_id) and not authorizer.allows(context.session, READ, TOPIC, name):
            errors[name, each.partition_index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            continue
        if record is None or not 0 <= each.partition_index < len(record.partitions):
            errors[name, each.partition_index] = (
                missing if record is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            continue
        known.append(
            OffsetToCommit(
                name,
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
            ErrorCode.GROUP_ID_NOT_FOUND
            if context.version >= GROUP_NOT_FOUND_SINCE
            else ErrorCode.ILLEGAL_GENERATION,
        )
        for start in range(0, len(known), AT_ONCE)
    ]
    if len(commits) == 1:
        errors.update(await groups.commit(commits[0]))
    else:
        for of_some in await gather_in_slices(groups.commit(commit) for commit in commits):
            errors.update(of_some)
    topics = []
    for topic in request.topics:
        record = records.get((topic.topic_id, topic.name))
        name = topic.name if record is None else record.name
        found = [
            OffsetCommitResponsePartition(each.partition_index, errors[name, each.partition_index])
            async for each in cooperatively(topic.partitions)
        ]
        topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, found))
    return OffsetCommitResponse(topics=topics)
