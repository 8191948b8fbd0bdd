"""A Delta table: a run is one transaction of Delta's, with txnAppId RUN and the run's offsets in its userMetadata.

An attempt first writes its rows as plain Parquet to `_staging/RUN/ATTEMPT` in the table's folder, which Delta
ignores, so that they can be checked; the transaction then takes them from there. Delta refuses a second transaction
with a txnAppId and txnVersion: one that begins later writes nothing, one at the same time fails. Mode Replace is the
same transaction with `replaceWhere`: it rewrites files that have rows of the run's records, and no others. Where files
are created without a store's help (Delta's log on a POSIX file system) a lock keeps drivers of one table apart; on S3,
where Delta supports one driver at a time, two drivers of one run would write one log entry over the other, each with
all rows of the run.
"""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream_jobs.files import Files, files_below, one_at_a_time
from millstream_jobs.outputs.objects import staging_path
from millstream_jobs.outputs.output import (
    OWNER,
    Committed,
    Mark,
    OutputError,
    added_columns,
    cannot_write,
    check_owner,
    check_partitions,
    decode_mark,
    encode_mark,
    in_files,
    nullable,
    replaced_rows,
)
from millstream_jobs.run import Output, Run

LOCK = "_delta_log/.millstream.lock"
CREATED_S = 30.0
"""How long a driver waits for the table that another one creates."""


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

    def find(self) -> Committed | None:
        if not self._exists():
            return None
        history = self._spark.sql(f"DESCRIBE HISTORY {self._table}")
        told = history.where(F.col("userMetadata").contains(self._run.name)).select("userMetadata").collect()
        marks = (decode_mark(row["userMetadata"], self._run) for row in told)
        mark = next((mark for mark in marks if mark is not None), None)
        if mark is None:
            return None
        self._files.delete(self._run_staging)
        return Committed(mark.attempt, mark.rows, mark.corrupt_records)

    def prepare(self, schema: StructType) -> None:
        run = self._run
        if not self._exists():
            self._create(schema)
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._table}").collect()[0]
        owner = (detail["properties"] or {}).get(OWNER, "")
        check_owner(
            run, owner, f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{OWNER}' = '{run.output.owner}')"
        )
        check_partitions(list(detail["partitionColumns"]), run)
        added_columns(self._spark.read.format("delta").load(self._path).schema, schema)

    def _exists(self) -> bool:
        """Whether the table has a first commit; another driver that creates it makes the folder before."""
        return any(name.endswith(".json") for name in self._files.list("_delta_log"))

    def _create(self, schema: StructType) -> None:
        output = self._run.output
        try:
            self._files.make_folder("")
            writer = self._spark.createDataFrame([], nullable(schema)).writeTo(self._table).using("delta")
            if output.owner:
                writer = writer.tableProperty(OWNER, output.owner)
            if output.partition_by:
                writer = writer.partitionedBy(*(F.col(f"`{name}`") for name in output.partition_by))
            writer.create()
        except OSError as error:
            raise cannot_write(self._run, error) from None
        except Exception:
            # Spark takes the folder that another driver has just made for a table: its first commit follows.
            if not self._appears():
                raise

    def _appears(self) -> bool:
        deadline = time.monotonic() + CREATED_S
        while not self._exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

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
    """One driver of the table at a time, where it lies on a file system."""
    return one_at_a_time(files_below(output), LOCK)
