"""Values of each format as columns, read with Arrow; JSON is in test_load_table."""

from __future__ import annotations

import datetime as dt
import json
import socket
from typing import Any

import pytest

from millstream_harness.load_conditions import ready_after
from millstream_harness.schema_registry import SchemaRegistry, avro, confluent
from millstream_harness.spark_loads import PY4J, Loads, read_table
from millstream_jobs.registry import RegistryError
from millstream_jobs.run import BadRun
from millstream_jobs.value import Record, Value
from millstream_jobs.value import SchemaRegistry as RegistryAt

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
]

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "flights",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
LATER: dict[str, Any] = {
    **FLIGHT,
    "fields": [*FLIGHT["fields"], {"name": "tail", "type": ["null", "string"], "default": None}],
}
AT = dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
UA = {"carrier": "UA", "delay": 2.0, "at": AT}
AA = {"carrier": "AA", "delay": None, "at": AT + dt.timedelta(hours=14), "tail": "N1"}


def columns(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_avro_of_one_schema(loads: Loads) -> None:
    short, long = avro(FLIGHT, UA)[:-3], b"\xff" * 40
    loads.publish([(None, avro(FLIGHT, UA)), (None, short), (None, None), (None, b""), (None, long)])
    result = loads.load((0, 0, 5), value=Value("Avro", json.dumps(FLIGHT)), partition_by=("date", "hour"))
    assert (result.rows, result.corrupt_records) == (5, 3)
    rows = loads.rows()
    none = (None, None, None)
    assert columns(rows, "carrier", "delay", "at") == [("UA", 2.0, AT), none, none, none, none]
    assert columns(rows, "_corrupt_record") == [(None,), (short,), (None,), (b"",), (long,)]
    assert (str(rows[0]["date"]), rows[0]["hour"]) == ("2013-01-01", 10)
    assert len([*loads.path.glob("load_run=*/date=2013-01-01/hour=10")]) == 1


def test_avro_that_announces_gigabytes_is_corrupt_like_any_other(loads: Loads) -> None:
    """Varints of just under 2 GiB, as the length of bytes and as the number of items."""
    schema = {
        "type": "record",
        "name": "Blob",
        "fields": [
            {"name": "content", "type": "bytes"},
            {"name": "flags", "type": {"type": "array", "items": "boolean"}},
        ],
    }
    good, huge = avro(schema, {"content": b"x", "flags": [True]}), b"\xc0\xff\xff\xff\x0f"
    loads.publish([(None, good), (None, huge + b"abc"), (None, b"\x00" + huge + b"\x01"), (None, good)])
    assert loads.load((0, 0, 4), value=Value("Avro", json.dumps(schema))).corrupt_records == 2
    assert [row["content"] for row in loads.rows()] == [b"x", None, None, b"x"]


def test_confluents_wire_format_with_a_schema_for_each_id(loads: Loads) -> None:
    """The columns are those of the newest schema; each schema is fetched once."""
    with SchemaRegistry(first_id=258) as registry:
        first, second = (registry.register("flights-value", one) for one in (FLIGHT, LATER))
        assert (first, second) == (258, 259)
        unknown, bare = confluent(7, avro(FLIGHT, UA)), avro(FLIGHT, UA)
        values = [
            confluent(first, avro(FLIGHT, UA)),
            confluent(second, avro(LATER, AA)),
            unknown,
            bare,
            b"\x00\x00",
            None,
        ]
        loads.publish([(None, value) for value in values * 50])
        value = Value("Avro", schema_registry=RegistryAt(registry.url))
        result = loads.load((0, 0, 300), value=value)
        assert (result.rows, result.corrupt_records) == (300, 150)
        assert registry.asked == {7: 1, 258: 1, 259: 1}
    rows = loads.rows()[:6]
    assert columns(rows, "carrier", "tail")[:3] == [("UA", None), ("AA", "N1"), (None, None)]
    assert columns(rows, "_corrupt_record") == [
        (None,), (None,), (unknown,), (bare,), (b"\x00\x00",), (None,),
    ]  # fmt: skip


def test_the_readers_schema_may_be_given(loads: Loads) -> None:
    """It renames and drops fields, as Avro resolves schemas; a record that does not resolve is corrupt."""
    wanted = {
        "type": "record",
        "name": "Flight",
        "namespace": "flights",
        "fields": [{"name": "airline", "aliases": ["carrier"], "type": "string"}],
    }
    other = {"type": "record", "name": "Other", "fields": [{"name": "n", "type": "int"}]}
    with SchemaRegistry() as registry:
        flight, number = registry.register("a", FLIGHT), registry.register("b", other)
        odd = confluent(number, avro(other, {"n": 1}))
        loads.publish([(None, confluent(flight, avro(FLIGHT, UA))), (None, odd)])
        value = Value("Avro", json.dumps(wanted), schema_registry=RegistryAt(registry.url))
        loads.load((0, 0, 2), value=value)
    assert columns(loads.rows(), "airline", "_corrupt_record") == [("UA", None), (None, odd)]


def test_a_registry_that_does_not_answer_is_told_with_its_url(loads: Loads) -> None:
    loads.publish([(None, confluent(1, avro(FLIGHT, UA)))])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            RegistryError, match=f"value.schemaRegistry.url: {url} does not answer: .*refused"
        ) as silent:
            loads.load((0, 0, 1), value=Value("Avro", schema_registry=RegistryAt(url)))
        assert ready_after(silent.value)[:2] == ("False", "RunFailed")
        assert "check the URL, and that the registry runs" in ready_after(silent.value)[2]
        assert not list(loads.path.rglob("*.parquet"))
    with SchemaRegistry() as registry:
        registry.register("flights-value", FLIGHT)
        elsewhere = Value("Avro", schema_registry=RegistryAt(f"{registry.url}/apis/ccompat/v7"))
        with pytest.raises(RegistryError, match="does not answer as a Schema Registry does"):
            loads.load((0, 0, 1), value=elsewhere)
        registry.fail_with = [500, 503]
        loads.load((0, 0, 1), value=Value("Avro", schema_registry=RegistryAt(registry.url)))
        assert not registry.fail_with, "it was asked again"
    assert columns(loads.rows(), "carrier") == [("UA",)]


