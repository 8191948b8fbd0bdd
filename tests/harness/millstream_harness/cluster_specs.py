"""Clusters by their specs, and parts of what the operator makes of them."""

from __future__ import annotations

from typing import Any

from millstream_operator.models import API_VERSION, Cluster
from millstream_operator.resources import cluster as build
from millstream_operator.validation.admission import decode

THREE = {"brokers": {"replicas": 3}, "zookeeper": {"replicas": 3}}
EXTERNAL = {"name": "out-side", "type": "NodePort", "port": 9094, "nodePort": 30094}
INTERNAL = {"name": "internal", "type": "Internal", "port": 9092}


def cluster(**spec: Any) -> Cluster:
    document = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": "east", "namespace": "ns", "uid": "u-1", "generation": 1},
        "spec": spec,
    }
    decoded = decode(document)
    assert isinstance(decoded, Cluster)
    return decoded


def stateful_set(wanted: Cluster, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"image": "broker:1", "pull_policy": "IfNotPresent", **more}
    return build.stateful_set(wanted, **options)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def pod_annotations(wanted: Cluster, **more: Any) -> dict[str, str]:
    found: dict[str, str] = stateful_set(wanted, **more)["spec"]["template"]["metadata"]["annotations"]
    return found
