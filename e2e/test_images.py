"""The images on a real Kubernetes: their sizes, and pods as OpenShift runs them.

There, pods satisfy the restricted standard and run as a user that no image knows, in group 0.

The test plays OpenShift's admission: it gives the pods from the operator's builders (``operator.userIds: Assigned``) a
user and a group for their volumes, and a volume of that group, which not every storage class here provides.
"""

from __future__ import annotations

import json

import pytest
import yaml
from msgspec import structs

from millstream_harness.chart import CLIENT, SYSTEM, VERSION
from millstream_harness.kube import Json, Namespace, run, until
from millstream_harness.loads import a_load, started
from millstream_operator.models import Cluster, decode_as
from millstream_operator.resources import load as common
from millstream_operator.resources.cluster import (
    bootstrap_of,
    bootstrap_service,
    brokers_service,
    config_map,
    stateful_set,
)
from millstream_operator.resources.images import Images, SparkRole
from millstream_operator.resources.listeners import broker_services
from millstream_operator.resources.load_job import job
from millstream_operator.resources.load_run_file import run_name
from millstream_operator.resources.pod_access import PodAccess
from millstream_operator.resources.volumes import UserIds
from millstream_operator.resources.zookeeper import objects as zookeeper_objects

pytestmark = pytest.mark.core

USER = 1_000_650_000
MB = 1_000_000
LARGEST = {"broker": 180 * MB, "client": 180 * MB, "operator": 250 * MB}
WHERE = r"""
import os
import socket

from pyspark.sql import SparkSession

context = SparkSession.builder.getOrCreate().sparkContext
print("driver", socket.gethostname())
ran = context.parallelize(range(10), 2).map(lambda _: f"executor {socket.gethostname()} {os.getuid()}").distinct()
print(*ran.collect())
"""
NAME = "assigned"
BROKERS = 2


def admitted(manifest: Json) -> Json:
    """A manifest of the builders after OpenShift's admission, without a Cluster."""
    manifest["metadata"].pop("ownerReferences", None)
    if manifest["kind"] == "StatefulSet":
        (claim,) = manifest["spec"].pop("volumeClaimTemplates")
        manifest["spec"].pop("persistentVolumeClaimRetentionPolicy")
        pod = as_any_user(manifest["spec"]["template"]["spec"])
        pod.setdefault("volumes", []).append({"name": claim["metadata"]["name"], "emptyDir": {}})
    return manifest


def as_any_user(pod: Json) -> Json:
    assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(pod["securityContext"])
    pod["securityContext"] |= {"runAsUser": USER, "fsGroup": USER}
    return pod


