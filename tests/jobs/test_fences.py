"""Each output format: a driver that is left behind commits nothing after a newer run of its load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream_harness.broker import BrokerProcess
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads
from millstream_jobs import completeness, positions
from millstream_jobs import load as job
from millstream_jobs.brokers import Brokers
from millstream_jobs.claims import TableReplaced
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.outputs import Fenced, OutputError, open_output
from millstream_jobs.repeats import AlreadyLoaded
from millstream_jobs.run import Fence, Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]


class Tables:
    """A load's runs of a topic with 30 records, ten of which are in the table."""

    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        loads.publish([(None, b"{}")] * 30)
        self.load("daily-1", 0, 10, Fence(), mode="New")

    def run(self, name: str, first: int, until: int, fence: Fence | None, mode: str = "Append") -> Run:
        output = {"format": self.format, "owner": "ns/daily", "mode": mode}
        output |= {"table": ICEBERG_TABLE} if self.format == "Iceberg" else {}
        ids = positions.topic_ids(Brokers(self.loads.bootstrap), [self.loads.topic])
        more: dict[str, Any] = {"topic_ids": ids, "fence": fence}
        return self.loads.run(
            (0, first, until), name=name, value=Value(schema="a INT"), output=output, **more
        )

    def load(self, name: str, first: int, until: int, fence: Fence | None, mode: str = "Append") -> int:
        return job.load(self.loads.spark, self.run(name, first, until, fence, mode)).rows

    def offsets(self) -> list[int]:
        return [row["_offset"] for row in self.loads.rows(self.format)]


