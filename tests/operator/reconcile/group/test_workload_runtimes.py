"""What must hold wherever the consumers of ConsumerGroups run: on Kubernetes, and as processes on a laptop."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import cluster, group
from millstream_operator.kafka.records import GroupState, Partition, TopicIdentity
from millstream_operator.local.consumers import WORKLOAD
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.state import State
from millstream_operator.local.workloads import LocalWorkloads, stop_all
from millstream_operator.models import Cluster, ConsumerGroup, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.reconcile.group.workload_apply import Deployments
from millstream_operator.state.context import Workloads

pytestmark = pytest.mark.process

CLUSTER = stored(cluster("default"))
COMMAND = [sys.executable, "-c", "import signal; signal.pause()"]
BROKERS = {
    "groups": lambda ids: {one: GroupState("Empty", ()) for one in ids},
    "committed": lambda ids: {one: {Partition("a", 0): 4} for one in ids},
    "identities": lambda topics: {topic: TopicIdentity(f"id-{topic}", 1) for topic in topics},
    "offsets": lambda wanted: dict.fromkeys(wanted, 10),
    "led_offsets": lambda wanted: dict.fromkeys(wanted, 10),
}


class Place(Protocol):
    """Where consumers run: ``settle`` starts and ends those that do not start and end by themselves."""

    workloads: Workloads

    def knows(self, manifest: dict[str, Any]) -> None: ...
    def settle(self, found: InMemory) -> None: ...
    def environment(self, found: InMemory) -> dict[str, str] | None: ...
    def close(self) -> None: ...


class OnKubernetes:
    def __init__(self, folder: Path) -> None:
        self.workloads: Workloads = Deployments()

    def knows(self, manifest: dict[str, Any]) -> None:
        """Nothing: the API server has it."""

    def settle(self, found: InMemory) -> None:
        if (deployment := found.kube.objects.get(("Deployment", "watch-consumers"))) is not None:
            number = deployment["spec"]["replicas"]
            deployment["status"] = {"replicas": number, "readyReplicas": number}

    def environment(self, found: InMemory) -> dict[str, str] | None:
        if (deployment := found.kube.objects.get(("Deployment", "watch-consumers"))) is None:
            return None
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return {one["name"]: one["value"] for one in container["env"]}

    def close(self) -> None:
        """Nothing runs."""


class OnALaptop:
    def __init__(self, folder: Path) -> None:
        self.data = DataFolder(folder, State())
        self.workloads: Workloads = LocalWorkloads(self.data)

    def knows(self, manifest: dict[str, Any]) -> None:
        self.data.state.resources["ConsumerGroup/ns/watch"] = manifest

    def settle(self, found: InMemory) -> None:
        """Nothing: processes have started and ended."""

    def environment(self, found: InMemory) -> dict[str, str] | None:
        if not any(daemon.serves for daemon in self.data.state.daemons.values()):
            return None
        (file,) = self.data.path.rglob(WORKLOAD)
        known: dict[str, str] = json.loads(file.read_text())["environment"]
        return known

    def close(self) -> None:
        for daemon in self.data.state.daemons.values():
            stop_all(daemon)


@pytest.fixture(params=[OnKubernetes, OnALaptop], ids=["Kubernetes", "laptop"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    build: Callable[[Path], Place] = request.param
    place = build(tmp_path)
    yield place
    place.close()


class Group:
    """One ConsumerGroup and its reconciles at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.found = in_memory(CLUSTER, stored(group("watch", topics=["a"], **self.spec(2))), **BROKERS)
        self.services = dataclasses.replace(self.found.services, workloads=place.workloads)

    @staticmethod
    def spec(replicas: int) -> dict[str, Any]:
        containers = [{"name": "consumer", "image": "ours:1", "command": COMMAND}]
        return {"workload": {"replicas": replicas, "template": {"spec": {"containers": containers}}}}

    def reconcile(self, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        """Two reconciles: of the spec, and after consumers have started or ended."""
        kept = self.found.kube.objects["ConsumerGroup", "watch"]
        metadata = {**kept["metadata"], "annotations": annotations or {}}
        self.found.kube.put({**kept, "metadata": metadata, "spec": {**kept["spec"], **spec}})
        for _ in range(2):
            manifest = self.found.kube.objects["ConsumerGroup", "watch"]
            self.place.knows(manifest)
            self.services.store.put(manifest)
            reconcile_groups(self.services, [decode_as(ConsumerGroup, manifest)])
            self.place.settle(self.found)

    @property
    def consumers(self) -> tuple[int, int]:
        status = self.found.status("ConsumerGroup", "watch")
        return status.get("replicas", 0), status.get("readyReplicas", 0)


def test_consumers_run_as_specified_and_reach_the_brokers(place: Place) -> None:
    watched = Group(place)
    watched.reconcile()
    assert watched.consumers == (2, 2)
    ready = ("True", "WorkloadReady", "2 of 2 consumers are ready")
    assert watched.found.condition("ConsumerGroup", "watch", "WorkloadReady") == ready
    environment = place.environment(watched.found)
    assert environment is not None
    address = place.workloads.address_of(watched.services, decode_as(Cluster, CLUSTER))
    assert environment["MILLSTREAM_BOOTSTRAP_SERVERS"] == address
    watched.reconcile(**Group.spec(1))
    assert watched.consumers == (1, 1)


def test_consumers_of_a_paused_group_stay_as_they_are(place: Place) -> None:
    watched = Group(place)
    watched.reconcile()
    watched.reconcile({"millstream.dev/paused": "true"}, **Group.spec(5))
    assert watched.consumers == (2, 2)


def test_consumers_stop_when_the_workload_is_removed(place: Place) -> None:
    watched = Group(place)
    watched.reconcile()
    watched.reconcile(workload=None)
    assert watched.consumers == (0, 0)
    assert place.environment(watched.found) is None
