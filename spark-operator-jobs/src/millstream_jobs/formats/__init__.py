"""How values become columns: a module for each family of formats.

`parse` returns the columns of a run's values. For a value that does not parse they are null, and `_corrupt_record` has
the value unchanged. A record without a value (a tombstone) is not corrupt: its columns are null.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from millstream_jobs.formats import avro, protobuf, text
from millstream_jobs.formats.parsed import CORRUPT, Parsed
from millstream_jobs.run import Run

__all__ = ["CORRUPT", "Parsed", "parse"]


def parse(source: DataFrame, run: Run) -> Parsed:
    """The columns of the values in the column ``value``; BadRun for an impossible schema."""
    match run.value.format:
        case "JSON":
            return text.json_objects(source, run.value)
        case "CSV":
            return text.csv_lines(source, run.value)
        case "Text":
            return text.strings(source)
        case "Avro" if run.value.schema_registry is not None:
            return avro.registered(source, run.value)
        case "Avro":
            return avro.given(source, run.value)
        case "Protobuf":
            return protobuf.messages(source, run.value)
        case "Binary":
            return text.as_they_are(source)
