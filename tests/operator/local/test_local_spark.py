"""Jars of local loads: which are missing, and what to do then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream_operator.local import spark
from millstream_operator.local.command import _run
from millstream_operator.local.java import NotInstalled
from millstream_operator.local.reconcile import rows_of
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.models.load import Run
from millstream_operator.models.load_run import RunState

ADVICE = "run `make jars` in Millstream's repository, or name"
KAFKA, DELTA = "spark-sql-kafka-0-10_2.13-4.1.1.jar", "delta-spark_4.1_2.13-4.3.1.jar"


def load(**output: Any) -> BatchLoad:
    return decode_as(
        BatchLoad,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "BatchLoad",
            "metadata": {"name": "daily", "namespace": "default"},
            "spec": {
                "clusterRef": {"name": "west"},
                "topics": ["orders"],
                "value": {"format": "Binary"},
                "output": {"path": "/x", **output},
            },
        },
    )


@pytest.mark.parametrize(
    ("jars", "output", "missing"),
    [
        ([KAFKA], {}, ""),
        ([KAFKA, DELTA], {"format": "Delta"}, ""),
        ([DELTA], {}, "Spark's Kafka source"),
        ([KAFKA], {"format": "Delta"}, "Delta"),
        ([KAFKA], {"format": "Iceberg"}, "Iceberg"),
        ([KAFKA], {"path": "s3a://bucket/x"}, "S3A"),
        ([], {"format": "Delta"}, "Spark's Kafka source and Delta"),
    ],
)
def test_missing_jars_are_named(
    jars: list[str], output: dict[str, str], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(spark.JARS_VARIABLE, str(tmp_path))
    for jar in jars:
        (tmp_path / jar).touch()
    if not missing:
        spark.check_jars(load(**output))
        return
    with pytest.raises(NotInstalled) as why:
        spark.check_jars(load(**output))
    assert str(why.value).startswith(f"no jar of {missing} in {tmp_path}: {ADVICE}")


def test_spark_downloads_its_kafka_source_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spark.JARS_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    spark.check_jars(load())
    with pytest.raises(NotInstalled, match="no jar of Delta in"):
        spark.check_jars(load(format="Delta"))


def test_a_failed_download_says_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("WARNINGS\n:: org.apache.spark#spark-avro_2.13;4.1.1: not found\n")
    assert spark.unreported(1, log) == f"Spark ended with status 1; its log is {log}"
    log.write_text("Exception: [unresolved dependency: org.apache.spark#spark-avro_2.13;4.1.1: not found]\n")
    assert ADVICE in spark.unreported(1, log)


def test_corrupt_rows_are_shown() -> None:
    run = Run(name="daily-0001", state=RunState.SUCCEEDED, rows=1200, corrupt_records=3)
    assert rows_of(run) == "1,200 rows (3 corrupt: see their column _corrupt_record)"
    assert rows_of(Run(rows=1, corrupt_records=0)) == "1 row"
    shown = {"name": "daily-0001", "state": "Succeeded", "rows": 1200, "corruptRecords": 3}
    assert _run(shown) == "daily-0001 Succeeded, 1,200 rows, 3 corrupt"
