"""A thousand topics: soon ready, in little memory, and when nothing changes nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.kube import Namespace, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess

TOPICS = 1000
MAX_RESIDENT_BYTES = 120_000_000


@pytest.mark.timeout(400)
def test_a_thousand_topics(
    start_broker: Callable[..., BrokerProcess],
    namespace: Namespace,
    start_operator: Callable[..., OperatorProcess],
) -> None:
    operator = start_operator({"default": start_broker().bootstrap})
    namespace.apply(cluster())
    names = [f"t-{number}" for number in range(TOPICS)]
    manifests = {"apiVersion": "v1", "kind": "List", "items": [topic(name) for name in names]}
    namespace.kubectl("create", "-f", "-", stdin=json.dumps(manifests).encode())

    def all_ready() -> bool:
        ready = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return namespace.kubectl("get", "topics.millstream.dev", ready).split() == ["True"] * TOPICS

    until("all topics ready", all_ready, 180, every=2)
    assert operator.resident_bytes() < MAX_RESIDENT_BYTES

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
