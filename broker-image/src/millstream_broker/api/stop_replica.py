"""StopReplica: stop replicas, and delete their logs if the request says so; responds when that is done.

Nothing else deletes a log in a cluster. Like UpdateMetadata, it checks the sender, and the leader epoch of each
partition (KIP-570).
"""

from __future__ import annotations

from millstream_kafka.protocol import stop_replica
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)

from ..coordination.coordination import Coordination
from ..handlers import RequestContext, handler
from ..replication.manager import ReplicaManager
from ..slices import turns
from .update_metadata import check_sender


@handler(stop_replica.API, for_brokers=True)
async def handle(
    replica_manager: ReplicaManager,
    coordination: Coordination,
    context: RequestContext,
    request: StopReplicaRequest,
) -> StopReplicaResponse:
    check_sender(context, request)
    asked = [
        (topic.topic_name, one.partition_index, one.leader_epoch, one.delete_partition)
        for topic in request.topic_states
        async for one in turns(topic.partition_states)
    ]
    await coordination.check(request.controller_id, request.controller_epoch, request.broker_epoch)
    errors = await replica_manager.stop_replicas(asked)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(topic, index, errors.get((topic, index), ErrorCode.NONE))
            async for topic, index, _, _ in turns(asked)
        ]
    )
