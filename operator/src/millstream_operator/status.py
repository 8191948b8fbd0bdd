"""The one place that writes statuses and finalizers: whole, by server-side apply, and only when they changed."""

from __future__ import annotations

from typing import Any

from .kube import Kube, KubeError, Manifest
from .models import API_VERSION, Resource, Status, encode_status
from .services import Services
from .store import Key

ATTEMPTS = 5
FINALIZER = "millstream.dev/delete"


def write_status(services: Services, resource: Resource, status: Status) -> bool:
    """Write a status if it differs from what the resource shows; was it written?"""
    return write_raw_status(
        services,
        Key(resource.KIND, resource.namespace, resource.name),
        resource.metadata.uid,
        encode_status(resource.status),  # type: ignore[attr-defined]  # every kind has one
        encode_status(status),
    )


def write_raw_status(
    services: Services, key: Key, uid: str, before: dict[str, Any], after: dict[str, Any]
) -> bool:
    if before == after:
        return False
    manifest = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": _metadata(key, uid), "status": after}
    try:
        services.store.put_written(services.kube.apply(manifest, "status"))
    except KubeError as error:
        if error.status not in (404, 409):  # it is gone, or another one of its name
            raise
    return True


def hold_finalizer(services: Services, resource: Resource, hold: bool) -> None:
    """Have our finalizer on a resource, or not."""
    if (FINALIZER in resource.metadata.finalizers) == hold:
        return
    key = Key(resource.KIND, resource.namespace, resource.name)
    if not hold:
        live = services.kube.get(API_VERSION, key.kind, key.namespace, key.name)
        if live is not None and live["metadata"]["uid"] == resource.metadata.uid:
            release_finalizer(services.kube, live)
        return
    # The uid keeps the apply from creating the resource anew when it is gone.
    metadata = {**_metadata(key, resource.metadata.uid), "finalizers": [FINALIZER]}
    try:
        services.store.put_written(
            services.kube.apply({"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata})
        )
    except KubeError as error:
        if error.status not in (404, 409):
            raise


def release_finalizer(kube: Kube, live: Manifest) -> bool:
    """Take our finalizer off an object, whoever put it there: one that was restored from a copy has another manager's,
    which an apply would leave. Was it on it? Raises KubeError."""
    found: Manifest | None = live
    for attempt in range(1, ATTEMPTS + 1):
        if found is None or FINALIZER not in (finalizers := found["metadata"].get("finalizers") or ()):
            return False
        try:
            kube.merge(found, {"metadata": {"finalizers": [one for one in finalizers if one != FINALIZER]}})
            return True
        except KubeError as error:
            if error.status == 404:
                return False
            if error.status != 409 or attempt == ATTEMPTS:
                raise
        metadata = found["metadata"]  # it has changed meanwhile
        found = kube.get(found["apiVersion"], found["kind"], metadata["namespace"], metadata["name"])
    return False


def _metadata(key: Key, uid: str) -> dict[str, Any]:
    return {"namespace": key.namespace, "name": key.name, **({"uid": uid} if uid else {})}
