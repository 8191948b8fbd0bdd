"""Metadata: brokers, and topics with their partitions.

A requested topic that does not exist is created if both the broker (`auto.create.topics.enable`) and the client
(from v4) allow it; the response waits for it. A request for all topics creates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

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
from ..metadata.cache import Metadata, check_topic_name
from ..metadata.encoded_topics import EncodedTopics
from ..network.handlers import Answer, RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import finish
from ..runtime.steps import Steps

log = logging.getLogger(__name__)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12
TOPIC_OPERATIONS = _bits(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
"""Operations allowed to an anonymous client without an authorizer: all (KIP-430)."""
NOT_ASKED = -(2**31)


@handler(metadata.API)
def handle(
    replicas: Replicas,
    config: BrokerConfig,
    encoded_topics: EncodedTopics,
    topic_administrator: TopicAdministrator,
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
    if requested is None or (context.version == 0 and not requested):
        requested = None
    elif request.allow_auto_topic_creation and config.flag("auto.create.topics.enable"):
        missing = {
            topic.name for topic in requested if topic.name is not None
        } - replicas.metadata.topics.keys()
        if missing:
            return _create_then_answer(
                topic_administrator, replicas, encoded_topics, context, request, requested, missing
            )
    return _answer(replicas, encoded_topics, context, request, requested, {})


async def _create_then_answer(
    topic_administrator: TopicAdministrator,
    replicas: Replicas,
    encoded_topics: EncodedTopics,
    context: RequestContext,
    request: MetadataRequest,
    requested: list[MetadataRequestTopic],
    missing: set[str],
) -> MetadataResponse:
    failed: dict[str, ErrorCode] = {}
    names = sorted(missing)
    for name, outcome in zip(
        names, await topic_administrator.create_topics(list(map(NewTopic, names))), strict=True
    ):
        if isinstance(outcome, CoordinationError):
            log.error("cannot create topic %s: %s", name, outcome)
            failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
        elif isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            failed[name] = outcome.code
    answer = await finish(_answer(replicas, encoded_topics, context, request, requested, failed))
    return answer if isinstance(answer, MetadataResponse) else await answer


def _answer(
    replicas: Replicas,
    encoded_topics: EncodedTopics,
    context: RequestContext,
    request: MetadataRequest,
    requested: list[MetadataRequestTopic] | None,
    failed: dict[str, ErrorCode],
) -> Steps[MetadataResponse | Awaitable[MetadataResponse]]:
    """Returns at once if all or nearly all topics are already encoded."""
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else None
    topics: list[TopicRecord | MetadataResponseTopic] | None = None if requested is None else []
    seen = set()
    for topic in requested or ():
        yield
        # An id takes precedence over a name.
        key = topic.topic_id, None if topic.topic_id != ZERO_UUID else topic.name
        if topics is not None and key not in seen:
            seen.add(key)
            topics.append(_found(replicas, MetadataRequestTopic(*key), operations, failed))
    if topics is not None:  # look up changed topics again: only the newest state is encoded
        newest = replicas.metadata.topics
        topics = [
            topic
            if isinstance(topic, MetadataResponseTopic) or newest.get(topic.name) is topic
            else _found(replicas, MetadataRequestTopic(name=topic.name), operations, failed)
            for topic in topics
        ]
    encoded = encoded_topics.encoded((context.version, operations), topics)
    if isinstance(encoded, Encoded):
        return _response(replicas.metadata, context, request, encoded)
    return _later(replicas.metadata, context, request, encoded)


async def _later(
    cluster: Metadata, context: RequestContext, request: MetadataRequest, encoded: Awaitable[Encoded]
) -> MetadataResponse:
    return _response(cluster, context, request, await encoded)


def _found(
    replicas: Replicas, requested: MetadataRequestTopic, operations: int | None, failed: dict[str, ErrorCode]
) -> TopicRecord | MetadataResponseTopic:
    """The topic, or the error response if it does not exist."""
    cluster = replicas.metadata
    if requested.name is None:
        by_id = cluster.topics_by_id.get(requested.topic_id)
        return by_id or MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, requested.topic_id)
    if (found := cluster.topics.get(requested.name)) is not None:
        return found
    error = failed.get(requested.name) or why_missing(requested.name)
    missing = MetadataResponseTopic(error, requested.name, ZERO_UUID)
    if operations is not None:
        missing.topic_authorized_operations = operations
    return missing


def _response(
    cluster: Metadata, context: RequestContext, request: MetadataRequest, topics: Any
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in cluster.brokers.values()
            for endpoint in (broker.endpoint(context.session.listener),)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def why_missing(name: str) -> ErrorCode:
    """The error for a topic that does not exist."""
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
