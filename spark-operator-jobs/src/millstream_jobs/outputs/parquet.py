"""Plain Parquet. Under the output path:

    load_run=RUN/date=…/part-….parquet   the table: a run is a value of its first partition column
    load_run=RUN/_millstream.json        the run's manifest (on S3: _millstream/RUN.json)
    _millstream/runs/NUMBER.json         the claims of a load's runs (`claims`)
    _millstream/table.json               the table's owner, columns and partitions
    _staging/RUN/ATTEMPT/…               an attempt's files; readers ignore names that begin with "_"

On a POSIX file system an attempt writes files and manifest to its own folder, and commits by renaming that
folder to `load_run=RUN`. The rename is one step, and fails if the folder exists: of two drivers one commits, and a
reader that lists the table sees the whole run or nothing of it.

S3 renames no folders. There the commit is the creation of the manifest, after which objects are moved one by one
(`objects`): a reader that lists the table meanwhile sees part of the run.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millstream_jobs.column_names import quoted
from millstream_jobs.files import Files, PosixFiles
from millstream_jobs.outputs import objects
from millstream_jobs.outputs.objects import Manifest, final_folder, staging_path
from millstream_jobs.outputs.output import (
    Committed,
    OutputError,
    State,
    TableId,
    added_columns,
    cannot_write,
    check_owner,
    check_partitions,
    in_files,
    is_data,
    nullable,
)
from millstream_jobs.run import OffsetRange, Run

TABLE = "_millstream/table.json"
MANIFEST = "_millstream.json"
RUN_COLUMN = "load_run"
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of null, and so of the empty string: one folder for several values would be written twice."""


class Table(Struct, frozen=True, rename="camel"):
    """The contents of table.json; ``columns`` is Spark's JSON of the schema."""

    owner: str
    partition_by: tuple[str, ...]
    columns: dict[str, Any]


class ParquetOutput:
    """Shared by file systems and S3, which differ in the commit."""

    def __init__(self, spark: SparkSession, run: Run, files: Files) -> None:
        self.attempt = uuid.uuid4().hex[:8]
        self._spark = spark
        self._run = run
        self._files = files
        self._staging = f"{staging_path(run.name)}/{self.attempt}"
        self._final = final_folder(run.name)
        self._spelling: dict[str, str] = {}

    def warning(self) -> str:
        return ""

    def prepare(self, schema: StructType) -> None:
        run, files = self._run, self._files
        table = Table(run.output.owner, run.output.partition_by, nullable(schema).jsonValue())
        try:
            if not files.exists(TABLE):
                if files.exists("_millstream"):
                    raise OutputError(
                        f"output.path: {run.output.path} has the layout of an earlier version: take another path"
                    )
                try:
                    files.create(TABLE, _encode(table))
                    return
                except FileExistsError:
                    pass  # another driver has just created it
            there = msgspec.json.decode(files.read(TABLE), type=Table)
        except msgspec.DecodeError as error:
            raise OutputError(f"output.path: {TABLE} there is not a table's: {error}") from None
        except OSError as error:
            raise cannot_write(run, error) from None
        check_owner(run, there.owner, f"change owner in {TABLE} there")
        check_partitions(list(there.partition_by), run)
        columns = StructType.fromJson(there.columns)
        added = added_columns(columns, schema)
        self._spelling = {field.name.lower(): field.name for field in columns}
        if added:
            spelt = StructType(
                [StructField(self._spelt(field.name), field.dataType, True) for field in schema]
            )
            files.replace(
                TABLE, _encode(msgspec.structs.replace(table, owner=there.owner, columns=spelt.jsonValue()))
            )

    def _spelt(self, name: str) -> str:
        """A column's name as the table spells it: readers of plain files take Carrier and carrier for two columns."""
        return self._spelling.get(name.lower(), name)

    def stage(self, rows: DataFrame) -> DataFrame:
        folder = f"{self._run.output.path}/{self._staging}"
        rows = rows.toDF(*map(self._spelt, rows.columns))
        for name in self._run.output.partition_by:
            if isinstance(rows.schema[name].dataType, StringType):
                value = F.col(quoted(name))
                rows = rows.withColumn(name, F.when(~value.isin("", NULL_FOLDER), value))
        writer = in_files(rows, self._run).write.mode("append").partitionBy(*self._run.output.partition_by)
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(folder)
        return self._spark.read.schema(rows.schema).parquet(folder)

    def discard(self) -> None:
        self._files.delete(self._staging)

    def identity(self) -> TableId:
        """What there is to know is in the folder."""
        return TableId()

    def state(self, run: str) -> State:
        manifest = objects.read_manifest(self._files, self._manifest_path(run))
        if manifest is None:
            return ""
        return "fenced" if manifest.fenced_by else "committed"

    def _manifest_path(self, run: str) -> str:
        raise NotImplementedError

    def _committed(self, manifest: Manifest) -> Committed:
        size = sum(size for name, size in self._files.sizes(self._final).items() if is_data(name))
        return Committed(manifest.attempt, manifest.rows, manifest.corrupt_records, size)


