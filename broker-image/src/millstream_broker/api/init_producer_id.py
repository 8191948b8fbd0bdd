"""InitProducerId: an id for an idempotent producer, and a new epoch for one that has an id (KIP-360).

Ids come from random blocks (`producer_ids`). Transactional producers are refused (see
find_coordinator).
"""

from __future__ import annotations

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol import init_producer_id
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

from ..administration.producer_ids import ProducerIds
from ..network.handlers import RequestContext, handler
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

NO_PRODUCER = NO_EPOCH = -1


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
            without="TRANSACTIONAL_ID_AUTHORIZATION_FAILED, with the right, too: there are no transactions",
        ),
    ],
)
def handle(
    authorizer: Authorizer, producer_ids: ProducerIds, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id:
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    session = context.session
    if request.transactional_id is None and not (
        authorizer.permits_on_cluster(session, AclOperation.IDEMPOTENT_WRITE)
        or authorizer.permits_some(session, AclOperation.WRITE, ResourceType.TOPIC)
    ):
        authorizer.deny(session, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.transactional_id is not None or (request.producer_id == NO_PRODUCER) != (
        request.producer_epoch == NO_EPOCH
    ):
        return _refused(ErrorCode.INVALID_REQUEST)
    return InitProducerIdResponse(producer_id=producer_ids.next(), producer_epoch=0)


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
