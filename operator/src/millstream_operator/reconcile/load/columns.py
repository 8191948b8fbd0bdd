"""Whether the columns that a BatchLoad names exist: checked before Spark starts, and while a schedule waits; pure.

Spark checks them again. Fields of a registry's schema or of a Protobuf message are known to its job only.
"""

from __future__ import annotations

import json

from ...models import BatchLoad
from ...models.conditions import Reason
from ...models.problem import Problem
from ...validation import ddl

DERIVED = ("date", "hour")
RECORD = ("_topic", "_partition", "_offset", "_timestamp", "_key")
HEADERS, CORRUPT = "_headers", "_corrupt_record"


def check_columns(load: BatchLoad) -> Problem | None:
    """The first column or type of the spec that does not exist; None if all do, as far as is known here."""
    value = load.spec.value
    try:
        columns = _columns(load)
    except ddl.WrongType as error:
        return _invalid(f"spec.value.schema: {error}")
    if columns is None:
        return None
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
