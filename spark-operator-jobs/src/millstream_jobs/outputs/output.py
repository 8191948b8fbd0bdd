"""The interface of outputs, and code that the formats share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timezone
from typing import Literal, Protocol

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from millstream_jobs.column_names import quoted
from millstream_jobs.failures import JobError
from millstream_jobs.run import OffsetRange, Run

OWNER = "millstream.owner"
"""The property of a Delta or Iceberg table that names the load which owns it."""


class OutputError(JobError):
    """The output refuses this run; the message is one line for the user."""

    reason = "OutputNotWritable"


class NotOurs(OutputError):
    """The table belongs to another load."""

    reason = "ConflictingTable"


class Misfit(OutputError):
    """The table has other columns or partitions than the run."""

    reason = "InvalidSpec"


class Fenced(OutputError):
    """A later run has taken the run's name in the table: it can never commit, and has not."""

    reason = "Fenced"
    final = True

    def __init__(self, run: str, by: str) -> None:
        super().__init__(
            f"output.path: {run} was fenced by {by}, a later run of the load: nothing was published, and never will be"
        )


State = Literal["committed", "fenced", ""]
"""A run in the table: its rows, or that it can never commit; "" while neither is decided."""


class TableId(Struct, frozen=True, array_like=True):
    """Which table it is. ``version`` grows with each commit; 0 if the table's files tell all there is to know."""

    id: str = ""
    version: int = 0


class Committed(Struct, frozen=True):
    """A run in the table, and its successful attempt.

    ``bytes_`` is the size of the written files, None if the table's history no longer has it.
    """

    attempt: str
    rows: int
    corrupt_records: int
    bytes_: int | None


class Output(Protocol):
    """Writes one run into its table. `find` first; then `prepare`, `stage` and `commit`, or `discard`."""

    attempt: str
    """Names this attempt among all those of the run."""

    def find(self) -> Committed | None:
        """The run's commit, by any driver. Fenced if it can never commit; OutputError if a run of this name had other
        offsets."""
        ...

    def identity(self) -> TableId:
        """The table's identity, once it is prepared."""
        ...

    def warning(self) -> str:
        """Why some readers cannot read the table, which exists, and the remedy; "" if nothing is known."""
        ...

    def state(self, run: str) -> State:
        """Whether a run of any name has committed, or can never commit."""
        ...

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        """Take the name of a run in the table, unless it has committed; ``offsets`` are its own, if known."""
        ...

    def prepare(self, schema: StructType) -> None:
        """Create the table, or check that it accepts these columns. OutputError if it does not."""
        ...

    def stage(self, rows: DataFrame) -> DataFrame:
        """Write rows where no reader of the table sees them; returns the written rows."""
        ...

    def commit(self, rows: int, corrupt_records: int) -> Committed:
        """Publish the staged rows; returns the run's commit, which may be another attempt's."""
        ...

    def discard(self) -> None:
        """Remove staged rows."""
        ...


def is_data(file: str) -> bool:
    """Whether readers of a folder treat a file as one with rows."""
    return not file.rpartition("/")[2].startswith(("_", "."))


class Mark(Struct, frozen=True, forbid_unknown_fields=True):
    """A run in a table's own history: its name and all its offsets."""

    run: str
    offsets: tuple[OffsetRange, ...]
    attempt: str = ""
    rows: int = 0
    corrupt_records: int = 0


class FenceMark(Struct, frozen=True, forbid_unknown_fields=True):
    """A fenced run in a table's own history."""

    run: str
    fenced_by: str


def encode_mark(mark: Mark | FenceMark) -> str:
    return msgspec.json.encode(mark).decode()


def decode_mark(text: str | None, run: Run) -> Mark | None:
    """The mark if it is this run's; OutputError if the run of this name had other offsets."""
    try:
        mark = msgspec.json.decode(text or "", type=Mark)
    except msgspec.DecodeError:
        return None  # another program's commit
    if mark.run != run.name:
        return None
    check_offsets(mark.offsets, run)
    return mark


def state_of(text: str | None, run: str) -> State:
    """What a mark says about a run."""
    for kind, state in _STATES:
        try:
            mark = msgspec.json.decode(text or "", type=kind)
        except msgspec.DecodeError:
            continue
        return state if mark.run == run else ""
    return ""


