"""The custom resources as the watches last showed them, with two indexes for the reconciles.

A resource is stored as compact JSON (a topic: about 1 KB) and decoded when it is reconciled, so thousands of them stay
cheap. The indexes: which resources refer to a Cluster, and which claim the same topic or group of a Cluster.

Watches store what they see; workers store the responses to their own writes, so a reconcile never starts from a status
older than the last one written. The newer resourceVersion wins.

A resource is validated against its CRD when it arrives and when its spec changes, not at each reconcile.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from ..kubernetes.client import FIELD_MANAGER
from ..models import KINDS, Cluster, ConsumerGroup, ManifestError, Resource, decode_as
from ..models.explain import titled
from ..models.keys import ClusterKey, Key
from ..resources.pod_user import WITH_USER
from ..validation.admission import refusal

ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True, slots=True)
class Claim:
    """A resource's claim to a name in a Cluster (topicName, groupId): the oldest one wins; of two created in the same
    second, the one that already has it."""

    created: str
    waiting: bool
    uid: str
    key: Key


@dataclass(frozen=True, slots=True)
class _Entry:
    raw: bytes
    version: int
    trigger: object
    spec: int
    """Hash of the resource's name and spec."""
    refused: str
    """Why the resource is not valid; empty if it is."""
    clusters: frozenset[ClusterKey]
    claimed: str | None
    claim: Claim


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of an event: whether the resource itself needs a reconcile, and which others do."""

    needs_reconcile: bool
    others: frozenset[Key]


def key_of(manifest: Mapping[str, Any]) -> Key:
    metadata = manifest["metadata"]
    return Key(manifest["kind"], metadata.get("namespace", "default"), metadata["name"])


def key_for(resource: Resource) -> Key:
    return Key(resource.KIND, resource.namespace, resource.name)


class Store:
    """``checks``: whether it notes why resources are not valid; without it, whoever puts them has checked them."""

    def __init__(self, *, checks: bool = True) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        self._referring: dict[ClusterKey, set[Key]] = defaultdict(set)
        self._claims: dict[tuple[str, ClusterKey, str], set[Claim]] = defaultdict(set)
        self._woken: set[Key] = set()

    def put(self, manifest: Mapping[str, Any]) -> Change:
        """Store a resource as a watch showed it."""
        key = key_of(manifest)
        entry = _entry(key, manifest, self._entries.get(key), checks=self._checks)
        with self._lock:
            return self._put(key, entry)

    def put_written(self, manifest: Mapping[str, Any]) -> None:
        """Store a resource from the response to our own write; ``take_woken`` returns those that need a reconcile."""
        key = key_of(manifest)
        entry = _entry(key, manifest, self._entries.get(key), checks=self._checks)
        with self._lock:
            before = self._entries.get(key)
            if before is None or before.claim.uid != entry.claim.uid:
                return  # it has been deleted since, and perhaps recreated
            change = self._put(key, entry)
            self._woken |= change.others
            if change.needs_reconcile:
                self._woken.add(key)

    def wake(self, key: Key) -> None:
        """Request another reconcile of a resource soon."""
        with self._lock:
            self._woken.add(key)

    def wake_groups(self, cluster: ClusterKey, topics: Collection[str]) -> None:
        """Request a reconcile of the ConsumerGroups of a Cluster that list one of these topics, which are new."""
        if not topics:
            return
        with self._lock:
            for key in self._referring.get(cluster, ()):
                if key.kind == ConsumerGroup.KIND:
                    spec = msgspec.json.decode(self._entries[key].raw).get("spec") or {}
                    if not {*topics}.isdisjoint(spec.get("topics") or ()):
                        self._woken.add(key)

    def take_woken(self) -> set[Key]:
        with self._lock:
            woken, self._woken = self._woken, set()
        return woken

    def remove(self, key: Key, uid: str) -> Change:
        """Forget a deleted resource; a new one of the same name stays."""
        with self._lock:
            before = self._entries.get(key)
            if before is None or before.claim.uid != uid:
                return Change(False, frozenset())
            del self._entries[key]
            others = self._others(key, before, None)
            self._unindex(key, before)
        return Change(False, others - {key})

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, kind: type[ResourceT], namespace: str, name: str) -> ResourceT | None:
        """The resource, or None; raises ManifestError if it is not valid."""
        entry = self._entries.get(Key(kind.KIND, namespace, name))
        if entry is None:
            return None
        if entry.refused:
            raise ManifestError(entry.refused)
        return decode_as(kind, msgspec.json.decode(entry.raw))

    def raw(self, key: Key) -> dict[str, Any] | None:
        """The resource as received, without managedFields."""
        entry = self._entries.get(key)
        return cast(dict[str, Any], msgspec.json.decode(entry.raw)) if entry else None

    def claims(self, kind: str, cluster: ClusterKey, name: str) -> list[Claim]:
        """The claims to a topic or group, the oldest first."""
        with self._lock:
            found = list(self._claims.get((kind, cluster, name), ()))
        return sorted(found, key=lambda claim: (claim.created, claim.waiting, claim.uid))

    def snapshot(self) -> dict[Key, bytes]:
        """All resources, in JSON."""
        with self._lock:
            return {key: entry.raw for key, entry in self._entries.items()}

    def versions(self) -> dict[Key, int]:
        """The resourceVersion of every resource."""
        with self._lock:
            return {key: entry.version for key, entry in self._entries.items()}

    def keys(self, kind: str) -> list[Key]:
        with self._lock:
            return [key for key in self._entries if key.kind == kind]

    def _put(self, key: Key, entry: _Entry) -> Change:
        before = self._entries.get(key)
        if before is not None and entry.version < before.version:
            return Change(False, frozenset())
        others = self._others(key, before, entry)
        if before is not None:
            self._unindex(key, before)
        self._entries[key] = entry
        self._index(key, entry)
        return Change(before is None or before.trigger != entry.trigger, others)

    def _index(self, key: Key, entry: _Entry) -> None:
        for cluster in entry.clusters:
            self._referring[cluster].add(key)
            if entry.claimed is not None:
                self._claims[key.kind, cluster, entry.claimed].add(entry.claim)

    def _unindex(self, key: Key, entry: _Entry) -> None:
        for cluster in entry.clusters:
            self._referring[cluster].discard(key)
            if not self._referring[cluster]:
                del self._referring[cluster]
            if entry.claimed is not None:
                claims = self._claims[key.kind, cluster, entry.claimed]
                claims.discard(entry.claim)
                if not claims:
                    del self._claims[key.kind, cluster, entry.claimed]

    def _others(self, key: Key, before: _Entry | None, after: _Entry | None) -> frozenset[Key]:
        """The other resources that need a reconcile: those that refer to a changed Cluster, rivals for a name when a
        claim to it appears or disappears, and a Cluster where the user of a resource's pods is of no use any more."""
        if key.kind == Cluster.KIND:
            if before and after and _seen_by_others(before.raw) == _seen_by_others(after.raw):
                return frozenset()
            return frozenset(self._referring.get(ClusterKey(key.namespace, key.name), ()))
        changed = _claims_of(before) ^ _claims_of(after)
        names = {(cluster, claimed) for cluster, claimed, _, _ in changed}
        found = {claim.key for name in names for claim in self._claims.get((key.kind, *name), ())} - {key}
        if key.kind in WITH_USER and before is not None:
            left = before.clusters - (after.clusters if after is not None else frozenset())
            found |= {Key(Cluster.KIND, *cluster) for cluster in left}
        return frozenset(found)


