"""Records deleted from the log before they were read: turns Spark's failure into an error that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream_jobs.completeness import Incomplete
from millstream_jobs.run import OffsetRange, Run

LOST = re.compile(r"Could not read records in offset \[\d+, \d+\)\s+for topic partition (\S+)-(\d+)")
"""Errors of Spark's Kafka source with failOnDataLoss; the offsets are those of its task."""


class Gone(Incomplete):
    """Records are gone from the log: no retry can read them."""

    reason = "OffsetsGone"
    final = True


@contextmanager
def translate_errors(spark: SparkSession, run: Run) -> Iterator[None]:
    """Raises Gone in place of a Spark failure that means deleted records."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        found = LOST.search(str(error))
        part = _range(run, found[1], int(found[2])) if found else None
        if part is None:
            raise
        first = _first(spark, run, part)
        until = part.until if first is None else min(max(first, part.first), part.until)
        if until == part.first:
            raise
        gone = OffsetRange(part.topic, part.partition, part.first, until)
        raise Gone(
            f"offsets {gone} are gone from the log, deleted by retention or by somebody before they were read;"
            " nothing was published; begin at a later position, and keep records longer (retention.ms,"
            " retention.bytes of the topic) or load more often"
        ) from None


def _range(run: Run, topic: str, partition: int) -> OffsetRange | None:
    return next((part for part in run.offsets if (part.topic, part.partition) == (topic, partition)), None)


def _first(spark: SparkSession, run: Run, part: OffsetRange) -> int | None:
    """The offset of the first remaining record of a partition; None if it has none."""
    records = (
        spark.read.format("kafka")
        .options(**run.brokers.source())
        .option("assign", json.dumps({part.topic: [part.partition]}))
        .option("startingOffsets", json.dumps({part.topic: {str(part.partition): -2}}))
        .option("endingOffsets", json.dumps({part.topic: {str(part.partition): -1}}))
        .load()
    )
    rows = records.select("offset").limit(1).collect()
    return int(rows[0][0]) if rows else None
