"""FindCoordinator: the broker that leads the partition of a group or of a transactional id in its internal topic.

The topic is created at first use.
"""

from __future__ import annotations

import logging

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import find_coordinator
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream_kafka.protocol.schema import changed

from ..coordination import CoordinationError
from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import REFUSALS, Authorizer
from ..security.acl.rights import Right
from ..topic_rules.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ..transactions.driver import TransactionDriver

GROUP, TRANSACTION = 0, 1
BATCHED_SINCE = 4
RESOURCES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}

log = logging.getLogger(__name__)


@handler(
    find_coordinator.API,
    rights=[
        Right(AclOperation.DESCRIBE, ResourceType.GROUP, "each group"),
        Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each transactional id"),
    ],
)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    transactions: TransactionDriver,
    replicas: Replicas,
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= BATCHED_SINCE else [request.key]
    resource = RESOURCES.get(request.key_type)
    if resource is None:
        allowed = set(keys)
        refused = _failed(ErrorCode.INVALID_REQUEST)
    else:
        allowed = {
            key for key in keys if authorizer.allows(context.session, AclOperation.DESCRIBE, resource, key)
        }
        refused = _failed(REFUSALS[resource])
    coordinator = transactions if request.key_type == TRANSACTION else groups
    topic = TRANSACTIONS_TOPIC if request.key_type == TRANSACTION else OFFSETS_TOPIC
    failure = await _prepare(coordinator, topic, request.key_type) if allowed else None
    found = [
        changed(
            failure or _coordinator(coordinator, topic, replicas, context, key)
            if key in allowed
            else refused,
            key=key,
        )
        async for key in cooperatively(keys)
    ]
    if context.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    first = found[0]
    return FindCoordinatorResponse(
        error_code=first.error_code,
        error_message=first.error_message or "NONE",
        node_id=first.node_id,
        host=first.host,
        port=first.port,
    )


async def _prepare(
    coordinator: GroupDriver | TransactionDriver, topic: str, key_type: int
) -> Coordinator | None:
    if key_type not in RESOURCES:
        expected = "expected 0, groups, or 1, transactional ids"
        return _failed(ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type}: {expected}")
    try:
        await coordinator.ensure_topic()
    except (ApiError, CoordinationError) as error:
        log.error("cannot create %s: %s", topic, error)
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    return None


def _coordinator(
    coordinator: GroupDriver | TransactionDriver,
    topic_name: str,
    replicas: Replicas,
    context: RequestContext,
    key: str,
) -> Coordinator:
    topic = replicas.metadata.topics.get(topic_name)
    if topic is None:
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = coordinator.partition_of(key)
    leader = replicas.metadata.brokers.get(topic.partitions[partition].leader)
    is_here = leader is not None and leader.broker_id == replicas.broker_id
    if leader is None or (is_here and replicas.is_offline(topic.name, partition)):
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    endpoint = leader.endpoint(context.session.listener)
    return Coordinator(node_id=leader.broker_id, host=endpoint.host, port=endpoint.port)


def _failed(error: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(node_id=-1, port=-1, error_code=error, error_message=message or error.message)
