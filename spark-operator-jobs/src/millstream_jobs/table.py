"""The records of a run as a table, read by Spark's own Kafka source.

Columns: those of the value, then those of the record under names that begin with "_":

    value    one per field of the value (`formats`), and `_corrupt_record`, the value of a record that did not parse;
             formats Text and Binary have one column, `value`, and Binary has no `_corrupt_record`
    date     if the output is partitioned by it and the value has none: the UTC day of the record's time
    hour     the same for its hour of the day in UTC, from "00" to "23"
    record   `_topic`, `_partition`, `_offset`, `_timestamp`, `_key` (bytes, or text if the run says so), and
             `_headers` if the run enables them

A record's time is the value's `timeColumn`, or else its only TIMESTAMP column; if that is null, or there is none, it is
the log's `_timestamp`, which can be named, too.

Every partition has explicit offsets: Spark resolves "latest" late, and again for each attempt of a task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType, TimestampType

from millstream_jobs import column_names, formats, impossible_times
from millstream_jobs.brokers import Brokers
from millstream_jobs.formats.parsed import CORRUPT, HEADERS, RECORD, Parsed
from millstream_jobs.impossible_times import Aside
from millstream_jobs.run import BadRun, OffsetRange, Run

DERIVED = ("date", "hour")
SKEW = 2
"""A range this many times larger than the mean is split."""
MIN_SPLIT = 100_000
"""Records of a task below which no range is split: starting one takes longer than reading them."""


def read(spark: SparkSession, run: Run, aside: Sequence[Aside] = ()) -> DataFrame:
    """The run's table; BadRun if the schema or a partition column is not valid. ``aside``: see `impossible_times`."""
    parsed = _with_possible_times(formats.parse(records(spark, run, run.offsets, aside), run))
    column_names.check(run, parsed.columns)
    columns = dict(parsed.columns)
    if parsed.corrupt is not None:
        columns[CORRUPT] = parsed.corrupt
    own = _record_columns(run)
    wanted = _derived(run, [*columns, *own])
    time = _time(run, parsed.schema, parsed.columns)
    made = {"date": F.to_date(time), "hour": F.date_format(time, "HH")}
    columns |= {name: made[name] for name in wanted}
    return parsed.source.select(*(column.alias(name) for name, column in (columns | own).items()))


def _with_possible_times(parsed: Parsed) -> Parsed:
    """The same, in which a record with a time that no table can hold is corrupt, and has no columns of its value."""
    if parsed.corrupt is None:
        return parsed
    is_possible = F.col("timestamp").isNotNull()
    for field in parsed.schema:
        if isinstance(field.dataType, TimestampType):
            is_possible &= impossible_times.is_possible(parsed.columns[field.name])
    kind = parsed.source.select(parsed.corrupt).schema[0].dataType
    text = F.make_valid_utf8(F.col("value").cast("string"))
    value = F.coalesce(F.col("value") if isinstance(kind, BinaryType) else text, F.lit("").cast(kind))
    return Parsed(
        parsed.source,
        parsed.schema,
        {name: F.when(is_possible, column) for name, column in parsed.columns.items()},
        F.when(is_possible, parsed.corrupt).otherwise(value),
    )


def records(
    spark: SparkSession, run: Run, ranges: Sequence[OffsetRange], aside: Sequence[Aside] = ()
) -> DataFrame:
    """The records of some of the run's ranges, from Spark's Kafka source, without those that are too old.

    The timestamp of a record with an impossible time is null.
    """
    sources = []
    for some in impossible_times.around(ranges, aside):
        source = read_ranges(spark, run.brokers, some, run.record.headers, run.min_partitions)
        if run.from_timestamp is not None:
            source = source.where(F.col("timestamp") >= F.lit(run.from_timestamp))
        time = F.when(impossible_times.is_possible(F.col("timestamp")), F.col("timestamp"))
        sources.append(source.withColumn("timestamp", time))
    if aside:
        sources.append(impossible_times.rows(spark, run, ranges, aside))
    return reduce(DataFrame.unionByName, sources)


