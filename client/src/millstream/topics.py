"""Topics: list, describe, create, alter, delete."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from millstream.configs import TOPIC, Resource, alter_configs, check_values, own_configs
from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors, outcomes, results
from millstream.errors import BadInput, Failed, UnknownTopic

INTERNAL = ("__consumer_offsets", "__transaction_state")
BROKERS_DEFAULT = -1  # a count in CreateTopics
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at a glance."""

    name: str
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. ``leader`` is -1 without one; then the offsets are unknown (None).

    ``earliest`` is its first offset, ``latest`` the offset after its last record.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic in full. ``topic_id`` in the form of Kafka's tools; ``config`` has its own settings, without defaults."""

    name: str
    topic_id: str
    partitions: tuple[Partition, ...]
    config: dict[str, str]


def list_topics(cluster: Cluster, *, internal: bool = False) -> list[Topic]:
    """All topics by name; the brokers' own topics only with ``internal``."""
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
    """One topic; UnknownTopic if it does not exist."""
    known = cluster.partitions(name)
    asked = cluster.admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
    described = results(asked)[name]
    ends = watermarks(
        cluster, [(name, number) for number, partition in known.items() if partition.leader >= 0]
    )
    partitions = tuple(
        Partition(
            partition.id,
            partition.leader.id if partition.leader else -1,
            tuple(node.id for node in partition.replicas),
            tuple(node.id for node in partition.isr),
            *ends.get((name, partition.id), (None, None)),
        )
        for partition in sorted(described.partitions, key=lambda partition: partition.id)
    )
    return TopicDetails(
        name, kafka_id(described.topic_id), partitions, own_configs(cluster, Resource(TOPIC, name))
    )


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    config: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Create a topic; omitted counts take the brokers' defaults. BadInput, Failed with the brokers' reason."""
    if not isinstance(name, str) or not name:
        raise BadInput(f"topic: {name!r} is not allowed", "write a name")
    _check_count("partitions", partitions)
    _check_count("replication_factor", replication_factor)
    check_values(config or {})
    new = NewTopic(
        name,
        num_partitions=BROKERS_DEFAULT if partitions is None else partitions,
        replication_factor=BROKERS_DEFAULT if replication_factor is None else replication_factor,
        config=dict(config or {}),
    )
    with kafka_errors():
        asked = cluster.admin.create_topics(
            [new], request_timeout=REQUEST_TIMEOUT_S, validate_only=validate_only
        )
    if why := outcomes(asked)[name]:
        raise Failed(f"topic {name} cannot be created", why)


def alter_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int | None = None,
    set_configs: Mapping[str, str] | None = None,
    delete_configs: Sequence[str] = (),
    validate_only: bool = False,
) -> None:
    """Add partitions up to a total, set configuration keys, reset others; everything is validated first."""
    _check_count("partitions", partitions)
    there = len(cluster.partitions(name))
    if partitions is not None and partitions <= there:
        raise BadInput(
            f"partitions: {partitions} is not allowed",
            f"{name} has {there}, and partitions can only be added; name a higher total",
        )
    for check in (True,) if validate_only else (True, False):
        if set_configs or delete_configs:
            alter_configs(
                cluster, Resource(TOPIC, name), set_configs or {}, delete_configs, validate_only=check
            )
        if partitions is not None:
            with kafka_errors():
                asked = cluster.admin.create_partitions(
                    [NewPartitions(name, partitions)], request_timeout=REQUEST_TIMEOUT_S, validate_only=check
                )
            if why := outcomes(asked)[name]:
                raise Failed(f"partitions cannot be added to topic {name}", why)


def _check_count(option: str, count: object) -> None:
    """BadInput for a value that is neither None nor a count. The brokers have their own limits."""
    if count is not None and (type(count) is not int or not 1 <= count <= MAX_COUNT):
        raise BadInput(f"{option}: {count!r} is not allowed", f"write a number from 1 to {MAX_COUNT:,}")


def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Delete topics and their records; returns the refusal by name, "" for those deleted."""
    with kafka_errors():
        asked = cluster.admin.delete_topics(list(names), request_timeout=REQUEST_TIMEOUT_S)
    return outcomes(asked)


def require_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """UnknownTopic for the first that does not exist."""
    there = cluster.metadata().topics
    for name in names:
        if name not in there:
            raise UnknownTopic(
                f'there is no topic "{name}"',
                "create it (millstream topic create NAME), or see millstream topic list",
            )


def watermarks(
    cluster: Cluster, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """The first offset of each partition, and the offset after its last record. Each partition must have a leader."""
    wanted = list(partitions)
    specs: Any = OffsetSpec  # untyped
    earliest, latest = (list_offsets(cluster, wanted, spec) for spec in (specs.earliest(), specs.latest()))
    return {key: (earliest[key], latest[key]) for key in earliest}


def list_offsets(
    cluster: Cluster, partitions: Iterable[tuple[str, int]], spec: Any
) -> dict[tuple[str, int], int]:
    """One offset of each partition, by ``OffsetSpec``; -1 if no record is that new."""
    wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
    if not wanted:
        return {}
    asked = cluster.admin.list_offsets(dict.fromkeys(wanted, spec), request_timeout=REQUEST_TIMEOUT_S)
    return {(at.topic, at.partition): info.offset for at, info in results(asked).items()}


def kafka_id(number: Any) -> str:
    """Kafka's form of an id (a confluent_kafka.Uuid): 16 bytes in URL-safe base64 without padding (22 characters)."""
    halves = (number.get_most_significant_bits(), number.get_least_significant_bits())
    content = b"".join((half & (2**64 - 1)).to_bytes(8) for half in halves)
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