@pytest.fixture(params=["Parquet", "Delta", "Iceberg"])
def tables(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path
) -> Tables:
    return Tables(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


@pytest.mark.parametrize("how", ["edited", "created again"])
def test_a_driver_that_has_staged_its_rows(tables: Tables, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Its table refuses the commit, although it has looked at everything before."""
    check = completeness.check

    def check_late(*given: Any) -> tuple[int, int]:
        found = check(*given)
        monkeypatch.setattr(completeness, "check", check)
        if how == "edited":
            assert tables.load("daily-3", 10, 30, Fence("daily-1", ("daily-2",)), mode="New") == 20
        else:
            assert tables.load("again-1", 10, 30, Fence(), mode="New") == 20
        return found

    monkeypatch.setattr(completeness, "check", check_late)
    with pytest.raises(Fenced, match=r"daily-2 was fenced by (daily-3|again-1), a later run of the load"):
        tables.load("daily-2", 10, 20, Fence("daily-1"))
    assert tables.offsets() == [*range(30)], "each record once"
    with pytest.raises(Fenced):
        tables.load("daily-2", 10, 20, Fence("daily-1"))
    with pytest.raises(Fenced):
        tables.load("daily-2", 10, 20, None)
    if how == "edited":
        assert tables.load("daily-3", 10, 30, Fence("daily-1", ("daily-2",)), mode="New") == 20, "told again"
    assert tables.offsets() == [*range(30)]


def test_a_commit_that_is_under_way_is_refused_by_the_table(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence comes after the driver's own last look at the table; for plain Parquet the commit is that look."""
    if tables.format == "Parquet":
        pytest.skip("see above")
    run = tables.run("daily-2", 10, 20, Fence("daily-1"))
    output = open_output(tables.loads.spark, run)
    find = type(output).find
    fenced: list[Any] = []

    def find_late(self: Any) -> Any:
        found = find(self)
        if found is None and self._run.name == "daily-2" and len(fenced) < 2:
            fenced.append(self)
            if len(fenced) == 2:  # the look that begins the commit; the first was that of the job's beginning
                other = open_output(tables.loads.spark, tables.run("daily-3", 10, 30, None))
                monkeypatch.setattr("millstream_jobs.files.fcntl.flock", lambda *given: None)  # as on S3
                other.fence("daily-2", run.offsets, "daily-3")
        return found

    monkeypatch.setattr(type(output), "find", find_late)
    with pytest.raises(Fenced):
        job.load(tables.loads.spark, run)
    assert len(fenced) == 2
    assert tables.offsets() == [*range(10)]
    assert tables.load("daily-3", 10, 30, Fence("daily-1", ("daily-2",)), mode="New") == 20


def test_a_run_that_committed_is_not_fenced(tables: Tables) -> None:
    assert tables.load("daily-2", 10, 20, Fence("daily-1")) == 10
    with pytest.raises(AlreadyLoaded):
        tables.load("daily-3", 10, 30, Fence("daily-1", ("daily-2",)), mode="New")
    assert tables.load("daily-2", 10, 20, Fence("daily-1")) == 10, "repeated"
    assert tables.load("daily-4", 20, 30, Fence("daily-2", ("daily-3",))) == 10
    assert tables.offsets() == [*range(30)]


def test_a_table_or_status_of_another_time(tables: Tables) -> None:
    path, older = tables.loads.path, tables.loads.path.with_name("older")
    shutil.copytree(path, older)
    assert tables.load("daily-2-a", 10, 20, Fence("daily-1")) == 10
    with pytest.raises(TableReplaced, match="has the rows of run daily-2-a, which this load does not know"):
        tables.load("daily-2-b", 10, 30, Fence("daily-1"))
    shutil.rmtree(path)
    older.rename(path)
    with pytest.raises(TableReplaced, match="does not have run daily-2-a, whose rows the load wrote last"):
        tables.load("daily-3", 20, 30, Fence("daily-2-a"))
    assert tables.load("daily-2-b", 10, 30, Fence("daily-1")) == 20
    shutil.rmtree(path)
    with pytest.raises(TableReplaced, match="does not have run daily-2-b"):
        tables.load("daily-3", 20, 30, Fence("daily-2-b"))
    assert tables.load("daily-4", 20, 30, Fence(), mode="New") == 10, "as its user decides"
    assert tables.offsets() == [*range(20, 30)]


def test_a_table_that_was_dropped_and_made_again_beside_its_claims(tables: Tables) -> None:
    if tables.format == "Parquet":
        pytest.skip("its claims are in the same folder as everything else")
    table = "_delta_log" if tables.format == "Delta" else ICEBERG_TABLE.replace(".", "/")
    shutil.rmtree(tables.loads.path / table)
    for file in tables.loads.path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableReplaced, match="is not the table that run daily-1 wrote to"):
        tables.load("daily-2", 10, 20, Fence("daily-1"))
    assert tables.load("daily-3", 10, 20, Fence()) == 10


def test_other_records_under_the_same_topic_id(tables: Tables, tmp_path: Path, spark: SparkSession) -> None:
    """The log was restored from an older copy, and has grown again."""
    if tables.format != "Parquet":
        pytest.skip("the same for all formats")
    with BrokerProcess(tmp_path / "broker").keep_port() as broker:
        loads = Loads(spark, broker.bootstrap, tmp_path / "restored")
        restored = Tables(loads, "Parquet")
        broker.stop()
        shutil.copytree(tmp_path / "broker", tmp_path / "backup")
        broker.start()
        grow(loads, 20)
        run = restored.run("daily-2", 10, 50, Fence("daily-1"))
        assert job.load(spark, run).rows == 40
        broker.stop()
        shutil.rmtree(tmp_path / "broker")
        (tmp_path / "backup").rename(tmp_path / "broker")
        broker.start()
        grow(loads, 20)
        with pytest.raises(TopicReplaced, match="run daily-2 read offset 49 with timestamp"):
            job.load(spark, run)
        with pytest.raises(TopicReplaced, match="the log was restored from an older copy"):
            restored.load("daily-3", 45, 50, Fence("daily-2"))


def grow(loads: Loads, count: int) -> None:
    producer = Producer({"bootstrap.servers": loads.bootstrap})
    for _ in range(count):
        producer.produce(loads.topic, b"{}", None, 0)
    assert producer.flush(30) == 0


def test_a_table_of_an_older_release(tables: Tables) -> None:
    """Its runs have no claims; a status of that release names no last run."""
    shutil.rmtree(tables.loads.path)
    assert tables.load("daily-1", 0, 10, None) == 10
    assert tables.load("daily-2", 10, 20, Fence(), mode="New") == 10
    assert tables.load("daily-3", 20, 30, Fence("daily-2")) == 10
    assert tables.offsets() == [*range(30)]


def test_offsets_of_a_fenced_run_are_those_of_its_name(tables: Tables) -> None:
    tables.load("daily-2", 10, 20, Fence("daily-1"))
    with pytest.raises(OutputError):
        tables.load("daily-2", 10, 25, Fence("daily-1"))
