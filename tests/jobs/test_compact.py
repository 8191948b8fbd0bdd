"""Compaction merges a table's small files and keeps its rows, its readers and its record of loads."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads, read_table
from millstream_jobs import load as job
from millstream_jobs import table
from millstream_jobs.compact import Compact, Compacted, compact, main
from millstream_jobs.outputs import OutputError, open_output
from millstream_jobs.run import BadRun, Output, Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
RUNS = 3


class Runs:
    """Loads of two rows each, of two days."""

    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        self.more = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
        days = [{"day": f"2026-07-0{1 + number % 2}", "number": number} for number in range(2 * RUNS + 2)]
        loads.publish([(None, json.dumps(day).encode()) for day in days])

    def run(self, number: int) -> Run:
        return self.loads.run(
            (0, 2 * number, 2 * number + 2),
            name=f"run-{number}",
            value=Value(schema="day DATE, number INT"),
            partition_by=("day",),
            output=self.more,
        )

    def compact(self, where: str = "") -> Compacted:
        return compact(self.loads.spark, Compact("compact", Output(str(self.loads.path), **self.more), where))

    def numbers(self) -> list[int]:
        return [row["number"] for row in self.loads.rows(self.format)]


@pytest.fixture(params=["Delta", "Iceberg"])
def runs(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> Runs:
    return Runs(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def test_files_are_merged_and_nobody_is_disturbed(runs: Runs) -> None:
    """One reader reads all the time, another keeps an older version, and a run is staged before and commits after."""
    spark = runs.loads.spark
    for number in range(RUNS):
        assert job.load(spark, runs.run(number)).rows == 2
    older = DeltaTable(runs.loads.path) if runs.format == "Delta" else None
    last = runs.run(RUNS)
    driver = open_output(spark, last)
    records = table.read(spark, last)
    driver.prepare(records.schema)
    driver.stage(records)
    seen: Counter[int] = Counter()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen[read_table(runs.format, runs.loads.path).num_rows] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: seen[2 * RUNS], bool, "it has read the small files")
        assert runs.compact("day = DATE '2026-07-01'") == Compacted(RUNS, 1)
        assert runs.compact() == Compacted(RUNS, 1)
        assert runs.compact() == Compacted(0, 0)
    finally:
        ended.set()
        reader.join()
    assert seen.keys() == {2 * RUNS}
    assert runs.numbers() == list(range(2 * RUNS))
    if older is not None:
        assert older.to_pyarrow_table().num_rows == 2 * RUNS
        newest = max((runs.loads.path / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in newest.read_text().splitlines()]
        changes = [one[kind] for one in actions for kind in ("add", "remove") if kind in one]
        assert len(changes) == RUNS + 1
        assert not any(change["dataChange"] for change in changes), "a stream from the table sees nothing new"

    for number in range(RUNS):
        assert job.load(spark, runs.run(number)).rows == 2
    assert runs.numbers() == list(range(2 * RUNS)), "their runs are still known"
    assert driver.commit(2, 0).attempt == driver.attempt
    assert runs.numbers() == list(range(2 * RUNS + 2))


def test_what_cannot_be_compacted_is_one_line(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((BadRun, OutputError), match=r"^output") as caught:
        runs.compact()
    assert "\n" not in str(caught.value)
    job.load(runs.loads.spark, runs.run(0))
    for where in ("nope = 1", "day ="):
        with pytest.raises(BadRun, match="output or where: ") as wrong:
            runs.compact(where)
        assert "\n" not in str(wrong.value)
    path: Any = tmp_path / "compact.json"
    path.write_text(json.dumps({"name": "c", "output": {"path": "/lake"}}))
    assert main([str(path)]) == 2
    assert "output.format: Parquet is not allowed" in capsys.readouterr().err