def test_csv_by_sparks_options(loads: Loads) -> None:
    good = [b'UA;1,5;"a;b"', b"AA;;\n"]
    bad = [b"UA", b"a;b;c;d", b"\xff;1,5;x", b"UA;1;x\nAA;2;y"]
    loads.publish([(None, value) for value in [*good, *bad, None]])
    value = Value("CSV", "carrier STRING, delay STRING, note STRING", {"delimiter": ";"})
    result = loads.load((0, 0, 7), value=value)
    rows = loads.rows()
    assert columns(rows[:2], "carrier", "delay", "note") == [("UA", "1,5", "a;b"), ("AA", None, None)]
    assert [row["_corrupt_record"] for row in rows] == [
        None, None, "UA", "a;b;c;d", "\ufffd;1,5;x", "UA;1;x\nAA;2;y", None,
    ]  # fmt: skip
    assert result.corrupt_records == 4


def test_text_keys_and_headers_as_columns(loads: Loads) -> None:
    loads.publish_records(
        (b"k", "grüße".encode(), [("trace", b"\x01\xff"), ("trace", None)]),
        (b"\xff", b"\xff", []),
        (None, None, []),
    )
    result = loads.load((0, 0, 3), value=Value("Text"), record=Record("Text", headers=True))
    rows = loads.rows()
    assert columns(rows, "_key", "value", "_corrupt_record") == [
        ("k", "grüße", None), ("\ufffd", None, "\ufffd"), (None, None, None),
    ]  # fmt: skip
    assert rows[0]["_headers"] == [{"key": "trace", "value": b"\x01\xff"}, {"key": "trace", "value": None}]
    assert rows[1]["_headers"] is None
    assert result.corrupt_records == 1


def test_more_corrupt_records_than_allowed_publish_nothing(loads: Loads) -> None:
    loads.publish([(None, b"{}")] * 7 + [(None, b"{")] * 3)
    for limit in (2, "29.9%"):
        value = Value(schema="a INT", max_corrupt_records=limit)
        said = (
            f"value.maxCorruptRecords: 3 of 10 records do not parse, allowed: {limit};"
            f" the first is {loads.topic}-0 at offset 7; nothing was published"
        )
        with pytest.raises(BadRun, match=said) as caught:
            loads.load((0, 0, 10), value=value)
        assert ready_after(caught.value)[:2] == ("False", "CorruptRecords")
        assert "correct value or the producer, or raise the limit" in ready_after(caught.value)[2]
        assert not list(loads.path.rglob("*.parquet"))
    assert loads.load((0, 0, 10), value=Value(schema="a INT", max_corrupt_records="30%")).corrupt_records == 3


