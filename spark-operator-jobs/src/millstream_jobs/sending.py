"""Sends the rows of a publication to its topic, each once; runs in Spark's tasks.

A record's headers identify its row: `millstream-publication` and `millstream-row`, the row's number within its
partition. Each partition has one task; it reads back from the partition's end to find the last row in it, and sends the
following rows in order. The producer is idempotent and leaves no gap (acks=all), so the partition always holds the
first rows, up to some number.

Records of a killed task may still be in flight when the next one reads the end, since without transactions nothing
fences a producer. So a repeated attempt first waits until the partition has not grown for SETTLED_S; one that gets more
rows of the publication for ten times as long has another live driver, and the attempt fails. At the end a
partition that has grown by as many offsets as it got rows has each once; otherwise its records are counted, row by
row, and a publication with a duplicated row fails and says so. Rows behind an open transaction of another producer are
there, too, although consumers that read only committed records do not see them yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

from millstream_jobs import positions
from millstream_jobs.brokers import Brokers
from millstream_jobs.failures import JobError
from millstream_jobs.publication import Plan, Target
from millstream_jobs.publish_file import Publish
from millstream_jobs.words import count_of

PUBLICATION = "millstream-publication"
ROW = "millstream-row"
SETTLED_S = 3.0
DELIVERY_TIMEOUT_S = 120
FIRST_LOOK = 1000
"""Records to search first, from a partition's end; each further search covers four times as many."""


class SendingError(JobError):
    """Rows did not reach the topic exactly once; the message is one line for the user."""


class Task(Struct, frozen=True):
    """The parameters of a task."""

    name: str
    brokers: Brokers
    topic: str
    starts: dict[int, int]
    records_per_second: float | None
    compression: str
    resumed: bool


class Sent(Struct, frozen=True):
    partition: int
    rows: int
    error: str = ""


def send(spark: SparkSession, wanted: Publish, plan: Plan, rows: DataFrame, resumed: bool) -> None:
    limit = wanted.max_records_per_second
    tasks = min(len(plan.targets), spark.sparkContext.defaultParallelism)
    task = Task(
        wanted.name,
        wanted.brokers,
        wanted.topic,
        {target.partition: target.start for target in plan.targets},
        limit / tasks if limit else None,
        wanted.compression,
        resumed,
    )
    for sent in rows.rdd.mapPartitions(lambda part: _send(task, part)).collect():
        if sent.error:
            raise SendingError(f"topic: {wanted.topic}-{sent.partition}: {sent.error}")


def check(spark: SparkSession, wanted: Publish, plan: Plan) -> None:
    """SendingError unless the topic has each row exactly once."""
    name, brokers, topic = wanted.name, wanted.brokers, wanted.topic
    targets = spark.sparkContext.parallelize(plan.targets, len(plan.targets))
    for said in targets.map(lambda target: _problem(name, brokers, topic, target)).collect():
        if said:
            raise SendingError(said)


def _send(task: Task, rows: Iterable[Row]) -> Iterator[Sent]:
    for partition, part in groupby(rows, key=lambda row: row["target"]):
        yield _outcome(task, partition, part)


def _outcome(task: Task, partition: int, rows: Iterator[Row]) -> Sent:
    try:
        return Sent(partition, _send_partition(task, partition, rows))
    except (JobError, KafkaException) as error:
        return Sent(partition, 0, _text(error))


def _send_partition(task: Task, partition: int, rows: Iterator[Row]) -> int:
    """Send the rows of a partition; returns the number sent."""
    context = TaskContext.get()
    repeated = task.resumed or (context is not None and context.attemptNumber() > 0)
    with positions.consumer(task.brokers, positions.READ_UNCOMMITTED) as consumer:
        there = TopicPartition(task.topic, partition)
        if repeated:
            _settle(consumer, there, task.starts[partition], task.name)
        last = _last_row(consumer, there, task.starts[partition], task.name)
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error.str())

    producer = Producer(
        {
            **task.brokers.client(),
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
            "message.max.bytes": 100_000_000,
            "compression.type": task.compression,
            "linger.ms": 5,
        }
    )
    begun, sent = time.monotonic(), 0
    try:
        for row in rows:
            if row["number"] <= last:
                continue
            _produce(producer, task, partition, row, delivered, failed)
            sent += 1
            if task.records_per_second:
                _pace(producer, begun + sent / task.records_per_second)
            if failed:
                break
        left = producer.flush(DELIVERY_TIMEOUT_S + 10)
    finally:
        producer.purge()  # after an error nothing more may be sent
    if failed or left:
        raise SendingError(failed[0] if failed else f"{left:,} records were not acknowledged")
    return sent


