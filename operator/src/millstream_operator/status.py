"""The one place that writes statuses and finalizers: whole, by server-side apply, and only when they changed."""

from __future__ import annotations

from typing import Any

from .kube import KubeError
from .models import API_VERSION, Resource, Status, encode_status
from .services import Services
from .store import Key

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
    # The uid keeps the apply from creating the resource anew when it is gone.
    metadata = {**_metadata(key, resource.metadata.uid), "finalizers": [FINALIZER] if hold else []}
    try:
        services.store.put_written(
            services.kube.apply({"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata})
        )
    except KubeError as error:
        if error.status not in (404, 409):
            raise


def _metadata(key: Key, uid: str) -> dict[str, Any]:
    return {"namespace": key.namespace, "name": key.name, **({"uid": uid} if uid else {})}
