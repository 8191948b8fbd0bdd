"""Reconciles of a MirrorMaker on Kubernetes: its workers' configuration and reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import MirrorMaker, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.models.mirror_reports import SourceReport, WorkerReport
from millstream_operator.reconcile.mirror import deployment as mirror_deployment
from millstream_operator.reconcile.mirror.apply import reconcile_mirror
from millstream_operator.resources.mirror import CONFIG_FILE, metadata, selector

pytestmark = pytest.mark.process

LOOK, SOON = 10, 2
CLUSTERS = [stored(cluster(name)) for name in ("west", "east")]
REPORT = WorkerReport(sources=(SourceReport("west", True, 1, ("orders",), partitions=1, wanted=1),))


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the queried workers; each of them reports."""
    addresses: list[str] = []

    def ask_all(wanted: Iterable[str]) -> tuple[WorkerReport, ...]:
        addresses.extend(wanted)
        return (REPORT,) * len(addresses)

    monkeypatch.setattr(mirror_deployment, "ask_all", ask_all)
    return addresses


def a_mirror(source: str = "west", target: str = "east", name: str = "copy", **spec: Any) -> dict[str, Any]:
    wanted = {
        "sources": [{"name": source, "clusterRef": {"name": source}}],
        "target": {"clusterRef": {"name": target}},
        "topics": {"include": ["orders.*"]},
        **spec,
    }
    return stored(resource("MirrorMaker", name, **wanted))


def look(found: InMemory, name: str = "copy") -> float:
    return reconcile_mirror(found.services, decode_as(MirrorMaker, found.kube.objects["MirrorMaker", name]))


def says(found: InMemory, name: str = "copy") -> tuple[str, str, str] | None:
    return found.condition("MirrorMaker", name)


def pod(number: int, ip: str = "", gone: bool = False, **status: Any) -> dict[str, Any]:
    labels = selector(decode_as(MirrorMaker, a_mirror()))
    metadata: dict[str, Any] = {"namespace": "ns", "name": f"pod-{number}", "labels": labels}
    if gone:
        metadata["deletionTimestamp"] = "2026-11-22T08:00:00Z"
    return {"kind": "Pod", "metadata": metadata, "status": {**({"podIP": ip} if ip else {}), **status}}


def workers(name: str = "copy") -> dict[str, Any]:
    mirror = decode_as(MirrorMaker, a_mirror(name=name))
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(mirror)}


def working(found: InMemory, **status: Any) -> InMemory:
    """The workers' Deployment has this status, and its pods have its configuration."""
    look(found)
    deployment = found.kube.objects["Deployment", "copy-mirror"]
    deployment["status"] = {"updatedReplicas": status["replicas"], **status}
    for (kind, _), one in found.kube.objects.items():
        if kind == "Pod":
            one["metadata"]["annotations"] = dict(deployment["spec"]["template"]["metadata"]["annotations"])
    found.kube.applied.clear()
    return found


def test_workers_are_a_deployment_that_finds_its_file() -> None:
    found = in_memory(*CLUSTERS, a_mirror())
    assert look(found) == SOON
    assert [one["kind"] for one in found.kube.applied] == ["ConfigMap", "Deployment", "MirrorMaker"]
    assert says(found) == ("False", "WorkersStarting", "0 of 1 workers are ready")
    assert found.status("MirrorMaker", "copy")["replicas"] == 0
    assert found.status("MirrorMaker", "copy")["readyReplicas"] == 0


@pytest.mark.parametrize(("ready", "seconds"), [(1, SOON), (2, LOOK), (3, LOOK)])
def test_workers_are_looked_at_often_until_they_are_ready(ready: int, seconds: float) -> None:
    found = working(in_memory(*CLUSTERS, a_mirror(replicas=2)), replicas=3, readyReplicas=ready)
    assert look(found) == seconds
    shown = found.status("MirrorMaker", "copy")
    assert (shown["replicas"], shown["readyReplicas"]) == (3, ready)
    assert [one["kind"] for one in found.kube.applied] == ["MirrorMaker"]


