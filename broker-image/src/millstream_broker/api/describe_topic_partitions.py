"""DescribeTopicPartitions: topics in the order of their names, page by page (KIP-966).

A page ends after `response_partition_limit` partitions, at most MOST_PARTITIONS, and names where the next one starts.
The cursor belongs to no session: a topic that was deleted meanwhile is skipped, or reported like one that never was. A
cursor in a topic that the request does not name is refused.
Eligible leaders outside the ISR are KRaft's, so there are none.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import describe_topic_partitions
from millstream_kafka.protocol.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..metadata.encoded_topics import EncodedTopics
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..topic_rules.internal_topics import is_internal
from .metadata import NOT_ASKED, why_missing

DESCRIBE, TOPIC = AclOperation.DESCRIBE, ResourceType.TOPIC
MOST_PARTITIONS = 2000
"""The default of Kafka's `max.request.partition.size.limit`."""


@handler(
    describe_topic_partitions.API,
    rights=[
        Right(DESCRIBE, TOPIC, "each topic; a request for all topics leaves others out"),
    ],
)
def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    encoded_topics: EncodedTopics,
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
) -> Steps[DescribeTopicPartitionsResponse]:
    topics, cursor = replicas.metadata.topics, request.cursor
    requested: Collection[str] = {topic.name for topic in request.topics} if request.topics else topics
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and cursor.topic_name not in requested)
    ):
        refused = ErrorCode.INVALID_REQUEST
        return DescribeTopicPartitionsResponse(
            topics=[DescribeTopicPartitionsResponseTopic(refused, topic.name) for topic in request.topics]
        )
    start = "" if cursor is None else cursor.topic_name
    room = max(min(request.response_partition_limit, MOST_PARTITIONS), 1)
    response = DescribeTopicPartitionsResponse()
    session, hidden = context.session, list[DescribeTopicPartitionsResponseTopic]()
    for name in sorted(name for name in requested if name >= start):
        yield
        if not authorizer.permits(session, DESCRIBE, TOPIC, name):
            if request.topics:
                authorizer.deny(session, DESCRIBE, TOPIC, name)
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                hidden.append(
                    DescribeTopicPartitionsResponseTopic(code, name, topic_authorized_operations=NOT_ASKED)
                )
            continue
        if not room:
            response.next_cursor = Cursor(name, 0)
            break
        if (topic := topics.get(name)) is None:
            if request.topics:
                response.topics.append(_described(authorizer, context, why_missing(name), name))
            continue
        first = cursor.partition_index if cursor is not None and name == start else 0
        end = min(first + room, len(topic.partitions))
        described = _described(authorizer, context, ErrorCode.NONE, name)
        described.topic_id = topic.topic_id
        response.topics.append(described)
        for index in range(first, end):
            yield
            found = encoded_topics.partition(topic, index)
            described.partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    found.error_code,
                    index,
                    found.leader_id,
                    found.leader_epoch,
                    found.replica_nodes,
                    found.isr_nodes,
                    [],
                    [],
                    found.offline_replicas,
                )
            )
        if end < len(topic.partitions):
            response.next_cursor = Cursor(name, end)
            break
        room -= len(described.partitions)
    response.topics += hidden
    return response


def _described(
    authorizer: Authorizer, context: RequestContext, error: ErrorCode, name: str
) -> DescribeTopicPartitionsResponseTopic:
    operations = authorizer.operations(context.session, TOPIC, name)
    return DescribeTopicPartitionsResponseTopic(
        error, name, is_internal=is_internal(name), topic_authorized_operations=operations
    )
