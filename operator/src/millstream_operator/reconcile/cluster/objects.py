"""Applies a Cluster's objects: listeners, configuration, brokers, volumes; and restarts its pods."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ...kubernetes.client import KubeError
from ...models import Cluster, Quantity
from ...models.conditions import Reason
from ...models.quantity import parse_quantity
from ...models.roll import Roll
from ...resources import cluster as build
from ...resources.broker_config import broker_set_name
from ...resources.listeners import (
    Address,
    Addresses,
    address_of,
    advertised_address,
    bootstrap_services,
    broker_services,
    external_listeners,
    external_services,
)
from ...resources.network_policy import network_policies
from ...resources.owned import disruption_budget, is_owned_by, labels, metadata, selector
from ...state.context import ClusterParts, Warn
from ..common.objects import delete, ensure, find
from ..common.report import tell
from ..common.volumes import class_needs_owner
from .plan import Outside, StatefulSet

logger = logging.getLogger(__name__)


def live_brokers(services: ClusterParts, cluster: Cluster) -> StatefulSet | None:
    """Raises NotOurs."""
    return find_stateful_set(services, cluster, broker_set_name(cluster))


def find_stateful_set(services: ClusterParts, cluster: Cluster, name: str) -> StatefulSet | None:
    """Raises NotOurs."""
    wanted = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(cluster, name)}
    return find(services.kube, wanted)


def apply_listeners(services: ClusterParts, cluster: Cluster, brokers: int) -> Outside:
    """Apply the Services: for each listener one for each broker, and one for all of them.

    Brokers are created or restarted after this, so the addresses that they advertise exist.
    """
    inside = [
        build.brokers_service(cluster),
        build.bootstrap_service(cluster),
        *broker_services(cluster, brokers),
    ]
    for manifest in inside:
        ensure(services.kube, manifest)
    names = {manifest["metadata"]["name"] for manifest in inside}
    listeners = {listener.name: listener for listener in external_listeners(cluster)}
    found: dict[tuple[str, int], Address | None] = {}
    bootstraps: dict[str, Address | None] = dict.fromkeys(listeners)
    for (name, broker), manifest in external_services(cluster, brokers).items():
        live = ensure(services.kube, manifest)
        found[name, broker] = advertised_address(listeners[name], broker, live)
        names.add(manifest["metadata"]["name"])
    for name, manifest in bootstrap_services(cluster).items():
        bootstraps[name] = address_of(listeners[name].type, ensure(services.kube, manifest))
        names.add(manifest["metadata"]["name"])
    _drop_services(services, cluster, keep=names)
    return Outside(found, bootstraps)


def apply_network_policies(services: ClusterParts, cluster: Cluster) -> None:
    """Apply the NetworkPolicies of a Cluster that enables them; delete them otherwise."""
    wanted = cluster.spec.network_policy.enabled
    address, seen = services.address_of(cluster), (cluster.metadata.uid, cluster.metadata.generation)
    if not wanted and services.no_policies.get(address) == seen:
        return
    for manifest in network_policies(cluster, services.operator_namespace):
        if wanted:
            ensure(services.kube, manifest)
        else:
            delete(services.kube, manifest)
    if wanted:
        services.no_policies.pop(address, None)
    else:
        services.no_policies[address] = seen


def apply_brokers(
    services: ClusterParts,
    cluster: Cluster,
    live: StatefulSet | None,
    replicas: int,
    addresses: Addresses,
    warn: Warn,
) -> StatefulSet:
    """Apply the configuration, which a starting broker reads, and then the brokers."""
    racks = racks_by_node(services, cluster)
    if racks is None and cluster.spec.brokers.rack is not None:
        warn(
            Reason.RACKS_UNKNOWN,
            "spec.brokers.rack: the operator has no right to read nodes: brokers have no rack",
        )
    ensure(services.kube, build.config_map(cluster, replicas, addresses, racks))
    ensure(services.kube, disruption_budget(cluster, broker_set_name(cluster), "broker"))
    wanted = build.stateful_set(
        cluster,
        image=services.images.broker,
        pull_policy=services.images.pull_policy,
        replicas=replicas,
        addresses=addresses,
        claim_size=claim_size_of(live),
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
        user_ids=services.images.user_ids,
        racks=racks is not None,
        release=services.release,
        log_format=services.images.broker_log_format,
    )
    result = ensure(services.kube, wanted)
    for broker in range(replicas):
        grow(
            services,
            cluster,
            "broker",
            build.claim_name(cluster, broker),
            cluster.spec.brokers.storage.size,
            warn,
        )
    return result


def restart(services: ClusterParts, cluster: Cluster, roll: Roll) -> None:
    """Delete the pod that a roll restarts now, if any, but no successor of the same name; report why in Events."""
    if (pod := roll.restart) is None:
        return
    logger.info("Cluster %s: %s", cluster.name, roll.words)
    services.kube.delete("v1", "Pod", cluster.namespace, pod.name, uid=pod.uid)
    for reason in pod.reasons:
        tell(services, cluster, reason, f"restarting {pod.name}")


def racks_by_node(services: ClusterParts, cluster: Cluster) -> dict[str, str] | None:
    """The rack by node, empty for nodes without one.

    None if brokers have no rack: the Cluster does not enable racks, or the operator may not read nodes.
    """
    rack = cluster.spec.brokers.rack
    if rack is None:
        return None
    try:
        nodes = services.kube.list("v1", "Node", None, {})
    except KubeError as error:
        if error.status == 403:
            return None
        raise
    return {
        node["metadata"]["name"]: (node["metadata"].get("labels") or {}).get(rack.topology_key, "")
        for node in nodes
    }


MOST_NODES = 100
"""Addresses of nodes in a certificate; with more nodes, those of the brokers' own."""


