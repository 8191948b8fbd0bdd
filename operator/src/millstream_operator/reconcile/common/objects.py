"""Applies Kubernetes objects, and writes nothing if they are up to date.

An object belongs to the resource whose uid it names as an owner; a name proves nothing. Another owner's object
is neither changed nor deleted: ``NotOurs`` names it and says what to do. Objects that the resources of a namespace
share have no owner; they carry our label instead.

An object is up to date if every field that we set has our value (other fields belong to others or are defaults) and it
carries the hash of our last apply: the hash catches fields that we no longer set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ...kubernetes.client import Kube, Manifest
from ...models.quantity import same_quantity
from ...resources.owned import MANAGED_BY, digest, is_owned_by

APPLIED = "millstream.dev/applied"
FALSE_LEFT_OUT = frozenset(("hostIPC", "hostNetwork", "hostPID", "readOnly", "stdin", "stdinOnce", "tty"))


class NotOurs(Exception):
    """Another owner has an object of this name; the message is for the user."""


def find(kube: Kube, manifest: Manifest) -> Manifest | None:
    """The live object of a manifest; raises NotOurs if another owner has it.

    Only the names of the object and its owner in the manifest matter.
    """
    metadata = manifest["metadata"]
    live = kube.get(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])
    if live is not None and (words := _foreign(live, metadata)):
        raise NotOurs(f"{manifest['kind']} {metadata['name']} {words}")
    return live


def ensure(kube: Kube, manifest: Manifest) -> Manifest:
    """Apply a manifest unless the object is up to date; returns the object as it is now. Raises NotOurs."""
    return bring(kube, manifest, find(kube, manifest))


def bring(kube: Kube, manifest: Manifest, live: Manifest | None) -> Manifest:
    """The same, for an object that ``find`` has just returned."""
    wanted = with_hash(manifest)
    if live is None:
        return kube.create(wanted)
    if contains(live, wanted):
        return live
    # the uid keeps the apply from changing a new object of the same name
    identity = {key: live["metadata"][key] for key in ("uid",) if key in live["metadata"]}
    return kube.apply({**wanted, "metadata": {**wanted["metadata"], **identity}})


def create(kube: Kube, manifest: Manifest) -> None:
    """Create an object that never changes, unless it exists. Raises NotOurs."""
    if find(kube, manifest) is None:
        kube.create(manifest)


def delete(kube: Kube, manifest: Manifest) -> None:
    """Delete the object of a manifest, unless it belongs to another owner."""
    metadata = manifest["metadata"]
    with contextlib.suppress(NotOurs):
        if (live := find(kube, manifest)) is not None:
            uid = live["metadata"]["uid"]
            kube.delete(
                manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"], uid=uid
            )


def _foreign(live: Manifest, wanted: Mapping[str, Any]) -> str:
    """Why an object is not ours, and what to do; empty if it is ours."""
    if not (owners := wanted.get("ownerReferences")):
        labels = live["metadata"].get("labels") or {}
        if MANAGED_BY.items() <= labels.items():
            return ""
        return "exists and was not made by this operator: delete it or rename it"
    if any(is_owned_by(live, owner["uid"]) for owner in owners):
        return ""
    mine = owners[0]
    for owner in live["metadata"].get("ownerReferences") or ():
        if (owner.get("kind"), owner.get("name")) == (mine["kind"], mine["name"]):
            return (
                f"still belongs to an earlier {mine['kind']} {mine['name']}, which was deleted: waiting for Kubernetes "
                "to delete it too"
            )
    return (
        f"exists and does not belong to this {mine['kind']}: delete it, or give the {mine['kind']} another name; "
        "it was not changed"
    )


def with_hash(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself as an annotation."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def contains(live: object, wanted: object) -> bool:
    """Whether ``live`` has every field of ``wanted``.

    Lists of items with different names are compared by name, others in order: a pod may mount a volume twice.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None  # {} is dropped by the API server
        return all(
            contains(live.get(key), value) or (key not in live and _left_out(key, value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        if not isinstance(live, list | tuple):
            return not wanted and live is None
        names = [item.get("name") for item in wanted if isinstance(item, Mapping)]
        if wanted and None not in names and len(set(names)) == len(wanted):
            by_name = {item.get("name"): item for item in live if isinstance(item, Mapping)}
            return all(item["name"] in by_name and contains(by_name[item["name"]], item) for item in wanted)
        return len(live) == len(wanted) and all(map(contains, live, wanted))
    return live == wanted or same_quantity(live, wanted)  # the API server turns 0.5 into 500m


def _left_out(key: str, value: object) -> bool:
    """Whether the API server drops this field because it has its default value."""
    return value == "" or (value is False and key in FALSE_LEFT_OUT)
