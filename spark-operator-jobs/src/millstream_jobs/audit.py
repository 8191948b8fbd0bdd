"""`millstream-audit AUDIT.json`: checks that all produced records are in the log and in the tables, window by window.

It counts the records of topics by topic, window and server, and compares them with producers' reports and with the
tables of loads. Configuration: `audits.file`; the rows and their meaning: `audits.counts`; producers' reports:
`audits.reported`. It writes rows to a table, a report in HTML, or both, then fails if more records are missing than
`maxMissing` allows. Nothing is repaired: `millstream-rewind` loads the records that a table misses.

Each start is a separate audit, named by its time: its rows are added to the table in one step, beside those of
earlier ones, with the columns `audit` and `audited_at`.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream_jobs import command, table
from millstream_jobs.audits import counts, extents, page, reported, result
from millstream_jobs.audits.extents import Extent
from millstream_jobs.audits.file import Audit, read_audit, utc
from millstream_jobs.audits.reported import Bad
from millstream_jobs.audits.result import SUMS, Audited
from millstream_jobs.command import Job
from millstream_jobs.failures import JobError
from millstream_jobs.files import files_below
from millstream_jobs.load import open_session
from millstream_jobs.loss import LOST
from millstream_jobs.outputs import OutputError, open_output
from millstream_jobs.progress import say
from millstream_jobs.run import BadRun, Output, Result, Run
from millstream_jobs.words import count_of


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("audit", read_audit, start, counts_rows=False), arguments)


def start(wanted: Audit) -> Result:
    """Run it in its own Spark session."""
    outputs = [*wanted.tables, *([wanted.output] if wanted.output else [])]
    spark = open_session(wanted.name, sorted({output.format for output in outputs}))
    try:
        return audit(spark, wanted)
    finally:
        spark.stop()


def audit(spark: SparkSession, wanted: Audit) -> Audited:
    """Count, write and judge. BadRun if too many records are missing, or the audit is not valid; JobError."""
    now = datetime.now(timezone.utc)
    since = wanted.begin(now)
    # A report is sent after its window's end, and a record's time is at most `grace` after it is logged.
    early = since - timedelta(seconds=wanted.grace_s) if since else None
    read = extents.find(wanted.brokers, wanted.topics, early if wanted.time else since)
    reports = _reports(spark, wanted, early)
    say(f"reads {sum(one.end - one.start for one in read):,} records of {', '.join(wanted.topics)}")
    rows = counts.rows(spark, wanted, read, reports, since, now)
    # The rest reads the rows, which are far fewer than the records.
    rows = rows.repartition(spark.sparkContext.defaultParallelism).persist()
    try:
        bad = reported.bad(reports, wanted.reports) if reports is not None and wanted.reports else Bad()
        done = result.summary(rows, bad.count)
        if wanted.output is not None:
            _write(spark, wanted, wanted.output, read, rows, now)
        if wanted.report is not None:
            _save(wanted, page.render(wanted, rows, done, bad, now))
        _tell(done, bad)
        _judge(wanted, rows, done)
    except (Py4JJavaError, PySparkException) as error:
        if found := LOST.search(str(error)):
            raise JobError(
                f"{found[1]}-{found[2]}: retention deleted records while they were counted: run it again, with"
                " `from` or `last` that leaves out what is about to be deleted"
            ) from None
        raise
    finally:
        rows.unpersist()
    return done


def _reports(spark: SparkSession, wanted: Audit, since: datetime | None) -> DataFrame | None:
    """The reports on the audited topics, and those without a topic."""
    if wanted.reports is None:
        return None
    parts = [extent.offsets for extent in extents.find(wanted.brokers, [wanted.reports], since, "reports")]
    if any(part.records for part in parts):
        records = table.read_ranges(spark, wanted.brokers, parts)
    else:
        records = spark.createDataFrame([], "value BINARY, partition INT, offset LONG, timestamp TIMESTAMP")
    reports = reported.parse(records, wanted.window_s)
    return reports.where(F.col("topic").isNull() | F.col("topic").isin(*wanted.topics))


def _write(
    spark: SparkSession, wanted: Audit, output: Output, read: Sequence[Extent], rows: DataFrame, now: datetime
) -> None:
    run = Run(
        f"{wanted.name}-{now:%Y%m%dT%H%M%S%f}",
        wanted.bootstrap,
        tuple(extent.offsets for extent in read),
        output,
    )
    table = open_output(spark, run)
    stamped = rows.select(F.lit(wanted.name).alias("audit"), F.lit(now).alias("audited_at"), "*")
    table.prepare(stamped.schema)
    try:
        staged = table.stage(stamped)
        table.commit(staged.count(), 0)
    except Exception:
        table.discard()
        raise
    say(f"wrote its rows to {output.path}")


def _save(wanted: Audit, content: str) -> None:
    assert wanted.report is not None
    folder, name = posixpath.split(wanted.report)
    try:
        files_below(Output(folder, s3=wanted.s3)).replace(name, content.encode())
    except OSError as error:
        raise OutputError(f"report: {wanted.report} cannot be written: {error.strerror or error}") from None
    say(f"report: {wanted.report}")


def _tell(done: Audited, bad: Bad) -> None:
    said = ", ".join(f"{number:,} {state}" for state, number in done.windows.items() if number)
    say(f"{count_of(done.rows, 'row')}: {said}" if said else "no records and no reports in this time")
    numbers = {name: getattr(done, name) for name in SUMS}
    say(", ".join(f"{name} {number:,}" for name, number in numbers.items() if number is not None))
    if bad.count:
        say(f"{bad.count:,} reports cannot be counted: {bad.first}")


def _judge(wanted: Audit, rows: DataFrame, done: Audited) -> None:
    """BadRun if too many records are missing: no retry can help."""
    if wanted.max_missing is None or done.missing <= wanted.max_missing:
        return
    worst = rows.where("state = 'Missing'").orderBy(F.desc("missing"), "topic", "window_start", "server")
    row = worst.withColumn("begin", F.unix_seconds("window_start")).limit(1).collect()[0]
    where = f"topic {row['topic']}, window {utc(row['begin']):%Y-%m-%dT%H:%M:%SZ} of {wanted.window}"
    if wanted.server is not None:
        where += f", server {row['server'] or '(none)'}"
    first = f", the first in no table is {row['first_missing']}" if row["first_missing"] else ""
    missing = done.windows["Missing"]
    rows_have = f"{count_of(missing, 'row')} of the audit {'has' if missing == 1 else 'have'}"
    raise BadRun(
        f"maxMissing: {done.missing:,} records are missing, allowed: {wanted.max_missing:,}; most in {where}:"
        f" {row['missing']:,}{first}; {rows_have} missing records"
    )


if __name__ == "__main__":
    sys.exit(main())
