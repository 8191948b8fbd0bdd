"""Names of resources."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """Names one custom resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class ClusterKey(NamedTuple):
    """Names a Cluster."""

    namespace: str
    name: str
