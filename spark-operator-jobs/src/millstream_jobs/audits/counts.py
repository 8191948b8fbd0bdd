"""The audit's rows: one for each topic, window and server of which the log, a table or a report has records.

    topic, window_start, window_end, server    `server` is "" if records have none, or servers are not distinguished
    produced          what producers report; null without reports
    found             records in the log, in a table, or in both
    in_log            records in the log
    in_table          records in a table, each once; null without tables
    missing_log       reported, but in neither
    missing_table     in the log, but not in a table; null without tables
    missing           both together
    first_missing     the first of those missing in a table: TOPIC-PARTITION at offset OFFSET
    duplicated        rows of a table beyond one for each record; null without tables
    unreported        found beyond what is reported; null without reports
    expired           reported, but in neither, if retention has deleted records of that time; null without reports
    lateness_s        seconds from the end of the window to the log time of its last record, 0 when that is before
    state             see STATES

A record is identified by topic, partition, offset and timestamp, so records missing in a table are known exactly. The
timestamp tells a record from one at the same offset of an earlier topic of that name, whose rows tables may still have.
Records that never reached the log can only be counted: a record that is lost and another that was sent twice cancel
each other out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, TimestampType

from millstream_jobs import table
from millstream_jobs.audits import reported
from millstream_jobs.audits.extents import Extent
from millstream_jobs.audits.file import Audit
from millstream_jobs.outputs.reading import read_table
from millstream_jobs.outputs.session import configure
from millstream_jobs.run import BadRun, Output

STATES = {
    "Open": "grace has not passed since the window's end: nothing is missing yet",
    "Missing": "records are missing",
    "Duplicated": "a table has a record more than once",
    "Expired": "retention has deleted records, so the log cannot tell whether any are missing",
    "Unreported": "the log or a table has more records than were reported",
    "Complete": "all agree",
}
RECORD = ["topic", "partition", "offset", "logged"]
GROUP = ["topic", "window_start", "server"]
EXTENTS = "topic STRING, partition INT, begin LONG, start LONG, gone_until TIMESTAMP"
LOG = "topic STRING, partition INT, offset LONG, logged TIMESTAMP, window_start TIMESTAMP, server STRING"


def rows(
    spark: SparkSession,
    wanted: Audit,
    extents: Sequence[Extent],
    reports: DataFrame | None,
    since: datetime | None,
    now: datetime,
) -> DataFrame:
    """All rows of the audit. BadRun for a table that does not exist, or belongs to no load."""
    read = spark.createDataFrame([_values(extent) for extent in extents], EXTENTS)
    tables = _tables(spark, wanted, read)
    records = _log(spark, wanted, extents)
    records = records.withColumn("from_log", F.lit(True))
    joined = records if tables is None else records.join(tables, RECORD, "full_outer")
    both = tables is not None
    in_log = F.col("from_log").isNotNull()
    in_table = F.col("copies").isNotNull() if both else F.lit(False)
    own = ("table_window", "table_server") if both else ("window_start", "server")
    lacking = F.when(in_log & ~in_table, F.struct("partition", "offset"))
    counted = (
        joined.select(
            "topic",
            F.coalesce("window_start", own[0]).alias("window_start"),
            F.coalesce("server", own[1]).alias("server"),
            F.when(in_log, F.col("logged")).alias("logged"),
            in_log.alias("is_in_log"),
            in_table.alias("is_in_table"),
            (F.col("copies") - 1 if both else F.lit(0)).alias("more"),
            lacking.alias("lacking"),
        )
        # A row without a record in the log, in a table that does not store its window or server.
        .where("window_start IS NOT NULL AND server IS NOT NULL")
        .groupBy(*GROUP)
        .agg(
            F.count("*").alias("found"),
            F.count_if("is_in_log").alias("in_log"),
            F.count_if("is_in_table").alias("in_table"),
            F.sum(F.coalesce("more", F.lit(0))).alias("duplicated"),
            F.count("lacking").alias("missing_table"),
            F.min("lacking").alias("lacking"),
            F.max("logged").alias("last"),
        )
    )
    if reports is not None:
        counted = counted.join(reported.produced(reports, wanted.server is not None), GROUP, "full_outer")
    else:
        counted = counted.withColumn("produced", F.lit(None).cast("long"))
    gone = read.groupBy("topic").agg(F.max("gone_until").alias("gone_until"))
    whole = counted.join(F.broadcast(gone), "topic", "left").where(
        _in_period("window_start", since, wanted.until)
    )
    return _judged(whole, wanted, reports is not None, both, now)


def _judged(
    counted: DataFrame, wanted: Audit, has_reports: bool, has_tables: bool, now: datetime
) -> DataFrame:
    """The columns derived from the counts."""
    zero = F.lit(0).cast("long")
    end = F.timestamp_seconds(F.unix_seconds("window_start") + wanted.window_s)
    found = F.coalesce("found", zero)
    produced = F.coalesce("produced", zero) if has_reports else F.lit(None).cast("long")
    less = F.greatest(produced - found, zero)
    may_be_gone = F.coalesce(F.col("window_start") <= F.col("gone_until"), F.lit(False))
    lost = F.when(~may_be_gone, less).otherwise(zero) if has_reports else zero

    def of_tables(column: Column) -> Column:
        return F.coalesce(column, zero) if has_tables else F.lit(None).cast("long")

    rows = counted.select(
        "topic",
        "window_start",
        end.alias("window_end"),
        "server",
        (produced if has_reports else F.lit(None).cast("long")).alias("produced"),
        found.alias("found"),
        F.coalesce("in_log", zero).alias("in_log"),
        of_tables(F.col("in_table")).alias("in_table"),
        lost.alias("missing_log"),
        of_tables(F.col("missing_table")).alias("missing_table"),
        (lost + (F.coalesce("missing_table", zero) if has_tables else zero)).alias("missing"),
        F.when(
            F.col("lacking").isNotNull() & F.lit(has_tables),
            F.format_string("%s-%d at offset %d", "topic", "lacking.partition", "lacking.offset"),
        ).alias("first_missing"),
        of_tables(F.col("duplicated")).alias("duplicated"),
        (F.greatest(found - produced, zero) if has_reports else F.lit(None).cast("long")).alias("unreported"),
        (F.when(may_be_gone, less).otherwise(zero) if has_reports else F.lit(None).cast("long")).alias(
            "expired"
        ),
        F.greatest(F.coalesce(F.unix_seconds("last") - F.unix_seconds(end), zero), zero).alias("lateness_s"),
        may_be_gone.alias("may_be_gone"),
    )
    # Without a report, a window that may have lost records may be incomplete.
    expired = F.col("may_be_gone") & (
        (F.col("expired") > 0) | F.coalesce(F.col("produced"), zero).eqNullSafe(zero)
    )
    closes = F.unix_seconds("window_end") + wanted.grace_s
    state = (
        F.when(closes > F.lit(int(now.timestamp())), "Open")
        .when(F.col("missing") > 0, "Missing")
        .when(F.col("duplicated") > 0, "Duplicated")
        .when(expired, "Expired")
        .when(F.col("unreported") > 0, "Unreported")
        .otherwise("Complete")
    )
    return rows.withColumn("state", state).drop("may_be_gone")


def _log(spark: SparkSession, wanted: Audit, extents: Sequence[Extent]) -> DataFrame:
    """The log's records, with columns LOG."""
    ranges = [extent.offsets for extent in extents]
    if not any(part.records for part in ranges):
        return spark.createDataFrame([], LOG)
    by_header = wanted.server is not None and wanted.server.header is not None
    records = table.read_ranges(spark, wanted.brokers, ranges, by_header, wanted.min_partitions)
    text = F.col("value").cast("string")
    time, server = F.col("timestamp"), F.lit("")
    if wanted.time is not None:
        created = F.get_json_object(text, f"$.{wanted.time}")
        time = F.coalesce(_time_of_text(created), time)
    if wanted.server is not None:
        header, field = wanted.server.header, wanted.server.field
        server = _header("headers", header) if header else F.get_json_object(text, f"$.{field}")
        server = F.coalesce(server, F.lit(""))
    return records.select(
        "topic",
        "partition",
        "offset",
        F.col("timestamp").alias("logged"),
        _window(time, wanted.window_s).alias("window_start"),
        server.alias("server"),
    )


