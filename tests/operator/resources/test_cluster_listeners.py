"""The listeners of a Cluster: their configuration, services and addresses."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.cluster_specs import (
    EXTERNAL,
    INTERNAL,
    THREE,
    cluster,
    container,
    pod_annotations,
    stateful_set,
)
from millstream_operator.models import ManifestError
from millstream_operator.reconcile.cluster.plan import refusal
from millstream_operator.reconcile.cluster.rolling import restart_reasons
from millstream_operator.resources import cluster as build
from millstream_operator.resources.broker_config import (
    broker_config,
    listeners_hash,
    user_hash,
)
from millstream_operator.resources.listeners import (
    Address,
    address_of,
    broker_services,
    external_services,
)
from millstream_operator.resources.network_policy import network_policies
from millstream_operator.resources.owned import RELEASE

LOGIN = {"type": "ScramSha512"}
INSIDE = {"name": "inside", "type": "Internal", "port": 9092}
APPS = {"name": "my-apps", "type": "NodePort", "port": 9094, "allowPlaintext": True}


def test_listener_with_authentication_and_access_rules() -> None:
    plain = cluster(listeners=[INSIDE, APPS])
    secured = cluster(
        listeners=[INSIDE, {**APPS, "authentication": LOGIN}],
        authorization={"type": "Simple", "superUsers": ["a", "b"]},
    )
    before, after = broker_config(plain), broker_config(secured)
    assert {key: value for key, value in after.items() if before.get(key) != value} == {
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,MY_APPS:SASL_PLAINTEXT,REPLICATION-9091:PLAINTEXT",
        "listener.name.my_apps.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:a;User:b",
    }
    assert before.keys() <= after.keys()
    assert listeners_hash(plain) != listeners_hash(secured)
    assert user_hash(plain) != user_hash(secured), "the change does not wait as an upgrade does"
    twice = cluster(authorization={"type": "Simple"}, config={"super.users": "User:me"})
    assert (problem := refusal(twice)) is not None
    assert "spec.config[super.users]: not allowed with spec.authorization" in problem.message
    assert refusal(cluster(config={"super.users": "User:me"})) is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"listeners": [INSIDE, APPS], "authorization": {"type": "Simple"}},
            "authorization: needs authentication in every external listener",
        ),
        ({"authorization": {"type": "Simple", "superUsers": ["a;b"]}}, "spec.authorization.superUsers[0]"),
    ],
)
def test_half_of_a_secured_listener_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as raised:
        cluster(**spec)
    assert said in str(raised.value)


def test_only_the_broker_whose_address_changed_restarts() -> None:
    wanted = cluster(**THREE, listeners=[INTERNAL, EXTERNAL])
    before = {("out-side", broker): Address(None, 30094 + broker) for broker in range(3)}
    after = {**before, ("out-side", 1): Address(None, 31000), ("out-side", 3): Address(None, 30097)}
    made, now = (
        pod_annotations(wanted, addresses=before),
        pod_annotations(wanted, addresses=after, replicas=4),
    )
    assert [restart_reasons(broker, made, now) for broker in range(3)] == [(), ("AddressChanged",), ()]


def test_a_broker_has_an_address_that_outlives_its_pods() -> None:
    services = broker_services(cluster(**THREE, listeners=[{**INTERNAL, "port": 9095}]), 2)
    assert [one["metadata"]["name"] for one in services] == ["east-broker0", "east-broker1"]
    assert services[1]["spec"] == {
        "ipFamilyPolicy": "PreferDualStack",
        "type": "ClusterIP",
        "selector": {
            "millstream.dev/cluster": "east",
            "app.kubernetes.io/component": "broker",
            "statefulset.kubernetes.io/pod-name": "east-brokers-1",
        },
        "publishNotReadyAddresses": True,
        "ports": [{"name": "kafka", "port": 9095, "targetPort": 9095}],
    }
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == "u-1" for one in services)


@pytest.mark.parametrize("name", ["broker", "broker0", "brokers", "replication", "a-9091"])
def test_no_external_listener_takes_the_place_of_what_is_inside(name: str) -> None:
    wanted = cluster(**THREE, listeners=[INTERNAL, {**EXTERNAL, "name": name}])
    inside = [build.brokers_service(wanted), build.bootstrap_service(wanted), *broker_services(wanted, 30)]
    outside = external_services(wanted, 30).values()
    names = [one["metadata"]["name"] for one in (*inside, *outside)]
    assert len(set(names)) == len(names)
    listeners = [one.partition("://")[0] for one in broker_config(wanted)["listeners"].split(",")]
    assert len(set(listeners)) == 3
    ports = [one["name"] for one in container(stateful_set(wanted))["ports"]]
    assert len(set(ports)) == 4


@pytest.mark.parametrize(
    ("listeners", "listeners_hash"),
    [([], "297f30fd29575ed5"), ([INTERNAL, EXTERNAL], "2255ae89371356ae")],
)
def test_brokers_of_before_they_had_a_listener_of_their_own_are_upgraded(
    listeners: list[dict[str, Any]], listeners_hash: str
) -> None:
    """Their restart counts as an upgrade, which waits for its turn and window. The hashes are the older operator's."""
    now = pod_annotations(cluster(listeners=listeners), release="2")
    before = {**now, build.LISTENERS_HASH: listeners_hash, build.TEMPLATE_HASH: "old", RELEASE: "1"}
    assert restart_reasons(0, before, now) == ("Upgrade",)
    ports = container(stateful_set(cluster(listeners=listeners)))["ports"]
    assert 9091 in [port["containerPort"] for port in ports], "what makes it another template"


def test_the_brokers_own_listener_steps_aside_for_one_that_has_its_port() -> None:
    """An Internal listener's port cannot change: a Cluster from before 9091 was reserved keeps it."""
    wanted = cluster(**THREE, listeners=[{**INTERNAL, "port": 9091}, {**EXTERNAL, "port": 9090}])
    listeners = "INTERNAL://:9091,OUT_SIDE://:9090,REPLICATION-9091://:9089"
    assert broker_config(wanted)["listeners"] == listeners
    own = build.config_map(wanted, 1, {("out-side", 0): Address(None, 30094)}, None)["data"]
    assert "=REPLICATION-9091://${env:POD_IP}:9089,INTERNAL://" in own["broker-0.properties"]
    ports = {port["name"]: port["containerPort"] for port in container(stateful_set(wanted))["ports"]}
    assert ports["9091-brokers"] == 9089
    (policy, _) = network_policies(wanted, None)
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 9089}]


def test_an_external_listener_has_a_service_for_each_broker() -> None:
    wanted = cluster(**THREE, listeners=[INTERNAL, EXTERNAL])
    services = external_services(wanted, 3)
    assert list(services) == [("out-side", broker) for broker in range(3)]
    service = services["out-side", 2]
    assert service["metadata"]["name"] == "east-out-side-2"
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "east-brokers-2"
    assert service["spec"]["ports"] == [
        {"name": "kafka", "port": 9094, "targetPort": "out-side", "nodePort": 30096}
    ]
    assert broker_config(wanted)["listeners"] == (
        "INTERNAL://:9092,OUT_SIDE://:9094,REPLICATION-9091://:9091"
    )


@pytest.mark.parametrize(
    ("type_", "status", "address"),
    [
        ("NodePort", {}, Address(None, 30094)),
        ("LoadBalancer", {}, None),
        ("LoadBalancer", {"loadBalancer": {"ingress": []}}, None),
        ("LoadBalancer", {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}, Address("192.0.2.7", 9094)),
        (
            "LoadBalancer",
            {"loadBalancer": {"ingress": [{"hostname": "b.example.com", "ip": "192.0.2.7"}]}},
            Address("b.example.com", 9094),
        ),
    ],
)
def test_the_address_of_a_service(type_: str, status: dict[str, Any], address: Address | None) -> None:
    live = {"spec": {"ports": [{"port": 9094, "nodePort": 30094}]}, "status": status}
    assert address_of(type_, live) == address
