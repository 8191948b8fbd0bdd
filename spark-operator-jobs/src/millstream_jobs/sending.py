"""Sends the rows of a publication to its topic, each once; runs in Spark's tasks.

A record's headers identify its row: `millstream-publication` and `millstream-row`, the row's number within its
partition. Each partition has one task, which sends its rows in order, in transactions of COMMIT_S. The transactional id
belongs to the plan and the partition: a repeated task, or another driver, first ends the transaction of the one before
and fences it. Then it reads back from the partition's end to find the last committed row, and sends the following ones.
So the committed records of a partition are always the first rows, up to some number.

Rows behind an open transaction of another producer may be committed or aborted. A task that finds some there waits for
its end; only a repeated one can. At the end a partition that has grown by as many offsets as it got rows and
markers has each row once; otherwise its records are counted, row by row, and a publication with a duplicated row fails
and says so. Rows behind an open transaction of another producer count as there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec import Struct
from pyspark.sql import DataFrame, Row, SparkSession

from millstream_jobs import positions
from millstream_jobs.brokers import Brokers
from millstream_jobs.failures import JobError
from millstream_jobs.publication import Plan, Target
from millstream_jobs.publish_file import Publish

PUBLICATION = "millstream-publication"
ROW = "millstream-row"
COMMIT_S = 5.0
"""Time after which a transaction is committed: consumers that read only committed records wait that long for a row."""
TRANSACTION_TIMEOUT_S = 120
"""Time after which brokers abort the transaction of a task that was lost, and that nothing repeats."""
FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
OTHERS_S = 1200.0
"""Longest wait for a transaction of another producer; by default brokers end them after a quarter of an hour."""
LOOK_S = 0.5
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
    transactional_ids: str
    """What the transactional ids of all partitions begin with."""


class Sent(Struct, frozen=True):
    partition: int
    transactions: int = 0
    """Committed ones."""
    error: str = ""


def send(spark: SparkSession, wanted: Publish, plan: Plan, rows: DataFrame) -> dict[int, int]:
    """Send what is left; returns the number of transactions by partition."""
    limit = wanted.max_records_per_second
    tasks = min(len(plan.targets), spark.sparkContext.defaultParallelism)
    task = Task(
        wanted.name,
        wanted.brokers,
        wanted.topic,
        {target.partition: target.start for target in plan.targets},
        limit / tasks if limit else None,
        wanted.compression,
        f"{PUBLICATION}-{wanted.name}-{plan.attempt}-",
    )
    found = rows.rdd.mapPartitions(lambda part: _send(task, part)).collect()
    for sent in found:
        if sent.error:
            raise SendingError(f"topic: {wanted.topic}-{sent.partition}: {sent.error}")
    return {sent.partition: sent.transactions for sent in found}


def check(spark: SparkSession, wanted: Publish, plan: Plan, transactions: Mapping[int, int]) -> None:
    """SendingError unless the topic has each row exactly once; `transactions` as `send` returned them."""
    name, brokers, topic = wanted.name, wanted.brokers, wanted.topic
    targets = spark.sparkContext.parallelize(plan.targets, len(plan.targets))
    markers = dict(transactions)
    problems = targets.map(
        lambda target: _problem(name, brokers, topic, target, markers.get(target.partition, 0))
    )
    for said in problems.collect():
        if said:
            raise SendingError(said)


def _send(task: Task, rows: Iterable[Row]) -> Iterator[Sent]:
    for partition, part in groupby(rows, key=lambda row: row["target"]):
        yield _outcome(task, partition, part)


def _outcome(task: Task, partition: int, rows: Iterator[Row]) -> Sent:
    try:
        return Sent(partition, _send_partition(task, partition, rows))
    except (JobError, KafkaException) as error:
        return Sent(partition, error=_text(task, error))


def _send_partition(task: Task, partition: int, rows: Iterator[Row]) -> int:
    """Send the rows of a partition that are not there yet; returns the number of transactions."""
    producer = Producer(
        {
            **task.brokers.client(),
            "transactional.id": f"{task.transactional_ids}{partition}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
            "delivery.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
            "message.max.bytes": 100_000_000,
            "compression.type": task.compression,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(TRANSACTION_TIMEOUT_S)  # ends and fences what an earlier task or driver left
    last = _last_row(task.brokers, TopicPartition(task.topic, partition), task.starts[partition], task.name)
    try:
        return _send_rows(task, partition, producer, (row for row in rows if row["number"] > last))
    except BaseException as error:
        problems = [error]
        try:
            producer.abort_transaction(TRANSACTION_TIMEOUT_S)  # consumers should not wait for it
        except KafkaException as also:
            problems.append(also)
        if any(
            isinstance(problem, KafkaException) and problem.args[0].code() in FENCED for problem in problems
        ):
            raise SendingError(
                f"another driver of {task.name} has taken over: this one sends no more"
            ) from None
        raise


def _send_rows(task: Task, partition: int, producer: Producer, rows: Iterator[Row]) -> int:
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error.str())

    def commit() -> None:
        try:
            producer.commit_transaction(TRANSACTION_TIMEOUT_S)
        except KafkaException:
            if failed:  # which tells more
                raise SendingError(failed[0]) from None
            raise

    begun, transactions = time.monotonic(), 0
    due: float | None = None  # of the commit of the open transaction
    for sent, row in enumerate(rows, 1):
        if due is None:
            producer.begin_transaction()
            due = time.monotonic() + COMMIT_S
        _produce(producer, task, partition, row, delivered, failed)
        if task.records_per_second:
            _pace(producer, begun + sent / task.records_per_second)
        if failed or time.monotonic() >= due:
            commit()
            transactions, due = transactions + 1, None
    if due is not None:
        commit()
        transactions += 1
    return transactions


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


def _last_row(brokers: Brokers, part: TopicPartition, start: int, name: str) -> int:
    """The number of the last row of the publication that is committed in a partition; -1 for none.

    Call it when no transaction of the publication is open.
    """
    with (
        positions.consumer(brokers, positions.READ_UNCOMMITTED) as of_all,
        positions.consumer(brokers) as consumer,
    ):
        low, end = of_all.get_watermark_offsets(part, positions.TIMEOUT_S)
        if end < start:
            raise SendingError(
                f"it ends at offset {end}, but ended at {start} when the publication began: the topic was deleted and"
                " created again; take another name"
            )
        deadline = time.monotonic() + OTHERS_S
        while (stable := _stable(consumer, part, end)) < end:
            if not any(True for _ in _rows(of_all, part, max(stable, low, start), end, name)):
                break
            if time.monotonic() > deadline:
                raise SendingError(
                    f"a transaction of another producer has been open since offset {stable}, and rows behind it may"
                    " be committed or not: end it, or start again when it has ended"
                )
            time.sleep(LOOK_S)
        begin, looked = max(low, start), FIRST_LOOK
        end = stable
        while end > begin:
            first = max(begin, end - looked)
            found = max(_rows(consumer, part, first, end, name), default=-1)
            if found >= 0:
                return found
            end, looked = first, looked * 4
    return -1


def _stable(consumer: Consumer, part: TopicPartition, end: int) -> int:
    """Where the first open transaction of a partition begins, or its end, at most `end`."""
    return min(end, consumer.get_watermark_offsets(part, positions.TIMEOUT_S)[1])


def _rows(consumer: Consumer, part: TopicPartition, first: int, end: int, name: str) -> Iterator[int]:
    """Numbers of the publication's rows between two offsets of a partition."""
    if first >= end:
        return
    consumer.assign([TopicPartition(part.topic, part.partition, first)])
    wanted, heard = name.encode(), time.monotonic()
    while True:
        messages = consumer.consume(1000, 1.0)
        if not messages and time.monotonic() > heard + TRANSACTION_TIMEOUT_S:
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


