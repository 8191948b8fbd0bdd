"""Brings Kubernetes objects to what we want of them, and writes nothing when they are.

An object is as wanted when every field that we set has our value in it (what others set, and defaults, are theirs) and
when it carries the hash of what we applied last: the hash catches fields that we no longer set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from ..kube import Kube, Manifest
from ..quantity import same_quantity

APPLIED = "millstream.dev/applied"


def ensure(kube: Kube, manifest: Manifest) -> Manifest:
    """Apply a manifest unless the object is so already; returns the object as it is now."""
    wanted = with_hash(manifest)
    metadata = wanted["metadata"]
    live = kube.get(wanted["apiVersion"], wanted["kind"], metadata.get("namespace"), metadata["name"])
    if live is not None and contains(live, wanted):
        return live
    return kube.apply(wanted)


def with_hash(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself as an annotation."""
    digest = hashlib.sha256(msgspec.json.encode(manifest, order="sorted")).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def contains(live: object, wanted: object) -> bool:
    """Has ``live`` every field of ``wanted``? Lists of named things are compared by name, others in order."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None  # {} is dropped by the API server
        return all(contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not isinstance(live, list | tuple):
            return not wanted and live is None
        if wanted and all(isinstance(item, Mapping) and "name" in item for item in wanted):
            by_name = {item.get("name"): item for item in live if isinstance(item, Mapping)}
            return all(item["name"] in by_name and contains(by_name[item["name"]], item) for item in wanted)
        return len(live) == len(wanted) and all(map(contains, live, wanted))
    return live == wanted or same_quantity(live, wanted)  # the API server makes 500m of 0.5
