"""Columns and types of a load are checked before Spark starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream_jobs import column_names
from millstream_jobs.formats import parsed
from millstream_operator.models import API_VERSION, BatchLoad
from millstream_operator.reconcile.load import columns
from millstream_operator.reconcile.load.columns import check_columns
from millstream_operator.validation import ddl
from millstream_operator.validation.admission import decode

RECORD = {"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}


def load(value: dict[str, Any], *partition_by: str, format: str = "Parquet") -> BatchLoad:
    output = {"path": "/lake/flights", "partitionBy": list(partition_by), "format": format}
    spec = {
        "clusterRef": {"name": "east"},
        "topics": ["flights"],
        "value": value,
        "output": {**output, "table": "lake.flights"} if format == "Iceberg" else output,
    }
    found = decode({"apiVersion": API_VERSION, "kind": "BatchLoad", "metadata": {"name": "l"}, "spec": spec})
    assert isinstance(found, BatchLoad)
    return found


def said(value: dict[str, Any], *partition_by: str) -> str:
    problem = check_columns(load(value, *partition_by))
    return "" if problem is None else f"{problem.reason.value}: {problem.message}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a INT", {"a": "INT"}),
        ("a int not null comment 'x, y', `b``c d` Timestamp", {"a": "INT", "b`c d": "TIMESTAMP"}),
        (
            "a ARRAY<STRUCT<x: INT, y: MAP<STRING, DECIMAL(10, 2)>>>, b VARCHAR(5) -- the end",
            {"a": "ARRAY", "b": "VARCHAR"},
        ),
        ("a: STRING, b INTERVAL DAY TO SECOND, c STRUCT<>", {"a": "STRING", "b": "INTERVAL", "c": "STRUCT"}),
    ],
)
def test_columns_of_ddl(text: str, expected: dict[str, str]) -> None:
    assert ddl.columns(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "a INT b", "a INT DEFAULT 5", "a ARRAY<INT", "a INT,", "struct<a int>", "é$ INT"]
)
def test_ddl_in_another_form_is_left_to_spark(text: str) -> None:
    with pytest.raises(ddl.Unknown):
        ddl.columns(text)
    if text:
        assert said({"format": "JSON", "schema": text}, "date") == ""


@pytest.mark.parametrize(
    ("value", "partition_by", "words"),
    [
        (
            {"format": "JSON", "schema": "a STRING, n BIGNIT"},
            (),
            "InvalidSpec: spec.value.schema: column n: BIGNIT is no type: did you mean BIGINT?",
        ),
        (
            {"format": "CSV", "schema": "a STRUCT<b: ARRAY<STRNG>>"},
            (),
            "column a.b: STRNG is no type: did you mean STRING?",
        ),
        ({"format": "JSON", "schema": "a foo"}, (), "column a: foo is no type: allowed are BOOLEAN, INT"),
        (
            {"format": "JSON", "schema": "a INT"},
            ("b",),
            'spec.output.partitionBy[0]: "b" is not allowed: one of date, hour, a',
        ),
        ({"format": "JSON", "schema": "Date STRING"}, ("date",), 'the column is "Date"'),
        (
            {"format": "JSON", "schema": "a INT", "timeColumn": "a"},
            (),
            'spec.value.timeColumn: "a" is not allowed',
        ),
        ({"format": "Text"}, ("carrier",), 'partitionBy[0]: "carrier" is not allowed'),
        (
            {
                "format": "Avro",
                "schema": json.dumps(
                    {"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}
                ),
            },
            ("b",),
            'partitionBy[0]: "b" is not allowed',
        ),
    ],
)
def test_what_does_not_exist_is_named(
    value: dict[str, Any], partition_by: tuple[str, ...], words: str
) -> None:
    assert words in said(value, *partition_by)


@pytest.mark.parametrize(
    ("format", "schema", "words"),
    [
        (
            "Iceberg",
            "_POS INT",
            '"_POS" is not allowed with output.format Iceberg, whose tables have a column',
        ),
        ("Iceberg", "_topic_partition INT", '"_topic_partition" is not allowed'),
        ("Parquet", "load_run INT", '"load_run" is not allowed with output.format Parquet'),
        ("Delta", "`a b` INT", '"a b" is not allowed with output.format Delta, whose columns have no spaces'),
        ("Delta", "_pos INT", ""),
        ("Iceberg", "`a b` INT", ""),
        ("Parquet", "Date STRING, date STRING", '"date" is not allowed: it is there twice'),
        ("Parquet", "a INT, a STRING", "column a: it is there twice"),
        ("Parquet", "_Offset INT", '"_Offset" is not allowed: it is there twice, or one of the record'),
        ("Parquet", "a STRUCT<b: INT, B: INT>", ""),
    ],
)
def test_names_of_columns(format: str, schema: str, words: str) -> None:
    problem = check_columns(load({"format": "JSON", "schema": schema}, format=format))
    assert (words in problem.message) if problem is not None else not words


def test_rules_of_names_are_those_of_the_jobs() -> None:
    assert columns.RESERVED == column_names.RESERVED
    assert columns.NOT_IN_DELTA == column_names.NOT_IN_DELTA
    assert (columns.RECORD, columns.HEADERS, columns.CORRUPT) == (
        parsed.RECORD,
        parsed.HEADERS,
        parsed.CORRUPT,
    )


@pytest.mark.parametrize(
    ("value", "partition_by"),
    [
        (
            {"format": "JSON", "schema": "a INT, t TIMESTAMP", "timeColumn": "t"},
            ("date", "hour", "a", "_topic"),
        ),
        ({"format": "JSON", "schema": "a INT", "timeColumn": "_timestamp"}, ("_corrupt_record",)),
        ({"format": "Text"}, ("value",)),
        ({"format": "Avro", "schemaRegistry": {"url": "http://registry"}}, ("anything",)),
    ],
)
def test_what_exists_is_allowed(value: dict[str, Any], partition_by: tuple[str, ...]) -> None:
    assert said(value, *partition_by) == ""
