"""`millstream-load RUN.json`: loads a range of topics into a table, exactly once however often it is started.

Under spark-submit it takes the session's master, jars and configuration from there; started by itself it
runs Spark in this process tree (`local[*]`) with the jars in the folder MILLSTREAM_SPARK_JARS, or else those
that Spark fetches from Maven's repository. Stdout says how far it is, stderr has Spark's log and, last, one
line on what failed. Exit status: 0 succeeded, 1 failed, 2 RUN.json cannot be run as it is.

How records become rows: `table`. How files reach the table: `publish`.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream_jobs import publish, table
from millstream_jobs.hadoop import HadoopFiles, root_cause
from millstream_jobs.progress import Progress, say
from millstream_jobs.run import BadRun, OffsetRange, Result, Run, read_run, result_path

KAFKA_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


class LoadError(Exception):
    """The run failed; one line for the user."""


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or given[0].startswith("-"):
        print("usage: millstream-load RUN.json", file=sys.stderr)
        return 0 if given in (["-h"], ["--help"]) else 2
    path = Path(given[0])
    try:
        run = read_run(path)
        result = start(run)
    except BadRun as error:
        return _fail(result_path(path), str(error), status=2)
    except (LoadError, publish.PublishError) as error:
        return _fail(run.result, str(error))
    except (Py4JError, PySparkException, OSError) as error:
        return _fail(run.result, root_cause(error))
    return _succeed(run, result)


def start(run: Run) -> Result:
    """Run it in a Spark session of its own."""
    spark = open_session(run.name)
    try:
        return load(spark, run, HadoopFiles(spark, run.output.path))
    finally:
        spark.stop()


def open_session(name: str) -> SparkSession:
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        if folder := os.environ.get("MILLSTREAM_SPARK_JARS"):
            builder = builder.config(
                "spark.jars", ",".join(str(jar) for jar in sorted(Path(folder).glob("*.jar")))
            )
        else:
            builder = builder.config("spark.jars.packages", KAFKA_SOURCE)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    # Days and instants must not depend on where the job runs, and other readers must know the instants.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return spark


def load(spark: SparkSession, run: Run, files: publish.Files) -> Result:
    """Bring the run to its end from wherever an earlier attempt left it."""
    manifest = publish.find_manifest(files, run)
    if manifest is None:
        attempt = uuid.uuid4().hex[:8]
        folder = f"{publish.staging_path(run.name)}/{attempt}"
        try:
            files.make_folder(folder)
        except OSError as error:
            raise LoadError(f"output.path: {run.output.path} cannot be written to: {error}") from None
        try:
            rows, corrupt = stage(spark, run, f"{run.output.path}/{folder}") if run.records else (0, 0)
        except Exception:
            files.delete(folder)
            raise
        manifest = publish.commit(files, run, attempt, rows, corrupt)
    if publish.finish(files, manifest):
        say(f"published {len(manifest.files):,} files to {run.output.path}")
    else:
        say(f"{run.name} has been published before; nothing to do")
    return Result("Succeeded", rows=manifest.rows, corrupt_records=manifest.corrupt_records)


def stage(spark: SparkSession, run: Run, folder: str) -> tuple[int, int]:
    """Write the run's rows into a folder and check them; how many there are, and corrupt ones among them."""
    records = table.read(spark, run)
    partition_by = run.output.partition_by
    # One file or a few for each value of the partition columns, rather than one from every task.
    rows = records.hint("rebalance", *partition_by) if partition_by else records
    with Progress(spark, run.records):
        rows.write.mode("append").partitionBy(*partition_by).parquet(folder)
    written = spark.read.schema(records.schema).parquet(folder)
    return check(spark, run, written)


def check(spark: SparkSession, run: Run, written: DataFrame) -> tuple[int, int]:
    """Whether what is in the files is what the offsets say: every record of every range, none twice."""
    corrupt = F.col(table.CORRUPT) if table.CORRUPT in written.columns else F.lit(None)
    found = {
        (row["_topic"], row["_partition"]): row
        for row in written.groupBy("_topic", "_partition")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(corrupt).alias("corrupt"),
            F.min("_offset").alias("first"),
            F.max("_offset").alias("last"),
        )
        .collect()
    }
    for part in run.offsets:
        row = found.get((part.topic, part.partition))
        rows = row["rows"] if row else 0
        inside = row is None or (row["first"] >= part.first and row["last"] < part.until)
        if rows != part.records and not (inside and rows < part.records and has_gaps(spark, run, part)):
            raise LoadError(
                f"offsets {part} hold {part.records:,} records, but {rows:,} were read:"
                " the topic was changed meanwhile, or some of its records are not for consumers"
            )
    return sum(row["rows"] for row in found.values()), sum(row["corrupt"] for row in found.values())


def has_gaps(spark: SparkSession, run: Run, part: OffsetRange) -> bool:
    """Whether offsets without a record are right in that topic: it is compacted."""
    jvm: Any = spark.sparkContext._jvm
    config = jvm.java.util.HashMap()
    config.put("bootstrap.servers", run.bootstrap)
    config.put("default.api.timeout.ms", "20000")
    config.put("request.timeout.ms", "15000")
    resource = jvm.org.apache.kafka.common.config.ConfigResource(
        jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC, part.topic
    )
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(config)
    try:
        topic = (
            admin.describeConfigs(jvm.java.util.Collections.singletonList(resource)).all().get().get(resource)
        )
        return "compact" in topic.get("cleanup.policy").value()
    finally:
        admin.close()


def _succeed(run: Run, result: Result) -> int:
    corrupt = f", {result.corrupt_records:,} of them corrupt" if result.corrupt_records else ""
    say(f"Succeeded: {result.rows:,} rows{corrupt}")
    return 0 if _report(run.result, result) else 1


def _fail(path: str, error: str, status: int = 1) -> int:
    _report(path, Result("Failed", error=error))
    print(f"millstream-load: {error}", file=sys.stderr)
    return status


def _report(path: str, result: Result) -> bool:
    """Write the result where the run wants it; it stands in a folder or is /dev/termination-log, never renamed."""
    try:
        if path:
            Path(path).write_bytes(result.encode())
    except OSError as error:
        print(f"millstream-load: result: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
