"""Reconciles of a BatchLoad on Kubernetes: one records a run, the next one starts it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.kafka_records import EARLIEST, AdminError, TopicIdentity
from millstream_operator.kube import KubeError
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.reconcile.load_kubernetes import reconcile_load
from millstream_operator.reconcile.load_limits import check_image
from millstream_operator.reconcile.objects import NotOurs
from millstream_operator.resources.images import Images

AT_ONCE, SOON, ENDED = 0, 5, 300
CLUSTER = stored(cluster("default"))
BROKERS = {
    "identities": {"flights": TopicIdentity("T1", 1)},
    "offsets": lambda wanted: {one: 2 if when == EARLIEST else 10 for one, when in wanted.items()},
}
OFFSETS = [{"topic": "flights", "partition": 0, "from": 2, "until": 10, "topicId": "T1"}]
PENDING = {"lastRun": {"name": "daily-0001-u-daily", "state": "Pending"}, "offsets": OFFSETS}


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
    """One reconcile; ``seen``: the watch's view, if it differs from the stored one."""
    manifest = seen or found.kube.objects["BatchLoad", "daily"]
    return reconcile_load(found.services, decode_as(BatchLoad, manifest))


def says(found: InMemory, which: str = "Ready") -> tuple[str, str, str] | None:
    return found.condition("BatchLoad", "daily", which)


def run_state(found: InMemory) -> str:
    state: str = found.status("BatchLoad", "daily")["lastRun"]["state"]
    return state


def written(found: InMemory) -> list[str]:
    """Kinds of the applied objects, without the load's status."""
    return [one["kind"] for one in found.kube.applied if one["kind"] != "BatchLoad"]


def test_a_run_is_in_the_status_before_anything_is_started() -> None:
    found = in_memory(CLUSTER, a_load(), **BROKERS)
    assert look(found) == AT_ONCE
    assert found.status("BatchLoad", "daily")["offsets"] == OFFSETS
    assert written(found) == []
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"]
    assert run_state(found) == "Pending"