def _produce(
    producer: Producer,
    task: Task,
    partition: int,
    row: Row,
    delivered: Callable[[KafkaError | None, Message], None],
    failed: list[str],
) -> None:
    headers: list[tuple[str, Any]] = [
        (header["key"], None if header["value"] is None else bytes(header["value"]))
        for header in row["headers"]
    ]
    own = [(PUBLICATION, task.name.encode()), (ROW, str(row["number"]).encode())]
    key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))

    def produce() -> bool:
        try:
            producer.produce(
                task.topic,
                value,
                key,
                partition,
                on_delivery=delivered,
                timestamp=row["timestamp"],
                headers=[*headers, *own],
            )
        except BufferError:
            return False
        return True

    producer.poll(0)
    while not (produce() or failed):  # the queue is full
        producer.poll(0.1)


def _pace(producer: Producer, due: float) -> None:
    while (ahead := due - time.monotonic()) > 0.001:
        producer.poll(min(ahead, 0.1))


def _settle(consumer: Consumer, part: TopicPartition, start: int, name: str) -> None:
    """Wait until a partition stops growing: a killed task's records may arrive late, and others may send to it, too.

    SendingError if it still gets rows of this publication then: another driver is alive.
    """
    deadline = time.monotonic() + 10 * SETTLED_S
    end, since = -1, time.monotonic()
    while time.monotonic() < deadline:
        now = consumer.get_watermark_offsets(part, positions.TIMEOUT_S)[1]
        if now != end:
            end, since = now, time.monotonic()
        elif time.monotonic() >= since + SETTLED_S:
            return
        time.sleep(0.1)
    before = _last_row(consumer, part, start, name)
    time.sleep(SETTLED_S)
    if (more := _last_row(consumer, part, start, name) - before) > 0:
        raise SendingError(
            f"another driver of {name} is alive: it sent {count_of(more, 'row')} while this one waited; this one"
            " sends nothing: let the other end, then start again, which sends what is left"
        )


def _last_row(consumer: Consumer, part: TopicPartition, start: int, name: str) -> int:
    """The number of the last row that a partition has of the publication; -1 for none."""
    low, end = consumer.get_watermark_offsets(part, positions.TIMEOUT_S)
    if end < start:
        raise SendingError(
            f"it ends at offset {end}, but ended at {start} when the publication began: the topic was deleted and"
            " created again; take another name"
        )
    begin, looked = max(low, start), FIRST_LOOK
    while end > begin:
        first = max(begin, end - looked)
        found = max(_rows(consumer, part, first, end, name), default=-1)
        if found >= 0:
            return found
        end, looked = first, looked * 4
    return -1


def _rows(consumer: Consumer, part: TopicPartition, first: int, end: int, name: str) -> Iterator[int]:
    """Numbers of the publication's rows between two offsets of a partition."""
    consumer.assign([TopicPartition(part.topic, part.partition, first)])
    wanted, heard = name.encode(), time.monotonic()
    while True:
        messages = consumer.consume(1000, 1.0)
        if not messages and time.monotonic() > heard + DELIVERY_TIMEOUT_S:
            raise SendingError(f"offsets {first} to {end} cannot be read")
        for message in messages:
            heard = time.monotonic()
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                raise KafkaException(error)
            offset = message.offset() or 0
            if offset >= end:
                return
            headers = dict(message.headers() or ())
            if headers.get(PUBLICATION) == wanted:
                yield int(headers.get(ROW) or 0)
            if offset == end - 1:
                return


def _problem(name: str, brokers: Brokers, topic: str, target: Target) -> str:
    """What is wrong with the contents of a partition; "" if nothing is."""
    part = TopicPartition(topic, target.partition)
    with positions.consumer(brokers, positions.READ_UNCOMMITTED) as consumer:
        low, end = consumer.get_watermark_offsets(part, positions.TIMEOUT_S)
        if end - target.start == target.rows:
            return ""
        seen = bytearray(target.rows)
        for number in _rows(consumer, part, max(target.start, low), end, name):
            seen[number] = min(seen[number] + 1, 2)
    where = f"topic: {topic}-{target.partition}"
    if twice := seen.count(2):
        return (
            f"{where}: {twice:,} rows are there more than once, the first is {ROW} {seen.index(2)}: two drivers of"
            f" {name} were alive; consumers can tell by the headers {PUBLICATION} and {ROW}"
        )
    if seen.count(0) and low <= target.start:
        return f"{where}: {seen.count(0):,} rows are not there: compaction or somebody else has removed them"
    return ""


def _text(error: JobError | KafkaException) -> str:
    told = error.args[0]
    return told.str() if isinstance(told, KafkaError) else str(told)
