"""BatchLoads on the real API server, with a running operator and a real broker: their Jobs and statuses.

The loads themselves run in e2e; here their pods wait for an image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import Namespace, run, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess
from millstream_harness.spark_operator import definition

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
]
KIND = "batchload.millstream.dev"
SPARK_CRD = "sparkapplications.sparkoperator.k8s.io"


def a_load(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "BatchLoad",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "default"},
            "topics": ["flights"],
            "value": {"format": "JSON", "schema": "carrier STRING"},
            "output": {"path": "/lake/flights", "volumeClaimName": "lake"},
            **spec,
        },
    }


def publish(broker: InProcessBroker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce("flights", key=str(number), value=b"{}")
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def cluster_addresses(module_broker: InProcessBroker) -> dict[str, str]:
    return {"default": module_broker.bootstrap}


@pytest.fixture
def broker(empty_broker: InProcessBroker) -> InProcessBroker:
    return empty_broker


@pytest.fixture
def namespace(broker: InProcessBroker, watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(namespace: Namespace, shared_operator: OperatorProcess) -> OperatorProcess:
    namespace.apply(cluster())
    return shared_operator


def test_a_run_is_pinned_and_started_once(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker
) -> None:
    namespace.apply(a_load("daily", minRecords=100))
    namespace.wait_condition(KIND, "daily", status="False", reason="TopicNotFound")
    namespace.apply(topic("flights", partitions=3))
    waiting = namespace.wait_condition(
        KIND, "daily", "Succeeded", status="Unknown", reason="WaitingForRecords"
    )
    assert "lastRun" not in waiting["status"]

    publish(broker, 120)
    until("a Job", lambda: namespace.list("job"))
    found = namespace.get(KIND, "daily")
    status, name = found["status"], found["status"]["lastRun"]["name"]
    assert re.fullmatch(r"daily-0001-[0-9a-f]{8}", name)
    assert status["lastRun"]["state"] == "Pending"
    assert sum(part["until"] - part["from"] for part in status["offsets"]) == 120
    told = json.loads(namespace.get("configmap", name)["data"]["run.json"])
    pinned = [{key: value for key, value in part.items() if key != "topicId"} for part in status["offsets"]]
    assert told["offsets"] == pinned
    assert told["bootstrap"] == f"default-bootstrap.{namespace.name}.svc:9092"
    job = namespace.get("job", name)
    assert job["metadata"]["ownerReferences"][0]["name"] == "daily"
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "millstream-spark"
    assert (
        namespace.get("rolebinding", "millstream-spark.clusterrole")["roleRef"]["name"] == "millstream-spark"
    )
    assert namespace.get("serviceaccount", "millstream-spark")

    # Later records are not in this run, whatever happens to operator and Job.
    publish(broker, 50)
    operator.kill()
    namespace.kubectl("delete", "job", name, "--cascade=foreground")
    operator.start()
    until("the Job again", lambda: namespace.list("job"))
    again = namespace.get(KIND, "daily")["status"]
    assert again["offsets"] == status["offsets"]
    assert again["lastRun"]["name"] == name

    # The pod waits for its volume, and the load's status shows that. No scheduler is needed here.
    pod = until("a driver's pod", lambda: drivers(namespace, name))[0]["metadata"]["name"]
    why = {"reason": "Unschedulable", "message": 'persistentvolumeclaim "lake" not found'}
    change = json.dumps({"status": {"conditions": [{"type": "PodScheduled", "status": "False", **why}]}})
    namespace.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", change)
    until("why it waits", lambda: "lake" in namespace.condition(KIND, "daily")["message"])

    namespace.kubectl("delete", KIND, "daily")
    own = ("-l", "millstream.dev/batch-load=daily")
    until("what the load owned is gone", lambda: not namespace.list("job,configmap,pod", *own))


def end_well(namespace: Namespace, pod: dict[str, Any], run: str, rows: int) -> None:
    """Report the end of the pod's driver, as its node would."""
    message = json.dumps({"run": run, "state": "Succeeded", "rows": rows, "corruptRecords": 0, "error": ""})
    driver = {"name": "driver", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    ended = {"exitCode": 0, "reason": "Completed", "message": message}
    status = {"phase": "Succeeded", "containerStatuses": [{**driver, "state": {"terminated": ended}}]}
    change = json.dumps({"status": status})
    name = pod["metadata"]["name"]
    namespace.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "--patch", change)


