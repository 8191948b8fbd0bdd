"""Manifests that tests of the operator apply."""

from __future__ import annotations

from typing import Any

from .kube import Json

# No node has it: the brokers' pods stay pending, and the broker is a process of the test.
NOWHERE = {"template": {"spec": {"nodeSelector": {"millstream.dev/test": "no-such-node"}}}}


def resource(kind: str, name: str, **spec: Any) -> Json:
    return {"apiVersion": "millstream.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def cluster(name: str = "default", **spec: Any) -> Json:
    """A Cluster whose pods are never scheduled."""
    return resource("Cluster", name, **{**spec, "brokers": {**NOWHERE, **spec.get("brokers", {})}})


def topic(name: str, **spec: Any) -> Json:
    return resource("Topic", name, **{"clusterRef": {"name": "default"}, **spec})


def group(name: str, **spec: Any) -> Json:
    return resource("ConsumerGroup", name, **{"clusterRef": {"name": "default"}, **spec})
