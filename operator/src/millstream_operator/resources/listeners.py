"""Listeners: addresses for clients, inside Kubernetes and outside, and for traffic between brokers.

A client connects to each broker individually, so every listener for clients has a Service for each broker, and one in
front of all of them for the first connection:

    Internal       a ClusterIP, which outlives the broker's pods: clients need no new address after a restart
    NodePort       a port on every node; the broker advertises its own node's address and that port
    LoadBalancer   an address of its own, which its provider reports in the Service's status

The advertised addresses outside may be overridden: by a pattern for all brokers, and for single ones.

With TLS inside Kubernetes, the operator has a listener of its own, at the addresses of the Internal one.

Brokers have a separate listener for each other, and advertise their pod's own address for it. The proof that a process
has ended needs this: nothing in between may accept or refuse connections in the place of a broker. A Service would: it
refuses them as long as it has no endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..models import Cluster, Listener
from ..models.addresses import host_port
from ..models.listeners import BROKER, BrokerAddress
from .owned import Manifest, selector, service


class Address(NamedTuple):
    """A broker's address for clients outside; without a host it is that of the broker's node."""

    host: str | None
    port: int


Addresses = Mapping[tuple[str, int], Address]
"""By listener name and broker."""

REPLICATION = "REPLICATION-9091"
"""The brokers' own listener, as Kafka writes it, whatever its port; users' listeners have no hyphen there."""
REPLICATION_PORT = 9091
PLATFORM = "PLATFORM-9090"
"""The operator's listener with TLS."""


def all_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return cluster.spec.listeners or (cluster.spec.internal,)


def replication_port(cluster: Cluster) -> int:
    """The port of the brokers' own listener: a free one, because an older Cluster's listener may have its port."""
    return _own_ports(cluster)[0]


def platform_port(cluster: Cluster) -> int:
    """The port of the operator's listener with TLS: the next free one."""
    return _own_ports(cluster)[1]


def _own_ports(cluster: Cluster) -> list[int]:
    taken = {listener.port for listener in all_listeners(cluster)}
    free = (port for port in range(REPLICATION_PORT, 1023, -1) if port not in taken)
    return list(islice(free, 2))


def operator_port(cluster: Cluster) -> int:
    """Where the operator logs in."""
    has_tls = cluster.spec.platform_tls.has_listener
    return platform_port(cluster) if has_tls else replication_port(cluster)


def external_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return tuple(listener for listener in cluster.spec.listeners if listener.type != "Internal")


def kafka_name(listener: Listener) -> str:
    """A listener's name as Kafka writes it."""
    return listener.name.upper().replace("-", "_")


def broker_host(cluster: Cluster, broker: int) -> str:
    """One broker's host for clients inside Kubernetes, whichever pod it has."""
    return f"{_broker_service_name(cluster, broker)}.{cluster.namespace}.svc"


def broker_services(cluster: Cluster, brokers: int) -> list[Manifest]:
    """A Service for each broker, for the Internal listener."""
    return [
        service(
            cluster,
            _broker_service_name(cluster, broker),
            {
                "type": "ClusterIP",
                "selector": _pod_of(cluster, broker),
                # A broker may lead before Kubernetes notices that it is ready.
                "publishNotReadyAddresses": True,
            },
            {"kafka": cluster.spec.internal.port, **platform_ports(cluster)},
        )
        for broker in range(brokers)
    ]


def platform_ports(cluster: Cluster) -> dict[str, int]:
    """The operator's listener with TLS, for Services inside Kubernetes."""
    return {"platform-tls": platform_port(cluster)} if cluster.spec.platform_tls.has_listener else {}


def _broker_service_name(cluster: Cluster, broker: int) -> str:
    """Without a hyphen before the number, unlike Services of external listeners."""
    return f"{cluster.name}-broker{broker}"


def _pod_of(cluster: Cluster, broker: int) -> dict[str, str]:
    """The selector of one broker's pod."""
    return {
        **selector(cluster),
        "statefulset.kubernetes.io/pod-name": f"{cluster.name}-brokers-{broker}",
    }


def external_service_name(cluster: Cluster, listener: Listener, broker: int) -> str:
    return f"{cluster.name}-{listener.name}-{broker}"


def external_services(cluster: Cluster, brokers: int) -> dict[tuple[str, int], Manifest]:
    """A Service for each external listener and broker."""
    return {
        (listener.name, broker): _external_service(cluster, listener, broker)
        for listener in external_listeners(cluster)
        for broker in range(brokers)
    }


