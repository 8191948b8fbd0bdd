"""Mode New: the table must not have rows of the run's records.

A load that is deleted and created again does not know its predecessor's runs. Its first run would add all of their
records to the table once more.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream_jobs.outputs.iceberg import STORED
from millstream_jobs.outputs.parquet import RUN_COLUMN
from millstream_jobs.outputs.reading import read_table
from millstream_jobs.run import BadRun, Run

RECORD = "_topic STRING, _partition INT, _offset LONG, _timestamp TIMESTAMP"


class AlreadyLoaded(BadRun):
    """The table has rows of these records already."""

    reason = "AlreadyLoaded"


def check(spark: SparkSession, run: Run) -> None:
    """AlreadyLoaded if the run's mode is New and the table has a row of one of its records."""
    if run.output.mode != "New":
        return
    rows = _rows(spark, run)
    for row in rows.join(F.broadcast(_ranges(spark, run)), _in_range()).limit(1).collect():
        by = f", by run {row[RUN_COLUMN]}" if RUN_COLUMN in rows.columns else ""
        raise AlreadyLoaded(
            f"output.path: {run.output.path} has offset {row['_offset']} of {row['_topic']}-{row['_partition']} already"
            f"{by}: a load of these records would add them once more; nothing was published; take another path, begin"
            " where the table ends (from, position Offsets), or give from a requestId to add them anyway"
        )


def _rows(spark: SparkSession, run: Run) -> DataFrame:
    """Topic, partition and offset of the table's records, and a plain table's runs."""
    output = run.output
    plain = spark.read.schema(RECORD)  # a plain table without files has no schema of its own
    rows = plain.parquet(output.path) if output.format == "Parquet" else read_table(spark, output)
    if output.format == "Iceberg":
        rows = rows.withColumnRenamed(STORED["_partition"], "_partition")
    if run.from_timestamp is not None:
        rows = rows.where(F.col("_timestamp") >= F.lit(run.from_timestamp))
    wanted = ["_topic", "_partition", "_offset", *(name for name in rows.columns if name == RUN_COLUMN)]
    return rows.where(F.col("_topic").isin(*run.topics)).select(*wanted)


def _ranges(spark: SparkSession, run: Run) -> DataFrame:
    """A table rather than a condition: a condition with thousands of partitions is more than Spark's parser takes."""
    ranges = [(part.topic, part.partition, part.first, part.until) for part in run.offsets if part.records]
    return spark.createDataFrame(ranges, "topic STRING, partition INT, first LONG, until LONG")


def _in_range() -> Column:
    return (
        (F.col("_topic") == F.col("topic"))
        & (F.col("_partition") == F.col("partition"))
        & (F.col("_offset") >= F.col("first"))
        & (F.col("_offset") < F.col("until"))
    )
