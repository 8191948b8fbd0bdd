"""A Cluster's objects brought to its spec: in which order, what is left alone, what is said."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import resource
from millstream_operator.conditions import Reason
from millstream_operator.kube import KubeError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster_objects import (
    apply_brokers,
    apply_ensemble,
    apply_listeners,
    listener_status,
    live_brokers,
    racks_by_node,
    ready_replicas,
    server_address,
    why_no_zookeeper,
)
from millstream_operator.resources.listeners import Address
from millstream_operator.resources.owned import labels, metadata
from millstream_operator.resources.volumes import VolumeOwnership

ENSEMBLE = {"brokers": {"replicas": 3}, "zookeeper": {"replicas": 3}}
LISTENERS = [
    {"name": "internal", "type": "Internal", "port": 9092},
    {"name": "public", "type": "LoadBalancer", "port": 9094},
]
Said = list[tuple[Reason, str]]


def a_cluster(**spec: Any) -> Cluster:
    return decode_as(Cluster, stored(resource("Cluster", "east", **spec)))


def stateful_set(name: str, claim: str = "1Gi", **status: Any) -> dict[str, Any]:
    template = {"spec": {"resources": {"requests": {"storage": claim}}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(a_cluster(), name),
        "spec": {"volumeClaimTemplates": [template]},
        **({"status": status} if status else {}),
    }


def claim(name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def sizes(found: InMemory) -> dict[str, str]:
    """The volumes that were made bigger."""
    return {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"]
        for one in found.kube.applied
        if one["kind"] == "PersistentVolumeClaim"
    }


def brokers(
    found: InMemory, cluster: Cluster, replicas: int = 1, **more: Any
) -> tuple[Mapping[str, Any], Said]:
    said: Said = []
    live = live_brokers(found.services, cluster)
    made = apply_brokers(
        found.services,
        cluster,
        live,
        replicas,
        {},
        lambda reason, words: said.append((reason, words)),
        **more,
    )
    return made, said


def ensemble(found: InMemory, cluster: Cluster) -> Said:
    said: Said = []
    apply_ensemble(found.services, cluster, lambda reason, words: said.append((reason, words)))
    return said


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (None, 0),
        (stateful_set("x"), 0),
        ({**stateful_set("x"), "status": None}, 0),
        (stateful_set("x", replicas=3), 0),
        (stateful_set("x", replicas=3, readyReplicas=2), 2),
    ],
)
def test_brokers_that_serve(live: dict[str, Any] | None, ready: int) -> None:
    assert ready_replicas(live) == ready


def test_brokers_find_their_configuration_when_they_start() -> None:
    found = in_memory()
    made, said = brokers(found, a_cluster(), 2)
    assert [one["kind"] for one in found.kube.applied] == ["ConfigMap", "PodDisruptionBudget", "StatefulSet"]
    assert (made["metadata"]["name"], made["spec"]["replicas"], said) == ("east-brokers", 2, [])
    assert sorted(found.kube.objects["ConfigMap", "east-brokers"]["data"]) == [
        "broker-0.properties",
        "broker-1.properties",
        "server.properties",
    ]


def claimed(manifest: Mapping[str, Any]) -> str:
    """The size in a StatefulSet's claim template."""
    size: str = manifest["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    return size


def test_a_claim_template_keeps_its_size() -> None:
    cluster = a_cluster(brokers={"storage": {"size": "20Gi"}})
    assert claimed(brokers(in_memory(), cluster)[0]) == "20Gi"
    assert claimed(brokers(in_memory(stateful_set("east-brokers", "10Gi")), cluster)[0]) == "10Gi"


def test_volumes_grow_and_never_shrink() -> None:
    volumes = {"data-east-brokers-0": "1Gi", "data-east-brokers-1": "2048Mi", "data-east-brokers-2": "3Gi"}
    found = in_memory(*(claim(name, size) for name, size in volumes.items()))
    _, said = brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}), 4)
    assert (sizes(found), said) == ({"data-east-brokers-0": "2Gi"}, [])


