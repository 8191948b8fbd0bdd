"""AlterPartitionReassignments: move replicas, or (null) move them back (KIP-455). The controller's work.

The answer comes when the new assignments are stored; moving goes on behind it. With one broker that coordinates itself
there is one assignment that can be asked for, and every partition has it: such a request is done at once, a
cancellation finds nothing to cancel, and any other assignment names a broker that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..forwarding import forward
from ..protocol import alter_partition_reassignments
from ..protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ..protocol.errors import ApiError, ErrorCode
from ..topics import check_assignment
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(alter_partition_reassignments.API)
async def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    timeout_s = request.timeout_ms / 1000
    found: Mapping[tuple[str, int], ApiError | None]
    if broker.cluster is None:
        found = {
            (topic.name, one.partition_index): _alone(broker, topic.name, one)
            for topic in request.topics
            for one in topic.partitions
        }
    elif broker.controller is None:
        return await forward(broker, context, alter_partition_reassignments.API, request, timeout_s)
    else:
        targets = {
            (topic.name, one.partition_index): None if one.replicas is None else tuple(one.replicas)
            for topic in request.topics
            for one in topic.partitions
        }
        found = await broker.controller.alter_reassignments(targets, timeout_s)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                topic.name,
                [
                    _response(one.partition_index, found[topic.name, one.partition_index])
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _response(index: int, error: ApiError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(index, error_message=None)
    return ReassignablePartitionResponse(index, error.code, error.message)


def _alone(broker: Broker, topic: str, asked: ReassignablePartition) -> ApiError | None:
    try:
        _check(broker, topic, asked)
    except ApiError as error:
        return error
    return None


def _check(broker: Broker, topic: str, asked: ReassignablePartition) -> None:
    if topic not in broker.metadata.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    if not 0 <= asked.partition_index < len(broker.metadata.topics[topic].partitions):
        message = f"Unable to find partition {topic}:{asked.partition_index}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if asked.replicas is None:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_assignment(broker, asked.replicas)
