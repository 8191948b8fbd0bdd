"""BatchLoads through the real API server, a running operator and a real broker: what runs them is made and followed.

The loads themselves run in e2e; here their pods may wait for an image for ever.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.broker import BrokerProcess
from millstream_harness.kube import Namespace, run, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess
from millstream_harness.tools import require

KIND = "batchload.millstream.dev"
SPARK_OPERATOR = "github.com/kubeflow/spark-operator/v2@v2.3.0"
SPARK_CRD = "sparkapplications.sparkoperator.k8s.io"
StartOperator = Callable[..., OperatorProcess]


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


def publish(broker: BrokerProcess, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce("flights", key=str(number), value=b"{}")
    assert producer.flush(20) == 0


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker()


@pytest.fixture
def operator(broker: BrokerProcess, namespace: Namespace, start_operator: StartOperator) -> OperatorProcess:
    namespace.apply(cluster())
    return start_operator({"default": broker.bootstrap})


def test_a_run_is_pinned_and_started_once(
    operator: OperatorProcess, namespace: Namespace, broker: BrokerProcess
) -> None:
    namespace.apply(a_load("daily", minRecords=100))
    namespace.wait_condition(KIND, "daily", status="False", reason="TopicNotFound")
    namespace.apply(topic("flights", partitions=3))
    waiting = namespace.wait_condition(KIND, "daily", "Succeeded", status="False", reason="WaitingForRecords")
    assert "lastRun" not in waiting["status"]

    publish(broker, 120)
    namespace.wait_condition(KIND, "daily", reason="RunPending")
    until("a Job", lambda: namespace.list("job"))
    status = namespace.get(KIND, "daily")["status"]
    assert (status["lastRun"]["name"], status["lastRun"]["state"]) == ("daily-0001", "Pending")
    assert sum(part["until"] - part["from"] for part in status["offsets"]) == 120
    told = json.loads(namespace.get("configmap", "daily-0001")["data"]["run.json"])
    assert told["offsets"] == status["offsets"]
    assert told["bootstrap"] == f"default-bootstrap.{namespace.name}.svc:9092"
    job = namespace.get("job", "daily-0001")
    assert job["metadata"]["ownerReferences"][0]["name"] == "daily"
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "millstream-spark"
    assert (
        namespace.get("rolebinding", "millstream-spark.clusterrole")["roleRef"]["name"] == "millstream-spark"
    )
    assert namespace.get("serviceaccount", "millstream-spark")

    # What comes later is not in this run, whatever happens to operator and Job.
    publish(broker, 50)
    operator.kill()
    namespace.kubectl("delete", "job", "daily-0001", "--cascade=foreground")
    operator.start()
    until("the Job again", lambda: namespace.list("job"))
    again = namespace.get(KIND, "daily")["status"]
    assert again["offsets"] == status["offsets"]
    assert again["lastRun"]["name"] == "daily-0001"

    # The pod waits for its volume, and the load says so.
    until("why it waits", lambda: "lake" in namespace.condition(KIND, "daily")["message"])

    namespace.kubectl("delete", KIND, "daily")
    own = ("-l", "millstream.dev/batch-load=daily")
    until("what the load owned is gone", lambda: not namespace.list("job,configmap,pod", *own))


def test_a_load_that_cannot_run_says_why_and_heals(
    operator: OperatorProcess, namespace: Namespace, broker: BrokerProcess
) -> None:
    namespace.apply(topic("flights"))
    namespace.apply(a_load("lost", output={"path": "/lake/flights"}))
    refused = namespace.wait_condition(KIND, "lost", status="False", reason="InvalidSpec")
    assert "spec.output.path: /lake/flights would be lost" in refused["status"]["conditions"][0]["message"]
    namespace.apply(a_load("early", clusterRef={"name": "later"}, minRecords=0))
    namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotFound")
    namespace.apply(cluster("later"))
    namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotReady")


@pytest.fixture
def spark_crd(tmp_path: Path) -> Iterator[Path]:
    """The Spark operator's own definition of a SparkApplication; installed by the test, taken away here."""
    told = subprocess.run(
        [require("go"), "mod", "download", "-json", SPARK_OPERATOR], capture_output=True, check=True
    )
    folder = Path(json.loads(told.stdout)["Dir"])
    if run("kubectl", "get", "crd", SPARK_CRD, "--ignore-not-found", "-o", "name"):
        pytest.fail(
            f"{SPARK_CRD} is in this Kubernetes already: this test needs one without the Spark operator"
        )
    yield folder / "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
    run("kubectl", "delete", "crd", SPARK_CRD, "--ignore-not-found")


def test_a_spark_application_is_made_once_it_can_be_and_followed(
    operator: OperatorProcess, namespace: Namespace, broker: BrokerProcess, spark_crd: Path
) -> None:
    namespace.apply(topic("flights"))
    namespace.apply(a_load("daily", runner="SparkApplication", minRecords=0))
    missing = namespace.wait_condition(KIND, "daily", status="False", reason="RunnerNotAvailable")
    assert "install Kubeflow's Spark operator, or choose Job" in missing["status"]["conditions"][0]["message"]

    run("kubectl", "apply", "--server-side", "-f", str(spark_crd))
    namespace.wait_condition(KIND, "daily", reason="RunPending")
    application = until("a SparkApplication", lambda: namespace.list(SPARK_CRD))[0]
    assert application["metadata"]["name"] == "daily-0001"
    assert application["spec"]["mode"] == "cluster"

    def tells(state: str, **more: str) -> None:
        status = {"applicationState": {"state": state, **more}, "driverInfo": {}}
        change = json.dumps({"status": status})
        namespace.kubectl(
            "patch", SPARK_CRD, "daily-0001", "--subresource=status", "--type=merge", "--patch", change
        )

    tells("RUNNING")
    namespace.wait_condition(KIND, "daily", reason="Running")
    tells("FAILED", errorMessage="driver container failed")
    failed = namespace.wait_condition(KIND, "daily", status="False", reason="RunFailed")
    assert failed["status"]["lastRun"]["error"] == "driver container failed"
    assert failed["status"]["lastRun"]["endTime"]

    # A changed spec after a failure is the next run; the first one stays as it was.
    generation = application["metadata"]["generation"]
    namespace.apply(
        a_load("daily", runner="SparkApplication", minRecords=0, spark={"driver": {"memory": "2g"}})
    )
    until("the next run", lambda: len(namespace.list(SPARK_CRD)) == 2)
    assert namespace.get(KIND, "daily")["status"]["lastRun"]["name"] == "daily-0002"
    assert namespace.get(SPARK_CRD, "daily-0001")["metadata"]["generation"] == generation