@pytest.mark.parametrize("cascade", ["orphan", "background"])
def test_a_load_that_is_made_again_has_nothing_of_its_predecessors_runs(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, cascade: str
) -> None:
    namespace.apply(topic("flights"))
    publish(broker, 10)
    namespace.apply(a_load("daily", output={"path": "/lake/old", "volumeClaimName": "lake"}))
    old_run = last_run(namespace, 1)
    old = until("a driver's pod", lambda: drivers(namespace, old_run))[0]
    # The pod outlives its BatchLoad, and succeeds beside the next one.
    hold = json.dumps(
        {"metadata": {"finalizers": ["millstream.dev/test", *old["metadata"].get("finalizers", ())]}}
    )
    namespace.kubectl("patch", "pod", old["metadata"]["name"], "--type=merge", "--patch", hold)
    namespace.kubectl("delete", KIND, "daily", f"--cascade={cascade}")
    namespace.apply(a_load("daily", output={"path": "/lake/new", "volumeClaimName": "lake"}))
    try:
        end_well(namespace, old, old_run, 1046)
        run = last_run(namespace, 1)
        assert run != old_run
        label = f"millstream.dev/run={run}"
        driver = until("a driver of its own", lambda: namespace.list("pod", "-l", label))[0]
        told = json.loads(namespace.get("configmap", run)["data"]["run.json"])
        assert told["output"]["path"] == "/lake/new"
        assert namespace.get(KIND, "daily")["status"]["lastRun"]["state"] == "Pending"
        end_well(namespace, driver, run, 10)
        ended = namespace.wait_condition(KIND, "daily", "Succeeded", status="True")
        assert (ended["status"]["lastRun"]["name"], ended["status"]["lastRun"]["rows"]) == (run, 10)
    finally:
        free = json.dumps({"metadata": {"finalizers": []}})
        namespace.kubectl("patch", "pod", old["metadata"]["name"], "--type=merge", "--patch", free)


def drivers(namespace: Namespace, run: str) -> list[dict[str, Any]]:
    return namespace.list("pod", "-l", f"millstream.dev/run={run}")


def last_run(namespace: Namespace, number: int) -> str:
    """Wait for the run of this number; return its name."""

    def begun() -> str | None:
        run = namespace.get(KIND, "daily").get("status", {}).get("lastRun", {}).get("name", "")
        return run if run.startswith(f"daily-{number:04d}-") else None

    return until(f"run {number}", begun, timeout=200, every=2)


def test_a_schedule_continues_where_the_last_success_ended_and_an_edit_is_acted_on(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker
) -> None:
    namespace.apply(topic("flights"))
    publish(broker, 10)
    every_minute = {"cron": "* * * * *"}
    namespace.apply(a_load("daily", schedule=every_minute, successfulRunsHistoryLimit=0))
    first = last_run(namespace, 1)
    driver = until("a driver", lambda: drivers(namespace, first))[0]
    # The load's status shows the node's message about the missing image.
    no_image = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    state = {
        "name": "driver",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": no_image,
    }
    change = json.dumps({"status": {"containerStatuses": [state]}})
    name = driver["metadata"]["name"]
    namespace.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "--patch", change)
    namespace.wait_condition(KIND, "daily", status="False", reason="PodsPending")
    publish(broker, 5)
    end_well(namespace, driver, first, 10)
    # The next scheduled run loads the new records, and the first run is cleaned up.
    second = last_run(namespace, 2)
    status = namespace.get(KIND, "daily")["status"]
    assert [(part["from"], part["until"]) for part in status["offsets"]] == [(10, 15)]
    assert [part["offset"] for part in status["committed"]["offsets"]] == [10]
    until(
        "only the last run is left",
        lambda: [one["metadata"]["name"] for one in namespace.list("job")] == [second],
    )
    end_well(namespace, until("a driver", lambda: drivers(namespace, second))[0], second, 5)
    until(
        "the end of run 2",
        lambda: namespace.get(KIND, "daily")["status"]["committed"]["offsets"][0]["offset"] == 15,
    )
    # Without a schedule, an edit starts a run: into another table, from the start.
    namespace.apply(a_load("daily", output={"path": "/lake/other", "volumeClaimName": "lake"}))

    def of_the_edit() -> dict[str, Any] | None:
        found = namespace.get(KIND, "daily")["status"]
        return found if found["lastRun"].get("path") == "/lake/other" else None

    edited = until("the run of the edit", of_the_edit)
    assert [(part["from"], part["until"]) for part in edited["offsets"]] == [(0, 15)]
    assert edited["observedGeneration"] == namespace.get(KIND, "daily")["metadata"]["generation"]


