"""`millstream-load` as a process: it is killed and started again, and reports why it fails.

Kills strike at random moments; test_objects and test_outputs stop a driver at chosen steps.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready
from millstream_harness.spark import LoadProcess, publish, spark_jars
from millstream_harness.spark_loads import ICEBERG_TABLE, read_table

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
DAYS = 120
A_DAY = 4


def eventually(what: str, true: Callable[[], bool], process: LoadProcess, timeout: float = 240.0) -> None:
    deadline = time.monotonic() + timeout
    while True:
        ended = process.process.poll()  # before the state, which is then the last one
        if true():
            return
        assert ended is None, f"the load ended before {what}"
        assert time.monotonic() < deadline, f"not in {timeout} s: {what}"
        time.sleep(0.01)


def files(folder: Path) -> list[str]:
    """Files below a folder that changes meanwhile."""
    return [name for _, _, names in os.walk(folder) for name in names]


@pytest.fixture(scope="module")
def year(shared_broker: InProcessBroker) -> dict[str, Any]:
    """A run over a topic of two partitions with records of 120 days; its path is still empty."""
    spark_jars()
    events = [
        (None, json.dumps({"number": number, "day": f"{2000 + number % DAYS}-01-01"}).encode())
        for number in range(DAYS * A_DAY)
    ]
    publish(shared_broker.bootstrap, "year-of-loads", [events[0::2], events[1::2]])
    half = DAYS * A_DAY // 2
    return {
        "name": "year-0001",
        "bootstrap": shared_broker.bootstrap,
        "offsets": [
            {"topic": "year-of-loads", "partition": partition, "from": 0, "until": half}
            for partition in (0, 1)
        ],
        "value": {"format": "JSON", "schema": "number INT, day DATE"},
        "output": {"format": "Parquet", "path": "", "partitionBy": ["day"]},
    }


@pytest.fixture(params=["Parquet", "Delta", "Iceberg"])
def run(request: pytest.FixtureRequest, year: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The run in each format."""
    output = {**year["output"], "path": str(tmp_path / "lake"), "format": request.param}
    if request.param == "Iceberg":
        output["table"] = ICEBERG_TABLE
    return {**year, "output": output}


def check_the_year(run: dict[str, Any]) -> None:
    table = read_table(run["output"]["format"], Path(run["output"]["path"])).select(["number", "day"])
    assert sorted(table["number"].to_pylist()) == list(range(DAYS * A_DAY))
    assert len(set(table["day"].to_pylist())) == DAYS


def test_killed_at_any_moment_and_started_again_every_row_is_there_once(
    run: dict[str, Any], tmp_path: Path
) -> None:
    first = LoadProcess(tmp_path / "first", run)
    eventually(
        "it writes", lambda: any(name.endswith(".parquet") for name in files(tmp_path / "lake")), first
    )
    pause = random.uniform(0, 2)
    print(f"killed {pause:.3f} s after its first file")
    time.sleep(pause)
    first.kill()

    second = LoadProcess(tmp_path / "second", run).wait()
    assert second.status == 0, second.stderr
    size = second.result.pop("bytes")
    assert size > 0
    reported = {
        "state": "Succeeded",
        "rows": DAYS * A_DAY,
        "corruptRecords": 0,
        "error": "",
        "run": "year-0001",
        "reason": "",
        "warning": "",
    }
    assert second.result == reported
    assert second.stdout.splitlines()[-1] == f"load: Succeeded: {DAYS * A_DAY:,} rows"
    check_the_year(run)


def test_two_processes_of_one_run_publish_it_once(run: dict[str, Any], tmp_path: Path) -> None:
    processes = [LoadProcess(tmp_path / name, run) for name in ("one", "other")]
    ended = [process.wait() for process in processes]
    assert [one.status for one in ended] == [0, 0], [one.last_line for one in ended]
    said = [
        (
            f"load: published {DAYS * A_DAY:,} rows to {tmp_path / 'lake'}" in one.stdout,
            "load: another driver has published year-0001 first; the rows of this one are dropped"
            in one.stdout
            or "load: year-0001 has been published before; nothing to do" in one.stdout,
        )
        for one in ended
    ]
    assert sorted(said) == [(False, True), (True, False)], "one wins, the other says so"
    check_the_year(run)


def test_an_output_that_cannot_be_written_is_one_line(year: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = str(tmp_path / "file" / "lake")
    ended = LoadProcess(tmp_path, {**year, "output": {**year["output"], "path": path}}).wait()
    assert ended.status == 1
    assert ended.last_line.startswith(f"millstream-load: output.path: {path} cannot be written to: ")
    assert (ended.result["state"], ended.result["run"]) == ("Failed", "year-0001")
    assert ended.result["error"] == ended.last_line.removeprefix("millstream-load: ")
    assert ready(ended.result)[:2] == ("False", "OutputNotWritable")
    assert "Traceback" not in ended.stderr
    assert "\tat " not in ended.stderr


def test_a_topic_that_is_not_there_is_named(year: dict[str, Any], tmp_path: Path) -> None:
    output = {"path": str(tmp_path / "lake")}
    for part, said in (
        ({"topic": "no-flights"}, "topics: no-flights is not there: "),
        ({"partition": 2}, "offsets: year-of-loads-2 is not there: the topic has partitions 0 to 1"),
    ):
        offsets = [{**year["offsets"][0], **part}]
        ended = LoadProcess(tmp_path, {**year, "offsets": offsets, "output": output}).wait()
        assert ended.status == 1
        assert ended.last_line.startswith(f"millstream-load: {said}")
        assert ended.result["error"].startswith(said)
        status, reason, message = ready(ended.result)
        assert (status, reason) == ("False", "TopicNotFound")
        assert "create it" in message or "add partitions" in message
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_a_spark_without_the_jars_says_what_it_does_not_have(year: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    output = {"path": str(tmp_path / "lake")}
    for more, lacking in (
        ({}, "kafka"),
        ({"format": "Iceberg", "table": ICEBERG_TABLE}, "org.apache.iceberg.spark.SparkCatalog"),
    ):
        ended = LoadProcess(tmp_path, {**year, "output": {**output, **more}}, tmp_path / "jars").wait()
        assert ended.status == 1
        said = f"Spark does not have {lacking}: a jar is missing: take the image millstream/spark"
        assert ended.last_line.startswith(f"millstream-load: {said}")
        assert ended.result["error"].startswith(said)
        status, reason, message = ready(ended.result)
        assert (status, reason) == ("False", "RunFailed")
        assert said in message
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_a_schema_that_spark_cannot_read_ends_with_status_2(year: dict[str, Any], tmp_path: Path) -> None:
    bad = {"format": "JSON", "schema": "number INTEGR"}
    ended = LoadProcess(tmp_path, {**year, "value": bad, "output": {"path": str(tmp_path / "lake")}}).wait()
    assert ended.status == 2
    assert 'value.schema: "number INTEGR" is not allowed' in ended.last_line
    assert ended.result["state"] == "Failed"
    assert "Traceback" not in ended.stderr
    assert ready(ended.result)[:2] == ("False", "InvalidSpec")
    assert not list((tmp_path / "lake").rglob("*.parquet"))
