"""The part of the Kubernetes API that reconciling needs, on top of the local state.

The operator's own reconciles of User, Topic and ConsumerGroup run on it unchanged: they talk to brokers, and to the
API server only to write a status or a finalizer, and Secrets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..kubernetes.client import FIELD_MANAGER, Kube, KubeError, Manifest
from ..models.event import Event
from ..models.keys import Key
from .state import State, key_of
from .user_secrets import UserSecrets


class LocalApi(Kube):
    """The resources of a `State`, and Secrets; no other objects of Kubernetes' own kinds."""

    def __init__(self, state: State, secrets: UserSecrets) -> None:  # no connection to set up
        self._state, self._secrets = state, secrets

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        if kind == "Secret":
            return self._secrets.get(namespace or "default", name)
        return copy.deepcopy(self._state.resources.get(f"{kind}/{namespace}/{name}"))

    def list(
        self, api_version: str, kind: str, namespace: str | None, labels: Mapping[str, str]
    ) -> list[Manifest]:
        return []

    def create(self, manifest: Mapping[str, Any], manager: str = FIELD_MANAGER) -> Manifest:
        return self._secrets.put(manifest)

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Manifest:
        if manifest["kind"] == "Secret":
            return self._secrets.put(manifest)
        resource = self._state.resources.get(key_of(dict(manifest)))
        if resource is None:
            raise KubeError(404, "NotFound", f"there is no {manifest['kind']} {manifest['metadata']['name']}")
        if subresource == "status":
            resource["status"] = copy.deepcopy(manifest["status"])
        elif "finalizers" in manifest["metadata"]:
            resource["metadata"]["finalizers"] = list(manifest["metadata"]["finalizers"])
        return copy.deepcopy(resource)

    def merge(self, live: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
        """Merge finalizers only; nobody else writes them meanwhile."""
        metadata = live["metadata"]
        resource = self._state.resources[f"{live['kind']}/{metadata['namespace']}/{metadata['name']}"]
        resource["metadata"]["finalizers"] = list(change["metadata"]["finalizers"])
        return copy.deepcopy(resource)

    def record_event(self, key: Key, uid: str, event: Event, now: datetime) -> None:
        """Drop the Event: commands report their own steps."""

    def delete(self, api_version: str, kind: str, namespace: str, name: str, *, uid: str) -> bool:
        return False
