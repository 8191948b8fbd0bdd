"""CreateTopics: each topic is created or refused independently; `validate_only` changes nothing.

v4 accepts -1 for the broker's default counts; v5 returns the topic's configuration (KIP-525); v7 its id.
A duplicate name in a request is ambiguous, so both entries are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import create_topics
from millstream_kafka.protocol.create_topics import (
    CONFIG,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Encoded

from ..administration.topics import MAX_PARTITIONS, NewTopic, TopicAdministrator
from ..coordination import TopicRecord
from ..metadata.effective_configs import EffectiveConfigs
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import Changed
from ..security.quotas.mutations import Mutations
from ..security.quotas.quotas import Quotas

CREATE, TOPIC = AclOperation.CREATE, ResourceType.TOPIC
STRICT_SINCE = 6
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _changes(request: CreateTopicsRequest) -> Iterator[Changed]:
    for topic in request.topics:
        yield Changed("Topic", topic.name, f"{topic.num_partitions} partitions")


@handler(
    create_topics.API,
    changes=_changes,
    rights=[
        Right(
            CREATE,
            ResourceType.CLUSTER,
            "the cluster, for all topics",
            without="Create on each topic is needed",
        ),
        Right(CREATE, TOPIC, "each topic"),
        Right(
            AclOperation.DESCRIBE_CONFIGS,
            TOPIC,
            "each topic, to see its configuration",
            without="TOPIC_AUTHORIZATION_FAILED in `topic_config_error_code` of the created topic",
        ),
    ],
)
async def handle(
    authorizer: Authorizer,
    topic_administrator: TopicAdministrator,
    configs: EffectiveConfigs,
    quotas: Quotas,
    context: RequestContext,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    too_many = _check_total(request)
    session = context.session
    may_all = authorizer.permits_on_cluster(session, CREATE)
    results: dict[str, CreatableTopicResult] = {}
    new: list[NewTopic] = []
    async for topic in cooperatively(request.topics):
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if not (may_all or authorizer.allows(session, CREATE, TOPIC, topic.name)):
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
            if too_many is not None:
                raise too_many
            new.append(_new_topic(topic))
        except ApiError as error:
            results[topic.name] = _refused(topic.name, error)
    mutations = Mutations(
        quotas, context.session, context.client_id, quotas.now_ms(), is_strict=context.version >= STRICT_SINCE
    )
    created = await topic_administrator.create_topics(
        new,
        validate_only=request.validate_only,
        count=lambda partitions: mutations.record(partitions, quotas.now_ms()),
    )
    describe = _Described(configs, context.version)
    async for planned, outcome in cooperatively(zip(new, created, strict=True)):
        if isinstance(outcome, ApiError):
            results[planned.name] = _refused(planned.name, outcome)
        elif authorizer.permits(session, AclOperation.DESCRIBE_CONFIGS, TOPIC, planned.name):
            results[planned.name] = describe.created(outcome)
        else:
            results[planned.name] = _undescribed(outcome)
    return CreateTopicsResponse(mutations.throttle_ms(quotas.now_ms()), [results[name] for name in named])


def _check_total(request: CreateTopicsRequest) -> ApiError | None:
    total = sum(max(topic.num_partitions, len(topic.assignments), 1) for topic in request.topics)
    if len(request.topics) == 1 or total <= MAX_PARTITIONS:
        return None
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"The request creates {total} partitions: one request may create at most {MAX_PARTITIONS}.",
    )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    """Raises ApiError."""
    assignment: dict[int, list[int]] = {}
    for manual in topic.assignments:
        if assignment.setdefault(manual.partition_index, manual.broker_ids) is not manual.broker_ids:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {manual.partition_index}",
            )
    if unset := [config.name for config in topic.configs if config.value is None]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(unset)}"
        )
    config = {entry.name: entry.value for entry in topic.configs if entry.value is not None}
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignment, config)


class _Described:
    """Created topics; those with the same overrides share their encoded configuration."""

    def __init__(self, effective: EffectiveConfigs, version: int) -> None:
        self._effective = effective
        self._version = version
        self._configs: dict[frozenset[tuple[str, str]], Any] = {}

    def created(self, topic: TopicRecord) -> CreatableTopicResult:
        overrides = frozenset(topic.config.items())
        if (configs := self._configs.get(overrides)) is None:
            configs = self._configs[overrides] = self._encoded(topic)
        return CreatableTopicResult(
            topic.name,
            topic.topic_id,
            error_message=None,
            num_partitions=len(topic.partitions),
            replication_factor=len(topic.partitions[0].replicas),
            configs=configs,
        )

    def _encoded(self, topic: TopicRecord) -> Any:
        entries = self._effective.of_stored(topic.config).describe()
        parts = [
            CONFIG.encode(
                self._version, CreatableTopicConfigs(entry.key.name, entry.value, False, entry.source, False)
            )
            for entry in entries
        ]
        return Encoded(len(parts), b"".join(parts))


def _undescribed(topic: TopicRecord) -> CreatableTopicResult:
    """For those who may not see its configuration."""
    return CreatableTopicResult(
        topic.name,
        topic.topic_id,
        error_message=None,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def _refused(name: str, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=error.code, error_message=error.message, configs=[])
