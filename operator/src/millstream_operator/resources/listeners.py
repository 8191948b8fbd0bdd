"""Listeners: where clients connect, inside Kubernetes and from outside.

A client talks to each broker by itself, so that an external listener has a Service for each broker:

    NodePort       a port on every node; the broker advertises its own node's address and that port
    LoadBalancer   an address of its own, which its provider tells in the Service's status
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..models import Cluster, Listener
from .owned import Manifest, selector, service


class Address(NamedTuple):
    """Where clients outside reach one broker; without a host it is the broker's node."""

    host: str | None
    port: int


Addresses = Mapping[tuple[str, int], Address]
"""By listener name and broker."""


def all_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return cluster.spec.listeners or (cluster.spec.internal,)


def external_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return tuple(listener for listener in cluster.spec.listeners if listener.type != "Internal")


def kafka_name(listener: Listener) -> str:
    """A listener's name as Kafka writes it."""
    return listener.name.upper().replace("-", "_")


def external_service_name(cluster: Cluster, listener: Listener, broker: int) -> str:
    return f"{cluster.name}-{listener.name}-{broker}"


def external_services(cluster: Cluster, brokers: int) -> dict[tuple[str, int], Manifest]:
    """A Service for each external listener and broker."""
    return {
        (listener.name, broker): _external_service(cluster, listener, broker)
        for listener in external_listeners(cluster)
        for broker in range(brokers)
    }


def _external_service(cluster: Cluster, listener: Listener, broker: int) -> Manifest:
    pod = {"statefulset.kubernetes.io/pod-name": f"{cluster.name}-brokers-{broker}"}
    spec: Manifest = {"type": listener.type, "selector": {**selector(cluster), **pod}}
    if listener.type == "NodePort":
        # A client that must find its broker must find it while it is not ready too.
        spec["publishNotReadyAddresses"] = True
    entry = service(cluster, external_service_name(cluster, listener, broker), spec, {"kafka": listener.port})
    if listener.node_port is not None:
        entry["spec"]["ports"][0]["nodePort"] = listener.node_port + broker
    return entry


def address_of(listener_type: str, live: Mapping[str, Any]) -> Address | None:
    """What a Service that is there says; None as long as a load balancer has no address."""
    port = live["spec"]["ports"][0]
    if listener_type == "NodePort":
        return Address(None, port["nodePort"]) if port.get("nodePort") else None
    for ingress in (live.get("status") or {}).get("loadBalancer", {}).get("ingress") or ():
        if host := ingress.get("hostname") or ingress.get("ip"):
            return Address(host, port["port"])
    return None
