"""A cluster at a glance: its id, its brokers, and partitions with missing replicas or without a leader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker; ``leaders`` and ``replicas`` count the partitions that it leads or has a replica of."""

    broker: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leaders: int
    replicas: int


@dataclass(frozen=True, slots=True)
class UnhealthyPartition:
    """A partition with fewer in-sync replicas (``isr``) than replicas, or without a leader (``leader`` is -1).

    ``isr`` lacks brokers that are down.
    """

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """``controller`` is -1 if there is none. Partitions include those of internal topics.

    ``under_replicated`` and ``without_leader`` count partitions; ``unhealthy_partitions`` has both kinds: those without
    a leader first, those of internal topics last.
    """

    cluster_id: str
    controller: int
    brokers: tuple[Broker, ...]
    topics: int
    partitions: int
    under_replicated: int
    without_leader: int
    unhealthy_partitions: tuple[UnhealthyPartition, ...]


def describe_cluster(cluster: Cluster) -> ClusterInfo:
    """The cluster, from its controller and one broker's metadata; raises Unreachable."""
    with kafka_errors():
        found = cluster.admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result()
    topics = cluster.metadata().topics
    unhealthy = [
        UnhealthyPartition(
            name, partition.id, partition.leader, tuple(partition.replicas), tuple(partition.isrs)
        )
        for name, topic in topics.items()
        for partition in topic.partitions.values()
        if len(partition.isrs) < len(partition.replicas) or partition.leader < 0
    ]
    unhealthy.sort(
        key=lambda partition: (
            partition.leader >= 0,
            partition.topic.startswith("__"),
            partition.topic,
            partition.partition,
        )
    )
    partitions = [partition for topic in topics.values() for partition in topic.partitions.values()]
    leaders = Counter(partition.leader for partition in partitions)
    replicas = Counter(broker for partition in partitions for broker in partition.replicas)
    controller = found.controller.id if found.controller else -1
    brokers = tuple(
        Broker(
            node.id,
            node.host,
            node.port,
            node.rack or None,
            node.id == controller,
            leaders[node.id],
            replicas[node.id],
        )
        for node in sorted(found.nodes, key=lambda node: node.id)
    )
    return ClusterInfo(
        cluster_id=found.cluster_id,
        controller=controller,
        brokers=brokers,
        topics=len(topics),
        partitions=len(partitions),
        under_replicated=sum(len(partition.isr) < len(partition.replicas) for partition in unhealthy),
        without_leader=leaders[-1],
        unhealthy_partitions=tuple(unhealthy),
    )
