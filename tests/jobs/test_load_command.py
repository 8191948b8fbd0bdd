"""`millstream-load` as a process: killed and started again, and what it says when it cannot.

Where exactly a kill strikes is up to the machine; test_publish kills after every single step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.spark import LoadProcess, publish, spark_jars

pytestmark = pytest.mark.timeout(300)
DAYS = 120
A_DAY = 4


def eventually(what: str, true: Callable[[], bool], process: LoadProcess, timeout: float = 100.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert process.process.poll() is None, f"the load ended before {what}"
        assert time.monotonic() < deadline, f"not in {timeout} s: {what}"
        time.sleep(0.002)


def files(folder: Path) -> list[str]:
    """The files below a folder that somebody changes meanwhile."""
    return [name for _, _, names in os.walk(folder) for name in names]


@pytest.fixture(scope="module")
def year(shared_broker: BrokerProcess) -> dict[str, Any]:
    """A run over a topic of two partitions with records of 120 days; the path is to be filled in."""
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


def test_killed_in_mid_write_and_in_mid_publish_every_row_is_there_once(
    year: dict[str, Any], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    run = {**year, "output": {**year["output"], "path": str(lake)}}
    manifest, staging = lake / "_millstream/year-0001.json", lake / "_staging/year-0001"

    first = LoadProcess(tmp_path, run)
    eventually("it writes rows", lambda: any(name.endswith(".parquet") for name in files(staging)), first)
    first.kill()
    assert manifest.exists() or all(path.name.startswith("_") for path in lake.iterdir())

    second = LoadProcess(tmp_path, run)
    eventually("it publishes files", manifest.exists, second)
    second.kill()

    third = LoadProcess(tmp_path, run).wait()
    assert third.status == 0, third.stderr
    assert third.result == {"state": "Succeeded", "rows": DAYS * A_DAY, "corruptRecords": 0, "error": ""}
    assert third.stdout.splitlines()[-1] == f"load: Succeeded: {DAYS * A_DAY:,} rows"
    table = pyarrow.dataset.dataset(lake, partitioning="hive").to_table(columns=["number", "day"])
    assert sorted(table["number"].to_pylist()) == list(range(DAYS * A_DAY))
    assert len(set(table["day"].to_pylist())) == DAYS
    assert not staging.exists()


def test_an_output_that_cannot_be_written_is_one_line(year: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = str(tmp_path / "file" / "lake")
    ended = LoadProcess(tmp_path, {**year, "output": {**year["output"], "path": path}}).wait()
    assert ended.status == 1
    assert ended.last_line.startswith(f"millstream-load: output.path: {path} cannot be written to: ")
    assert ended.result["state"] == "Failed"
    assert ended.result["error"] == ended.last_line.removeprefix("millstream-load: ")
    assert "Traceback" not in ended.stderr
    assert "\tat " not in ended.stderr


def test_a_schema_that_spark_cannot_read_ends_with_status_2(year: dict[str, Any], tmp_path: Path) -> None:
    bad = {"format": "JSON", "schema": "number INTEGR"}
    ended = LoadProcess(tmp_path, {**year, "value": bad, "output": {"path": str(tmp_path / "lake")}}).wait()
    assert ended.status == 2
    assert 'value.schema: "number INTEGR" is not allowed' in ended.last_line
    assert ended.result["state"] == "Failed"
    assert "Traceback" not in ended.stderr
