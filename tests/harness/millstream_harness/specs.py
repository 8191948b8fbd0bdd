"""The smallest spec of each kind, and manifests with a spec, valid or not."""

from __future__ import annotations

from typing import Any

from millstream_operator.models import API_VERSION

REF = {"clusterRef": {"name": "default"}}
LOAD = {**REF, "topics": ["t"], "value": {"format": "Binary"}, "output": {"path": "/lake/t"}}
MIRROR = {
    "sources": [{"name": "west", "bootstrap": "west:9092"}],
    "target": {"clusterRef": {"name": "east"}},
    "topics": {"include": ["orders.*"]},
}


def manifest(kind: str, spec: object, **more: object) -> dict[str, object]:
    """A manifest of the resource x."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "x"}, "spec": spec, **more}


def workload(**container: Any) -> dict[str, Any]:
    """A ConsumerGroup's workload with one container."""
    return {"template": {"spec": {"containers": [{"name": "c", "image": "i", **container}]}}}
