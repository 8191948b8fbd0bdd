"""RUN.json: how it is read, and the errors for files that cannot run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millstream_jobs.load import main
from millstream_jobs.run import (
    MAX_RESULT_BYTES,
    BadRun,
    Result,
    name_and_result,
    read_run,
)

GOOD: dict[str, Any] = {
    "name": "flights-daily-0001",
    "bootstrap": "host:9092",
    "offsets": [
        {"topic": "flights", "partition": 0, "from": 0, "until": 56129},
        {"topic": "flights", "partition": 1, "from": 7, "until": 7},
    ],
    "value": {"format": "JSON", "schema": "carrier STRING"},
    "output": {"format": "Parquet", "path": "/lake/flights", "partitionBy": ["date"]},
    "result": "/dev/termination-log",
}


def written(tmp_path: Path, run: Any) -> Path:
    path = tmp_path / "run.json"
    path.write_text(run if isinstance(run, str) else json.dumps(run))
    return path


def changed(where: str, value: Any) -> dict[str, Any]:
    """A good run with one field changed; Ellipsis removes the field."""
    run = copy.deepcopy(GOOD)
    *parents, last = where.split(".")
    at: Any = run
    for name in parents:
        at = at[int(name)] if name.isdigit() else at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return run


def iceberg(**output: Any) -> dict[str, Any]:
    """A good run into Iceberg with these fields of its output."""
    return changed("output", {"format": "Iceberg", "path": "/lake", "table": "a.b", **output})


def test_a_run_is_read_as_it_is_written(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, GOOD))
    assert run.name == "flights-daily-0001"
    assert run.records == 56129
    assert run.offsets[1].first == run.offsets[1].until == 7
    assert run.value.format == "JSON"
    assert run.output.format == "Parquet"
    assert run.output.partition_by == ("date",)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("{", "is not JSON"),
        ([], "the whole: [] is not allowed: expected `object`"),
        (changed("name", ...), "name: is missing"),
        (changed("name", "../up"), 'name: "../up" is not allowed: 1 to 200 letters'),
        (changed("bootstrap", "host"), 'bootstrap: "host" is not allowed: HOST:PORT'),
        (changed("offsets", []), "offsets: [] is not allowed: at least one range"),
        (changed("offsets.0.from", "x"), 'offsets[0].from: "x" is not allowed: expected `int`'),
        (changed("offsets.0.from", -1), "offsets[0].from: -1 is not allowed: expected `int` >= 0"),
        (changed("offsets.1.until", 6), "offsets[1].until: 6 is not allowed: it is below from, 7"),
        (changed("offsets.1.partition", 0), "offsets[1]: flights-0 is not allowed: it is listed before"),
        (changed("offsets.0.topic", "a b"), 'offsets[0].topic: "a b" is not allowed: a topic name'),
        (changed("offsets.0.topic", ...), "offsets[0].topic: is missing"),
        (changed("output.path", "lake"), 'output.path: "lake" is not allowed: an absolute path'),
        (changed("output.format", "CSV"), 'output.format: "CSV" is not allowed: Parquet, Delta, Iceberg'),
        (
            changed("output.path", "hdfs://n/t"),
            'output.path: "hdfs://n/t" is not allowed: an absolute path, or s3a',
        ),
        (changed("output.format", "Iceberg"), "output.table: is missing: Iceberg needs NAMESPACE.TABLE"),
        (changed("output.table", "a.b"), "output.table is not allowed with output.format Parquet"),
        (changed("output.mode", "Replace"), "output.mode: Replace is not allowed with output.format Parquet"),
        (changed("output.mode", "Merge"), 'output.mode: "Merge" is not allowed: Append, New, Replace'),
        (iceberg(path="s3a://b/t"), "output.catalog.type: Hadoop is not allowed with s3a://b/t"),
        (iceberg(catalog={"type": "JDBC"}), 'output.catalog.uri: "" is not allowed with type JDBC: jdbc:…'),
        (iceberg(catalog={"uri": "jdbc:x"}), "is not allowed with type Hadoop: leave it out"),
        (
            iceberg(catalog={"type": "JDBC", "uri": "jdbc:x", "scope": "all"}),
            "output.catalog.scope is not allowed with type JDBC: only REST has one",
        ),
        (iceberg(catalog={"type": "Hive"}), 'output.catalog.type: "Hive" is not allowed: Hadoop, JDBC, REST'),
        (changed("output.s3", {"endpoint": "host"}), 'output.s3.endpoint: "host" is not allowed: a URL'),
        (changed("output.partitionby", []), "output.partitionby: is not a known field"),
        (
            changed("output.partitionBy", "date"),
            'output.partitionBy: "date" is not allowed: expected `array`',
        ),
        (
            changed("value.format", "ORC"),
            'value.format: "ORC" is not allowed: JSON, CSV, Avro, Protobuf, Text, Binary',
        ),
        (
            changed("value.format", "Binary"),
            "value.schema: not allowed with value.format Binary: only JSON and",
        ),
        (changed("value", {"format": "CSV"}), 'value.schema: "" is not allowed: CSV needs columns'),
        (
            changed("value", {"format": "Protobuf", "message": "a.B"}),
            'value.descriptorSet: "" is not allowed: Protobuf needs value.descriptorSet and value.message',
        ),
        (
            changed("value", {"format": "Avro", "schema": "{}", "message": "a.B"}),
            "value.message: not allowed with value.format Avro: only Protobuf has it",
        ),
        (changed("value", {"format": "Avro"}), 'value.schema: "" is not allowed: Avro needs a record schema'),
        (
            changed("value", {"format": "Avro", "schema": "{"}),
            'value.schema: "{" is not allowed: it is not JSON',
        ),
        (changed("value", {"format": "Avro", "schema": '"int"'}), "is not allowed: it must be a record"),
        (
            changed("value", {"format": "Avro", "schemaRegistry": {"url": "registry:8081"}}),
            'value.schemaRegistry.url: "registry:8081" is not allowed: http:// or https:// with a host',
        ),
        (
            changed("value.options", {"mode": "FAILFAST"}),
            'value.options: "mode" is not allowed: allowBackslash',
        ),
        (
            changed("value.maxCorruptRecords", "1.5"),
            'maxCorruptRecords: "1.5" is not allowed: a count such as',
        ),
        (
            changed("value.maxCorruptRecords", -1),
            "value.maxCorruptRecords: -1 is not allowed: a count such as",
        ),
        (changed("record", {"key": "JSON"}), 'record.key: "JSON" is not allowed: Binary, Text'),
        (changed("fromTimestamp", "2026-11-20T00:00:00"), "is not allowed: a time with its zone"),
        (changed("minPartitions", 0), "minPartitions: 0 is not allowed: expected `int` >= 1"),
        (changed("value.schema", " "), 'value.schema: "" is not allowed: JSON needs columns'),
    ],
)
def test_a_bad_run_is_told_by_field_value_and_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Any, said: str
) -> None:
    path = written(tmp_path, run)
    with pytest.raises(BadRun) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)

    assert main([str(path)]) == 2
    assert capsys.readouterr().err == f"millstream-load: {caught.value}\n"


def test_a_bad_run_reports_where_it_wants_its_result(tmp_path: Path) -> None:
    result = tmp_path / "result"
    path = written(tmp_path, {**changed("name", ""), "result": str(result)})
    assert name_and_result(path) == ("", str(result))
    assert main([str(path)]) == 2
    reported = json.loads(result.read_bytes())
    assert reported["run"] == ""
    assert reported["state"] == "Failed"
    assert 'name: "" is not allowed' in reported["error"]


def test_no_file_and_no_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.endswith("none.json: cannot be read: No such file or directory\n")
    assert main([]) == 2
    assert capsys.readouterr().err == "usage: millstream-load FILE.json\n"


@pytest.mark.parametrize("field", ["error", "warning"])
@pytest.mark.parametrize("text", ["x" * 9000, '"\\\n' * 3000, "é漢" * 3000])
def test_a_result_fits_a_termination_message(field: str, text: str) -> None:
    encoded = replace(Result("Succeeded"), **{field: text}).encode()
    assert len(encoded) <= MAX_RESULT_BYTES
    assert len(encoded) > MAX_RESULT_BYTES // 3
    assert json.loads(encoded)[field].endswith("...")