def node_addresses(
    services: ClusterParts, cluster: Cluster, pods: Iterable[Mapping[str, Any]]
) -> frozenset[str]:
    """Where clients reach NodePorts with TLS: on all nodes that the operator may list, so that a broker may move."""
    if not any(
        listener.is_encrypted and listener.type == "NodePort" for listener in external_listeners(cluster)
    ):
        return frozenset()
    found = {pod["status"]["hostIP"] for pod in pods if (pod.get("status") or {}).get("hostIP")}
    try:
        nodes = services.kube.list("v1", "Node", None, {})
    except KubeError as error:
        if error.status != 403:
            raise
        return frozenset(found)
    if len(nodes) <= MOST_NODES:
        found |= {
            each["address"]
            for node in nodes
            for each in (node.get("status") or {}).get("addresses") or ()
            if each["type"] in ("ExternalIP", "InternalIP")
        }
    return frozenset(found)


def _drop_services(services: ClusterParts, cluster: Cluster, keep: set[str]) -> None:
    """Delete the Services of listeners and brokers that are no longer in the spec."""
    for service in services.kube.list("v1", "Service", cluster.namespace, labels(cluster)):
        name = service["metadata"]["name"]
        if name not in keep and is_owned_by(service, cluster.metadata.uid):
            uid = service["metadata"]["uid"]
            services.kube.delete("v1", "Service", cluster.namespace, name, uid=uid)


def claim_size_of(live: StatefulSet | None) -> Quantity | None:
    """The volume size in a StatefulSet's claim template, which Kubernetes never changes."""
    if live is None:
        return None
    size: Quantity = live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    return size


def grow(
    services: ClusterParts, cluster: Cluster, component: str, name: str, wanted: Quantity, warn: Warn
) -> None:
    """Grow volumes that are smaller than the spec says; larger ones stay.

    A claim that outlives its Cluster has no owner; its labels, which Kubernetes copies from the StatefulSet, show that
    it is ours.
    """
    namespace = cluster.namespace
    claim = services.kube.get("v1", "PersistentVolumeClaim", namespace, name)
    if claim is None or parse_quantity(claim["spec"]["resources"]["requests"]["storage"]) >= parse_quantity(
        wanted
    ):
        return
    ours = selector(cluster, component)
    if not ours.items() <= (claim["metadata"].get("labels") or {}).items():
        given = labels(cluster, component)  # the operator may not change a claim that lacks one of them
        wants = " ".join(f"{key}={value}" for key, value in given.items())
        words = (
            f"PersistentVolumeClaim {name} does not belong to the operator, so it is not enlarged to {wanted}"
        )
        words += f": grow it, or let the operator: kubectl -n {namespace} label pvc {name} {wants}"
        warn(Reason.OBJECT_NOT_OURS, words)
        return
    manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"resources": {"requests": {"storage": wanted}}},
    }
    try:
        services.kube.apply(manifest)
    except KubeError as error:
        if error.status not in (403, 422):  # its storage class does not allow volumes to grow
            raise
        warn(Reason.VOLUME_NOT_RESIZED, f"volume {name} cannot grow to {wanted}: {error}")
