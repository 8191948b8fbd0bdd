"""An Iceberg table: a run is one snapshot, staged first and published by its wap.id ("write, audit, publish").

An attempt appends its rows to a snapshot that is no part of the table's history and that carries the wap.id: the
run's name and offsets. After the check, Iceberg's procedure `cherrypick_snapshot` makes it part of the table
(fast-forward, or on top of others' commits meanwhile) and refuses a wap.id that the table has already, in
the same optimistic commit. So a run is found in the history by its wap.id, and of two drivers one publishes.

Mode Replace stages two snapshots on the attempt's own branch: one without the rows of the run's records, and one
with the new rows, whose property MARK names the run. `fast_forward` moves the table to both in one commit, and
refuses if the table has changed meanwhile: then both are created once more, on top of the new state.

The column `_partition` is stored as `_topic_partition`, because Iceberg reserves that name.

A run is known as long as its snapshot is in the history: expire snapshots later than the last retry of a run. As for
every Iceberg writer, `expire_snapshots` and `remove_orphan_files` remove what a killed attempt has staged.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, IntegerType, ShortType, StructField, StructType

from millstream_jobs.failures import root_cause
from millstream_jobs.files import Files, PosixFiles, files_below, one_at_a_time
from millstream_jobs.outputs.output import (
    OWNER,
    Committed,
    Fenced,
    Mark,
    OutputError,
    State,
    TableId,
    added_columns,
    cannot_write,
    check_owner,
    check_partitions,
    creation,
    decode_mark,
    encode_mark,
    in_files,
    nullable,
    replaced_rows,
    state_of,
)
from millstream_jobs.outputs.session import catalog_name
from millstream_jobs.run import OffsetRange, Output, Run

PARTITIONS = "millstream.partition-by"
FIXED = {"format-version": "2", "write.delete.mode": "copy-on-write"}
"""Properties of a new table: other readers must know its format, and its rows without merging files of deletions."""
ATTEMPT = "millstream-attempt"
MARK = "millstream-run"
FENCE = "fence by "
"""Begins the attempt of a snapshot without rows that fences a run."""
COMMITS = 5
"""How often to repeat a Replace because others committed in between."""
CORRUPT = "_corrupt_record"
STORED = {"_partition": "_topic_partition"}
"""Names of the record's columns in the table."""


