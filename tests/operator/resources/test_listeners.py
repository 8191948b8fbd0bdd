"""Listeners for clients outside Kubernetes: their Services, and what brokers advertise."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_operator.models import API_VERSION, Cluster, ManifestError
from millstream_operator.resources.broker_config import own_config
from millstream_operator.resources.cluster import bootstrap_service, brokers_service
from millstream_operator.resources.listeners import (
    Address,
    advertised_address,
    bootstrap_addresses,
    bootstrap_services,
    broker_services,
    external_services,
    shared_address,
)
from millstream_operator.validation.admission import decode

INTERNAL = {"name": "internal", "type": "Internal", "port": 9092}
Spec = dict[str, Any]


def cluster(called: str = "east", replicas: int = 3, **listener: Any) -> Cluster:
    outside = {"name": "public", "type": "LoadBalancer", "port": 9094, "allowPlaintext": True, **listener}
    spec = {
        "brokers": {"replicas": replicas},
        "zookeeper": {"replicas": 3},
        "listeners": [INTERNAL, outside],
    }
    metadata = {"name": called, "namespace": "ns", "uid": "u-1"}
    decoded = decode({"apiVersion": API_VERSION, "kind": "Cluster", "metadata": metadata, "spec": spec})
    assert isinstance(decoded, Cluster)
    return decoded


def live(node_port: int | None = None, ingress: Spec | None = None) -> Spec:
    """A Service as Kubernetes has it."""
    port = {"port": 9094, **({"nodePort": node_port} if node_port else {})}
    return {"spec": {"ports": [port]}, "status": {"loadBalancer": {"ingress": [ingress] if ingress else []}}}


def advertised(wanted: Cluster, broker: int, service: Spec) -> Address | None:
    return advertised_address(wanted.spec.listeners[1], broker, service)


def test_a_service_in_front_of_all_brokers() -> None:
    wanted = cluster(bootstrap={"annotations": {"external-dns.example/hostname": "kafka.example.com"}})
    (service,) = bootstrap_services(wanted).values()
    assert service["metadata"]["name"] == "east-public-all"
    assert service["metadata"]["annotations"] == {"external-dns.example/hostname": "kafka.example.com"}
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert service["spec"] == {
        "type": "LoadBalancer",
        "selector": {"millstream.dev/cluster": "east", "app.kubernetes.io/component": "broker"},
        "ports": [{"name": "kafka", "port": 9094, "targetPort": "public"}],
    }
    (nodes,) = bootstrap_services(cluster(type="NodePort", bootstrap={"nodePort": 31000})).values()
    assert (nodes["spec"]["type"], nodes["spec"]["ports"][0]["nodePort"]) == ("NodePort", 31000)


def test_a_long_name_is_one_that_kubernetes_takes() -> None:
    (service,) = bootstrap_services(cluster("c" * 40, name="l" * 15)).values()
    assert len(service["metadata"]["name"]) <= 63


def test_it_does_not_take_the_name_of_another_clusters_bootstrap() -> None:
    (service,) = bootstrap_services(cluster("kafka", name="dev")).values()
    other = cluster("kafka-dev")
    own = [bootstrap_service(other), brokers_service(other), *broker_services(other, 3)]
    assert service["metadata"]["name"] not in [one["metadata"]["name"] for one in own]


def test_a_listener_that_does_not_allow_plain_text_gets_no_service_that_it_did_not_have() -> None:
    assert bootstrap_services(cluster(allowPlaintext=False)) == {}


def test_sources_annotations_and_traffic_policy_reach_every_service() -> None:
    wanted = cluster(
        loadBalancerSourceRanges=["192.0.2.0/24", "2001:db8::/32"],
        externalTrafficPolicy="Local",
        annotations={"external-dns.example/hostname": "broker-{broker}.example.com", "a": "b"},
    )
    services = external_services(wanted, 3)
    for manifest in (*services.values(), *bootstrap_services(wanted).values()):
        assert manifest["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24", "2001:db8::/32"]
        assert manifest["spec"]["externalTrafficPolicy"] == "Local"
    assert services["public", 2]["metadata"]["annotations"] == {
        "external-dns.example/hostname": "broker-2.example.com",
        "a": "b",
    }
    for manifest in external_services(cluster(), 1).values():
        assert manifest["spec"].keys() == {"type", "selector", "ports"}
        assert "annotations" not in manifest["metadata"]


EXCEPTION = [{"broker": 1, "advertisedHost": "other.example.com", "advertisedPort": 443}]


@pytest.mark.parametrize(
    ("listener", "service", "addresses"),
    [
        ({}, live(ingress={"ip": "192.0.2.7"}), [Address("192.0.2.7", 9094)] * 2),
        ({}, live(), [None, None]),
        (
            {"advertisedHost": "broker-{broker}.example.com"},
            live(),  # clients find it by its name: nothing to wait for
            [Address("broker-0.example.com", 9094), Address("broker-1.example.com", 9094)],
        ),
        (
            {"advertisedHost": "b{broker}.example.com", "brokers": EXCEPTION},
            live(ingress={"ip": "192.0.2.7"}),
            [Address("b0.example.com", 9094), Address("other.example.com", 443)],
        ),
        ({"type": "NodePort"}, live(30094), [Address(None, 30094)] * 2),
        ({"type": "NodePort", "advertisedHost": "nodes.example.com"}, live(), [None, None]),
        (
            {"type": "NodePort", "advertisedHost": "nodes.example.com"},
            live(30094),
            [Address("nodes.example.com", 30094)] * 2,
        ),
        (
            {"type": "NodePort", "advertisedPort": 443, "brokers": EXCEPTION},
            live(30094),
            [Address(None, 443), Address("other.example.com", 443)],
        ),
    ],
)
def test_what_brokers_advertise(listener: Spec, service: Spec, addresses: list[Address | None]) -> None:
    wanted = cluster(**listener)
    assert [advertised(wanted, broker, service) for broker in range(2)] == addresses


def test_an_overridden_address_is_in_the_brokers_own_file() -> None:
    wanted = cluster(advertisedHost="broker-{broker}.example.com")
    address = advertised(wanted, 2, live())
    assert address is not None
    listeners = own_config(wanted, 2, {("public", 2): address})["advertised.listeners"]
    assert listeners.endswith(",PUBLIC://broker-2.example.com:9094")


def test_ipv6_addresses_are_in_brackets() -> None:
    wanted = cluster(advertisedHost="fd00::7")
    address = advertised(wanted, 2, live())
    assert address is not None
    listeners = own_config(wanted, 2, {("public", 2): address})["advertised.listeners"]
    assert listeners.endswith(",PUBLIC://[fd00::7]:9094")
    assert bootstrap_addresses(wanted.spec.listeners[1], address, [], []) == "[fd00::7]:9094"
    node_port = cluster(type="NodePort").spec.listeners[1]
    assert bootstrap_addresses(node_port, Address(None, 31000), ["fd00::1"], []) == "[fd00::1]:31000"


def test_services_have_addresses_of_both_families_where_there_are_both() -> None:
    """A load balancer's provider may support one family only, so it keeps the cluster's default."""
    (of_nodes,) = bootstrap_services(cluster(type="NodePort")).values()
    assert of_nodes["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    (balanced,) = bootstrap_services(cluster()).values()
    assert "ipFamilyPolicy" not in balanced["spec"]


def test_two_brokers_cannot_advertise_one_address() -> None:
    one, other = Address("kafka.example.com", 9094), Address("kafka.example.com", 9095)
    assert shared_address({("a", 0): one, ("a", 1): other, ("b", 0): one}) is None
    assert shared_address({("a", 0): Address(None, 443), ("a", 1): Address(None, 443)}) is None
    words = shared_address({("a", 0): one, ("a", 1): other, ("a", 2): one})
    assert words is not None
    assert words.startswith("listener a: brokers 0 and 2 both advertise kafka.example.com:9094, so clients")


@pytest.mark.parametrize(
    ("listener", "found", "shown"),
    [
        ({}, None, "b-0:9094,b-1:9094"),
        ({}, Address("lb.example.com", 9094), "lb.example.com:9094"),
        ({"bootstrap": {"host": "kafka.example.com"}}, None, "kafka.example.com:9094"),
        ({"bootstrap": {"host": "kafka.example.com"}}, Address("192.0.2.7", 9094), "kafka.example.com:9094"),
        ({"type": "NodePort"}, Address(None, 31000), "10.0.0.1:31000,10.0.0.2:31000"),
        (
            {"type": "NodePort", "bootstrap": {"host": "kafka.example.com"}},
            Address(None, 31000),
            "kafka.example.com:31000",
        ),
        ({"type": "NodePort", "bootstrap": {"host": "kafka.example.com"}}, None, "b-0:9094,b-1:9094"),
    ],
)
def test_where_clients_connect_first(listener: Spec, found: Address | None, shown: str) -> None:
    wanted = cluster(**listener).spec.listeners[1]
    nodes, brokers = ["10.0.0.1", "10.0.0.2", "10.0.0.1"], ["b-0:9094", "b-1:9094"]
    assert bootstrap_addresses(wanted, found, nodes, brokers) == shown


@pytest.mark.parametrize(
    ("listener", "field"),
    [
        ({"advertisedHost": "kafka.example.com:9094"}, "advertisedHost"),
        ({"advertisedHost": "b\nlog.dirs=/"}, "advertisedHost"),
        ({"advertisedHost": "{node}.example.com"}, "advertisedHost"),
        ({"bootstrap": {"host": "{broker}.example.com"}}, "bootstrap.host"),
        ({"loadBalancerSourceRanges": ["anywhere"]}, "loadBalancerSourceRanges[0]"),
        ({"networkPolicyPeers": [{}]}, "networkPolicyPeers[0]"),
    ],
)
def test_bad_listeners(listener: Spec, field: str) -> None:
    with pytest.raises(ManifestError) as error:
        cluster(**listener)
    assert str(error.value).startswith(f"Cluster east: spec.listeners[1].{field}: ")
