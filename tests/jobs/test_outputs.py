"""Each output format: rows are in the table once, even if drivers die or compete; read without Spark."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready_after
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import (
    ICEBERG_TABLE,
    PY4J,
    SCHEMA,
    Loads,
    files_of,
    read_table,
    without_bytes,
)
from millstream_jobs import completeness, table
from millstream_jobs import load as job
from millstream_jobs.outputs import Committed, OutputError, open_output
from millstream_jobs.run import Result, Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'
MORE = SCHEMA + ", more INT"


class FormatLoads:
    """Loads in one format."""

    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        self.output: dict[str, Any] = {"format": format, "owner": "ns/daily"}
        if format == "Iceberg":
            self.output["table"] = ICEBERG_TABLE

    def run(self, *ranges: tuple[int, int, int], **given: Any) -> Run:
        """A run into the table; a given ``owner`` or ``target_file_size`` replaces the output's own."""
        output = {key: given.pop(key) for key in ("owner", "target_file_size") if key in given}
        return self.loads.run(*ranges, **{"partition_by": ("date",), "output": self.output | output, **given})

    def load(self, *ranges: tuple[int, int, int], **given: Any) -> Result:
        return job.load(self.loads.spark, self.run(*ranges, **given))

    def offsets(self) -> list[tuple[int, int]]:
        return [(row["_partition"], row["_offset"]) for row in self.loads.rows(self.format)]


@pytest.fixture(params=["Parquet", "Delta", "Iceberg"])
def loads(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> FormatLoads:
    return FormatLoads(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def size_of(loads: FormatLoads) -> int:
    """Bytes in the table's data files."""
    return sum(Path(file).stat().st_size for file in files_of(loads.format, loads.loads.path))


def test_runs_add_up_columns_are_added_and_nothing_else(loads: FormatLoads) -> None:
    loads.loads.publish([(None, RECORD)] * 4 + [(None, b"?")], [(b"k", b'{"more": 7}')])
    first = loads.load((0, 0, 3), name="run-0001")
    assert without_bytes(first) == Result("Succeeded", rows=3)
    before = size_of(loads)
    assert first.bytes_ == before
    with_more = Value(schema=MORE)
    second = loads.load((0, 3, 5), (1, 0, 1), name="run-0002", value=with_more)
    assert without_bytes(second) == Result("Succeeded", rows=3, corrupt_records=1)
    assert second.bytes_ == size_of(loads) - before
    whole = [*((0, offset) for offset in range(5)), (1, 0)]
    assert loads.offsets() == whole
    assert read_table(loads.format, loads.loads.path, add="more")["more"].drop_null().to_pylist() == [7]
    assert loads.load((0, 3, 5), (1, 0, 1), name="run-0002", value=with_more) == second, (
        "told again, not done again"
    )

    refused = [
        (
            {"name": "run-0001"},
            "run named run-0001 is published there with other offsets .*: take another name or another path",
            "OutputNotWritable",
        ),
        ({"owner": "ns/other"}, "belongs to the load ns/daily: choose another path", "ConflictingTable"),
        (
            {},
            "column more of the table is missing: .*; keep it in the schema, or take another path",
            "InvalidSpec",
        ),
        (
            {"value": Value(schema=MORE.replace("DOUBLE", "STRING"))},
            "column delay is double in the table, here string: a column keeps its type; take another name",
            "InvalidSpec",
        ),
        (
            {"value": with_more, "partition_by": ()},
            r'the table is partitioned by \["date"\]: take these, or another path',
            "InvalidSpec",
        ),
    ]
    files = set(files_of(loads.format, loads.loads.path))
    for given, said, reason in refused:
        with pytest.raises(OutputError, match=said) as caught:
            loads.load((0, 0, 1), **({"name": "run-0003"} | given))
        assert "\n" not in str(caught.value)
        status, condition, message = ready_after(caught.value)
        assert (status, condition) == ("False", reason)
        assert str(caught.value) in message
    assert loads.offsets() == whole
    assert set(files_of(loads.format, loads.loads.path)) == files


def test_a_driver_that_dies_anywhere_leaves_nothing_in_the_table(loads: FormatLoads) -> None:
    """Drivers abandoned here leave what killed ones leave; test_load_command kills real ones."""
    loads.loads.publish([(None, RECORD)] * 6)
    run = loads.run((0, 0, 6))
    records = table.read(loads.loads.spark, run)
    prepared, staged = (open_output(loads.loads.spark, run) for _ in range(2))
    prepared.prepare(records.schema)
    staged.prepare(records.schema)
    assert staged.stage(records).count() == 6
    if loads.format != "Parquet":  # Parquet's reader finds no file that tells it the columns
        assert loads.offsets() == []
    assert staged.find() is None
    assert loads.load((0, 0, 6)).rows == 6
    assert loads.offsets() == [(0, offset) for offset in range(6)]
    committed = staged.find()
    assert committed is not None
    assert committed.attempt not in (prepared.attempt, staged.attempt)


def test_of_two_drivers_at_the_same_time_one_commits(
    loads: FormatLoads, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.loads.publish([(None, RECORD)] * 6)
    run = loads.run((0, 0, 6))
    drivers = [open_output(loads.loads.spark, run) for _ in range(2)]
    commits: list[Committed] = []
    together = threading.Barrier(2)
    for driver in drivers:
        records = table.read(loads.loads.spark, run)
        driver.prepare(records.schema)
        driver.stage(records)

    def commit(number: int) -> None:
        def meet(*_: Any) -> tuple[int, int]:
            together.wait(240)
            return 6, 0

        monkeypatch.setattr(drivers[number], "stage", lambda records: records)
        monkeypatch.setattr(drivers[number], "prepare", lambda schema: None)
        monkeypatch.setattr(completeness, "check", meet)
        commits.append(job.attempt(loads.loads.spark, run, drivers[number]))

    threads = [InheritableThread(target=commit, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commits) == 2
    assert commits[0] == commits[1], "both know whose rows are in the table"
    assert commits[0].attempt in {driver.attempt for driver in drivers}
    assert loads.offsets() == [(0, offset) for offset in range(6)]


def test_a_reader_meanwhile_sees_a_run_whole_or_not_at_all(loads: FormatLoads) -> None:
    events = [(None, RECORD.replace(b"01-01", f"01-{day:02}".encode())) for day in range(1, 13)]
    loads.loads.publish(events)
    assert loads.load((0, 0, 4), name="run-0001").rows == 4
    seen: Counter[int] = Counter()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen[read_table(loads.format, loads.loads.path).num_rows] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: seen[4], bool, "it has read the first run")
        assert loads.load((0, 4, 12), name="run-0002").rows == 8
    finally:
        ended.set()
        reader.join()
    assert seen.keys() <= {4, 12}
    assert len(loads.offsets()) == 12


def test_files_have_about_their_target_size(loads: FormatLoads) -> None:
    loads.loads.publish([(None, RECORD)] * 3000, [(None, RECORD)] * 3000)
    whole = loads.run((0, 0, 3000), (1, 0, 3000), partition_by=(), target_file_size=1 << 30)
    assert job.load(loads.loads.spark, whole).rows == 6000
    assert len(files_of(loads.format, loads.loads.path)) == 1, "two tasks have read them"
