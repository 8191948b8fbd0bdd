"""examples/flights on a real Kubernetes, following its README: apply, publish, consume, load, break, delete.

The tests of this module are one story and run in their order: each continues from the one before.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

from flights import ROWS, events
from millstream_harness.chart import CLIENT, ROOT, SYSTEM, reconciles
from millstream_harness.kube import Namespace, kubeconfig, run, until
from millstream_harness.pages import shown
from millstream_harness.rolls import OPEN

pytestmark = pytest.mark.core

EXAMPLE = ROOT / "examples/flights"
LOADS = ROOT / "docs/loads.md"
MANIFESTS = ROOT / "spark-operator-jobs/manifests"
BOOTSTRAP = "default-bootstrap:9092"
LOAD = "batchload.millstream.dev"


def millstream_json(namespace: Namespace, *command: str) -> Any:
    """The output of a ``millstream`` command with ``--output json``, run in a pod."""
    said = namespace.client(
        "millstream", "--bootstrap", BOOTSTRAP, "--output", "json", *command, image=CLIENT
    )
    return json.loads(said)


def records_in(namespace: Namespace, topic: str) -> int:
    partitions = millstream_json(namespace, "topic", "describe", topic)["partitions"]
    return sum(one["latest"] - one["earliest"] for one in partitions)


def test_applying_the_example_makes_a_cluster_with_volumes(namespace: Namespace) -> None:
    namespace.apply(EXAMPLE)
    cluster = namespace.wait_condition("cluster.millstream.dev", "default", timeout=240)
    assert cluster["status"]["brokers"] == {"desired": 1, "ready": 1}
    assert cluster["status"]["bootstrap"] == f"default-bootstrap.{namespace.name}.svc:9092"
    stateful = namespace.get("statefulset", "default-brokers")
    assert stateful["status"]["readyReplicas"] == 1
    (claim,) = namespace.list("pvc", "-l", "millstream.dev/cluster=default")
    assert claim["status"]["phase"] == "Bound"
    assert {one["metadata"]["name"] for one in namespace.list("service")} >= {
        "default-brokers",
        "default-bootstrap",
    }
    assert namespace.list("pdb", "-l", "millstream.dev/cluster=default")
    (pod,) = namespace.list("pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_topic_group_and_load_say_how_they_are(namespace: Namespace) -> None:
    topic = namespace.wait_condition("topic.millstream.dev", "flights")
    assert topic["status"]["topicId"]
    assert topic["status"]["partitions"] == topic["spec"]["partitions"] == 6
    group = namespace.wait_condition("consumergroup.millstream.dev", "delay-watch")
    assert group["status"]["state"] == "Empty"
    namespace.wait_condition(
        LOAD,
        "flights-to-parquet",
        "Succeeded",
        status="Unknown",
        reason="WaitingForRecords",
    )
    columns = run("kubectl", "get", "millstream", "--namespace", namespace.name)
    for name in ("default", "flights", "delay-watch", "flights-to-parquet"):
        assert name in columns


def test_publishing_shows_as_size_and_lag(namespace: Namespace) -> None:
    lines = b"".join(event.carrier.encode() + b"\t" + event.value + b"\n" for event in events())
    namespace.client(
        "millstream", "--bootstrap", BOOTSTRAP, "produce", "flights", "--key-separator", "\\t",
        image=CLIENT, stdin=lines, timeout=600,
    )  # fmt: skip
    assert records_in(namespace, "flights") == ROWS
    until(
        "the group's lag is the year",
        lambda: namespace.lag("consumergroup", "delay-watch") == ROWS,
    )
    until(
        "the topic's size",
        lambda: namespace.get("topic.millstream.dev", "flights")["status"].get("sizeBytes", 0) > 1e6,
    )


def test_the_load_runs_once_and_reports_rows_and_offsets(namespace: Namespace) -> None:
    load = namespace.wait_condition(LOAD, "flights-to-parquet", "Succeeded", timeout=600)
    run_ = load["status"]["lastRun"]
    assert run_["state"] == "Succeeded"
    assert run_["rows"] == ROWS
    assert sum(one["until"] - one["from"] for one in load["status"]["offsets"]) == ROWS
    assert len(load["status"]["offsets"]) == 6


def test_the_driver_has_a_page_while_a_load_runs(namespace: Namespace, tmp_path: Path) -> None:
    """As docs/loads.md says; the load writes a file for each of the year's flights, so it runs until it is deleted."""
    kubeconfig(tmp_path / "kubeconfig", here=namespace.name)
    load = yaml.safe_load((EXAMPLE / "batch-load.yaml").read_text())
    load["metadata"]["name"] = "slow"
    load["spec"]["output"]["path"] = "/lake/slow"
    load["spec"]["spark"]["conf"] = {"spark.ui.enabled": "true", "spark.sql.files.maxRecordsPerFile": "1"}
    namespace.apply(load)

    def last_run() -> dict[str, Any]:
        last: dict[str, Any] = namespace.get(LOAD, "slow").get("status", {}).get("lastRun", {})
        assert last.get("state") not in ("Succeeded", "Failed"), last
        return last

    name = until("the run's name", lambda: last_run().get("name"))
    command = shown(LOADS, "kubectl port-forward job/NAME 4040", {" 4040": " :4040", "NAME": name})

    def page() -> list[dict[str, Any]]:
        last_run()
        return through(["env", f"KUBECONFIG={tmp_path / 'kubeconfig'}", *shlex.split(command)])

    (application,) = until("the driver's page", page)
    assert application["name"] == name
    assert not application["attempts"][0]["completed"]
    namespace.kubectl("delete", LOAD, "slow")
    until("its driver is gone", lambda: not namespace.list("pod", "-l", f"job-name={name}"), timeout=120)


