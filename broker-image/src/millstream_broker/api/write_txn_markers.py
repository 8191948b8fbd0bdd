"""WriteTxnMarkers: a transaction coordinator ends transactions in partitions that this broker leads.

Administrators may send it as well, to end a transaction that nobody coordinates any more: they get their answer when
all in-sync replicas have the markers, coordinators before that (`marker_writes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol import write_txn_markers
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from ..coordinator.effects import TransactionMarker
from ..network.handlers import RequestContext, handler
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from .marker_writes import MarkerWrites, Wanted

CLUSTER = ResourceType.CLUSTER


@handler(
    write_txn_markers.API,
    rights=[
        Right(AclOperation.ALTER, CLUSTER, "the cluster", without="ClusterAction on the cluster is needed"),
        Right(AclOperation.CLUSTER_ACTION, CLUSTER, "the cluster, instead of Alter"),
    ],
)
async def handle(
    authorizer: Authorizer, writes: MarkerWrites, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    session = context.session
    if session.peer_broker is not None:
        return _response(request, iter(await writes.attempted(_wanted(request))))
    if not authorizer.permits_on_cluster(session, AclOperation.ALTER) and not authorizer.allows(
        session, AclOperation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME
    ):
        return _response(request, repeat(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    return _response(request, iter(await writes.completed(_wanted(request))))


def _wanted(request: WriteTxnMarkersRequest) -> Iterator[Wanted]:
    """The markers of all partitions, in order."""
    for marker in request.markers:
        ended = TransactionMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            marker.transaction_version,
        )
        for topic in marker.topics:
            for index in topic.partition_indexes:
                yield Wanted(topic.name, index, ended)


def _response(request: WriteTxnMarkersRequest, errors: Iterator[ErrorCode]) -> WriteTxnMarkersResponse:
    """The response with these errors of all partitions, in order."""
    return WriteTxnMarkersResponse(
        [
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            WritableTxnMarkerPartitionResult(index, next(errors))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
