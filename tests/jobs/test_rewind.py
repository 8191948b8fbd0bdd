"""Loading records again replaces their rows in one commit and keeps all others; read without Spark."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads, files_of, read_table, without_bytes
from millstream_jobs import load as job
from millstream_jobs import table
from millstream_jobs.outputs import open_output
from millstream_jobs.rewind import Rewind, main, read_rewind, rewind
from millstream_jobs.run import BadRun, Output, Result, Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
OLD, NEW = Value(schema="day DATE"), Value(schema="day DATE, number INT")
DAYS = 4
START = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)


class Table:
    """A topic of two partitions, each with ten hourly records from START on, and a table of one format."""

    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        self.output: dict[str, Any] = {"format": format, "owner": "ns/daily"}
        if format == "Iceberg":
            self.output["table"] = ICEBERG_TABLE
        loads.publish([], [])
        producer = Producer({"bootstrap.servers": loads.bootstrap})
        for offset in range(10):
            for partition in (0, 1):
                value = {"day": f"2026-07-0{1 + offset % DAYS}", "number": offset}
                at = int((START + dt.timedelta(hours=offset)).timestamp() * 1000)
                producer.produce(loads.topic, json.dumps(value).encode(), None, partition, timestamp=at)
        assert producer.flush(30) == 0

    def run(self, name: str, *ranges: tuple[int, int, int], value: Value = NEW, mode: str = "Replace") -> Run:
        return self.loads.run(
            *ranges, name=name, value=value, partition_by=("day",), output=self.output | {"mode": mode}
        )

    def load(self, *given: Any, **more: Any) -> Result:
        return job.load(self.loads.spark, self.run(*given, **more))

    def load_all(self) -> None:
        """An earlier load of everything, whose schema had no ``number``."""
        whole = self.load("run-0001", (0, 0, 10), (1, 0, 10), value=OLD, mode="Append")
        assert whole.rows == 20

    def numbers(self) -> dict[tuple[int, int], int | None]:
        """The number in each record's row; fails if a record has two rows."""
        rows = self.loads.rows(self.format)
        found = {(row["_partition"], row["_offset"]): row.get("number") for row in rows}
        assert len(found) == len(rows), "a record is there twice"
        return found


