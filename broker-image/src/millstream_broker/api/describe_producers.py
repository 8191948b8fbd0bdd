"""DescribeProducers: the active idempotent producers of partitions that this broker leads (KIP-664)."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import describe_producers
from millstream_kafka.protocol.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from millstream_kafka.protocol.errors import ApiError

from ..log.producer_state import ProducerStateEntry
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right


@handler(
    describe_producers.API,
    ends_with_connection=True,
    rights=[Right(AclOperation.READ, ResourceType.TOPIC, "each topic")],
)
def handle(
    authorizer: Authorizer, replicas: Replicas, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    topics = []
    for topic in request.topics:
        topics.append(TopicResponse(topic.name, []))
        for index in topic.partition_indexes:
            topics[-1].partitions.append(_of(authorizer, replicas, context, topic.name, index))
            yield
    return DescribeProducersResponse(topics=topics)


def _of(
    authorizer: Authorizer, replicas: Replicas, context: RequestContext, topic: str, index: int
) -> PartitionResponse:
    try:
        authorizer.check(context.session, AclOperation.READ, ResourceType.TOPIC, topic)
        partition = replicas.partition(topic, index)
        partition.check_online()
    except ApiError as error:
        return PartitionResponse(index, error.code, error.message)
    producers = partition.log.producers.by_id
    return PartitionResponse(index, active_producers=[_state(*each) for each in producers.items()])


def _state(producer_id: int, producer: ProducerStateEntry) -> ProducerState:
    return ProducerState(
        producer_id,
        producer.epoch,
        producer.last.last_sequence,
        producer.last_timestamp,
        producer.coordinator_epoch,
        producer.transaction_first_offset,
    )
