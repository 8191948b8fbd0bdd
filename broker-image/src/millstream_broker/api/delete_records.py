"""DeleteRecords: move the start of partitions up to an offset; -1 is the high watermark (KIP-107).

The response waits until the live replicas have moved theirs, up to the request's timeout, and no crash can undo it.
Nothing is deleted from internal topics and those that are only compacted, as in Kafka, nor from a mirror's replica,
whose start follows its source's.
"""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import delete_records
from millstream_kafka.protocol.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..network.handlers import RequestContext, handler
from ..replication.partition import Partition
from ..replication.purgatory import Delayed
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import changed_topics
from ..topic_rules.internal_topics import check_not_internal
from ..topic_rules.mirrored_topics import read_only

HIGH_WATERMARK = -1


@handler(
    delete_records.API,
    changes=changed_topics,
    rights=[Right(AclOperation.DELETE, ResourceType.TOPIC, "each topic")],
)
async def handle(
    authorizer: Authorizer, replicas: Replicas, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = []
    waiting: list[tuple[DeleteRecordsPartitionResult, Partition, Delayed | None]] = []
    for topic in request.topics:
        topics.append(DeleteRecordsTopicResult(topic.name, []))
        async for requested in cooperatively(topic.partitions):
            result = DeleteRecordsPartitionResult(requested.partition_index)
            topics[-1].partitions.append(result)
            try:
                authorizer.check(context.session, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
                waiting.append((result, *_delete(replicas, topic.name, requested, request.timeout_ms)))
            except ApiError as error:
                result.low_watermark, result.error_code = -1, error.code
    async for result, partition, followers in cooperatively(waiting):
        try:
            if followers is not None:
                await followers
            result.low_watermark = partition.low_watermark
        except ApiError as error:
            result.low_watermark, result.error_code = -1, error.code
    return DeleteRecordsResponse(topics=topics)


def _delete(
    replicas: Replicas, topic: str, requested: DeleteRecordsPartition, timeout_ms: int
) -> tuple[Partition, Delayed | None]:
    """The partition, and a future that resolves when its followers have deleted too. Raises ApiError."""
    check_not_internal(topic)
    partition = replicas.partition(topic, requested.partition_index)
    partition.check_online()
    if partition.source:
        raise read_only(topic, partition.source)
    config = partition.log.config
    if not (config.deletes or config.keeps_all):
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    offset = partition.high_watermark if requested.offset == HIGH_WATERMARK else requested.offset
    return partition, partition.delete_records_before(offset, timeout_ms)
