"""The part of RUN.json about records: how to parse values, and which record metadata become columns.

    "value": {"format": "JSON", "schema": "carrier STRING, time_hour TIMESTAMP",
              "options": {"timestampFormat": "…"},       Spark's own options of the format, those of `OPTIONS`
              "timeColumn": "time_hour",                 what `date` and `hour` are derived from
              "maxCorruptRecords": "0.1%"}               a count or a percentage; left out: any number
             {"format": "CSV", "schema": …, "options": {"delimiter": ";"}}
             {"format": "Avro", "schema": "{\\"type\\": \\"record\\", …}"}
             {"format": "Avro", "schemaRegistry": {"url": "http://registry:8081"}}    Confluent's wire format
             {"format": "Protobuf", "descriptorSet": "CpAB…", "message": "flights.Flight"}
             {"format": "Text"}, {"format": "Binary"}
    "record": {"key": "Text", "headers": true}

`problem` has the rules between fields.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

ValueFormat = Literal["JSON", "CSV", "Avro", "Protobuf", "Text", "Binary"]
KeyFormat = Literal["Binary", "Text"]

LIMIT = r"^([0-9]{1,2}(\.[0-9]{1,6})?|100)%$"

OPTIONS: dict[str, tuple[str, ...]] = {
    "JSON": (
        "allowBackslashEscapingAnyCharacter",
        "allowComments",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        "dateFormat",
        "locale",
        "primitivesAsString",
        "timeZone",
        "timestampFormat",
        "timestampNTZFormat",
    ),
    "CSV": (
        "comment",
        "dateFormat",
        "delimiter",
        "emptyValue",
        "escape",
        "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace",
        "locale",
        "nanValue",
        "negativeInf",
        "nullValue",
        "positiveInf",
        "quote",
        "timeZone",
        "timestampFormat",
        "timestampNTZFormat",
    ),
}
"""Options of Spark's from_json and from_csv that affect parsing, but not the guarantees of a load."""

TAKES: dict[str, tuple[str, ...]] = {
    "JSON": ("schema", "options"),
    "CSV": ("schema", "options"),
    "Avro": ("schema", "schemaRegistry"),
    "Protobuf": ("descriptorSet", "message"),
    "Text": (),
    "Binary": (),
}
"""The fields of a format besides `timeColumn` and, except for Binary, `maxCorruptRecords`."""


class SchemaRegistry(Struct, frozen=True, forbid_unknown_fields=True):
    """A server that speaks Confluent's Schema Registry API."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$", max_length=1024)]


class Value(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How values are read."""

    format: ValueFormat = "JSON"
    schema: str = ""
    """Columns in Spark's DDL; for Avro a record schema: the reader's, if there is a registry."""
    options: dict[str, str] = {}
    schema_registry: SchemaRegistry | None = None
    descriptor_set: str = ""
    """Protobuf: a FileDescriptorSet in base64, with the message's file and all its imports."""
    message: str = ""
    """Protobuf: the message's name, with its package."""
    time_column: str = ""
    max_corrupt_records: Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=LIMIT)] | None = None

    def allows(self, corrupt: int, rows: int) -> bool:
        """Whether a run with this many rows may have this many corrupt ones."""
        limit = self.max_corrupt_records
        if limit is None:
            return True
        if isinstance(limit, int):
            return corrupt <= limit
        return corrupt * 100 <= rows * float(limit.removesuffix("%"))


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """Which parts of the record become columns, besides those that always do, and in which form."""

    key: KeyFormat = "Binary"
    headers: bool = False


def problem(value: Value) -> str | None:
    """The first problem of a value's fields: field, value and what is allowed; None if it is valid."""
    given: dict[str, Any] = {
        "schema": value.schema.strip(),
        "options": value.options,
        "schemaRegistry": value.schema_registry,
        "descriptorSet": value.descriptor_set,
        "message": value.message,
    }
    for name, content in given.items():
        if content and name not in TAKES[value.format]:
            others = [format_name for format_name, taken in TAKES.items() if name in taken]
            return f"value.{name}: not allowed with value.format {value.format}: only {' and '.join(others)} has it"
    if value.format in ("JSON", "CSV") and not given["schema"]:
        return (
            f'value.schema: "" is not allowed: {value.format} needs columns,'
            ' such as "carrier STRING, delay DOUBLE"'
        )
    if value.format == "Avro" and not (given["schema"] or value.schema_registry):
        return 'value.schema: "" is not allowed: Avro needs a record schema, or value.schemaRegistry'
    for name in TAKES["Protobuf"] if value.format == "Protobuf" else ():
        if not given[name]:
            return f'value.{name}: "" is not allowed: Protobuf needs value.descriptorSet and value.message'
    if value.format == "Binary" and value.max_corrupt_records is not None:
        return "value.maxCorruptRecords: not allowed with value.format Binary: no such value is corrupt"
    for name in value.options:
        if name not in OPTIONS[value.format]:
            return f"value.options: {json.dumps(name)} is not allowed: {', '.join(OPTIONS[value.format])}"
    if value.format == "Avro" and given["schema"] and (said := _avro_problem(value.schema)):
        return f"value.schema: {_short(value.schema)} is not allowed: {said}"
    return None


def _avro_problem(schema: str) -> str | None:
    try:
        found = json.loads(schema)
    except ValueError as error:
        return f"it is not JSON: {error}"
    if not isinstance(found, dict) or found.get("type") != "record":
        return 'it must be a record: {"type": "record", "name": …, "fields": […]}'
    return None


def _short(text: str) -> str:
    quoted = json.dumps(re.sub(r"\s+", " ", text))
    return quoted if len(quoted) <= 100 else quoted[:97] + "..."


ALLOWED = {
    "value.format": ", ".join(get_args(ValueFormat)),
    "value.schemaRegistry.url": "http:// or https:// with a host, without user and password",
    "value.maxCorruptRecords": 'a count such as 1000, or a percentage such as "0.1%"',
    "record.key": ", ".join(get_args(KeyFormat)),
}
