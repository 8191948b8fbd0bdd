"""ControlledShutdown: the controller moves the leaderships of a stopping broker away, on its request.

No broker may request this for another.
"""

from __future__ import annotations

from millstream_kafka.protocol import controlled_shutdown
from millstream_kafka.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..cluster.controllership import Controllership
from ..network.handlers import RequestContext, handler


@handler(controlled_shutdown.API, for_brokers=True)
async def handle(
    controllership: Controllership, context: RequestContext, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    peer = context.session.peer_broker
    if peer is None or peer.broker_id != request.broker_id:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if controllership.controller is None:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    remaining = await controllership.controller.controlled_shutdown(request.broker_id, request.broker_epoch)
    return ControlledShutdownResponse(remaining_partitions=[RemainingPartition(*key) for key in remaining])
