"""Requests for the offsets of many partitions: which broker to ask, and what its response says of each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.errors import (
    KafkaStorageError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from .records import Partition

NO_OFFSET_NOW = frozenset(
    one.errno
    for one in (
        KafkaStorageError,
        LeaderNotAvailableError,
        NotLeaderForPartitionError,
        OffsetNotAvailableError,
        ReplicaNotAvailableError,
    )
)
"""Errors of one partition, which may pass."""


def by_leader(
    client: KafkaAdminClient, wanted: Mapping[Partition, int]
) -> dict[int, dict[TopicPartition, int]]:
    """Partitions and times by the partition's leader, without partitions that have none now. Raises KafkaError."""
    leaders = {
        Partition(topic.name, partition.partition_index): partition.leader_id
        for topic in topics_in(client, {partition.topic for partition in wanted})
        for partition in topic.partitions
    }
    if unknown := wanted.keys() - leaders.keys():
        raise UnknownTopicOrPartitionError(f"unknown partitions: {', '.join(map(str, sorted(unknown)))}")
    found: dict[int, dict[TopicPartition, int]] = {}
    for partition, when in wanted.items():
        if leaders[partition] >= 0:
            found.setdefault(leaders[partition], {})[TopicPartition(*partition)] = when
    return found


def offsets_in(response: Any) -> dict[Partition, int]:
    """The offsets of a ListOffsets response, without partitions that have none now. Raises KafkaError."""
    found = {}
    for topic in response.topics:
        for one in topic.partitions:
            if one.error_code == 0:
                found[Partition(topic.name, one.partition_index)] = one.offset
            elif one.error_code not in NO_OFFSET_NOW:
                raise for_code(one.error_code)(f"offsets of {topic.name}-{one.partition_index}")
    return found


def topics_in(client: KafkaAdminClient, names: Collection[str] | None) -> Sequence[Any]:
    """The topics of a Metadata response: these, or all.

    Raises KafkaError. kafka-python's ``describe_topics`` makes dictionaries of it: 0.2 s for 5,000 partitions.
    """
    topic = MetadataRequest.MetadataRequestTopic
    topics = None if names is None else [topic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    found: Sequence[Any] = client._manager.run(client._manager.send, request).topics
    return found
