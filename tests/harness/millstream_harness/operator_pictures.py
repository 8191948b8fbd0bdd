"""Draws the dashboards of loads and of the operator, from seven minutes of an operator on a real Kubernetes.

    make docs/images/dashboards/operator

It needs what `make e2e` needs, images included, and deletes as much. Three BatchLoads run every two minutes: one
whose records are all right, one with a corrupt record now and then, one that fails because it allows none. A broker's
pod is deleted, and comes back. A Prometheus on this machine scrapes the operator through `kubectl port-forward` and
evaluates the chart's rules.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from millstream_harness.chart import CLIENT, SYSTEM, endangered, gone, install, remove
from millstream_harness.dashboard_pictures import CHART, draw_all
from millstream_harness.kube import OF_TESTS, Json, Namespace, run, until
from millstream_harness.prometheus import PrometheusProcess, Target
from millstream_harness.rolls import OPEN

DRAWN: Final = ("loads", "operator")
SECONDS: Final = 420
PICTURES: Final = Namespace("e2e-pictures")
METRICS_PORT: Final = 8081
RECORDS: Final = {"orders": 400, "clicks": 900, "payments": 150}
"""Records in each step of ten seconds, by topic."""
CORRUPT: Final = {"orders": 0, "clicks": 3, "payments": 5}
"""How many of them are no JSON."""


def resources() -> Iterator[Json]:
    """A Cluster of one broker, its Topics, a volume, and a BatchLoad for each topic."""

    def resource(kind: str, name: str, spec: Json, version: str = "millstream.dev/v1alpha1") -> Json:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}

    yield resource(
        "PersistentVolumeClaim",
        "lake",
        {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "v1",
    )
    yield resource(
        "Cluster", "main", {"listenerDefaults": OPEN, "brokers": {"replicas": 1, "storage": {"size": "1Gi"}}}
    )
    for topic in RECORDS:
        yield resource("Topic", topic, {"clusterRef": {"name": "main"}, "partitions": 3})
        yield resource(
            "BatchLoad",
            f"{topic}-hourly",
            {
                "clusterRef": {"name": "main"},
                "topics": [topic],
                "schedule": {"cron": "*/2 * * * *"},
                "value": {
                    "format": "JSON",
                    "schema": "id BIGINT, amount DOUBLE",
                    "maxCorruptRecords": 0 if topic == "payments" else "5%",
                },
                "output": {"format": "Parquet", "path": f"/lake/{topic}", "volumeClaimName": "lake"},
                "runner": "Job",
                "retries": 0,
                "spark": {"driver": {"cores": 1, "memory": "1g"}},
            },
        )


def produce(topic: str, since: int) -> bool:
    """Write a step's records; true when they are acknowledged."""
    lines = [
        json.dumps({"id": since + number, "amount": number / 100}) if number >= CORRUPT[topic] else "no JSON"
        for number in range(RECORDS[topic])
    ]
    said = ["millstream", "--bootstrap", "main-bootstrap:9092", "produce", topic]
    PICTURES.client(*said, image=CLIENT, stdin="\n".join(lines).encode())
    return True


@contextlib.contextmanager
def forwarded(pod: str) -> Iterator[str]:
    """HOST:PORT of this machine that leads to the pod's metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["kubectl", "--namespace", SYSTEM.name, "port-forward", f"pod/{pod}", f"{port}:{METRICS_PORT}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as forward:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            forward.terminate()


def operator_pod() -> str:
    (pod,) = SYSTEM.list("pod", "-l", "app.kubernetes.io/component=operator")
    name: str = pod["metadata"]["name"]
    return name


def pictures(folder: Path, into: Path) -> None:
    if found := endangered():
        sys.exit(f"operator_pictures: the cluster has {found[0]}: this would delete it; take another cluster")
    remove()
    install(default_cluster=False)
    run("kubectl", "create", "namespace", PICTURES.name)
    run("kubectl", "label", "namespace", PICTURES.name, f"{OF_TESTS}=e2e")
    try:
        pod = operator_pod()
        with forwarded(pod) as address:
            labels = {"namespace": SYSTEM.name, "pod": pod}
            targets = [Target("millstream-operator", address, labels, honor_labels=True)]
            with PrometheusProcess(folder, targets, [CHART / "rules/millstream.yaml"]) as prometheus:
                begun = time.time()
                for each in resources():
                    PICTURES.apply(each)
                PICTURES.wait_condition("cluster.millstream.dev", "main", timeout=240)
                for topic in RECORDS:
                    PICTURES.wait_condition("topic.millstream.dev", topic)
                killed = False
                while (elapsed := time.time() - begun) < SECONDS:
                    if not killed and elapsed > SECONDS * 0.6:
                        PICTURES.kubectl("delete", "pod", "main-brokers-0", "--wait=false")
                        killed = True
                    for topic in RECORDS:
                        until(f"records are in {topic}", partial(produce, topic, int(elapsed) * 1000))
                    print(f"operator_pictures: {elapsed:.0f} of {SECONDS} s", flush=True)
                    time.sleep(10)
                draw_all(DRAWN, prometheus, begun + 5, time.time(), into)
    finally:
        run("kubectl", "delete", "namespace", PICTURES.name, "--wait=false")
        remove()
        gone(PICTURES.name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        pictures(Path(made), Path(sys.argv[1]))
