"""What a load makes of records: Spark against a real broker, tables as another reader (Arrow) sees them."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from millstream_harness.broker import BrokerProcess
from millstream_harness.spark import publish
from millstream_jobs import load as job
from millstream_jobs import table
from millstream_jobs.hadoop import HadoopFiles
from millstream_jobs.publish import PublishError, manifest_path
from millstream_jobs.run import BadRun, OffsetRange, Output, Result, Run, Value

# A Python thread has a connection of its own to Spark's JVM; py4j leaves closing it to the garbage collector.
PY4J = "ignore::pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings(PY4J)]

Load = Callable[..., Result]
SCHEMA = "carrier STRING, delay DOUBLE, time_hour TIMESTAMP"


def flight(carrier: str, delay: float | None, time_hour: str) -> bytes:
    return json.dumps({"carrier": carrier, "delay": delay, "time_hour": time_hour}).encode()


UA = flight("UA", 2, "2013-01-01T10:00:00Z")
AA = flight("AA", None, "2013-01-01T23:59:59Z")
DL = flight("DL", -1.5, "2013-01-02T00:00:00Z")


class Loads:
    """Runs over one topic of two partitions into one folder."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.path = folder / "lake"
        self.topic = f"loads-{uuid.uuid4().hex[:8]}"
        self.files = HadoopFiles(spark, str(self.path))

    def publish(self, *partitions: list[tuple[bytes | None, bytes | None]]) -> None:
        publish(self.bootstrap, self.topic, partitions)

    def run(
        self,
        *ranges: tuple[int, int, int],
        name: str = "run-0001",
        value: Value | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> Run:
        return Run(
            name=name,
            bootstrap=self.bootstrap,
            offsets=tuple(OffsetRange(self.topic, *numbers) for numbers in ranges),
            output=Output(str(self.path), partition_by=partition_by),
            value=value or Value(schema=SCHEMA),
        )

    def load(self, *ranges: tuple[int, int, int], **given: Any) -> Result:
        return job.load(self.spark, self.run(*ranges, **given), self.files)

    def rows(self) -> list[dict[str, Any]]:
        """The table, in the order of partitions and offsets."""
        rows: list[dict[str, Any]] = (
            pyarrow.dataset.dataset(self.path, partitioning="hive").to_table().to_pylist()
        )
        return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


@pytest.fixture
def loads(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> Loads:
    return Loads(spark, shared_broker.bootstrap, tmp_path)


def test_json_becomes_columns_by_date_and_the_record_is_kept(loads: Loads) -> None:
    before = dt.datetime.now(dt.UTC)
    loads.publish([(b"UA", UA), (b"AA", AA)], [(None, DL)])
    result = loads.load((0, 0, 2), (1, 0, 1), partition_by=("date",))
    assert result == Result("Succeeded", rows=3)
    first, second, third = loads.rows()
    assert (first["carrier"], first["delay"]) == ("UA", 2.0)
    assert first["time_hour"] == dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    assert [str(row["date"]) for row in (first, second, third)] == ["2013-01-01", "2013-01-01", "2013-01-02"]
    assert second["delay"] is None
    assert [(row["_topic"], row["_partition"], row["_offset"], row["_key"]) for row in (first, second, third)] == [
        (loads.topic, 0, 0, b"UA"), (loads.topic, 0, 1, b"AA"), (loads.topic, 1, 0, None),
    ]  # fmt: skip
    assert before - dt.timedelta(seconds=1) < first["_timestamp"] < dt.datetime.now(dt.UTC)
    assert first["_corrupt_record"] is None


def test_what_does_not_parse_is_counted_and_kept(loads: Loads) -> None:
    bad = [
        b"{",
        b"",
        b"no json",
        b"7",
        b"null",
        b'["UA"]',
        b'{"carrier": "UA", "delay": "late"}',
        b"\xff\xfe",
        b'{"carrier": "\xff"}',
    ]
    fine = [UA, b"{}", b'{"more": 1, "carrier": "AA"}', None]
    loads.publish([(None, value) for value in bad + fine])
    result = loads.load((0, 0, len(bad + fine)), partition_by=("date",))
    assert result.rows == len(bad + fine)
    assert result.corrupt_records == len(bad)
    rows = loads.rows()
    kept = [row["_corrupt_record"] for row in rows]
    assert kept[:7] == [value.decode() for value in bad[:7]]
    assert kept[7] == "\ufffd\ufffd"
    assert kept[8] == b'{"carrier": "\xff"}'.decode(errors="replace")
    assert kept[9:] == [None] * len(fine)
    assert rows[6]["carrier"] == "UA", "what did parse of it is there"
    today = {str(row["date"]) for row in rows[:9]}
    assert today <= {str(row["_timestamp"].date()) for row in rows}, "they are dated by their record"


def test_binary_is_taken_as_it_is(loads: Loads) -> None:
    loads.publish([(b"\x00\xff", b"\x00\x01\xff"), (None, None)])
    loads.load((0, 0, 2), value=Value("Binary"), partition_by=("date",))
    rows = loads.rows()
    assert [(row["_key"], row["value"]) for row in rows] == [(b"\x00\xff", b"\x00\x01\xff"), (None, None)]
    assert [str(row["date"]) for row in rows] == [str(row["_timestamp"].date()) for row in rows]


def test_ranges_are_read_exactly_and_runs_add_up(loads: Loads) -> None:
    loads.publish([(None, UA)] * 10, [(None, AA)] * 5)
    assert loads.load((0, 2, 7), (1, 3, 3), name="run-0001").rows == 5
    assert [row["_offset"] for row in loads.rows()] == [2, 3, 4, 5, 6]
    assert loads.load((0, 7, 10), (1, 3, 5), name="run-0002").rows == 5
    assert [(row["_partition"], row["_offset"]) for row in loads.rows()] == [
        *((0, offset) for offset in range(2, 10)), (1, 3), (1, 4),
    ]  # fmt: skip


def test_an_empty_range_succeeds_with_no_rows(loads: Loads) -> None:
    loads.publish([], [])
    assert loads.load((0, 0, 0), (1, 0, 0)) == Result("Succeeded", rows=0)
    assert not list(loads.path.rglob("*.parquet"))


def test_a_finished_run_reports_again_and_writes_nothing(
    loads: Loads, capsys: pytest.CaptureFixture[str]
) -> None:
    loads.publish([(None, UA), (None, b"?")])
    first = loads.load((0, 0, 2))
    before = {path: path.stat().st_mtime_ns for path in loads.path.rglob("*")}
    capsys.readouterr()
    assert loads.load((0, 0, 2)) == first == Result("Succeeded", rows=2, corrupt_records=1)
    assert {path: path.stat().st_mtime_ns for path in loads.path.rglob("*")} == before
    assert capsys.readouterr().out == "load: run-0001 has been published before; nothing to do\n"
    with pytest.raises(PublishError, match="take another name or another path"):
        loads.load((0, 0, 1))


def test_publishing_that_fails_half_way_goes_on(loads: Loads) -> None:
    """A file in the way of the second date's folder: what is renamed by then stays, the rest follows."""
    loads.publish([(None, UA), (None, DL)])
    loads.path.mkdir()
    (loads.path / "date=2013-01-02").write_text("in the way")
    with pytest.raises(OSError, match="date=2013-01-02"):
        loads.load((0, 0, 2), partition_by=("date",))
    assert (loads.path / manifest_path("run-0001")).exists()
    (loads.path / "date=2013-01-02").unlink()
    assert loads.load((0, 0, 2), partition_by=("date",)).rows == 2
    assert [row["carrier"] for row in loads.rows()] == ["UA", "DL"]


def test_a_topic_with_gaps_must_be_compacted(loads: Loads) -> None:
    """Offsets without a record: an error, unless the topic is compacted, which may drop records."""
    loads.publish([(b"k", UA), (b"k", AA), (b"k", DL)])
    run = loads.run((0, 0, 3))
    written = table.read(loads.spark, run).where("_offset != 1")
    with pytest.raises(
        job.LoadError, match=f"offsets {loads.topic}-0 0 to 3 hold 3 records, but 2 were read"
    ):
        job.check(loads.spark, run, written)
    admin = AdminClient({"bootstrap.servers": loads.bootstrap})
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, loads.topic, incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result(10)
    assert job.check(loads.spark, run, written) == (2, 0)
    with pytest.raises(job.LoadError, match="but 6 were read"):
        job.check(loads.spark, run, written.unionAll(written).unionAll(written))


@pytest.mark.parametrize(
    ("schema", "partition_by", "said"),
    [
        ("carrier STRNG", (), 'value.schema: "carrier STRNG" is not allowed: '),
        ("carrier STRING,", (), 'value.schema: "carrier STRING," is not allowed: '),
        ("a INT, A INT", (), 'value.schema: "A" is not allowed: it is there twice'),
        ("_offset INT", (), 'value.schema: "_offset" is not allowed'),
        ("INT", (), 'value.schema: "INT" is not allowed: it must be columns'),
        ("a INT", ("b",), r'output.partitionBy\[0\]: "b" is not allowed: one of date, a, _corrupt_record'),
        ("a INT", ("a", "a"), r'output.partitionBy\[1\]: "a" is not allowed: it is listed before'),
    ],
)
def test_columns_that_cannot_be_are_refused(
    loads: Loads, schema: str, partition_by: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BadRun, match=said) as caught:
        loads.load((0, 0, 1), value=Value(schema=schema), partition_by=partition_by)
    assert "\n" not in str(caught.value)
    assert not list(loads.path.rglob("part-*"))


def test_a_file_system_does_what_publishing_needs(loads: Loads) -> None:
    """HadoopFiles keeps the promises of publish.Files."""
    files = loads.files
    assert not files.exists("a/b")
    files.create("a/b", b"\x00\xff")
    with pytest.raises(FileExistsError):
        files.create("a/b", b"other")
    assert files.read("a/b") == b"\x00\xff"
    files.make_folder("c/date=2013-01-01")
    files.make_folder("c/date=2013-01-01")
    assert files.rename("a/b", "c/date=2013-01-01/b")
    assert not files.rename("a/b", "c/date=2013-01-01/d"), "no such source"
    files.create("a/b", b"other")
    assert not files.rename("a/b", "c/date=2013-01-01/b"), "the target is there"
    assert sorted(files.list("")) == ["a/b", "c/date=2013-01-01/b"]
    files.delete("c")
    files.delete("c")
    assert files.list("") == ["a/b"]
