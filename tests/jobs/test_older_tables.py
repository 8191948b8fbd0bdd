"""Tables that earlier versions of Spark, Delta and Iceberg wrote (`older_tables`): loads go on in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millstream_harness import older_tables
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.older_tables import FORMATS, RECORDS, WRITTEN, OlderLoads
from millstream_harness.spark_loads import PY4J, Loads

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
ARCHIVES = sorted(older_tables.FOLDER.glob("spark-*.tar.gz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
@pytest.mark.parametrize("format", FORMATS)
def test_loads_go_on_in_an_older_table(
    archive: Path,
    format: str,
    spark: SparkSession,
    start_broker: Callable[..., InProcessBroker],
    tmp_path: Path,
) -> None:
    loads = Loads(spark, start_broker().bootstrap, tmp_path)
    older_tables.publish(loads.bootstrap)
    older_tables.placed(archive, format, loads.path)
    older = OlderLoads(loads, format)
    before = loads.rows(format)
    assert [row["_offset"] for row in before] == list(range(WRITTEN))
    found = older.load("daily-2", 3, WRITTEN, "daily-1")
    assert (found.rows, found.corrupt_records) == (2, 1)
    assert loads.rows(format) == before, "a run that the table has is not loaded again"

    assert older.load("daily-3", WRITTEN, len(RECORDS), "daily-2").rows == 2
    rows = loads.rows(format)
    assert rows[:WRITTEN] == before
    assert [row["carrier"] for row in rows] == ["UA", "AA", "B6", None, "é", "DL", "WN"]
    assert [row["delay"] for row in rows] == [2, -1.5, None, None, 0, 7, 8]
    if format != "Parquet":
        assert older.load("once-more", 1, 6, None, mode="Replace").rows == 5
        again = loads.rows(format)
        assert again == rows
    if format == "Delta":
        protocol = DeltaTable(loads.path).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
