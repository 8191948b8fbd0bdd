"""Batch loads in the test's Spark session, and their tables as other readers see them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
from confluent_kafka import Producer
from deltalake import DeltaTable
from msgspec import structs
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from millstream_harness.spark import publish
from millstream_jobs import load as job
from millstream_jobs.run import OffsetRange, Output, Result, Run
from millstream_jobs.value import Value

# A Python thread has its own connection to Spark's JVM; py4j leaves closing it to the garbage collector.
PY4J = "ignore::pytest.PytestUnraisableExceptionWarning"
SCHEMA = "carrier STRING, delay DOUBLE, time_hour TIMESTAMP"
ICEBERG_TABLE = "flights.delays"


def read_table(format: str, path: Path, add: str = "") -> pyarrow.Table:
    """The table as pyarrow, delta-rs and pyiceberg read it: ``format`` as in RUN.json.

    Plain Parquet has the columns of its first file; ``add`` names an INT column that was added later.
    """
    if format == "Delta":
        return DeltaTable(path).to_pyarrow_table()
    if format == "Iceberg":
        metadata = path.joinpath(*ICEBERG_TABLE.split("."), "metadata")
        newest = max(metadata.glob("v*.metadata.json"), key=lambda file: int(file.name[1:].split(".")[0]))
        return read_iceberg(str(newest))
    dataset = pyarrow.dataset.dataset(path, partitioning="hive")
    if add and add not in dataset.schema.names:
        dataset = dataset.replace_schema(dataset.schema.append(pyarrow.field(add, pyarrow.int32())))
    return dataset.to_table()


def read_iceberg(metadata: str, properties: Mapping[str, str] | None = None) -> pyarrow.Table:
    """The table of a metadata file, with the other formats' column names; ``properties`` give access to S3."""
    table = StaticTable.from_metadata(metadata, dict(properties or {})).scan().to_arrow()
    return table.rename_columns(
        ["_partition" if name == "_topic_partition" else name for name in table.column_names]
    )


def files_of(format: str, path: Path) -> list[str]:
    """The data files of a table."""
    if format == "Delta":
        files: list[str] = DeltaTable(path).file_uris()
        return files
    return [str(file) for file in path.rglob("*.parquet")]


def without_bytes(result: Result) -> Result:
    """A result without its bytes, which depend on Spark's encoding; asserts that there were some."""
    assert result.bytes_ is not None
    assert (result.bytes_ > 0) is (result.rows > 0)
    return structs.replace(result, bytes_=None)


class Loads:
    """Runs over one topic of two partitions into one folder."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.path = folder / "lake"
        self.topic = f"loads-{uuid.uuid4().hex[:8]}"

    def publish(
        self, *partitions: list[tuple[bytes | None, bytes | None]], config: dict[str, str] | None = None
    ) -> None:
        publish(self.bootstrap, self.topic, partitions, config)

    def publish_at(self, *records: tuple[bytes, dt.datetime]) -> None:
        """A topic of one partition with values and their producers' timestamps."""
        self.publish([])
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value, time in records:
            producer.produce(self.topic, value, None, 0, timestamp=int(time.timestamp() * 1000))
        assert producer.flush(30) == 0

    def publish_records(
        self, *records: tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
    ) -> None:
        """A topic of one partition with records of key, value and headers."""
        self.publish([])
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for key, value, headers in records:
            producer.produce(self.topic, value, key, 0, headers=headers)
        assert producer.flush(30) == 0

    def run(
        self,
        *ranges: tuple[int, int, int],
        name: str = "run-0001",
        value: Value | None = None,
        partition_by: tuple[str, ...] = (),
        output: dict[str, Any] | None = None,
        **more: Any,
    ) -> Run:
        return Run(
            name=name,
            bootstrap=self.bootstrap,
            offsets=tuple(OffsetRange(self.topic, *numbers) for numbers in ranges),
            output=Output(**{"path": str(self.path), "partition_by": partition_by, **(output or {})}),
            value=value or Value(schema=SCHEMA),
            **more,
        )

    def load(self, *ranges: tuple[int, int, int], **given: Any) -> Result:
        return job.load(self.spark, self.run(*ranges, **given))

    def rows(self, format: str = "Parquet") -> list[dict[str, Any]]:
        """The table, in the order of partitions and offsets."""
        rows: list[dict[str, Any]] = read_table(format, self.path).to_pylist()
        return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))
