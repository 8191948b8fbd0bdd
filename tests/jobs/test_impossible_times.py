"""Records with times that no table can hold are set aside, named, and count as corrupt."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from millstream_harness.spark_loads import PY4J, Loads
from millstream_jobs.completeness import TooManyCorrupt
from millstream_jobs.impossible_times import Aside, around
from millstream_jobs.run import OffsetRange
from millstream_jobs.value import Record, Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
]
NOW = 1_760_000_000_000
ANY = str(2**63 - 1)


def published(loads: Loads, *times: int) -> None:
    loads.publish([], config={"message.timestamp.after.max.ms": ANY, "message.timestamp.before.max.ms": ANY})
    producer = Producer({"bootstrap.servers": loads.bootstrap})
    for number, time in enumerate(times):
        value = json.dumps({"n": number})
        producer.produce(loads.topic, value, None, 0, timestamp=time, headers=[("h", b"x")])
    assert producer.flush(30) == 0


def test_impossible_times_of_records_are_set_aside(loads: Loads, capsys: pytest.CaptureFixture[str]) -> None:
    published(loads, NOW, NOW * 1_000_000, NOW, 2**63 - 1, 569_000_000_000_000)
    value, record = Value(schema="n INT"), Record(headers=True)
    result = loads.load((0, 0, 5), value=value, record=record, partition_by=("date",))
    assert (result.rows, result.corrupt_records) == (5, 3)
    rows = loads.rows()
    assert [row["n"] for row in rows] == [0, None, 2, None, None]
    assert [row["_corrupt_record"] for row in rows] == [None, '{"n": 1}', None, '{"n": 3}', '{"n": 4}']
    assert [row["_timestamp"] is None for row in rows] == [False, True, False, True, True]
    assert [row["_headers"][0]["value"] for row in rows] == [b"x"] * 5
    assert f"{loads.topic}-0 at offset 1 has the time {NOW * 1_000_000} ms" in capsys.readouterr().out


def test_the_limit_for_corrupt_records_holds_for_them(loads: Loads) -> None:
    published(loads, NOW, NOW * 1_000_000)
    value = Value(schema="n INT", max_corrupt_records=0)
    with pytest.raises(TooManyCorrupt, match=f"the first is {loads.topic}-0 at offset 1"):
        loads.load((0, 0, 2), value=value)
    assert loads.load((0, 0, 1), name="before", value=value).rows == 1


def test_impossible_times_in_values_are_corrupt(loads: Loads) -> None:
    times = ["2026-01-01T00:00:00Z", "+20000-01-01T00:00:00Z"]
    loads.publish([(None, json.dumps({"at": time, "n": 1}).encode()) for time in times])
    value = Value(schema="at TIMESTAMP, n INT")
    assert loads.load((0, 0, 2), value=value, partition_by=("date",)).corrupt_records == 1
    assert [row["n"] for row in loads.rows()] == [1, None]


def test_ranges_are_read_around_records() -> None:
    aside = [Aside("t", 0, offset, 0, None, None) for offset in (0, 3, 4, 9)] + [
        Aside("u", 0, 5, 0, None, None)
    ]
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 2), OffsetRange("v", 0, 5, 6)]
    assert around(ranges, aside) == [
        [OffsetRange("t", 0, 1, 3), OffsetRange("t", 1, 0, 2), OffsetRange("v", 0, 5, 6)],
        [OffsetRange("t", 0, 5, 9)],
    ]
    assert around(ranges, []) == [ranges]
