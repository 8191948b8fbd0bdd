"""The records of a run as a table, read by Spark's own Kafka source.

Columns: those of the value, then those of the record under names that begin with "_":

    value    format JSON: one a field of the schema (Spark's DDL), and `_corrupt_record`: the text of a value
             that is not such a JSON object, whole or in part; null otherwise. Fields that did parse are kept.
             format Binary: `value`, as it is
    date     if the output is partitioned by it and the value has none: the UTC day of the value's only
             TIMESTAMP column, or, where that is null or not the only one, of the record
    record   `_topic`, `_partition`, `_offset`, `_timestamp`, `_key` (bytes)

Every partition has explicit offsets: Spark resolves "latest" late and on each attempt of a task again.
"""

from __future__ import annotations

import json

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    _parse_datatype_string,
)

from millstream_jobs.run import BadRun, Run

CORRUPT = "_corrupt_record"
RECORD = ("_topic", "_partition", "_offset", "_timestamp", "_key")
RECORDS_A_TASK = 1_000_000


def read(spark: SparkSession, run: Run) -> DataFrame:
    """The run's table; BadRun when the schema or a partition column cannot be."""
    columns = _value_columns(run)
    schema = _schema(run)
    names = [*(field.name for field in schema), *((CORRUPT,) if CORRUPT in columns else ()), *RECORD]
    derived = _check_partition_columns(run, names)
    source = _source(spark, run)
    if run.value.format == "JSON":
        source = source.withColumn("text", F.col("value").cast("string")).withColumn(
            "parsed", _parsed(schema)
        )
    timestamps = [field.name for field in schema if isinstance(field.dataType, TimestampType)]
    own_time = [columns[timestamps[0]]] if len(timestamps) == 1 else []
    dates = [F.to_date(F.coalesce(*own_time, F.col("timestamp"))).alias("date")] if derived else []
    return source.select(
        *(column.alias(name) for name, column in columns.items()),
        *dates,
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        F.col("key").alias("_key"),
    )


def _source(spark: SparkSession, run: Run) -> DataFrame:
    ranges = [part for part in run.offsets if part.records]
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for part in ranges:
        starting.setdefault(part.topic, {})[str(part.partition)] = part.first
        ending.setdefault(part.topic, {})[str(part.partition)] = part.until
    assigned = {topic: [int(partition) for partition in parts] for topic, parts in starting.items()}
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", run.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.default.api.timeout.ms", "20000")
        .option("kafka.request.timeout.ms", "15000")
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starting))
        .option("endingOffsets", json.dumps(ending))
        .option("failOnDataLoss", "true")
        .option("minPartitions", str(max(len(ranges), -(-run.records // RECORDS_A_TASK))))
        .load()
    )


def _schema(run: Run) -> StructType:
    """The value's columns as the user names them."""
    if run.value.format != "JSON":
        return StructType([StructField("value", BinaryType())])
    given = run.value.schema
    try:
        schema = _parse_datatype_string(given)
    except ParseException as error:
        raise BadRun(f"value.schema: {json.dumps(given)} is not allowed: {_syntax(error)}") from None
    if (
        not isinstance(schema, StructType)
        or not given.strip()
        or given.strip().lower() == schema.simpleString()
    ):
        raise BadRun(
            f'value.schema: {json.dumps(given)} is not allowed: it must be columns, such as "delay DOUBLE"'
        )
    taken = {name.lower() for name in (*RECORD, CORRUPT)}
    for field in schema:
        if field.name.lower() in taken:
            raise BadRun(
                f"value.schema: {json.dumps(field.name)} is not allowed:"
                f" it is there twice, or one of the record's own: {', '.join((*RECORD, CORRUPT))}"
            )
        taken.add(field.name.lower())
    return schema


def _value_columns(run: Run) -> dict[str, Column]:
    """Each column of the value with what it is made of."""
    if run.value.format == "Binary":
        return {"value": F.col("value")}
    columns = {field.name: F.col("parsed").getField(field.name) for field in _schema(run)}
    # A value such as "" or "null" parses to nothing at all, bytes that are no text to replacements, unsaid.
    # A record without a value (a tombstone) is whole. Other readers take only valid text for a STRING.
    unsaid = F.when(F.col("parsed").isNull() | ~F.is_valid_utf8("text"), F.col("text"))
    corrupt = F.coalesce(F.col("parsed").getField(CORRUPT), unsaid)
    return {**columns, CORRUPT: F.make_valid_utf8(corrupt)}


def _parsed(schema: StructType) -> Column:
    kept = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    return F.from_json(F.col("text"), kept, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def _check_partition_columns(run: Run, names: list[str]) -> bool:
    """Whether `date` is to be derived; BadRun for a partition column that cannot be."""
    wanted = run.output.partition_by
    for index, name in enumerate(wanted):
        where = f"output.partitionBy[{index}]: {json.dumps(name)} is not allowed:"
        if name in wanted[:index]:
            raise BadRun(f"{where} it is listed before")
        if name not in names and name != "date":
            raise BadRun(f"{where} one of {', '.join(['date', *(n for n in names if n != 'date')])}")
    if wanted and set(names) <= set(wanted):
        raise BadRun(
            f"output.partitionBy: {json.dumps(list(wanted))} is not allowed: no column is left for the files"
        )
    return "date" in wanted and "date" not in names


def _syntax(error: ParseException) -> str:
    """What Spark's parser says, in one line and without its error class."""
    said = str(error).strip().partition("\n")[0]
    return said.partition("] ")[2] or said