@pytest.mark.parametrize("status", [403, 422])
def test_a_volume_whose_class_does_not_let_it_grow_is_a_warning(status: int) -> None:
    found = in_memory(claim("data-east-brokers-0", "1Gi"))
    found.kube.refused["PersistentVolumeClaim"] = KubeError(
        status, "Forbidden", "only dynamic claims can grow"
    )
    _, said = brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}))
    words = "volume data-east-brokers-0 cannot grow to 2Gi: only dynamic claims can grow"
    assert said == [(Reason.VOLUME_NOT_RESIZED, words)]


def test_another_error_of_a_volume_is_no_warning() -> None:
    found = in_memory(claim("data-east-brokers-0", "1Gi"))
    found.kube.refused["PersistentVolumeClaim"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}))


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name, **({"labels": labels} if labels else {})}}


def test_nodes_have_the_racks_that_their_labels_say() -> None:
    found = in_memory(node("a", zone="east"), node("b", other="x"), node("c"))
    cluster = a_cluster(brokers={"rack": {"topologyKey": "zone"}})
    assert racks_by_node(found.services, cluster) == {"a": "east", "b": "", "c": ""}
    made, said = brokers(found, cluster)
    assert made["spec"]["template"]["spec"]["containers"][0]["args"][-1].startswith("broker.rack=")
    assert said == []


def test_without_a_rack_in_the_spec_nodes_are_not_looked_at() -> None:
    found = in_memory()
    found.kube.refused["Node"] = KubeError(500, "", "must not be asked")
    assert racks_by_node(found.services, a_cluster()) is None
    made, said = brokers(found, a_cluster())
    assert "broker.rack" not in str(made["spec"]["template"]["spec"]["containers"][0]["args"])
    assert said == []


def test_an_operator_that_may_not_look_at_nodes_says_so() -> None:
    found = in_memory()
    found.kube.refused["Node"] = KubeError(403, "Forbidden", "no")
    cluster = a_cluster(brokers={"rack": {}})
    _, said = brokers(found, cluster)
    words = "spec.brokers.rack: the operator may not look at nodes: brokers have no rack"
    assert said == [(Reason.RACKS_UNKNOWN, words)]
    found.kube.refused["Node"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        racks_by_node(found.services, cluster)


@pytest.mark.parametrize("zookeeper", [None, {"connect": "zk:2181"}])
def test_zookeeper_servers_of_others_are_left_alone(zookeeper: dict[str, Any] | None) -> None:
    found = in_memory()
    assert ensemble(found, a_cluster(zookeeper=zookeeper)) == []
    assert found.kube.applied == []


def test_an_ensemble_comes_with_its_service() -> None:
    found = in_memory()
    ensemble(found, a_cluster(**ENSEMBLE))
    assert [one["kind"] for one in found.kube.applied] == ["Service", "PodDisruptionBudget", "StatefulSet"]
    assert found.kube.objects["StatefulSet", "east-zookeeper"]["spec"]["replicas"] == 3


def test_an_ensembles_volumes_grow_too() -> None:
    names = [f"data-east-zookeeper-{server}" for server in range(5)]
    found = in_memory(stateful_set("east-zookeeper", "1Gi"), *(claim(name, "1Gi") for name in names))
    ensemble(found, a_cluster(**ENSEMBLE | {"zookeeper": {"replicas": 3, "storage": {"size": "2Gi"}}}))
    assert sizes(found) == dict.fromkeys(names[1:4], "2Gi")  # its servers are counted from 1
    assert claimed(found.kube.objects["StatefulSet", "east-zookeeper"]) == "1Gi"


@pytest.mark.parametrize("how", [VolumeOwnership.INIT_CONTAINER, VolumeOwnership.FS_GROUP])
def test_volumes_get_an_owner_where_they_need_one(how: VolumeOwnership) -> None:
    found = in_memory()
    owning = dataclasses.replace(found.services, volume_ownership=how)
    apply_ensemble(owning, a_cluster(**ENSEMBLE), lambda *_: None)
    made = apply_brokers(owning, a_cluster(**ENSEMBLE), None, 1, {}, lambda *_: None)
    for manifest in (made, found.kube.objects["StatefulSet", "east-zookeeper"]):
        names = [one["name"] for one in manifest["spec"]["template"]["spec"].get("initContainers", ())]
        assert ("volume-owner" in names) is (how is VolumeOwnership.INIT_CONTAINER)


@pytest.mark.parametrize(
    ("servers", "ready", "waits"),
    [
        (1, 0, "0 of 1 servers are ready, and 1 are needed"),
        (1, 1, None),
        (3, 1, "1 of 3 servers are ready, and 2 are needed"),
        (3, 2, None),
    ],
)
def test_brokers_wait_for_a_majority_of_their_zookeeper(servers: int, ready: int, waits: str | None) -> None:
    found = in_memory(stateful_set("east-zookeeper", readyReplicas=ready))
    problem = why_no_zookeeper(found.services, a_cluster(zookeeper={"replicas": servers}))
    if waits is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem.reason is Reason.ZOOKEEPER_NOT_READY
        assert problem.message == f"the brokers wait for ZooKeeper: {waits}"


def test_a_broker_without_zookeeper_does_not_wait_for_it() -> None:
    assert why_no_zookeeper(in_memory().services, a_cluster()) is None


def test_one_server_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    cluster = a_cluster(zookeeper={"connect": f"{gone},nonsense:port/east"})
    problem = why_no_zookeeper(in_memory().services, cluster)
    assert problem is not None
    assert problem.message.endswith(f"no server answers at {gone},nonsense:port")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = a_cluster(zookeeper={"connect": f"{gone}, {there}/east"})
        assert why_no_zookeeper(in_memory().services, cluster) is None


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("zk", ("zk", 2181)),
        ("zk:2182", ("zk", 2182)),
        (" zk.ns.svc:2181 ", ("zk.ns.svc", 2181)),
        ("[::1]:2181", ("::1", 2181)),
    ],
)
def test_a_server_of_zookeeper_is_a_host_and_maybe_a_port(server: str, address: tuple[str, int]) -> None:
    assert server_address(server) == address


