"""Values in Avro: with one schema for all, or in Confluent's wire format, each with its schema's id.

Confluent's wire format (docs.confluent.io, "Wire format"): a byte 0, the schema's id as four bytes, big-endian, and
Avro's binary encoding. The ids in a run's range are collected first, which takes one more read of the range,
and their schemas are fetched, each once. All records become the columns of one reader's schema: the given one, or
else that of the highest id in the range, which the registry assigned last. Both depend only on the run's records, so
a retry produces the same table.

`_corrupt_record` is BINARY, the value with its header: for a value that is not such a record, for an id that the
registry does not know, and for a schema that does not resolve to the reader's. Avro has no checksum and no names in its
data, so other bytes may happen to be a record.

Spark returns a row of nulls for a value that does not parse, and ignores what follows a record. So both schemas get one
more field, and each value its own digest behind it: only a value that is one record, from its first byte to its last,
has its digest there.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from millstream_jobs.formats.parsed import Parsed, check_names
from millstream_jobs.formats.text import one_line
from millstream_jobs.registry import NotFound, Registry
from millstream_jobs.run import BadRun
from millstream_jobs.value import Value

END = "_millstream_end"
DIGEST_BYTES = 16
HEADER_BYTES = 5
MAX_IDS = 1000
"""Limit of ids to look up for one range: the most frequent ones; further ids come from values that are no records."""


def given(source: DataFrame, value: Value) -> Parsed:
    """Values of one schema."""
    parsed = _from_avro(F.col("value"), value.schema, value.schema)
    return _parsed(source, parsed, "value.schema")


def registered(source: DataFrame, value: Value) -> Parsed:
    """Values in Confluent's wire format."""
    assert value.schema_registry is not None
    known = _schemas(source, Registry(value.schema_registry.url))
    reader = value.schema or (known[max(known)] if known else "")
    if not reader:
        none = F.lit(None).cast("binary")
        return Parsed(source, StructType([]), {}, F.coalesce(F.col("value"), none))
    payload = F.substring("value", HEADER_BYTES + 1, 2**31 - 1)
    parsed = _from_avro(F.lit(None).cast("binary"), reader, reader)
    for number, schema in known.items():
        parsed = F.when(F.col("id") == number, _from_avro(payload, schema, reader)).otherwise(parsed)
    where = "value.schema" if value.schema else f"value.schemaRegistry: schema {max(known)}"
    return _parsed(source.withColumn("id", _id()), parsed, where)


def _id() -> Column:
    """The schema's id in a value's header; null without one."""
    headed = (F.octet_length("value") >= HEADER_BYTES) & (F.hex(F.substring("value", 1, 1)) == "00")
    return F.when(headed, F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).cast("bigint"))


def _schemas(source: DataFrame, registry: Registry) -> dict[int, str]:
    """The schemas of the ids in the range, those that the registry has and that are Avro records."""
    counted = source.select(_id().alias("id")).where("id IS NOT NULL").groupBy("id").count()
    ids = [row["id"] for row in counted.orderBy(F.desc("count"), "id").limit(MAX_IDS).collect()]
    found: dict[int, str] = {}
    for number in sorted(ids):
        try:
            schema = registry.schema(number)
        except NotFound:
            continue
        if _record(schema):
            found[number] = schema
    return found


def _record(schema: str) -> bool:
    try:
        found = json.loads(schema)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("type") == "record"


def _from_avro(column: Column, writer: str, reader: str) -> Column:
    ended = F.concat(column, _digest())
    return from_avro(ended, _with_end(writer), {"mode": "PERMISSIVE", "avroSchema": _with_end(reader)})


def _digest() -> Column:
    return F.unhex(F.md5("value"))


def _with_end(schema: str) -> str:
    """The record's schema with the digest as its last field."""
    record: dict[str, Any] = json.loads(schema)
    kind = {"type": "fixed", "name": "End", "namespace": "millstream", "size": DIGEST_BYTES}
    return json.dumps({**record, "fields": [*record.get("fields", ()), {"name": END, "type": kind}]})


def _parsed(source: DataFrame, parsed: Column, where: str) -> Parsed:
    try:
        read = source.withColumn("parsed", parsed)
        kind = read.schema["parsed"].dataType
    except (PySparkException, Py4JJavaError) as error:
        raise BadRun(f"{where}: is not allowed: {one_line(error)}") from None
    assert isinstance(kind, StructType)
    schema = StructType([field for field in kind if field.name != END])
    check_names((field.name for field in schema), where)
    whole = F.col("parsed").getField(END).eqNullSafe(_digest())
    columns = {field.name: F.when(whole, F.col("parsed").getField(field.name)) for field in schema}
    return Parsed(read, schema, columns, F.when(~whole, F.col("value")))
