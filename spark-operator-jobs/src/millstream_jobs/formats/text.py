"""Values that are text (JSON, CSV, Text), and unchanged bytes (Binary).

`_corrupt_record` is a STRING: the value's text, with invalid UTF-8 replaced. Other readers accept only valid text
for a STRING, so a value with such bytes is corrupt however well the rest parses.
"""

from __future__ import annotations

import json

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from millstream_jobs.formats.parsed import CORRUPT, Parsed, check_names
from millstream_jobs.run import BadRun
from millstream_jobs.value import Value


def json_objects(source: DataFrame, value: Value) -> Parsed:
    """One object for each value, and nothing after it; fields that parse are kept even if others do not."""
    schema = columns_of(value.schema)
    kept = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    return _parsed(source, schema, F.from_json("text", kept, _options(value)), _is_one_object(value))


def _is_one_object(value: Value) -> Column:
    """Whether nothing follows the first object: Spark ignores it.

    Cheap for objects without objects in them: they end at their first brace. Any other value is parsed as an array,
    with a mark after it that no value can contain: its own digest.
    """
    ends = F.instr(F.col("text"), "}") == F.length(F.expr(r"trim(TRAILING ' \t\r\n' FROM text)"))
    digest = F.md5("value")
    # On a line of its own: the value may end with a comment.
    marked = F.concat(F.lit("["), F.col("text"), F.lit('\n,"'), digest, F.lit('"]'))
    items = F.from_json(marked, "array<string>", dict(value.options))
    return ends | F.coalesce(F.slice(items, 2, 2) == F.array(digest), F.lit(False))


def csv_lines(source: DataFrame, value: Value) -> Parsed:
    """One line for each value, with or without line end, with a field for each column; several lines are corrupt."""
    schema = columns_of(value.schema)
    # On a line of its own: the DDL may end with a comment.
    kept = F.lit(f"{value.schema}\n, {CORRUPT} STRING")
    line = F.regexp_replace("text", r"\r?\n\z", "")
    # Spark would silently take only the first of several lines, so line breaks do not end a record.
    whole = F.instr(F.col("text"), "\0") == 0
    return _parsed(source, schema, F.from_csv(line, kept, {**_options(value), "lineSep": "\0"}), whole)


def strings(source: DataFrame) -> Parsed:
    """The text of a value in a column `value`."""
    text = F.col("value").cast("string")
    whole = F.is_valid_utf8(text)
    return Parsed(
        source,
        StructType([StructField("value", StringType())]),
        {"value": F.when(whole, text)},
        F.when(~whole, F.make_valid_utf8(text)),
    )


def as_they_are(source: DataFrame) -> Parsed:
    """The bytes of a value in a column `value`."""
    return Parsed(source, StructType([StructField("value", BinaryType())]), {"value": F.col("value")}, None)


def columns_of(ddl: str) -> StructType:
    """The columns in Spark's DDL; BadRun if it is not valid."""
    try:
        schema = DataType.fromDDL(ddl)
    except PySparkException as error:
        raise BadRun(f"value.schema: {json.dumps(ddl)} is not allowed: {one_line(error)}") from None
    if not isinstance(schema, StructType) or not ddl.strip() or ddl.strip().lower() == schema.simpleString():
        raise BadRun(
            f'value.schema: {json.dumps(ddl)} is not allowed: it must be columns, such as "delay DOUBLE"'
        )
    check_names((field.name for field in schema), "value.schema")
    return schema


def one_line(error: PySparkException | Py4JJavaError) -> str:
    """Spark's error about a schema, in one line and without its error class."""
    lines = str(error).strip().splitlines()
    if isinstance(error, Py4JJavaError):  # "An error occurred …", ": package.Exception: message"
        return next(line for line in lines if line.startswith(": ")).removeprefix(": ").partition(": ")[2]
    return lines[0].partition("] ")[2] or lines[0]


def _options(value: Value) -> dict[str, str]:
    return {**value.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def _parsed(source: DataFrame, schema: StructType, parsed: Column, whole: Column) -> Parsed:
    """``whole``: whether the parser used all of a value that it parsed."""
    read = source.withColumn("text", F.col("value").cast("string")).withColumn("parsed", parsed)
    # A value such as "" or "null" parses to nothing at all, and invalid UTF-8 to replacements, without an error.
    unsaid = F.when(F.col("parsed").isNull() | ~F.is_valid_utf8("text") | ~whole, F.col("text"))
    corrupt = F.coalesce(F.col("parsed").getField(CORRUPT), unsaid)
    columns = {field.name: F.col("parsed").getField(field.name) for field in schema}
    return Parsed(read, schema, columns, F.make_valid_utf8(corrupt))