def _tables(spark: SparkSession, wanted: Audit, read: DataFrame) -> DataFrame | None:
    """Each record of the tables once, with its number of rows, and its window and server in the tables."""
    if not wanted.tables:
        return None
    tables = [_table(spark, wanted, index, output) for index, output in enumerate(wanted.tables)]
    every = tables[0]
    for other in tables[1:]:
        every = every.unionByName(other)
    # Without records that the log has from before the audit's time. A row beyond the log's end is from an earlier
    # topic, or from a record that has arrived since; both count.
    known = every.join(F.broadcast(read.drop("gone_until")), ["topic", "partition"]).where(
        "offset < begin OR offset >= start"
    )
    return known.groupBy(*RECORD).agg(
        F.count("*").alias("copies"),
        F.any_value("table_window").alias("table_window"),
        F.any_value("table_server").alias("table_server"),
    )


def _table(spark: SparkSession, wanted: Audit, index: int, output: Output) -> DataFrame:
    configure(spark, output)
    name = f"tables[{index}]"
    try:
        rows = read_table(spark, output)
    except AnalysisException as error:
        raise BadRun(f"{name}: {str(error).strip().splitlines()[0]}") from None
    partition = "_topic_partition" if output.format == "Iceberg" else "_partition"
    for column in ("_topic", partition, "_offset", "_timestamp"):
        if column not in rows.columns:
            raise BadRun(
                f"{name}: {output.path} has no column {column}: only tables that loads have written can be audited"
            )
    logged = F.col("_timestamp")
    time: Column = logged
    server: Column = F.lit("")
    if wanted.time is not None:
        created = _field(rows, wanted.time)
        time = F.lit(None).cast("timestamp") if created is None else F.coalesce(_time(rows, created), logged)
    if wanted.server is not None:
        server = _server(rows, wanted)
    return rows.where(F.col("_topic").isin(*wanted.topics)).select(
        F.col("_topic").alias("topic"),
        F.col(partition).alias("partition"),
        F.col("_offset").alias("offset"),
        logged.alias("logged"),
        _window(time, wanted.window_s).alias("table_window"),
        server.cast("string").alias("table_server"),
    )


