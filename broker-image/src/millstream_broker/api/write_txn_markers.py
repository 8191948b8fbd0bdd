"""WriteTxnMarkers: a transaction coordinator ends transactions in partitions that this broker leads.

Administrators may send it as well, to end a transaction that nobody coordinates any more. Responds when all in-sync
replicas have the markers. Those in __consumer_offsets go through the group coordinator, whose positions they commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol import write_txn_markers
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from ..coordinator.effects import TransactionMarker
from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..replication.markers import append_marker
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..topic_rules.internal_topics import OFFSETS_TOPIC

CLUSTER = ResourceType.CLUSTER
NOT_READY = {
    *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
}


@handler(
    write_txn_markers.API,
    rights=[
        Right(AclOperation.ALTER, CLUSTER, "the cluster", without="ClusterAction on the cluster is needed"),
        Right(AclOperation.CLUSTER_ACTION, CLUSTER, "the cluster, instead of Alter"),
    ],
)
async def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    context: RequestContext,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse:
    session = context.session
    if (
        session.peer_broker is None
        and not authorizer.permits_on_cluster(session, AclOperation.ALTER)
        and not authorizer.allows(session, AclOperation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    ):
        return _response(request, repeat(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    writing = []
    async for ended, name, index in cooperatively(
        (marker, topic.name, index)
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ):
        # Appended at once, so that they are committed together.
        writing.append(asyncio.ensure_future(_write(groups, replicas, ended, name, index)))
    return _response(request, iter(await asyncio.gather(*writing)))


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


async def _write(
    groups: GroupDriver, replicas: Replicas, marker: WritableTxnMarker, topic: str, index: int
) -> ErrorCode:
    try:
        if topic == OFFSETS_TOPIC:
            error = await groups.complete_transaction(
                index,
                TransactionMarker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.coordinator_epoch,
                    marker.transaction_result,
                    marker.transaction_version,
                ),
            )
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in NOT_READY else error
        await append_marker(
            replicas.partition(topic, index),
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            committed=marker.transaction_result,
            transaction_version=marker.transaction_version,
        )
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
