"""The only module that writes statuses and finalizers: whole, by server-side apply, and only when they change.

A status only replaces the one it was computed from (by resourceVersion): an operator with a stale view, because its
watch is late or it no longer acts, cannot undo another operator's write.
"""

from __future__ import annotations

from typing import Any

from ..kubernetes.client import Kube, KubeError, Manifest
from ..models import API_VERSION, KINDS, ManifestError, Resource, Status, decode_as, encode_status
from ..models.keys import Key
from .cache import key_for
from .context import Statuses
from .event_rules import events_of
from .events import record

ATTEMPTS = 5
FINALIZER = "millstream.dev/delete"


def write_status(services: Statuses, resource: Resource, status: Status) -> bool:
    """Write a status if it differs from the resource's and status_throttle.py allows it. Returns whether it wrote."""
    shown: Status = resource.status  # type: ignore[attr-defined]  # every kind has one
    key = key_for(resource)
    if shown == status or (before := encode_status(shown)) == (after := encode_status(status)):
        if services.pace is not None:
            services.pace.shows(key)
        return False
    now = services.now().timestamp()
    if services.pace is not None and services.pace.holds_back(key, shown, status, now):
        return False
    return write_raw_status(services, key, resource.metadata.uid, before, after)


def write_raw_status(
    services: Statuses, key: Key, uid: str, before: dict[str, Any], after: dict[str, Any]
) -> bool:
    """Replace only ``before``, from which ``after`` was computed: a status that another writer has set since stays.

    The resource is then reconciled again. A change of the spec in between does not matter, because a status names its
    generation.
    """
    if before == after:
        return False
    manifest = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": _metadata(key, uid), "status": after}
    found = services.store.raw(key)
    for _ in range(ATTEMPTS):
        if found is not None:
            if not _shows(key, found, before):
                break
            manifest["metadata"] = {**_metadata(key, uid), **_version(found)}
        try:
            services.store.put_written(services.kube.apply(manifest, "status"))
            for event in events_of(key.kind, before, after):
                record(services, key, uid, event)
            return True
        except KubeError as error:
            if error.status not in (404, 409):
                raise
        found = services.kube.get(API_VERSION, key.kind, key.namespace, key.name)
        if found is None or found["metadata"].get("uid") != uid:
            return False  # it is gone, or another resource has its name
        services.store.put_written(found)
    services.store.wake(key)
    return False


def _shows(key: Key, manifest: Manifest, status: dict[str, Any]) -> bool:
    """Whether a resource has this status, ignoring fields that we do not know."""
    shown = manifest.get("status") or {}
    if shown == status:
        return True
    try:
        return encode_status(decode_as(KINDS[key.kind], manifest).status) == status  # type: ignore[attr-defined]
    except ManifestError:
        return False


def _version(manifest: Manifest) -> dict[str, str]:
    version = manifest["metadata"].get("resourceVersion")
    return {"resourceVersion": version} if version else {}


def hold_finalizer(services: Statuses, resource: Resource, hold: bool) -> None:
    """Add our finalizer to a resource, or remove it."""
    if (FINALIZER in resource.metadata.finalizers) == hold:
        return
    key = Key(resource.KIND, resource.namespace, resource.name)
    if not hold:
        live = services.kube.get(API_VERSION, key.kind, key.namespace, key.name)
        if live is not None and live["metadata"]["uid"] == resource.metadata.uid:
            release_finalizer(services.kube, live)
        return
    # The uid keeps the apply from recreating a resource that is gone.
    metadata = {**_metadata(key, resource.metadata.uid), "finalizers": [FINALIZER]}
    try:
        services.store.put_written(
            services.kube.apply({"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata})
        )
    except KubeError as error:
        if error.status not in (404, 409):
            raise


def release_finalizer(kube: Kube, live: Manifest) -> bool:
    """Remove our finalizer from an object, whoever set it: in an object restored from a backup it belongs to another
    manager, and an apply would leave it. Returns whether it was set. Raises KubeError."""
    found: Manifest | None = live
    for attempt in range(1, ATTEMPTS + 1):
        if found is None or FINALIZER not in (finalizers := found["metadata"].get("finalizers") or ()):
            return False
        try:
            kube.merge(
                found,
                {
                    "metadata": {
                        "finalizers": [finalizer for finalizer in finalizers if finalizer != FINALIZER]
                    }
                },
            )
            return True
        except KubeError as error:
            if error.status == 404:
                return False
            if error.status != 409 or attempt == ATTEMPTS:
                raise
        metadata = found["metadata"]  # it has changed since
        found = kube.get(found["apiVersion"], found["kind"], metadata["namespace"], metadata["name"])
    return False


def _metadata(key: Key, uid: str) -> dict[str, Any]:
    return {"namespace": key.namespace, "name": key.name, **({"uid": uid} if uid else {})}
