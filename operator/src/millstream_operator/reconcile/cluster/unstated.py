"""Cluster: what its spec does not state of the security of listeners, and what they are then.

A new Cluster has TLS and passwords where its spec states nothing, if the operator is set up so (`--new-clusters`). An
existing Cluster stays as it is. The annotation `UNSTATED` records the decision. Invariants:

- It is written once, before any object of the Cluster is created, and only to the version of the resource that was
  read: an old copy in the cache decides nothing.
- It belongs to the resource. A restore brings it back, with or without the status. A Cluster that is deleted and
  applied again is a new one.
- The brokers' StatefulSet has a copy of `Secure`, which counts where the annotation is lost, as by `kubectl replace`. A
  StatefulSet without it is of a Cluster from before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ...kubernetes.client import KubeError
from ...models import API_VERSION, Cluster
from ...models.cluster import UNSTATED, Unstated
from ...models.conditions import ConditionType, Reason
from ...models.problem import NewCondition, Problem
from ...resources.listeners import all_listeners
from ...state.context import ClusterParts
from .plan import StatefulSet


def known(cluster: Cluster, live: StatefulSet | None, new: Unstated) -> Cluster:
    """The Cluster with its annotation, which may not be written yet. ``live``: its brokers; ``new``: what new Clusters
    are."""
    is_new = live is None and cluster.status.cluster_id is None
    return _with(cluster, _decided(cluster.metadata.annotations, live, new if is_new else Unstated.OPEN))


def record(services: ClusterParts, cluster: Cluster, live: StatefulSet | None) -> Cluster | Problem:
    """The same, once it is written. Raises KubeError, before anything else has changed.

    Nothing is written where new Clusters are open, unless the annotation was lost.
    """
    found = cluster.metadata.annotations.get(UNSTATED)
    if found in set(Unstated):
        return cluster
    if found is not None:
        return Problem(
            Reason.INVALID_SPEC,
            f"metadata.annotations[{UNSTATED}]: {found!r} is not allowed: expected {' or '.join(Unstated)};"
            " nothing was changed",
        )
    new = services.new_clusters
    if new is Unstated.OPEN and _copied(live) != Unstated.SECURE:
        return cluster
    now = services.kube.get(API_VERSION, Cluster.KIND, cluster.namespace, cluster.name)
    if now is None or now["metadata"]["uid"] != cluster.metadata.uid:
        raise KubeError(409, "Conflict", f"Cluster {cluster.name} was deleted meanwhile")
    is_new = live is None and not (now.get("status") or {}).get("clusterId")
    annotations = now["metadata"].get("annotations") or {}
    decided = _decided(annotations, live, new if is_new else Unstated.OPEN)
    if annotations.get(UNSTATED) != decided:
        now = services.kube.merge(now, {"metadata": {"annotations": {UNSTATED: decided.value}}})
        services.store.put_written(now)
    return _with(cluster, decided)


def open_listeners(cluster: Cluster) -> list[NewCondition]:
    """The condition ``OpenListeners``; none if every listener has what is stated or recorded."""
    if not (names := list(_unstated(cluster))):
        return []
    words = (
        f"spec.listeners: not stated, and so open: {'; '.join(names)}. Without authentication, anyone who reaches a"
        " listener can read, write and administer everything; without tls, others can read what is sent. If that is"
        " intended, set `authentication: {type: None}` and `tls: Disabled` in the listener or in spec.listenerDefaults."
        " Otherwise docs/how-to/secure.md shows how to close it without an outage"
    )
    return [(ConditionType.OPEN_LISTENERS, True, Reason.NOT_STATED, words)]


def _unstated(cluster: Cluster) -> Iterator[str]:
    for each in all_listeners(cluster):
        if missing := each.completed(cluster.listener_defaults).unstated:
            yield f"{' and '.join(missing)} of {each.name}"


def _copied(live: StatefulSet | None) -> str | None:
    """The copy in the brokers' StatefulSet."""
    metadata: Mapping[str, Any] = {} if live is None else live["metadata"]
    return (metadata.get("annotations") or {}).get(UNSTATED)


def _decided(annotations: Mapping[str, str], live: StatefulSet | None, otherwise: Unstated) -> Unstated:
    for found in (annotations.get(UNSTATED), _copied(live)):
        if found in set(Unstated):
            return Unstated(found)
    return otherwise


def _with(cluster: Cluster, unstated: Unstated) -> Cluster:
    annotations = {**cluster.metadata.annotations, UNSTATED: unstated.value}
    return replace(cluster, metadata=replace(cluster.metadata, annotations=annotations))