_STATES: tuple[tuple[type[Mark] | type[FenceMark], State], ...] = ((Mark, "committed"), (FenceMark, "fenced"))


def check_not_fenced(text: str | None, run: str) -> None:
    """Fenced if this is the mark of the run's fence."""
    if state_of(text, run) == "fenced":
        raise Fenced(run, msgspec.json.decode(text or "", type=FenceMark).fenced_by)


def check_offsets(published: tuple[OffsetRange, ...], run: Run) -> None:
    if published == run.offsets:
        return
    pairs = zip(published, run.offsets, strict=False)
    differ = next((f"{one}, here {other}" for one, other in pairs if one != other), None)
    raise OutputError(
        f"output.path: a run named {run.name} is published there with other offsets"
        f" ({differ or f'{len(published)} ranges, here {len(run.offsets)}'}): take another name or another path"
    )


def check_owner(run: Run, owner: str, hand_over: str) -> None:
    """NotOurs if the table belongs to another load; ``hand_over`` says how to give it to this one."""
    wanted = run.output.owner
    if wanted and owner != wanted:
        whose = f"belongs to the load {owner}" if owner else "was not made by a load"
        raise NotOurs(
            f"output.path: {run.output.path} {whose}: choose another path, or {hand_over} to give it to {wanted}"
        )


def added_columns(existing: StructType, wanted: StructType) -> list[StructField]:
    """The columns to add to a table; Misfit, with the column's name, for any other difference."""
    there = {field.name.lower(): field for field in existing}
    given = {field.name.lower(): field for field in wanted}
    for name, field in there.items():
        if name not in given:
            raise Misfit(
                f"value.schema: column {field.name} of the table is missing: columns can be added, not removed;"
                " keep it in the schema, or take another path"
            )
        is_there, is_given = field.dataType.simpleString(), given[name].dataType.simpleString()
        if is_there != is_given:
            raise Misfit(
                f"value.schema: column {field.name} is {is_there} in the table, here {is_given}:"
                " a column keeps its type; take another name"
            )
    return [field for name, field in given.items() if name not in there]


def check_partitions(existing: list[str], run: Run) -> None:
    wanted = list(run.output.partition_by)
    if existing != wanted:
        raise Misfit(
            f"output.partitionBy: {json.dumps(wanted)} is not allowed: the table is partitioned by"
            f" {json.dumps(existing)}: take these, or another path"
        )


def replaced_rows(run: Run, partition: str = "_partition") -> str:
    """SQL condition for the table's rows of the run's records; ``partition``: that column's name in the table."""
    ranges = " OR ".join(
        f"(_topic = '{part.topic}' AND {partition} = {part.partition}"
        f" AND _offset >= {part.first} AND _offset < {part.until})"
        for part in run.offsets
        if part.records
    )
    if run.from_timestamp is None:
        return f"({ranges})"
    begin = run.from_timestamp.astimezone(timezone.utc).isoformat(" ")
    return f"({ranges}) AND (_timestamp >= TIMESTAMP '{begin}' OR _timestamp IS NULL)"


def creation(
    table: str, format: str, schema: StructType, partition_by: Iterable[str], properties: Mapping[str, str]
) -> str:
    """SQL that creates an empty table; the writer's own `partitionedBy` cannot read every name of a column."""
    parts = [f"CREATE TABLE {table} ({nullable(schema).toDDL()}) USING {format}"]
    if columns := ", ".join(map(quoted, partition_by)):
        parts.append(f"PARTITIONED BY ({columns})")
    if properties:
        pairs = (f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
        parts.append(f"TBLPROPERTIES ({', '.join(pairs)})")
    return " ".join(parts)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cannot_write(run: Run, error: OSError) -> OutputError:
    return OutputError(f"output.path: {run.output.path} cannot be written to: {error.strerror or error}")


def nullable(schema: StructType) -> StructType:
    """The same columns, each of which may be null."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema])


def in_files(rows: DataFrame, run: Run) -> DataFrame:
    """Rows distributed so that files have their target size, and few files have a partition's rows."""
    partition_by = run.output.partition_by
    return (
        rows.hint("rebalance", *map(quoted, partition_by))
        if partition_by or run.output.target_file_size
        else rows
    )