def bootstrap_services(cluster: Cluster) -> dict[str, Manifest]:
    """A Service for each external listener that has TLS or allows plain text, in front of all ready brokers.

    A listener from before that was required gets no Service that it did not have: it might be open to more peers than
    those of the brokers. No Service of a Cluster has a name that ends with ``-all``: NAME-bootstrap would belong to
    another Cluster.
    """
    return {
        listener.name: _outside(
            cluster,
            listener,
            f"{cluster.name}-{listener.name}-all",
            {"selector": selector(cluster)},
            node_port=listener.bootstrap.node_port,
            annotations=listener.bootstrap.annotations,
        )
        for listener in external_listeners(cluster)
        if listener.allow_plaintext or listener.is_encrypted
    }


def _external_service(cluster: Cluster, listener: Listener, broker: int) -> Manifest:
    spec: Manifest = {"selector": _pod_of(cluster, broker)}
    if listener.type == "NodePort":
        # A client that must find its broker must find it even while it is not ready.
        spec["publishNotReadyAddresses"] = True
    return _outside(
        cluster,
        listener,
        external_service_name(cluster, listener, broker),
        spec,
        node_port=None if listener.node_port is None else listener.node_port + broker,
        annotations={key: _of(broker, value) for key, value in listener.annotations.items()},
    )


def _outside(
    cluster: Cluster,
    listener: Listener,
    name: str,
    spec: Manifest,
    *,
    node_port: int | None,
    annotations: Mapping[str, str],
) -> Manifest:
    wanted = {"type": listener.type, **spec}
    if listener.load_balancer_source_ranges:
        wanted["loadBalancerSourceRanges"] = list(listener.load_balancer_source_ranges)
    if listener.external_traffic_policy is not None:
        wanted["externalTrafficPolicy"] = listener.external_traffic_policy
    found = service(cluster, name, wanted, {"kafka": listener.port})
    (port,) = found["spec"]["ports"]
    # By the name of the container's port: during a rollout of a new port, each pod is reached at its own.
    port["targetPort"] = listener.name
    if node_port is not None:
        port["nodePort"] = node_port
    if annotations:
        found["metadata"]["annotations"] = dict(annotations)
    return found


def _of(broker: int, text: str) -> str:
    return text.replace(BROKER, str(broker))


def address_of(listener_type: str, live: Mapping[str, Any]) -> Address | None:
    """The address of an existing Service; None while a load balancer has none."""
    port = live["spec"]["ports"][0]
    if listener_type == "NodePort":
        return Address(None, port["nodePort"]) if port.get("nodePort") else None
    for ingress in (live.get("status") or {}).get("loadBalancer", {}).get("ingress") or ():
        if host := ingress.get("hostname") or ingress.get("ip"):
            return Address(host, port["port"])
    return None


def advertised_address(listener: Listener, broker: int, live: Mapping[str, Any]) -> Address | None:
    """The advertised address of a broker: its overrides, else the listener's, else its Service's.

    A load balancer whose host is overridden need not have an address.
    """
    found = address_of(listener.type, live)
    own = next((one for one in listener.brokers if one.broker == broker), BrokerAddress(broker=broker))
    host = own.advertised_host or (listener.advertised_host and _of(broker, listener.advertised_host))
    if found is None and host and listener.type == "LoadBalancer":
        found = Address(host, listener.port)
    if found is None:
        return None
    return Address(host or found.host, own.advertised_port or listener.advertised_port or found.port)


def shared_address(addresses: Addresses) -> str | None:
    """The first address that two brokers would advertise, in words; None if all differ.

    Without a host it is each broker's node, which may differ.
    """
    seen: dict[tuple[str, Address], int] = {}
    for (listener, broker), address in sorted(addresses.items(), key=lambda entry: entry[0]):
        other = seen.setdefault((listener, address), broker)
        if other != broker and address.host is not None:
            where = host_port(address.host, address.port)
            return (
                f"listener {listener}: brokers {other} and {broker} both advertise {where}, so"
                f" clients could not tell them apart: put {BROKER} into advertisedHost, or name both in brokers"
            )
    return None


def bootstrap_addresses(
    listener: Listener, bootstrap: Address | None, nodes: Sequence[str], brokers: Sequence[str]
) -> str:
    """The first addresses for clients outside, as HOST:PORT[,HOST:PORT…].

    ``bootstrap`` is its Service's address, ``nodes`` are the brokers' nodes, and ``brokers`` the brokers' own
    addresses, which also serve the purpose.
    """
    if bootstrap is None and listener.bootstrap.host and listener.type == "LoadBalancer":
        bootstrap = Address(None, listener.port)
    if bootstrap is None:
        return ",".join(brokers)
    host = listener.bootstrap.host or bootstrap.host
    hosts = dict.fromkeys(nodes) if host is None else (host,)
    return ",".join(host_port(host, bootstrap.port) for host in hosts)
