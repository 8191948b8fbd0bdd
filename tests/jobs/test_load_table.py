"""Loads of records: Spark reads a real broker, and Arrow reads the tables."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready_after
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import PY4J, Loads, without_bytes
from millstream_jobs import completeness, table
from millstream_jobs import load as job
from millstream_jobs.outputs import OutputError
from millstream_jobs.run import BadRun, Result
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
]


def flight(carrier: str, delay: float | None, time_hour: str) -> bytes:
    return json.dumps({"carrier": carrier, "delay": delay, "time_hour": time_hour}).encode()


UA = flight("UA", 2, "2013-01-01T10:00:00Z")
AA = flight("AA", None, "2013-01-01T23:59:59Z")
DL = flight("DL", -1.5, "2013-01-02T00:00:00Z")


def test_json_becomes_columns_by_date_and_the_record_is_kept(loads: Loads) -> None:
    before = dt.datetime.now(dt.UTC)
    loads.publish([(b"UA", UA), (b"AA", AA)], [(None, DL)])
    result = loads.load((0, 0, 2), (1, 0, 1), partition_by=("date",))
    assert without_bytes(result) == Result("Succeeded", rows=3)
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
    assert loads.load((0, 0, 0), (1, 0, 0)) == Result("Succeeded", rows=0, bytes_=0)
    assert not list(loads.path.rglob("*.parquet"))


def test_a_finished_run_reports_again_and_writes_nothing(
    loads: Loads, capsys: pytest.CaptureFixture[str]
) -> None:
    loads.publish([(None, UA), (None, b"?")])
    first = loads.load((0, 0, 2))
    before = {path: path.stat().st_mtime_ns for path in loads.path.rglob("*")}
    capsys.readouterr()
    assert loads.load((0, 0, 2)) == first
    assert without_bytes(first) == Result("Succeeded", rows=2, corrupt_records=1)
    assert {path: path.stat().st_mtime_ns for path in loads.path.rglob("*")} == before
    assert capsys.readouterr().out == "load: run-0001 has been published before; nothing to do\n"
    with pytest.raises(OutputError, match="take another name or another path"):
        loads.load((0, 0, 1))


def test_a_record_that_was_not_written_or_twice_fails_the_run(loads: Loads) -> None:
    loads.publish([(b"k", UA), (b"k", AA), (b"k", DL)], [(None, UA)])
    run = loads.run((0, 0, 3), (1, 0, 1))
    whole = table.read(loads.spark, run)
    assert completeness.check(loads.spark, run, whole) == (4, 0)
    one, more = whole.where("_offset = 0 AND _partition = 0"), whole.where("_offset = 1 AND _partition = 0")
    said = f"offsets {loads.topic}-0 0 to 3 hold 3 records, but"
    for written, count in ((whole.exceptAll(more), 2), (one.unionAll(one), 2), (whole.unionAll(whole), 6)):
        with pytest.raises(completeness.Incomplete, match=f"{said} {count} were read"):
            completeness.check(loads.spark, run, written)


def test_compaction_leaves_gaps_that_are_right(spark: SparkSession, tmp_path: Path) -> None:
    """The broker keeps only the last record of each key; the load takes what is left."""
    with InProcessBroker(tmp_path / "broker", {"log.cleaner.backoff.ms": "100"}) as broker:
        loads = Loads(spark, broker.bootstrap, tmp_path)
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": "1048576",
        }
        loads.publish([(b"k%d" % (number % 3), bytes(300_000)) for number in range(20)], config=config)
        run = loads.run((0, 0, 20), value=Value("Binary"))
        eventually(
            lambda: table.records(spark, run, run.offsets).count(), lambda left: left < 10, "records left", 60
        )
        result = job.load(spark, run)
    offsets = [row["_offset"] for row in loads.rows()]
    assert result.rows == len(offsets) < 10
    assert offsets[-1] == 19


def test_only_records_at_or_after_the_time(loads: Loads) -> None:
    """Producers set the time: a record with an older time may follow the first one that counts."""
    at = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
    times = [at - dt.timedelta(hours=1), at, at - dt.timedelta(milliseconds=1), at + dt.timedelta(hours=1)]
    loads.publish_at(*((UA, time) for time in times))
    assert loads.load((0, 1, 4), from_timestamp=at).rows == 2
    assert [(row["_offset"], row["_timestamp"]) for row in loads.rows()] == [(1, times[1]), (3, times[3])]


def test_retention_that_overtakes_a_load_is_told_with_the_offsets_that_are_gone(loads: Loads) -> None:
    loads.publish([(None, UA)] * 10, [(None, UA)] * 3)
    admin = AdminClient({"bootstrap.servers": loads.bootstrap})
    gone = TopicPartition(loads.topic, 0, 4)
    admin.delete_records([gone])[gone].result(10)
    said = f"offsets {loads.topic}-0 0 to 4 are gone"
    with pytest.raises(completeness.Incomplete, match=said) as caught:
        loads.load((0, 0, 10), (1, 0, 3))
    assert ready_after(caught.value)[:2] == ("False", "OffsetsGone")
    assert "begin at a later position" in ready_after(caught.value)[2]
    assert not list(loads.path.rglob("*.parquet"))
    assert loads.load((0, 4, 10), (1, 0, 3)).rows == 9


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "tasks"),
    [
        ((1000, 0, 10), None, 2),
        ((1000, 10), 5, 5),
        ((150_000, 1000, 1000, 1000, 1000), None, 6),
        ((100_000, 100_000), None, 2),
    ],
)
def test_a_task_a_partition_unless_more_are_asked_for_or_one_is_skewed(
    loads: Loads, sizes: tuple[int, ...], min_partitions: int | None, tasks: int
) -> None:
    """Spark plans from offsets alone, so the topic stays empty."""
    loads.publish(*([] for _ in sizes))
    ranges = [(number, 0, size) for number, size in enumerate(sizes)]
    run = loads.run(*ranges, min_partitions=min_partitions)
    assert table.records(loads.spark, run, run.offsets).rdd.getNumPartitions() == tasks


@pytest.mark.parametrize(
    ("schema", "partition_by", "said"),
    [
        ("carrier STRNG", (), 'value.schema: "carrier STRNG" is not allowed: '),
        ("carrier STRING,", (), 'value.schema: "carrier STRING," is not allowed: '),
        ("a INT, A INT", (), 'value.schema: "A" is not allowed: it is there twice'),
        ("_offset INT", (), 'value.schema: "_offset" is not allowed'),
        ("INT", (), 'value.schema: "INT" is not allowed: it must be columns'),
        (
            "a INT",
            ("b",),
            r'output.partitionBy\[0\]: "b" is not allowed: one of date, hour, a, _corrupt_record',
        ),
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