class IcebergOutput:
    def __init__(self, spark: SparkSession, run: Run, files: Files) -> None:
        self.attempt = uuid.uuid4().hex[:8]
        self._spark = spark
        self._run = run
        self._files = files
        self._branch = f"millstream_{self.attempt}"
        self._catalog = catalog_name(run.output)
        self._table = f"`{self._catalog}`.{quoted(run.output.table)}"
        self._partition_by = [STORED.get(name, name) for name in run.output.partition_by]
        self._wap_id = encode_mark(Mark(run.name, run.offsets))

    def warning(self) -> str:
        return ""

    def find(self) -> Committed | None:
        if not self._exists():
            return None
        found = self._published(self._run.name)
        snapshot = next((row for row in found if decode_mark(row["wap_id"], self._run) is not None), None)
        if snapshot is None:
            return None
        if (by := self._attempt_of(snapshot)).startswith(FENCE):
            raise Fenced(self._run.name, by.removeprefix(FENCE))
        rows = int(snapshot["summary"].get("added-records", "0"))
        return Committed(self._attempt_of(snapshot), rows, self._count_corrupt(snapshot), _bytes_of(snapshot))

    def _published(self, run: str) -> list[Row]:
        """The snapshots in the table's history whose wap.id names a run."""
        history = self._metadata("history").where("is_current_ancestor").select("snapshot_id")
        return list(self._named(run).join(history, "snapshot_id", "left_semi").collect())

    def _named(self, run: str) -> DataFrame:
        """The snapshots whose wap.id names a run, staged ones included."""
        summary = F.col("summary")
        wap_id = F.coalesce(*(summary.getItem(key) for key in ("published-wap-id", "wap.id", MARK)))
        named = self._metadata("snapshots").where(wap_id.contains(run))
        return named.select("snapshot_id", "parent_id", "summary", wap_id.alias("wap_id"))

    def _loaded(self) -> Any:
        """The table as Iceberg's own object."""
        jvm: Any = self._spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._spark._jsparkSession, self._table
        )

    def _properties(self) -> dict[str, str]:
        """SHOW TBLPROPERTIES shows no value that Spark takes for a secret, such as one with "url" in it: "hourly"."""
        return dict(self._loaded().properties())

    def identity(self) -> TableId:
        """A catalog may be restored without the files: so the number of the last commit tells more than the id."""
        table = self._loaded()
        return TableId(str(table.uuid().toString()), int(table.operations().current().lastSequenceNumber()))

    def state(self, run: str) -> State:
        for snapshot in self._published(run):
            if state_of(snapshot["wap_id"], run):
                return "fenced" if self._attempt_of(snapshot).startswith(FENCE) else "committed"
        return ""

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        """Publish an empty snapshot with the run's wap.id, which is that of its offsets."""
        if offsets:
            wap_ids = {encode_mark(Mark(run, offsets))}
        else:
            wap_ids = {row["wap_id"] for row in self._named(run).collect() if state_of(row["wap_id"], run)}
        for wap_id in sorted(wap_ids):
            with alone(self._run.output):
                if self.state(run):
                    return
                attempt = f"{FENCE}{by}"
                empty = self._spark.createDataFrame([], self._spark.table(self._table).schema)
                self._stage_by_wap_id(empty, wap_id, attempt)
                staged = self._staged(attempt, wap_id)
                try:
                    self._publish(staged)
                except Exception:
                    if not self.state(run):  # the run itself commits, or another driver fences it
                        raise

    def prepare(self, schema: StructType) -> None:
        try:
            if isinstance(self._files, PosixFiles):
                self._files.make_folder("")
            with alone(self._run.output):
                self._prepare(nullable(_as_stored(schema)))
        except OSError as error:
            raise cannot_write(self._run, error) from None

    def _prepare(self, schema: StructType) -> None:
        run, output = self._run, self._run.output
        if not self._exists():
            self._create(schema)
        properties = self._properties()
        check_owner(
            run,
            properties.get(OWNER, ""),
            f"ALTER TABLE {output.table} SET TBLPROPERTIES ('{OWNER}' = '{output.owner}')",
        )
        if properties.get(PARTITIONS, (joined := ",".join(self._partition_by))) != joined:
            stored = {there: name for name, there in STORED.items()}
            check_partitions(
                [stored.get(name, name) for name in properties[PARTITIONS].split(",") if name], run
            )
        if properties.get("write.wap.enabled") != "true":
            self._spark.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
        for column in added_columns(self._spark.table(self._table).schema, schema):
            self._spark.sql(f"ALTER TABLE {self._table} ADD COLUMNS ({StructType([column]).toDDL()})")

    def _create(self, schema: StructType) -> None:
        output = self._run.output
        namespace = self._table.rpartition(".")[0]
        properties = FIXED | {"write.wap.enabled": "true", PARTITIONS: ",".join(self._partition_by)}
        if output.owner:
            properties[OWNER] = output.owner
        if output.target_file_size:
            properties["write.target-file-size-bytes"] = str(output.target_file_size)
        try:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            self._spark.sql(creation(self._table, "iceberg", schema, self._partition_by, properties))
        except Exception:
            if not self._exists():  # or another driver has just created it, in a catalog without our lock
                raise

    def stage(self, rows: DataFrame) -> DataFrame:
        rows = in_files(rows, self._run).withColumnsRenamed(STORED)
        with alone(self._run.output):
            if self._run.output.mode == "Replace":
                self._stage_on_branch(rows)
            else:
                self._stage_by_wap_id(rows, self._wap_id, self.attempt)
        staged = self._staged(self.attempt)
        return self._rows_of(staged).withColumnsRenamed({there: name for name, there in STORED.items()})

    def commit(self, rows: int, corrupt_records: int) -> Committed:
        with alone(self._run.output):
            committed = self.find()
            if committed is not None:
                return committed
            staged = self._staged(self.attempt)
            own = Committed(self.attempt, rows, corrupt_records, _bytes_of(staged))
            if self._run.output.mode == "Replace":
                return self._fast_forward(own)
            self._publish(staged)
        return own

    def _publish(self, staged: Row) -> None:
        self._spark.sql(
            f"CALL `{self._catalog}`.system.cherrypick_snapshot"
            f"('{self._run.output.table}', {staged['snapshot_id']})"
        )

    def discard(self) -> None:
        """Do nothing: the next expire_snapshots and remove_orphan_files remove files that no branch names."""
        if self._run.output.mode == "Replace":
            with alone(self._run.output):
                if self._exists():
                    self._drop_branch()

    def _stage_by_wap_id(self, rows: DataFrame, wap_id: str, attempt: str) -> None:
        self._spark.conf.set("spark.wap.id", wap_id)
        try:
            rows.writeTo(self._table).option(f"snapshot-property.{ATTEMPT}", attempt).append()
        finally:
            self._spark.conf.unset("spark.wap.id")

    def _stage_on_branch(self, rows: DataFrame) -> None:
        """Stage the table without the replaced rows, then with the new ones; its readers see neither."""
        branch = f"{self._table}.`branch_{self._branch}`"
        # The days are for a driver that dies: expire_snapshots then removes its branch.
        self._spark.sql(f"ALTER TABLE {self._table} CREATE OR REPLACE BRANCH `{self._branch}` RETAIN 7 DAYS")
        self._spark.sql(f"DELETE FROM {branch} WHERE {replaced_rows(self._run, STORED['_partition'])}")
        writer = rows.writeTo(branch).option(f"snapshot-property.{ATTEMPT}", self.attempt)
        writer.option(f"snapshot-property.{MARK}", self._wap_id).append()

    def _fast_forward(self, own: Committed, again: int = COMMITS) -> Committed:
        try:
            self._spark.sql(
                f"CALL `{self._catalog}`.system.fast_forward"
                f"('{self._run.output.table}', 'main', '{self._branch}')"
            )
        except Exception:
            committed = self.find()
            if committed is not None:
                return committed
            if not again:
                raise
            staged = self._staged(self.attempt)
            self._stage_on_branch(self._rows_of(staged))
            return self._fast_forward(own, again - 1)
        self._drop_branch()
        return own

    def _drop_branch(self) -> None:
        self._spark.sql(f"ALTER TABLE {self._table} DROP BRANCH IF EXISTS `{self._branch}`")

    def _exists(self) -> bool:
        """OutputError if the catalog does not respond."""
        try:
            return self._spark.catalog.tableExists(self._table)
        except Exception as error:
            catalog = self._run.output.catalog
            if catalog.type == "Hadoop":
                raise
            where = catalog.uri.partition("?")[0]  # a password may follow
            raise OutputError(
                f"output.catalog: the {catalog.type} catalog {where} cannot be used: {root_cause(error)}:"
                " check uri, that the catalog runs, and the Secret that credentialsSecret names"
            ) from None

    def _metadata(self, name: str) -> DataFrame:
        return self._spark.table(f"{self._table}.{name}")

    def _staged(self, attempt: str, wap_id: str = "") -> Row:
        """The snapshot that an attempt has staged, the last one when there are several."""
        summary = F.col("summary")
        own = self._metadata("snapshots").where(summary.getItem(ATTEMPT) == attempt)
        if wap_id:
            own = own.where(summary.getItem("wap.id") == wap_id)
        for row in own.orderBy(F.col("committed_at").desc()).limit(1).collect():
            return row
        raise OutputError(f"output.table: {self._run.output.table}: what was staged was expired meanwhile")

    def _attempt_of(self, snapshot: Row) -> str:
        """The attempt that staged a snapshot; "" if the snapshot it was cherry-picked from has expired."""
        if source := snapshot["summary"].get("source-snapshot-id"):
            staged = self._metadata("snapshots").where(F.col("snapshot_id") == int(source)).collect()
            return staged[0]["summary"].get(ATTEMPT, "") if staged else ""
        attempt: str = snapshot["summary"].get(ATTEMPT, "")
        return attempt

    def _rows_of(self, snapshot: Row) -> DataFrame:
        """The rows that a snapshot added to its parent."""
        reader = self._spark.read
        if snapshot["parent_id"] is None:
            return reader.option("versionAsOf", snapshot["snapshot_id"]).table(self._table)
        reader = reader.option("start-snapshot-id", snapshot["parent_id"])
        return reader.option("end-snapshot-id", snapshot["snapshot_id"]).table(self._table)

    def _count_corrupt(self, snapshot: Row) -> int:
        rows = self._rows_of(snapshot)
        return rows.where(F.col(CORRUPT).isNotNull()).count() if CORRUPT in rows.columns else 0


def _bytes_of(snapshot: Row) -> int:
    """The size of the files that a snapshot added."""
    return int(snapshot["summary"].get("added-files-size", "0"))


def quoted(table: str) -> str:
    """NAMESPACE.TABLE in SQL."""
    return ".".join(f"`{name}`" for name in table.split("."))


def alone(output: Output) -> AbstractContextManager[None]:
    """A Hadoop catalog commits by a rename that may replace another's: drivers take turns, even to stage."""
    lock = f".{output.table}.lock"
    return one_at_a_time(files_below(output), lock) if output.catalog.type == "Hadoop" else nullcontext()


def _as_stored(schema: StructType) -> StructType:
    """The columns as stored in a table: Iceberg has no integers of 8 and 16 bits."""
    return StructType(
        [
            StructField(
                STORED.get(field.name, field.name),
                IntegerType() if isinstance(field.dataType, (ByteType, ShortType)) else field.dataType,
            )
            for field in schema
        ]
    )
