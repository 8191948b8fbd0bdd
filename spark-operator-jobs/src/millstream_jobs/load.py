"""`millstream-load RUN.json`: loads a range of topics into a table, exactly once however often it is started.

Under spark-submit it takes the session's master, jars and configuration from there; started directly it runs
Spark in this process tree (`local[*]`) with the jars in the folder MILLSTREAM_SPARK_JARS, or else those that
Spark fetches from Maven's repository. `command` documents its output and exit status.

`table` turns records into rows; `outputs` writes rows to the table, once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from millstream_jobs import (
    claims,
    command,
    completeness,
    identity,
    impossible_times,
    loss,
    positions,
    repeats,
    table,
)
from millstream_jobs.claims import Claims
from millstream_jobs.command import Job
from millstream_jobs.files import files_below
from millstream_jobs.impossible_times import Aside
from millstream_jobs.outputs import Committed, Fenced, Output, open_output
from millstream_jobs.outputs.session import static_conf
from millstream_jobs.progress import Progress, say
from millstream_jobs.run import Result, Run, read_run
from millstream_jobs.words import count_of

PACKAGES = ",".join(
    f"org.apache.spark:spark-{name}_2.13:{pyspark.__version__}" for name in ("sql-kafka-0-10", "avro")
)
# Invalid Avro may announce gigabytes; without limits Avro allocates the memory and Spark dies.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{kind}.maxLength={limit}"
    for kind, limit in (("bytes", 64 << 20), ("string", 64 << 20), ("collectionItems", 16 << 20))
)


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("load", read_run, start), arguments)


def start(run: Run) -> Result:
    """Run it in its own Spark session."""
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
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for tasks that run Python
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
    elif ":" in (address := os.environ.get("POD_IP", "")):
        # A driver's pod with IPv6. Spark needs brackets here, which Kubernetes cannot add to an address in arguments.
        builder = builder.config("spark.driver.host", f"[{address}]")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    # Days and instants must not depend on the job's machine, and other readers must know the instants.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", "true")  # root_cause reads it
    return spark


def load(spark: SparkSession, run: Run) -> Result:
    """Complete the run from where an earlier attempt left it."""
    if not run.records:
        say(f"{run.name} has no records")
        return Result("Succeeded", bytes_=0)
    output = open_output(spark, run)
    committed = output.find()
    if committed is not None:
        if run.fence is not None and (claim := claims_of(run).of(run)) is not None:
            claims.check_records(run, claim)
        say(f"{run.name} has been published before; nothing to do")
    else:
        committed, output = _attempts(spark, run, output)
        if committed.attempt == output.attempt:
            say(f"published {count_of(committed.rows, 'row')} to {run.output.path}")
        else:
            say(f"another driver has published {run.name} first; the rows of this one are dropped")
    if warning := output.warning():
        say(f"warning: {warning}")
    return Result(
        "Succeeded",
        rows=committed.rows,
        corrupt_records=committed.corrupt_records,
        bytes_=committed.bytes_,
        warning=warning,
    )


def claims_of(run: Run) -> Claims:
    return Claims(files_below(run.output), run.output)


def _attempts(spark: SparkSession, run: Run, output: Output) -> tuple[Committed, Output]:
    """The commit of the run, and the last attempt's output: the second one sets records with impossible times aside."""
    try:
        return attempt(spark, run, output), output
    except Exception as error:
        if not impossible_times.is_cause(error) or not (aside := impossible_times.find(run)):
            raise
    for record in aside:
        say(f"{record}: its row is corrupt, and has no _timestamp")
    output = open_output(spark, run)
    return attempt(spark, run, output, aside), output


def attempt(spark: SparkSession, run: Run, output: Output, aside: Sequence[Aside] = ()) -> Committed:
    """Write the run's rows, check and commit them; returns the commit of the run, which may be another driver's."""
    records = table.read(spark, run, aside)
    positions.check_partitions(run.brokers, run.offsets)
    topics = identity.begin(run)
    progress = Progress(spark, run.records)
    try:
        output.prepare(records.schema)
        claim = claims_of(run).take(run, output) if run.fence is not None else None
        if run.fence is not None and claim is None:
            return _superseded(run, output)
        repeats.check(spark, run)
        with loss.translate_errors(spark, run), progress.step("reading"):
            staged = output.stage(records)
        with progress.step("checking"):
            rows, corrupt = completeness.check(spark, run, staged, aside)
        identity.check_again(run, topics)
        if claim is not None:
            claims.check_records(run, claim)
        with progress.step("publishing"):
            repeats.check(spark, run)
            committed = output.commit(rows, corrupt)
    except Exception:
        try:
            found = _found_after_failure(output)  # another driver's success removes what is staged here
        finally:
            with contextlib.suppress(Exception):  # this may fail for the same reason
                output.discard()
        if found is None:
            raise
        return found
    if run.fence is not None:
        with contextlib.suppress(OSError):  # the next run does it
            claims_of(run).prune(run)
    return committed


def _superseded(run: Run, output: Output) -> Committed:
    """The commit of a run that a newer one follows. Fenced if there is none."""
    committed = output.find()
    if committed is None:
        raise Fenced(run.name, "a newer run")
    return committed


def _found_after_failure(output: Output) -> Committed | None:
    try:
        return output.find()
    except Fenced:
        raise
    except Exception:  # the earlier failure is more informative
        return None


if __name__ == "__main__":
    sys.exit(main())
