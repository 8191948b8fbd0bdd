"""Workloads of ConsumerGroups: the Deployment, its owner, and the resource's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, group
from millstream_operator.kafka.records import AdminError, GroupState, Partition, Refusal, TopicIdentity
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.resources.images import Images
from millstream_operator.resources.workload import deployment, selector
from millstream_operator.state.status import FINALIZER

CLUSTER = stored(cluster("default"))
A0 = Partition("a", 0)
DEPLOYMENT = ("Deployment", "watch-consumers")


def workload(*containers: dict[str, Any], replicas: int | None = None, **spec: Any) -> dict[str, Any]:
    found = containers or ({"name": "consumer", "image": "ours:1"},)
    return {
        "template": {"spec": {"containers": list(found), **spec}},
        **({} if replicas is None else {"replicas": replicas}),
    }


def consumers(work: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return group("watch", topics=["a", "b"], workload=workload() if work is None else work, **spec)


def brokers(**more: Any) -> dict[str, Any]:
    return {
        "groups": lambda ids: {one: GroupState("Empty", ()) for one in ids},
        "committed": lambda ids: {one: {A0: 4} for one in ids},
        "identities": lambda topics: {topic: TopicIdentity(f"id-{topic}", 2) for topic in topics},
        "offsets": lambda wanted: dict.fromkeys(wanted, 10),
        "led_offsets": lambda wanted: dict.fromkeys(wanted, 10),
        "delete_groups": lambda ids: dict.fromkeys(ids),
        **more,
    }


def look(*objects: Mapping[str, Any], **answers: Any) -> InMemory:
    return again(in_memory(CLUSTER, *objects, **brokers(**answers)))


def again(found: InMemory) -> InMemory:
    manifest = found.kube.objects["ConsumerGroup", "watch"]
    found.services.store.put(manifest)
    reconcile_groups(found.services, [decode_as(ConsumerGroup, manifest)])
    return found


def condition(found: InMemory, which: str = "WorkloadReady") -> tuple[str, str, str] | None:
    return found.condition("ConsumerGroup", "watch", which)


def test_the_containers_are_the_users_and_know_what_to_consume() -> None:
    own = {
        "name": "consumer",
        "image": "ours:1",
        "args": ["$(MILLSTREAM_GROUP_ID)"],
        "env": [{"name": "A", "value": "b"}],
    }
    found = look(stored(consumers(workload(own, {"name": "other", "image": "o"}), groupId="g")))
    pod = found.kube.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    first, second = pod["containers"]
    assert (first["image"], first["args"]) == ("ours:1", ["$(MILLSTREAM_GROUP_ID)"])
    told = [
        {"name": "MILLSTREAM_BOOTSTRAP_SERVERS", "value": "default-bootstrap.ns.svc:9092"},
        {"name": "MILLSTREAM_GROUP_ID", "value": "g"},
        {"name": "MILLSTREAM_TOPICS", "value": "a,b"},
    ]
    assert first["env"] == [*told, {"name": "A", "value": "b"}]
    assert second["env"] == told


def test_its_pods_are_restricted_as_all_pods_are() -> None:
    found = look(stored(consumers()))
    live = found.kube.objects[DEPLOYMENT]
    pod = live["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in pod["containers"]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    (owner,) = live["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ConsumerGroup", "u-watch", True)


def test_labels_of_the_user_do_not_change_whose_pods_they_are() -> None:
    manifest = stored(consumers())
    manifest["spec"]["workload"]["template"]["metadata"] = {
        "labels": {"team": "x"},
        "annotations": {"a": "b"},
    }
    resource = decode_as(ConsumerGroup, manifest)
    assert resource.spec.workload is not None
    metadata = deployment(resource, resource.spec.workload, "b:1", 1, Images())["spec"]["template"][
        "metadata"
    ]
    assert metadata["labels"].items() >= {**selector(resource), "team": "x"}.items()
    assert metadata["annotations"] == {"a": "b"}


@pytest.mark.parametrize(("replicas", "wanted"), [(None, 1), (0, 0), (3, 3)])
def test_how_many_there_are(replicas: int | None, wanted: int) -> None:
    found = look(stored(consumers(workload(replicas=replicas))))
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == wanted


def test_the_resource_shows_how_many_are_ready() -> None:
    found = look(stored(consumers(workload(replicas=2))))
    assert condition(found) == ("False", "WorkloadStarting", "0 of 2 consumers are ready")
    found.kube.objects[DEPLOYMENT]["status"] = {"replicas": 2, "readyReplicas": 2}
    status = again(found).status("ConsumerGroup", "watch")
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert (
        status["selector"] == "app.kubernetes.io/instance=watch,app.kubernetes.io/name=millstream-consumers"
    )
    assert condition(found) == ("True", "WorkloadReady", "2 of 2 consumers are ready")


def test_a_pod_that_cannot_run_says_why() -> None:
    labels = {"app.kubernetes.io/name": "millstream-consumers", "app.kubernetes.io/instance": "watch"}
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "labels": labels},
        "status": {"containerStatuses": [{"state": {"waiting": waiting}}]},
    }
    found = look(stored(consumers()), pod)
    assert condition(found) == (
        "False",
        "WorkloadFailed",
        "0 of 1 consumers are ready; p: ErrImagePull: no such image",
    )


def test_a_deployment_of_somebody_else_is_left_alone() -> None:
    """Its status still shows the lag."""
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "watch-consumers", "namespace": "ns"},
        "spec": {"replicas": 7},
    }
    found = look(stored(consumers()), theirs)
    assert found.kube.objects[DEPLOYMENT]["spec"] == {"replicas": 7}
    assert (condition(found, "Ready") or ())[:2] == ("False", "ObjectNotOurs")
    assert found.status("ConsumerGroup", "watch")["lag"]["records"] == 6


def test_a_template_that_kubernetes_refuses_concerns_this_group_alone() -> None:
    found = in_memory(CLUSTER, stored(consumers()), stored(group("other")), **brokers())
    found.kube.refused_writes["Deployment"] = KubeError(422, "Invalid", "no such priority class")
    names = ("watch", "other")
    both = [decode_as(ConsumerGroup, found.kube.objects["ConsumerGroup", name]) for name in names]
    assert len(reconcile_groups(found.services, both)) == 2
    words = condition(found)
    assert words is not None
    assert (words[0], words[1], "no such priority class" in words[2]) == ("False", "WorkloadRefused", True)
    assert found.condition("ConsumerGroup", "other", "Ready") == ("True", "GroupObserved", "the group exists")


def test_consumers_run_while_brokers_do_not_answer() -> None:
    found = look(stored(consumers(workload(replicas=2))), groups=AdminError("no broker answers"))
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 2
    assert (condition(found, "Ready") or ())[:2] == ("False", "ClusterNotReady")


def scaled(**scaling: int) -> dict[str, Any]:
    return consumers({**workload(), "scaling": {"min": 0, "max": 10, **scaling}})


def test_the_lag_decides_with_scaling() -> None:
    """Six records of lag in four partitions."""
    found = look(stored(scaled(targetLag=2)))
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 3
    more = look(stored(scaled(targetLag=1)))
    assert more.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 4
    none = look(stored(scaled(targetLag=2)), led_offsets=lambda wanted: dict.fromkeys(wanted, 0))
    assert none.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 0


def test_a_lag_that_is_not_known_changes_no_number() -> None:
    found = look(stored(scaled(targetLag=2)))
    found.brokers.answers["groups"] = AdminError("no broker answers")
    again(found)
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 3


def test_scaling_continues_from_the_number_that_there_is() -> None:
    """A new operator stops no consumer."""
    found = look(stored(consumers(workload(replicas=4))))
    resource = found.kube.objects["ConsumerGroup", "watch"]
    resource["spec"] = stored(scaled(targetLag=100))["spec"]
    again(found)
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 4


def test_a_paused_workload_stays_as_it_is() -> None:
    found = look(stored(consumers(workload(replicas=2))))
    resource = found.kube.objects["ConsumerGroup", "watch"]
    resource["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    resource["spec"]["workload"]["replicas"] = 5
    again(found)
    assert found.kube.objects[DEPLOYMENT]["spec"]["replicas"] == 2


def test_consumers_stop_when_the_cluster_does_not_allow_their_namespace_any_longer() -> None:
    there = stored(cluster("default", allowedNamespaces=["ns"]), namespace="other")
    resource = stored(consumers())
    resource["spec"]["clusterRef"] = {"name": "default", "namespace": "other"}
    found = again(in_memory(there, resource, **brokers()))
    assert DEPLOYMENT in found.kube.objects
    there["spec"]["allowedNamespaces"] = []
    found.services.store.put(there)
    again(found)
    assert DEPLOYMENT not in found.kube.objects
    assert (condition(found, "Ready") or ())[:2] == ("False", "NamespaceNotAllowed")


def test_consumers_stay_while_the_cluster_is_not_there() -> None:
    found = look(stored(consumers()))
    found.services.store.remove(Key("Cluster", "ns", "default"), "u-default")
    again(found)
    assert DEPLOYMENT in found.kube.objects
    assert (condition(found, "Ready") or ())[:2] == ("False", "ClusterNotFound")


def test_a_workload_that_is_taken_away_stops() -> None:
    found = look(stored(consumers()))
    del found.kube.objects["ConsumerGroup", "watch"]["spec"]["workload"]
    again(found)
    assert DEPLOYMENT not in found.kube.objects
    assert "selector" not in found.status("ConsumerGroup", "watch")
    assert condition(found) is None


def test_consumers_stop_before_the_offsets_are_deleted() -> None:
    """The group has deletionPolicy Delete: a remaining pod could join and commit."""
    found = look(stored(consumers(deletionPolicy="Delete")))
    resource = found.kube.objects["ConsumerGroup", "watch"]
    resource["metadata"] |= deleted(1)
    labels = found.kube.objects[DEPLOYMENT]["spec"]["selector"]["matchLabels"]
    found.kube.put({"kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "labels": labels}})
    again(found)
    assert DEPLOYMENT not in found.kube.objects
    assert found.brokers.requests("delete_groups") == []
    ready = condition(found, "Ready")
    assert ready is not None
    assert ready[2].startswith("waiting to delete offsets of group watch: the consumers p to end; ")
    del found.kube.objects["Pod", "p"]
    again(found)
    assert found.brokers.requests("delete_groups") == [["watch"]]
    assert FINALIZER not in found.kube.objects["ConsumerGroup", "watch"]["metadata"]["finalizers"]


def test_a_group_with_members_still_waits_for_them() -> None:
    refused = Refusal("NON_EMPTY_GROUP", "")
    found = look(
        stored(consumers(deletionPolicy="Delete"), **deleted(1)),
        delete_groups=lambda ids: dict.fromkeys(ids, refused),
    )
    ready = condition(found, "Ready")
    assert ready is not None
    assert "the group has members: stop its consumers" in ready[2]