class FolderOutput(ParquetOutput):
    def __init__(self, spark: SparkSession, run: Run, files: PosixFiles) -> None:
        super().__init__(spark, run, files)
        self._posix = files

    def find(self) -> Committed | None:
        manifest = objects.manifest_of(self._files, self._manifest_path(self._run.name), self._run)
        if manifest is None:
            return None
        self._files.delete(staging_path(self._run.name))
        return self._committed(manifest)

    def commit(self, rows: int, corrupt_records: int) -> Committed:
        run = self._run
        manifest = Manifest(run.name, self.attempt, run.offsets, rows, corrupt_records)
        self._files.create(f"{self._staging}/{MANIFEST}", objects.encode(manifest))
        self._posix.rename_folder(self._staging, self._final)
        committed = self.find()
        assert committed is not None
        return committed

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        """A folder with a manifest only, renamed as that of the run would be."""
        folder = f"{staging_path(run)}/fence-{self.attempt}"
        manifest = objects.fence_of(run, self.attempt, by)
        self._files.create(f"{folder}/{MANIFEST}", objects.encode(manifest))
        self._posix.rename_folder(folder, final_folder(run))
        self._files.delete(staging_path(run))  # a driver that still writes there fails

    def _manifest_path(self, run: str) -> str:
        return f"{final_folder(run)}/{MANIFEST}"


class ObjectsOutput(ParquetOutput):
    def prepare(self, schema: StructType) -> None:
        super().prepare(schema)
        probe = f"_millstream/probe-{self.attempt}"
        self._files.replace(probe, b"")
        try:
            self._files.create(probe, b"")
        except FileExistsError:
            return
        finally:
            self._files.delete(probe)
        raise OutputError(
            f"output.path: {self._run.output.path}: the store ignores If-None-Match, so two drivers could both"
            " commit: take format Iceberg with a catalog of type JDBC or REST"
        )

    def find(self) -> Committed | None:
        """Also moves objects that a killed driver has not moved."""
        manifest = objects.find_manifest(self._files, self._run)
        if manifest is None:
            return None
        objects.finish(self._files, manifest)
        return self._committed(manifest)

    def commit(self, rows: int, corrupt_records: int) -> Committed:
        manifest = objects.commit(self._files, self._run, self.attempt, rows, corrupt_records)
        objects.finish(self._files, manifest)
        return self._committed(manifest)

    def fence(self, run: str, offsets: tuple[OffsetRange, ...], by: str) -> None:
        objects.fence(self._files, run, self.attempt, by)

    def _manifest_path(self, run: str) -> str:
        return objects.manifest_path(run)


def _encode(table: Table) -> bytes:
    return json.dumps(msgspec.to_builtins(table), indent=1).encode()
