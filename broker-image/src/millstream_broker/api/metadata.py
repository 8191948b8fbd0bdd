"""Metadata: brokers, and topics with their partitions.

A topic that is asked for by name and does not exist is created where both the broker (`auto.create.topics.enable`)
and the client (from v4) allow it; the answer waits for it. Asking for all topics creates nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..coordination import CoordinationError, TopicRecord
from ..internal_topics import is_internal
from ..metadata import check_topic_name
from ..protocol import metadata
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ..protocol.schema import ZERO_UUID
from ..topics import NewTopic, create_topics
from . import Answer, RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

log = logging.getLogger(__name__)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12
TOPIC_OPERATIONS = _bits(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
"""What an anonymous client may do where there is no authorizer: everything (KIP-430)."""
NOT_ASKED = -(2**31)
NO_LEADER = -1


@handler(metadata.API)
def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> Answer:
    asked = request.topics
    if context.version in (10, 11) and any(
        one.name is None or one.topic_id != ZERO_UUID for one in asked or ()
    ):
        refused = ErrorCode.INVALID_REQUEST
        return MetadataResponse(
            topics=[MetadataResponseTopic(refused, one.name or "", one.topic_id) for one in asked or ()]
        )
    if asked is None or (context.version == 0 and not asked):
        asked = [MetadataRequestTopic(name=name) for name in broker.metadata.topics]
    elif request.allow_auto_topic_creation and broker.config.flag("auto.create.topics.enable"):
        missing = {topic.name for topic in asked if topic.name is not None} - broker.metadata.topics.keys()
        if missing:
            return _create_then_answer(broker, context, request, asked, missing)
    return _answer(broker, context, request, asked, {})


async def _create_then_answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    missing: set[str],
) -> MetadataResponse:
    failed: dict[str, ErrorCode] = {}
    names = sorted(missing)
    for name, outcome in zip(names, await create_topics(broker, list(map(NewTopic, names))), strict=True):
        if isinstance(outcome, CoordinationError):
            log.error("cannot create topic %s: %s", name, outcome)
            failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
        elif isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            failed[name] = outcome.code
    return _answer(broker, context, request, asked, failed)


def _answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    failed: dict[str, ErrorCode],
) -> MetadataResponse:
    cluster = broker.metadata
    topics = []
    for topic in _once(asked):
        if topic.name is None:
            found = cluster.topics_by_id.get(topic.topic_id)
            missing = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic.topic_id)
        else:
            found = cluster.topics.get(topic.name)
            error = failed.get(topic.name) or _why_missing(topic.name)
            missing = MetadataResponseTopic(error, topic.name, ZERO_UUID)
        described = missing if found is None else _topic(broker, found)
        if request.include_topic_authorized_operations and (found is not None or topic.name is not None):
            described.topic_authorized_operations = TOPIC_OPERATIONS
        topics.append(described)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(one.broker_id, endpoint.host, endpoint.port, one.rack)
            for one in cluster.brokers.values()
            for endpoint in (one.endpoint(context.listener_name),)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _once(asked: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """Each topic once; an id counts more than a name beside it."""
    keys = dict.fromkeys((one.topic_id, None if one.topic_id != ZERO_UUID else one.name) for one in asked)
    return [MetadataRequestTopic(*key) for key in keys]


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(broker: Broker, topic: TopicRecord) -> MetadataResponseTopic:
    alive = broker.metadata.brokers
    partitions = []
    for index, one in enumerate(topic.partitions):
        error, leader, isr = ErrorCode.NONE, one.leader, list(one.isr)
        offline = [replica for replica in one.replicas if replica not in alive]
        if broker.is_offline(topic.name, index):
            offline.append(broker.broker_id)
        if leader in offline or leader not in alive:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
            isr = [replica for replica in isr if replica not in offline]
        partitions.append(
            MetadataResponsePartition(
                error, index, leader, one.leader_epoch, list(one.replicas), isr, offline
            )
        )
    return MetadataResponseTopic(
        ErrorCode.NONE, topic.name, topic.topic_id, is_internal(topic.name), partitions
    )
