"""ListPartitionReassignments: partitions that are being reassigned (KIP-455). For the controller."""

from __future__ import annotations

from collections import defaultdict

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import list_partition_reassignments
from millstream_kafka.protocol.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

from ..cluster.controllership import Controllership
from ..cluster.forwarding import Forwarding
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster


@handler(
    list_partition_reassignments.API, ends_with_connection=True, rights=[on_cluster(AclOperation.DESCRIBE)]
)
async def handle(
    forwarding: Forwarding,
    controllership: Controllership,
    context: RequestContext,
    request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse:
    timeout_s = request.timeout_ms / 1000
    if (controller := controllership.controller) is None:
        return await forwarding.forward(context, list_partition_reassignments.API, request, timeout_s)
    requested = None
    if request.topics is not None:
        requested = [
            (topic.name, index)
            for topic in request.topics
            async for index in cooperatively(topic.partition_indexes)
        ]
    found = await controller.list_reassignments(requested, timeout_s)
    topics: dict[str, list[OngoingPartitionReassignment]] = defaultdict(list)
    async for (name, index), record in cooperatively(found.items()):
        topics[name].append(
            OngoingPartitionReassignment(
                index, list(record.replicas), list(record.adding), list(record.removing)
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name, partitions) for name, partitions in topics.items()],
    )
