"""A Cluster's objects brought to its spec: in which order, what is left alone, what is said."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import resource
from millstream_operator.conditions import Reason
from millstream_operator.kube import KubeError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster import Outside, is_settled, listener_status, ready_replicas
from millstream_operator.reconcile.cluster_objects import (
    apply_brokers,
    apply_ensemble,
    apply_listeners,
    apply_network_policies,
    live_brokers,
    racks_by_node,
    server_address,
    updates_ensemble,
    why_no_zookeeper,
)
from millstream_operator.resources.images import Images
from millstream_operator.resources.listeners import Address
from millstream_operator.resources.owned import labels, metadata
from millstream_operator.resources.volumes import VolumeOwnership

ENSEMBLE = {"brokers": {"replicas": 3}, "zookeeper": {"replicas": 3}}
LISTENERS = [
    {"name": "internal", "type": "Internal", "port": 9092},
    {"name": "public", "type": "LoadBalancer", "port": 9094, "allowPlaintext": True},
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
    """As the StatefulSet made it."""
    component = "zookeeper" if "zookeeper" in name else "broker"
    labels = {"millstream.dev/cluster": "east", "app.kubernetes.io/component": component}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": name, "labels": labels},
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


@pytest.mark.parametrize("labels", [{}, {"millstream.dev/cluster": "west"}])
def test_a_volume_claim_of_somebody_else_is_not_changed(labels: dict[str, str]) -> None:
    foreign = claim("data-east-brokers-0", "1Gi")
    foreign["metadata"]["labels"] = labels
    found = in_memory(foreign)
    _, said = brokers(found, a_cluster(brokers={"storage": {"size": "2Gi"}}))
    assert sizes(found) == {}
    assert said[0][0] is Reason.OBJECT_NOT_OURS
    assert said[0][1].startswith(
        "PersistentVolumeClaim data-east-brokers-0 is not ours, so it is not grown to 2Gi: "
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


def test_an_ensemble_comes_after_its_services() -> None:
    found = in_memory()
    ensemble(found, a_cluster(**ENSEMBLE))
    made = [(one["kind"], one["metadata"]["name"]) for one in found.kube.applied]
    names = ["east-zookeeper", "east-zookeeper1", "east-zookeeper2", "east-zookeeper3"]
    others = [("PodDisruptionBudget", "east-zookeeper"), ("StatefulSet", "east-zookeeper")]
    assert made == [*(("Service", name) for name in names), *others]
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


@pytest.mark.parametrize(
    ("seen", "status", "waits"),
    [
        (2, {"currentRevision": "a", "updateRevision": "a", "updatedReplicas": 3}, ""),
        (
            2,  # a change that was taken back while one server was new
            {"currentRevision": "a", "updateRevision": "a", "updatedReplicas": 2},
            "2 of 3 servers are restarted",
        ),
        (
            2,
            {"currentRevision": "a", "updateRevision": "b", "updatedReplicas": 1},
            "1 of 3 servers are restarted",
        ),
        (2, {"currentRevision": "a", "updateRevision": "b"}, "0 of 3 servers are restarted"),
        (
            1,
            {"currentRevision": "a", "updateRevision": "a", "updatedReplicas": 3},
            "0 of 3 servers are restarted",
        ),
    ],
)
def test_a_roll_waits_while_kubernetes_updates_zookeeper(
    seen: int, status: dict[str, Any], waits: str
) -> None:
    servers = stateful_set("east-zookeeper", observedGeneration=seen, **status)
    servers["metadata"]["generation"] = 2
    said = updates_ensemble(in_memory(servers).services, a_cluster(**ENSEMBLE))
    assert said == (f"waiting for ZooKeeper: {waits}" if waits else "")


@pytest.mark.parametrize("spec", [{}, {"zookeeper": {"connect": "zk:2181"}}, ENSEMBLE])
def test_a_roll_waits_for_no_zookeeper_that_is_not_there_or_not_ours(spec: dict[str, Any]) -> None:
    assert updates_ensemble(in_memory().services, a_cluster(**spec)) == ""


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
    found.kube.create(policy)  # by nobody, so that a look would show
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


def test_servers_of_an_earlier_release_wait_for_their_upgrade() -> None:
    found, cluster = in_memory(), a_cluster(**ENSEMBLE)

    def image() -> str:
        live = found.kube.objects["StatefulSet", f"{cluster.name}-zookeeper"]
        return str(live["spec"]["template"]["spec"]["containers"][0]["image"])

    apply_ensemble(found.services, cluster, lambda *_: None)
    before = image()
    live = f"{cluster.name}-zookeeper"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 2}
    newer = dataclasses.replace(found.services, images=Images(zookeeper="zookeeper:later"))
    asked: list[bool] = []

    def may(answer: bool) -> bool:
        asked.append(answer)
        return answer

    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(True))
    assert (image(), asked) == (before, []), "one is down, and a restart of another would cost the quorum"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 3}
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(False))
    assert image() == before
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(True))
    assert image() == "zookeeper:later"
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(False))
    assert asked == [False, True], "what is done is not asked for again"


def test_servers_without_a_quorum_wait_for_nothing() -> None:
    """As when their image was not there: nobody could upgrade a Cluster that waits for its brokers."""
    found, cluster = in_memory(), a_cluster(**ENSEMBLE)
    apply_ensemble(found.services, cluster, lambda *_: None)
    live = f"{cluster.name}-zookeeper"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 1}
    newer = dataclasses.replace(found.services, images=Images(zookeeper="zookeeper:later"))
    apply_ensemble(newer, cluster, lambda *_: None, lambda: False)
    template = found.kube.objects["StatefulSet", live]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "zookeeper:later"


def test_an_ensemble_is_settled_when_all_its_servers_are_the_new_ones() -> None:
    live: dict[str, Any] = {"metadata": {"generation": 2}, "spec": {"replicas": 3}}
    done = {"observedGeneration": 2, "updatedReplicas": 3, "readyReplicas": 3}
    assert is_settled({**live, "status": done})
    for key in done:
        assert not is_settled({**live, "status": {**done, key: 1}})
    assert not is_settled(live)
