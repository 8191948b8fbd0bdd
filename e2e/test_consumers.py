"""examples/workload on a real Kubernetes: consumers start with the lag, replace a deleted pod, and stop."""

from __future__ import annotations

import json
from pathlib import Path

from millstream_harness.chart import CLIENT
from millstream_harness.kube import CommandFailed, Json, Namespace, kubeconfig, until
from millstream_harness.kubernetes_pages import WORKLOAD

KIND, NAME = "consumergroup.millstream.dev", "workers"
CONSUMERS = "app.kubernetes.io/name=millstream-consumers,app.kubernetes.io/instance=workers"
COUNT = 1_500


def millstream(namespace: Namespace, *command: str, stdin: bytes = b"") -> str:
    return namespace.client(
        "millstream", "--bootstrap", "work-bootstrap:9092", *command, image=CLIENT, stdin=stdin
    )


def produce(namespace: Namespace, numbers: range) -> None:
    millstream(namespace, "produce", "jobs", stdin="".join(f"{number}\n" for number in numbers).encode())


def described(namespace: Namespace) -> Json:
    found: Json = json.loads(millstream(namespace, "--output", "json", "group", "describe", NAME))
    return found


def consumers(namespace: Namespace) -> list[Json]:
    pods = namespace.list("pod", "-l", CONSUMERS)
    return [one for one in pods if "deletionTimestamp" not in one["metadata"]]


class Logs:
    """The consumers' output, including that of deleted pods."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._read: set[int] = set()

    def have(self, numbers: range) -> bool:
        for pod in self._namespace.list("pod", "-l", CONSUMERS):
            try:
                said = self._namespace.kubectl("logs", pod["metadata"]["name"])
            except CommandFailed:  # not running yet, or just gone
                continue
            self._read.update(int(line) for line in said.splitlines() if line.isdecimal())
        return self._read.issuperset(numbers)


def test_consumers_come_with_the_lag_replace_a_deleted_pod_and_go(
    namespace: Namespace, tmp_path: Path
) -> None:
    kubeconfig(tmp_path / "kubeconfig", here=namespace.name)
    WORKLOAD.run(tmp_path, env={"KUBECONFIG": str(tmp_path / "kubeconfig")})
    namespace.patch(KIND, NAME, {"spec": {"workload": {"scaling": {"stabilizationSeconds": 30}}}})
    namespace.wait_condition(KIND, NAME)
    assert not consumers(namespace), "nothing is there to read"

    logs = Logs(namespace)
    produce(namespace, range(COUNT))
    until("every record read", lambda: logs.have(range(COUNT)))
    namespace.wait_condition(KIND, NAME, "WorkloadReady")

    first, *_ = consumers(namespace)
    namespace.kubectl("delete", "pod", first["metadata"]["name"])
    produce(namespace, range(COUNT, 2 * COUNT))
    until("every record read without that pod", lambda: logs.have(range(2 * COUNT)))

    def at_rest() -> bool:
        replicas = namespace.get(KIND, NAME)["status"]["replicas"]
        return not consumers(namespace) and namespace.lag(KIND, NAME) == replicas == 0

    until("no consumer", at_rest, timeout=240)
    assert namespace.get("deployment", "workers-consumers")["spec"]["replicas"] == 0
    assert described(namespace)["lag"] == 0
