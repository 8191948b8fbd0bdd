"""`millstream-compact COMPACT.json`: merges the small files of a table, without effect on its rows and readers.

    {"name": "flights-compact",
     "output": {"format": "Delta", "path": "/lake/flights", "targetFileSize": 268435456, …},    as in RUN.json
     "where": "date >= '2026-07-01'",    which partitions, in SQL; left out: all
     "result": …}                        as in RUN.json

Delta does this with OPTIMIZE, whose commit says that no data changed; Iceberg with its procedure `rewrite_data_files`.
The merged files stay for readers of older versions until VACUUM or `expire_snapshots` removes them. Tables keep their
records of loads' runs. If a lock serialises the drivers of a table, loads wait for the end of the compaction.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession

from millstream_jobs import command
from millstream_jobs.command import Job
from millstream_jobs.load import open_session
from millstream_jobs.outputs import OutputError, delta, iceberg
from millstream_jobs.outputs.session import catalog_name, configure
from millstream_jobs.progress import say
from millstream_jobs.run import BadRun, Name, Output, Result, check_output, read_config

FILE_SIZE = 256 << 20


class Compact(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    output: Output
    where: str = ""
    result: str = ""


class Compacted(Struct, frozen=True):
    before: int
    """Number of files that were merged."""
    after: int


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("compact", read_compact, start, counts_rows=False), arguments)


def read_compact(path: Path) -> Compact:
    wanted = read_config(path, Compact)
    check_output(wanted.output, path)
    if wanted.output.format == "Parquet":
        raise BadRun(
            f"{path}: output.format: Parquet is not allowed: plain files cannot be merged without readers"
            " noticing; choose Delta or Iceberg, or set targetFileSize and load less often"
        )
    return wanted


def start(wanted: Compact) -> Result:
    """Run it in its own Spark session."""
    spark = open_session(wanted.name, [wanted.output.format])
    try:
        done = compact(spark, wanted)
    finally:
        spark.stop()
    say(f"{done.before:,} files became {done.after:,}" if done.before else "no files to merge")
    return Result("Succeeded")


def compact(spark: SparkSession, wanted: Compact) -> Compacted:
    configure(spark, wanted.output)
    try:
        return _delta(spark, wanted) if wanted.output.format == "Delta" else _iceberg(spark, wanted)
    except (AnalysisException, IllegalArgumentException) as error:  # Iceberg raises IllegalArgumentException
        raise BadRun(f"output or where: {str(error).strip().splitlines()[0]}") from None


def _delta(spark: SparkSession, wanted: Compact) -> Compacted:
    output = wanted.output
    size = output.target_file_size or FILE_SIZE
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(size))
    # A file of at least three quarters of the target size is left alone.
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(size * 3 // 4))
    table = delta.table_name(output.path)
    where = f" WHERE {wanted.where}" if wanted.where else ""
    spark.sql(f"DESCRIBE DETAIL {table}").collect()  # without a table, fail before the lock is created
    with delta.alone(output):
        metrics = spark.sql(f"OPTIMIZE {table}{where}").collect()[0]["metrics"]
    return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"])


def _iceberg(spark: SparkSession, wanted: Compact) -> Compacted:
    output = wanted.output
    catalog = catalog_name(output)
    if not spark.catalog.tableExists(f"`{catalog}`.{iceberg.quoted(output.table)}"):
        raise OutputError(f"output.table: {output.table} is not in the catalog of {output.path}")
    options = {"target-file-size-bytes": str(output.target_file_size or FILE_SIZE), "min-input-files": "2"}
    given = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    where = (
        ", where => '" + wanted.where.replace("\\", "\\\\").replace("'", "\\'") + "'" if wanted.where else ""
    )
    with iceberg.alone(output):
        done = spark.sql(
            f"CALL `{catalog}`.system.rewrite_data_files"
            f"(table => '{output.table}', options => map({given}){where})"
        ).collect()[0]
    return Compacted(done["rewritten_data_files_count"], done["added_data_files_count"])


if __name__ == "__main__":
    sys.exit(main())
