"""Whether the columns that a BatchLoad names exist: checked before Spark starts, and while a schedule waits; pure.

Spark checks them again. Fields of a registry's schema or of a Protobuf message are known to its job only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ...models import BatchLoad
from ...models.conditions import Reason
from ...models.problem import Problem
from ...validation import ddl

DERIVED = ("date", "hour")
RECORD = ("_topic", "_partition", "_offset", "_timestamp", "_key")
HEADERS, CORRUPT = "_headers", "_corrupt_record"
RESERVED = {
    "Parquet": frozenset({"load_run"}),
    "Delta": frozenset[str](),
    "Iceberg": frozenset(
        {
            "_topic_partition",
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_row_id",
            "_last_updated_sequence_number",
            "_change_type",
            "_change_ordinal",
            "_commit_snapshot_id",
        }
    ),
}
"""As in the jobs: columns that a format, or a load's table in it, has itself."""
NOT_IN_DELTA = re.compile(r"[ ,;{}()\n\t=]")
"""As in the jobs: what no column of a Delta table has in its name."""


def check_columns(load: BatchLoad) -> Problem | None:
    """The first column or type of the spec that does not exist; None if all do, as far as is known here."""
    value = load.spec.value
    try:
        columns = _columns(load)
    except ddl.WrongType as error:
        return _invalid(f"spec.value.schema: {error}")
    if columns is None:
        return None
    if wrong := _wrong_name(columns, load.spec.output.format):
        return _invalid(f"spec.value.schema: {wrong}")
    times = [name for name, kind in columns.items() if kind in ("TIMESTAMP", "TIMESTAMP_LTZ")]
    if value.format != "Avro" and value.time_column and value.time_column not in (*times, "_timestamp"):
        return _invalid(
            f'spec.value.timeColumn: "{value.time_column}" is not allowed: one of'
            f" {', '.join([*times, '_timestamp'])}, the TIMESTAMP columns"
        )
    names = [*columns, *([CORRUPT] if value.format != "Binary" else []), *RECORD]
    for index, name in enumerate(load.spec.output.partition_by):
        where = f'spec.output.partitionBy[{index}]: "{name}" is not allowed:'
        if other := next((one for one in names if one.lower() == name.lower() and one != name), None):
            return _invalid(f'{where} the column is "{other}": write it so, or rename one of them')
        if name not in (*names, *DERIVED):
            return _invalid(f"{where} one of {', '.join([*DERIVED, *names])}")
    return None


def _wrong_name(names: Iterable[str], format: str) -> str:
    """What is wrong with the first column that a record has itself, or that the table's format does not allow."""
    own = (*RECORD, HEADERS, CORRUPT)
    taken = {name.lower() for name in own}
    for name in names:
        if name.lower() in taken:
            return (
                f'"{name}" is not allowed: it is there twice, or one of the record\'s own: {", ".join(own)}'
            )
        taken.add(name.lower())
        if name.lower() in RESERVED[format]:
            return (
                f'"{name}" is not allowed with output.format {format}, whose tables have a column of that name: take'
                " another name"
            )
        if format == "Delta" and NOT_IN_DELTA.search(name):
            return (
                f'"{name}" is not allowed with output.format Delta, whose columns have no spaces and none of'
                " , ; { } ( ) = in their names: take another name, or format Parquet or Iceberg"
            )
    return ""


def _columns(load: BatchLoad) -> dict[str, str] | None:
    """The value's columns with their types; None if only the job knows them. Raises WrongType."""
    value = load.spec.value
    match value.format:
        case "Text" | "Binary":
            return {"value": "STRING" if value.format == "Text" else "BINARY"}
        case "JSON" | "CSV":
            try:
                return ddl.columns(value.schema or "")
            except ddl.Unknown:
                return None
        case "Avro":
            try:
                fields = json.loads(value.schema or "")["fields"]
                return {str(field["name"]): "" for field in fields}
            except (ValueError, TypeError, KeyError):
                return None
    return None


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)
