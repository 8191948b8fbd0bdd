"""MirrorTruncate: truncate the logs of a topic that rejoins its source, and report the state of its replicas.

The broker handles partitions one after the other; each succeeds or fails alone. Before it responds, it writes
the new high watermarks to their file.
"""

from __future__ import annotations

from functools import partial

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.mirror_source import MirrorSource
from millstream_kafka.protocol import mirror_truncate
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_truncate import (
    MirrorTruncateRequest,
    MirrorTruncateResponse,
    TruncatedPartition,
    TruncatedPartitionResponse,
    TruncatedTopicResponse,
)

from ..network.handlers import RequestContext, handler
from ..replication.manager import ReplicaManager
from ..replication.partition import Partition
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right, on_cluster
from ..security.audit.administration import changed_topics
from ..topic_rules.mirrored_topics import check_rejoins


def _refused(request: MirrorTruncateRequest, error: ApiError) -> MirrorTruncateResponse:
    return MirrorTruncateResponse(
        [
            TruncatedTopicResponse(
                topic.name,
                [
                    TruncatedPartitionResponse(requested.index, error.code, error.message)
                    for requested in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handler(
    mirror_truncate.API,
    changes=changed_topics,
    rights=[
        on_cluster(AclOperation.CLUSTER_ACTION),
        Right(AclOperation.DELETE, ResourceType.TOPIC, "each topic"),
    ],
    refused=_refused,
)
async def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    replica_manager: ReplicaManager,
    context: RequestContext,
    request: MirrorTruncateRequest,
) -> MirrorTruncateResponse:
    topics = []
    has_truncated = False
    for topic in request.topics:
        source = str(MirrorSource(request.source_cluster_id, topic.source_topic_id, rejoins=True))
        answers = []
        async for requested in cooperatively(topic.partitions):
            answer = TruncatedPartitionResponse(requested.index, 0)
            answers.append(answer)
            if not authorizer.allows(context.session, AclOperation.DELETE, ResourceType.TOPIC, topic.name):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                if requested.offset >= 0:
                    check = partial(_check, source, requested)
                    await replica_manager.truncate_led((topic.name, requested.index), check, requested.offset)
                    has_truncated = True
                partition = replicas.partition(topic.name, requested.index)
                check_rejoins(partition.topic, partition.source, source)
            except ApiError as error:
                answer.error_code, answer.error_message = error.code, error.message
                found = replicas.partitions.get((topic.name, requested.index))
                if found is not None and found.source == source:
                    _describe(found, answer)
                continue
            _describe(partition, answer)
        topics.append(TruncatedTopicResponse(topic.name, answers))
    if has_truncated:
        await replica_manager.watermarks.write()
    return MirrorTruncateResponse(topics)


def _check(source: str, requested: TruncatedPartition, partition: Partition) -> None:
    """Check that the leader may truncate the log to ``requested.offset``. Raises ApiError.

    The topic must rejoin this source, and the log must be as the sender saw it, fully replicated, with a
    batch boundary at the offset.
    """
    partition.check_online()
    check_rejoins(partition.topic, partition.source, source)
    if requested.leader_epoch < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{partition}: the leader epoch must be given")
    partition.check_epoch(requested.leader_epoch)
    log = partition.log
    end = log.log_end_offset, log.epochs.latest
    if end != (requested.end_offset, requested.last_epoch):
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition} ends at offset {end[0]} with leader epoch {end[1]}, not at {requested.end_offset} with"
            f" {requested.last_epoch}",
        )
    if partition.high_watermark < log.log_end_offset:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{partition} ends at offset {end[0]}, and is replicated to {partition.high_watermark}",
        )
    if not log.log_start_offset <= requested.offset <= log.log_end_offset:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{partition}: offset {requested.offset} is not within {log.log_start_offset} and {log.log_end_offset}",
        )
    if log.is_within_batch(requested.offset):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{partition}: offset {requested.offset} is inside a batch")
    partition.check_epoch_above_records()


def _describe(partition: Partition, answer: TruncatedPartitionResponse) -> None:
    log = partition.log
    answer.leader_epoch = partition.record.leader_epoch
    answer.log_start_offset, answer.log_end_offset = log.log_start_offset, log.log_end_offset
    answer.last_epoch, answer.high_watermark = log.epochs.latest, partition.high_watermark
    answer.in_sync = partition.high_watermark == log.log_end_offset and (
        partition.isr is None or partition.isr.all_are_level
    )
