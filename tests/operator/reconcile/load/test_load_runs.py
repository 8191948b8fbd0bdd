"""Reconciles of a BatchLoad whose run was started: they follow it, say why it fails, and clear up after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from millstream_harness.in_memory import in_memory
from millstream_harness.load_looks import (
    BROKERS,
    CLUSTER,
    ENDED,
    OWN,
    PENDING,
    SOON,
    a_job,
    a_load,
    a_pod,
    look,
    run_state,
    says,
    spark,
    written,
)
from millstream_operator.kafka.records import AdminError, Partition
from millstream_operator.kubernetes.client import KubeError


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_a_run_that_has_ended_is_left_alone(state: str) -> None:
    found = in_memory(CLUSTER, a_load({"lastRun": {"name": "daily-0001", "state": state}}))
    assert look(found) == ENDED
    assert written(found) == []
    found.kube.applied.clear()
    assert look(found) == ENDED
    assert found.kube.applied == [], "nothing is written again"


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
    told = {"run.json": json.dumps({"bootstrap": "default-bootstrap.ns.svc:9092"})}
    found = in_memory(CLUSTER, load, {"kind": "ConfigMap", "metadata": OWN, "data": told})
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "Job"]  # what a run is told never changes
    assert run_state(found) == "Running"


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
        "SparkApplication is not a kind of this Kubernetes: install Kubeflow's Spark operator, or set spec.runner:"
        " Job",
    )
    found.kube.refused["SparkApplication"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        look(found)


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
    """The pod itself says no more than ContainerCreating."""
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
    """There is no pod of theirs that could say so, only the driver's log."""
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

    def offsets(wanted: Mapping[Partition, int], *, read_committed: bool = False) -> dict[Partition, int]:
        """Each log ends at 10, and a transaction is open behind that."""
        end = 10 if read_committed else 12
        return {one: end if when < 0 else 0 for one, when in wanted.items()}

    found.brokers.answers["offsets"] = offsets
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
    ]  # it ended two hours ago, the last one an hour
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
