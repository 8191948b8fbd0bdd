"""A job's progress, from Spark's own figures: stage, tasks and rows so far, in few lines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import PY4J
from millstream_jobs import progress

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300), pytest.mark.filterwarnings(PY4J)]


def test_lines_say_stage_tasks_and_rows_so_far(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two tasks one has ended, and the other waits for a file."""
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    table, gate = str(tmp_path / "table"), tmp_path / "open"
    spark.range(0, 300, 1, 2).write.parquet(table)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1500")
    rows = spark.read.parquet(table)
    assert rows.rdd.getNumPartitions() == 2
    lines: list[str] = []

    def collected() -> list[str]:
        lines.extend(capsys.readouterr().out.splitlines())
        return lines

    def wait(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            while batch["id"][0].as_py() >= 150 and not gate.exists():
                time.sleep(0.05)
            yield batch

    def write() -> None:
        rows.mapInArrow(wait, rows.schema).write.parquet(str(tmp_path / "written"))

    with progress.Progress(spark, 300).step("reading"):
        thread = InheritableThread(target=write)
        thread.start()
        try:
            # An executor's heartbeat may have reported the rows of the second task, too.
            half = re.compile(r"load: reading: (150|300) of 300 records, stage \d+, 1 of 2 tasks")
            eventually(collected, lambda said: any(map(half.fullmatch, said)), "the first task's rows", 120)
        finally:
            gate.touch()
            thread.join()
    collected()
    assert lines[0] == "load: reading: 0 of 300 records"
    assert lines[-1] == "load: reading: 300 of 300 records"
    assert len(lines) == len(set(lines)), "a line comes when something has changed"


def test_short_step_has_one_line(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Progress(spark, 300).step("checking"):
        pass
    assert capsys.readouterr().out == "load: checking: 0 of 300 records\n"


def test_lines_of_a_long_step_become_rare() -> None:
    assert [progress.pause(since) for since in (0, 9, 60, 200, 3600, 86400)] == [1, 1, 6, 20, 30, 30]
