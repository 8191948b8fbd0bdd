"""Reconciles a Cluster in memory: its spec, its pods and the responses of its brokers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import resource
from millstream_operator.kafka.records import BrokersState, PartitionReplicas
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster.apply import reconcile_cluster
from millstream_operator.resources.owned import selector

INTERNAL = {"name": "internal", "type": "Internal", "port": 9092}
PUBLIC = {"name": "public", "type": "LoadBalancer", "port": 9094}
SETTLED, SOON = 60, 5
LIVE = {"log.retention.ms": "2", "compression.type": "zstd", "log.retention.hours": "9"}
"""Configuration that brokers accept while they run."""


class East:
    """A Cluster named east, and its objects in Kubernetes."""

    def __init__(self, count: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> None:
        self.metadata: dict[str, Any] = {}
        self.memory = in_memory(stored(resource("Cluster", "east"), status))
        self.kube = self.memory.kube
        self.zookeeper: dict[str, Any] = {}
        self.change(count, **spec)

    def change(self, count: int, **spec: Any) -> None:
        """Set another spec with this many brokers."""
        if count > 1:
            self.zookeeper = {"zookeeper": {"connect": "127.0.0.1:1"}}
        found = self.kube.objects["Cluster", "east"]
        found["spec"] = {**self.zookeeper, **spec, "brokers": {"replicas": count, **spec.get("brokers", {})}}

    def look(self, **answers: Any) -> float:
        """Reconcile once. ``answers``: responses of the brokers; the default is a healthy cluster."""
        self.memory.brokers.answers = {"strays": [], "scram_users": {}, **answers}
        self.memory.brokers.asked.clear()
        self.kube.applied.clear()
        manifest = self.kube.objects["Cluster", "east"]
        manifest["metadata"].update(self.metadata)
        self.memory.services.store.put(manifest)
        return reconcile_cluster(self.memory.services, decode_as(Cluster, manifest))

    def run(self, *ready: bool, **status: Any) -> None:
        """Create the missing pods of the brokers from the current template."""
        manifest = self.kube.objects["StatefulSet", "east-brokers"]
        manifest["status"] = {"readyReplicas": sum(ready)}
        cluster = decode_as(Cluster, self.kube.objects["Cluster", "east"])
        for broker, is_ready in enumerate(ready):
            name = f"east-brokers-{broker}"
            condition = {"type": "Ready", "status": "True" if is_ready else "False"}
            made = self.kube.objects.get(("Pod", name), {}).get("metadata")
            metadata = made or {
                "namespace": "ns",
                "name": name,
                "labels": selector(cluster),
                "annotations": manifest["spec"]["template"]["metadata"]["annotations"],
            }
            host = {"hostIP": f"10.0.0.{broker}"}
            pod = {
                "kind": "Pod",
                "metadata": metadata,
                "status": {"conditions": [condition], **host, **status},
            }
            self.kube.put(pod)

    @property
    def status(self) -> dict[str, Any]:
        return self.memory.status("Cluster", "east")

    def says(self, which: str = "Ready") -> tuple[str, str, str] | None:
        return self.memory.condition("Cluster", "east", which)

    @property
    def replicas(self) -> int:
        """The brokers' StatefulSet's number of replicas."""
        found: int = self.kube.objects["StatefulSet", "east-brokers"]["spec"]["replicas"]
        return found

    @property
    def touched(self) -> set[str]:
        """Kinds that the last reconcile wrote, without its own status."""
        return {one["kind"] for one in self.kube.applied} - {"Cluster"}

    def asked(self, request: str) -> list[Any]:
        return self.memory.brokers.requests(request)


def running(brokers: int, **spec: Any) -> East:
    """A Cluster whose brokers run and are ready."""
    east = East(brokers, {"clusterId": "id"}, **spec)
    east.look()
    east.run(*[True] * brokers)
    return east


def partition(topic: str, index: int, *replicas: int, **more: Any) -> PartitionReplicas:
    return PartitionReplicas(topic, index, replicas, replicas, **more)


def answers(*partitions: PartitionReplicas, **more: Any) -> dict[str, Any]:
    """Responses of three live brokers."""

    def replicas(*, min_isr: bool) -> list[PartitionReplicas]:
        assert min_isr
        return list(partitions)

    def held(brokers: Collection[int]) -> dict[int, int]:
        return {broker: sum(broker in one.replicas for one in partitions) for broker in brokers}

    alive = BrokersState(dict.fromkeys(range(3)), 0)
    return {
        "brokers": alive,
        "replicas": replicas,
        "held": held,
        "reassigning": {},
        "reassign": {},
        **more,
    }
