"""AlterPartitionReassignments: move replicas, or (null) move them back (KIP-455). For the controller.

The controller responds once it has stored the new assignments, and moves the replicas afterwards.
"""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import alter_partition_reassignments
from millstream_kafka.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from millstream_kafka.protocol.errors import ApiError

from ..cluster.controllership import Controllership
from ..cluster.forwarding import Forwarding
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster
from ..security.audit.administration import changed_topics


def _refused(
    request: AlterPartitionReassignmentsRequest, error: ApiError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error.code,
        error_message=error.message,
        responses=[
            ReassignableTopicResponse(
                topic.name,
                [_response(partition.partition_index, error) for partition in topic.partitions],
            )
            for topic in request.topics
        ],
    )


@handler(
    alter_partition_reassignments.API,
    changes=changed_topics,
    rights=[on_cluster(AclOperation.ALTER)],
    refused=_refused,
)
async def handle(
    forwarding: Forwarding,
    controllership: Controllership,
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse:
    timeout_s = request.timeout_ms / 1000
    if (controller := controllership.controller) is None:
        return await forwarding.forward(context, alter_partition_reassignments.API, request, timeout_s)
    targets = {
        (topic.name, partition.partition_index): None
        if partition.replicas is None
        else tuple(partition.replicas)
        for topic in request.topics
        async for partition in cooperatively(topic.partitions)
    }
    found = await controller.alter_reassignments(
        targets, timeout_s, may_change_factor=request.allow_replication_factor_change
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                topic.name,
                [
                    _response(partition.partition_index, found[topic.name, partition.partition_index])
                    async for partition in cooperatively(topic.partitions)
                ],
            )
            for topic in request.topics
        ],
    )


def _response(index: int, error: ApiError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(index, error_message=None)
    return ReassignablePartitionResponse(index, error.code, error.message)
