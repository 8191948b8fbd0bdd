"""Watches that fall behind, on the real API server: it responds with 410 Gone, and the operator lists again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_harness.falling_behind import FallingBehind
from millstream_harness.kube import Namespace, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess

pytestmark = pytest.mark.soak

KIND = "topics.millstream.dev"


def test_a_watch_that_fell_behind_begins_anew_and_leaves_no_ghost(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    def reason(name: str) -> str:
        return str(namespace.condition(KIND, name).get("reason", ""))

    behind, kubeconfig = FallingBehind(), tmp_path / "kubeconfig"
    with behind.running(kubeconfig):
        namespace.apply(cluster())
        namespace.apply(topic("ghost", topicName="flights"))
        operator = start_operator({}, kubeconfig=kubeconfig)
        until("the first has it", lambda: reason("ghost") == "ClusterNotReady")
        namespace.apply(topic("heir", topicName="flights"))
        namespace.apply(topic("changed", topicName="x"))
        until("the younger one waits", lambda: reason("heir") == "ConflictingTopic")
        until("the other is seen", lambda: reason("changed") == "ClusterNotReady")
        assert behind.gone == []

        with behind.fall_behind():  # no watch shows what happens in here
            namespace.kubectl("delete", KIND, "ghost")
            namespace.apply(topic("late"))
            namespace.patch(KIND, "changed", {"spec": {"clusterRef": {"name": "default"}, "partitions": 3}})
            assert reason("heir") == "ConflictingTopic"

        path = f"/apis/millstream.dev/v1alpha1/namespaces/{namespace.name}/topics"
        until("the API server said 410", lambda: path in behind.gone)
        until("the operator lists anew", lambda: path in behind.listed)
        until("what was made meanwhile is seen", lambda: reason("late") == "ClusterNotReady")
        changed = namespace.get(KIND, "changed")["metadata"]["generation"]
        until(
            "what changed meanwhile is seen",
            lambda: namespace.condition(KIND, "changed").get("observedGeneration") == changed,
        )
        until("what was deleted meanwhile holds nothing", lambda: reason("heir") == "ClusterNotReady")
        assert f"the watches missed DELETED Topic {namespace.name}/ghost" in operator.said()
        until("nobody else is left", lambda: operator.health()["work"]["resources"] == 4)
