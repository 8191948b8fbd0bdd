"""A Cluster's objects are brought to its spec: order, foreign objects, and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from millstream_harness.cluster_objects import ENSEMBLE, a_cluster, claim, claimed, sizes, stateful_set
from millstream_harness.in_memory import InMemory, in_memory
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import Cluster
from millstream_operator.models.conditions import Reason
from millstream_operator.reconcile.cluster.ensemble import apply_ensemble
from millstream_operator.reconcile.cluster.objects import (
    apply_brokers,
    apply_listeners,
    apply_network_policies,
    live_brokers,
    racks_by_node,
)
from millstream_operator.reconcile.cluster.plan import Outside, is_settled, listener_status, ready_replicas
from millstream_operator.resources.listeners import Address
from millstream_operator.resources.owned import labels, metadata
from millstream_operator.resources.volumes import VolumeOwnership

pytestmark = pytest.mark.process

LISTENERS = [
    {"name": "internal", "type": "Internal", "port": 9092},
    {"name": "public", "type": "LoadBalancer", "port": 9094, "allowPlaintext": True},
]
Said = list[tuple[Reason, str]]


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
    found.kube.refused_writes["PersistentVolumeClaim"] = KubeError(
        status, "Forbidden", "only dynamic claims can grow"
    )
    _, said = brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}))
    words = "volume data-east-brokers-0 cannot grow to 2Gi: only dynamic claims can grow"
    assert said == [(Reason.VOLUME_NOT_RESIZED, words)]


@pytest.mark.parametrize("labels", [{}, {"millstream.dev/cluster": "west"}])
def test_a_volume_claim_of_somebody_else_is_not_changed(labels: dict[str, str]) -> None:
    foreign = claim("data-east-brokers-0", "1Gi")
    foreign["metadata"]["labels"] = labels
    found = in_memory(foreign)
    _, said = brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}))
    assert sizes(found) == {}
    assert said[0][0] is Reason.OBJECT_NOT_OURS
    assert said[0][1].startswith(
        "PersistentVolumeClaim data-east-brokers-0 does not belong to the operator, so it is not enlarged to 2Gi: "
    )


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
    args = made["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [arg for arg in args if arg.startswith("broker.rack=")]
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
    words = "spec.brokers.rack: the operator has no right to read nodes: brokers have no rack"
    assert said == [(Reason.RACKS_UNKNOWN, words)]
    found.kube.refused["Node"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        racks_by_node(found.services, cluster)


@pytest.mark.parametrize("how", [VolumeOwnership.INIT_CONTAINER, VolumeOwnership.FS_GROUP])
def test_volumes_get_an_owner_where_they_need_one(how: VolumeOwnership) -> None:
    found = in_memory()
    owning = dataclasses.replace(found.services, volume_ownership=how)
    apply_ensemble(owning, a_cluster(**ENSEMBLE), lambda *_: None)
    made = apply_brokers(owning, a_cluster(**ENSEMBLE), None, 1, {}, lambda *_: None)
    for manifest in (made, found.kube.objects["StatefulSet", "east-zookeeper"]):
        names = [one["name"] for one in manifest["spec"]["template"]["spec"].get("initContainers", ())]
        assert ("volume-owner" in names) is (how is VolumeOwnership.INIT_CONTAINER)


def balancer(name: str, ip: str) -> dict[str, Any]:
    """A Service with an address from its provider."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(a_cluster(), name),
        "status": {"loadBalancer": {"ingress": [{"ip": ip}]}},
    }


def test_each_broker_has_a_service_for_each_external_listener() -> None:
    found = in_memory(balancer("east-public-0", "192.0.2.7"))
    outside = apply_listeners(found.services, a_cluster(listeners=LISTENERS), 2)
    assert outside.brokers == {("public", 0): Address("192.0.2.7", 9094), ("public", 1): None}
    assert outside.known == {("public", 0): Address("192.0.2.7", 9094)}
    assert outside.bootstraps == {"public": None}
    assert found.kube.applied_names("Service") == [
        "east-brokers",
        "east-bootstrap",
        "east-broker0",
        "east-broker1",
        "east-public-0",
        "east-public-1",
        "east-public-all",
    ]
    assert found.kube.deleted == []


