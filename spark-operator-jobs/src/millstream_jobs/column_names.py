"""Names of columns: what a table's format allows, and how they are quoted in SQL.

Spark takes column names in any case for the same column, so no two may differ in their case only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from millstream_jobs.run import BadRun, Run

RESERVED = {
    "Parquet": frozenset({"load_run"}),
    "Delta": frozenset[str](),
    "Iceberg": frozenset(
        {
            "_topic_partition",  # ours: the record's `_partition`
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
"""Columns that a format, or a load's table in it, has itself."""
NOT_IN_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def quoted(name: str) -> str:
    """The column in SQL."""
    return "`" + name.replace("`", "``") + "`"


def check(run: Run, names: Iterable[str]) -> None:
    """BadRun for a column of the value that the table's format does not allow."""
    format = run.output.format
    where = "value.message" if run.value.format == "Protobuf" else "value.schema"
    for name in names:
        if name.lower() in RESERVED[format]:
            raise BadRun(
                f"{where}: {json.dumps(name)} is not allowed with output.format {format}, whose tables have a column"
                " of that name: take another name"
            )
        if format == "Delta" and NOT_IN_DELTA.search(name):
            raise BadRun(
                f"{where}: {json.dumps(name)} is not allowed with output.format Delta, whose columns have no spaces"
                " and none of , ; { } ( ) = in their names: take another name, or format Parquet or Iceberg"
            )
