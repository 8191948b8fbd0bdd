"""Parts of Fetch responses that depend on nothing but their arguments."""

from __future__ import annotations

from millstream_kafka.protocol.fetch import FetchResponse, LeaderIdAndEpoch

from ..metadata.cache import Metadata


def joined(first: FetchResponse, second: FetchResponse) -> FetchResponse:
    """Two responses of a session as one; the second is newer."""
    if not first.responses:
        return second
    topics = {(topic.topic, topic.topic_id): topic for topic in first.responses}
    for newer in second.responses:
        if (older := topics.get((newer.topic, newer.topic_id))) is None:
            topics[newer.topic, newer.topic_id] = newer
        else:
            by_index = {data.partition_index: data for data in older.partitions}
            by_index.update((data.partition_index, data) for data in newer.partitions)
            older.partitions = list(by_index.values())
    first.responses = list(topics.values())
    return first


def current_leader(metadata: Metadata, topic: str, index: int) -> LeaderIdAndEpoch | None:
    """The broker that leads the partition; None if there is no such partition."""
    record = metadata.topics.get(topic)
    if record is None or index >= len(record.partitions):
        return None
    found = record.partitions[index]
    return LeaderIdAndEpoch(found.leader, found.leader_epoch)
