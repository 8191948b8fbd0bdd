"""ElectLeaders: give leadership to the preferred replica, or to any (KIP-460).

With one broker each partition's only replica leads it already, so no election is needed. When all partitions are
asked for (null), those that need none are left out of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import elect_leaders
from ..protocol.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ..protocol.errors import ApiError, ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(elect_leaders.API)
def handle(broker: Broker, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic.topic, [_elect(broker, topic.topic, index) for index in topic.partitions]
            )
            for topic in request.topic_partitions or []
        ]
    )


def _elect(broker: Broker, topic: str, index: int) -> PartitionResult:
    try:
        broker.partition(topic, index)
    except ApiError as error:
        return PartitionResult(index, error.code, f"No such topic as {topic}")
    return PartitionResult(
        index, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    )
