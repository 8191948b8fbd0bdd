"""The content of a publication, fixed once: below the staging folder

    NAME.json                             the plan: the attempt whose rows count, and for each target partition its
                                          number of rows, and the end of the topic, whose id it has, before the first
    NAME/ATTEMPT/target=P/part-….parquet  rows of partition P as records, numbered from 0 on
    NAME.done.json                        the publication is complete

A query may return other rows, or another order, each time it runs; staged rows do not change. Of two drivers, the one
that creates NAME.json first decides.
"""

from __future__ import annotations

import contextlib
import uuid

import msgspec
from confluent_kafka import TopicPartition
from msgspec import Struct
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType

from millstream_jobs import positions
from millstream_jobs.files import Files
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.outputs import OutputError
from millstream_jobs.outputs.reading import read_table
from millstream_jobs.outputs.session import configure
from millstream_jobs.publish_file import Publish
from millstream_jobs.run import BadRun

ROWS_A_FILE = 1_000_000


class Target(Struct, frozen=True):
    partition: int
    rows: int
    start: int
    """The end of the partition before the publication began."""


class Plan(Struct, frozen=True):
    content: str
    attempt: str
    targets: tuple[Target, ...]
    topic_id: str | None = None
    """The id of the topic; None from brokers without ids, and in plans of older releases."""

    @property
    def rows(self) -> int:
        return sum(target.rows for target in self.targets)


def find(files: Files, name: str, content: str) -> Plan | None:
    path = f"{name}.json"
    if not files.exists(path):
        return None
    try:
        plan = msgspec.json.decode(files.read(path), type=Plan)
    except msgspec.DecodeError as error:
        raise OutputError(f"staging: {path} there is no publication's: {error}") from None
    if plan.content != content:
        raise BadRun(f"name: {name} is a publication of other content there: take another name")
    return plan


def make(spark: SparkSession, wanted: Publish, files: Files) -> tuple[Plan, bool]:
    """Stage the rows and create the plan. Returns the plan, and whether another driver had created it first."""
    attempt = uuid.uuid4().hex[:8]
    topic_id = topic_id_of(wanted)
    with positions.consumer(wanted.brokers, positions.READ_UNCOMMITTED) as cluster:
        numbers = positions.partitions(cluster, wanted.topic)
        rows = _numbered(_records(spark, wanted, len(numbers)))
        rows.write.option("maxRecordsPerFile", ROWS_A_FILE).partitionBy("target").parquet(
            f"{wanted.staging}/{wanted.name}/{attempt}"
        )
        counts = _counts(spark, wanted, attempt)
        if stray := sorted(set(counts) - set(numbers)):
            raise BadRun(
                f"record.partition: {stray[0]} is not allowed: {wanted.topic} has partitions 0 to {numbers[-1]}"
            )
        ends = {
            number: cluster.get_watermark_offsets(TopicPartition(wanted.topic, number), positions.TIMEOUT_S)[
                1
            ]
            for number in sorted(counts)
        }
    targets = tuple(Target(number, counts[number], end) for number, end in ends.items())
    plan = Plan(wanted.content, attempt, targets, topic_id)
    with contextlib.suppress(FileExistsError):  # another driver was first
        files.create(f"{wanted.name}.json", msgspec.json.format(msgspec.json.encode(plan), indent=1))
    decided = find(files, wanted.name, wanted.content)
    assert decided is not None
    return decided, decided.attempt != attempt


def check_topic(wanted: Publish, plan: Plan) -> None:
    """TopicReplaced if the topic is another one than that of the plan: nobody knows which rows it should have."""
    now = topic_id_of(wanted)
    if plan.topic_id and now and plan.topic_id != now:
        raise TopicReplaced(
            f"topic: {wanted.topic} was deleted and created again: its id is {now}, and was {plan.topic_id} when the"
            " publication began; take another name to send all rows to the new one"
        )


def topic_id_of(wanted: Publish) -> str | None:
    return positions.topic_ids(wanted.brokers, [wanted.topic]).get(wanted.topic)