@pytest.fixture(params=["Delta", "Iceberg"])
def flights(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> Table:
    return Table(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def again(*parts: tuple[int, int]) -> dict[tuple[int, int], int | None]:
    """The table after these records were loaded again."""
    whole = [(partition, offset) for partition in (0, 1) for offset in range(10)]
    return {part: part[1] if part in parts else None for part in whole}


def test_rows_of_the_range_are_replaced_and_no_others(flights: Table) -> None:
    flights.load_all()
    before = set(files_of(flights.format, flights.loads.path))
    replaced = flights.load("again-0001", (0, 4, 6))
    assert without_bytes(replaced) == Result("Succeeded", rows=2)
    assert flights.numbers() == again((0, 4), (0, 5))
    if flights.format == "Delta":
        kept = before & set(files_of(flights.format, flights.loads.path))
        assert {
            day for day in range(1, DAYS + 1) if any(f"day=2026-07-0{day}/" in file for file in kept)
        } >= {3, 4}
    assert flights.load("again-0001", (0, 4, 6)) == replaced, "told again, not done again"
    assert flights.load("again-0002", (0, 5, 6), value=NEW).rows == 1
    assert flights.load("run-0001", (0, 0, 10), (1, 0, 10), value=NEW, mode="Append").rows == 20, "known"
    assert flights.numbers() == again((0, 4), (0, 5))


def test_a_driver_that_dies_or_comes_second_changes_nothing(flights: Table) -> None:
    """One driver dies with its rows staged. Two more commit after another load; one wins, and both know it."""
    flights.load_all()
    run = flights.run("again-0001", (0, 0, 3), (1, 9, 10))
    drivers = [open_output(flights.loads.spark, run) for _ in range(3)]
    for driver in drivers:
        records = table.read(flights.loads.spark, run)
        driver.prepare(records.schema)
        assert driver.stage(records).count() == 4
    assert flights.numbers() == again()
    assert flights.load("again-0000", (1, 0, 1)).rows == 1
    first = drivers[1].commit(4, 0)
    second = drivers[2].commit(4, 0)
    assert first == second
    assert first.attempt == drivers[1].attempt
    drivers[0].discard()
    assert flights.numbers() == again((0, 0), (0, 1), (0, 2), (1, 9), (1, 0))


def test_a_reader_meanwhile_sees_old_rows_or_new_ones(flights: Table) -> None:
    flights.load_all()
    seen: Counter[tuple[int, int]] = Counter()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            rows = read_table(flights.format, flights.loads.path).to_pylist()
            seen[len(rows), sum(row.get("number") is not None for row in rows)] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: seen[20, 0], bool, "it has read the old rows")
        assert flights.load("again-0001", (0, 0, 10)).rows == 10
    finally:
        ended.set()
        reader.join()
    assert seen.keys() <= {(20, 0), (20, 10)}


def test_from_a_time_until_another_with_offsets_that_are_found_once(flights: Table) -> None:
    flights.load_all()
    hours = [START + dt.timedelta(hours=hours) for hours in (6, 8)]
    wanted = Rewind(
        name="july",
        bootstrap=flights.loads.bootstrap,
        topics=(flights.loads.topic,),
        since=hours[0],
        until=hours[1],
        value=NEW,
        output=Output(str(flights.loads.path), mode="Replace", partition_by=("day",), **flights.output),
    )
    assert without_bytes(rewind(flights.loads.spark, wanted)) == Result("Succeeded", rows=4)
    expected = again((0, 6), (0, 7), (1, 6), (1, 7))
    assert flights.numbers() == expected
    producer = Producer({"bootstrap.servers": flights.loads.bootstrap})
    at = int(hours[1].timestamp() * 1000)
    producer.produce(flights.loads.topic, b"{}", None, 0, timestamp=at)
    assert producer.flush(30) == 0
    assert rewind(flights.loads.spark, wanted).rows == 4
    assert flights.numbers() == expected


def test_an_older_record_behind_the_time_keeps_its_row(flights: Table) -> None:
    """A producer's clock made it older. A load from a time leaves it out, so its row must stay."""
    producer = Producer({"bootstrap.servers": flights.loads.bootstrap})
    for hours in (20, -1, 21):
        at = int((START + dt.timedelta(hours=hours)).timestamp() * 1000)
        producer.produce(flights.loads.topic, b'{"number": 7}', None, 0, timestamp=at)
        assert producer.flush(30) == 0
    flights.load("run-0001", (0, 0, 13), value=OLD, mode="Append")
    output = Output(str(flights.loads.path), mode="Replace", partition_by=("day",), **flights.output)
    since = START + dt.timedelta(hours=20)
    wanted = Rewind("late", flights.loads.bootstrap, (flights.loads.topic,), since, output, value=NEW)
    assert rewind(flights.loads.spark, wanted).rows == 2
    assert {part: number for part, number in flights.numbers().items() if part[1] >= 10} == {
        (0, 10): 7,
        (0, 11): None,
        (0, 12): 7,
    }


def test_a_value_of_two_documents_stays_corrupt(flights: Table) -> None:
    flights.load_all()
    producer = Producer({"bootstrap.servers": flights.loads.bootstrap})
    at = int((START + dt.timedelta(hours=20)).timestamp() * 1000)
    two = b'{"number": 7}\n{"number": 8}'
    for value in (two, b'{"number": 9}'):
        producer.produce(flights.loads.topic, value, None, 0, timestamp=at)
    assert producer.flush(30) == 0
    output = Output(str(flights.loads.path), mode="Replace", partition_by=("day",), **flights.output)
    since = START + dt.timedelta(hours=20)
    wanted = Rewind("late", flights.loads.bootstrap, (flights.loads.topic,), since, output, value=NEW)
    assert without_bytes(rewind(flights.loads.spark, wanted)) == Result(
        "Succeeded", rows=2, corrupt_records=1
    )
    rows = {(row["_partition"], row["_offset"]): row for row in flights.loads.rows(flights.format)}
    assert rows[0, 10]["_corrupt_record"] == two.decode()
    assert (rows[0, 11]["number"], rows[0, 11]["_corrupt_record"]) == (9, None)


def test_a_rewind_that_cannot_be_is_one_line(
    loads: Loads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {
        "name": "july",
        "bootstrap": loads.bootstrap,
        "topics": [loads.topic],
        "from": "2026-07-01T00:00:00Z",
        "value": {"format": "Text"},
        "output": {"path": str(loads.path)},
    }
    path = tmp_path / "rewind.json"

    def said(change: dict[str, Any]) -> str:
        path.write_text(json.dumps(good | change))
        assert main([str(path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert 'from: "2026" is not allowed' in said({"from": "2026"})
    assert "until: 2026-06-01" in said({"until": "2026-06-01T00:00:00Z"})
    assert f"topics: {loads.topic} is not there" in said({})
    replace = {"path": str(loads.path), "mode": "Replace"}
    assert "output.mode: Replace is not allowed with output.format Parquet" in said({"output": replace})

    loads.publish([(None, b"x")])
    path.write_text(json.dumps(good))
    assert rewind(loads.spark, read_rewind(path)).rows == 1, "into a table of its own"
    path.write_text(json.dumps(good | {"from": "2026-07-02T00:00:00Z"}))
    with pytest.raises(BadRun, match="july is a rewind of other topics or times"):
        rewind(loads.spark, read_rewind(path))
