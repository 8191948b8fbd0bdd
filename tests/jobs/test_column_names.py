"""Names of columns, partitions and owners that mean something to Spark, to a format or to a file system."""

from __future__ import annotations

import json

import pytest

from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads, read_table
from millstream_jobs.column_names import quoted
from millstream_jobs.outputs.output import NotOurs
from millstream_jobs.run import BadRun
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
ODD = ("a.b", "a`b", "select", "it's", "é")
SPACED = ("a b", "a;b", "x=y")


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_columns_and_partitions_may_have_odd_names(loads: Loads, format: str) -> None:
    names = ODD if format == "Delta" else (*ODD, *SPACED)
    added = "n.w" if format == "Delta" else "n;w"
    loads.publish(
        [(None, json.dumps({**dict.fromkeys(names, text), "y.z": 1}).encode()) for text in ("one", "two")]
    )
    output = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    schema = ", ".join(f"{quoted(name)} STRING" for name in names) + ", `y.z` INT"
    for run, more in enumerate(("", f", {quoted(added)} INT")):
        value = Value(schema=schema + more)
        loads.load((0, 0, 2), name=f"run-{run}", value=value, output=output, partition_by=names)
    table = read_table(format, loads.path, add=added)
    for name in names:
        assert sorted(table.column(name).to_pylist()) == ["one", "one", "two", "two"], name
    assert table.column("y.z").to_pylist() == [1] * 4
    assert table.column(added).to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("format", "schema", "partition_by", "words"),
    [
        ("Delta", "`a b` INT", (), r'value\.schema: "a b" is not allowed with output\.format Delta'),
        ("Delta", "`a=b` INT", ("a=b",), r'value\.schema: "a=b" is not allowed'),
        ("Iceberg", "_pos INT", (), r'value\.schema: "_pos" is not allowed with output\.format Iceberg'),
        ("Iceberg", "_FILE INT", (), r'value\.schema: "_FILE" is not allowed'),
        ("Iceberg", "_topic_partition INT", (), r'value\.schema: "_topic_partition" is not allowed'),
        (
            "Parquet",
            "load_run INT",
            (),
            r'value\.schema: "load_run" is not allowed with output\.format Parquet',
        ),
        (
            "Parquet",
            "Date STRING, x INT",
            ("date",),
            r'output\.partitionBy\[0\]: "date" .* the column is "Date"',
        ),
        (
            "Parquet",
            "x INT, y INT",
            ("x", "X"),
            r'output\.partitionBy\[1\]: "X" is not allowed: it is listed',
        ),
    ],
)
def test_names_that_a_format_does_not_have_are_refused(
    loads: Loads, format: str, schema: str, partition_by: tuple[str, ...], words: str
) -> None:
    loads.publish([(None, b"{}")])
    output = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    with pytest.raises(BadRun, match=words):
        loads.load((0, 0, 1), value=Value(schema=schema), output=output, partition_by=partition_by)


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_a_column_keeps_the_tables_spelling(loads: Loads, format: str) -> None:
    """Two names that differ in their case only are one column, in every format."""
    loads.publish([(None, b'{"carrier": "UA", "Carrier": "AA", "n": 1}')])
    output = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    for run, schema in enumerate(("carrier STRING", "Carrier STRING", "CARRIER STRING, n INT")):
        loads.load((0, 0, 1), name=f"run-{run}", value=Value(schema=schema), output=output)
    table = read_table(format, loads.path, add="n")
    assert [name for name in table.column_names if name.lower() == "carrier"] == ["carrier"]
    assert sorted(map(str, table.column("carrier").to_pylist())) == ["AA", "None", "UA"]


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_empty_and_null_partition_values(loads: Loads, format: str) -> None:
    """Folders of Hive's form, which Parquet and Delta have, name both the same: only Iceberg tells them apart."""
    texts = ["", None, "x", "__HIVE_DEFAULT_PARTITION__"]
    loads.publish([(None, json.dumps({"p": text, "n": 1}).encode()) for text in texts])
    output = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    result = loads.load((0, 0, 4), value=Value(schema="p STRING, n INT"), output=output, partition_by=("p",))
    assert result.rows == 4
    found = [row["p"] for row in loads.rows(format)]
    assert found == {"Iceberg": texts}.get(format, [None, None, "x", None])


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_owners_whose_names_spark_redacts(loads: Loads, format: str) -> None:
    owner = "ns/hourly-token-secret-password"
    loads.publish([(None, b'{"n": 1}')])
    output = {"format": format, "owner": owner, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
    for run in ("first", "second"):
        loads.load((0, 0, 1), name=run, value=Value(schema="n INT"), output=output)
    with pytest.raises(NotOurs, match="belongs to the load ns/"):
        loads.load((0, 0, 1), name="c", value=Value(schema="n INT"), output={**output, "owner": "ns/other"})
