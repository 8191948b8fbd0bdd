"""Batch loads in the local runtime: real Spark, started once there are enough records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from millstream_harness.local import Sandbox, produce
from millstream_harness.spark import use_spark
from millstream_operator.local.runtime import LocalRuntime, Reporter
from millstream_operator.local.spark import Progress

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
]


def test_without_java_a_load_waits_and_says_what_to_install(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    load = (
        "{{clusterRef: {{name: west}}, topics: [orders], value: {{format: Binary}}, output: {{path: /x}},"
        " minRecords: {}}}"
    )
    sandbox.write("BatchLoad", "daily", load.format(10))
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 0
    assert "BatchLoad daily: waits for records: 0 of 10\n" in ended.stdout
    produce(sandbox.bootstrap, "orders", 10)
    ended = sandbox.run("up", "-f", str(sandbox.manifests), JAVA_HOME="/nowhere")
    assert ended.returncode == 0
    assert "BatchLoad daily: not loaded (no Java 17: install a JDK 17" in ended.stdout
    assert sandbox.ready("BatchLoad", "daily")[:2] == ("False", "RunnerNotAvailable")
    assert "lastRun" not in sandbox.found("BatchLoad", "daily")["status"]


def test_a_load_runs_once_its_records_are_there(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    use_spark(monkeypatch)
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 3}")
    load = (
        "{{clusterRef: {{name: west}}, topics: [{}], minRecords: 1000, value: {{format: JSON, schema: n INT}},"
        " output: {{path: /lake/orders, volumeClaimName: lake}}, spark: {{driver: {{memory: 512m}}}}}}"
    )
    sandbox.write("BatchLoad", "daily", load.format("orders"))
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert outcome.waiting == {"BatchLoad default/daily": "waits for records: 0 of 1,000"}
    produce(sandbox.bootstrap, "orders", 1200)
    progress: list[Progress] = []
    runtime = LocalRuntime(sandbox.data, Reporter(progress=progress.append))
    outcome = runtime.up(sandbox.manifests)
    assert (outcome.failures, outcome.waiting) == ({}, {})
    status = sandbox.found("BatchLoad", "daily")["status"]
    assert (status["lastRun"]["state"], status["lastRun"]["rows"]) == ("Succeeded", 1200)
    assert sum(part["until"] - part["from"] for part in status["offsets"]) == 1200
    name = status["lastRun"]["name"]
    assert name.startswith("daily-0001-")
    steps = list(dict.fromkeys(at.step for at in progress))
    assert steps == ["starting Spark", "reading", "checking", "publishing", ""]
    assert {(at.run, at.total) for at in progress} == {(name, 1200)}
    assert list((sandbox.data / "volumes/lake/orders").rglob("*.parquet"))
    # A second `up` does not repeat a finished run.
    sandbox.runtime().up(sandbox.manifests)
    assert sandbox.said[-1] == f"BatchLoad daily: {name} has written 1,200 rows"

    # An unwritable output is reported in the job's words; `up` retries as the next run.
    sandbox.write("BatchLoad", "daily", load.format("orders"))
    (sandbox.data / "volumes/lake/file").write_text("not a folder")
    sandbox.write("BatchLoad", "bad", load.format("orders").replace("/lake/orders", "/lake/file"))
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert "output.path" in outcome.failures["BatchLoad default/bad"]
    assert sandbox.ready("BatchLoad", "bad")[:2] == ("False", "OutputNotWritable")
    assert any(line.startswith("BatchLoad bad: OutputNotWritable: ") for line in sandbox.said)
    (sandbox.data / "volumes/lake/file").unlink()
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.found("BatchLoad", "bad")["status"]["lastRun"]["name"].startswith("bad-0002-")


def test_a_load_that_is_made_again_runs_its_own_job(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_spark(monkeypatch)
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    load = (
        "{{clusterRef: {{name: west}}, topics: [orders], value: {{format: Binary}},"
        " output: {{path: /lake/{}, volumeClaimName: lake}}, spark: {{driver: {{memory: 512m}}}}}}"
    )
    sandbox.write("BatchLoad", "daily", load.format("old"))
    sandbox.runtime().up(sandbox.manifests)
    produce(sandbox.bootstrap, "orders", 10)
    # The predecessor's Spark kept running, and has reported.
    first = "daily-0001-1a2b3c4d"
    folder = sandbox.data / "loads/daily" / first
    folder.mkdir(parents=True)
    report = {"run": first, "state": "Succeeded", "rows": 1046}
    (folder / "result.json").write_text(json.dumps(report))
    assert sandbox.run("delete", "-f", str(sandbox.manifests / "BatchLoad-daily.yaml")).returncode == 0
    sandbox.write("BatchLoad", "daily", load.format("new"))
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    found = sandbox.found("BatchLoad", "daily")
    assert found["status"]["lastRun"]["name"].startswith("daily-0001-")
    assert found["status"]["lastRun"]["name"] != first
    assert found["status"]["lastRun"]["rows"] == 10
    assert list((sandbox.data / "volumes/lake/new").rglob("*.parquet"))
    assert json.loads((folder / "result.json").read_text()) == report

    # Recreated once more with its table: it does not add the records a second time.
    rows = list((sandbox.data / "volumes/lake/new").rglob("*.parquet"))
    assert sandbox.run("delete", "-f", str(sandbox.manifests / "BatchLoad-daily.yaml")).returncode == 0
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert "has offset" in outcome.failures["BatchLoad default/daily"]
    assert sandbox.ready("BatchLoad", "daily")[:2] == ("False", "AlreadyLoaded")
    assert list((sandbox.data / "volumes/lake/new").rglob("*.parquet")) == rows


def test_a_schedule_runs_between_two_commands(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    use_spark(monkeypatch)
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    load = (
        "{clusterRef: {name: west}, topics: [orders], value: {format: Binary}, schedule: {cron: '* * * * *'},"
        " output: {path: /lake/orders, volumeClaimName: lake}, spark: {driver: {memory: 512m}}}"
    )
    sandbox.write("BatchLoad", "daily", load)
    try:
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
        assert sandbox.said[-1].startswith("BatchLoad daily: next run at ")
        produce(sandbox.bootstrap, "orders", 10)

        def loaded() -> int:
            committed = sandbox.found("BatchLoad", "daily")["status"].get("committed")
            return committed["offsets"][0]["offset"] if committed else 0

        eventually("a run of the schedule", lambda: loaded() == 10)
        run = sandbox.found("BatchLoad", "daily")["status"]["lastRun"]
        assert (run["trigger"], run["state"]) == ("Schedule", "Succeeded")
        assert list((sandbox.data / "volumes/lake/orders").rglob("*.parquet"))
        # Another command gets the folder at once, even if the scheduler is working.
        produce(sandbox.bootstrap, "orders", 5)
        sandbox.write("BatchLoad", "daily", load.replace("* * * * *", "0 0 1 1 *"))
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
    finally:
        sandbox.runtime().down()
    assert json.loads((sandbox.data / "state.json").read_text())["daemons"] == {}


def eventually(what: str, true: Callable[[], bool], timeout: float = 200.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not in {timeout} s: {what}"
        time.sleep(0.5)
