"""MirrorMakers on the real API server with a running operator: their workers' objects, and refusals.

The workers themselves run in the local runtime's tests and in e2e.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import CommandFailed, Namespace, until
from millstream_harness.manifests import cluster
from millstream_harness.operator import OperatorProcess
from millstream_harness.promoting import NOWHERE, World

pytestmark = pytest.mark.soak

KIND = "mirrormaker.millstream.dev"


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


@pytest.fixture(scope="module")
def served() -> str:
    """Address of the broker of Clusters named served, which a test starts."""
    return f"127.0.0.1:{fixed_port()}"


@pytest.fixture(scope="module")
def cluster_addresses(served: str) -> dict[str, str]:
    return {"served": served, "west": NOWHERE}


@pytest.fixture
def broker(start_broker: Callable[..., InProcessBroker], served: str) -> InProcessBroker:
    return start_broker({"listeners": f"PLAINTEXT://{served}"})


@pytest.fixture
def namespace(watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(namespace: Namespace, shared_operator: OperatorProcess) -> OperatorProcess:
    namespace.apply(cluster("east"))
    return shared_operator


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
    # The other mirror recovers, since there is no loop any more.
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


def test_topics_are_promoted_without_source_and_workers(
    broker: InProcessBroker, namespace: Namespace, shared_operator: OperatorProcess
) -> None:
    """The operator is killed as soon as it has recorded the request, and the next one takes over.

    The target is a real broker; workers' pods cannot run here, and nothing responds at the source's address.
    """
    with closing(World(broker.bootstrap, "copy")) as there:
        names = [there.replica(f"copy-{number}").name for number in range(3)]
        namespace.apply(cluster("served"))
        spec: dict[str, Any] = {
            "sources": [{"name": "west", "bootstrap": NOWHERE}],
            "target": {"clusterRef": {"name": "served"}},
            "topics": {"include": ["copy-.*"]},
            "mode": "Identity",
            "replicas": 0,
        }
        with pytest.raises(CommandFailed, match="promote: only with mode Identity"):
            namespace.apply(a_mirror("copy", **spec | {"mode": "Aggregate"}, promote={"requestId": "a"}))
        namespace.apply(a_mirror("copy", **spec, promote={"requestId": "a", "topics": [names[0], "copy-9"]}))
        namespace.wait_condition(KIND, "copy", "Promoted", status="False", reason="PromotionRefused")
        message = namespace.condition(KIND, "copy", "Promoted")["message"]
        assert message.startswith(
            "request a: there is no topic copy-9 in the target; this mirror's topics are "
        )
        with pytest.raises(CommandFailed, match="promote: other topics need another requestId"):
            namespace.apply(a_mirror("copy", **spec, promote={"requestId": "a", "topics": [names[0]]}))
        assert there.writable(*names) == [False] * 3

        namespace.apply(a_mirror("copy", **spec, promote={"requestId": "b", "topics": [names[0]]}))
        until("the request is recorded", lambda: last_promotion(namespace).get("requestId") == "b")
        shared_operator.kill()
        shared_operator.start()
        namespace.wait_condition(KIND, "copy", "Promoted", reason="Promoted")
        last = last_promotion(namespace)
        assert (last["state"], last["notMirrored"]) == ("Done", 7)
        (row,) = last["topics"]
        assert (row["ends"], row["sourceEnds"], row["sourceEndsFrom"]) == ([3], [10], "LastKnown")
        assert there.writable(*names) == [True, False, False]

        namespace.apply(a_mirror("copy", **spec, promote={"requestId": "c"}))
        until("all are promoted", lambda: there.writable(*names) == [True] * 3)
        namespace.wait_condition(KIND, "copy", "Ready", reason="Promoted")
        assert last_promotion(namespace)["message"].startswith(
            f"2 topics promoted; promoted before: {names[0]}; "
        )
        until("no workers are left", lambda: not namespace.list("deployment"))
        reasons = {one["reason"] for one in namespace.list("event")}
        assert {"PromotionRefused", "Promoted"} <= reasons

        # the same manifest again: the status says that the topics were promoted before, and nothing changes
        namespace.kubectl("delete", KIND, "copy")
        namespace.apply(a_mirror("copy", **spec, promote={"requestId": "c"}))
        namespace.wait_condition(KIND, "copy", "Promoted", reason="Promoted")
        words = f"promoted before: {', '.join(names)}; at least 21 records"
        assert last_promotion(namespace)["message"].startswith(words)


def last_promotion(namespace: Namespace) -> dict[str, Any]:
    found: dict[str, Any] = namespace.get(KIND, "copy").get("status", {}).get("lastPromotion", {})
    return found


def test_a_promoted_mirror_is_no_part_of_a_loop(broker: InProcessBroker, namespace: Namespace) -> None:
    """After a failover, there may be a mirror in the other direction."""
    for name in ("served", "west"):
        namespace.apply(cluster(name))
    with closing(World(broker.bootstrap, "copy")) as there:
        there.replica("copy-orders")
        spec: dict[str, Any] = {"topics": {"include": ["copy-.*"]}, "mode": "Identity", "replicas": 0}
        forth = {**spec, "target": {"clusterRef": {"name": "served"}}}
        namespace.apply(a_mirror("copy", **forth))
        until("its Deployment", lambda: namespace.list("deployment"))
        back = {
            "sources": [{"name": "east", "clusterRef": {"name": "served"}}],
            "target": {"clusterRef": {"name": "west"}},
        }
        made = datetime.fromisoformat(namespace.get(KIND, "copy")["metadata"]["creationTimestamp"])
        until("the next second", lambda: datetime.now(UTC) - made > timedelta(seconds=1))
        namespace.apply(a_mirror("back", **spec, **back))
        namespace.wait_condition(KIND, "back", status="False", reason="MirrorLoop")
        namespace.apply(a_mirror("copy", **forth, promote={"requestId": "failover"}))
        namespace.wait_condition(KIND, "copy", "Ready", reason="Promoted")
        namespace.wait_condition(KIND, "back", status="False", reason="NoWorkers")
