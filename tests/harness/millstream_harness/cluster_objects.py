"""A Cluster named east in namespace ns, and its objects in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream_harness.in_memory import InMemory, stored
from millstream_harness.manifests import resource
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster.ensemble import REVISION
from millstream_operator.resources.owned import metadata, selector

ENSEMBLE = {"brokers": {"replicas": 3}, "zookeeper": {"replicas": 3}}


def a_cluster(**spec: Any) -> Cluster:
    return decode_as(Cluster, stored(resource("Cluster", "east", **spec)))


def stateful_set(name: str, claim: str = "1Gi", **status: Any) -> dict[str, Any]:
    template = {"spec": {"resources": {"requests": {"storage": claim}}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(a_cluster(), name),
        "spec": {"volumeClaimTemplates": [template]},
        **({"status": status} if status else {}),
    }


def server_pod(number: int, *, ready: bool = True, stale: bool = False) -> dict[str, Any]:
    """The pod of a ZooKeeper server; a ``stale`` one is not of the revision "new"."""
    ours = selector(a_cluster(), "zookeeper")
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": f"east-zookeeper-{number}",
            "labels": {**ours, REVISION: "old" if stale else "new"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def claim(name: str, size: str) -> dict[str, Any]:
    """A claim as the StatefulSet creates it."""
    component = "zookeeper" if "zookeeper" in name else "broker"
    labels = {"millstream.dev/cluster": "east", "app.kubernetes.io/component": component}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": name, "labels": labels},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def sizes(found: InMemory) -> dict[str, str]:
    """The volumes that were enlarged."""
    return {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"]
        for one in found.kube.applied
        if one["kind"] == "PersistentVolumeClaim"
    }


def claimed(manifest: Mapping[str, Any]) -> str:
    """The size in a StatefulSet's claim template."""
    size: str = manifest["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    return size
