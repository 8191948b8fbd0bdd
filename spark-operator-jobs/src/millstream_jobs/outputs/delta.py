"""A Delta table: a run is one transaction of Delta's, with txnAppId RUN and the run's offsets in its userMetadata.

An attempt first writes its rows as plain Parquet to `_staging/RUN/ATTEMPT` in the table's folder, which Delta
ignores, so that they can be checked; the transaction then takes them from there. Delta refuses a second transaction
with a txnAppId and txnVersion: one that begins later writes nothing, one at the same time fails. Mode Replace is the
same transaction with `replaceWhere`: it rewrites files that have rows of the run's records, and no others.

A table exists from its first commit on, `_delta_log/00000000000000000000.json`. Delta itself writes it for an empty
table in the staging folder; `Files.create` then puts it in place, in which one of several drivers succeeds, and the
others use that one's table. The files of a driver that dies before have no effect.

Delta's own commits need more than that. Where files are created without a store's help (its log on a POSIX file
system) a lock keeps drivers of one table apart; on S3, where Delta supports one driver at a time, two drivers of one
run would write one log entry over the other, each with all rows of the run.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream_jobs.files import Files, files_below, one_at_a_time
from millstream_jobs.outputs.objects import staging_path
from millstream_jobs.outputs.output import (
    OWNER,
    Committed,
    FenceMark,
    Mark,
    OutputError,
    State,
    TableId,
    added_columns,
    cannot_write,
    check_not_fenced,
    check_owner,
    check_partitions,
    creation,
    decode_mark,
    encode_mark,
    in_files,
    replaced_rows,
    state_of,
)
from millstream_jobs.run import OffsetRange, Output, Run

LOCK = "_delta_log/.millstream.lock"
FIRST = f"_delta_log/{0:020}.json"
COMMIT = re.compile(r"\d{20}\.(json|checkpoint\..*parquet)")
FIXED = {
    "delta.minReaderVersion": "1",
    "delta.minWriterVersion": "2",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointPolicy": "classic",
}
"""Properties of a new table, so that neither a session's defaults nor another release of Delta makes it unreadable for
readers that know only Delta's first protocol. A column whose type needs more, such as TIMESTAMP_NTZ, raises it."""
FEATURES = 3
"""The version of readers from which a table lists the features that they need."""
DELETION_VECTORS = "deletionVectors"
NOT_PORTABLE = (DELETION_VECTORS, "columnMapping", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck")
"""Table features with which deltalake's PyArrow readers refuse a table. It keeps them when their property is unset."""
OWN = ("_delta_log/", "_staging/", "_rewinds/", "_millstream/runs/", ".")
"""Files allowed in the folder before the table exists: killed drivers leave them, and Delta's readers ignore them."""


class DeltaOutput:
    def __init__(self, spark: SparkSession, run: Run, files: Files) -> None:
        self.attempt = uuid.uuid4().hex[:8]
        self._spark = spark
        self._run = run
        self._files = files
        self._path = run.output.path
        self._table = table_name(self._path)
        self._run_staging = staging_path(run.name)
        self._staging = f"{self._run_staging}/{self.attempt}"

    def warning(self) -> str:
        detail = self._detail()
        features = [name for name in NOT_PORTABLE if name in (detail["tableFeatures"] or ())]
        if detail["minReaderVersion"] < FEATURES or not features:
            return ""
        first = (
            f"ALTER TABLE {self._table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false'), then "
            if features[0] == DELETION_VECTORS
            else ""
        )
        return (
            f"{self._path} has the table {'feature' if len(features) == 1 else 'features'} {', '.join(features)}:"
            " deltalake's PyArrow readers, among others, cannot read it; loads do not need that:"
            f" {first}ALTER TABLE {self._table} DROP FEATURE {features[0]}"
        )

    def find(self) -> Committed | None:
        if not self._exists():
            return None
        for row in self._history(self._run.name):
            check_not_fenced(row["userMetadata"], self._run.name)
            mark = decode_mark(row["userMetadata"], self._run)
            if mark is not None:
                self._files.delete(self._run_staging)
                size = (row["operationMetrics"] or {}).get("numOutputBytes")
                return Committed(mark.attempt, mark.rows, mark.corrupt_records, size and int(size))
        return None

    def _history(self, run: str) -> list[Row]:
        """The commits whose metadata names a run."""
        history = self._spark.sql(f"DESCRIBE HISTORY {self._table}")
        named = history.where(F.col("userMetadata").contains(run))
        return list(named.select("userMetadata", "operationMetrics").collect())

    def identity(self) -> TableId:
        return TableId(str(self._detail()["id"]))

    def state(self, run: str) -> State:
        found = (state_of(row["userMetadata"], run) for row in self._history(run))
        return next((state for state in found if state), "")

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        """An empty transaction with the run's txnAppId."""
        with alone(self._run.output):
            if self.state(run):
                return
            schema = self._spark.read.format("delta").load(self._path).schema
            writer = self._spark.createDataFrame([], schema).write.format("delta").mode("append")
            writer = writer.option("txnAppId", run).option("txnVersion", "1")
            try:
                writer.option("userMetadata", encode_mark(FenceMark(run, by))).save(self._path)
            except Exception:
                if not self.state(run):  # the run itself commits, or another driver fences it
                    raise

    def _detail(self) -> Row:
        return self._spark.sql(f"DESCRIBE DETAIL {self._table}").collect()[0]

    def prepare(self, schema: StructType) -> None:
        run = self._run
        if not self._exists():
            self._create(schema)
        detail = self._detail()
        owner = (detail["properties"] or {}).get(OWNER, "")
        check_owner(
            run, owner, f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{OWNER}' = '{run.output.owner}')"
        )
        check_partitions(list(detail["partitionColumns"]), run)
        added_columns(self._spark.read.format("delta").load(self._path).schema, schema)

    def _exists(self) -> bool:
        """Whether the table has its first commit, or files that have replaced it since."""
        return any(COMMIT.fullmatch(name) for name in self._files.list("_delta_log"))

    def _create(self, schema: StructType) -> None:
        """Create the first commit, if no other driver has done so meanwhile."""
        try:
            self._files.make_folder("")
            self._check_free()
            first = self._first_commit(schema)
            with contextlib.suppress(FileExistsError):  # another driver's
                self._files.create(FIRST, first)
        except OSError as error:
            raise cannot_write(self._run, error) from None

    def _check_free(self) -> None:
        """OutputError if the folder has files that no load has left there."""
        others = (name for name in self._files.list("") if not name.startswith(OWN))
        if (name := min(others, default=None)) is not None:
            raise OutputError(
                f"output.path: {self._path} is no Delta table, but has files, such as {name}:"
                " take an empty folder or another path"
            )

    def _first_commit(self, schema: StructType) -> bytes:
        """Delta's commit for an empty table, which is created in a staging folder."""
        output = self._run.output
        aside = f"{self._run_staging}/{self.attempt}-table"
        table = table_name(f"{self._path}/{aside}")
        properties = {**FIXED, OWNER: output.owner} if output.owner else FIXED
        try:
            self._spark.sql(creation(table, "delta", schema, output.partition_by, properties))
            return self._files.read(f"{aside}/{FIRST}")
        finally:
            self._files.delete(aside)

    def stage(self, rows: DataFrame) -> DataFrame:
        folder = f"{self._path}/{self._staging}"
        rows.write.mode("append").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
            folder
        )
        return self._spark.read.schema(rows.schema).parquet(folder)

    def commit(self, rows: int, corrupt_records: int) -> Committed:
        run = self._run
        mark = Mark(run.name, run.offsets, self.attempt, rows, corrupt_records)
        with alone(run.output):
            committed = self.find()
            if committed is not None:
                return committed
            staged = self._spark.read.parquet(f"{self._path}/{self._staging}")
            writer = in_files(staged, run).write.format("delta").option("mergeSchema", "true")
            if run.output.mode == "Replace":
                writer = writer.mode("overwrite").option("replaceWhere", replaced_rows(run))
            else:
                writer = writer.mode("append")
            writer = writer.option("txnAppId", run.name).option("txnVersion", "1")
            writer.option("userMetadata", encode_mark(mark)).save(self._path)
            committed = self.find()
        if committed is None:
            raise OutputError(
                f"output.path: {self._path} has a transaction of {run.name}, but its history no longer says which:"
                " take another name"
            )
        return committed

    def discard(self) -> None:
        self._files.delete(self._staging)


def table_name(path: str) -> str:
    """The table in SQL."""
    return "delta.`" + path.replace("`", "``") + "`"


def alone(output: Output) -> AbstractContextManager[None]:
    """Allows one driver of the table at a time, if it is on a file system."""
    return one_at_a_time(files_below(output), LOCK)
