"""The chart's own promises: its default Cluster, `helm test`, and an uninstall that keeps the data.

The commands after a wrong uninstall are those of docs/operations.md.
"""

from __future__ import annotations

from pathlib import Path

from millstream_harness.chart import SYSTEM, gone, install
from millstream_harness.kube import Namespace, run, until
from millstream_harness.kubernetes_pages import UNINSTALLED

FINALIZER = "millstream.dev/delete"


def test_the_default_cluster_passes_helm_test(millstream: Namespace) -> None:
    install(default_cluster=True)
    SYSTEM.wait_condition("cluster.millstream.dev", "default", timeout=240)
    run("helm", "test", "millstream", "--namespace", SYSTEM.name, "--timeout", "3m", timeout=200)


def brokers() -> list[str]:
    """The uids of the pods of the default Cluster's brokers that are there to stay."""
    pods = SYSTEM.list("pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker")
    return [one["metadata"]["uid"] for one in pods if "deletionTimestamp" not in one["metadata"]]


def finalizers() -> list[str]:
    """The finalizers of the Topic."""
    found: list[str] = SYSTEM.get("topic.millstream.dev", "left-behind")["metadata"].get("finalizers", [])
    return found


def test_uninstall_keeps_volumes_and_leaves_nothing_stuck(millstream: Namespace) -> None:
    SYSTEM.apply(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": "left-behind"},
            "spec": {"clusterRef": {"name": "default"}, "partitions": 1, "deletionPolicy": "Delete"},
        }
    )
    SYSTEM.wait_condition("topic.millstream.dev", "left-behind")
    claims = {one["metadata"]["name"] for one in SYSTEM.list("pvc")}
    assert claims
    (broker,) = brokers()
    run("helm", "uninstall", "millstream", "--namespace", SYSTEM.name, "--wait", timeout=240)
    assert {one["metadata"]["name"] for one in SYSTEM.list("pvc")} == claims
    until("no operator", lambda: not SYSTEM.list("pod", "-l", "app.kubernetes.io/component=operator"))
    assert brokers() == [broker]
    assert not finalizers(), "nobody would remove it: a deletion would hang"
    install(default_cluster=True)  # takes the Cluster over
    SYSTEM.wait_condition("cluster.millstream.dev", "default", timeout=240)
    assert brokers() == [broker]
    until("the finalizer again", lambda: finalizers() == [FINALIZER])


def test_resources_of_a_deleted_operator_are_freed_by_hand(millstream: Namespace, tmp_path: Path) -> None:
    """The operator's namespace is deleted instead of the release, while no operator runs."""
    SYSTEM.kubectl("scale", "deployment/millstream-operator", "--replicas=0")
    until("no operator", lambda: not SYSTEM.list("pod", "-l", "app.kubernetes.io/component=operator"))
    SYSTEM.kubectl("delete", "cluster.millstream.dev", "default")
    SYSTEM.kubectl(
        "wait", "pod", "--selector", "millstream.dev/cluster=default", "--for=delete", "--timeout=100s"
    )
    run("kubectl", "delete", "namespace", SYSTEM.name, "--wait=false")
    assert finalizers() == [FINALIZER]
    UNINSTALLED.run(tmp_path)
    gone(SYSTEM.name)