def staged(spark: SparkSession, wanted: Publish, plan: Plan) -> DataFrame:
    """The records, those of a partition in one task, in the order of their numbers."""
    configure(spark, wanted.table, wanted.staging)
    rows = spark.read.parquet(f"{wanted.staging}/{wanted.name}/{plan.attempt}")
    return rows.repartitionByRange(len(plan.targets), "target").sortWithinPartitions("target", "number")


def _counts(spark: SparkSession, wanted: Publish, attempt: str) -> dict[int, int]:
    """The number of rows for each target partition."""
    folder = f"{wanted.staging}/{wanted.name}/{attempt}"
    rows = spark.read.schema("target INT, number LONG").parquet(folder).groupBy("target").count().collect()
    # -1 represents a null expression, and is refused like any other invalid partition.
    return {-1 if row["target"] is None else row["target"]: row["count"] for row in rows}


def _numbered(records: DataFrame) -> DataFrame:
    order = Window.partitionBy("target").orderBy("position")
    return records.withColumn("number", F.row_number().over(order) - 1).drop("position")


def _records(spark: SparkSession, wanted: Publish, partitions: int) -> DataFrame:
    """Columns target, position, key, value, headers and timestamp of each row; position keeps the query's order."""
    content = wanted.record
    try:
        configure(spark, wanted.table, wanted.staging)
        rows = _rows(spark, wanted)
        key = _binary(rows, content.key) if content.key else F.lit(None).cast("binary")
        headers = [
            F.struct(F.lit(name).alias("key"), _binary(rows, value).alias("value"))
            for name, value in content.headers.items()
        ]
        time = F.unix_millis(F.expr(content.timestamp).cast("timestamp")) if content.timestamp else F.lit(0)
        none = F.array().cast("array<struct<key: string, value: binary>>")
        columns = {
            "position": F.monotonically_increasing_id(),
            "key": key,
            "value": _binary(rows, content.value),
            "headers": F.array(*headers) if headers else none,
            "timestamp": F.coalesce(time, F.lit(0)).cast("long"),
            "given": F.expr(content.partition).cast("int") if content.partition else F.lit(None).cast("int"),
        }
        records = rows.select(*(column.alias(name) for name, column in columns.items()))
    except AnalysisException as error:
        raise BadRun(f"source or record: {str(error).strip().splitlines()[0]}") from None
    target = F.col("given") if content.partition else _partition(wanted.partitioner, partitions)
    return records.withColumn("target", target).drop("given")


def _rows(spark: SparkSession, wanted: Publish) -> DataFrame:
    table = read_table(spark, wanted.table)
    if not wanted.source.query:
        return table
    table.createOrReplaceTempView("source")
    return spark.sql(wanted.source.query)


def _binary(rows: DataFrame, expression: str) -> Column:
    column = F.expr(expression)
    if isinstance(rows.select(column).schema[0].dataType, BinaryType):
        return column
    return column.cast("string").cast("binary")


def _partition(partitioner: str, partitions: int) -> Column:
    """The target partition of a record; round-robin without a key."""
    turn = (F.col("position") % partitions).cast("int")
    if partitioner == "RoundRobin":
        return turn
    if partitioner == "CRC32":
        number = F.crc32("key") % partitions
    else:
        # PySpark would read the hints of a function, and warns about a union such as `bytes | None`; a lambda has none.
        number = F.udf(lambda key: murmur2(key), IntegerType())("key") % partitions
    return F.when(F.col("key").isNull(), turn).otherwise(number.cast("int"))


def murmur2(key: bytes | None) -> int | None:
    """The hash of a key in Kafka's Java clients, without its sign."""
    if key is None:
        return None
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    whole = len(key) & ~3
    state = 0x9747B28C ^ len(key)
    for index in range(0, whole, 4):
        part = int.from_bytes(key[index : index + 4], "little") * factor & mask
        state = state * factor & mask ^ ((part ^ part >> 24) * factor & mask)
    if len(key) > whole:
        state = (state ^ int.from_bytes(key[whole:], "little")) * factor & mask
    state = (state ^ state >> 13) * factor & mask
    return (state ^ state >> 15) & 0x7FFFFFFF
