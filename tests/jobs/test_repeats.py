"""Mode New: a load that is deleted and created again does not add its records a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready_after
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads
from millstream_jobs import completeness
from millstream_jobs import load as job
from millstream_jobs.repeats import AlreadyLoaded
from millstream_jobs.run import Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
SCHEMA = "first INT, topic STRING"  # column names that the check uses, too


class Tables:
    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        loads.publish([(None, b'{"first": 1}')] * 6, [(None, b"{}")])

    def run(self, name: str, *ranges: tuple[int, int, int], mode: str = "New", **more: Any) -> Run:
        output = {"format": self.format, "mode": mode, "owner": "ns/daily"}
        output |= {"table": ICEBERG_TABLE} if self.format == "Iceberg" else {}
        return self.loads.run(
            *ranges, name=name, value=Value(schema=SCHEMA), partition_by=("date",), output=output, **more
        )

    def load(self, name: str, *ranges: tuple[int, int, int], **more: Any) -> int:
        return job.load(self.loads.spark, self.run(name, *ranges, **more)).rows

    def offsets(self) -> list[tuple[int, int]]:
        return [(row["_partition"], row["_offset"]) for row in self.loads.rows(self.format)]


@pytest.fixture(params=["Parquet", "Delta", "Iceberg"])
def tables(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> Tables:
    return Tables(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def test_records_that_the_table_has_are_not_added_again(tables: Tables) -> None:
    assert tables.load("daily-0001-aaaaaaaa", (0, 0, 3)) == 3, "a table without rows"
    assert tables.load("daily-0001-aaaaaaaa", (0, 0, 3)) == 3, "told again"
    with pytest.raises(AlreadyLoaded, match=r"has offset \d of .*-0 already") as caught:
        tables.load("daily-0001-bbbbbbbb", (0, 2, 6), (1, 0, 1))
    status, reason, message = ready_after(caught.value)
    assert (status, reason) == ("False", "AlreadyLoaded")
    assert "take another path, begin where the table ends" in message
    if tables.format == "Parquet":
        assert "by run daily-0001-aaaaaaaa" in message
    whole = [(0, 0), (0, 1), (0, 2)]
    assert tables.offsets() == whole
    assert tables.load("daily-0001-bbbbbbbb", (0, 3, 6), (1, 0, 1)) == 4, "where the table ends"
    assert tables.offsets() == [*whole, (0, 3), (0, 4), (0, 5), (1, 0)]
    assert tables.load("daily-0002-bbbbbbbb", (0, 0, 1), mode="Append") == 1, "a rerun"


def another_driver_publishes_meanwhile(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver publishes while the next load stages its rows."""
    check = completeness.check

    def check_late(*given: Any) -> tuple[int, int]:
        found = check(*given)
        monkeypatch.setattr(completeness, "check", check)
        assert tables.load("daily-0001-aaaaaaaa", (0, 0, 6)) == 6
        return found

    monkeypatch.setattr(completeness, "check", check_late)


def test_a_predecessor_that_is_still_alive_is_seen_before_the_commit(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deleted load's driver still runs, and publishes while the new load stages."""
    another_driver_publishes_meanwhile(tables, monkeypatch)
    with pytest.raises(AlreadyLoaded):
        tables.load("daily-0001-bbbbbbbb", (0, 0, 6))
    assert tables.offsets() == [(0, offset) for offset in range(6)]


def test_of_two_drivers_of_the_run_itself_one_commits(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    another_driver_publishes_meanwhile(tables, monkeypatch)
    assert tables.load("daily-0001-aaaaaaaa", (0, 0, 6)) == 6
    assert "another driver has published daily-0001-aaaaaaaa first" in capsys.readouterr().out
    assert tables.offsets() == [(0, offset) for offset in range(6)]
