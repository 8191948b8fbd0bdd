"""Creating a table: remains of killed drivers do no harm, and of several drivers at once one creates it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark import InheritableThread
from pyspark.sql.types import BinaryType, StructType

from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads
from millstream_jobs import load as job
from millstream_jobs.files import PosixFiles
from millstream_jobs.outputs import OutputError, open_output
from millstream_jobs.run import Run
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
FIRST = "_delta_log/00000000000000000000.json"


class Killed(BaseException):
    """No handler in the job catches it."""


def run_of(loads: Loads, format: str, *ranges: tuple[int, int, int], owner: str = "ns/a", **more: Any) -> Run:
    output = {"format": format, "owner": owner, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    return loads.run(*ranges, value=Value("Binary"), output=output, **more)


def offsets(loads: Loads, format: str) -> list[int]:
    return [row["_offset"] for row in loads.rows(format)]


def test_what_killed_drivers_have_left_becomes_a_table(loads: Loads) -> None:
    """Staged rows of one driver, offsets that another has looked up, and a log without a commit."""
    (loads.path / "_delta_log" / "_staged_commits").mkdir(parents=True)
    for name in (
        "_staging/run-0000/1a2b3c4d/part-00000.parquet",
        "_staging/run-0000/1a2b3c4d-table/_delta_log/00000000000000000000.json",
        "_rewinds/july.json",
        "_delta_log/.00000000000000000000.json.5e6f.tmp",
    ):
        path = loads.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"part of it")
    loads.publish([(None, b"value")] * 3)
    assert job.load(loads.spark, run_of(loads, "Delta", (0, 0, 3))).rows == 3
    assert offsets(loads, "Delta") == [0, 1, 2]


@pytest.mark.parametrize("step", ["make_folder", "read", "delete", "create"])
def test_a_driver_that_is_killed_while_it_makes_the_table(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The first driver is killed before one of its steps. The next belongs to another load, which owns the table."""
    first, second = (
        open_output(loads.spark, run_of(loads, "Delta", (0, 0, 3), owner=owner, name="run-0001"))
        for owner in ("ns/other", "ns/a")
    )
    columns = StructType().add("value", BinaryType())

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PosixFiles, step, dies)
        with pytest.raises(Killed):
            first.prepare(columns)
    assert not (loads.path / FIRST).exists()
    second.prepare(columns)
    made = DeltaTable(loads.path)
    assert made.version() == 0
    assert made.schema().to_arrow().names == ["value"]
    assert made.metadata().configuration == {
        "millstream.owner": "ns/a",
        "delta.enableDeletionVectors": "false",
        "delta.checkpointPolicy": "classic",
    }


@pytest.mark.parametrize("name", ["part-00000.snappy.parquet", "_millstream/table.json", "2026/flights.csv"])
def test_a_folder_with_somebody_elses_files_is_refused_by_name(loads: Loads, name: str) -> None:
    path = loads.path / name
    path.parent.mkdir(parents=True)
    path.write_text("rows")
    loads.publish([(None, b"value")])
    with pytest.raises(
        OutputError, match=f"is no Delta table, but has files, such as {name}: take"
    ) as caught:
        job.load(loads.spark, run_of(loads, "Delta", (0, 0, 1)))
    assert "\n" not in str(caught.value)
    assert [file for file in loads.path.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "rows"


@pytest.mark.parametrize(
    ("format", "step"), [("Parquet", "create"), ("Delta", "create"), ("Iceberg", "locked")]
)
@pytest.mark.parametrize("owners", [("ns/a", "ns/a"), ("ns/a", "ns/b")], ids=["one load", "two loads"])
def test_of_two_drivers_that_make_the_table_at_once_one_does(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, format: str, step: str, owners: tuple[str, str]
) -> None:
    """The drivers meet when neither has seen a table. Either both load into it, or one error names the other's load."""
    loads.publish([(None, b"value")] * 6)
    together, met = threading.Barrier(2), set[int]()
    real = getattr(PosixFiles, step)

    def meet(files: PosixFiles, *given: Any) -> Any:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            together.wait(240)
        return real(files, *given)

    monkeypatch.setattr(PosixFiles, step, meet)
    refused: list[str] = []

    def load(number: int) -> None:
        part = (0, 3 * number, 3 * number + 3)
        try:
            job.load(loads.spark, run_of(loads, format, part, owner=owners[number], name=f"run-000{number}"))
        except OutputError as error:
            refused.append(str(error))

    threads = [InheritableThread(target=load, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if owners[0] == owners[1]:
        assert refused == []
        assert offsets(loads, format) == list(range(6))
    else:
        assert len(refused) == 1
        assert "belongs to the load ns/" in refused[0]
        assert offsets(loads, format) in ([0, 1, 2], [3, 4, 5])