def _entry(key: Key, manifest: Mapping[str, Any], before: _Entry | None, *, checks: bool = True) -> _Entry:
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    claimed = KINDS[key.kind].CLAIMS if key.kind in KINDS else None
    trigger = (  # the operator's own status writes change none of these, so they wake no resource
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        msgspec.json.encode(metadata.get("annotations"), order="sorted"),
        _foreign_status_writes(manifest["metadata"]),
    )
    written = hash((key.name, msgspec.json.encode(manifest.get("spec"), order="sorted")))
    if before is not None and before.spec == written:
        refused = before.refused
    else:
        why = refusal(key.kind, manifest) if checks and key.kind in KINDS else ""
        refused = titled(key.kind, manifest, why) if why else ""
    return _Entry(
        spec=written,
        refused=refused,
        version=int(metadata.get("resourceVersion") or 0),
        raw=msgspec.json.encode({**manifest, "metadata": metadata}),
        trigger=trigger,
        clusters=cluster_refs(key, spec),
        claimed=(spec.get(claimed) or key.name) if claimed else None,
        claim=Claim(
            metadata.get("creationTimestamp", ""),
            not (status.get("topicId") or status.get("state") or status.get("username")),
            metadata.get("uid", ""),
            key,
        ),
    )


def _foreign_status_writes(metadata: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Who else has written the status, and when, to the second: somebody who restores it, for example."""
    return frozenset(
        (entry.get("manager") or "", entry.get("time") or "")
        for entry in metadata.get("managedFields") or ()
        if entry.get("subresource") == "status" and entry.get("manager") != FIELD_MANAGER
    )


def _claims_of(entry: _Entry | None) -> frozenset[tuple[ClusterKey, str, str, str]]:
    """A resource's claims, with the fields that decide whether it is older than another."""
    if entry is None or entry.claimed is None:
        return frozenset()
    return frozenset(
        (cluster, entry.claimed, entry.claim.created, entry.claim.uid) for cluster in entry.clusters
    )


def cluster_refs(key: Key, spec: Mapping[str, Any]) -> frozenset[ClusterKey]:
    """The Clusters that a spec refers to, read leniently, since the spec may be invalid."""
    holders = [spec, spec.get("target"), *(spec.get("sources") or ())] if key.kind in KINDS else []
    found = set()
    for holder in holders:
        ref = holder.get("clusterRef") if isinstance(holder, Mapping) else None
        if isinstance(ref, Mapping) and isinstance(ref.get("name"), str):
            found.add(ClusterKey(ref.get("namespace") or key.namespace, ref["name"]))
    return frozenset(found)


def _seen_by_others(raw: bytes) -> object:
    """The parts of a Cluster that concern resources which refer to it."""
    manifest = msgspec.json.decode(raw)
    status = manifest.get("status") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    return (
        metadata.get("uid"),
        metadata.get("deletionTimestamp"),
        spec.get("allowedNamespaces"),
        spec.get("listeners"),
        ready,
    )
