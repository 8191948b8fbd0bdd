"""Looks at a BatchLoad on Kubernetes: a run begins in one look and is started in the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.kafka_admin import EARLIEST
from millstream_operator.kube import KubeError
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.reconcile.load_kubernetes import reconcile_load
from millstream_operator.reconcile.load_limits import check_image
from millstream_operator.reconcile.objects import NotOurs
from millstream_operator.services import Images

AT_ONCE, SOON, ENDED = 0, 5, 300
CLUSTER = stored(cluster("default"))
BROKERS = {
    "partitions": {"flights": 1},
    "offsets": lambda wanted: {one: 2 if when == EARLIEST else 10 for one, when in wanted.items()},
}
OFFSETS = [{"topic": "flights", "partition": 0, "from": 2, "until": 10}]
PENDING = {"lastRun": {"name": "daily-0001", "state": "Pending"}, "offsets": OFFSETS}


def a_load(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    wanted = {
        "clusterRef": {"name": "default"},
        "topics": ["flights"],
        "value": {"format": "JSON", "schema": "carrier STRING"},
        "output": {"path": "s3a://bucket/flights"},
        **spec,
    }
    return stored(resource("BatchLoad", "daily", **wanted), status)


def look(found: InMemory, seen: dict[str, Any] | None = None) -> float:
    """One look; ``seen``: what the watch showed, if that is not what there is."""
    manifest = seen or found.kube.objects["BatchLoad", "daily"]
    return reconcile_load(found.services, decode_as(BatchLoad, manifest))


def says(found: InMemory, which: str = "Ready") -> tuple[str, str, str] | None:
    return found.condition("BatchLoad", "daily", which)


def run_state(found: InMemory) -> str:
    state: str = found.status("BatchLoad", "daily")["lastRun"]["state"]
    return state


def written(found: InMemory) -> list[str]:
    """Kinds of what was applied, but the load's own status."""
    return [one["kind"] for one in found.kube.applied if one["kind"] != "BatchLoad"]


def test_a_run_is_in_the_status_before_anything_is_started() -> None:
    found = in_memory(CLUSTER, a_load(), **BROKERS)
    assert look(found) == AT_ONCE
    assert found.status("BatchLoad", "daily")["offsets"] == OFFSETS
    assert written(found) == []
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"]
    assert run_state(found) == "Pending"


def test_a_watch_that_is_behind_begins_no_second_run() -> None:
    found = in_memory(CLUSTER, a_load(PENDING), **BROKERS)
    assert look(found, seen=a_load()) == SOON
    assert found.brokers.asked == []
    assert found.kube.applied_names("Job") == ["daily-0001"]


def test_a_load_that_is_gone_begins_nothing() -> None:
    assert look(in_memory(CLUSTER, **BROKERS), seen=a_load()) == ENDED


def test_a_deleted_load_is_left_to_kubernetes() -> None:
    found = in_memory(CLUSTER, {**a_load(), "metadata": {**a_load()["metadata"], **deleted(1)}}, **BROKERS)
    assert look(found) == ENDED
    assert found.kube.applied == []


def test_a_load_waits_for_records() -> None:
    found = in_memory(CLUSTER, a_load(minRecords=9), **BROKERS)
    assert look(found) == SOON
    assert says(found, "Succeeded") == ("False", "WaitingForRecords", "8 of 9 records")


@pytest.mark.parametrize(
    ("spec", "brokers", "there", "reason"),
    [
        ({"output": {"path": "/lake"}}, BROKERS, True, "InvalidSpec"),
        ({"spark": {"image": "mine"}}, BROKERS, True, "InvalidSpec"),
        ({}, BROKERS, False, "ClusterNotFound"),
        ({}, {"partitions": {}}, True, "TopicNotFound"),
        ({"from": {"position": "Offsets", "offsets": []}}, BROKERS, True, "InvalidSpec"),
    ],
    ids=["output", "image", "cluster", "topic", "offsets"],
)
def test_a_run_that_cannot_begin_says_why_and_is_tried_again(
    spec: dict[str, Any], brokers: dict[str, Any], there: bool, reason: str
) -> None:
    found = in_memory(*([CLUSTER] if there else []), a_load(**spec), **brokers)
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", reason)
    assert "lastRun" not in found.status("BatchLoad", "daily")


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_a_run_that_has_ended_is_left_alone(state: str) -> None:
    found = in_memory(CLUSTER, a_load({"lastRun": {"name": "daily-0001", "state": state}}))
    assert look(found) == ENDED
    assert found.kube.applied == []


