"""StopReplica: stop replicas, and delete their logs if the request says so; responds when that is done.

Nothing else deletes a log in a cluster, and it deletes no log with another topic id. Like UpdateMetadata, it checks the
sender, and the leader epoch of each partition (KIP-570). An older controller sends no topic id: then it is the one that
the same controller has announced, of the topic or of its deletion.
"""

from __future__ import annotations

from millstream_kafka.protocol import stop_replica
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.protocol.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)

from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..replication.manager import ReplicaManager
from ..replication.stops import Stop
from ..runtime.slices import cooperatively
from .update_metadata import check_sender


@handler(stop_replica.API, for_brokers=True)
async def handle(
    replica_manager: ReplicaManager,
    coordination: Coordination,
    context: RequestContext,
    request: StopReplicaRequest,
) -> StopReplicaResponse:
    check_sender(context, request)
    await coordination.check(request.controller_id, request.controller_epoch, request.broker_epoch)
    requested: list[Stop] = []
    for topic in request.topic_states:
        topic_id = topic.topic_id
        if topic_id == ZERO_UUID:
            topic_id = coordination.announced_id(topic.topic_name)
        requested += [
            Stop(
                topic.topic_name,
                state.partition_index,
                state.leader_epoch,
                state.delete_partition,
                topic_id,
            )
            async for state in cooperatively(topic.partition_states)
        ]
    errors = await replica_manager.stop_replicas(requested)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(
                stop.topic, stop.partition, errors.get((stop.topic, stop.partition), ErrorCode.NONE)
            )
            async for stop in cooperatively(requested)
        ]
    )
