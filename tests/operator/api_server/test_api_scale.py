"""Many topics, groups and Clusters: ready soon, with little memory, and no writes while nothing changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.kube import Namespace, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess
from millstream_harness.operator_scale import EDIT_TIMEOUT_S, Measurement
from millstream_harness.operator_scale_api import Api
from millstream_harness.operator_scale_figures import Size
from millstream_operator.reconcile.group.apply import LAG_AGE_S
from millstream_operator.state.status_throttle import BUDGET, PER_SECOND, RESERVE

pytestmark = pytest.mark.soak

TOPICS = 1000
READY_S = 180
MAX_RESIDENT_BYTES = 120_000_000
MAX_LAG_AGE_S = 10.0
MOST_CHECKS_PER_S = 0.5
"""Of all groups of a Cluster together; alone, ten groups of a Cluster would need more than one."""


@pytest.mark.timeout(500)
def test_a_thousand_topics(
    tmp_path: Path, namespace: Namespace, start_operator: Callable[..., OperatorProcess]
) -> None:
    with ClusterProcesses(tmp_path, config={"zookeeper.session.timeout.ms": "4000"}) as brokers:
        operator = start_operator({"default": brokers.bootstrap})
        namespace.apply(cluster(brokers={"replicas": 3}, zookeeper={"connect": brokers.connect}))
        names = [f"t-{number}" for number in range(TOPICS)]
        topics = [topic(name, replicationFactor=3) for name in names]
        manifests = {"apiVersion": "v1", "kind": "List", "items": topics}
        namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifests).encode())

        def all_ready() -> bool:
            ready = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
            return namespace.kubectl("get", "topics.millstream.dev", ready).split() == ["True"] * TOPICS

        until("all topics ready", all_ready, READY_S, every=2)
        assert operator.resident_bytes() < MAX_RESIDENT_BYTES

        def in_sync() -> bool:
            replicated = "-o=jsonpath={.items[*].status.underReplicated}"
            return namespace.kubectl("get", "topics.millstream.dev", replicated).split() == ["0"] * TOPICS

        until("every replica in sync, and told", in_sync, 120, every=2)

        def versions() -> dict[str, str]:
            return {
                one["metadata"]["name"]: one["metadata"]["resourceVersion"]
                for one in namespace.list("topics.millstream.dev")
            }

        before = versions()
        operator.stop()
        operator.start()
        for name in (names[0], names[-1]):
            operator.has_looked_at(f"Topic {namespace.name}/{name}")
        assert versions() == before
        assert operator.resident_bytes() < MAX_RESIDENT_BYTES


@pytest.mark.timeout(600)
def test_many_of_each_kind_under_traffic(tmp_path: Path, api_server: None) -> None:
    """`make operator-scale` at a small size: writes do not grow with the traffic, and lags are up to date."""
    size = Size(
        clusters=4, topics=200, groups=40, brokers=4, period_s=2.0, steady_s=40.0, edits=20, frozen=0.25
    )
    api = Api.connect()
    assert isinstance(api, Api)
    found = Measurement(api, tmp_path, size, print).run()
    assert found.restart_statuses == 0
    most = BUDGET - RESERVE + PER_SECOND["ConsumerGroup"] * size.steady_s
    assert found.statuses["ConsumerGroup"] <= most < size.groups * size.steady_s / LAG_AGE_S / 2
    assert found.lag_age_s <= MAX_LAG_AGE_S
    assert 0 < found.broker_requests["DescribeGroups"] <= size.clusters * MOST_CHECKS_PER_S
    assert found.peak_bytes < MAX_RESIDENT_BYTES
    assert len(found.edits_s) == len(found.edits_beside_frozen_s) == size.edits
    assert max(found.edits_s + found.edits_beside_frozen_s) < EDIT_TIMEOUT_S
