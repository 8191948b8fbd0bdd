"""AlterPartitionReassignments: move replicas (KIP-455).

With one broker there is one assignment that can be asked for, and every partition has it: such a request is done at
once, a cancellation (null) finds nothing to cancel, and any other assignment names a broker that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import alter_partition_reassignments
from ..protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ..protocol.errors import ApiError, ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(alter_partition_reassignments.API)
def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                topic.name, [_alter(broker, topic.name, one) for one in topic.partitions]
            )
            for topic in request.topics
        ],
    )


def _alter(broker: Broker, topic: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    try:
        _check(broker, topic, asked)
    except ApiError as error:
        return ReassignablePartitionResponse(asked.partition_index, error.code, error.message)
    return ReassignablePartitionResponse(asked.partition_index, error_message=None)


def _check(broker: Broker, topic: str, asked: ReassignablePartition) -> None:
    broker.partition(topic, asked.partition_index)
    if asked.replicas is None:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    problem = None
    if not asked.replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(asked.replicas)) < len(asked.replicas):
        problem = "The manual partition assignment includes a broker more than once."
    else:
        for one in asked.replicas:
            if one not in broker.metadata.brokers:
                problem = f"The manual partition assignment includes broker {one}, but no such broker is registered."
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
