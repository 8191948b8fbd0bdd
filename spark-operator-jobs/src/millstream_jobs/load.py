"""`millstream-load RUN.json`: loads a range of topics into a table, exactly once however often it is started.

Under spark-submit it takes the session's master, jars and configuration from there; started by itself it
runs Spark in this process tree (`local[*]`) with the jars in the folder MILLSTREAM_SPARK_JARS, or else those
that Spark fetches from Maven's repository. Stdout says how far it is, stderr has Spark's log and, last, one
line on what failed. Exit status: 0 succeeded, 1 failed, 2 RUN.json cannot be run as it is.

How records become rows: `table`. How rows reach the table, once: `outputs`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream_jobs import completeness, loss, table
from millstream_jobs.completeness import Incomplete
from millstream_jobs.failures import root_cause
from millstream_jobs.outputs import Committed, Output, OutputError, open_output
from millstream_jobs.outputs.session import static_conf
from millstream_jobs.progress import Progress, say
from millstream_jobs.registry import RegistryError
from millstream_jobs.run import BadRun, Result, Run, name_and_result, read_run

PACKAGES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,org.apache.spark:spark-avro_2.13:4.0.0"
# Bytes that are no Avro record may announce gigabytes; without limits Avro reserves the memory and Spark dies.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{kind}.maxLength={limit}"
    for kind, limit in (("bytes", 64 << 20), ("string", 64 << 20), ("collectionItems", 16 << 20))
)


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
        return _fail(*name_and_result(path), str(error), status=2)
    except (Incomplete, RegistryError, OutputError) as error:
        return _fail(run.name, run.result, str(error))
    except (Py4JError, PySparkException, OSError) as error:
        return _fail(run.name, run.result, root_cause(error))
    return _succeed(run, result)


def start(run: Run) -> Result:
    """Run it in a Spark session of its own."""
    spark = open_session(run.name, [run.output.format])
    try:
        return load(spark, run)
    finally:
        spark.stop()


def open_session(name: str, formats: Sequence[str]) -> SparkSession:
    """A session that can write tables of these formats."""
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    for key, value in static_conf(formats).items():
        builder = builder.config(key, value)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.extraJavaOptions", AVRO_LIMITS)
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        if folder := os.environ.get("MILLSTREAM_SPARK_JARS"):
            # Not spark.jars: each session would copy all of them.
            builder = builder.config("spark.driver.extraClassPath", f"{Path(folder).resolve()}/*")
        else:
            builder = builder.config("spark.jars.packages", PACKAGES)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    # Days and instants must not depend on where the job runs, and other readers must know the instants.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", "true")  # root_cause reads it
    return spark


def load(spark: SparkSession, run: Run) -> Result:
    """Bring the run to its end from wherever an earlier attempt left it."""
    if not run.records:
        say(f"{run.name} has no records")
        return Result("Succeeded")
    output = open_output(spark, run)
    committed = output.find()
    if committed is not None:
        say(f"{run.name} has been published before; nothing to do")
    else:
        committed = attempt(spark, run, output)
        if committed.attempt == output.attempt:
            say(f"published {committed.rows:,} rows to {run.output.path}")
        else:
            say(f"another driver has published {run.name} first; the rows of this one are dropped")
    return Result("Succeeded", rows=committed.rows, corrupt_records=committed.corrupt_records)


def attempt(spark: SparkSession, run: Run, output: Output) -> Committed:
    """Write the run's rows, check and commit them; the commit of the run, which may be another driver's."""
    records = table.read(spark, run)
    output.prepare(records.schema)
    try:
        with loss.told(spark, run), Progress(spark, run.records):
            staged = output.stage(records)
        rows, corrupt = completeness.check(spark, run, staged)
        return output.commit(rows, corrupt)
    except Exception:
        committed = _found_after_failure(output)  # another driver's success removes what is staged here
        with contextlib.suppress(Exception):  # what has failed may make this fail, too
            output.discard()
        if committed is None:
            raise
        return committed


def _found_after_failure(output: Output) -> Committed | None:
    try:
        return output.find()
    except Exception:  # what failed before says more
        return None


def _succeed(run: Run, result: Result) -> int:
    corrupt = f", {result.corrupt_records:,} of them corrupt" if result.corrupt_records else ""
    say(f"Succeeded: {result.rows:,} rows{corrupt}")
    return 0 if _report(run.result, replace(result, run=run.name)) else 1


def _fail(name: str, path: str, error: str, status: int = 1) -> int:
    _report(path, Result("Failed", error=error, run=name))
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
