"""A Cluster of three brokers under a steady load, and a producer's view of planned work on it.

The producer runs in a pod, with librdkafka's defaults (paced_producer.py), so it finds the brokers like every client in
Kubernetes. Each step measures the longest time between two acknowledgements of a partition.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import AdminError

from . import kill_in_pod, paced_producer
from .chart import CLIENT
from .kube import CommandFailed, Json, Namespace, until
from .ledger import Ledger, Load, check

KILLER = "killer"
KIND, TOPIC_KIND = "cluster.millstream.dev", "topic.millstream.dev"
CLUSTER, TOPIC, PRODUCER = "rolls", "paced", "producer"
PARTITIONS, RATE = 6, 100
BROKERS = f"millstream.dev/cluster={CLUSTER},app.kubernetes.io/component=broker"
ZOOKEEPER = f"millstream.dev/cluster={CLUSTER},app.kubernetes.io/component=zookeeper"
ALL = f"millstream.dev/cluster={CLUSTER}"
OPEN: Json = {"tls": "Disabled", "authentication": {"type": "None"}}
"""For clients without a login."""
BOUND_S = 2.0
"""The longest gap of any planned step. The goal is 1 s; on a machine with a load average of 37 one had 1.08 s."""
KILLED_BOUND_S = 4.0
"""The longest gap after a broker's process was killed: shorter than its ZooKeeper session, so its end was noticed."""


def resource(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "millstream.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@dataclass
class Paced:
    """The producer in its pod, and its delivery reports so far."""

    namespace: Namespace
    service: str = f"{CLUSTER}-bootstrap"
    port: int = 9092
    ledger: Ledger = field(default_factory=Ledger)
    times: dict[int, list[float]] = field(default_factory=lambda: {one: [] for one in range(PARTITIONS)})
    """When each partition acknowledged records, in Unix time."""
    pod: str = PRODUCER
    config: dict[str, str] = field(default_factory=dict)
    """More of librdkafka's configuration."""
    left: int | None = None
    _lines: int = 0

    def start(self) -> None:
        code = Path(paced_producer.__file__).read_text()
        bootstrap = f"{self.service}.{self.namespace.name}.svc:{self.port}"
        self.namespace.kubectl(
            "run", self.pod, f"--image={CLIENT}", "--image-pull-policy=IfNotPresent", "--restart=Never", "--command",
            "--", "python3", "-c", code, bootstrap, TOPIC, str(PARTITIONS), str(RATE), json.dumps(self.config),
        )  # fmt: skip

    def read(self) -> None:
        """Read its new output."""
        lines = self.namespace.kubectl("logs", self.pod).splitlines()
        for line in lines[self._lines :]:
            if line.startswith("%"):  # librdkafka's own, on standard error
                continue
            words = line.split()
            if words[0] == "failed":
                self.ledger.failed.append(line)
            elif words[0] == "end":
                self.left = int(words[1])
            else:
                partition, number, offset = map(int, words[:3])
                self.ledger.acknowledged[partition][number] = offset
                self.ledger.sent[partition] = number + 1
                self.times[partition].append(float(words[3]))
        self._lines = len(lines)

    def goes_on(self) -> None:
        """Wait until every partition has acknowledged records sent after now."""
        now = time.time()

        def acknowledged() -> bool:
            self.read()
            return all(times and times[-1] > now + 1 for times in self.times.values())

        until("acknowledgements of every partition", acknowledged, timeout=120)

    def gaps(self, since: float) -> list[float]:
        """The longest time between two acknowledgements of each partition since then, in seconds."""
        self.read()
        found = []
        for times in self.times.values():
            ours = [one for one in times if one >= since]
            found.append(max(after - before for before, after in zip([since, *ours], ours, strict=False)))
        return found

    def stop(self) -> None:
        self.namespace.kubectl("exec", self.pod, "--", "python3", "-c", "import os; os.kill(1, 15)")

        def ended() -> bool:
            self.read()
            return self.left is not None

        until("the producer's end", ended)


def under_load(namespace: Namespace, *, outside: bool = False) -> Paced:
    """The ready Cluster with its Topic and the running producer. ``outside``: at the external listener."""
    spec: Json = {
        "brokers": {
            "replicas": 3,
            "storage": {"size": "1Gi"},
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        },
        "zookeeper": {"replicas": 3},
        "rebalance": "Automatic",
        "listenerDefaults": OPEN,
        "listeners": [
            {"name": "internal", "type": "Internal", "port": 9092},
            {"name": "external", "type": "NodePort", "port": 9094, "allowPlaintext": True},
        ],
    }
    namespace.apply(resource("Cluster", CLUSTER, spec))
    namespace.wait_condition(KIND, CLUSTER, timeout=240)
    wanted = {
        "clusterRef": {"name": CLUSTER},
        "partitions": PARTITIONS,
        "replicationFactor": 3,
        "config": {"min.insync.replicas": "2"},
    }
    namespace.apply(resource("Topic", TOPIC, wanted))
    namespace.wait_condition(TOPIC_KIND, TOPIC)
    paced = Paced(namespace, f"{CLUSTER}-external-all", 9094) if outside else Paced(namespace)
    return started(paced)


def started(paced: Paced) -> Paced:
    """The producer, once every partition acknowledges its records."""
    paced.start()
    paced.namespace.kubectl("wait", "--for=condition=Ready", f"pod/{paced.pod}", "--timeout=60s")
    paced.goes_on()
    return paced


def names_on_pages(namespace: Namespace) -> dict[str, str]:
    """The placeholders in commands of docs/operations.md, and the names of this Cluster instead."""
    return {
        "--namespace NAMESPACE": f"--namespace {namespace.name}",
        "dev NAME ": f"dev {CLUSTER} ",
        "/NAME": f"/{CLUSTER}",
    }


def pods(namespace: Namespace, labels: str = BROKERS) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in namespace.list("pod", "-l", labels)}


