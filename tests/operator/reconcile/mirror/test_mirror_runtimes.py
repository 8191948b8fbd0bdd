"""What every runtime of mirror workers must do, with one reconcile of MirrorMakers for all: Kubernetes and a laptop.

The workers are pods of a Kubernetes in memory, or processes, which report what a test says instead of mirroring.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_operator.local import mirrors as local_mirrors
from millstream_operator.local import processes
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.mirrors import LocalMirrors
from millstream_operator.local.state import State
from millstream_operator.models import MirrorMaker, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.models.mirror_reports import SourceReport, WorkerReport
from millstream_operator.reconcile.mirror import deployment as mirror_deployment
from millstream_operator.reconcile.mirror.apply import reconcile_mirror
from millstream_operator.reconcile.mirror.deployment import Deployments
from millstream_operator.resources.mirror import CONFIG_FILE, selector
from millstream_operator.state.context import MirrorRuntime

pytestmark = pytest.mark.process

SOURCE = SourceReport("west", True, 1, ("orders",), matched=1, unmatched_groups=(), partitions=1, wanted=1)
REPORT = WorkerReport(topics=1, sources=(SOURCE,))
WORKER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write({msgspec.json.encode(REPORT)!r})
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("{processes.READY}http=127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
"""


class Place(Protocol):
    """Where workers run: ``settle`` starts and ends those that do not start and end by themselves."""

    runtime: MirrorRuntime

    def settle(self, found: InMemory) -> None: ...
    def configuration(self, found: InMemory) -> dict[str, Any] | None: ...
    def close(self) -> None: ...


class OnKubernetes:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.runtime: MirrorRuntime = Deployments()

        def ask_all(addresses: Iterable[str]) -> tuple[WorkerReport, ...]:
            return tuple(REPORT for _ in addresses)

        patch.setattr(mirror_deployment, "ask_all", ask_all)

    def settle(self, found: InMemory) -> None:
        deployment = found.kube.objects.get(("Deployment", "copy-mirror"))
        for kind, name in list(found.kube.objects):
            if kind == "Pod":
                del found.kube.objects[kind, name]
        if deployment is None:
            return
        template, number = deployment["spec"]["template"]["metadata"], deployment["spec"]["replicas"]
        deployment["status"] = {"replicas": number, "readyReplicas": number, "updatedReplicas": number}
        labels = selector(decode_as(MirrorMaker, found.kube.objects["MirrorMaker", "copy"]))
        ready = [{"type": "Ready", "status": "True"}]
        for index in range(number):
            metadata = {"namespace": "ns", "name": f"pod-{index}", "labels": labels}
            metadata["annotations"] = dict(template["annotations"])
            status = {"podIP": f"10.0.0.{index}", "conditions": ready}
            found.kube.put({"kind": "Pod", "metadata": metadata, "status": status})

    def configuration(self, found: InMemory) -> dict[str, Any] | None:
        if ("Deployment", "copy-mirror") not in found.kube.objects:
            return None
        file: dict[str, Any] = json.loads(found.kube.objects["ConfigMap", "copy-mirror"]["data"][CONFIG_FILE])
        return file

    def close(self) -> None:
        """Nothing runs."""


class OnALaptop:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        worker = folder / "worker.py"
        worker.write_text(f"#!{sys.executable}\n{WORKER}")
        worker.chmod(0o755)
        patch.setattr(local_mirrors, "command", lambda name: str(worker))
        # Clusters that never started have no ports.
        patch.setattr(LocalMirrors, "address_of", lambda self, cluster: f"{cluster.name}:9092")
        (folder / "data").mkdir()
        self.data = DataFolder(folder / "data", State())
        self.runtime: MirrorRuntime = LocalMirrors(self.data, {}, lambda line: None)

    def settle(self, found: InMemory) -> None:
        """Nothing: processes have started and ended."""

    def configuration(self, found: InMemory) -> dict[str, Any] | None:
        if not any(daemon.serves for daemon in self.data.state.daemons.values()):
            return None
        (path,) = self.data.path.rglob("mirror.json")
        file: dict[str, Any] = json.loads(path.read_text())
        return file

    def close(self) -> None:
        for daemon in self.data.state.daemons.values():
            processes.stop(daemon)


@pytest.fixture(params=[OnKubernetes, OnALaptop], ids=["Kubernetes", "laptop"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    build: Callable[[Path, pytest.MonkeyPatch], Place] = request.param
    place = build(tmp_path, monkeypatch)
    yield place
    place.close()


class Mirror:
    """One MirrorMaker and its reconciles at a place."""

    def __init__(self, place: Place) -> None:
        spec = {
            "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
            "target": {"clusterRef": {"name": "east"}},
            "topics": {"include": ["orders.*"]},
        }
        mirror = stored(resource("MirrorMaker", "copy", **spec))
        self.place = place
        self.found = in_memory(*(stored(cluster(name)) for name in ("west", "east")), mirror)
        self.services = dataclasses.replace(self.found.services, mirrors=place.runtime)

    def reconcile(self) -> float:
        """Two reconciles: of the spec, and after workers have started or ended."""
        reconcile_mirror(self.services, self.decoded)
        self.place.settle(self.found)
        return reconcile_mirror(self.services, self.decoded)

    @property
    def decoded(self) -> MirrorMaker:
        return decode_as(MirrorMaker, self.found.kube.objects["MirrorMaker", "copy"])

    def edit(self, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        kept = self.found.kube.objects["MirrorMaker", "copy"]
        metadata = {**kept["metadata"], "annotations": annotations or {}}
        self.found.kube.put({**kept, "metadata": metadata, "spec": {**kept["spec"], **spec}})
        self.services.store.put(self.found.kube.objects["MirrorMaker", "copy"])

    @property
    def workers(self) -> tuple[int, int]:
        status = self.found.status("MirrorMaker", "copy")
        return status["replicas"], status["readyReplicas"]

    @property
    def ready(self) -> tuple[str, str]:
        return (self.found.condition("MirrorMaker", "copy") or ("", "", ""))[:2]

    @property
    def configuration(self) -> dict[str, Any] | None:
        return self.place.configuration(self.found)


def test_workers_run_as_specified_and_are_reported(place: Place) -> None:
    mirror = Mirror(place)
    assert mirror.reconcile() == 10.0
    assert mirror.found.condition("MirrorMaker", "copy") == ("True", "Mirroring", "1 worker mirrors 1 topic")
    assert mirror.workers == (1, 1)
    file = mirror.configuration
    assert file is not None
    assert [source["name"] for source in file["sources"]] == ["west"]
    mirror.edit(replicas=2, topics={"include": ["orders.*", "sales"]})
    mirror.reconcile()
    assert mirror.workers == (2, 2)
    assert (mirror.configuration or {})["topics"]["include"] == ["orders.*", "sales"]


def test_workers_of_a_refused_mirror_stop(place: Place) -> None:
    mirror = Mirror(place)
    mirror.reconcile()
    mirror.edit(target={"clusterRef": {"name": "west"}})
    mirror.reconcile()
    assert mirror.ready == ("False", "SameCluster")
    assert mirror.configuration is None
    assert mirror.found.status("MirrorMaker", "copy")["replicas"] == 0


def test_workers_of_a_paused_mirror_keep_their_configuration(place: Place) -> None:
    mirror = Mirror(place)
    mirror.reconcile()
    before = mirror.configuration
    mirror.edit({"millstream.dev/paused": "true"}, replicas=5, topics={"include": ["other"]})
    mirror.reconcile()
    assert mirror.configuration == before
    assert mirror.workers == (1, 1)


def test_workers_continue_while_their_cluster_is_missing(place: Place) -> None:
    mirror = Mirror(place)
    mirror.reconcile()
    before = mirror.configuration
    mirror.services.store.remove(Key("Cluster", "ns", "east"), "u-east")
    mirror.reconcile()
    assert mirror.ready == ("False", "ClusterNotFound")
    assert mirror.configuration == before
