"""UpdateMetadata: cluster state from the controller; responds when this broker has applied it.

It must come from the broker that the tree names as the controller, in its elected epoch, and address the current
registration of this broker: see `coordination.fencing`. A refused request changes nothing.
"""

from __future__ import annotations

from millstream_kafka.protocol import update_metadata
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.stop_replica import StopReplicaRequest
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

from ..cluster.cluster import Cluster
from ..network.handlers import RequestContext, handler


@handler(update_metadata.API, for_brokers=True)
async def handle(
    cluster: Cluster, context: RequestContext, request: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    check_sender(context, request)
    await cluster.update(request)
    return UpdateMetadataResponse()


def check_sender(context: RequestContext, request: UpdateMetadataRequest | StopReplicaRequest) -> None:
    """Raises ApiError unless the broker that claims to be the controller sent this itself."""
    peer = context.session.peer_broker
    if peer is None or peer.broker_id != request.controller_id:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
