"""The table of the rounds, as readers other than Spark see it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.fs
from deltalake import DeltaTable

from millstream_harness.postgres import Postgres
from millstream_harness.s3 import S3Server
from millstream_harness.spark_loads import ICEBERG_TABLE, read_iceberg, read_table

COLUMNS = ("_partition", "_offset")
PARTITIONS = 2
PAUSE_S = 0.2
"""Pause between two reads: Spark needs the processors, too."""
Place = tuple[int, int]


class Table:
    """Run number n loads ``records`` records of each partition, from offset ``n * records`` on."""

    def __init__(
        self, format: str, path: str, catalog: Postgres | None, s3: S3Server | None, records: int
    ) -> None:
        self.format = format
        self.path = path
        self.catalog = catalog
        self.s3 = s3
        self.records = records

    @property
    def is_atomic(self) -> bool:
        """Whether readers see a run whole or not at all; plain Parquet in S3 does not promise that."""
        return self.format != "Parquet" or self.s3 is None

    def places(self) -> list[Place]:
        """Partition and offset of each row."""
        table = self._read()
        if table is None:
            return []
        return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))

    def half_seen(self, places: list[Place]) -> str:
        """Describe runs that are partly visible or visible twice; "" if there are none."""
        runs = Counter(offset // self.records for _, offset in places)
        whole = PARTITIONS * self.records
        return ", ".join(
            f"{rows} of {whole} rows of run {run}" for run, rows in sorted(runs.items()) if rows != whole
        )

    def wrong(self, runs: int) -> str:
        """Describe how the table differs from one with this many runs; "" if it does not."""
        found = Counter(self.places())
        wanted = {(part, offset) for part in range(PARTITIONS) for offset in range(runs * self.records)}
        said = {
            "missing": wanted - found.keys(),
            "too many": found.keys() - wanted,
            "twice": {place for place, count in found.items() if count > 1},
        }
        return "; ".join(
            f"{what}: {len(places)} rows, such as {min(places)}" for what, places in said.items() if places
        )

    def _read(self) -> pyarrow.Table | None:
        if self.s3 is None:
            return self._read_folder()
        s3 = self.s3
        if self.format == "Delta":
            path = self.path.replace("s3a://", "s3://")
            if not DeltaTable.is_deltatable(path, s3.delta_options):
                return None
            return DeltaTable(path, storage_options=s3.delta_options).to_pyarrow_table()
        if self.catalog is not None:
            return self._read_catalog(self.catalog, s3)
        store = s3.filesystem
        root = self.path.removeprefix("s3a://")
        files = store.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
        if not any("/load_run=" in file.path and file.is_file for file in files):
            return None
        return pyarrow.dataset.dataset(
            root, filesystem=store, format="parquet", partitioning="hive"
        ).to_table()

    def _read_folder(self) -> pyarrow.Table | None:
        path = Path(self.path)
        first = {
            "Parquet": "load_run=*",
            "Delta": "_delta_log/*.json",
            "Iceberg": f"{ICEBERG_TABLE.replace('.', '/')}/metadata/v*.metadata.json",
        }
        if not any(path.glob(first[self.format])):
            return None
        return read_table(self.format, path)

    @staticmethod
    def _read_catalog(catalog: Postgres, s3: S3Server) -> pyarrow.Table | None:
        if catalog.query("SELECT to_regclass('iceberg_tables')") == [""]:
            return None
        found = catalog.query("SELECT metadata_location FROM iceberg_tables")
        return read_iceberg(found[0], s3.iceberg_options) if found else None


class Reader:
    """Reads the table repeatedly while a run is loaded."""

    def __init__(self, table: Table) -> None:
        self.reads = 0
        self.half: set[str] = set()
        """Partly visible runs."""
        self.errors: Counter[str] = Counter()
        """Errors of reading the table."""
        self._table = table
        self._ended = threading.Event()

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _read(self) -> None:
        while not self._ended.wait(PAUSE_S):
            try:
                places: list[Any] = self._table.places()
            except Exception as error:  # report every error of a read
                self.errors[f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"] += 1
                continue
            self.reads += 1
            if self._table.is_atomic and (said := self._table.half_seen(places)):
                self.half.add(said)