def test_a_load_that_cannot_run_says_why_and_heals(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker
) -> None:
    namespace.apply(topic("flights"))
    namespace.apply(a_load("lost", output={"path": "/lake/flights"}))
    refused = namespace.wait_condition(KIND, "lost", status="False", reason="InvalidSpec")
    assert "spec.output.path: /lake/flights would be lost" in refused["status"]["conditions"][0]["message"]
    namespace.apply(a_load("early", clusterRef={"name": "later"}, minRecords=0))
    namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotFound")
    namespace.apply(cluster("later"))
    namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotReady")
    namespace.apply(a_load("odd", schedule={"cron": "61 * * * *"}))
    refused = namespace.wait_condition(KIND, "odd", status="False", reason="InvalidSpec")
    said = refused["status"]["conditions"][0]["message"]
    assert "cron: '61 * * * *' is not allowed: bad minute; expected minute hour" in said
    assert not namespace.list("job,configmap", "-l", "app.kubernetes.io/name=millstream-load")


@pytest.fixture
def spark_crd(tmp_path: Path) -> Iterator[Path]:
    """The Spark operator's CRD of SparkApplication: the test installs it, this fixture deletes it."""
    if run("kubectl", "get", "crd", SPARK_CRD, "--ignore-not-found", "-o", "name"):
        pytest.fail(
            f"{SPARK_CRD} is in this Kubernetes already: this test needs one without the Spark operator"
        )
    yield definition("sparkapplications")
    run("kubectl", "delete", "crd", SPARK_CRD, "--ignore-not-found")


def test_a_spark_application_is_made_once_it_can_be_and_followed(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, spark_crd: Path
) -> None:
    namespace.apply(topic("flights"))
    publish(broker, 10)
    namespace.apply(a_load("daily", runner="SparkApplication"))
    missing = namespace.wait_condition(KIND, "daily", status="False", reason="RunnerNotAvailable")
    assert (
        "install Kubeflow's Spark operator, or set spec.runner: Job"
        in missing["status"]["conditions"][0]["message"]
    )

    run("kubectl", "apply", "--server-side", "-f", str(spark_crd))
    namespace.wait_condition(KIND, "daily", reason="RunPending")
    application = until("a SparkApplication", lambda: namespace.list(SPARK_CRD))[0]
    first = application["metadata"]["name"]
    assert first == namespace.get(KIND, "daily")["status"]["lastRun"]["name"]
    assert application["spec"]["mode"] == "cluster"

    def tells(state: str, **more: str) -> None:
        status = {"applicationState": {"state": state, **more}, "driverInfo": {}}
        change = json.dumps({"status": status})
        namespace.kubectl(
            "patch", SPARK_CRD, first, "--subresource=status", "--type=merge", "--patch", change
        )

    tells("RUNNING")
    namespace.wait_condition(KIND, "daily", reason="Running")
    tells("FAILED", errorMessage="driver container failed")
    failed = namespace.wait_condition(KIND, "daily", status="False", reason="RunFailed")
    assert failed["status"]["lastRun"]["error"] == "driver container failed"
    assert failed["status"]["lastRun"]["endTime"]

    # After a failure, a changed spec starts the next run; the first run stays as it was.
    generation = application["metadata"]["generation"]
    namespace.apply(a_load("daily", runner="SparkApplication", spark={"driver": {"memory": "2g"}}))
    until("the next run", lambda: len(namespace.list(SPARK_CRD)) == 2)
    assert namespace.get(KIND, "daily")["status"]["lastRun"]["name"].startswith("daily-0002-")
    assert namespace.get(SPARK_CRD, first)["metadata"]["generation"] == generation
