"""What every runtime of brokers must do, with one reconcile of Clusters for all: Kubernetes and a laptop.

The brokers are pods of a Kubernetes in memory, or processes that only wait; a test responds to their requests.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from millstream_harness.cluster_looks import SOON, answers, partition
from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import resource
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kafka.records import ConfigChange, PartitionReplicas, Refusal
from millstream_operator.local import clusters as local_clusters
from millstream_operator.local import processes
from millstream_operator.local.brokers import LocalBrokers
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.state import State
from millstream_operator.local.user_secrets import UserSecrets
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster.apply import reconcile_cluster
from millstream_operator.reconcile.cluster.pods import StatefulSets
from millstream_operator.resources.owned import selector
from millstream_operator.state.context import BrokerRuntime

pytestmark = pytest.mark.process

BROKER = f"""
import time
print("{processes.READY}http=127.0.0.1:1", flush=True)
time.sleep(600)
"""
IN_SYNC = partition("a", 0, 0, 1, 2, min_isr=2)
BEHIND = PartitionReplicas("a", 0, (0, 1, 2), (0, 1), 2)


class Place(Protocol):
    """Where brokers run: ``settle`` starts those that do not start by themselves."""

    runtime: BrokerRuntime

    def settle(self, found: InMemory) -> None: ...
    def brokers(self, found: InMemory) -> list[object]:
        """What identifies each running broker until its restart."""

    def configuration(self, found: InMemory) -> str: ...
    def close(self) -> None: ...


class OnKubernetes:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.runtime: BrokerRuntime = StatefulSets()
        self.made = 0

    def settle(self, found: InMemory) -> None:
        brokers = found.kube.objects.get(("StatefulSet", "east-brokers"))
        if brokers is None:
            return
        count = brokers["spec"]["replicas"]
        brokers["status"] = {"readyReplicas": count}
        labels = selector(decode_as(Cluster, found.kube.objects["Cluster", "east"]))
        for number in range(count):
            if ("Pod", name := f"east-brokers-{number}") in found.kube.objects:
                continue
            self.made += 1
            metadata = {
                "namespace": "ns",
                "name": name,
                "uid": f"pod-{self.made}",
                "labels": labels,
                "annotations": dict(brokers["spec"]["template"]["metadata"]["annotations"]),
            }
            ready = [{"type": "Ready", "status": "True"}]
            found.kube.put({"kind": "Pod", "metadata": metadata, "status": {"conditions": ready}})

    def brokers(self, found: InMemory) -> list[object]:
        pods = [manifest for (kind, _), manifest in found.kube.objects.items() if kind == "Pod"]
        return [pod["metadata"]["uid"] for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]

    def configuration(self, found: InMemory) -> str:
        return str(found.kube.objects["ConfigMap", "east-brokers"]["data"])

    def close(self) -> None:
        """Nothing runs."""


class OnALaptop:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        broker = folder / "broker.py"
        broker.write_text(f"#!{sys.executable}\n{BROKER}")
        broker.chmod(0o755)
        patch.setattr(local_clusters, "command", lambda name: str(broker))
        (folder / "data").mkdir()
        self.data = DataFolder(folder / "data", State())
        files = UserSecrets(folder / "data" / "users")
        self.runtime: BrokerRuntime = LocalBrokers(self.data, {}, files, lambda line: None)

    def settle(self, found: InMemory) -> None:
        """Nothing: processes have started."""

    def brokers(self, found: InMemory) -> list[object]:
        return [daemon.pid for _, daemon in sorted(self.data.state.daemons.items()) if daemon.serves]

    def configuration(self, found: InMemory) -> str:
        return next(self.data.path.rglob("broker-0.properties")).read_text()

    def close(self) -> None:
        for daemon in self.data.state.daemons.values():
            processes.stop(daemon)


@pytest.fixture(params=[OnKubernetes, OnALaptop], ids=["Kubernetes", "laptop"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    build: Callable[[Path, pytest.MonkeyPatch], Place] = request.param
    place = build(tmp_path, monkeypatch)
    yield place
    place.close()


class East:
    """A Cluster of three brokers and its reconciles at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        spec = {"brokers": {"replicas": 3}, "zookeeper": {"connect": "127.0.0.1:1"}}
        self.found = in_memory(stored(resource("Cluster", "east", **spec), {"clusterId": "id"}))
        self.services = dataclasses.replace(
            self.found.services,
            broker_runtime=place.runtime,
            reach=lambda _, cluster: ClientConfig(f"{cluster.name}:9092"),
        )
        self.reconcile()
        self.reconcile()

    def reconcile(self, *partitions: PartitionReplicas, **responses: Any) -> float:
        """Reconcile, and let brokers start that were started."""
        replies = answers(*(partitions or (IN_SYNC,)), brokers_config={}, change_brokers_config=None)
        self.found.brokers.answers = {"strays": [], "scram_users": {}, **replies, **responses}
        self.found.brokers.asked.clear()
        seconds = reconcile_cluster(
            self.services, decode_as(Cluster, self.found.kube.objects["Cluster", "east"])
        )
        self.place.settle(self.found)
        return seconds

    def edit(self, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        kept = self.found.kube.objects["Cluster", "east"]
        metadata = {**kept["metadata"], "annotations": annotations or {}}
        self.found.kube.put({**kept, "metadata": metadata, "spec": {**kept["spec"], **spec}})

    def condition(self, kind: str = "Ready") -> tuple[str, str, str] | None:
        return self.found.condition("Cluster", "east", kind)

    @property
    def brokers(self) -> list[object]:
        return self.place.brokers(self.found)

    @property
    def configuration(self) -> str:
        return self.place.configuration(self.found)


def test_brokers_run_as_specified_and_are_reported(place: Place) -> None:
    east = East(place)
    assert len(east.brokers) == 3
    assert east.condition() == ("True", "AllBrokersReady", "all 3 brokers are ready")
    assert east.found.status("Cluster", "east")["brokers"] == {"desired": 3, "ready": 3}
    before = east.brokers
    assert east.reconcile() == 60.0
    assert east.brokers == before


def test_brokers_of_a_refused_spec_stay_as_they_are(place: Place) -> None:
    east = East(place)
    brokers, configuration = east.brokers, east.configuration
    east.edit(config={"log.dirs": "/x", "num.partitions": "5"})
    assert east.reconcile() == SOON
    assert (east.condition() or ())[:2] == ("False", "InvalidConfig")
    assert (east.brokers, east.configuration) == (brokers, configuration)


def test_brokers_of_a_paused_cluster_stay_as_they_are(place: Place) -> None:
    east = East(place)
    brokers, configuration = east.brokers, east.configuration
    east.edit({"millstream.dev/paused": "true"}, config={"num.partitions": "5"})
    east.reconcile()
    assert (east.condition("Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert (east.brokers, east.configuration) == (brokers, configuration)


def test_dynamic_configuration_is_set_on_running_brokers(place: Place) -> None:
    east = East(place)
    brokers = east.brokers
    east.edit(config={"log.retention.ms": "70000"})
    east.reconcile()
    assert east.found.brokers.requests("change_brokers_config") == [
        ConfigChange({"log.retention.ms": "70000"}, ())
    ]
    assert east.found.status("Cluster", "east")["configKeys"] == ["log.retention.ms"]
    assert "log.retention.ms=70000" in east.configuration, "for brokers that start"
    assert east.brokers == brokers


def test_dynamic_configuration_that_brokers_refuse_reaches_no_file(place: Place) -> None:
    east = East(place)
    configuration = east.configuration
    east.edit(config={"log.retention.ms": "2"})
    east.reconcile(change_brokers_config=Refusal("INVALID_CONFIG", "2 is too little"))
    words = "spec.config: 2 is too little; the brokers are unchanged"
    assert east.condition() == ("False", "InvalidConfig", words)
    assert east.configuration == configuration


def test_changed_configuration_restarts_one_broker_at_a_time(place: Place) -> None:
    east = East(place)
    before = east.brokers
    east.edit(config={"num.partitions": "5"})
    restarted = []
    for _ in range(3):
        assert east.reconcile() == SOON
        assert (east.condition("RollingUpdate") or ())[:2] == ("True", "Restarting")
        restarted.append([old != new for old, new in zip(before, east.brokers, strict=True)])
    assert [sum(brokers) for brokers in restarted] == [1, 2, 3]
    assert restarted[0] == [False, True, False], "the controller is the last"
    assert east.reconcile() == 60.0
    assert east.condition("RollingUpdate") is None


def test_broker_whose_partitions_need_it_is_not_restarted(place: Place) -> None:
    east = East(place)
    before = east.brokers
    east.edit(config={"num.partitions": "5"})
    east.reconcile(
        dataclasses.replace(BEHIND, isr=(0, 1, 2), min_isr=3), dataclasses.replace(BEHIND, isr=(0,))
    )
    status, reason, _ = east.condition("RollingUpdate") or ("", "", "")
    assert (status, reason) == ("True", "RestartBlocked")
    assert (east.condition("Warning") or ())[:2] == ("True", "MinimumIsr")
    assert east.brokers == before
