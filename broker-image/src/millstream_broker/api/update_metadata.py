"""UpdateMetadata: what the controller tells; answered when this broker does it.

It must come from the broker that the tree has as the controller, in the epoch it was elected to, and be meant for the
present registration of this broker: see `coordination.fencing`. What is refused changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import update_metadata
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.stop_replica import StopReplicaRequest
from ..protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(update_metadata.API, for_brokers=True)
async def handle(
    broker: Broker, context: RequestContext, request: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    await check_controller(broker, context, request)
    await broker.cluster.update(request)
    return UpdateMetadataResponse()


async def check_controller(
    broker: Broker, context: RequestContext, request: UpdateMetadataRequest | StopReplicaRequest
) -> None:
    """Raises ApiError unless the present controller itself sent this, to the present registration of this broker."""
    peer = context.authenticator.peer
    if peer is None or peer.broker_id != request.controller_id:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    await broker.coordination.check(request.controller_id, request.controller_epoch, request.broker_epoch)
