"""OffsetForLeaderEpoch: the end of a leader epoch, by which a consumer detects that records it has read were truncated
(KIP-320)."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import offset_for_leader_epoch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

DESCRIBE, TOPIC = AclOperation.DESCRIBE, ResourceType.TOPIC


@handler(
    offset_for_leader_epoch.API,
    ends_with_connection=True,
    rights=[
        Right(DESCRIBE, TOPIC, "each topic, unless ClusterAction on the cluster is allowed"),
        Right(
            AclOperation.CLUSTER_ACTION,
            ResourceType.CLUSTER,
            "the cluster, instead of Describe on topics",
            without="Describe on each topic is needed",
        ),
    ],
)
def handle(
    authorizer: Authorizer, replicas: Replicas, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    session, topics = context.session, []
    may_all = not authorizer.is_enabled or authorizer.permits_on_cluster(session, AclOperation.CLUSTER_ACTION)
    for topic in request.topics:
        topics.append(OffsetForLeaderTopicResult(topic.topic, []))
        is_allowed = may_all or authorizer.allows(session, DESCRIBE, TOPIC, topic.topic)
        for requested in topic.partitions:
            topics[-1].partitions.append(
                _find(replicas, topic.topic, requested)
                if is_allowed
                else EpochEndOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED, requested.partition)
            )
            yield
    return OffsetForLeaderEpochResponse(topics=topics)


def _find(replicas: Replicas, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = replicas.partition(topic, requested.partition)
        partition.check_online()
        partition.check_epoch(requested.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(error.code, requested.partition)
    if requested.leader_epoch == partition.record.leader_epoch:
        # Not the high watermark: a new leader's may lag the offset that consumers have read to.
        return EpochEndOffset(0, requested.partition, requested.leader_epoch, partition.log.log_end_offset)
    log = partition.log
    epoch, end_offset = log.epochs.end_offset(requested.leader_epoch, log.log_end_offset)
    return EpochEndOffset(0, requested.partition, epoch, end_offset)
