"""OffsetFetch: a group's stored positions, of the partitions asked for or (null) of all; -1 where there is none.

From v8 for several groups in a request. ``require_stable`` (v7) makes no difference without transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..groups.messages import FetchedOffsets
from ..protocol import offset_fetch
from ..protocol.errors import ErrorCode
from ..protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

BATCHED_SINCE = 8
TOP_LEVEL_ERROR_SINCE = 2
Topics = Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None
Found = tuple[int, int, int, str, ErrorCode]
"""The fields of a partition in the response: index, offset, leader epoch, metadata, error."""


@handler(offset_fetch.API)
def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= BATCHED_SINCE:
        groups = []
        for asked in request.groups:
            error, found = _fetch(broker, asked.group_id, asked.topics)
            topics = [
                OffsetFetchResponseTopics(name, [OffsetFetchResponsePartitions(*each) for each in partitions])
                for name, partitions in found
            ]
            groups.append(OffsetFetchResponseGroup(asked.group_id, [] if error else topics, error))
        return OffsetFetchResponse(groups=groups)
    error, found = _fetch(broker, request.group_id, request.topics)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(name, [OffsetFetchResponsePartition(*each) for each in partitions])
            for name, partitions in found
            if not error or context.version < TOP_LEVEL_ERROR_SINCE
        ],
        error_code=error,
    )


def _fetch(
    broker: Broker, group_id: str, topics: Topics
) -> tuple[ErrorCode, Iterable[tuple[str, list[Found]]]]:
    wanted = None
    if topics is not None:
        wanted = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    fetched = broker.groups.fetch_offsets(group_id, wanted)
    by_topic: dict[str, list[Found]] = {}
    for name, index in fetched.offsets if wanted is None else wanted:
        by_topic.setdefault(name, []).append(_found(fetched, name, index))
    return fetched.error, by_topic.items()


def _found(fetched: FetchedOffsets, name: str, index: int) -> Found:
    committed = fetched.offsets.get((name, index))
    if committed is None:
        return index, -1, -1, "", fetched.error
    return index, committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE
