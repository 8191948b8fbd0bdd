"""What every launcher of runs must do, with one reconcile of BatchLoads for all: on Kubernetes and on a laptop.

The driver is a Job of a Kubernetes in memory, or a process; instead of Spark, both report what a test says.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from millstream_harness.in_memory import InMemory, in_memory
from millstream_harness.load_looks import BROKERS, CLUSTER, OFFSETS, a_load
from millstream_operator.local import spark
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.loads import LocalLauncher
from millstream_operator.local.state import State
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.reconcile.load.apply import reconcile_load
from millstream_operator.reconcile.load.launch import KubernetesLauncher
from millstream_operator.resources.load_job import DRIVER
from millstream_operator.state.context import RunLauncher

pytestmark = pytest.mark.process

LOG = ["INFO starting", "output.path: /flights: read-only"]
SUCCEEDED = {"state": "Succeeded", "rows": 8, "corruptRecords": 0, "bytes": 99}
FAILED = {"state": "Failed", "error": "output.path: /flights: read-only"}
JOB = """
import json, pathlib, sys
told = json.loads(pathlib.Path(sys.argv[1]).read_text())
report = json.loads(pathlib.Path(__file__).with_name("report.json").read_text())
print(*report.pop("log"), sep="\\n", file=sys.stderr)
pathlib.Path(told["result"]).write_text(json.dumps({"run": told["name"], **report}))
sys.exit(report["state"] != "Succeeded")
"""


class Place(Protocol):
    """Where runs are started: ``drive`` ends the drivers that run, if they have not ended by themselves."""

    launcher: RunLauncher

    def will_report(self, **report: Any) -> None: ...
    def drive(self, found: InMemory) -> None: ...
    def run_files(self, found: InMemory) -> Sequence[dict[str, Any]]: ...


class OnKubernetes:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.launcher: RunLauncher = KubernetesLauncher()
        self.report: dict[str, Any] = {}

    def will_report(self, **report: Any) -> None:
        self.report = report

    def drive(self, found: InMemory) -> None:
        for (kind, name), job in list(found.kube.objects.items()):
            if kind != "Job" or job.get("status"):
                continue
            what = "Complete" if self.report["state"] == "Succeeded" else "Failed"
            found.kube.put({**job, "status": {"conditions": [{"type": what, "status": "True"}]}})
            told = json.loads(found.kube.objects["ConfigMap", name]["data"]["run.json"])
            ended = {"exitCode": 0, "message": json.dumps({"run": told["name"], **self.report})}
            metadata = {"namespace": "ns", "name": f"{name}-x", "labels": {"millstream.dev/run": name}}
            metadata["ownerReferences"] = [{"kind": "Job", "uid": job["metadata"]["uid"]}]
            containers = [{"name": DRIVER, "state": {"terminated": ended}}]
            found.kube.put({"kind": "Pod", "metadata": metadata, "status": {"containerStatuses": containers}})
            found.kube.logs[f"{name}-x", DRIVER] = LOG

    def run_files(self, found: InMemory) -> Sequence[dict[str, Any]]:
        return [
            json.loads(one["data"]["run.json"])
            for (kind, _), one in found.kube.objects.items()
            if kind == "ConfigMap"
        ]


class OnALaptop:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.data, self.job = folder / "data", folder / "job.py"
        self.data.mkdir()
        self.job.write_text(JOB)
        patch.setattr(spark, "job_file", lambda load: self.job)
        patch.setattr(spark, "submit_command", lambda load: [sys.executable])
        files = DataFolder(self.data, State())
        self.launcher: RunLauncher = LocalLauncher(files, lambda line: None, lambda at: None)

    def will_report(self, **report: Any) -> None:
        self.job.with_name("report.json").write_text(json.dumps({**report, "log": LOG}))

    def drive(self, found: InMemory) -> None:
        """Nothing: the process has ended."""

    def run_files(self, found: InMemory) -> Sequence[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.data.rglob("run.json"))]


@pytest.fixture(params=[OnKubernetes, OnALaptop], ids=["Kubernetes", "laptop"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    build: Callable[[Path, pytest.MonkeyPatch], Place] = request.param
    return build(tmp_path, monkeypatch)


class Load:
    """One BatchLoad and the steps of its reconcile at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.found = in_memory(CLUSTER, a_load(), **BROKERS)
        self.services = dataclasses.replace(self.found.services, launcher=place.launcher)

    def step(self, *, retry: bool = False) -> float:
        load = decode_as(BatchLoad, self.found.kube.objects["BatchLoad", "daily"])
        return reconcile_load(self.services, load, retry=retry)

    def run(self, *, retry: bool = False) -> None:
        """Steps until the next run has ended."""
        self.step(retry=retry)
        for _ in range(3):
            if self.last_run["state"] in ("Succeeded", "Failed"):
                return
            self.step()
            self.place.drive(self.found)
        raise AssertionError(self.status)

    def edit(self, **spec: Any) -> None:
        stored = self.found.kube.objects["BatchLoad", "daily"]
        metadata = {**stored["metadata"], "generation": stored["metadata"]["generation"] + 1}
        self.found.kube.put({**stored, "metadata": metadata, "spec": {**stored["spec"], **spec}})

    @property
    def status(self) -> dict[str, Any]:
        return self.found.status("BatchLoad", "daily")

    @property
    def last_run(self) -> dict[str, Any]:
        run: dict[str, Any] = self.status["lastRun"]
        return run


