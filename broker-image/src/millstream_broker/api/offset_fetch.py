"""OffsetFetch: a group's stored positions in the given partitions or (null) in all; -1 if there is none.

From v8 a request may name several groups, from v10 topics by id. ``require_stable`` (v7) makes no difference without
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import offset_fetch
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millstream_kafka.protocol.schema import ZERO_UUID

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.session import ClientSession

BATCHED_SINCE = 8
TOP_LEVEL_ERROR_SINCE = 2
DESCRIBE = AclOperation.DESCRIBE
AT_ONCE = 200
"""Partitions looked up in one turn of the loop."""
Topics = Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None
P = TypeVar("P", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)


class _Rights(NamedTuple):
    """What a client may see."""

    authorizer: Authorizer
    session: ClientSession

    def has_group(self, group_id: str) -> bool:
        return self.authorizer.allows(self.session, DESCRIBE, ResourceType.GROUP, group_id)

    def shows_topic(self, name: str) -> bool:
        return self.authorizer.permits(self.session, DESCRIBE, ResourceType.TOPIC, name)

    def has_topic(self, name: str) -> bool:
        return self.authorizer.allows(self.session, DESCRIBE, ResourceType.TOPIC, name)


@handler(
    offset_fetch.API,
    ends_with_connection=True,
    rights=[
        Right(DESCRIBE, ResourceType.GROUP, "each group"),
        Right(DESCRIBE, ResourceType.TOPIC, "each topic; a request for all topics leaves others out"),
    ],
)
def handle(
    authorizer: Authorizer,
    groups: GroupDriver,
    replicas: Replicas,
    context: RequestContext,
    request: OffsetFetchRequest,
) -> Steps[OffsetFetchResponse]:
    rights = _Rights(authorizer, context.session)
    if context.version >= offset_fetch.IDS_SINCE:
        response = OffsetFetchResponse()
        for requested in request.groups:
            response.groups.append(
                (yield from _fetch_by_id(rights, groups, replicas, requested, stable=request.require_stable))
            )
        return response
    if context.version >= BATCHED_SINCE:
        answers = []
        for requested in request.groups:
            error, found = yield from _fetch(
                rights,
                groups,
                requested.group_id,
                requested.topics,
                OffsetFetchResponsePartitions,
                stable=request.require_stable,
            )
            topics = [OffsetFetchResponseTopics(name, partitions=each) for name, each in found]
            answers.append(OffsetFetchResponseGroup(requested.group_id, [] if error else topics, error))
        return OffsetFetchResponse(groups=answers)
    error, of_one = yield from _fetch(
        rights,
        groups,
        request.group_id,
        request.topics,
        OffsetFetchResponsePartition,
        stable=request.require_stable,
    )
    is_listed = not error or context.version < TOP_LEVEL_ERROR_SINCE
    return OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(*topic) for topic in of_one if is_listed], error_code=error
    )


def _fetch_by_id(
    rights: _Rights,
    groups: GroupDriver,
    replicas: Replicas,
    requested: OffsetFetchRequestGroup,
    *,
    stable: bool,
) -> Steps[OffsetFetchResponseGroup]:
    """Positions are stored by name, with the topic's id: those of another topic of the name do not count."""
    known: Topics = None
    topics: list[OffsetFetchResponseTopics] = []
    unknown: list[OffsetFetchResponseTopics] = []
    ids = {}
    if requested.topics is not None:
        known = []
        for topic in requested.topics:
            yield
            record = replicas.metadata.topics_by_id.get(topic.topic_id)
            if record is not None:
                ids[record.name] = topic.topic_id
                known.append(OffsetFetchRequestTopics(record.name, topic.topic_id, topic.partition_indexes))
            else:
                missing = [
                    OffsetFetchResponsePartitions(index, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)
                    for index in topic.partition_indexes
                ]
                unknown.append(OffsetFetchResponseTopics("", topic.topic_id, missing))
    error, found = yield from _fetch(
        rights, groups, requested.group_id, known, OffsetFetchResponsePartitions, stable=stable
    )
    for name, partitions in found:
        topic_id = ids.get(name) or replicas.topic_id(name)
        if topic_id != ZERO_UUID:  # otherwise it was deleted meanwhile
            topics.append(OffsetFetchResponseTopics(name, topic_id, partitions))
    return OffsetFetchResponseGroup(
        requested.group_id, topics=[] if error else topics + unknown, error_code=error
    )


def _fetch(
    rights: _Rights,
    groups: GroupDriver,
    group_id: str,
    topics: Topics,
    kind: Callable[[int, int, int, str, ErrorCode], P],
    *,
    stable: bool,
) -> Steps[tuple[ErrorCode, Iterable[tuple[str, list[P]]]]]:
    """Looks them up in batches: the result may or may not include a position committed in between."""
    error, by_topic = ErrorCode.NONE, dict[str, list[P]]()
    if not rights.has_group(group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        for topic in topics or ():
            by_topic[topic.name] = [kind(index, -1, -1, "", error) for index in topic.partition_indexes]
            yield
        return error, by_topic.items()
    if topics is None:
        wanted = groups.committed_partitions(group_id)
        allowed = set(filter(rights.shows_topic, {name for name, _ in wanted}))
        wanted = [(name, index) for name, index in wanted if name in allowed]
    else:
        allowed = {topic.name for topic in topics if rights.has_topic(topic.name)}
        wanted = [
            (topic.name, index)
            for topic in topics
            if topic.name in allowed
            for index in topic.partition_indexes
        ]
    for start in range(0, max(len(wanted), 1), AT_ONCE):
        some = wanted[start : start + AT_ONCE]
        fetched = groups.fetch_offsets(group_id, some, stable=stable)
        error = error or fetched.error
        for name, index in some:
            committed = fetched.offsets.get((name, index))
            if (name, index) in fetched.unstable and (topics is not None or committed is not None):
                found = kind(index, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif committed is not None:
                offset, epoch, metadata = committed.offset, committed.leader_epoch, committed.metadata
                found = kind(index, offset, epoch, metadata, ErrorCode.NONE)
            elif topics is not None:
                found = kind(index, -1, -1, "", fetched.error)
            else:
                continue
            by_topic.setdefault(name, []).append(found)
        yield
    for topic in topics or ():
        if topic.name not in allowed:
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            by_topic[topic.name] = [kind(index, -1, -1, "", refused) for index in topic.partition_indexes]
    return error, by_topic.items()