def read_ranges(
    spark: SparkSession,
    brokers: Brokers,
    ranges: Sequence[OffsetRange],
    headers: bool = False,
    min_partitions: int | None = None,
) -> DataFrame:
    """The records of ranges that are not all empty, from Spark's Kafka source."""
    ranges = [part for part in ranges if part.records]
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for part in ranges:
        starting.setdefault(part.topic, {})[str(part.partition)] = part.first
        ending.setdefault(part.topic, {})[str(part.partition)] = part.until
    assigned = {topic: [int(partition) for partition in parts] for topic, parts in starting.items()}
    return (
        spark.read.format("kafka")
        .options(**source_options(brokers))
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starting))
        .option("endingOffsets", json.dumps(ending))
        .option("includeHeaders", str(headers).lower())
        .options(**_tasks(ranges, min_partitions))
        .load()
    )


def source_options(brokers: Brokers) -> dict[str, str]:
    """Options of Spark's Kafka source for all reads."""
    return {
        **brokers.source(),
        "kafka.isolation.level": "read_committed",
        "kafka.default.api.timeout.ms": "20000",
        "kafka.request.timeout.ms": "15000",
        "failOnDataLoss": "true",
    }


def _tasks(ranges: Sequence[OffsetRange], min_partitions: int | None) -> dict[str, int]:
    """Spark's options for splitting ranges: one task each, unless one is far larger than the mean."""
    mean = -(-sum(part.records for part in ranges) // max(len(ranges), 1))
    options = {"maxRecordsPerPartition": max(SKEW * mean, MIN_SPLIT)}
    if min_partitions is not None:
        options["minPartitions"] = min_partitions
    return options


def _record_columns(run: Run) -> dict[str, Column]:
    """The columns of the record itself."""
    columns = {name: F.col(name.removeprefix("_")) for name in RECORD}
    if run.record.key == "Text":
        columns["_key"] = F.make_valid_utf8(F.col("key").cast("string"))
    if run.record.headers:
        columns[HEADERS] = F.col("headers")
    return columns


def _time(run: Run, schema: StructType, columns: dict[str, Column]) -> Column:
    """The time of a record, for `date` and `hour`."""
    log_time = F.col("timestamp")
    timestamps = [field.name for field in schema if isinstance(field.dataType, TimestampType)]
    name = run.value.time_column
    if name == "_timestamp":
        return log_time
    if name:
        if name not in timestamps:
            raise BadRun(
                f"value.timeColumn: {json.dumps(name)} is not allowed:"
                f" one of {', '.join([*timestamps, '_timestamp'])}, the TIMESTAMP columns"
            )
        return F.coalesce(columns[name], log_time)
    return F.coalesce(columns[timestamps[0]], log_time) if len(timestamps) == 1 else log_time


def _derived(run: Run, names: list[str]) -> list[str]:
    """The partition columns to derive; BadRun for one that cannot be derived."""
    wanted = run.output.partition_by
    for index, name in enumerate(wanted):
        where = f"output.partitionBy[{index}]: {json.dumps(name)} is not allowed:"
        if name.lower() in (earlier.lower() for earlier in wanted[:index]):
            raise BadRun(f"{where} it is listed before")
        if other := next(
            (column for column in names if column.lower() == name.lower() and column != name), None
        ):
            raise BadRun(f"{where} the column is {json.dumps(other)}: write it so, or rename one of them")
        if name == HEADERS and name in names:
            raise BadRun(f"{where} it is no single value")
        if name not in names and name not in DERIVED:
            others = [column for column in names if column not in (*DERIVED, HEADERS)]
            raise BadRun(f"{where} one of {', '.join([*DERIVED, *others])}")
    if wanted and set(names) <= set(wanted):
        raise BadRun(
            f"output.partitionBy: {json.dumps(list(wanted))} is not allowed: no column is left for the files"
        )
    return [name for name in DERIVED if name in wanted and name not in names]