def test_a_million_malformed_records_are_set_aside_up_to_the_limit(loads: Loads) -> None:
    million = 1_000_000
    loads.publish([(None, b"{")] * (million // 2) + [(None, b"{}")] * 3, [(None, b"?")] * (million // 2))
    ranges = ((0, 0, million // 2 + 3), (1, 0, million // 2))
    said = "1,000,000 of 1,000,003 records do not parse, allowed: 999999"
    with pytest.raises(BadRun, match=said):
        loads.load(*ranges, value=Value(schema="a INT", max_corrupt_records=million - 1))
    assert not list(loads.path.rglob("*.parquet"))
    result = loads.load(*ranges, value=Value(schema="a INT", max_corrupt_records=million))
    assert (result.rows, result.corrupt_records) == (million + 3, million)
    corrupt = read_table("Parquet", loads.path).column("_corrupt_record")
    counts = {one["values"]: one["counts"] for one in corrupt.value_counts().to_pylist()}
    assert counts == {"{": million // 2, None: 3, "?": million // 2}


@pytest.mark.parametrize(
    ("name", "days"),
    [("", ["2013-01-01", "2013-01-02"]), ("late", ["2020-05-05", "2020-05-05"]), ("_timestamp", None)],
)
def test_the_time_that_date_and_hour_come_from(loads: Loads, name: str, days: list[str] | None) -> None:
    """The only TIMESTAMP column, the named one of several, or the log's own time."""
    late = ", late TIMESTAMP" if name == "late" else ""
    texts = [f'{{"at": "2013-01-0{day}T07:00:00Z", "late": "2020-05-05T23:59:59Z"}}' for day in (1, 2)]
    loads.publish([(None, text.encode()) for text in texts])
    loads.load((0, 0, 2), value=Value(schema="at TIMESTAMP" + late, time_column=name), partition_by=("date",))
    rows = loads.rows()
    assert [str(row["date"]) for row in rows] == (days or [str(row["_timestamp"].date()) for row in rows])


@pytest.mark.parametrize(
    ("value", "partition_by", "said"),
    [
        (Value("Avro", '{"type": "record", "name": "F", "fields": [{"name": "x", "type": "nope"}]}'), (),
         "value.schema: is not allowed: Undefined schema: nope"),
        (Value("Avro", json.dumps({**FLIGHT, "fields": [{"name": "_offset", "type": "int"}]})), (),
         'value.schema: "_offset" is not allowed'),
        (Value(schema="a INT", time_column="a"), ("date",),
         'value.timeColumn: "a" is not allowed: one of _timestamp, the TIMESTAMP columns'),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(
    loads: Loads, value: Value, partition_by: tuple[str, ...], said: str
) -> None:
    loads.publish([(None, b"x")])
    with pytest.raises(BadRun, match=said) as caught:
        loads.load((0, 0, 1), value=value, partition_by=partition_by)
    assert "\n" not in str(caught.value)


def test_whatever_follows_a_json_object_makes_it_corrupt(loads: Loads) -> None:
    whole = [b'{"a": 7}', b' {"a": 7, "b": {"c": "}"}} \r\n', b'{"a": 7, "b": {"c": "x"}} // }']
    more = [
        b'{"a": 7}\n{"a": 8}',
        b'{"a": 7} trailing',
        b'{"a": 7},{"a": 8}',
        b'{"a": 7}}',
        b'{"a": 7}]',
        b'{"a": 7}\n"text"',
        b'{"a": 7}{"a": 8',
        b'{"a": 7, "b": {"c": "x"}}{}',
        b'{"a": 7, "b": {"c": "x"}} /* no end',
    ]
    loads.publish([(None, value) for value in [*whole, *more]])
    value = Value(schema="a INT, b STRUCT<c: STRING>", options={"allowComments": "true"})
    result = loads.load((0, 0, len(whole) + len(more)), value=value)
    assert result.corrupt_records == len(more)
    rows = loads.rows()
    assert [row["a"] for row in rows[: len(whole)]] == [7] * len(whole)
    assert [row["_corrupt_record"] for row in rows] == [None] * len(whole) + [text.decode() for text in more]


def test_whatever_follows_a_line_or_a_record_makes_it_corrupt(loads: Loads) -> None:
    good = avro(FLIGHT, UA)
    more = [good + b"\x00", good + good, good + b"x" * 16, good + b"x" * 40]
    loads.publish(
        [(None, good), *((None, value) for value in more)], [(None, b"AA,1"), (None, b"AA,1\0UA,2")]
    )
    assert loads.load((0, 0, 5), value=Value("Avro", json.dumps(FLIGHT))).corrupt_records == len(more)
    assert columns(loads.rows(), "carrier", "_corrupt_record") == [
        ("UA", None),
        *((None, value) for value in more),
    ]
    line = Value("CSV", "carrier STRING, delay DOUBLE")
    result = loads.load((1, 0, 2), name="lines", value=line, output={"path": str(loads.path.parent / "csv")})
    assert (result.rows, result.corrupt_records) == (2, 1)


def test_whatever_follows_a_record_with_an_id_makes_it_corrupt(loads: Loads) -> None:
    with SchemaRegistry() as registry:
        whole = confluent(registry.register("flights", FLIGHT), avro(FLIGHT, UA))
        loads.publish([(None, whole), (None, whole + b"\x02"), (None, whole + whole)])
        value = Value("Avro", schema_registry=RegistryAt(registry.url))
        assert loads.load((0, 0, 3), value=value).corrupt_records == 2
