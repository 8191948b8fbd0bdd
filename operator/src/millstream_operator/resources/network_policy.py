"""NetworkPolicies of a Cluster: the peers that may reach its pods.

    NAME-brokers     each listener by its networkPolicyPeers, or everybody; the Internal one by brokers and the
                     operator, too; the brokers' own by brokers, and by the operator, mirror workers, loads and
                     consumers of workloads once they log in there; health and metrics by the operator and
                     spec.networkPolicy.metricsPeers
    NAME-zookeeper   clients by brokers and the operator, peers and elections by ZooKeeper's servers

Kubernetes lets a node reach its own pods, so probes need no rule. Outgoing connections are not limited. A policy allows
only what it names, and needs a network plugin that enforces policies. Connections through a load balancer or a node may
come from the node's address, so the peers of an external listener are seldom known here: use loadBalancerSourceRanges
and firewalls for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..models import Cluster
from ..models.cluster import PlatformTls
from ..models.listeners import Listener, Peer
from . import zookeeper
from .broker_config import HTTP_PORT, broker_set_name
from .listeners import all_listeners, platform_port, replication_port
from .owned import Manifest, metadata, selector

OPERATOR = {"app.kubernetes.io/name": "millstream", "app.kubernetes.io/component": "operator"}
"""Labels of the operator's own pods, as the chart sets them."""


def network_policies(cluster: Cluster, operator_namespace: str | None) -> list[Manifest]:
    """``operator_namespace`` is the namespace of the operator's pod, or None."""
    found = [_policy(cluster, broker_set_name(cluster), "broker", _to_brokers(cluster, operator_namespace))]
    if cluster.spec.zookeeper is not None and cluster.spec.zookeeper.replicas is not None:
        rules = _to_zookeeper(cluster, operator_namespace)
        found.append(_policy(cluster, zookeeper.name_of(cluster), zookeeper.COMPONENT, rules))
    return found


def _to_brokers(cluster: Cluster, operator_namespace: str | None) -> list[Manifest]:
    operator = _operator(operator_namespace)
    brokers = _pods(cluster, "broker")
    tls = cluster.spec.platform_tls
    platform = [*operator, *_with_user(cluster)] if cluster.spec.platform_login else []
    rules = [_rule([replication_port(cluster)], [brokers, *(() if tls is PlatformTls.ON else platform)])]
    if tls.has_listener:
        rules.append(_rule([platform_port(cluster)], platform))
    for listener in all_listeners(cluster):
        if peers := _peers(listener.network_policy_peers):
            # brokers from before they had a listener of their own reach each other there
            inside = [brokers, *operator] if listener.type == "Internal" else []
            if listener.is_encrypted and not inside:
                inside = operator  # which asks brokers for the certificate that they serve
            rules.append(_rule([_port(listener)], [*inside, *peers]))
        else:
            rules.append(_rule([_port(listener)], []))
    if readers := [*operator, *_peers(cluster.spec.network_policy.metrics_peers)]:
        rules.append(_rule([HTTP_PORT], readers))
    return rules


def _to_zookeeper(cluster: Cluster, operator_namespace: str | None) -> list[Manifest]:
    return [
        _rule([zookeeper.CLIENT_PORT], [_pods(cluster, "broker"), *_operator(operator_namespace)]),
        _rule([zookeeper.PEER_PORT, zookeeper.ELECTION_PORT], [_pods(cluster, zookeeper.COMPONENT)]),
    ]


def _port(listener: Listener) -> int | str:
    """The container's port; for an external listener its name, because each pod has the number it was started with.

    The Internal listener's port never changes.
    """
    return listener.port if listener.type == "Internal" else listener.name


def _rule(ports: Sequence[int | str], peers: Sequence[Manifest]) -> Manifest:
    """Without peers, a rule allows everybody, as in Kubernetes."""
    found: Manifest = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if peers:
        found["from"] = list(peers)
    return found


def _pods(cluster: Cluster, component: str) -> Manifest:
    return {"podSelector": {"matchLabels": selector(cluster, component)}}


def _with_user(cluster: Cluster) -> list[Manifest]:
    """Pods of ours that log in as a user of their own, in the namespaces that may refer to the Cluster."""
    names = {
        "key": "app.kubernetes.io/name",
        "operator": "In",
        "values": ["millstream-consumers", "millstream-load", "millstream-mirror"],
    }
    pods = {"podSelector": {"matchExpressions": [names]}}
    allowed = list(cluster.spec.allowed_namespaces)
    if "*" in allowed:
        return [{"namespaceSelector": {}, **pods}]
    if not allowed:
        return [pods]
    others = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": allowed}
    return [pods, {"namespaceSelector": {"matchExpressions": [others]}, **pods}]


def _operator(namespace: str | None) -> list[Manifest]:
    if namespace is None:
        return []
    there = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return [{"namespaceSelector": there, "podSelector": {"matchLabels": dict(OPERATOR)}}]


def _peers(peers: Sequence[Peer]) -> list[Manifest]:
    found: list[Manifest] = msgspec.json.decode(msgspec.json.encode(peers))
    return found


def _policy(cluster: Cluster, name: str, component: str, ingress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, name, component),
        "spec": {
            "podSelector": {"matchLabels": selector(cluster, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }
