"""Clusters on the real API server with a running operator; pods are scheduled only in e2e."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from millstream_harness.kube import Json, Namespace, run, until
from millstream_harness.manifests import cluster
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.operator import OperatorProcess
from millstream_operator.kubernetes.client import Kube, Manifest
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster import zookeeper_login
from millstream_operator.reconcile.cluster.ensemble import apply_ensemble
from millstream_operator.reconcile.cluster.objects import apply_brokers, live_brokers

pytestmark = pytest.mark.soak

OBJECTS = (
    ("statefulset", "default-brokers"),
    ("service", "default-brokers"),
    ("service", "default-bootstrap"),
    ("service", "default-broker0"),
    ("configmap", "default-brokers"),
    ("poddisruptionbudget", "default-brokers"),
)


@pytest.fixture
def namespace(watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(shared_operator: OperatorProcess) -> OperatorProcess:
    return shared_operator


def objects(namespace: Namespace) -> dict[str, Json]:
    return {f"{kind}/{name}": namespace.get(kind, name) for kind, name in OBJECTS}


def versions(namespace: Namespace) -> dict[str, str]:
    """Versions of objects that only the operator writes; a generation excludes the controller's reports."""
    return {
        name: str(found["metadata"].get("generation") or found["metadata"]["resourceVersion"])
        for name, found in objects(namespace).items()
    }


class CountingKube(Kube):
    """The API server, with a count of applied objects."""

    applied: tuple[str, ...] = ()

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Manifest:
        self.applied += (manifest["metadata"]["name"],)
        return super().apply(manifest, subresource)


def test_what_is_as_it_should_be_is_not_applied_again(new_namespace: Callable[[], Namespace]) -> None:
    namespace = new_namespace()  # without an operator
    pod = {"nodeSelector": {}, "containers": [{"name": "broker", "env": [{"name": "EMPTY", "value": ""}]}]}
    brokers = {"replicas": 3, "template": {"spec": pod}}
    namespace.apply({**cluster(), "spec": {"brokers": brokers, "zookeeper": {"replicas": 3}}})
    east = decode_as(Cluster, namespace.get("cluster", "default"))
    kube = CountingKube.connect()
    assert isinstance(kube, CountingKube)
    services = services_on_kubernetes(kube)
    warnings: list[str] = []
    for _ in range(2):
        live = live_brokers(services, east)
        secured = zookeeper_login.stage(services, east, live, lambda reason, words: warnings.append(words))
        apply_ensemble(services, secured, lambda reason, words: None)
        apply_brokers(services, secured, live, 3, {}, lambda reason, words: None)
    assert (kube.applied, warnings) == ((), [])  # it was created once
    config = namespace.get("configmap", "default-brokers")["data"]["server.properties"]
    assert "zookeeper.set.acl=true\n" in config


