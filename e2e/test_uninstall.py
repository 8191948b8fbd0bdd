"""The chart's own promises: its default Cluster, `helm test`, and an uninstall that keeps the data."""

from __future__ import annotations

from millstream_harness.chart import SYSTEM, install
from millstream_harness.kube import Namespace, run, until


def test_the_default_cluster_passes_helm_test(millstream: Namespace) -> None:
    install(default_cluster=True)
    SYSTEM.wait_condition("cluster.millstream.dev", "default", timeout=240)
    run("helm", "test", "millstream", "--namespace", SYSTEM.name, "--timeout", "3m", timeout=200)


def brokers() -> list[str]:
    """The uids of the pods of the default Cluster's brokers that are there to stay."""
    pods = SYSTEM.list("pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker")
    return [one["metadata"]["uid"] for one in pods if "deletionTimestamp" not in one["metadata"]]


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
    install(default_cluster=True)  # takes the Cluster over
    SYSTEM.wait_condition("cluster.millstream.dev", "default", timeout=240)
    assert brokers() == [broker]
    run("helm", "uninstall", "millstream", "--namespace", SYSTEM.name, "--wait", timeout=240)
    # the Topic has no operator any more: deleting it must not hang
    if "topics.millstream.dev" in run("kubectl", "api-resources", "--api-group=millstream.dev", "-o", "name"):
        SYSTEM.kubectl("delete", "topics.millstream.dev", "--all", "--timeout=60s")
    run("kubectl", "delete", "namespace", SYSTEM.name, "--timeout=120s", timeout=150)
