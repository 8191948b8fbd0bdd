"""OffsetDelete: delete a group's positions in topics that none of its members consumes (KIP-496).

Many positions are deleted in batches. If the group refuses the first batch, the whole request fails; if it refuses a
later request, only the remaining partitions do.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import offset_delete
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively, gather_in_slices
from ..runtime.steps import portions
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right, on_group
from ..security.audit.administration import Changed

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
AT_ONCE = 100
"""Positions whose tombstones are stored in one batch and one turn of the loop."""


def _changes(request: OffsetDeleteRequest) -> Iterator[Changed]:
    yield Changed("Group", request.group_id)


@handler(
    offset_delete.API,
    changes=_changes,
    rights=[on_group(AclOperation.DELETE), Right(READ, TOPIC, "each topic")],
)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    context: RequestContext,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse:
    allowed = {
        topic.name for topic in request.topics if authorizer.allows(context.session, READ, TOPIC, topic.name)
    }
    existing = [
        (topic.name, each.partition_index)
        for topic in request.topics
        async for each in cooperatively(topic.partitions)
        if topic.name in allowed and _exists(replicas, topic.name, each.partition_index)
    ]
    first = await groups.delete_offsets(request.group_id, existing[:AT_ONCE])
    if first.error:
        return OffsetDeleteResponse(error_code=first.error)
    errors, topics = dict(first.partitions), []
    rest = list(portions(existing[AT_ONCE:], AT_ONCE))
    answers = await gather_in_slices(groups.delete_offsets(request.group_id, some) for some in rest)
    for some, deleted in zip(rest, answers, strict=True):
        errors.update(dict.fromkeys(some, deleted.error) if deleted.error else deleted.partitions)
    for topic in request.topics:
        topics.append(OffsetDeleteResponseTopic(topic.name, []))
        async for each in cooperatively(topic.partitions):
            index = each.partition_index
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if topic.name in allowed:
                error = errors.get((topic.name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics[-1].partitions.append(OffsetDeleteResponsePartition(index, error))
    return OffsetDeleteResponse(topics=topics)


def _exists(replicas: Replicas, name: str, index: int) -> bool:
    topic = replicas.metadata.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)
