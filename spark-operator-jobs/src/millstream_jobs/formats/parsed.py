"""Values as columns, and reserved column names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from millstream_jobs.run import BadRun

CORRUPT = "_corrupt_record"
RECORD = ("_topic", "_partition", "_offset", "_timestamp", "_key")
HEADERS = "_headers"


@dataclass(frozen=True, slots=True)
class Parsed:
    """``columns`` are expressions over ``source``, one for each field of ``schema``.

    ``corrupt`` is the value of a record that did not parse, null of others; None for a format in which all do.
    """

    source: DataFrame
    schema: StructType
    columns: dict[str, Column]
    corrupt: Column | None


def check_names(names: Iterable[str], where: str) -> None:
    """BadRun for a column name that occurs twice, or that is one of the record's own."""
    own = (*RECORD, HEADERS, CORRUPT)
    taken = {name.lower() for name in own}
    for name in names:
        if name.lower() in taken:
            raise BadRun(
                f"{where}: {json.dumps(name)} is not allowed:"
                f" it is there twice, or one of the record's own: {', '.join(own)}"
            )
        taken.add(name.lower())