def test_a_listener_of_before_plain_text_was_asked_for_is_reached_at_its_brokers() -> None:
    (internal, public) = LISTENERS
    old = [internal, {key: value for key, value in public.items() if key != "allowPlaintext"}]
    found = in_memory(balancer("east-public-0", "192.0.2.7"))
    outside = apply_listeners(found.services, a_cluster(listeners=old), 1)
    assert found.kube.applied_names("Service")[-1] == "east-public-0"
    (public,) = listener_status(a_cluster(listeners=old), outside, {})
    assert public.bootstrap == "192.0.2.7:9094"


def test_policies_that_are_not_wanted_are_looked_for_once_and_again_when_the_cluster_changes() -> None:
    cluster = a_cluster()
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, "east-brokers"),
    }
    found = in_memory(policy)
    services = found.services

    def is_there_after_a_look(cluster: Cluster) -> bool:
        apply_network_policies(services, cluster)
        return ("NetworkPolicy", "east-brokers") in found.kube.objects

    assert not is_there_after_a_look(cluster)
    found.kube.create(policy)  # unnoticed, so that only a reconcile of the objects would show it
    assert is_there_after_a_look(cluster)
    changed = structs.replace(cluster, metadata=structs.replace(cluster.metadata, generation=7))
    assert not is_there_after_a_look(changed)
    found.kube.create(policy)
    services.forget_brokers(services.address_of(cluster))
    assert not is_there_after_a_look(changed)


def test_services_that_are_no_longer_wanted_go_and_others_stay() -> None:
    cluster = a_cluster()
    own = metadata(cluster, "east-public-0")
    drained = metadata(cluster, "east-broker1")
    foreign = {**own, "name": "foreign", "ownerReferences": [{"uid": "someone-else"}]}
    nobodys = {"name": "nobodys", "namespace": "ns", "labels": labels(cluster)}
    found = in_memory(
        *(
            {"apiVersion": "v1", "kind": "Service", "metadata": one}
            for one in (own, drained, foreign, nobodys)
        )
    )
    apply_listeners(found.services, cluster, 1)
    assert sorted(found.kube.deleted) == [("Service", "east-broker1"), ("Service", "east-public-0")]
    assert {name for kind, name in found.kube.objects if kind == "Service"} == {
        "east-brokers",
        "east-bootstrap",
        "east-broker0",
        "foreign",
        "nobodys",
    }


def test_the_status_has_the_address_of_each_broker_that_stays() -> None:
    addresses = {
        ("public", broker): Address(None if broker == 1 else f"lb-{broker}", 9094) for broker in range(4)
    }
    east = a_cluster(listeners=LISTENERS, brokers={"replicas": 3}, zookeeper={"replicas": 3})
    (public,) = listener_status(east, Outside(addresses, {"public": None}), {})
    assert public.addresses == ("lb-0:9094", "lb-2:9094")  # the host of broker 1 is not known yet
    assert public.bootstrap == "lb-0:9094,lb-2:9094", "the brokers do as well, until there is one for all"
    (public,) = listener_status(east, Outside(addresses, {"public": Address("lb", 9094)}), {1: "10.0.0.7"})
    assert public.addresses == ("lb-0:9094", "10.0.0.7:9094", "lb-2:9094")
    assert public.bootstrap == "lb:9094"


def test_an_ensemble_is_settled_when_all_its_servers_are_the_new_ones() -> None:
    live: dict[str, Any] = {"metadata": {"generation": 2}, "spec": {"replicas": 3}}
    done = {"observedGeneration": 2, "updatedReplicas": 3, "readyReplicas": 3}
    assert is_settled({**live, "status": done})
    for key in done:
        assert not is_settled({**live, "status": {**done, key: 1}})
    assert not is_settled(live)