def _problem(name: str, brokers: Brokers, topic: str, target: Target, markers: int) -> str:
    """What is wrong with the contents of a partition; "" if nothing is. `markers` is the number of transactions."""
    part = TopicPartition(topic, target.partition)
    with (
        positions.consumer(brokers, positions.READ_UNCOMMITTED) as of_all,
        positions.consumer(brokers) as consumer,
    ):
        low, end = of_all.get_watermark_offsets(part, positions.TIMEOUT_S)
        if end - target.start == target.rows + markers:
            return ""
        seen = bytearray(target.rows)
        begin = max(target.start, low)
        stable = max(begin, _stable(consumer, part, end))
        for number in _rows(consumer, part, begin, stable, name):
            seen[number] = min(seen[number] + 1, 2)
        for number in _rows(of_all, part, stable, end, name):
            seen[number] = max(seen[number], 1)
    where = f"topic: {topic}-{target.partition}"
    if twice := seen.count(2):
        return (
            f"{where}: {twice:,} rows are there more than once, the first is {ROW} {seen.index(2)}: another program"
            f" has sent them, too; consumers can tell by the headers {PUBLICATION} and {ROW}"
        )
    if seen.count(0) and low <= target.start:
        return f"{where}: {seen.count(0):,} rows are not there: compaction or somebody else has removed them"
    return ""


def _text(task: Task, error: JobError | KafkaException) -> str:
    cause = error.args[0]
    if not isinstance(cause, KafkaError):
        return str(cause)
    match cause.code():
        case KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return (
                "the user may not use its transactional id: allow it Write on transactional ids that"
                f" begin with {PUBLICATION}-{task.name}-"
            )
        case KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return (
                "the brokers' transaction.max.timeout.ms is too short: set it to at least"
                f" {TRANSACTION_TIMEOUT_S * 1000}"
            )
    return cause.str()