def test_successful_run_commits_its_range(place: Place) -> None:
    load = Load(place)
    place.will_report(**SUCCEEDED)
    load.run()
    assert (load.last_run["state"], load.last_run["rows"], load.last_run["bytes"]) == ("Succeeded", 8, 99)
    assert [part["offset"] for part in load.status["committed"]["offsets"]] == [10]
    assert load.step() > 0, "nothing is due"
    assert len(place.run_files(load.found)) == 1


def test_failed_run_reports_its_error_and_log_and_commits_nothing(place: Place) -> None:
    load = Load(place)
    place.will_report(**FAILED)
    load.run()
    assert load.last_run["state"] == "Failed"
    assert load.last_run["error"] == FAILED["error"]
    assert load.last_run["log"] == LOG
    assert load.found.condition("BatchLoad", "daily") == (
        "False",
        "OutputNotWritable",
        f"daily-0001-u-daily: {FAILED['error']}",
    )
    assert not load.status.get("committed")


def test_repeated_run_keeps_offsets_and_rows_of_the_failed_run(place: Place) -> None:
    load = Load(place)
    place.will_report(**FAILED)
    load.run()
    load.found.brokers.answers["offsets"] = lambda wanted, **_: dict.fromkeys(wanted, 99)
    place.will_report(**SUCCEEDED)
    load.run(retry=True)
    assert (load.last_run["name"], load.last_run["state"]) == ("daily-0002-u-daily", "Succeeded")
    assert {told["name"] for told in place.run_files(load.found)} == {"daily-0001-u-daily"}
    assert load.status["offsets"] == OFFSETS


def test_run_that_was_begun_but_not_started_starts_with_its_stored_offsets(place: Place) -> None:
    load = Load(place)
    place.will_report(**SUCCEEDED)
    assert load.step() == 0
    assert place.run_files(load.found) == [], "the offsets are stored before anything is started"
    load.found.brokers.answers["offsets"] = lambda wanted, **_: dict.fromkeys(wanted, 99)
    load.run()
    (told,) = place.run_files(load.found)
    assert told["offsets"] == [{"topic": "flights", "partition": 0, "from": 2, "until": 10}]


def test_run_whose_spec_changes_before_the_start_is_not_started(place: Place) -> None:
    load = Load(place)
    place.will_report(**SUCCEEDED)
    load.step()
    load.edit(value={"format": "Binary"})
    load.run()
    assert load.last_run["name"] == "daily-0001-u-daily"
    assert "the spec changed before the run started" in load.last_run["error"]
    assert place.run_files(load.found) == []
    load.run()
    assert (load.last_run["name"], load.last_run["state"]) == ("daily-0002-u-daily", "Succeeded")


def test_report_of_another_run_is_not_believed(place: Place) -> None:
    load = Load(place)
    place.will_report(**SUCCEEDED, run="daily-0007-other")
    load.run()
    assert load.last_run["state"] == "Failed"
    assert not load.status.get("committed")
