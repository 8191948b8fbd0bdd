"""A cluster at a glance: its id, its brokers, and whether its partitions are well."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is up; ``leaders``: how many partitions it leads, ``replicas``: how many it has a replica of."""

    broker: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leaders: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """``controller`` is -1 while there is none. Partitions count those of internal topics too.

    ``under_replicated``: partitions with fewer in-sync replicas than replicas; ``without_leader`` counts among them.
    """

    cluster_id: str
    controller: int
    brokers: tuple[Broker, ...]
    topics: int
    partitions: int
    under_replicated: int
    without_leader: int


def describe_cluster(cluster: Cluster) -> ClusterInfo:
    with kafka_errors():
        found = cluster.admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result()
    topics = cluster.metadata().topics
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
        under_replicated=sum(len(one.isrs) < len(one.replicas) for one in partitions),
        without_leader=leaders[-1],
    )
