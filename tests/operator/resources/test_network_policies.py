"""Peers that may reach the pods of a Cluster with NetworkPolicies."""

from __future__ import annotations

from typing import Any

from millstream_operator.models import API_VERSION, Cluster
from millstream_operator.resources import cluster as build
from millstream_operator.resources import zookeeper
from millstream_operator.resources.listeners import bootstrap_services, external_services
from millstream_operator.resources.network_policy import network_policies
from millstream_operator.validation.admission import decode

Spec = dict[str, Any]
BROKERS = {
    "podSelector": {"matchLabels": {"millstream.dev/cluster": "x", "app.kubernetes.io/component": "broker"}}
}
SERVERS = {
    "podSelector": {
        "matchLabels": {"millstream.dev/cluster": "x", "app.kubernetes.io/component": "zookeeper"}
    }
}
OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "millstream"}},
    "podSelector": {
        "matchLabels": {"app.kubernetes.io/name": "millstream", "app.kubernetes.io/component": "operator"}
    },
}
SHOPS = {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def cluster(**spec: Any) -> Cluster:
    metadata = {"name": "x", "namespace": "ns", "uid": "u-1"}
    document = {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": metadata, "spec": spec}
    found = decode(document)
    assert isinstance(found, Cluster)
    return found


def who(policy: Spec) -> dict[int | str, list[Spec] | None]:
    """Allowed peers of each port, from all its rules; None for everyone."""
    found: dict[int | str, list[Spec] | None] = {}
    for rule in policy["spec"]["ingress"]:
        for port in rule["ports"]:
            assert port["protocol"] == "TCP"
            before = found.get(port["port"], [])
            peers = rule.get("from")
            found[port["port"]] = None if None in (before, peers) else [*(before or ()), *(peers or ())]
    return found


def test_brokers_are_reached_on_their_listeners_only() -> None:
    listeners = [
        {"name": "internal", "type": "Internal", "port": 9092, "networkPolicyPeers": [SHOPS]},
        {"name": "public", "type": "LoadBalancer", "port": 9094, "allowPlaintext": True},
    ]
    wanted = cluster(listeners=listeners, networkPolicy={"enabled": True, "metricsPeers": [PROMETHEUS]})
    (policy,) = network_policies(wanted, "millstream")
    assert (policy["metadata"]["name"], policy["metadata"]["namespace"]) == ("x-brokers", "ns")
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["podSelector"] == BROKERS["podSelector"]
    assert who(policy) == {
        9091: [BROKERS],
        9092: [BROKERS, OPERATOR, SHOPS],
        "public": None,
        9404: [OPERATOR, PROMETHEUS],
    }


def test_operator_reaches_listeners_with_tls() -> None:
    outside = {"name": "nodes", "type": "NodePort", "port": 9095, "networkPolicyPeers": [SHOPS]}
    inside = {"name": "internal", "type": "Internal", "port": 9092}
    for more, peers in (({"allowPlaintext": True}, [SHOPS]), ({"tls": "Enabled"}, [OPERATOR, SHOPS])):
        (policy,) = network_policies(cluster(listeners=[inside, {**outside, **more}]), "millstream")
        assert who(policy)["nodes"] == peers


def test_without_peers_every_client_may_connect_and_nobody_but_the_operator_reads_metrics() -> None:
    (policy,) = network_policies(cluster(), "millstream")
    assert who(policy) == {9091: [BROKERS], 9092: None, 9404: [OPERATOR]}
    (outside,) = network_policies(cluster(), None)  # no pod: the operator is outside Kubernetes
    assert who(outside) == {9091: [BROKERS], 9092: None}


def test_zookeeper_is_reached_by_brokers_the_operator_and_its_own_servers_only() -> None:
    wanted = cluster(brokers={"replicas": 3}, zookeeper={"replicas": 3})
    _, policy = network_policies(wanted, "millstream")
    assert policy["metadata"]["name"] == "x-zookeeper"
    assert policy["spec"]["podSelector"] == SERVERS["podSelector"]
    assert who(policy) == {2181: [BROKERS, OPERATOR], 2888: [SERVERS], 3888: [SERVERS]}
    elsewhere = cluster(brokers={"replicas": 3}, zookeeper={"connect": "zk:2181"})
    assert len(network_policies(elsewhere, "millstream")) == 1


def test_policies_select_the_pods_that_are_made_and_know_all_their_ports() -> None:
    wanted = cluster(
        brokers={"replicas": 3},
        zookeeper={"replicas": 3},
        listeners=[
            {"name": "internal", "type": "Internal", "port": 9093},
            {"name": "nodes", "type": "NodePort", "port": 9095},
        ],
    )
    brokers, servers = network_policies(wanted, "millstream")
    made = build.stateful_set(wanted, image="b", pull_policy="Never")
    *_, ensemble = zookeeper.objects(wanted, image="z", pull_policy="Never")
    for policy, pods in ((brokers, made), (servers, ensemble)):
        template = pods["spec"]["template"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {numbers.get(port, port) for port in who(policy)} == set(numbers.values())


def test_a_pod_is_reached_at_the_port_that_it_was_started_with() -> None:
    """While the new port of an external listener rolls out, some brokers still listen on the old one."""
    outside = {"name": "nodes", "type": "NodePort", "allowPlaintext": True}
    before, after = (
        cluster(listeners=[{"name": "internal", "type": "Internal", "port": 9092}, {**outside, "port": port}])
        for port in (9094, 9095)
    )
    made = build.stateful_set(before, image="b", pull_policy="Never")["spec"]["template"]["spec"]
    (container,) = made["containers"]
    listens = {port["name"]: port["containerPort"] for port in container["ports"]}
    (policy,) = network_policies(after, None)
    services = [*external_services(after, 1).values(), *bootstrap_services(after).values()]
    assert len(services) == 2
    for service in services:
        (port,) = service["spec"]["ports"]
        assert (port["port"], listens[port["targetPort"]]) == (9095, 9094)
        assert port["targetPort"] in who(policy)
