"""The figures of an audit."""

from __future__ import annotations

from msgspec import field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream_jobs.audits.counts import STATES
from millstream_jobs.run import Result

SUMS = ("produced", "found", "in_log", "in_table", "missing", "duplicated", "unreported", "expired")


class Audited(Result, frozen=True, rename="camel", omit_defaults=False):
    """``rows`` are those of the audit, ``windows`` how many of them have each state.

    The sums are over closed windows, None if nothing was compared."""

    windows: dict[str, int] = field(default_factory=dict)
    produced: int | None = None
    found: int = 0
    in_log: int = 0
    in_table: int | None = None
    missing: int = 0
    duplicated: int | None = None
    unreported: int | None = None
    expired: int | None = None
    bad_reports: int = 0


def closed_sum(name: str) -> Column:
    """The sum of a column over closed windows, under its name."""
    return F.sum(F.when(F.col("state") != "Open", F.col(name))).alias(name)


def summary(rows: DataFrame, bad_reports: int) -> Audited:
    sums = map(closed_sum, SUMS)
    states = [F.count_if(F.col("state") == state).alias(state) for state in STATES]
    row = rows.agg(F.count("*").alias("rows"), *sums, *states).collect()[0].asDict()
    windows = {state: row.pop(state) for state in STATES}
    for name in ("found", "in_log", "missing"):
        row[name] = row[name] or 0
    return Audited("Succeeded", windows=windows, bad_reports=bad_reports, **row)
