"""The chart's own promises: its default Cluster, `helm test`, and an uninstall that keeps the data.

The commands after a wrong uninstall are those of docs/operations.md. The tests of this module are one story and run in
their order.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream_harness.chart import CLIENT, SYSTEM, gone, install
from millstream_harness.kube import Json, Namespace, run, until
from millstream_harness.kubernetes_pages import UNINSTALLED
from millstream_harness.pages import run_command
from millstream_harness.rolls import OPEN, resource

FINALIZER = "millstream.dev/delete"
CLUSTER_KIND, TOPIC_KIND = "cluster.millstream.dev", "topic.millstream.dev"
OPERATOR = "millstream-operator"


def topic(name: str, cluster: str) -> Json:
    spec = {"clusterRef": {"name": cluster}, "partitions": 1, "deletionPolicy": "Delete"}
    return resource("Topic", name, spec)


@pytest.fixture(scope="module")
def others(namespace: Namespace) -> Namespace:
    """A namespace with a Cluster, beside the operator's own."""
    spec = {"brokers": {"replicas": 1, "storage": {"size": "1Gi"}}, "listenerDefaults": OPEN}
    namespace.apply(resource("Cluster", "others", spec))
    for name in ("first", "second"):
        namespace.apply(topic(name, "others"))
    return namespace


@pytest.mark.usefixtures("others")
def test_the_default_cluster_passes_helm_test(millstream: Namespace) -> None:
    install(default_cluster=True)
    SYSTEM.wait_condition(CLUSTER_KIND, "default", timeout=240)
    run("helm", "test", "millstream", "--namespace", SYSTEM.name, "--timeout", "3m", timeout=200)


def brokers() -> list[str]:
    """The uids of the pods of the default Cluster's brokers that are there to stay."""
    pods = SYSTEM.list("pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker")
    return [one["metadata"]["uid"] for one in pods if "deletionTimestamp" not in one["metadata"]]


def finalizers(namespace: Namespace = SYSTEM, name: str = "left-behind") -> list[str]:
    """The finalizers of a Topic."""
    found: list[str] = namespace.get(TOPIC_KIND, name)["metadata"].get("finalizers", [])
    return found


def test_uninstall_keeps_volumes_and_leaves_nothing_stuck(millstream: Namespace) -> None:
    SYSTEM.apply(topic("left-behind", "default"))
    SYSTEM.wait_condition(TOPIC_KIND, "left-behind")
    claims = {one["metadata"]["name"] for one in SYSTEM.list("pvc")}
    assert claims
    (broker,) = brokers()
    run("helm", "uninstall", "millstream", "--namespace", SYSTEM.name, "--wait", timeout=240)
    assert {one["metadata"]["name"] for one in SYSTEM.list("pvc")} == claims
    until("no operator", lambda: not SYSTEM.list("pod", "-l", "app.kubernetes.io/component=operator"))
    assert brokers() == [broker]
    assert not finalizers(), "nobody would remove it: a deletion would hang"
    install(default_cluster=True)  # takes the Cluster over
    SYSTEM.wait_condition(CLUSTER_KIND, "default", timeout=240)
    assert brokers() == [broker]
    until("the finalizer again", lambda: finalizers() == [FINALIZER])


def without_operator(namespace: Namespace) -> None:
    """Stop the operator, as the deletion of its namespace does."""
    namespace.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
    until("no operator", lambda: not namespace.list("pod", "-l", "app.kubernetes.io/component=operator"))


def deleted_in_vain(namespace: Namespace, name: str) -> None:
    namespace.kubectl("delete", TOPIC_KIND, name, "--wait=false")
    assert finalizers(namespace, name) == [FINALIZER]


def absent(namespace: Namespace, name: str) -> bool:
    return not namespace.kubectl("get", TOPIC_KIND, name, "--ignore-not-found")


def holder(namespace: Namespace) -> str:
    """The release that acts in a namespace."""
    lease = ("lease", "millstream.dev", "--ignore-not-found")
    return namespace.kubectl("get", *lease, "-o", "jsonpath={.spec.holderIdentity}")


def topics(namespace: Namespace) -> set[str]:
    """The topics of the brokers."""
    bootstrap = ("--bootstrap", "others-bootstrap:9092")
    said = namespace.client("millstream", *bootstrap, "--output", "json", "topic", "list", image=CLIENT)
    return {one["name"] for one in json.loads(said)}


def test_another_operator_finishes_the_deletions_of_a_deleted_one(
    others: Namespace, elsewhere: Namespace, tmp_path: Path
) -> None:
    """The operator's namespace is deleted instead of the release."""
    for name in ("first", "second"):
        others.wait_condition(TOPIC_KIND, name)
    assert topics(others) >= {"first", "second"}
    without_operator(SYSTEM)
    SYSTEM.kubectl("delete", CLUSTER_KIND, "default")
    SYSTEM.kubectl("wait", "pod", "-l", "millstream.dev/cluster=default", "--for=delete", "--timeout=100s")
    run("kubectl", "delete", "namespace", SYSTEM.name, "--wait=false")
    assert finalizers() == [FINALIZER]
    deleted_in_vain(others, "first")

    install(default_cluster=False, namespace=elsewhere)
    until("two releases", lambda: others.list("event", "--field-selector=reason=WatchedTwice"))
    assert finalizers(others, "first") == [FINALIZER]
    command = "kubectl get lease --all-namespaces --field-selector metadata.name=millstream.dev"
    said = run_command(UNINSTALLED.page, tmp_path, command)
    before = [others.name, "millstream.dev", f"{SYSTEM.name}/{OPERATOR}"]
    assert before in [line.split()[:3] for line in said.splitlines()]
    command = "kubectl --namespace NAMESPACE delete lease millstream.dev"
    run_command(UNINSTALLED.page, tmp_path, command, replace={"NAMESPACE": others.name})
    until("the other release acts", lambda: holder(others) == f"{elsewhere.name}/{OPERATOR}")
    until("the Topic gone", lambda: absent(others, "first"))
    assert topics(others) == {"second"}
    gone(SYSTEM.name)


def test_resources_of_a_deleted_operator_are_freed_by_hand(
    others: Namespace, elsewhere: Namespace, tmp_path: Path
) -> None:
    """The next operator's namespace is deleted, too."""
    without_operator(elsewhere)
    run("kubectl", "delete", "namespace", elsewhere.name, "--wait=false")
    deleted_in_vain(others, "second")
    UNINSTALLED.run(tmp_path, replace={f"/{SYSTEM.name}[": f"/{elsewhere.name}["})
    until("the Topic gone", lambda: absent(others, "second"))
    assert topics(others) == {"second"}
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert f"/{elsewhere.name}" not in run("kubectl", "get", kinds, "-o", "name")
