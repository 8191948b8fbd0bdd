"""Which BatchLoads may run: the same rules on Kubernetes and on a laptop, but for what only pods have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.load_looks import BROKERS, CLUSTER, a_load
from millstream_harness.manifests import resource
from millstream_operator.local import spark
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.loads import LocalLauncher
from millstream_operator.local.state import State
from millstream_operator.models import BatchLoad, BatchLoadStatus, decode_as
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.load.admission import begin, scheduled_problem
from millstream_operator.reconcile.load.launch import KubernetesLauncher
from millstream_operator.reconcile.load.plan import Cause, Trigger, Waiting
from millstream_operator.state.context import RunLauncher

ANYWHERE = {
    "column": (
        {"output": {"path": "s3a://bucket/flights", "partitionBy": ["gate"]}},
        '"gate" is not allowed',
    ),
    "table": ({"output": {"path": "s3a://bucket/taken"}}, "BatchLoad elder"),
    "cluster": ({"clusterRef": {"name": "west"}}, "west"),
}
ON_KUBERNETES = {
    "image": ({"spark": {"image": "mine:1"}}, "mine:1 is not allowed"),
    "path": ({"output": {"path": "/lake/flights"}}, "would be lost with its pod"),
}
LAPTOP = LocalLauncher(DataFolder(Path("/nowhere"), State()), lambda line: None, lambda at: None)
KUBERNETES = KubernetesLauncher()
LAUNCHERS = {"Kubernetes": KUBERNETES, "laptop": LAPTOP}


@pytest.fixture(autouse=True)
def spark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as these tests know: whether it is needs a process."""
    monkeypatch.setattr(spark, "job_file", lambda load: Path("load.py"))


def outcome(
    launcher: RunLauncher, spec: dict[str, Any], metadata: dict[str, Any] | None = None
) -> tuple[BatchLoadStatus | Problem | Waiting, Problem | None]:
    """Of a run that is due, and of one that the schedule has yet to begin."""
    elder = resource("BatchLoad", "elder", **{**a_load()["spec"], "output": {"path": "s3a://bucket/taken"}})
    load = a_load(schedule={"cron": "0 3 * * *"}, **spec)
    load["metadata"] |= {"creationTimestamp": "2026-02-01T00:00:00Z", **(metadata or {})}
    found = in_memory(CLUSTER, load, stored(elder, creationTimestamp="2026-01-01T00:00:00Z"), **BROKERS)
    services = dataclasses.replace(found.services, launcher=launcher)
    decoded = decode_as(BatchLoad, load)
    return begin(services, decoded, Cause(Trigger.SPEC)), scheduled_problem(services, decoded)


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
@pytest.mark.parametrize(("spec", "message"), ANYWHERE.values(), ids=ANYWHERE)
def test_rule_of_loads_holds_for_every_launcher(
    launcher: RunLauncher, spec: dict[str, Any], message: str
) -> None:
    begun, scheduled = outcome(launcher, spec)
    assert isinstance(begun, Problem)
    assert message in begun.message
    assert scheduled == begun


@pytest.mark.parametrize(("spec", "message"), ON_KUBERNETES.values(), ids=ON_KUBERNETES)
def test_rule_of_pods_holds_on_kubernetes_only(spec: dict[str, Any], message: str) -> None:
    begun, scheduled = outcome(KUBERNETES, spec)
    assert isinstance(begun, Problem)
    assert message in begun.message
    assert scheduled == begun
    begun, scheduled = outcome(LAPTOP, spec)
    assert isinstance(begun, BatchLoadStatus)
    assert scheduled is None


def test_paused_load_begins_no_run_on_kubernetes_and_reports_no_problem_of_its_schedule() -> None:
    paused = {"annotations": {"millstream.dev/paused": "true"}}
    begun, scheduled = outcome(KUBERNETES, {}, paused)
    assert isinstance(begun, Problem)
    assert "no run starts" in begun.message
    assert scheduled is None
    begun, scheduled = outcome(LAPTOP, {}, paused)
    assert isinstance(begun, BatchLoadStatus), "the annotation has no effect on a laptop"
    assert scheduled is None