def through(command: list[str]) -> list[dict[str, Any]]:
    """The applications that Spark's page lists, through a command that forwards a free port; empty if none answers."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        try:
            assert forward.stdout is not None
            line = forward.stdout.readline()
            port = re.match(r"Forwarding from 127\.0\.0\.1:(\d+) -> 4040", line)
            if port is None:
                return []
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port[1]}/api/v1/applications", timeout=20
            ) as said:
                found: list[dict[str, Any]] = json.load(said)
            return found
        except (OSError, HTTPException, json.JSONDecodeError):
            # nobody listens there yet, or the page says that Spark is starting
            return []
        finally:
            forward.terminate()


def test_other_jobs_run_by_their_manifests(namespace: Namespace) -> None:
    """A stream into its own table, in two batches, whose files are then merged."""
    table = {"output": {"format": "Delta", "path": "/lake/streamed"}}
    batches = {
        "value": {"format": "Text"},
        "checkpoint": "/lake/_checkpoints/streamed",
        "interval": "",
        "maxRecordsPerBatch": ROWS // 2 + 6,
    }
    assert run_job(namespace, "stream", table | batches)["rows"] == ROWS
    run_job(namespace, "compact", table | {"where": ""})
    assert "files became" in namespace.kubectl("logs", "job/flights-compact")


def run_job(namespace: Namespace, name: str, change: dict[str, Any]) -> dict[str, Any]:
    """Apply a job's manifests with this change of their run.json; return its result."""
    config = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
    config["data"]["run.json"] = json.dumps(json.loads(config["data"]["run.json"]) | change)
    job = (MANIFESTS / "job.yaml").read_text()
    job = job.replace("flights-by-hand", f"flights-{name}").replace("load.py", f"{name}.py")
    namespace.apply(config)
    namespace.apply(yaml.safe_load(job))
    selector = ("-l", f"job-name=flights-{name}")

    def ended() -> dict[str, Any]:
        statuses = [
            one["status"].get("containerStatuses", [{}])[0] for one in namespace.list("pod", *selector)
        ]
        states = [status["state"] for status in statuses if "terminated" in status.get("state", {})]
        return states[0]["terminated"] if states else {}

    result: dict[str, Any] = json.loads(until(f"the job {name} has ended", ended, timeout=300)["message"])
    assert result["state"] == "Succeeded", result
    return result


def test_a_group_of_two_consumes_it_all_and_its_lag_goes_to_zero(namespace: Namespace) -> None:
    """Two consumer pods; the resource shows members while they run."""
    for number in (1, 2):
        namespace.kubectl(
            "run", f"consumer-{number}", f"--image={CLIENT}", "--image-pull-policy=IfNotPresent", "--restart=Never",
            "--command", "--", "millstream", "--bootstrap", BOOTSTRAP, "--output", "json",
            "consume", "flights", "--group", "delay-watch", "--follow",
        )  # fmt: skip

    def seen() -> dict[str, Any]:
        status: dict[str, Any] = namespace.get("consumergroup", "delay-watch")["status"]
        return status

    def shared() -> bool:
        members = seen().get("members", [])
        assigned = sorted(partition for one in members for partition in one.get("partitions", ()))
        return len(members) == 2 and assigned == [f"flights-{number}" for number in range(6)]

    until("two members that share the partitions", shared, timeout=120)
    until("no lag", lambda: namespace.lag("consumergroup", "delay-watch") == 0, timeout=240)
    namespace.kubectl("delete", "pod", "consumer-1", "consumer-2", "--now")
    until("an empty group", lambda: seen()["state"] == "Empty" and not seen().get("members"), timeout=120)


