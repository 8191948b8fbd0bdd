"""MirrorMakers through the real API server and a running operator: what their workers are, and what is refused.

The workers themselves run in the local runtime's tests and in e2e.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream_harness.kube import CommandFailed, Namespace, until
from millstream_harness.manifests import cluster
from millstream_harness.operator import OperatorProcess

KIND = "mirrormaker.millstream.dev"
StartOperator = Callable[..., OperatorProcess]


def a_mirror(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "MirrorMaker",
        "metadata": {"name": name},
        "spec": {
            "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
            "target": {"clusterRef": {"name": "east"}},
            "topics": {"include": ["orders.*"]},
            **spec,
        },
    }


@pytest.fixture
def operator(namespace: Namespace, start_operator: StartOperator) -> OperatorProcess:
    namespace.apply(cluster("east"))
    return start_operator({})


def test_a_mirror_is_a_deployment_that_scales(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(a_mirror("west-to-east"))
    namespace.wait_condition(KIND, "west-to-east", status="False", reason="ClusterNotFound")
    namespace.apply(cluster("west"))
    deployment = until("its Deployment", lambda: namespace.list("deployment"))[0]
    assert deployment["metadata"]["name"] == "west-to-east-mirror"
    assert deployment["spec"]["replicas"] == 1
    told = json.loads(namespace.get("configmap", "west-to-east-mirror")["data"]["mirror.json"])
    assert told["sources"] == [{"name": "west", "bootstrap": f"west-bootstrap.{namespace.name}.svc:9092"}]

    namespace.kubectl("scale", KIND, "west-to-east", "--replicas=3")
    until(
        "three workers", lambda: namespace.get("deployment", "west-to-east-mirror")["spec"]["replicas"] == 3
    )
    selector = namespace.get(KIND, "west-to-east")["status"]["selector"]
    assert until("their pods", lambda: len(namespace.list("pod", "-l", selector)) == 3)

    namespace.kubectl("scale", KIND, "west-to-east", "--replicas=0")
    namespace.wait_condition(KIND, "west-to-east", status="False", reason="NoWorkers")
    namespace.kubectl("delete", KIND, "west-to-east")
    until("its Deployment is gone", lambda: not namespace.list("deployment"))


def test_what_would_go_round_is_refused_and_stopped(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster("west"))
    namespace.apply(a_mirror("west-to-east", replicas=0))
    until("its Deployment", lambda: namespace.list("deployment"))
    made = datetime.fromisoformat(namespace.get(KIND, "west-to-east")["metadata"]["creationTimestamp"])
    until(
        "the next second, in which the other is younger",
        lambda: datetime.now(UTC) - made > timedelta(seconds=1),
    )
    back = {
        "sources": [{"name": "east", "clusterRef": {"name": "east"}}],
        "target": {"clusterRef": {"name": "west"}},
    }
    namespace.apply(a_mirror("east-to-west", **back, replicas=0))
    namespace.wait_condition(KIND, "east-to-west", status="False", reason="MirrorLoop")

    round_ = [{"name": "west", "bootstrap": f"east-bootstrap.{namespace.name}.svc:9092"}]
    namespace.apply(a_mirror("west-to-east", sources=round_, replicas=0))
    refused = namespace.wait_condition(KIND, "west-to-east", status="False", reason="SameCluster")
    ready = refused["status"]["conditions"][0]["message"]
    assert ready.startswith("spec.target: is the source west (east-bootstrap.")
    named = "--field-selector=metadata.name=west-to-east-mirror"
    until("its workers are gone", lambda: not namespace.list("deployment", named))
    # The other one heals, since nothing goes round any more.
    namespace.wait_condition(KIND, "east-to-west", status="False", reason="NoWorkers")


def test_groups_and_gaps_are_told_to_the_workers(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster("west"))
    groups = {"include": ["app-.*"], "exclude": ["app-test"]}
    namespace.apply(a_mirror("west-to-east", groups=groups, onGap="Stop", replicas=0))
    until("its Deployment", lambda: namespace.list("deployment"))
    told = json.loads(namespace.get("configmap", "west-to-east-mirror")["data"]["mirror.json"])
    assert (told["groups"], told["onGap"]) == (groups, "Stop")
    sources = [{"name": name, "clusterRef": {"name": name}} for name in ("west", "north")]
    with pytest.raises(
        CommandFailed, match="several sources with naming Same would share a group's position"
    ):
        namespace.apply(a_mirror("both", sources=sources, groups=groups))
    namespace.apply(a_mirror("both", sources=sources, groups=groups, naming="Prefixed", replicas=0))
    namespace.apply(a_mirror("wrong", groups={"include": ["("]}, replicas=0))
    refused = namespace.wait_condition(KIND, "wrong", status="False", reason="InvalidSpec")
    assert "'(' is not a regular expression" in refused["status"]["conditions"][0]["message"]
