"""A MirrorMaker as the operator reads it from Kubernetes."""

from __future__ import annotations

from typing import Any

from millstream_operator.models import MirrorMaker, decode_as

BOOTSTRAPS = {f"prod/{name}": f"{name}-bootstrap.prod.svc:9092" for name in ("west", "east", "north")}
"""The Clusters' addresses, by "NAMESPACE/NAME"."""


def a_mirror(name: str = "west-to-east", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> MirrorMaker:
    return decode_as(
        MirrorMaker,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": name, "namespace": "prod", "uid": f"u-{name}", "creationTimestamp": created},
            "spec": {
                "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
                "target": {"clusterRef": {"name": "east"}},
                "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
                **spec,
            },
        },
    )