def test_its_objects_and_its_end(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster(config={"log.retention.hours": "3"}, brokers={"storage": {"size": "1Gi"}}))
    found = namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    assert found["status"]["bootstrap"] == f"default-bootstrap.{namespace.name}.svc:9092"
    assert found["status"]["brokers"] == {"desired": 1, "ready": 0}
    there = objects(namespace)
    assert "log.retention.hours=3\n" in there["configmap/default-brokers"]["data"]["server.properties"]
    assert all(one["metadata"]["ownerReferences"][0]["name"] == "default" for one in there.values())
    claim = until("the volume claim", lambda: namespace.list("pvc"))[0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"

    namespace.kubectl("delete", "cluster", "default")
    until(
        "its objects gone",
        lambda: not namespace.list("statefulset,service,configmap", "-l", "millstream.dev/cluster"),
    )
    assert [one["metadata"]["name"] for one in namespace.list("pvc")] == ["data-default-brokers-0"], (
        "Retain by default"
    )


def test_objects_of_others_are_left_alone(operator: OperatorProcess, namespace: Namespace) -> None:
    kinds = {"ConfigMap": "default-brokers", "Service": "default-bootstrap"}
    for kind, name in kinds.items():
        theirs: Json = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
        if kind == "Service":
            theirs["spec"] = {"ports": [{"port": 80}]}
        namespace.apply(theirs)
    before = {name: namespace.get(kind, name) for kind, name in kinds.items()}
    namespace.apply(cluster())
    found = namespace.wait_condition("cluster", "default", status="False", reason="ObjectNotOurs")
    assert found["status"]["conditions"][0]["message"] == (
        "Service default-bootstrap exists and does not belong to this Cluster: delete it, or give the Cluster another "
        "name; it was not changed"
    )
    namespace.kubectl("delete", "service", "default-bootstrap")
    until(
        "the next one is named",
        lambda: "ConfigMap default-brokers exists" in namespace.condition("cluster", "default")["message"],
    )
    assert namespace.get("configmap", "default-brokers") == before["default-brokers"]
    namespace.kubectl("delete", "cluster", "default")
    until("our objects gone", lambda: not namespace.list("service", "-l", "millstream.dev/cluster"))
    assert namespace.get("configmap", "default-brokers") == before["default-brokers"]


def test_volumes_go_with_it_when_the_policy_says_so(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi", "deletionPolicy": "Delete"}}))
    until("the volume claim", lambda: namespace.list("pvc"))
    namespace.kubectl("delete", "cluster", "default")
    until("the volume claim gone", lambda: not namespace.list("pvc"))


def test_changes_reach_the_brokers_and_nothing_else_is_written(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi"}}))
    namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    looked_at = f"Cluster {namespace.name}/default"
    before = versions(namespace)
    operator.stop()
    operator.start()
    operator.has_looked_at(looked_at)
    assert versions(namespace) == before

    namespace.apply(cluster(config={"log.retention.hours": "3"}, brokers={"storage": {"size": "1Gi"}}))
    until(
        "the new configuration",
        lambda: "log.retention.hours" in str(objects(namespace)["configmap/default-brokers"]),
    )
    operator.looks_at(looked_at)
    after = versions(namespace)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"configmap/default-brokers", "statefulset/default-brokers"}

    # what others delete comes back, what others add stays
    namespace.kubectl("annotate", "service", "default-bootstrap", "someone=else")
    namespace.kubectl("delete", "poddisruptionbudget", "default-brokers")
    until("the budget", lambda: namespace.kubectl("get", "pdb", "default-brokers", "--ignore-not-found"))
    assert namespace.get("service", "default-bootstrap")["metadata"]["annotations"]["someone"] == "else"


def test_what_it_refuses_changes_nothing(operator: OperatorProcess, namespace: Namespace) -> None:
    spec: Json = {"config": {"broker.id": "7"}, "brokers": {"storage": {"size": "1Gi"}}}
    reason = "InvalidConfig"
    namespace.apply(cluster(**spec))
    namespace.wait_condition("cluster", "default", status="False", reason=reason)
    assert not namespace.list("statefulset")
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi"}}))
    namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    before = versions(namespace)
    namespace.apply(cluster(**spec))
    found = namespace.wait_condition("cluster", "default", status="False", reason=reason)
    assert "nothing was changed" in found["status"]["conditions"][0]["message"]
    assert versions(namespace) == before


def test_volumes_grow(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi"}}))
    until(
        "the volume bound", lambda: [c for c in namespace.list("pvc") if c["status"].get("phase") == "Bound"]
    )
    namespace.apply(cluster(brokers={"storage": {"size": "2Gi"}}))
    until(
        "a bigger claim",
        lambda: namespace.list("pvc")[0]["spec"]["resources"]["requests"]["storage"] == "2Gi",
    )
    operator.looks_at(f"Cluster {namespace.name}/default")
    assert namespace.condition("cluster", "default")["reason"] == "BrokersStarting"


def test_a_node_port_listener_comes_and_goes(operator: OperatorProcess, namespace: Namespace) -> None:
    listeners = [
        {"name": "internal", "type": "Internal", "port": 9092},
        {"name": "external", "type": "NodePort", "port": 9094, "allowPlaintext": True},
    ]
    namespace.apply(cluster(listeners=listeners))
    namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    service = namespace.get("service", "default-external-0")
    port = service["spec"]["ports"][0]["nodePort"]
    data = namespace.get("configmap", "default-brokers")["data"]
    assert data["broker-0.properties"].endswith(f",EXTERNAL://${{env:HOST_IP}}:{port}\n")
    namespace.apply(cluster())
    until(
        "its Service gone",
        lambda: not namespace.kubectl("get", "service", "default-external-0", "--ignore-not-found"),
    )


def test_certificates_of_listeners_with_tls_stay_as_they_are(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    listeners = [
        {"name": "internal", "type": "Internal", "port": 9092, "tls": "Enabled"},
        {"name": "external", "type": "NodePort", "port": 9094, "tls": "Enabled"},
    ]
    namespace.apply(cluster(listeners=listeners))
    reason = {"type_": "CertificatesReady", "status": "True", "reason": "CertificatesCurrent"}
    namespace.wait_condition("cluster", "default", **reason)
    (inside,) = [
        one for one in namespace.get("cluster", "default")["status"]["listeners"] if one["name"] == "internal"
    ]
    assert (inside["protocol"], inside["caSecret"]) == ("SSL", "default-cluster-ca-cert")
    secrets = ("default-cluster-ca", "default-cluster-ca-cert", "default-brokers-tls")
    before = {name: namespace.get("secret", name)["metadata"] for name in secrets}
    assert {each["ownerReferences"][0]["kind"] for each in before.values()} == {"Cluster"}
    volumes = namespace.get("statefulset", "default-brokers")["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "default-brokers-tls", "defaultMode": 0o440} in [
        each.get("secret") for each in volumes
    ]
    operator.looks_at(f"Cluster {namespace.name}/default")
    for name in secrets:
        assert namespace.get("secret", name)["metadata"]["resourceVersion"] == before[name]["resourceVersion"]
    namespace.kubectl("delete", "secret", "default-cluster-ca-cert")
    operator.looks_at(f"Cluster {namespace.name}/default")
    assert namespace.get("secret", "default-cluster-ca-cert")["metadata"]["uid"] != before[secrets[1]]["uid"]
    stays = namespace.get("secret", "default-brokers-tls")["metadata"]
    assert stays["resourceVersion"] == before["default-brokers-tls"]["resourceVersion"]


def test_a_load_balancer_that_has_no_address_yet(operator: OperatorProcess, namespace: Namespace) -> None:
    listeners = [
        {"name": "internal", "type": "Internal", "port": 9092},
        {"name": "external", "type": "LoadBalancer", "port": 9094, "allowPlaintext": True},
    ]
    namespace.apply(cluster(listeners=listeners))
    namespace.wait_condition("cluster", "default", status="False", reason="ListenersPending")
    assert "external of broker 0" in namespace.condition("cluster", "default")["message"]
    ingress = {"status": {"loadBalancer": {"ingress": [{"hostname": "broker-0.example.com"}]}}}
    namespace.kubectl(
        "patch",
        "service",
        "default-external-0",
        "--subresource=status",
        "--type=merge",
        "--patch",
        json.dumps(ingress),
    )
    found = namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    address = "broker-0.example.com:9094"
    shown = {"name": "external", "protocol": "PLAINTEXT", "bootstrap": address, "addresses": [address]}
    assert found["status"]["listeners"] == [shown]
    data = namespace.get("configmap", "default-brokers")["data"]
    assert "EXTERNAL://broker-0.example.com:9094" in data["broker-0.properties"]


def test_the_services_of_an_external_listener_are_as_its_user_says(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    external = {
        "name": "external",
        "type": "LoadBalancer",
        "port": 9094,
        "allowPlaintext": True,
        "advertisedHost": "broker-{broker}.example.com",
        "bootstrap": {"host": "kafka.example.com"},
        "annotations": {"example.com/name": "broker-{broker}"},
        "loadBalancerSourceRanges": ["192.0.2.0/24"],
        "externalTrafficPolicy": "Local",
    }
    internal = {"name": "internal", "type": "Internal", "port": 9092}
    namespace.apply(cluster(listeners=[internal, external]))
    found = namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    shown = {"bootstrap": "kafka.example.com:9094", "addresses": ["broker-0.example.com:9094"]}
    assert found["status"]["listeners"] == [{"name": "external", "protocol": "PLAINTEXT", **shown}]
    for name in ("default-external-0", "default-external-all"):
        spec = namespace.get("service", name)["spec"]
        assert spec["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
        assert spec["externalTrafficPolicy"] == "Local"
    broker = namespace.get("service", "default-external-0")["metadata"]
    assert broker["annotations"]["example.com/name"] == "broker-0"
    del external["loadBalancerSourceRanges"], external["externalTrafficPolicy"]
    namespace.apply(cluster(listeners=[internal, external]))
    until(
        "what was taken out is gone",
        lambda: "loadBalancerSourceRanges" not in namespace.get("service", "default-external-all")["spec"],
    )
    assert namespace.get("service", "default-external-all")["spec"]["externalTrafficPolicy"] == "Cluster"


def test_network_policies_are_made_owned_kept_and_deleted(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    storage = {"storage": {"size": "1Gi"}}
    three = {"brokers": {"replicas": 3, **storage}, "zookeeper": {"replicas": 3}}
    namespace.apply(cluster(**three, networkPolicy={"enabled": True, "metricsPeers": [prometheus]}))
    namespace.wait_condition("cluster", "default", status="False", reason="ZooKeeperNotReady")
    uid = namespace.get("cluster", "default")["metadata"]["uid"]
    policies = {one["metadata"]["name"]: one for one in namespace.list("networkpolicy")}
    assert policies.keys() == {"default-brokers", "default-zookeeper"}
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == uid for one in policies.values())
    rules = policies["default-brokers"]["spec"]["ingress"]
    assert rules[-1] == {"ports": [{"port": 9404, "protocol": "TCP"}], "from": [prometheus]}
    # a deleted policy comes back
    namespace.kubectl("delete", "networkpolicy", "default-zookeeper")
    namespace.kubectl("annotate", "cluster", "default", "a=b")
    until("the policy is back", lambda: len(namespace.list("networkpolicy")) == 2)
    namespace.apply(cluster(**three))
    until("the policies are gone", lambda: not namespace.list("networkpolicy"))


def test_three_brokers_wait_for_a_zookeeper_that_is_not_there(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    brokers = {"replicas": 3, "storage": {"size": "1Gi"}}
    namespace.apply(cluster(brokers=brokers, zookeeper={"connect": "127.0.0.1:1/east"}))
    found = namespace.wait_condition("cluster", "default", status="False", reason="ZooKeeperNotReady")
    assert found["status"]["brokers"] == {"desired": 3, "ready": 0}
    message = namespace.condition("cluster", "default")["message"]
    assert message == "the brokers wait for ZooKeeper: no server answers at 127.0.0.1:1"
    assert namespace.get("statefulset", "default-brokers")["spec"]["replicas"] == 3
    data = namespace.get("configmap", "default-brokers")["data"]
    assert "zookeeper.connect=127.0.0.1:1/east\n" in data["server.properties"]
    assert sorted(data) == [*(f"broker-{n}.properties" for n in range(3)), "server.properties"]
    # no broker responds, so nobody knows the replicas on the leaving broker
    namespace.patch("cluster", "default", {"spec": {"brokers": {"replicas": 2}}})
    found = namespace.wait_condition("cluster", "default", "Rebalancing", reason="Draining")
    assert namespace.get("statefulset", "default-brokers")["spec"]["replicas"] == 3


def test_a_paused_cluster_is_left_alone(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi"}}))
    namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    before = versions(namespace)
    namespace.kubectl("annotate", "cluster", "default", "millstream.dev/paused=true")
    namespace.wait_condition("cluster", "default", "Paused", reason="ReconcilePaused")
    namespace.patch("cluster", "default", {"spec": {"config": {"log.retention.hours": "3"}}})
    namespace.wait_condition("cluster", "default", "Paused", reason="ReconcilePaused")
    assert versions(namespace) == before
    namespace.kubectl("annotate", "cluster", "default", "millstream.dev/paused-")
    until(
        "the change made",
        lambda: "log.retention.hours" in str(objects(namespace)["configmap/default-brokers"]),
    )
    until("no longer paused", lambda: not namespace.condition("cluster", "default", "Paused"))


def test_racks_come_from_the_nodes(operator: OperatorProcess, namespace: Namespace) -> None:
    rack = {"rack": {"topologyKey": "kubernetes.io/hostname"}}
    namespace.apply(cluster(brokers={"storage": {"size": "1Gi"}, **rack}))
    namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
    nodes = [
        one["metadata"]["name"] for one in json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]
    ]
    racks = namespace.get("configmap", "default-brokers")["data"]["racks.properties"]
    assert sorted(racks.splitlines()) == sorted(f"{name}={name}" for name in nodes)


RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


@contextlib.contextmanager
def restricted(namespace: Namespace, provisioner: str) -> Iterator[None]:
    """A restricted namespace with a Cluster whose storage class has this provisioner."""
    storage_class = f"class-{namespace.name}"
    manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": storage_class},
        "provisioner": provisioner,
    }
    namespace.patch("namespace", namespace.name, RESTRICTED)
    namespace.apply(manifest)
    try:
        namespace.apply(cluster(brokers={"storage": {"className": storage_class}}))
        yield
    finally:
        run("kubectl", "delete", "storageclass", storage_class)


def test_a_restricted_namespace_takes_the_pods(operator: OperatorProcess, namespace: Namespace) -> None:
    """As far as anybody knows, their volumes follow fsGroup; this Kubernetes' default volumes may not."""
    with restricted(namespace, "test.millstream.dev/disks"):
        until("a broker", lambda: len(namespace.list("pod", "-l", "app.kubernetes.io/component=broker")) == 1)


def test_a_cluster_says_what_kubernetes_has_against_its_pods(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    """The node's volumes belong to root, so an init container that runs as root changes their owner."""
    with restricted(namespace, "kubernetes.io/host-path"):
        found = namespace.wait_condition("cluster", "default", status="False", reason="PodsRefused")
        (ready,) = (one for one in found["status"]["conditions"] if one["type"] == "Ready")
        assert "Kubernetes refuses pod default-brokers-0:" in ready["message"]
        assert 'violates PodSecurity "restricted:latest"' in ready["message"]
        assert "operator.volumeOwnership=FsGroup" in ready["message"]
        namespace.patch(
            "namespace",
            namespace.name,
            {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
        )
        namespace.wait_condition("cluster", "default", status="False", reason="BrokersStarting")
