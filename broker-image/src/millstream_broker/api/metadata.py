"""Metadata: brokers, and topics with their partitions.

A requested topic that does not exist is created if both the broker (`auto.create.topics.enable`) and the client
(from v4) allow it; the response waits for it. A request for all topics creates nothing. Beyond the client's quota for
mutations, the topic stays unknown, which clients retry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import metadata
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from millstream_kafka.protocol.schema import ZERO_UUID, Encoded

from ..administration.topics import NewTopic, TopicAdministrator
from ..config.config import BrokerConfig
from ..coordination import CoordinationError, TopicRecord
from ..metadata.cache import check_topic_name
from ..metadata.encoded_topics import EncodedTopics
from ..network.handlers import Answer, RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import finish
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.quotas.mutations import Mutations
from ..security.quotas.quotas import Quotas
from ..topic_rules.internal_topics import is_internal

log = logging.getLogger(__name__)


DESCRIBE, CREATE, TOPIC = AclOperation.DESCRIBE, AclOperation.CREATE, ResourceType.TOPIC
NOT_ASKED = -(2**31)
WITHOUT_ERROR = {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
"""Reasons why a topic is not created that a client need not know: it retries while the topic is unknown."""


@handler(
    metadata.API,
    rights=[
        Right(DESCRIBE, TOPIC, "each topic; a request for all topics leaves others out"),
        Right(
            CREATE,
            ResourceType.CLUSTER,
            "the cluster, to create any topic",
            without="Create on the topic is needed",
        ),
        Right(CREATE, TOPIC, "each topic that is created"),
        Right(
            DESCRIBE,
            ResourceType.CLUSTER,
            "the cluster, for its authorized operations",
            without="no authorized operation (0); brokers and controller are shown to everybody",
        ),
    ],
)
def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    config: BrokerConfig,
    encoded_topics: EncodedTopics,
    topic_administrator: TopicAdministrator,
    quotas: Quotas,
    context: RequestContext,
    request: MetadataRequest,
) -> Answer:
    requested = request.topics
    if context.version in (10, 11) and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in requested or ()
    ):
        refused = ErrorCode.INVALID_REQUEST
        return MetadataResponse(
            topics=[
                MetadataResponseTopic(refused, topic.name or "", topic.topic_id) for topic in requested or ()
            ]
        )
    view = _View(authorizer, replicas, encoded_topics, context, request)
    if requested is None or (context.version == 0 and not requested):
        requested = None
    elif request.allow_auto_topic_creation and config.flag("auto.create.topics.enable"):
        names = {topic.name for topic in requested if topic.name is not None}
        missing = set(filter(view.shows, names - replicas.metadata.topics.keys()))
        if missing:
            return _create_then_answer(topic_administrator, quotas, view, requested, missing)
    return _answer(view, requested, {})


class _View(NamedTuple):
    """A request, and what its client may see."""

    authorizer: Authorizer
    replicas: Replicas
    encoded_topics: EncodedTopics
    context: RequestContext
    request: MetadataRequest

    def may_describe(self, name: str) -> bool:
        return self.authorizer.allows(self.context.session, DESCRIBE, TOPIC, name)

    def shows(self, name: str) -> bool:
        return self.authorizer.permits(self.context.session, DESCRIBE, TOPIC, name)

    def may_create(self, name: str) -> bool:
        session = self.context.session
        return self.authorizer.permits_on_cluster(session, CREATE) or self.authorizer.allows(
            session, CREATE, TOPIC, name
        )

    def operations(self, name: str) -> int:
        if not self.request.include_topic_authorized_operations:
            return NOT_ASKED
        return self.authorizer.operations(self.context.session, TOPIC, name)


async def _create_then_answer(
    topic_administrator: TopicAdministrator,
    quotas: Quotas,
    view: _View,
    requested: list[MetadataRequestTopic],
    missing: set[str],
) -> MetadataResponse:
    failed = {name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in missing if not view.may_create(name)}
    names = sorted(missing - failed.keys())
    session, client_id = view.context.session, view.context.client_id
    mutations = Mutations(quotas, session, client_id, quotas.now_ms(), is_strict=True)
    outcomes = await topic_administrator.create_topics(
        list(map(NewTopic, names)), count=lambda partitions: mutations.record(partitions, quotas.now_ms())
    )
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, CoordinationError):
            log.error("cannot create topic %s: %s", name, outcome)
            failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
        elif isinstance(outcome, ApiError) and outcome.code not in WITHOUT_ERROR:
            failed[name] = outcome.code
    answer = await finish(_answer(view, requested, failed))
    return answer if isinstance(answer, MetadataResponse) else await answer


def _answer(
    view: _View, requested: list[MetadataRequestTopic] | None, failed: dict[str, ErrorCode]
) -> Steps[MetadataResponse | Awaitable[MetadataResponse]]:
    """Returns at once if all or nearly all topics are already encoded."""
    is_checked, with_operations = view.authorizer.is_enabled, view.request.include_topic_authorized_operations
    topics: list[TopicRecord | MetadataResponseTopic] | None = None if requested is None else []
    seen = set()
    for topic in requested or ():
        yield
        # An id takes precedence over a name.
        key = topic.topic_id, None if topic.topic_id != ZERO_UUID else topic.name
        if topics is not None and key not in seen:
            seen.add(key)
            topics.append(_found(view, MetadataRequestTopic(*key), failed))
    if topics is None and is_checked:
        topics = []
        for record in list(view.replicas.metadata.topics.values()):
            yield
            if view.shows(record.name):
                topics.append(record)
    if topics is not None:  # look up changed topics again: only the newest state is encoded
        newest = view.replicas.metadata.topics
        topics = [
            topic
            if isinstance(topic, MetadataResponseTopic) or newest.get(topic.name) is topic
            else _found(view, MetadataRequestTopic(name=topic.name), failed)
            for topic in topics
            if requested is not None or topic.name in newest
        ]
        if requested is None and not with_operations and len(topics) == len(newest):
            topics = None
    operations = None
    if with_operations and is_checked:
        topics = yield from _with_operations(view, topics or ())
    elif with_operations:
        operations = view.operations("")
    encoded = view.encoded_topics.encoded((view.context.version, operations), topics)
    if isinstance(encoded, Encoded):
        return _response(view, encoded)
    return _later(view, encoded)


def _with_operations(
    view: _View, topics: Iterable[TopicRecord | MetadataResponseTopic]
) -> Steps[list[TopicRecord | MetadataResponseTopic]]:
    """The topics, each with the operations that the client may do."""
    described: list[TopicRecord | MetadataResponseTopic] = []
    for topic in topics:
        if isinstance(topic, TopicRecord):
            operations, partitions = view.operations(topic.name), []
            for index in range(len(topic.partitions)):
                partitions.append(view.encoded_topics.partition(topic, index))
                yield
            is_ours = is_internal(topic.name)
            answer = MetadataResponseTopic(0, topic.name, topic.topic_id, is_ours, partitions, operations)
            described.append(answer)
        else:
            described.append(topic)
    return described


async def _later(view: _View, encoded: Awaitable[Encoded]) -> MetadataResponse:
    return _response(view, await encoded)


def _found(
    view: _View, requested: MetadataRequestTopic, failed: dict[str, ErrorCode]
) -> TopicRecord | MetadataResponseTopic:
    """The topic, or the error response if it does not exist, or must not be seen."""
    cluster, refused = view.replicas.metadata, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if requested.name is None:
        by_id = cluster.topics_by_id.get(requested.topic_id)
        if by_id is not None and not view.may_describe(by_id.name):
            return MetadataResponseTopic(refused, None, requested.topic_id)
        return by_id or MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, requested.topic_id)
    if not view.may_describe(requested.name):
        return MetadataResponseTopic(refused, requested.name, ZERO_UUID)
    if (found := cluster.topics.get(requested.name)) is not None:
        return found
    error = failed.get(requested.name) or why_missing(requested.name)
    missing = MetadataResponseTopic(error, requested.name, ZERO_UUID)
    if error is not refused:
        missing.topic_authorized_operations = view.operations(requested.name)
    return missing


def _response(view: _View, topics: Any) -> MetadataResponse:
    cluster, session = view.replicas.metadata, view.context.session
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in cluster.listed_brokers()
            for endpoint in (broker.endpoint(session.listener),)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            view.authorizer.cluster_operations(session)
            if view.request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def why_missing(name: str) -> ErrorCode:
    """The error for a topic that does not exist."""
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
