"""The common parts of a Cluster's objects: labels, the selector of its pods, the owner, and pieces of manifests."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from ..models import API_VERSION, Cluster
from .pods import spread_over

Manifest = dict[str, Any]

CLUSTER_LABEL = "millstream.dev/cluster"
RELEASE = "millstream.dev/release"
"""Annotation: the release of the operator that created an object."""
SPEC_HASH = "millstream.dev/user-spec-hash"
"""Annotation: hash of the Cluster's settings for the pods. A change of it does not wait as an upgrade does."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "millstream-operator"}
USER = 1000


def digest(found: object) -> str:
    """Sixteen hexadecimal digits that differ for different values.

    In a record, only values other than defaults count: a field that a new release adds, or another default, changes
    nothing that the user wrote.
    """
    return hashlib.sha256(msgspec.json.encode(_given(found), order="sorted")).hexdigest()[:16]


def _given(found: object) -> object:
    if isinstance(found, msgspec.Struct):
        fields = ((field, getattr(found, field.name)) for field in _fields(type(found)))
        return {one.encode_name: _given(value) for one, value in fields if value != _default(one)}
    if isinstance(found, Mapping):
        return {key: _given(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_given(value) for value in found]
    return found


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Cached: msgspec reads the annotations again each time, which takes longer than everything else here."""
    return msgspec.structs.fields(kind)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def is_owned_by(live: Mapping[str, Any], uid: str) -> bool:
    """Whether an object names the resource with this uid as an owner."""
    return any(owner.get("uid") == uid for owner in live["metadata"].get("ownerReferences") or ())


def selector(cluster: Cluster, component: str = "broker") -> dict[str, str]:
    """Finds a component's pods; it must never change, or a StatefulSet would lose or catch others' pods."""
    return {CLUSTER_LABEL: cluster.name, "app.kubernetes.io/component": component}


def labels(cluster: Cluster, component: str = "broker") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "millstream",
        "app.kubernetes.io/instance": cluster.name,
        **MANAGED_BY,
        **selector(cluster, component),
    }


def metadata(cluster: Cluster, name: str, component: str = "broker") -> Manifest:
    owner = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "name": cluster.name,
        "uid": cluster.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "namespace": cluster.namespace,
        "name": name,
        "labels": labels(cluster, component),
        "ownerReferences": [owner],
    }


def secret_reference(cluster: Cluster, name: str) -> Manifest:
    """A Secret of the Cluster, identified by its names and owner."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(cluster, name)}


def secret_of(metadata: Mapping[str, Any], name: str) -> Manifest:
    """A Secret without values. ``metadata``: of an object of the same owner."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {**metadata, "name": name}}


def opaque_secret(
    reference: Manifest, values: Mapping[str, bytes], annotations: Mapping[str, str]
) -> Manifest:
    """A Secret. ``reference``: its manifest without values, which identifies it."""
    return {
        **reference,
        "metadata": {**reference["metadata"], "annotations": dict(annotations)},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in values.items()},
    }


def values_of(live: Mapping[str, Any] | None) -> dict[str, bytes]:
    """The values of a Secret, without those that are not Base64."""
    found = {}
    for key, value in ((live or {}).get("data") or {}).items():
        with contextlib.suppress(ValueError):
            found[key] = base64.b64decode(value, validate=True)
    return found


def service(
    cluster: Cluster, name: str, spec: Manifest, ports: Mapping[str, int], component: str = "broker"
) -> Manifest:
    """A Service, with addresses of both families where Kubernetes has both."""
    entries = [{"name": port, "port": number, "targetPort": number} for port, number in ports.items()]
    families = {} if spec.get("type") == "LoadBalancer" else {"ipFamilyPolicy": "PreferDualStack"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, name, component),
        "spec": {**families, **spec, "ports": entries},
    }


def disruption_budget(cluster: Cluster, name: str, component: str) -> Manifest:
    """Allows the eviction of one pod at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(cluster, name, component),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(cluster, component)}},
    }


def spread_over_nodes(cluster: Cluster, component: str) -> Manifest:
    """An affinity that prefers different nodes."""
    term = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": selector(cluster, component)},
        },
    }
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def spread_over_racks(cluster: Cluster, component: str) -> Manifest:
    """The topology spread constraints of a pod's spec, if brokers have racks."""
    rack = cluster.spec.brokers.rack
    if rack is None:
        return {}
    return {"topologySpreadConstraints": spread_over(rack.topology_key, selector(cluster, component))}


def claim_template(cluster: Cluster, size: Any, component: str = "broker") -> Manifest:
    """The volume claim `data` of each pod, in the storage class of the brokers."""
    claim: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if (class_name := cluster.spec.brokers.storage.class_name) is not None:
        claim["storageClassName"] = class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels(cluster, component)},
        "spec": claim,
    }


def probe(path: str, port: str = "http", **timing: int) -> Manifest:
    return {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 5, **timing}


def from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def is_status_current(live: Mapping[str, Any]) -> bool:
    """Whether the status of an object is about its present spec."""
    status, metadata = live.get("status") or {}, live.get("metadata") or {}
    return bool(status.get("observedGeneration", 0) >= metadata.get("generation", 0))