def test_the_workers_of_a_paused_mirror_go_on_as_they_are() -> None:
    found = working(in_memory(*CLUSTERS, a_mirror()), replicas=1, readyReplicas=1)
    before = found.kube.objects["Deployment", "copy-mirror"]
    mirror = found.kube.objects["MirrorMaker", "copy"]
    mirror["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    mirror["spec"]["replicas"], mirror["spec"]["sources"][0]["clusterRef"]["name"] = 5, "east"
    look(found)
    assert [one["kind"] for one in found.kube.applied] == ["MirrorMaker"]
    assert found.kube.deleted == []
    assert found.kube.objects["Deployment", "copy-mirror"] == before
    assert (found.condition("MirrorMaker", "copy", "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert found.status("MirrorMaker", "copy")["readyReplicas"] == 1
    del found.kube.objects["MirrorMaker", "copy"]["metadata"]["annotations"]
    look(found)
    assert found.condition("MirrorMaker", "copy", "Paused") is None
    assert (says(found) or ())[:2] == ("False", "SameCluster")


def test_a_mirror_that_is_paused_before_it_began_has_no_workers() -> None:
    mirror = a_mirror()
    mirror["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    found = in_memory(*CLUSTERS, mirror)
    look(found)
    assert [one["kind"] for one in found.kube.applied] == ["MirrorMaker"]


def test_a_deleted_mirror_is_left_to_kubernetes() -> None:
    mirror = a_mirror()
    mirror["metadata"].update(deleted(1))
    found = in_memory(*CLUSTERS, mirror)
    assert look(found) == LOOK
    assert found.kube.applied == []


def test_workers_that_have_an_address_and_stay_are_asked(asked: list[str]) -> None:
    pods = [pod(0, "10.0.0.1"), pod(1), pod(2, "10.0.0.2", gone=True), pod(3, "10.0.0.3")]
    found = working(in_memory(*CLUSTERS, a_mirror(), *pods), replicas=1, readyReplicas=1)
    asked.clear()
    look(found)
    assert asked == ["10.0.0.1:9404", "10.0.0.3:9404"]
    assert says(found) == ("True", "Mirroring", "1 worker mirrors 1 topic")


def test_a_pod_that_has_no_status_yet_is_not_asked(asked: list[str]) -> None:
    starting = pod(0)
    del starting["status"]
    look(in_memory(*CLUSTERS, a_mirror(), starting))
    assert asked == []


def container(
    state: dict[str, Any], *, ready: bool = False, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"containerStatuses": [{"ready": ready, "state": state, "lastState": last or {}}]}


ENDED = {
    "terminated": {"exitCode": 1, "reason": "Error", "message": "log\nwords\nsource and target are one\n"}
}
SILENT = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (container(ENDED), "source and target are one"),
        (container({"waiting": {"reason": "CrashLoopBackOff"}}, last=ENDED), "source and target are one"),
        (container({"running": {}}, last=SILENT), "exit status 137, OOMKilled"),
        (container({"terminated": {"exitCode": 2}}), "exit status 2"),
        (
            container({"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
            "ErrImagePull: not found",
        ),
    ],
)
def test_a_worker_that_failed_says_why(status: dict[str, Any], words: str) -> None:
    found = in_memory(*CLUSTERS, a_mirror(), pod(0), pod(1, **status))
    look(found)
    assert says(found) == ("False", "WorkerFailed", f"pod-1: {words}")


@pytest.mark.parametrize(
    "status",
    [
        container({"running": {}}, ready=True, last=ENDED),
        container({"terminated": {"exitCode": 0, "message": "done"}}),
        container({"waiting": {"reason": "ContainerCreating"}}),
        {"containerStatuses": [{}]},
    ],
    ids=["ready again", "no error", "starting", "nothing known"],
)
def test_a_worker_that_only_starts_has_not_failed(status: dict[str, Any]) -> None:
    found = in_memory(*CLUSTERS, a_mirror(), pod(0, **status))
    look(found)
    assert (says(found) or ())[:2] == ("False", "WorkersStarting")


def test_a_mirror_into_itself_stops_the_workers_of_an_earlier_spec() -> None:
    found = in_memory(*CLUSTERS, a_mirror(target="west"), workers())
    assert look(found) == LOOK
    assert found.kube.deleted == [("Deployment", "copy-mirror")]
    assert (says(found) or ())[:2] == ("False", "SameCluster")
    assert [one["kind"] for one in found.kube.applied] == ["MirrorMaker"]


def test_a_deployment_of_somebody_else_is_left_alone() -> None:
    theirs = workers()
    del theirs["metadata"]["ownerReferences"]
    found = in_memory(*CLUSTERS, a_mirror(target="west"), theirs)
    look(found)
    assert found.kube.deleted == []
    found = in_memory(*CLUSTERS, a_mirror(), theirs)
    look(found)
    ready = says(found) or ("", "", "")
    assert ready[:2] == ("False", "ObjectNotOurs")
    assert ready[2].startswith("Deployment copy-mirror exists")
    assert found.kube.applied_names("Deployment") == []


def test_workers_that_kubernetes_refuses_do_not_hide_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, requests above the limits. Nothing that was known of a source is shown as present."""
    found = working(in_memory(*CLUSTERS, a_mirror(), pod(0, "10.0.0.1")), replicas=1, readyReplicas=1)
    look(found)
    assert (says(found) or ())[:2] == ("True", "Mirroring")

    def refuse(kube: Any, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Deployment":
            raise KubeError(422, "Invalid", "spec.template: requests above limits")

    monkeypatch.setattr(mirror_deployment, "ensure", refuse)
    look(found)
    assert says(found) == ("False", "WorkloadRefused", "spec.template: requests above limits")
    for kind in ("SourceReachable", "CaughtUp", "Degraded"):
        assert (found.condition("MirrorMaker", "copy", kind) or ())[:2] == ("Unknown", "WorkloadRefused")


def test_an_edit_is_not_ready_before_workers_have_it(asked: list[str]) -> None:
    """The former workers stay until new ones are ready; what they report is about the former configuration."""
    old = pod(0, "10.0.0.1")
    found = working(in_memory(*CLUSTERS, a_mirror(), old), replicas=1, readyReplicas=1)
    look(found)
    assert (says(found) or ())[:2] == ("True", "Mirroring")
    found.kube.objects["MirrorMaker", "copy"]["spec"]["topics"] = {"include": ["payments"]}
    look(found)
    found.kube.objects["Deployment", "copy-mirror"]["status"] = {
        "replicas": 2, "readyReplicas": 1, "updatedReplicas": 1,
    }  # fmt: skip
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient cpu"}]
    new = pod(1, conditions=conditions)
    found.kube.objects["Pod", "pod-1"] = new
    asked.clear()
    look(found)
    assert asked == [], "the former worker is not asked"
    assert (found.condition("MirrorMaker", "copy", "CaughtUp") or ())[:2] == ("Unknown", "WorkersStarting")
    cause = "pod-1: 0/3 nodes: Insufficient cpu"
    words = f"no worker with the present spec has reported yet: {cause}"
    assert says(found) == ("False", "WorkersStarting", words)
    found.kube.objects["Deployment", "copy-mirror"]["status"]["updatedReplicas"] = 0
    look(found)
    words = f"0 of 1 workers have the present spec: {cause}"
    assert says(found) == ("False", "WorkersStarting", words)
    new["status"] = container({"waiting": {"reason": "ImagePullBackOff"}})
    found.kube.objects["Deployment", "copy-mirror"]["status"]["updatedReplicas"] = 1
    look(found)
    assert says(found) == ("False", "WorkerFailed", "pod-1: ImagePullBackOff")


def test_workers_for_which_kubernetes_makes_no_pods_say_why() -> None:
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: cpu"}
    found = working(in_memory(*CLUSTERS, a_mirror()), replicas=0, conditions=[refusal])
    look(found)
    assert says(found) == ("False", "WorkersStarting", "0 of 1 workers are ready: exceeded quota: cpu")


def test_a_refused_mirror_shows_nothing_of_workers_that_end() -> None:
    found = working(in_memory(*CLUSTERS, a_mirror(), pod(0, "10.0.0.1")), replicas=1, readyReplicas=1)
    look(found)
    assert found.status("MirrorMaker", "copy")["sources"][0]["reachable"] is True
    found.kube.objects["MirrorMaker", "copy"]["spec"]["target"] = {"clusterRef": {"name": "west"}}
    assert look(found) == SOON
    shown = found.status("MirrorMaker", "copy")
    assert (shown["replicas"], shown["readyReplicas"]) == (1, 0)
    assert shown["sources"] == [{"name": "west"}]
    assert "lag" not in shown
    del found.kube.objects["Pod", "pod-0"]
    assert look(found) == LOOK
    assert found.status("MirrorMaker", "copy")["replicas"] == 0


def test_workers_go_on_while_their_cluster_is_away() -> None:
    found = in_memory(CLUSTERS[0], a_mirror())
    assert look(found) == LOOK
    assert found.kube.deleted == []
    assert says(found) == ("False", "ClusterNotFound", "there is no Cluster east in namespace ns")


def test_nothing_is_known_of_a_source_whose_cluster_is_gone() -> None:
    found = working(in_memory(*CLUSTERS, a_mirror(), pod(0, "10.0.0.1")), replicas=1, readyReplicas=1)
    look(found)
    kinds = ("SourceReachable", "CaughtUp")
    assert [(found.condition("MirrorMaker", "copy", kind) or ())[0] for kind in kinds] == ["True", "True"]
    found.services.store.remove(Key("Cluster", "ns", "west"), "u-west")
    look(found)
    for kind in kinds:
        assert found.condition("MirrorMaker", "copy", kind) == (
            "Unknown",
            "ClusterNotFound",
            "not known: there is no Cluster west in namespace ns",
        )


def test_addresses_need_no_cluster() -> None:
    sources = [{"name": "west", "bootstrap": "west:9092"}]
    mirror = a_mirror(sources=sources)
    mirror["spec"]["target"] = {"bootstrap": "east:9092"}
    found = in_memory(mirror)
    assert look(found) == SOON
    assert found.kube.applied_names("Deployment") == ["copy-mirror"]


def test_the_younger_of_two_mirrors_in_a_circle_is_refused() -> None:
    older = a_mirror()
    younger = a_mirror("east", "west", "back")
    younger["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    broken = {**a_mirror(name="broken"), "spec": {"sources": "none"}}
    lost = a_mirror("lost", "west", "lost")
    found = in_memory(*CLUSTERS, broken, lost, younger, older, workers("back"))
    look(found, "back")
    look(found)
    assert (says(found, "back") or ())[:2] == ("False", "MirrorLoop")
    assert (says(found) or ())[1] == "WorkersStarting"
    assert found.kube.deleted == [("Deployment", "back-mirror")]


def test_the_younger_of_two_mirrors_with_one_group_has_no_workers() -> None:
    younger = a_mirror(sources=[{"name": "west", "bootstrap": "another:9092"}])
    younger["metadata"].update(namespace="prod", uid="u-other", creationTimestamp="2027-01-01T00:00:00Z")
    younger["spec"]["target"] = {"clusterRef": {"name": "east", "namespace": "ns"}}
    west, east = stored(cluster("west")), stored(cluster("east", allowedNamespaces=["prod"]))
    found = in_memory(west, east, younger)
    found.services.store.put(a_mirror())
    look(found)
    assert (says(found) or ())[:2] == ("False", "NameTaken")
    assert found.kube.applied_names("Deployment") == []


def two_into_one_target() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two MirrorMakers of one name, the younger one in another namespace."""
    older, younger = a_mirror(), a_mirror(sources=[{"name": "west", "bootstrap": "west.example:9092"}])
    younger["metadata"].update(namespace="prod", uid="u-other", creationTimestamp="2027-01-01T00:00:00Z")
    for one in (older, younger):
        one["spec"]["target"] = {"bootstrap": "kafka.example:9092"}
    return older, younger


def test_a_mirror_whose_name_is_taken_promotes_nothing() -> None:
    """The topics in the target are those of the older one, and so are the notes of their workers."""
    older, younger = two_into_one_target()
    for one in (older, younger):
        one["spec"]["mode"] = "Identity"
    younger["spec"]["promote"] = {"requestId": "drill"}
    found = in_memory(*CLUSTERS, younger)
    found.services.store.put(older)
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", "NameTaken")
    promoted = found.condition("MirrorMaker", "copy", "Promoted") or ("", "", "")
    assert promoted[:2] == ("False", "NameTaken")
    assert promoted[2].startswith(
        "request drill: metadata.name: MirrorMaker copy in namespace ns mirrors into"
    )
    assert "lastPromotion" not in found.status("MirrorMaker", "copy")
    found.services.store.remove(Key("MirrorMaker", "ns", "copy"), older["metadata"]["uid"])
    look(found)
    assert (found.condition("MirrorMaker", "copy", "Promoted") or ())[1] == "TargetUnreachable", (
        "it tries now"
    )


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_mirror_without_workers_keeps_its_group_until_it_is_deleted(is_paused: bool) -> None:
    """A younger one of that name would take over its progress and its topics."""
    older, younger = two_into_one_target()
    if is_paused:
        older["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    else:
        older["spec"]["replicas"] = 0
    found = in_memory(*CLUSTERS, younger)
    found.services.store.put(older)
    look(found)
    assert (says(found) or ())[:2] == ("False", "NameTaken")
    assert found.kube.applied_names("Deployment") == []
    found.services.store.remove(Key("MirrorMaker", "ns", "copy"), older["metadata"]["uid"])
    look(found)
    assert (says(found) or ())[1] == "WorkersStarting"
    assert found.kube.applied_names("Deployment") == ["copy-mirror"]


@pytest.mark.parametrize("how", ["its source is its target", "its source Cluster is away"])
@pytest.mark.parametrize("is_paused", [True, False])
def test_a_mirror_that_cannot_run_stops_no_younger_one(how: str, is_paused: bool) -> None:
    """Whatever its status says at the moment: pausing it changes that."""
    older, younger = two_into_one_target()
    clusters = CLUSTERS
    if how == "its source Cluster is away":
        clusters = []
    else:
        older["spec"]["sources"] = [{"name": "west", "bootstrap": "kafka.example:9092"}]
    if is_paused:
        older["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    own = in_memory(*clusters, older)
    look(own)
    found = in_memory(*clusters, younger)
    found.services.store.put(own.kube.objects["MirrorMaker", "copy"])
    look(found)
    assert (says(found) or ())[1] == "WorkersStarting"
    assert found.kube.applied_names("Deployment") == ["copy-mirror"]


def one_of_three(source: str, target: str, name: str, day: int, **spec: Any) -> dict[str, Any]:
    found = a_mirror(source, target, name, naming="Same", **spec)
    found["metadata"]["creationTimestamp"] = f"2026-01-0{day}T00:00:00Z"
    return found


@pytest.mark.parametrize("how", ["an invalid spec", "paused and edited", "a Cluster that may not be"])
def test_a_circle_stays_closed_where_the_spec_of_an_older_mirror_is_not_acted_on(how: str) -> None:
    """The older mirror's workers continue, so records would loop."""
    clusters = [stored(cluster(name)) for name in ("west", "east", "north", "south")]
    three = one_of_three("west", "east", "a", 1), one_of_three("east", "north", "b", 2)
    found = in_memory(*clusters, *three, one_of_three("north", "west", "c", 3))

    def put(changed: dict[str, Any]) -> None:
        changed["metadata"]["resourceVersion"] = "9"
        found.services.store.put(changed)
        found.kube.objects[changed["kind"], changed["metadata"]["name"]] = changed

    for name in "abc":
        look(found, name)
    assert (says(found, "c") or ())[:2] == ("False", "MirrorLoop")
    match how:
        case "an invalid spec":
            put(one_of_three("west", "east", "a", 1, topics={"include": ["orders.*", "("]}))
        case "paused and edited":
            edited = one_of_three("west", "south", "a", 1)
            edited["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
            put(edited)
        case _:
            put(stored(cluster("east", config={"a b": "c"})))
    look(found, "c")
    assert (says(found, "c") or ())[:2] == ("False", "MirrorLoop")
    assert "c-mirror" not in found.kube.applied_names("Deployment")
    # once the older mirror has no workers, there is no loop
    del found.kube.objects["Deployment", "a-mirror"]
    look(found, "c")
    assert found.kube.applied_names("Deployment")[-1] == "c-mirror"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"sources": 1, "target": 2, "topics": 3, "mode": 4, "naming": 5}',
        "[" * 100_000,
        '{"sources": [{"name": "w", "bootstrap": "w:1"}], "target": {"bootstrap": "e:1"}, "naming": "Same",'
        ' "topics": {"include": ["("]}, "mode": "AtLeastOnce"}',
    ],
)
def test_what_a_user_writes_into_a_mirrors_file_stops_no_other_mirror(text: str) -> None:
    found = in_memory(*CLUSTERS, a_mirror("west", "east", "bad"), a_mirror("east", "west"))
    look(found, "bad")
    invalid = a_mirror("west", "east", "bad", topics={"include": ["("]})
    found.services.store.put({**invalid, "metadata": {**invalid["metadata"], "resourceVersion": "9"}})
    found.kube.objects["ConfigMap", "bad-mirror"]["data"] = {CONFIG_FILE: text}
    look(found)
    assert (says(found) or ())[1] == "WorkersStarting"


def test_workers_end_when_their_cluster_lets_their_namespace_in_no_longer() -> None:
    mirror = a_mirror(target="east")
    mirror["spec"]["target"] = {"clusterRef": {"name": "far", "namespace": "other"}}
    far = stored(cluster("far", allowedNamespaces=["ns"]), namespace="other")
    found = in_memory(*CLUSTERS, far, mirror)
    look(found)
    assert found.kube.applied_names("Deployment") == ["copy-mirror"]
    closed = stored(cluster("far", allowedNamespaces=["else"]), namespace="other", generation=3)
    found.services.store.put({**closed, "metadata": {**closed["metadata"], "resourceVersion": "9"}})
    look(found)
    assert (says(found) or ())[:2] == ("False", "NamespaceNotAllowed")
    assert found.kube.deleted == [("Deployment", "copy-mirror")]


def test_mirrors_of_one_name_in_two_namespaces_are_two() -> None:
    older = a_mirror()
    older["metadata"] = {
        **older["metadata"],
        "namespace": "other",
        "creationTimestamp": "2025-01-01T00:00:00Z",
    }
    both = {"west": {"name": "west", "namespace": "ns"}, "east": {"name": "east", "namespace": "ns"}}
    older["spec"] |= {
        "sources": [{"name": "east", "clusterRef": both["east"]}],
        "target": {"clusterRef": both["west"]},
    }
    clusters = [stored(cluster(name, allowedNamespaces=["other"])) for name in both]
    found = in_memory(*clusters, a_mirror())
    found.services.store.put(older)
    look(found)
    assert (says(found) or ())[:2] == ("False", "MirrorLoop")
