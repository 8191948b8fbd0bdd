"""Records whose time no table can hold: nanoseconds instead of milliseconds, the year 292 million, -2^63.

Spark's Kafka source fails at such a record, with an overflow that names no record. So when a run fails that way, a
consumer searches the range for them (`find`), and the run is attempted once more: Spark reads around these offsets,
and the records join the others as rows without a `_timestamp`, which count as corrupt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream_jobs import positions
from millstream_jobs.run import BadRun, OffsetRange, Run

FIRST_MS = int(datetime(1, 1, 1, tzinfo=timezone.utc).timestamp()) * 1000
LAST_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc).timestamp()) * 1000 + 999
"""The years 1 to 9999, those of SQL's timestamps."""
MOST = 100
"""Records of a run that may be set aside: a range is read in as many pieces."""
AT_ONCE = 200
"""Partitions that one consumer reads."""
OVERFLOW = "ArithmeticException: long overflow"
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
HEADERS = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
Key = tuple[str, int]


class TooManyImpossible(BadRun):
    """So many records have impossible times that the producer must be mended first."""

    reason = "CorruptRecords"


class Aside(Struct, frozen=True):
    """A record that Spark cannot read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset} has the time {self.timestamp} ms"


def is_possible(column: Column) -> Column:
    """Whether a time is in the years 1 to 9999; true of null."""
    within = F.unix_micros(column).between(FIRST_MS * 1000, LAST_MS * 1000 + 999)
    return F.coalesce(within, F.lit(True))


def is_cause(error: BaseException) -> bool:
    """Whether an attempt may have failed at such a record."""
    return OVERFLOW in str(error)


def find(run: Run) -> tuple[Aside, ...]:
    """The records of the run with impossible times, by partition and offset. Raises ClusterError, TooManyImpossible."""
    found: list[Aside] = []
    ranges = [part for part in run.offsets if part.records]
    for begin in range(0, len(ranges), AT_ONCE):
        some = ranges[begin : begin + AT_ONCE]
        with positions.consumer(run.brokers, {"isolation.level": "read_committed"}) as consumer:
            consumer.assign([TopicPartition(part.topic, part.partition, part.first) for part in some])
            for message in _messages(consumer, {(part.topic, part.partition): part.until for part in some}):
                if not FIRST_MS <= message.timestamp()[1] <= LAST_MS:
                    found.append(_aside(message))
                if len(found) > MOST:
                    raise TooManyImpossible(
                        f"topics: more than {MOST} records have times before the year 1 or after 9999, the first:"
                        f" {found[0]}; nothing was published; correct the producer, or load from later offsets"
                    )
    return tuple(sorted(found, key=lambda record: (record.topic, record.partition, record.offset)))


def _messages(consumer: Consumer, ends: dict[Key, int]) -> Iterator[Message]:
    deadline = time.monotonic() + positions.TIMEOUT_S
    while ends:
        for message in consumer.consume(1000, 0.2):
            deadline = time.monotonic() + positions.TIMEOUT_S
            key, error, offset = (
                (message.topic() or "", message.partition() or 0),
                message.error(),
                message.offset(),
            )
            if key not in ends:
                continue
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    del ends[key]
                continue  # the client tries again
            if offset is not None and offset < ends[key]:
                yield message
            if offset is not None and offset >= ends[key] - 1:
                del ends[key]
        if ends and time.monotonic() > deadline:
            topic, partition = min(ends)
            raise KafkaException(
                KafkaError(
                    KafkaError._TIMED_OUT,
                    f"{topic}-{partition}: no record within {positions.TIMEOUT_S:.0f} s",
                )
            )


def _aside(message: Message) -> Aside:
    headers: Any = message.headers() or ()
    return Aside(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        _bytes(message.key()),
        _bytes(message.value()),
        tuple((name, _bytes(value)) for name, value in headers),
    )


def _bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found


def around(ranges: Sequence[OffsetRange], aside: Sequence[Aside]) -> list[list[OffsetRange]]:
    """The ranges without these records, as lists of at most one range of each partition, the form of Spark's source."""
    holes: dict[Key, list[int]] = {}
    for record in aside:
        holes.setdefault((record.topic, record.partition), []).append(record.offset)
    reads: list[list[OffsetRange]] = []
    for part in ranges:
        begin, pieces = part.first, []
        for offset in sorted(holes.get((part.topic, part.partition), ())):
            if part.first <= offset < part.until:
                pieces.append(OffsetRange(part.topic, part.partition, begin, offset))
                begin = offset + 1
        pieces.append(OffsetRange(part.topic, part.partition, begin, part.until))
        for number, piece in enumerate(piece for piece in pieces if piece.records):
            if number == len(reads):
                reads.append([])
            reads[number].append(piece)
    return reads


def rows(spark: SparkSession, run: Run, ranges: Sequence[OffsetRange], aside: Sequence[Aside]) -> DataFrame:
    """The records set aside in these ranges, as Spark's source would return them, without their time."""
    since = None if run.from_timestamp is None else run.from_timestamp.timestamp() * 1000
    within = {(part.topic, part.partition): part for part in ranges}
    found = []
    for record in aside:
        part = within.get((record.topic, record.partition))
        if (
            part is None
            or not part.first <= record.offset < part.until
            or (since and record.timestamp < since)
        ):
            continue
        row = (record.key, record.value, record.topic, record.partition, record.offset, None, 0)
        found.append((*row, list(record.headers) or None) if run.record.headers else row)
    return spark.createDataFrame(found, COLUMNS + (HEADERS if run.record.headers else ""))
