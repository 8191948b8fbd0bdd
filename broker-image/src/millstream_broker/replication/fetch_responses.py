"""Parts of Fetch responses that depend on nothing but their arguments."""

from __future__ import annotations

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchResponse, LeaderIdAndEpoch

from ..metadata import Metadata


def joined(first: FetchResponse, second: FetchResponse) -> FetchResponse:
    """Two responses of a session as one; the second is newer."""
    if not first.responses:
        return second
    topics = {topic.topic: topic for topic in first.responses}
    for newer in second.responses:
        if (older := topics.get(newer.topic)) is None:
            topics[newer.topic] = newer
        else:
            by_index = {data.partition_index: data for data in older.partitions}
            by_index.update((data.partition_index, data) for data in newer.partitions)
            older.partitions = list(by_index.values())
    first.responses = list(topics.values())
    return first


def current_leader(metadata: Metadata, topic: str, index: int, code: ErrorCode) -> LeaderIdAndEpoch | None:
    """The current leader, for errors that mean the client should ask it."""
    if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        return None
    record = metadata.topics.get(topic)
    if record is None or index >= len(record.partitions):
        return None
    found = record.partitions[index]
    return LeaderIdAndEpoch(found.leader, found.leader_epoch)