def a_pod(run: str, phase: str, created: str = "1") -> dict[str, Any]:
    labels = {"millstream.dev/run": run}
    metadata = {"namespace": "ns", "name": f"{run}-{created}", "labels": labels, "creationTimestamp": created}
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


OWN = {"namespace": "ns", "name": "daily-0001", "ownerReferences": [{"kind": "BatchLoad", "uid": "u-daily"}]}


def a_job(**status: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": OWN, "status": status}


def test_a_run_is_as_its_own_pods_are() -> None:
    others = a_pod("other-0001", "Pending", "2")
    found = in_memory(CLUSTER, a_load(PENDING), a_job(), a_pod("daily-0001", "Running"), others)
    assert look(found) == SOON
    assert run_state(found) == "Running"
    assert written(found) == []


def test_a_run_ends_with_its_job() -> None:
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    found = in_memory(CLUSTER, a_load(PENDING), a_job(**complete))
    assert look(found) == ENDED
    assert run_state(found) == "Succeeded"


def test_a_runner_that_has_vanished_is_made_again_from_the_same_offsets() -> None:
    load = a_load({**PENDING, "lastRun": {"name": "daily-0001", "state": "Running"}})
    file = {"kind": "ConfigMap", "metadata": OWN}
    found = in_memory(CLUSTER, load, file)
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "Job"]  # what a run is told never changes
    assert run_state(found) == "Running"


def test_without_its_cluster_a_run_is_not_started() -> None:
    found = in_memory(a_load(PENDING))
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", "ClusterNotFound")
    assert written(found) == []