@pytest.mark.parametrize("before", ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"])
def test_an_operator_that_dies_between_two_writes_of_a_start(before: str) -> None:
    found = in_memory(CLUSTER, a_load(), **BROKERS)
    look(found)
    found.kube.refused[before] = KubeError(500, "", "died")
    with pytest.raises(KubeError, match="died"):
        look(found)
    found.kube.refused.clear()
    found.brokers.answers["offsets"] = lambda wanted: dict.fromkeys(wanted, 99)  # more records have arrived
    assert look(found) == SOON
    assert sorted(written(found)) == ["ConfigMap", "Job", "RoleBinding", "ServiceAccount"], "each once"
    told = json.loads(found.kube.objects["ConfigMap", "daily-0001-u-daily"]["data"]["run.json"])
    assert told["offsets"] == [{"topic": "flights", "partition": 0, "from": 2, "until": 10}]
    assert found.status("BatchLoad", "daily")["offsets"] == OFFSETS


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_a_run_keeps_its_runner_when_an_edit_names_another(runner: str) -> None:
    there, other = (a_job(), "SparkApplication") if runner == "Job" else (spark(), "Job")
    found = in_memory(CLUSTER, a_load(PENDING, runner=other), there)
    assert look(found) == SOON
    assert written(found) == []
    theirs = {**there, "metadata": {**OWN, "ownerReferences": [{"uid": "u-somebody"}]}}
    found = in_memory(CLUSTER, a_load(PENDING, runner=other), theirs)
    look(found)
    assert written(found)[-1] == other


def test_a_watch_that_is_behind_begins_no_second_run() -> None:
    found = in_memory(CLUSTER, a_load(PENDING), **BROKERS)
    assert look(found, seen=a_load()) == SOON
    assert found.brokers.asked == []
    assert found.kube.applied_names("Job") == ["daily-0001-u-daily"]


def test_a_load_that_is_gone_begins_nothing() -> None:
    assert look(in_memory(CLUSTER, **BROKERS), seen=a_load()) == ENDED


def test_a_deleted_load_is_left_to_kubernetes() -> None:
    found = in_memory(CLUSTER, {**a_load(), "metadata": {**a_load()["metadata"], **deleted(1)}}, **BROKERS)
    assert look(found) == ENDED
    assert found.kube.applied == []


def paused(found: InMemory, value: str | None = "true") -> InMemory:
    annotations = {"millstream.dev/paused": value} if value else {}
    found.kube.objects["BatchLoad", "daily"]["metadata"]["annotations"] = annotations
    return found


def test_a_paused_load_begins_no_run_until_it_is_resumed() -> None:
    found = paused(in_memory(CLUSTER, a_load(), **BROKERS))
    assert look(found) == SOON
    words = "no run starts: paused by annotation millstream.dev/paused; remove it to resume"
    assert says(found) == ("False", "ReconcilePaused", words)
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert "lastRun" not in found.status("BatchLoad", "daily")
    assert look(paused(found, None)) == AT_ONCE
    assert says(found, "Paused") is None
    assert run_state(found) == "Pending"


def test_a_run_that_has_begun_is_not_started_while_its_load_is_paused() -> None:
    found = paused(in_memory(CLUSTER, a_load(PENDING), **BROKERS))
    assert look(found) == SOON
    assert written(found) == []
    assert look(paused(found, None)) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"]


def test_a_run_that_was_started_goes_on_and_is_followed_when_its_load_is_paused() -> None:
    found = in_memory(CLUSTER, a_load(PENDING), **BROKERS)
    look(found)
    found.kube.applied.clear()
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    found.kube.objects["Job", "daily-0001-u-daily"]["status"] = ended
    look(paused(found))
    assert run_state(found) == "Succeeded"
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert written(found) == []
    look(paused(found, None))
    assert says(found, "Paused") is None
    look(paused(found))
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert run_state(found) == "Succeeded"


def test_a_load_waits_for_records() -> None:
    found = in_memory(CLUSTER, a_load(minRecords=9), **BROKERS)
    assert look(found) == SOON
    assert says(found, "Succeeded") == ("Unknown", "WaitingForRecords", "8 of 9 records")


def at(position: str, moment: Any) -> dict[str, Any]:
    if position == "Timestamp":
        return {"position": position, "timestamp": moment}
    offsets = [{"topic": "flights", "partition": 0, "offset": moment}]
    return {"position": position, "offsets": offsets}


@pytest.mark.parametrize(
    ("spec", "brokers", "there", "reason", "words"),
    [
        ({"output": {"path": "/lake"}}, BROKERS, True, "InvalidSpec", "allowed: a folder on a volume"),
        ({"spark": {"image": "mine"}}, BROKERS, True, "InvalidSpec", "spec.spark.image: mine is not allowed"),
        ({}, BROKERS, False, "ClusterNotFound", "default"),
        ({}, {"identities": {}}, True, "TopicNotFound", "flights in the cluster: create it, or correct"),
        (
            {"from": {"position": "Offsets", "offsets": []}},
            BROKERS,
            True,
            "InvalidSpec",
            "an offset for every partition is required; missing: flights-0",
        ),
        (
            {"from": at("Offsets", 5), "until": at("Offsets", 4)},
            BROKERS,
            True,
            "InvalidSpec",
            "spec.until: 4 of flights-0 is not allowed: it is before its spec.from; allowed: 5 or above",
        ),
        (
            {
                "from": at("Timestamp", "2026-11-20T00:00:00Z"),
                "until": at("Timestamp", "2026-11-19T00:00:00Z"),
            },
            BROKERS,
            True,
            "InvalidSpec",
            "it is before spec.from; allowed: 2026-11-20T00:00:00Z or later",
        ),
        (
            {},
            {**BROKERS, "identities": {"flights": TopicIdentity("T1", 20_000)}},
            True,
            "InvalidSpec",
            "spread the topics over several BatchLoads",
        ),
    ],
    ids=["output", "image", "cluster", "topic", "offsets", "until", "time", "partitions"],
)
def test_a_run_that_cannot_begin_says_why_and_is_tried_again(
    spec: dict[str, Any], brokers: dict[str, Any], there: bool, reason: str, words: str
) -> None:
    """Nothing that could change the table is started."""
    found = in_memory(*([CLUSTER] if there else []), a_load(**spec), **brokers)
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", reason)
    assert words in (says(found) or ())[2]
    assert "lastRun" not in found.status("BatchLoad", "daily")
    assert written(found) == []


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_a_run_that_has_ended_is_left_alone(state: str) -> None:
    found = in_memory(CLUSTER, a_load({"lastRun": {"name": "daily-0001", "state": state}}))
    assert look(found) == ENDED
    assert written(found) == []
    found.kube.applied.clear()
    assert look(found) == ENDED
    assert found.kube.applied == [], "nothing is written again"


def a_pod(run: str, phase: str, created: str = "1") -> dict[str, Any]:
    labels = {"millstream.dev/run": run}
    metadata = {"namespace": "ns", "name": f"{run}-{created}", "labels": labels, "creationTimestamp": created}
    metadata["ownerReferences"] = [{"kind": "Job", "uid": "u-job"}]
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


OWN = {
    "namespace": "ns",
    "name": "daily-0001-u-daily",
    "uid": "u-job",
    "ownerReferences": [{"kind": "BatchLoad", "uid": "u-daily"}],
}


def a_job(**status: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": OWN, "status": status}


def test_a_run_is_as_its_own_pods_are() -> None:
    others = a_pod("other-0001", "Pending", "2")
    found = in_memory(CLUSTER, a_load(PENDING), a_job(), a_pod("daily-0001-u-daily", "Running"), others)
    assert look(found) == SOON
    assert run_state(found) == "Running"
    assert written(found) == []


def test_a_run_ends_with_its_job() -> None:
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    found = in_memory(CLUSTER, a_load(PENDING), a_job(**complete))
    assert look(found) == ENDED
    assert run_state(found) == "Succeeded"


def test_a_runner_that_has_vanished_is_made_again_from_the_same_offsets() -> None:
    load = a_load({**PENDING, "lastRun": {"name": "daily-0001-u-daily", "state": "Running"}})
    file = {"kind": "ConfigMap", "metadata": OWN}
    found = in_memory(CLUSTER, load, file)
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "Job"]  # a run's file never changes
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
        pod = found.kube.objects["Job", "daily-0001-u-daily"]["spec"]["template"]["spec"]
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
    """Otherwise the author could have a valid run start with other code."""
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
    assert found.kube.applied_names("SparkApplication") == ["daily-0001-u-daily"]
    running = {"applicationState": {"state": "RUNNING"}}
    found = in_memory(CLUSTER, a_load(PENDING, runner="SparkApplication"), spark(**running))
    look(found)  # its driver has no pod yet
    assert run_state(found) == "Running"


def test_a_spark_application_tells_its_rows_by_its_driver() -> None:
    message = '{"run": "daily-0001-u-daily", "state": "Succeeded", "rows": 8}'
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
        "SparkApplication is not a kind of this Kubernetes: install Kubeflow's Spark operator, or set spec.runner to"
        " Job (runner: Job)",
    )
    found.kube.refused["SparkApplication"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        look(found)


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_a_runner_of_somebody_else_is_not_taken_for_ours(runner: str) -> None:
    metadata = {"namespace": "ns", "name": "daily-0001-u-daily"}
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    theirs = {"kind": runner, "metadata": metadata, "status": complete}
    found = in_memory(CLUSTER, a_load(PENDING, runner=runner), theirs)
    with pytest.raises(
        NotOurs, match=f"^{runner} daily-0001-u-daily exists and does not belong to this BatchLoad"
    ):
        look(found)
    assert found.kube.applied == []


def test_a_service_account_of_somebody_else_is_left_alone() -> None:
    theirs = {"kind": "ServiceAccount", "metadata": {"namespace": "ns", "name": "millstream-spark"}}
    found = in_memory(CLUSTER, a_load(PENDING), theirs)
    with pytest.raises(NotOurs, match=r"^ServiceAccount millstream-spark exists"):
        look(found)
    assert found.kube.applied == []


def of_a_run(kind: str, name: str, uid: str = "u-daily", **status: Any) -> dict[str, Any]:
    labels = {"millstream.dev/batch-load": "daily", "millstream.dev/run": name}
    metadata = {"namespace": "ns", "name": name, "labels": labels, "ownerReferences": [{"uid": uid}]}
    return {"kind": kind, "metadata": metadata, "status": status}


COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
LOADED = {
    "lastRun": {
        "name": "daily-0003-u-daily",
        "state": "Succeeded",
        "endTime": "2026-11-22T07:00:00Z",
        "rows": 8,
    },
    "runs": [{"name": "daily-0002-u-daily", "state": "Failed", "endTime": "2026-11-22T06:00:00Z"}],
    "committed": {
        "path": "s3a://bucket/flights",
        "from": "x",
        "offsets": [{"topic": "flights", "partition": 0, "offset": 4, "topicId": "T1"}],
    },
}


def test_a_pod_that_kubernetes_refuses_is_told() -> None:
    event = {
        "kind": "Event",
        "metadata": {"namespace": "ns", "name": "e"},
        "involvedObject": {"uid": "u-job"},
        "reason": "FailedCreate",
        "message": "exceeded quota: small",
    }
    found = in_memory(CLUSTER, a_load(PENDING), a_job(), event)
    assert look(found) == SOON
    words = "daily-0001-u-daily with 0 records waits for its pods: exceeded quota: small"
    assert says(found) == ("False", "PodsPending", words)
    assert (says(found, "Succeeded") or ())[0] == "Unknown"


def test_a_volume_that_cannot_be_mounted_is_told() -> None:
    """The pod's own status says only ContainerCreating."""
    pod = a_pod("daily-0001-u-daily", "Pending")
    pod["metadata"]["uid"] = "u-pod"
    events = [
        {
            "kind": "Event",
            "metadata": {"namespace": "ns", "name": f"e{number}"},
            "involvedObject": {"uid": "u-pod"},
            "reason": "FailedMount",
            "lastTimestamp": f"2026-11-22T07:00:0{number}Z",
            "message": message,
        }
        for number, message in enumerate(("an older one", "server nfs does not answer"))
    ]
    found = in_memory(CLUSTER, a_load(PENDING), a_job(), pod, *events)
    look(found)
    words = "daily-0001-u-daily with 0 records waits for its pods: server nfs does not answer"
    assert says(found) == ("False", "PodsPending", words)


REFUSED = (
    "io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at:"
    " https://kubernetes.default.svc/api/v1/namespaces/ns/pods. Message: pods"
    ' "daily-0001-u-daily-exec-1" is forbidden: exceeded quota: small, requested: memory=1Gi. Received status:'
    " Status(apiVersion=v1, code=403)."
)


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_executors_that_kubernetes_refuses_hold_the_run_up(runner: str) -> None:
    """No pod reports the refusal, only the driver's log."""
    driver = a_pod("daily-0001-u-daily", "Running")
    driver["metadata"]["uid"] = "u-driver"
    application = spark(
        applicationState={"state": "RUNNING"}, driverInfo={"podName": driver["metadata"]["name"]}
    )
    found = in_memory(
        CLUSTER, a_load(PENDING, runner=runner), a_job() if runner == "Job" else application, driver
    )
    container = "driver" if runner == "Job" else "spark-kubernetes-driver"
    look(found)
    assert (says(found) or ())[:2] == ("True", "Running")
    found.kube.logs[driver["metadata"]["name"], container] = ["26/11/21 WARN x", REFUSED, "\tat a.b.C"]
    assert look(found) == SOON
    refused = (
        'Kubernetes refuses its executors: pods "daily-0001-u-daily-exec-1" is forbidden: exceeded quota: small, '
        "requested: memory=1Gi"
    )
    assert says(found) == ("False", "PodsPending", f"daily-0001-u-daily loads 0 records: {refused}")
    assert (says(found, "Succeeded") or ())[:2] == ("Unknown", "PodsPending")
    executor = a_pod("daily-0001-u-daily", "Running", "2")
    executor["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "u-driver"}]
    found.kube.objects["Pod", executor["metadata"]["name"]] = executor
    look(found)
    assert (says(found) or ())[:2] == ("True", "Running")


def test_offsets_that_are_gone_when_a_run_reads_them_are_bad_data() -> None:
    pod = a_pod("daily-0001-u-daily", "Failed")
    report = '{"state": "Failed", "error": "offsets flights-0 2 to 5 are gone", "reason": "OffsetsGone"}'
    pod["status"]["containerStatuses"] = [{"name": "driver", "state": {"terminated": {"message": report}}}]
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}
    found = in_memory(CLUSTER, a_load(PENDING), a_job(**failed), pod)
    look(found)
    words = "daily-0001-u-daily: offsets flights-0 2 to 5 are gone"
    for which in ("Ready", "Succeeded", "DataQuality"):
        assert says(found, which) == ("False", "OffsetsGone", words)


def test_a_failed_run_keeps_the_end_of_its_drivers_log() -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    found = in_memory(CLUSTER, a_load(PENDING), a_job(**failed), a_pod("daily-0001-u-daily", "Failed"))
    found.kube.logs["daily-0001-u-daily-1", "driver"] = [f"line {number}" for number in range(50)] + [
        "x" * 5000
    ]
    assert look(found) == ENDED
    log = found.status("BatchLoad", "daily")["lastRun"]["log"]
    assert (len(log), log[0], len(log[-1])) == (20, "line 31", 400)


def test_a_run_that_takes_too_long_is_stopped() -> None:
    begun = {**PENDING, "lastRun": {**PENDING["lastRun"], "startTime": "2026-11-22T06:00:00Z"}}
    job = of_a_run("Job", "daily-0001-u-daily", active=1)
    found = in_memory(CLUSTER, a_load(begun, timeoutSeconds=3600), job)
    assert look(found) == ENDED
    assert (says(found) or ())[:2] == ("False", "DeadlineExceeded")
    assert ("Job", "daily-0001-u-daily") in found.kube.deleted


def test_what_a_load_has_not_loaded_is_its_lag() -> None:
    found = in_memory(CLUSTER, a_load(LOADED), **BROKERS)
    found.brokers.answers["offsets"] = lambda wanted: {
        one: 10 if when < 0 else 0 for one, when in wanted.items()
    }
    assert look(found) == ENDED
    status = found.status("BatchLoad", "daily")
    assert status["lag"]["records"] == 6
    assert status["lag"]["seconds"] > 0
    assert status["committed"]["offsets"][0]["lag"] == 6


def test_the_lag_stays_as_it_was_seen_while_brokers_do_not_answer() -> None:
    found = in_memory(
        CLUSTER, a_load({**LOADED, "lag": {"records": 5, "seconds": 9}}), identities=AdminError("no")
    )
    look(found)
    assert found.status("BatchLoad", "daily")["lag"] == {"records": 5, "seconds": 9}


def test_what_runs_have_left_goes_with_them() -> None:
    kept = [of_a_run(kind, name, **COMPLETE) for kind in ("Job", "ConfigMap") for name in
            ("daily-0003-u-daily", "daily-0002-u-daily")]  # fmt: skip
    old = [
        of_a_run(kind, "daily-0001-u-daily", **COMPLETE) for kind in ("Job", "ConfigMap", "SparkApplication")
    ]
    theirs = of_a_run("Job", "daily-0009-u-other", uid="u-other")
    found = in_memory(CLUSTER, a_load(LOADED), *kept, *old, theirs, **BROKERS)
    look(found)
    gone = {
        ("Job", "daily-0001-u-daily"),
        ("ConfigMap", "daily-0001-u-daily"),
        ("SparkApplication", "daily-0001-u-daily"),
    }
    assert set(found.kube.deleted) == gone


def test_a_run_outlives_its_end_by_its_ttl() -> None:
    jobs = [of_a_run("Job", name, **COMPLETE) for name in ("daily-0003-u-daily", "daily-0002-u-daily")]
    found = in_memory(CLUSTER, a_load(LOADED, ttlSecondsAfterFinished=5400), *jobs, **BROKERS)
    assert look(found) == ENDED
    assert found.kube.deleted == [
        ("Job", "daily-0002-u-daily")
    ]  # this one ended two hours ago, the last one an hour ago
    near = in_memory(CLUSTER, a_load(LOADED, ttlSecondsAfterFinished=3700), *jobs, **BROKERS)
    assert look(near) == 101


def test_without_the_spark_operator_nothing_of_it_is_looked_for() -> None:
    found = in_memory(CLUSTER, a_load(LOADED), of_a_run("ConfigMap", "daily-0001-u-daily"), **BROKERS)
    found.kube.refused["SparkApplication"] = KubeError(404, "NotFound", "no such kind")
    look(found)
    assert found.kube.deleted == [("ConfigMap", "daily-0001-u-daily")]
    found.kube.refused["SparkApplication"] = KubeError(403, "Forbidden", "no")
    with pytest.raises(KubeError, match="no"):
        look(found)


def test_a_schedule_is_looked_at_when_its_time_has_come() -> None:
    found = in_memory(CLUSTER, a_load(schedule={"cron": "0,1 * * * *"}), **BROKERS)  # it is 08:00:00
    assert look(found) == 60
    assert says(found) == ("True", "Scheduled", "the first run begins at 2026-11-22T08:01:00Z")
    assert written(found) == []


def iceberg(table: str) -> dict[str, Any]:
    return {"format": "Iceberg", "path": "/lake/warehouse", "volumeClaimName": "a", "table": table}


@pytest.mark.parametrize(
    ("theirs", "mine", "taken"),
    [
        ({"path": "s3a://bucket/flights/"}, {"path": "s3a://bucket/flights"}, "is"),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/others"}, ""),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/flights-b"}, ""),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/flights/b"}, "is inside"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake/x", "volumeClaimName": "a"}, "is"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake//./x/", "volumeClaimName": "a"}, "is"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake", "volumeClaimName": "a"}, "contains"),
        ({"path": "/lake/x", "volumeClaimName": "b"}, {"path": "/lake/x", "volumeClaimName": "a"}, ""),
        (iceberg("db.flights"), iceberg("db.flights"), "is"),
        (iceberg("db.flights"), iceberg("db.others"), ""),
    ],
)
def test_a_table_belongs_to_the_oldest_load(theirs: dict[str, Any], mine: dict[str, Any], taken: str) -> None:
    older = a_load(output=theirs)
    older["metadata"] |= {"name": "older", "uid": "u-older", "creationTimestamp": "2025-01-01T00:00:00Z"}
    found = in_memory(CLUSTER, older, a_load(output=mine), **BROKERS)
    assert look(found) == (SOON if taken else AT_ONCE)
    if taken:
        field = "table" if "table" in mine else "path"
        words = (
            f"spec.output.{field}: {mine[field]} {taken} the table of BatchLoad older, which is older: "
            f"choose another {field}"
        )
        assert (says(found) or ())[:2] == ("False", "ConflictingTable")
        assert (says(found) or ())[2].startswith(words)
        assert written(found) == []
    # The older load already has this table.
    assert reconcile_load(found.services, decode_as(BatchLoad, older)) == AT_ONCE
