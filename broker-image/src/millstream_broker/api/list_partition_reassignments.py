"""ListPartitionReassignments: replicas on the move; with one broker there are none (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import list_partition_reassignments
from ..protocol.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(list_partition_reassignments.API)
def handle(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
