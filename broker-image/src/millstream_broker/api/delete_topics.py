"""DeleteTopics: by name, and from v6 by id (KIP-516). Responds when clients can no longer reach the topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import delete_topics
from millstream_kafka.protocol.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

from ..administration.topics import TopicAdministrator
from ..coordination import TopicRecord
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import Changed
from ..security.quotas.mutations import Mutations
from ..security.quotas.quotas import Quotas
from ..topic_rules.internal_topics import check_not_internal

DELETE, TOPIC = AclOperation.DELETE, ResourceType.TOPIC
STRICT_SINCE = 5
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _changes(request: DeleteTopicsRequest) -> Iterator[Changed]:
    for name in request.topic_names:
        yield Changed("Topic", name)
    for topic in request.topics:
        yield Changed("Topic", str(topic.topic_id) if topic.name is None else topic.name)


@handler(
    delete_topics.API,
    changes=_changes,
    rights=[
        Right(
            DELETE,
            ResourceType.CLUSTER,
            "the cluster, for all topics",
            without="Delete on each topic is needed",
        ),
        Right(DELETE, TOPIC, "each topic"),
        Right(
            AclOperation.DESCRIBE,
            TOPIC,
            "each topic that is named by its id",
            without="no name in the response, if Delete is not allowed either",
        ),
    ],
)
async def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    topic_administrator: TopicAdministrator,
    quotas: Quotas,
    context: RequestContext,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse:
    requested = (
        request.topics if context.version >= 6 else [DeleteTopicState(name) for name in request.topic_names]
    )
    named = Counter((topic.name, topic.topic_id) for topic in requested)
    known = {
        name: topic.topic_id for name, _ in named if name and (topic := replicas.metadata.topics.get(name))
    }
    by_id = {topic_id for name, topic_id in named if name is None}
    both = {topic_id for topic_id in known.values() if (None, topic_id) in named}
    responses: list[DeletableTopicResult] = []
    session = context.session
    may_all = authorizer.permits_on_cluster(session, DELETE)
    deleting: dict[str, DeletableTopicResult] = {}
    mutations = Mutations(
        quotas, context.session, context.client_id, quotas.now_ms(), is_strict=context.version >= STRICT_SINCE
    )
    async for (name, topic_id), times in cooperatively(named.items()):
        if name is None and topic_id in both:
            continue  # reported under its name
        result = DeletableTopicResult(name, topic_id)
        responses.append(result)
        try:
            _check_named(name, topic_id, times)
            if not may_all:
                _check_rights(authorizer, replicas, context, result)
            topic = _find(replicas, name, topic_id)
            result.name, result.topic_id = topic.name, topic.topic_id
            if topic.topic_id in both:
                message = "The provided topic name maps to an ID that was already supplied."
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
            mutations.record(len(topic.partitions), quotas.now_ms())
            deleting[topic.name] = result
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
    ids = {name: result.topic_id if result.topic_id in by_id else None for name, result in deleting.items()}
    for failed, reason in (await topic_administrator.delete_topics(ids)).items():
        if ids[failed] is not None and reason.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            reason = ApiError(ErrorCode.UNKNOWN_TOPIC_ID)  # this broker did not know yet that it is gone
        deleting[failed].error_code, deleting[failed].error_message = reason.code, reason.message
    return DeleteTopicsResponse(mutations.throttle_ms(quotas.now_ms()), responses)


def _check_named(name: str | None, topic_id: UUID, times: int) -> None:
    if name is not None and topic_id != ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times > 1:
        what = "name" if name is not None else "id"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")


def _check_rights(
    authorizer: Authorizer, replicas: Replicas, context: RequestContext, result: DeletableTopicResult
) -> None:
    """A topic that is requested by its id is named in the response to those who may describe it. Raises ApiError."""
    name, metadata = result.name, replicas.metadata
    topic = metadata.topics_by_id.get(result.topic_id) if name is None else metadata.topics.get(name)
    named = name if topic is None else topic.name
    if named is None:
        return  # nobody has this id
    if authorizer.permits(context.session, AclOperation.DESCRIBE, TOPIC, named):
        if topic is None:
            return  # to be reported as unknown
        result.name = named
    authorizer.check(context.session, DELETE, TOPIC, named)


def _find(replicas: Replicas, name: str | None, topic_id: UUID) -> TopicRecord:
    if name is not None:
        topic = replicas.metadata.topic(name)
    elif (by_id := replicas.metadata.topics_by_id.get(topic_id)) is not None:
        topic = by_id
    else:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    check_not_internal(topic.name)
    return topic