def balancer(name: str, ip: str) -> dict[str, Any]:
    """A Service whose provider has given it an address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(a_cluster(), name),
        "status": {"loadBalancer": {"ingress": [{"ip": ip}]}},
    }


def test_each_broker_has_a_service_for_each_external_listener() -> None:
    found = in_memory(balancer("east-public-0", "192.0.2.7"))
    addresses = apply_listeners(found.services, a_cluster(listeners=LISTENERS), 2)
    assert addresses == {("public", 0): Address("192.0.2.7", 9094), ("public", 1): None}
    assert found.kube.applied_names("Service") == [
        "east-brokers",
        "east-bootstrap",
        "east-public-0",
        "east-public-1",
    ]
    assert found.kube.deleted == []


def test_services_that_are_no_longer_wanted_go_and_others_stay() -> None:
    cluster = a_cluster()
    own = metadata(cluster, "east-public-0")
    foreign = {**own, "name": "foreign", "ownerReferences": [{"uid": "someone-else"}]}
    nobodys = {"name": "nobodys", "namespace": "ns", "labels": labels(cluster)}
    found = in_memory(
        *({"apiVersion": "v1", "kind": "Service", "metadata": one} for one in (own, foreign, nobodys))
    )
    apply_listeners(found.services, cluster, 1)
    assert found.kube.deleted == [("Service", "east-public-0")]
    assert {name for kind, name in found.kube.objects if kind == "Service"} == {
        "east-brokers",
        "east-bootstrap",
        "foreign",
        "nobodys",
    }


def test_the_status_has_the_address_of_each_broker_that_stays() -> None:
    addresses = {
        ("public", broker): Address(None if broker == 1 else f"lb-{broker}", 9094) for broker in range(4)
    }
    (public,) = listener_status(addresses, {}, 3)
    assert public.bootstrap == "lb-0:9094,lb-2:9094"  # the host of broker 1 is not known yet
    (public,) = listener_status(addresses, {1: "10.0.0.7"}, 3)
    assert public.bootstrap == "lb-0:9094,10.0.0.7:9094,lb-2:9094"
