"""Topics: which there are, and what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, ConfigSource, OffsetSpec, ResourceType

from millstream.connection import REQUEST_TIMEOUT_S, Cluster, results
from millstream.errors import UnknownTopic

INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at a glance."""

    name: str
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its first offset, and the one behind its last record."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic in full; ``config`` has what was set for it, without defaults."""

    name: str
    topic_id: str
    partitions: tuple[Partition, ...]
    config: dict[str, str]


def list_topics(cluster: Cluster, *, internal: bool = False) -> list[Topic]:
    """All topics by name, the brokers' own only if asked for."""
    found = cluster.metadata().topics
    return [
        Topic(
            name,
            len(found[name].partitions),
            max((len(p.replicas) for p in found[name].partitions.values()), default=0),
        )
        for name in sorted(found)
        if internal or name not in INTERNAL
    ]


def describe_topic(cluster: Cluster, name: str) -> TopicDetails:
    """One topic; UnknownTopic if there is none of that name."""
    numbers = partition_numbers(cluster, name)
    asked = cluster.admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
    described = results(asked)[name]
    ends = watermarks(cluster, [(name, number) for number in numbers])
    partitions = tuple(
        Partition(
            partition.id,
            partition.leader.id if partition.leader else -1,
            tuple(node.id for node in partition.replicas),
            tuple(node.id for node in partition.isr),
            *ends[name, partition.id],
        )
        for partition in sorted(described.partitions, key=lambda partition: partition.id)
    )
    return TopicDetails(name, str(described.topic_id), partitions, _config(cluster, name))


def partition_numbers(cluster: Cluster, name: str) -> list[int]:
    """The numbers of a topic's partitions; UnknownTopic if there is none of that name."""
    topics = cluster.metadata().topics
    if name not in topics:
        raise UnknownTopic(f'there is no topic "{name}"', "millstream topic list shows those there are")
    return sorted(topics[name].partitions)


def watermarks(
    cluster: Cluster, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Of every partition its first offset, and the one behind its last record."""
    wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
    if not wanted:
        return {}
    ends = []
    specs: Any = OffsetSpec  # untyped
    for spec in (specs.earliest(), specs.latest()):
        found = results(
            cluster.admin.list_offsets(dict.fromkeys(wanted, spec), request_timeout=REQUEST_TIMEOUT_S)
        )
        ends.append({(at.topic, at.partition): info.offset for at, info in found.items()})
    earliest, latest = ends
    return {key: (earliest[key], latest[key]) for key in earliest}


def _config(cluster: Cluster, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    (entries,) = results(
        cluster.admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    ).values()
    return {
        key: entry.value
        for key, entry in sorted(entries.items())
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
