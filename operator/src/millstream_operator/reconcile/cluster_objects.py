"""A Cluster's objects brought to what its spec says: ZooKeeper, listeners, configuration, brokers, volumes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ..conditions import Reason
from ..kube import KubeError
from ..models import Cluster, ListenerStatus, Quantity
from ..quantity import parse_quantity
from ..resources import cluster as build
from ..resources import zookeeper
from ..resources.broker_config import broker_set_name
from ..resources.listeners import Address, Addresses, address_of, external_listeners, external_services
from ..resources.owned import disruption_budget, labels, metadata
from ..services import Services
from .objects import ensure, find, is_owned_by
from .report import Problem
from .volumes import class_needs_owner

ZOOKEEPER_TIMEOUT_S = 2.0

StatefulSet = Mapping[str, Any]
Warn = Callable[[Reason, str], None]


def live_brokers(services: Services, cluster: Cluster) -> StatefulSet | None:
    """Raises NotOurs."""
    return _stateful_set(services, cluster, broker_set_name(cluster))


def _stateful_set(services: Services, cluster: Cluster, name: str) -> StatefulSet | None:
    wanted = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(cluster, name)}
    return find(services.kube, wanted)


def ready_replicas(stateful_set: StatefulSet | None) -> int:
    """Pods that serve."""
    return 0 if stateful_set is None else int((stateful_set.get("status") or {}).get("readyReplicas") or 0)


def apply_ensemble(services: Services, cluster: Cluster, warn: Warn) -> None:
    """The ZooKeeper servers, where the Cluster brings its own."""
    if cluster.spec.zookeeper is None or cluster.spec.zookeeper.replicas is None:
        return
    name = zookeeper.name_of(cluster)
    manifests = zookeeper.objects(
        cluster,
        image=services.images.zookeeper,
        pull_policy=services.images.pull_policy,
        claim_size=_claim_size(_stateful_set(services, cluster, name)),
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
        user_ids=services.images.user_ids,
    )
    for manifest in manifests:
        ensure(services.kube, manifest)
    size = cluster.spec.zookeeper.storage.size
    for server in range(1, cluster.spec.zookeeper.replicas + 1):
        _grow(services, cluster.namespace, f"data-{name}-{server}", size, warn)


def why_no_zookeeper(services: Services, cluster: Cluster) -> Problem | None:
    """Why brokers cannot find their ZooKeeper, where that is what they wait for."""
    wanted = cluster.spec.zookeeper
    if wanted is None:
        return None
    if wanted.replicas is not None:
        live = _stateful_set(services, cluster, zookeeper.name_of(cluster))
        ready, needed = ready_replicas(live), wanted.replicas // 2 + 1
        if ready >= needed:
            return None
        words = f"{ready} of {wanted.replicas} servers are ready, and {needed} are needed"
    else:
        servers = zookeeper.connect_of(cluster).partition("/")[0]
        if any(map(_listens, servers.split(","))):
            return None
        words = f"no server answers at {servers}"
    return Problem(Reason.ZOOKEEPER_NOT_READY, f"the brokers wait for ZooKeeper: {words}")


def _listens(server: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        socket.create_connection(server_address(server), ZOOKEEPER_TIMEOUT_S).close()
        return True
    return False


def server_address(server: str) -> tuple[str, int]:
    """HOST or HOST:PORT of ``zookeeper.connect``; an IPv6 address is in brackets. Raises ValueError."""
    host, _, port = server.strip().rpartition(":")
    return (host.strip("[]"), int(port)) if host else (port, zookeeper.CLIENT_PORT)


def apply_listeners(
    services: Services, cluster: Cluster, brokers: int
) -> dict[tuple[str, int], Address | None]:
    """The Services, one for each external listener and broker; None where an address is not known yet."""
    ensure(services.kube, build.brokers_service(cluster))
    ensure(services.kube, build.bootstrap_service(cluster))
    types = {listener.name: listener.type for listener in external_listeners(cluster)}
    found: dict[tuple[str, int], Address | None] = {}
    names = {broker_set_name(cluster), f"{cluster.name}-bootstrap"}
    for (listener, broker), manifest in external_services(cluster, brokers).items():
        live = ensure(services.kube, manifest)
        found[listener, broker] = address_of(types[listener], live)
        names.add(manifest["metadata"]["name"])
    _drop_services(services, cluster, keep=names)
    return found


def apply_brokers(
    services: Services,
    cluster: Cluster,
    live: StatefulSet | None,
    replicas: int,
    addresses: Addresses,
    warn: Warn,
) -> StatefulSet:
    """Configuration first, since a broker that starts reads it; then the brokers."""
    racks = racks_by_node(services, cluster)
    if racks is None and cluster.spec.brokers.rack is not None:
        warn(
            Reason.RACKS_UNKNOWN,
            "spec.brokers.rack: the operator may not look at nodes: brokers have no rack",
        )
    ensure(services.kube, build.config_map(cluster, replicas, addresses, racks))
    ensure(services.kube, disruption_budget(cluster, broker_set_name(cluster), "broker"))
    wanted = build.stateful_set(
        cluster,
        image=services.images.broker,
        pull_policy=services.images.pull_policy,
        replicas=replicas,
        addresses=addresses,
        claim_size=_claim_size(live),
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
        user_ids=services.images.user_ids,
        racks=racks is not None,
    )
    result = ensure(services.kube, wanted)
    for broker in range(replicas):
        _grow(
            services,
            cluster.namespace,
            build.claim_name(cluster, broker),
            cluster.spec.brokers.storage.size,
            warn,
        )
    return result


def listener_status(
    addresses: Addresses, hosts: Mapping[int, str], brokers: int
) -> tuple[ListenerStatus, ...]:
    """Where clients outside connect: each broker's address. ``hosts``: the address of each broker's node."""
    by_listener: dict[str, list[str]] = {}
    for (listener, broker), address in sorted(addresses.items()):
        host = address.host or hosts.get(broker)
        if host and broker < brokers:
            by_listener.setdefault(listener, []).append(f"{host}:{address.port}")
    return tuple(
        ListenerStatus(name=name, bootstrap=",".join(addresses)) for name, addresses in by_listener.items()
    )


def racks_by_node(services: Services, cluster: Cluster) -> dict[str, str] | None:
    """The rack by node, empty for nodes without one. None where brokers have none: the Cluster does not ask for it, or
    the operator may not look at nodes."""
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


def _drop_services(services: Services, cluster: Cluster, keep: set[str]) -> None:
    """Delete the Services of listeners and brokers that are no longer in the spec."""
    for service in services.kube.list("v1", "Service", cluster.namespace, labels(cluster)):
        name = service["metadata"]["name"]
        if name not in keep and is_owned_by(service, cluster.metadata.uid):
            services.kube.delete("v1", "Service", cluster.namespace, name)


def _claim_size(live: StatefulSet | None) -> Quantity | None:
    if live is None:
        return None
    size: Quantity = live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    return size


def _grow(services: Services, namespace: str, name: str, wanted: Quantity, warn: Warn) -> None:
    """Ask for a bigger volume where it is smaller than the spec says; one that is bigger stays."""
    claim = services.kube.get("v1", "PersistentVolumeClaim", namespace, name)
    if claim is None or parse_quantity(claim["spec"]["resources"]["requests"]["storage"]) >= parse_quantity(
        wanted
    ):
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
        if error.status not in (403, 422):  # its storage class does not let volumes grow
            raise
        warn(Reason.VOLUME_NOT_RESIZED, f"volume {name} cannot grow to {wanted}: {error}")