def test_an_output_volume_gets_an_owner_where_it_needs_one() -> None:
    host = {"kind": "StorageClass", "metadata": {"name": "host"}, "provisioner": "kubernetes.io/host-path"}
    metadata = {"namespace": "ns", "name": "lake"}
    claim = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"storageClassName": "host"}}
    for objects, owner in (([host, claim], True), ([claim], False)):
        output = {"path": "/lake/flights", "volumeClaimName": "lake"}
        found = in_memory(CLUSTER, a_load(PENDING, output=output, spark={"image": "mine"}), *objects)
        images = Images(spark="spark:1", spark_allowed=("mine",))
        services = dataclasses.replace(found.services, images=images)
        reconcile_load(services, decode_as(BatchLoad, found.kube.objects["BatchLoad", "daily"]))
        pod = found.kube.objects["Job", "daily-0001"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "mine"
        made = [(one["name"], one["image"]) for one in pod.get("initContainers", ())]
        assert made == ([("volume-owner", "spark:1")] if owner else []), (
            "what is root runs no code of a user's"
        )


@pytest.mark.parametrize("status", [{}, PENDING], ids=["before a run", "before a start"])
def test_the_volume_of_a_broker_is_not_an_output(status: dict[str, Any]) -> None:
    labels = {"millstream.dev/cluster": "default", "app.kubernetes.io/component": "broker"}
    metadata = {"namespace": "ns", "name": "data-default-brokers-0", "labels": labels}
    claim = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
    output = {"path": "/lake/flights", "volumeClaimName": "data-default-brokers-0"}
    found = in_memory(CLUSTER, a_load(status, output=output), claim, **BROKERS)
    assert look(found) == SOON
    problem = says(found) or ()
    assert problem[:2] == ("False", "InvalidSpec")
    assert "data-default-brokers-0 is not allowed: it is a volume of Cluster default" in problem[2]


@pytest.mark.parametrize("status", [{}, PENDING], ids=["before a run", "before a start"])
def test_a_volume_that_a_broker_may_get_later_is_not_an_output(status: dict[str, Any]) -> None:
    output = {"path": "/lake/flights", "volumeClaimName": "data-default-brokers-1"}
    found = in_memory(CLUSTER, a_load(status, output=output), **BROKERS)
    assert look(found) == SOON
    assert "data-default-brokers-1 is not allowed: a Cluster names its volumes so" in (says(found) or ())[2]
    assert written(found) == []


@pytest.mark.parametrize(
    ("path", "image"), [("/opt/flights", None), ("/lake/flights", "mine")], ids=["path", "image"]
)
def test_a_spec_that_changes_before_the_start_is_checked_again(path: str, image: str | None) -> None:
    """Else a run that began well could be started with its author's own code."""
    spark = {"image": image} if image else {}
    found = in_memory(
        CLUSTER, a_load(PENDING, output={"path": path, "volumeClaimName": "lake"}, spark=spark), **BROKERS
    )
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", "InvalidSpec")
    assert written(found) == []


@pytest.mark.parametrize(
    ("image", "allowed", "fits"),
    [
        (None, (), True),
        ("spark:1", (), True),  # the operator's own
        ("mine", (), False),
        ("mine", ("mine",), True),
        ("mine:2", ("mine",), False),
        ("registry.example/spark/x:2", ("other", "registry.example/spark/*"), True),
        ("registry.example/evil", ("registry.example/spark/*",), False),
        ("registry.example/sparky", ("registry.example/spark/*",), False),
    ],
)
def test_images_that_a_load_may_name(image: str | None, allowed: tuple[str, ...], fits: bool) -> None:
    load = decode_as(BatchLoad, a_load(spark={"image": image} if image else {}))
    problem = check_image(load, Images(spark="spark:1", spark_allowed=allowed))
    assert (problem is None) is fits
    assert problem is None or "allowed: spark:1" in problem.message


def spark(**status: Any) -> dict[str, Any]:
    return {"kind": "SparkApplication", "metadata": OWN, "status": status}


def test_a_spark_application_is_started_and_followed() -> None:
    found = in_memory(CLUSTER, a_load(PENDING, runner="SparkApplication"))
    assert look(found) == SOON
    assert found.kube.applied_names("SparkApplication") == ["daily-0001"]
    running = {"applicationState": {"state": "RUNNING"}}
    found = in_memory(CLUSTER, a_load(PENDING, runner="SparkApplication"), spark(**running))
    look(found)  # its driver has no pod yet
    assert run_state(found) == "Running"


def test_a_spark_application_tells_its_rows_by_its_driver() -> None:
    message = '{"state": "Succeeded", "rows": 8}'
    terminated = {"name": "spark-kubernetes-driver", "state": {"terminated": {"message": message}}}
    driver = {
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": "the-driver"},
        "status": {"containerStatuses": [terminated]},
    }
    completed = {"applicationState": {"state": "COMPLETED"}, "driverInfo": {"podName": "the-driver"}}
    found = in_memory(CLUSTER, a_load(PENDING, runner="SparkApplication"), spark(**completed), driver)
    assert look(found) == ENDED
    assert found.status("BatchLoad", "daily")["lastRun"]["rows"] == 8


def test_a_kubernetes_without_the_spark_operator_is_told() -> None:
    found = in_memory(CLUSTER, a_load(PENDING, runner="SparkApplication"))
    found.kube.refused["SparkApplication"] = KubeError(404, "NotFound", "no such kind")
    assert look(found) == SOON
    assert says(found) == (
        "False",
        "RunnerNotAvailable",
        "spec.runner: SparkApplication is not there in this Kubernetes: install Kubeflow's Spark operator, or choose "
        "Job",
    )
    found.kube.refused["SparkApplication"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        look(found)


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_a_runner_of_somebody_else_is_not_taken_for_ours(runner: str) -> None:
    metadata = {"namespace": "ns", "name": "daily-0001"}
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    theirs = {"kind": runner, "metadata": metadata, "status": complete}
    found = in_memory(CLUSTER, a_load(PENDING, runner=runner), theirs)
    with pytest.raises(NotOurs, match=f"^{runner} daily-0001 exists and does not belong to this BatchLoad"):
        look(found)
    assert found.kube.applied == []


def test_a_service_account_of_somebody_else_is_left_alone() -> None:
    theirs = {"kind": "ServiceAccount", "metadata": {"namespace": "ns", "name": "millstream-spark"}}
    found = in_memory(CLUSTER, a_load(PENDING), theirs)
    with pytest.raises(NotOurs, match=r"^ServiceAccount millstream-spark exists"):
        look(found)
    assert found.kube.applied == []