def test_brokers_and_zookeeper_run_as_any_user(millstream: Namespace, namespace: Namespace) -> None:
    spec = {
        "brokers": {"replicas": BROKERS, "storage": {"size": "1Gi"}},
        "zookeeper": {"replicas": 1, "storage": {"size": "1Gi"}},
    }
    metadata = {"name": NAME, "namespace": namespace.name, "uid": "none"}
    wanted = decode_as(
        Cluster,
        {"apiVersion": "millstream.dev/v1alpha1", "kind": "Cluster", "metadata": metadata, "spec": spec},
    )
    namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    broker_image, zookeeper_image = f"millstream/broker:{VERSION}", "zookeeper:3.9"
    for manifest in (
        *zookeeper_objects(
            wanted, image=zookeeper_image, pull_policy="IfNotPresent", user_ids=UserIds.ASSIGNED
        ),
        config_map(wanted, BROKERS, {}, None),
        brokers_service(wanted),
        bootstrap_service(wanted),
        *broker_services(wanted, BROKERS),
        stateful_set(wanted, image=broker_image, pull_policy="IfNotPresent", user_ids=UserIds.ASSIGNED),
    ):
        namespace.apply(admitted(manifest))
    pods = [f"pod/{NAME}-brokers-{number}" for number in range(BROKERS)]
    for pod in pods:
        until(f"{pod} is there", lambda pod=pod: namespace.kubectl("get", pod, "--ignore-not-found"))  # type: ignore[misc]
    namespace.kubectl("wait", "--for=condition=Ready", *pods, "--timeout=120s", timeout=150)
    who = namespace.kubectl("exec", f"{NAME}-brokers-0", "--", "id")
    assert f"uid={USER} gid=0(root)" in who

    security = {
        "runAsUser": USER,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    said = run_once(
        namespace,
        security,
        "set -e; m='millstream --bootstrap " + bootstrap_of(wanted) + "'; "
        # The Service has the pods as endpoints a moment after they are ready.
        "for i in $(seq 30); do ! $m cluster info >/dev/null 2>&1 || break; sleep 1; done; "
        "$m topic create t --partitions 2 --replication-factor 2; seq 1000 | $m produce t; $m topic describe t; "
        "$m consume t | wc -l",
    )
    assert said.splitlines()[-1].strip() == "1000"


def test_a_driver_and_its_executors_run_as_any_user(millstream: Namespace, namespace: Namespace) -> None:
    """The pod of a load's Job, with a small job instead of the load's."""
    images = Images(user_ids=UserIds.ASSIGNED)
    spark = {"driver": {"memory": "512m"}, "executor": {"instances": 1, "memory": "512m"}}
    load = started(a_load(output={"path": "s3a://nowhere/flights"}, spark=spark))
    load = structs.replace(load, metadata=structs.replace(load.metadata, namespace=namespace.name))
    files = admitted(common.config_map(load, PodAccess("nowhere:9092"), images))
    executor = yaml.safe_load(files["data"][common.EXECUTOR_FILE])
    as_any_user(executor["spec"])
    files["data"][common.EXECUTOR_FILE] = yaml.safe_dump(executor)
    role = SparkRole("ClusterRole", "millstream-system:millstream-operator-spark")
    for manifest in (
        files,
        common.service_account(namespace.name),
        common.role_binding(namespace.name, role),
    ):
        namespace.apply(manifest)
    pod = as_any_user(job(load, images)["spec"]["template"]["spec"])
    (driver,) = pod["containers"]
    *submit, _, _ = driver["args"]
    script = f"id; printf '{WHERE}' > /tmp/where.py; exec {driver['command'][0]} \"$@\" /tmp/where.py"
    driver |= {"command": ["sh", "-c", script, "sh"], "args": submit}
    said = run_pod(namespace, "driver", pod, timeout=300)
    assert f"uid={USER}(assigned) gid=0(root)" in said
    assert "driver driver" in said
    assert f"executor {run_name(load)}-exec-1 {USER}" in said


def run_once(namespace: Namespace, security: Json, script: str) -> str:
    """The output of a client's pod."""
    container = {
        "name": "client",
        "image": CLIENT,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "securityContext": security,
    }
    return run_pod(namespace, "client", {"restartPolicy": "Never", "containers": [container]})


def run_pod(namespace: Namespace, name: str, spec: Json, *, timeout: float = 120.0) -> str:
    """The pod's output, once it has succeeded."""
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    ended = ("Succeeded", "Failed")
    until(f"{name} has ended", lambda: namespace.get("pod", name)["status"].get("phase") in ended, timeout)
    said = namespace.kubectl("logs", name)
    assert namespace.get("pod", name)["status"]["phase"] == "Succeeded", said
    return said


def test_the_operator_runs_as_any_user(millstream: Namespace) -> None:
    deployment = "deployment/millstream-operator"
    before = SYSTEM.get("deployment", "millstream-operator")["spec"]["template"]["spec"]["securityContext"]
    change = {"runAsUser": USER, "runAsGroup": 0, "fsGroup": None}
    try:
        SYSTEM.patch(
            "deployment",
            "millstream-operator",
            {"spec": {"template": {"spec": {"securityContext": change}}}},
        )
        SYSTEM.kubectl("rollout", "status", deployment, "--timeout=120s", timeout=150)
        assert f"uid={USER} gid=0(root)" in SYSTEM.kubectl("exec", deployment, "--", "id")
    finally:
        SYSTEM.patch(
            "deployment",
            "millstream-operator",
            {"spec": {"template": {"spec": {"securityContext": {**dict.fromkeys(change), **before}}}}},
        )
        SYSTEM.kubectl("rollout", "status", deployment, "--timeout=120s", timeout=150)


@pytest.mark.parametrize(("name", "bytes_"), LARGEST.items(), ids=LARGEST)
def test_an_image_is_small(millstream: Namespace, name: str, bytes_: int) -> None:
    """The size on a node, unpacked if it was loaded unpacked. Nodes report images periodically."""
    (size,) = until(f"a node has {name}", lambda: sizes_of(f"millstream/{name}:{VERSION}"))
    assert size <= bytes_


def sizes_of(image: str) -> set[int]:
    """In bytes, as reported by the nodes; empty before any report."""
    nodes = json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]
    images = [one for node in nodes for one in node["status"]["images"]]
    return {one["sizeBytes"] for one in images if any(name.endswith(image) for name in one["names"] or ())}
