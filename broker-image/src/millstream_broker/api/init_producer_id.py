"""InitProducerId: an id for an idempotent producer, and a new epoch for one that has an id (KIP-360).

Ids come from random blocks (`producer_ids`). Those of transactional producers belong to their coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol import init_producer_id
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

from ..administration.producer_ids import ProducerIds
from ..network.handlers import RequestContext, handler
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..transactions.driver import TransactionDriver

NO_PRODUCER = NO_EPOCH = -1
FENCED_SINCE = 4
"""The first version with PRODUCER_FENCED."""


@handler(
    init_producer_id.API,
    rights=[
        Right(
            AclOperation.WRITE,
            ResourceType.TOPIC,
            "any topic",
            without="IdempotentWrite on the cluster is needed",
        ),
        Right(
            AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "the cluster, instead of Write on any topic"
        ),
        Right(
            AclOperation.WRITE,
            ResourceType.TRANSACTIONAL_ID,
            "the transactional id",
        ),
    ],
)
def handle(
    authorizer: Authorizer,
    producer_ids: ProducerIds,
    transactions: TransactionDriver,
    context: RequestContext,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    session = context.session
    if request.transactional_id is not None and not authorizer.allows(
        session, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.transactional_id is None and not (
        authorizer.permits_on_cluster(session, AclOperation.IDEMPOTENT_WRITE)
        or authorizer.permits_some(session, AclOperation.WRITE, ResourceType.TOPIC)
    ):
        authorizer.deny(session, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _transactional(transactions, context.version, request.transactional_id, request)
    return InitProducerIdResponse(producer_id=producer_ids.next(), producer_epoch=0)


async def _transactional(
    transactions: TransactionDriver, version: int, transactional_id: str, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    has_id = request.producer_id != NO_PRODUCER
    error, producer_id, producer_epoch = await transactions.init_producer_id(
        transactional_id,
        request.transaction_timeout_ms,
        (request.producer_id, request.producer_epoch) if has_id else None,
    )
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=error, producer_id=producer_id, producer_epoch=NO_EPOCH if error else producer_epoch
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
