"""CreateTopics: each topic is created or refused by itself; `validate_only` changes nothing.

v4 takes -1 for the broker's default counts; v5 answers with the topic's configuration (KIP-525); v7 with its id.
A name that stands twice in a request is refused both times, as it is not clear what is meant.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ..config import TopicConfig
from ..coordination import TopicRecord
from ..protocol import create_topics
from ..protocol.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ..protocol.errors import ApiError, ErrorCode
from ..topics import MAX_PARTITIONS, NewTopic, create_topic, plan_topic
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(create_topics.API)
async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    too_many = _check_total(request)

    async def answer(topic: CreatableTopic) -> CreatableTopicResult:
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if too_many is not None:
                raise too_many
            return await _create(broker, topic, request.validate_only)
        except ApiError as error:
            return _refused(topic.name, error)

    asked = {topic.name: topic for topic in request.topics}.values()
    if broker.cluster is None:
        return CreateTopicsResponse(topics=[await answer(topic) for topic in asked])
    # Each waits for the controller, which elects the leaders of many at once.
    return CreateTopicsResponse(topics=await asyncio.gather(*map(answer, asked)))


def _check_total(request: CreateTopicsRequest) -> ApiError | None:
    total = sum(max(topic.num_partitions, len(topic.assignments), 1) for topic in request.topics)
    if len(request.topics) == 1 or total <= MAX_PARTITIONS:
        return None
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"The request asks for {total} partitions in all: one request may create at most {MAX_PARTITIONS}.",
    )


async def _create(broker: Broker, topic: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    assignment: dict[int, list[int]] = {}
    for one in topic.assignments:
        if assignment.setdefault(one.partition_index, one.broker_ids) is not one.broker_ids:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {one.partition_index}",
            )
    if unset := [config.name for config in topic.configs if config.value is None]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(unset)}"
        )
    config = {one.name: one.value for one in topic.configs if one.value is not None}
    new = NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignment, config)
    created = plan_topic(broker, new) if validate_only else await create_topic(broker, new)
    return _created(broker, created)


def _created(broker: Broker, topic: TopicRecord) -> CreatableTopicResult:
    configs = [
        CreatableTopicConfigs(entry.key.name, entry.value, False, entry.source, False)
        for entry in TopicConfig(broker.config, topic.config).describe()
    ]
    return CreatableTopicResult(
        topic.name,
        topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=configs,
    )


def _refused(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=error.code, error_message=error.message, configs=[])
