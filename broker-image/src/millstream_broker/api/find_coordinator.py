"""FindCoordinator: the broker that leads the group's partition of __consumer_offsets, which is created at first use.

Transactions have no coordinator here: requests for one fail with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only error
that every client treats as final. After others clients retry until they time out (librdkafka does so after
UNSUPPORTED_VERSION).
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
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

GROUP, TRANSACTION = 0, 1
BATCHED_SINCE = 4
NO_TRANSACTIONS = "This broker has no transactions: leave transactional.id out; idempotent producers work."

log = logging.getLogger(__name__)


@handler(
    find_coordinator.API,
    rights=[
        Right(AclOperation.DESCRIBE, ResourceType.GROUP, "each group"),
        Right(
            AclOperation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            "each transactional id",
            without="TRANSACTIONAL_ID_AUTHORIZATION_FAILED, with the right, too: there are no transactions",
        ),
    ],
)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= BATCHED_SINCE else [request.key]
    allowed = {
        key
        for key in keys
        if request.key_type != GROUP
        or authorizer.allows(context.session, AclOperation.DESCRIBE, ResourceType.GROUP, key)
    }
    failure = await _prepare(groups, request.key_type) if allowed else None
    refused = _failed(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    found = [
        changed(
            failure or _coordinator(groups, replicas, context, key) if key in allowed else refused, key=key
        )
        async for key in cooperatively(keys)
    ]
    if context.version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    coordinator = found[0]
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message or "NONE",
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


async def _prepare(groups: GroupDriver, key_type: int) -> Coordinator | None:
    if key_type not in (GROUP, TRANSACTION):
        return _failed(ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type}: expected 0, groups")
    if key_type == TRANSACTION:
        return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    try:
        await groups.ensure_topic()
    except (ApiError, CoordinationError) as error:
        log.error("cannot create __consumer_offsets: %s", error)
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    return None


def _coordinator(
    groups: GroupDriver, replicas: Replicas, context: RequestContext, group_id: str
) -> Coordinator:
    topic = replicas.metadata.topics.get("__consumer_offsets")
    if topic is None:
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = groups.partition_of(group_id)
    leader = replicas.metadata.brokers.get(topic.partitions[partition].leader)
    is_here = leader is not None and leader.broker_id == replicas.broker_id
    if leader is None or (is_here and replicas.is_offline(topic.name, partition)):
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    endpoint = leader.endpoint(context.session.listener)
    return Coordinator(node_id=leader.broker_id, host=endpoint.host, port=endpoint.port)


def _failed(error: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(node_id=-1, port=-1, error_code=error, error_message=message or error.message)
