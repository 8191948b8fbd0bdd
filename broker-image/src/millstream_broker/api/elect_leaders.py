"""ElectLeaders: give leadership to the preferred replica, or to any (KIP-460). For the controller.

For a request about all partitions (null), the response leaves out those that need no election.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import elect_leaders
from millstream_kafka.protocol.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..cluster.controllership import Controllership
from ..cluster.forwarding import Forwarding
from ..controller.messages import ElectionType
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed


def _refused(request: ElectLeadersRequest, error: ApiError) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(topic.topic, [_result(index, error) for index in topic.partitions])
        for topic in request.topic_partitions or []
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def _changes(request: ElectLeadersRequest) -> Iterator[Changed]:
    for topic in request.topic_partitions or ():
        yield Changed("Topic", topic.topic)


@handler(elect_leaders.API, changes=_changes, rights=[on_cluster(AclOperation.ALTER)], refused=_refused)
async def handle(
    forwarding: Forwarding,
    controllership: Controllership,
    context: RequestContext,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse:
    if request.election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        message = f"Unknown election type {request.election_type}"
        return _refused(request, ApiError(ErrorCode.INVALID_REQUEST, message))
    timeout_s = request.timeout_ms / 1000
    if (controller := controllership.controller) is None:
        return await forwarding.forward(context, elect_leaders.API, request, timeout_s)
    requested = None
    if request.topic_partitions is not None:
        requested = [
            (topic.topic, index)
            for topic in request.topic_partitions
            async for index in cooperatively(topic.partitions)
        ]
    found = await controller.elect_leaders(ElectionType(request.election_type), requested, timeout_s)
    results: dict[str, list[PartitionResult]] = {topic.topic: [] for topic in request.topic_partitions or []}
    async for (name, index), error in cooperatively(found.items()):
        results.setdefault(name, []).append(_result(index, error))
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(name, partitions) for name, partitions in results.items()
        ]
    )


def _result(index: int, error: ApiError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(index, ErrorCode.NONE, None)
    return PartitionResult(index, error.code, error.message)
