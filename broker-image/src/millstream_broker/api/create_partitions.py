"""CreatePartitions: more partitions for topics, never fewer; `validate_only` changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import create_partitions
from millstream_kafka.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..administration.topics import TopicAdministrator
from ..coordination import PartitionRecord
from ..network.handlers import RequestContext, handler
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import Changed
from ..security.quotas.mutations import Mutations
from ..security.quotas.quotas import Quotas

STRICT_SINCE = 3
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _changes(request: CreatePartitionsRequest) -> Iterator[Changed]:
    for topic in request.topics:
        yield Changed("Topic", topic.name, f"{topic.count} partitions")


@handler(
    create_partitions.API,
    changes=_changes,
    rights=[Right(AclOperation.ALTER, ResourceType.TOPIC, "each topic")],
)
async def handle(
    authorizer: Authorizer,
    topic_administrator: TopicAdministrator,
    quotas: Quotas,
    context: RequestContext,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    refused = {
        name
        for name in topics
        if not authorizer.allows(context.session, AclOperation.ALTER, ResourceType.TOPIC, name)
    }
    planned, failed = await asyncio.to_thread(_plan, topic_administrator, topics, named, refused)
    mutations = Mutations(
        quotas, context.session, context.client_id, quotas.now_ms(), is_strict=context.version >= STRICT_SINCE
    )
    for name, added in list(planned.items()):
        try:
            mutations.record(len(added), quotas.now_ms())
        except ApiError as exceeded:
            failed[name] = exceeded
            del planned[name]
    if not request.validate_only:
        failed |= await topic_administrator.add_partitions(planned)
    return CreatePartitionsResponse(
        mutations.throttle_ms(quotas.now_ms()),
        [
            CreatePartitionsTopicResult(name, error.code, error.message)
            if (error := failed.get(name)) is not None
            else CreatePartitionsTopicResult(name)
            for name in topics
        ],
    )


def _plan(
    topic_administrator: TopicAdministrator,
    topics: Mapping[str, CreatePartitionsTopic],
    named: Counter[str],
    refused: Collection[str],
) -> tuple[dict[str, tuple[PartitionRecord, ...]], dict[str, ApiError]]:
    """The new partitions of each topic, and the topics that are refused. In a thread, as there may be many."""
    planned: dict[str, tuple[PartitionRecord, ...]] = {}
    failed: dict[str, ApiError] = {}
    for name, topic in topics.items():
        try:
            if named[name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if name in refused:
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            assignments = (
                None
                if topic.assignments is None
                else [assignment.broker_ids for assignment in topic.assignments]
            )
            planned[name] = topic_administrator.plan_partitions(name, topic.count, assignments)
        except ApiError as error:
            failed[name] = error
    return planned, failed
