"""Producers' reports: a topic of JSON records, each with the number of records one producer sent in one window.

    {"topic": "flights",
     "windowStart": "2026-11-23T07:10:00Z",    with its zone
     "windowSeconds": 600,
     "server": "web-1",                        left out: ""
     "count": 1234,                            records of this window that the topic has acknowledged
     "producer": "6f1c…",                      one for each process and each of its starts; left out: ""
     "sequence": 0}                            grows with each report about the window; left out: 0

The counts of one server's producers add up. Of several reports by one producer about one window, the one with the
highest sequence counts, the last if equal: a report may be sent twice, or be corrected, and counts once.

The window of a report may be shorter than the audit's: those within one window add up. A report whose window reaches
into two of the audit's cannot be counted, nor can one that does not parse; both are counted as bad.
"""

from __future__ import annotations

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

FIELDS = (
    "topic STRING, windowStart STRING, windowSeconds LONG, server STRING, count LONG,"
    " producer STRING, sequence LONG, _corrupt STRING"
)
TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})$"


class Bad(Struct, frozen=True):
    """The number of reports that cannot be counted; for the first of them, its position and the reason."""

    count: int = 0
    first: str = ""


def parse(records: DataFrame, window_s: int) -> DataFrame:
    """The columns of each report, its position in the log, `window_start`, and `why` it cannot be counted, or null."""
    text = F.col("value").cast("string")
    parsed = F.from_json(text, FIELDS, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"})
    start = F.when(F.col("r.windowStart").rlike(TIME), F.try_to_timestamp("r.windowStart"))
    rows = records.select(
        "partition", "offset", F.col("timestamp").alias("logged"), parsed.alias("r"), text.alias("text")
    ).withColumn("begin", F.unix_seconds(start))
    why = F.coalesce(
        _why(F.col("text").isNull(), "has no value"),
        _why(F.col("r").isNull() | F.col("r._corrupt").isNotNull(), "is not JSON with a report's fields"),
        *(_why(F.col(f"r.{name}").isNull(), f"has no {name}") for name in ("topic", "windowStart")),
        _why(F.col("begin").isNull(), "has a windowStart that is no time such as 2026-11-23T07:10:00Z"),
        *(_why(F.col(f"r.{name}").isNull(), f"has no {name}") for name in ("windowSeconds", "count")),
        _why(F.col("r.windowSeconds") <= 0, "has windowSeconds that are not above zero"),
        _why(F.col("r.count") < 0, "has a count below zero"),
        _why(
            window_at(F.col("begin"), window_s)
            != window_at(F.col("begin") + F.col("r.windowSeconds") - 1, window_s),
            f"has a window that reaches into two of the audit's, of {window_s} s",
        ),
    )
    return rows.select(
        "partition",
        "offset",
        "logged",
        F.col("r.topic").alias("topic"),
        "begin",
        F.col("r.windowSeconds").alias("seconds"),
        F.coalesce("r.server", F.lit("")).alias("server"),
        F.coalesce("r.producer", F.lit("")).alias("producer"),
        F.coalesce("r.sequence", F.lit(0)).alias("sequence"),
        F.col("r.count").alias("count"),
        F.timestamp_seconds(window_at(F.col("begin"), window_s)).alias("window_start"),
        why.alias("why"),
    )


def bad(reports: DataFrame, topic: str) -> Bad:
    """The reports in the topic that cannot be counted."""
    place = F.struct("partition", "offset", "why")
    found = reports.where("why IS NOT NULL").agg(F.count("*").alias("count"), F.min(place).alias("first"))
    row = found.collect()[0]
    if not row["count"]:
        return Bad()
    partition, offset, why = row["first"]
    return Bad(row["count"], f"{topic}-{partition} at offset {offset} {why}")


def produced(reports: DataFrame, by_server: bool) -> DataFrame:
    """Records produced by topic, window_start and server ("" if servers are not distinguished)."""
    newest = F.struct("sequence", "logged", "partition", "offset")
    final = (
        reports.where("why IS NULL")
        .groupBy("topic", "window_start", "begin", "seconds", "server", "producer")
        .agg(F.max_by("count", newest).alias("count"))
    )
    server = F.col("server") if by_server else F.lit("")
    return final.groupBy("topic", "window_start", server.alias("server")).agg(
        F.sum("count").alias("produced")
    )


def _why(is_so: Column, reason: str) -> Column:
    return F.when(is_so, F.lit(reason))


def window_at(seconds: Column, width: int) -> Column:
    """The start of the window of ``width`` seconds that contains a time; both in seconds since 1970."""
    return seconds - F.pmod(seconds, F.lit(width))