def _server(rows: DataFrame, wanted: Audit) -> Column:
    """The server of each row; null if the table does not store it."""
    assert wanted.server is not None
    unknown = F.lit(None).cast("string")
    if wanted.server.field is not None:
        field = _field(rows, wanted.server.field)
        return unknown if field is None else F.coalesce(field.cast("string"), F.lit(""))
    if "_headers" not in rows.columns or wanted.server.header is None:
        return unknown
    return F.coalesce(_header("_headers", wanted.server.header), F.lit(""))


def _field(rows: DataFrame, path: str) -> Column | None:
    """A column, or a field of one; None if the table has none of this name."""
    try:
        rows.select(F.col(path))
    except AnalysisException:
        return None
    return F.col(path)


def _header(column: str, name: str) -> Column:
    """The last header of this name as text: of several, Kafka's clients use the last."""
    own = F.filter(column, lambda header: header["key"] == F.lit(name))
    return F.make_valid_utf8(F.try_element_at(own, F.lit(-1))["value"].cast("string"))


def _time(rows: DataFrame, column: Column) -> Column:
    kind = rows.select(column).schema[0].dataType
    if isinstance(kind, TimestampType):
        return column
    return F.timestamp_millis(column.cast("long")) if isinstance(kind, NumericType) else _time_of_text(column)


def _time_of_text(text: Column) -> Column:
    """Parse a time; a number is milliseconds since 1970, as in Kafka. Null if it is no time."""
    millis = F.when(text.rlike(r"^-?\d{1,17}$"), text)
    return F.coalesce(
        F.timestamp_millis(millis.cast("long")), F.when(millis.isNull(), F.try_to_timestamp(text))
    )


def _window(time: Column, width: int) -> Column:
    """The start of the window that contains a time."""
    return F.timestamp_seconds(reported.window_at(F.unix_seconds(time), width))


def _in_period(column: str, since: datetime | None, until: datetime | None) -> Column:
    inside = F.lit(True)
    if since is not None:
        inside = inside & (F.col(column) >= F.lit(since))
    if until is not None:
        inside = inside & (F.col(column) < F.lit(until))
    return inside


def _values(extent: Extent) -> tuple[object, ...]:
    return (extent.topic, extent.partition, extent.begin, extent.start, extent.gone_until)