def ids(found: dict[str, Json]) -> set[str]:
    return {one["metadata"]["uid"] for one in found.values()}


def ready(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ())
    )


def settled(namespace: Namespace) -> bool:
    """Wait until it is ready in its current generation and no change is in progress."""
    found = namespace.get(KIND, CLUSTER)
    conditions = {one["type"]: one for one in found["status"]["conditions"]}
    current = conditions["Ready"].get("observedGeneration") == found["metadata"]["generation"]
    busy = conditions.keys() & {"RollingUpdate", "Rebalancing", "Upgrading"}
    return current and conditions["Ready"]["status"] == "True" and not busy


def renewed(namespace: Namespace, before: set[str], count: int, labels: str = BROKERS) -> Callable[[], bool]:
    def check() -> bool:
        found = pods(namespace, labels)
        return len(found) == count and not ids(found) & before and all(map(ready, found.values()))

    return check


def until_in_sync(namespace: Namespace) -> None:
    """Wait until every partition has three replicas in sync; the Cluster may be ready before."""
    with contextlib.closing(KafkaAdmin(bootstrap(namespace))) as admin:
        until("every replica in sync", lambda: in_sync(admin, 3, TOPIC), passing=(CommandFailed, AdminError))


def in_sync(admin: KafkaAdmin, factor: int, topic: str) -> bool:
    """Whether each partition of the topic has so many replicas, all in sync."""
    found = admin.replicas([topic])
    return bool(found) and all(len(one.isr) == len(one.replicas) == factor for one in found)


def bootstrap(namespace: Namespace) -> str:
    """The brokers' address for this machine."""
    listeners = namespace.get(KIND, CLUSTER)["status"]["listeners"]
    (listener,) = (one for one in listeners if one["name"] == "external")
    return str(listener["bootstrap"])


def kill_broker(namespace: Namespace, name: str) -> None:
    """Send SIGKILL to a broker's process.

    It is the first process of its container, so no process in there can kill it; a pod that sees its node's processes
    does.
    """
    pod = namespace.get("pod", name)
    container = {
        "name": KILLER,
        "image": CLIENT,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", Path(kill_in_pod.__file__).read_text()],
        "args": [pod["metadata"]["uid"], "millstream-broker"],
        "securityContext": {"runAsUser": 0},
    }
    spec = {
        "hostPID": True,
        "nodeName": pod["spec"]["nodeName"],
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": KILLER}, "spec": spec})

    def phase() -> str:
        return str(namespace.get("pod", KILLER)["status"].get("phase"))

    until("the process killed", lambda: phase() in ("Succeeded", "Failed"), timeout=60)
    said = namespace.kubectl("logs", KILLER)
    assert phase() == "Succeeded", said
    namespace.kubectl("delete", "pod", KILLER)


def restarts(namespace: Namespace, name: str) -> int:
    """Number of restarts of a pod's containers."""
    return sum(one["restartCount"] for one in namespace.get("pod", name)["status"]["containerStatuses"])


def measured(paced: Paced, what: str, since: float, bound: float = BOUND_S) -> None:
    paced.goes_on()
    gaps = paced.gaps(since)
    print(f"\n{what}: {time.time() - since:.0f} s; longest gap {max(gaps):.2f} s, by partition", end=" ")
    print(" ".join(f"{gap:.2f}" for gap in gaps))
    assert max(gaps) <= bound, f"{what}: {gaps}"


def nothing_is_lost(namespace: Namespace, paced: Paced) -> None:
    """Stop the producer, and compare the topic with its delivery reports."""
    paced.stop()
    assert paced.left == 0
    assert not paced.ledger.failed
    address = bootstrap(namespace)
    load = Load(address, TOPIC, partitions=range(PARTITIONS), name=paced_producer.NAME)
    load.ledger = paced.ledger
    counts = check(address, TOPIC, [load])
    assert sum(counts.values()) == paced.ledger.count
