"""Checks the written rows against the run's offsets: each record of each range once, and not too many corrupt ones.

A range may have offsets without a record: compaction removed it, the offset is a transaction's marker, or the record is
older than the run's `fromTimestamp`. So if there are fewer rows than offsets, the range is read again, and every
record in it must be among the written rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream_jobs import table
from millstream_jobs.failures import JobError
from millstream_jobs.formats import CORRUPT
from millstream_jobs.impossible_times import Aside
from millstream_jobs.run import BadRun, OffsetRange, Run
from millstream_jobs.words import count_of


class Incomplete(JobError):
    """The written rows do not match the offsets; the message is one line for the user."""


class TooManyCorrupt(BadRun):
    """More records than allowed do not parse; no retry can mend that."""

    reason = "CorruptRecords"


def check(spark: SparkSession, run: Run, written: DataFrame, aside: Sequence[Aside] = ()) -> tuple[int, int]:
    """The number of written rows, and of corrupt ones among them. Raises Incomplete, TooManyCorrupt."""
    corrupt = F.col(CORRUPT) if CORRUPT in written.columns else F.lit(None)
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
    short: list[OffsetRange] = []
    for part in run.offsets:
        row = found.get((part.topic, part.partition))
        rows = row["rows"] if row else 0
        if row and (row["first"] < part.first or row["last"] >= part.until or rows > part.records):
            raise _differs(part, rows)
        if rows < part.records:
            short.append(part)
    if short:
        _check_gaps(spark, run, written, short, aside)
    rows, bad = (sum(row[name] for row in found.values()) for name in ("rows", "corrupt"))
    if not run.value.allows(bad, rows):
        raise _too_many_corrupt(run, written, bad, rows)
    return rows, bad


def _check_gaps(
    spark: SparkSession, run: Run, written: DataFrame, ranges: list[OffsetRange], aside: Sequence[Aside]
) -> None:
    """Check that each record of the log in these ranges was written, and none twice."""
    key = ["_topic", "_partition", "_offset"]
    again = table.records(spark, run, ranges, aside).select(
        *(F.col(name.removeprefix("_")).alias(name) for name in key)
    )
    rows = written.select(*key)
    differing = (
        rows.groupBy(key).count().where("count > 1").select(*key).unionAll(again.join(rows, key, "left_anti"))
    )
    for row in differing.limit(1).collect():
        part = next(part for part in ranges if (part.topic, part.partition) == (row[0], row[1]))
        count = rows.where((F.col("_topic") == part.topic) & (F.col("_partition") == part.partition)).count()
        raise _differs(part, count)


def _differs(part: OffsetRange, rows: int) -> Incomplete:
    return Incomplete(
        f"offsets {part} hold {count_of(part.records, 'record')}, but {rows:,} were read: the topic was changed"
        " meanwhile"
    )


def _too_many_corrupt(run: Run, written: DataFrame, corrupt: int, rows: int) -> TooManyCorrupt:
    key = ("_topic", "_partition", "_offset")
    first = written.where(F.col(CORRUPT).isNotNull()).select(*key).orderBy(*key).limit(1).collect()[0]
    return TooManyCorrupt(
        f"value.maxCorruptRecords: {corrupt:,} of {rows:,} records do not parse, allowed:"
        f" {run.value.max_corrupt_records}; the first is {first[0]}-{first[1]} at offset {first[2]};"
        " nothing was published; correct value or the producer, or raise the limit"
    )
