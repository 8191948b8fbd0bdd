"""StopReplica: let go of replicas, and delete the logs of those that say so; answered when that is done.

Nothing else deletes a log in a cluster. The sender is checked as by UpdateMetadata, and the leader epoch of each
partition besides (KIP-570).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import stop_replica
from ..protocol.errors import ErrorCode
from ..protocol.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from ..slices import turns
from . import RequestContext, handler
from .update_metadata import check_controller

if TYPE_CHECKING:
    from ..broker import Broker


@handler(stop_replica.API, for_brokers=True)
async def handle(broker: Broker, context: RequestContext, request: StopReplicaRequest) -> StopReplicaResponse:
    await check_controller(broker, context, request)
    asked = [
        (topic.topic_name, one.partition_index, one.leader_epoch, one.delete_partition)
        for topic in request.topic_states
        for one in topic.partition_states
    ]
    errors = await broker.stop_replicas(asked)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(topic, index, errors.get((topic, index), ErrorCode.NONE))
            async for topic, index, _, _ in turns(asked)
        ]
    )
