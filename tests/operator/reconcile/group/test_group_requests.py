"""Requests of a reconcile of many groups to real brokers: they grow with brokers, not with groups or partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.cluster import until
from millstream_harness.group_looks import OneAdmin
from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.manifests import cluster as cluster_manifest
from millstream_harness.manifests import group
from millstream_kafka.protocol.api import Api
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.connection import KafkaConnection
from millstream_operator.kafka.records import NewTopic, Partition
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups

pytestmark = pytest.mark.soak

BROKERS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """Its leaders stay where they are, also on a busy machine: another one costs a client more requests."""
    patient = {"zookeeper.session.timeout.ms": "30000", "replica.lag.time.max.ms": "30000"}
    with InProcessCluster(tmp_path, config=patient) as cluster:
        yield cluster


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests handed to connections, by name."""
    found: Counter[str] = Counter()
    before = KafkaConnection._before

    def count(self: KafkaConnection, api: Api[Any, Any]) -> None:
        found[api.name] += 1
        before(self, api)

    monkeypatch.setattr(KafkaConnection, "_before", count)
    return found


def test_requests_grow_with_brokers_only(cluster: InProcessCluster, sent: Counter[str]) -> None:
    with closing(KafkaAdmin(cluster.bootstrap)) as admin:
        few = requests_of_a_look(cluster, admin, sent, "few", topics=2, partitions=3, groups=5)
        many = requests_of_a_look(cluster, admin, sent, "many", topics=20, partitions=10, groups=100)
    for asked in (few, many):  # the second has ten times the topics and twenty times the groups
        for name in ("OffsetFetch", "DescribeGroups", "ListOffsets"):
            assert 1 <= asked[name] <= BROKERS, asked
        assert sum(asked.values()) <= 3 * BROKERS + 3, asked


def requests_of_a_look(
    cluster: InProcessCluster,
    admin: KafkaAdmin,
    sent: Counter[str],
    name: str,
    *,
    topics: int,
    partitions: int,
    groups: int,
) -> Counter[str]:
    """The requests of a repeated reconcile of groups, with lag in every partition."""
    names = [f"{name}-{number}" for number in range(topics)]
    admin.create_topics([NewTopic(topic, partitions, 1, {}) for topic in names])
    for topic in names:  # a group's coordinator may be the last broker to learn of a topic
        cluster.await_in_sync(topic, replicas=1)
    manifests = []
    for number in range(groups):
        topic = names[number % topics]
        commit(admin, f"{name}-{number}", {Partition(topic, at): 0 for at in range(partitions)})
        manifests.append(stored(group(f"{name}-{number}", topics=[topic])))
    found = in_memory(stored(cluster_manifest("default")), *manifests)
    object.__setattr__(found.services, "admins", OneAdmin(admin))
    look(found)
    sent.clear()
    look(found)
    return Counter(sent)


def commit(admin: KafkaAdmin, group_id: str, offsets: dict[Partition, int]) -> None:
    until(
        lambda: admin.commit(group_id, offsets) is None,
        f"the coordinator of {group_id} has loaded its groups",
    )


def look(found: InMemory) -> None:
    resources = [one for (kind, _), one in found.kube.objects.items() if kind == "ConsumerGroup"]
    reconcile_groups(found.services, [decode_as(ConsumerGroup, one) for one in resources])