def test_a_killed_broker_comes_back_with_everything(namespace: Namespace) -> None:
    before = namespace.get("topic.millstream.dev", "flights")["status"]["topicId"]
    (pod,) = namespace.list("pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker")
    namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")

    def another() -> bool:
        pods = namespace.list(
            "pod", "-l", "millstream.dev/cluster=default,app.kubernetes.io/component=broker"
        )
        return any(
            one["metadata"]["uid"] != pod["metadata"]["uid"]
            and any(
                c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", [])
            )
            for one in pods
        )

    until("another broker pod is ready", another, timeout=180)
    namespace.wait_condition("cluster.millstream.dev", "default")
    # the cluster's DNS may cache for some seconds that the pod was gone
    until("every record is there", lambda: records_in(namespace, "flights") == ROWS, timeout=60)
    assert namespace.get("topic.millstream.dev", "flights")["status"]["topicId"] == before
    until("no lag", lambda: namespace.lag("consumergroup", "delay-watch") == 0)


def test_a_killed_operator_goes_on_where_it_was(namespace: Namespace) -> None:
    SYSTEM.kubectl(
        "delete", "pod", "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force"
    )
    namespace.patch(
        "topic.millstream.dev",
        "flights",
        {"spec": {"partitions": 8, "config": {"retention.ms": "7200000000"}}},
    )
    until(
        "the topic has eight partitions",
        lambda: namespace.get("topic.millstream.dev", "flights")["status"]["partitions"] == 8,
        timeout=180,
    )
    namespace.wait_condition("topic.millstream.dev", "flights")
    load = namespace.get(LOAD, "flights-to-parquet")
    last = load["status"]["lastRun"]
    assert last["rows"] == ROWS, "the operator's restart must not run the load again"
    assert last["bytes"] > 0


def test_nothing_is_written_while_nothing_changes(namespace: Namespace) -> None:
    """After a while, no resource gets a newer version during several reconciles."""

    def versions() -> dict[str, str]:
        kinds = (
            "clusters,topics.millstream.dev,consumergroups,batchloads,statefulsets,configmaps,services,pdb"
        )
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for one in namespace.list(kinds)
        }

    before, reconciled = versions(), reconciles()

    def quiet() -> bool:
        """Whether nothing has been written during the last six reconciles."""
        nonlocal before, reconciled
        so_far, after = reconciles(), versions()
        if after != before:
            before, reconciled = after, so_far
        return so_far > reconciled + 5

    until("nothing is written", quiet, timeout=180, every=4)


def test_deleting_a_topic_does_as_its_policy_says(namespace: Namespace) -> None:
    for name, policy in (("kept", "Retain"), ("dropped", "Delete")):
        namespace.apply(
            {
                "apiVersion": "millstream.dev/v1alpha1",
                "kind": "Topic",
                "metadata": {"name": name},
                "spec": {"clusterRef": {"name": "default"}, "partitions": 1, "deletionPolicy": policy},
            }
        )
    for name in ("kept", "dropped"):
        namespace.wait_condition("topic.millstream.dev", name)
        namespace.kubectl("delete", "topic.millstream.dev", name)
    listed = {one["name"] for one in millstream_json(namespace, "topic", "list")}
    assert "kept" in listed
    assert "dropped" not in listed


def test_a_dangling_cluster_reference_says_so_and_heals(namespace: Namespace) -> None:
    manifest = {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "early"},
        "spec": {"clusterRef": {"name": "later"}, "partitions": 1},
    }
    namespace.apply(manifest)
    namespace.wait_condition("topic.millstream.dev", "early", status="False", reason="ClusterNotFound")
    cluster = namespace.get("cluster.millstream.dev", "default")
    spec = {"brokers": {"replicas": 1, "storage": {"size": "1Gi"}}, "listenerDefaults": OPEN}
    namespace.apply(
        {"apiVersion": cluster["apiVersion"], "kind": "Cluster", "metadata": {"name": "later"}, "spec": spec}
    )
    namespace.wait_condition("topic.millstream.dev", "early", timeout=240)
    namespace.kubectl("delete", "topic.millstream.dev", "early")
    namespace.kubectl("delete", "cluster.millstream.dev", "later")
    until(
        "its pods are gone",
        lambda: (
            not namespace.list("pod", "-l", "millstream.dev/cluster=later,app.kubernetes.io/component=broker")
        ),
        timeout=120,
    )
    claims = namespace.list("pvc", "-l", "millstream.dev/cluster=later")
    assert claims, "storage.deletionPolicy defaults to Retain: the volume stays"
