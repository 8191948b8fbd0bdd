"""Audits compare producers' reports, the log and tables exactly, down to a single record."""

from __future__ import annotations

import datetime as dt
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.counts import Counts
from millstream.errors import BadInput
from millstream_harness.spark import publish
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, Loads, read_table
from millstream_jobs import table
from millstream_jobs.audit import audit, main
from millstream_jobs.audits import extents, page, reported
from millstream_jobs.audits.file import Audit, Server, read_audit
from millstream_jobs.audits.result import Audited
from millstream_jobs.brokers import Brokers
from millstream_jobs.run import BadRun, Output
from millstream_jobs.value import Record, Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
VALUE = Value(schema="number INT, host STRING, created STRING")


class Audits:
    """A topic of two partitions, a topic of reports, and a table of loads."""

    def __init__(self, loads: Loads, folder: Path) -> None:
        self.loads, self.folder = loads, folder
        self.topic, self.reports = loads.topic, f"{loads.topic}-reports"
        publish(loads.bootstrap, self.topic, [[], []])
        publish(loads.bootstrap, self.reports, [[]])
        self.producer = Producer({"bootstrap.servers": loads.bootstrap, "linger.ms": 5})

    def recreate(self) -> None:
        """Delete the topic, and create an empty one of its name."""
        admin = AdminClient({"bootstrap.servers": self.loads.bootstrap})
        admin.delete_topics([self.topic])[self.topic].result(10)
        publish(self.loads.bootstrap, self.topic, [[], []])
        self.producer = Producer({"bootstrap.servers": self.loads.bootstrap, "linger.ms": 5})

    def send(
        self, minute: float, server: str = "", *, count: int = 1, partition: int = 0, **value: Any
    ) -> None:
        at = int((START + minute * MINUTE).timestamp() * 1000)
        headers = [("server", b"proxy"), ("server", server.encode())] if server else []
        for number in range(count):
            self.producer.produce(
                self.topic,
                json.dumps({"number": number, **value}).encode(),
                partition=partition,
                timestamp=at,
                headers=headers,
            )
        assert self.producer.flush(30) == 0

    def report(self, minute: int, count: int, server: str = "", **more: Any) -> None:
        start = (START + minute * MINUTE).isoformat().replace("+00:00", "Z")
        report = {
            "topic": self.topic,
            "windowStart": start,
            "windowSeconds": 600,
            "server": server,
            "count": count,
        }
        self.raw_report(json.dumps(report | more).encode())

    def raw_report(self, value: bytes | None) -> None:
        self.producer.produce(self.reports, value)
        assert self.producer.flush(30) == 0

    def load(self, name: str, *ranges: tuple[int, int, int], format: str = "Parquet", **more: Any) -> None:
        output = {"format": format, "table": ICEBERG_TABLE if format == "Iceberg" else ""}
        result = self.loads.load(*ranges, name=name, value=VALUE, output=output, **more)
        assert result.rows == sum(until - first for _, first, until in ranges)

    def table(self, format: str = "Parquet") -> Output:
        table = ICEBERG_TABLE if format == "Iceberg" else ""
        return Output(str(self.loads.path), format=format, table=table)  # type: ignore[arg-type]

    def wanted(self, **more: Any) -> Audit:
        given = {
            "reports": self.reports,
            "output": Output(str(self.folder / "audits")),
            "topics": (self.topic,),
        }
        return Audit("audit", self.loads.bootstrap, **(given | more))

    def audit(self, **more: Any) -> Audited:
        return audit(self.loads.spark, self.wanted(**more))

    def rows(self, format: str = "Parquet") -> list[dict[str, Any]]:
        """Rows of all audits so far, by topic, time and server, read without Spark."""
        rows: list[dict[str, Any]] = read_table(format, self.folder / "audits").to_pylist()
        return sorted(rows, key=lambda row: (row["topic"], row["window_start"], row["server"]))

    def states(self, *columns: str) -> list[tuple[Any, ...]]:
        """Minute, state and the given columns of each row of the last audit."""
        rows = self.rows()
        last = max(row["audited_at"] for row in rows)
        return [
            ((row["window_start"] - START) // MINUTE, row["state"], *(row[name] for name in columns))
            for row in rows
            if row["audited_at"] == last
        ]


@pytest.fixture
def audits(loads: Loads, tmp_path: Path) -> Audits:
    return Audits(loads, tmp_path)


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_each_record_is_accounted_for(audits: Audits, format: str) -> None:
    """Records are lost before the log, missing in the table or twice in it; counted by window and by server header."""
    audits.send(0, "web-1", count=3)  # partition 0, offsets 0 to 2
    audits.send(9.99, "web-2", count=2, partition=1)  # partition 1, 0 to 1
    audits.send(10, "web-1", count=4)  # partition 0, 3 to 6
    audits.send(20, "web-2", count=2, partition=1)  # partition 1, 2 to 3
    for minute, server, count in ((0, "web-1", 3), (0, "web-2", 3), (10, "web-1", 4), (20, "web-2", 2)):
        audits.report(minute, count, server)
    audits.load("all-but-one", (0, 0, 4), (1, 0, 3), format=format)
    audits.load("others", (0, 5, 7), (1, 2, 4), format=format)  # skips 0-4, repeats 1-2
    table = audits.table(format)
    where = msgspec.structs.replace(table, path=str(audits.folder / "audits"))
    done = audits.audit(server=Server(header="server"), tables=(table,), output=where)
    rows = audits.rows(format)
    names = (
        "produced",
        "found",
        "in_log",
        "in_table",
        "missing_log",
        "missing_table",
        "missing",
        "duplicated",
    )
    assert [(row["server"], row["state"], *(row[name] for name in names)) for row in rows] == [
        ("web-1", "Complete", 3, 3, 3, 3, 0, 0, 0, 0),
        ("web-2", "Missing", 3, 2, 2, 2, 1, 0, 1, 0),
        ("web-1", "Missing", 4, 4, 4, 3, 0, 1, 1, 0),
        ("web-2", "Duplicated", 2, 2, 2, 2, 0, 0, 0, 1),
    ]
    ends = [START + minutes * MINUTE for minutes in (10, 10, 20, 30)]
    assert [row["window_end"] for row in rows] == ends
    assert [row["window_start"] for row in rows] == [end - 10 * MINUTE for end in ends]
    assert [row["first_missing"] for row in rows] == [None, None, f"{audits.topic}-0 at offset 4", None]
    assert {(row["topic"], row["audit"], row["unreported"], row["expired"]) for row in rows} == {
        (audits.topic, "audit", 0, 0)
    }
    assert done.windows == {
        "Open": 0,
        "Missing": 2,
        "Duplicated": 1,
        "Expired": 0,
        "Unreported": 0,
        "Complete": 1,
    }
    sums = (done.rows, done.produced, done.found, done.in_log, done.in_table, done.missing, done.duplicated)
    assert sums == (4, 12, 11, 11, 10, 2, 1)


def test_too_many_missing_records_fail_the_job_and_are_named(audits: Audits) -> None:
    audits.send(0, count=5)
    audits.report(0, 6)
    audits.load("some", (0, 0, 2))
    tables = (audits.table(),)
    assert audits.audit(tables=tables, max_missing=4).missing == 4
    with pytest.raises(BadRun) as caught:
        audits.audit(tables=tables, max_missing=3, report=str(audits.folder / "report.html"))
    assert str(caught.value) == (
        f"maxMissing: 4 records are missing, allowed: 3; most in topic {audits.topic}, window 2024-01-01T00:00:00Z"
        f" of 10 minutes: 4, the first in no table is {audits.topic}-0 at offset 2;"
        " 1 row of the audit has missing records"
    )
    assert (audits.folder / "report.html").exists()
    assert [row["missing"] for row in audits.rows()] == [4, 4], "the second audit's row is there, too"
    assert len({row["audited_at"] for row in audits.rows()}) == 2


def test_a_window_is_open_until_grace_has_passed(audits: Audits) -> None:
    now = (dt.datetime.now(dt.UTC) - START) // MINUTE
    young = now // 10 * 10
    for minute in (young - 600, young):
        audits.send(minute)
        audits.report(minute, 2)
    done = audits.audit(max_missing=1)
    assert audits.states("missing") == [(young - 600, "Missing", 1), (young, "Open", 1)]
    assert (done.missing, done.produced) == (1, 2), "only of closed windows"
    audits.audit(grace="1 days", max_missing=0, last="2 days")
    assert audits.states() == [(young - 600, "Open"), (young, "Open")]


def test_reports_count_once_and_bad_ones_are_named(audits: Audits) -> None:
    audits.send(0, count=10)
    for count, more in (
        (4, {"producer": "a"}),
        (4, {"producer": "a"}),  # sent twice
        (3, {"producer": "b", "sequence": 2}),
        (9, {"producer": "b", "sequence": 1}),  # older than the one before, and late
        (1, {"producer": "c", "windowSeconds": 60}),
        (1, {"producer": "c", "windowSeconds": 60, "windowStart": "2024-01-01T01:09:00+01:00"}),
        (1, {"producer": "c", "windowSeconds": 300}),
        (50, {"topic": "another", "windowSeconds": 7200}),
    ):
        audits.report(0, count, **more)
    assert audits.audit().bad_reports == 0
    assert audits.states("produced", "missing", "unreported") == [(0, "Complete", 10, 0, 0)]

    bad: list[tuple[bytes | None, str]] = [
        (b"{", "is not JSON with a report's fields"),
        (None, "has no value"),
        (b"{}", "has no topic"),
        (b'{"topic": "TOPIC"}', "has no windowStart"),
        (
            b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:00:00"}',
            "has a windowStart that is no time such as",
        ),
        (b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:00:00Z"}', "has no windowSeconds"),
        (
            b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:00:00Z", "windowSeconds": 0, "count": 1}',
            "above zero",
        ),
        (
            b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:00:00Z", "windowSeconds": 9, "count": -1}',
            "below zero",
        ),
        (
            b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:05:00Z", "windowSeconds": 301, "count": 1}',
            "into two",
        ),
        (
            b'{"topic": "TOPIC", "windowStart": "2024-01-01T00:00:00Z", "windowSeconds": "x", "count": 1}',
            "is not JSON",
        ),
    ]
    for value, _ in bad:
        audits.raw_report(value and value.replace(b"TOPIC", audits.topic.encode()))
    read = extents.find(Brokers(audits.loads.bootstrap), [audits.reports], None)
    records = table.read_ranges(
        audits.loads.spark, Brokers(audits.loads.bootstrap), [one.offsets for one in read]
    )
    found = reported.parse(records, 600).where("why IS NOT NULL AND offset > 7").orderBy("offset").collect()
    assert len(found) == len(bad)
    for row, (_, why) in zip(found, bad, strict=True):
        assert why in row["why"]
    done = audits.audit(report=str(audits.folder / "report.html"))
    assert (done.bad_reports, done.produced, done.missing) == (len(bad), 10, 0)
    said = f"{audits.reports}-0 at offset 8 is not JSON with a report&#x27;s fields"
    assert said in (audits.folder / "report.html").read_text()


def test_more_records_than_were_reported(audits: Audits) -> None:
    audits.send(0, count=3)
    audits.send(10, count=2)
    audits.report(0, 2)
    assert audits.audit().missing == 0
    assert audits.states("unreported") == [(0, "Unreported", 1), (10, "Unreported", 2)]


def test_what_retention_has_deleted_is_not_lost(audits: Audits) -> None:
    """Four windows of three records; the log has none of the first two and two of the third."""
    for minute in (0, 10, 20, 30):
        audits.send(minute, "web-1", count=3)
        audits.report(minute, 3, "web-1")
    audits.report(30, 4, "web-1", sequence=1)
    audits.load("first", (0, 0, 3), record=Record(headers=True))
    audits.load("last", (0, 8, 12), record=Record(headers=True))
    admin = AdminClient({"bootstrap.servers": audits.loads.bootstrap})
    gone = TopicPartition(audits.topic, 0, 7)
    admin.delete_records([gone])[gone].result(10)
    audits.audit(server=Server(header="server"), tables=(audits.table(),))
    assert audits.states("found", "in_log", "in_table", "missing", "expired") == [
        (0, "Complete", 3, 0, 3, 0, 0),  # the table has them all
        (10, "Expired", 0, 0, 0, 0, 3),
        (20, "Missing", 2, 2, 1, 1, 1),  # offset 7 is still in the log
        (30, "Missing", 3, 3, 3, 1, 0),
    ]


def test_what_retention_has_deleted_without_reports(audits: Audits) -> None:
    audits.send(0, count=3)
    audits.send(10, count=2)
    audits.load("all", (0, 0, 5))
    admin = AdminClient({"bootstrap.servers": audits.loads.bootstrap})
    gone = TopicPartition(audits.topic, 0, 4)
    admin.delete_records([gone])[gone].result(10)
    audits.audit(reports=None, tables=(audits.table(),))
    assert audits.states("produced", "found", "in_log", "in_table") == [
        (0, "Expired", None, 3, 0, 3),
        (10, "Expired", None, 2, 1, 2),
    ]
    rest = TopicPartition(audits.topic, 0, 5)
    admin.delete_records([rest])[rest].result(10)
    since = START + 10 * MINUTE
    audits.audit(reports=None, tables=(audits.table(),), since=since, until=since + 10 * MINUTE)
    assert audits.states("found", "in_log", "in_table") == [(10, "Expired", 2, 0, 2)], "nothing is in the log"


@pytest.mark.parametrize("format", ["Parquet", "Delta", "Iceberg"])
def test_rows_of_an_earlier_topic_of_the_name_stand_for_no_other_records(audits: Audits, format: str) -> None:
    """Four records were loaded before the topic was deleted. One of its successor's two was, at the first offset."""
    audits.send(0, count=4)
    audits.report(0, 4)
    audits.load("before", (0, 0, 4), format=format)
    audits.recreate()
    audits.send(20, count=2)
    audits.report(20, 2)
    audits.load("after", (0, 0, 1), format=format)
    table = audits.table(format)
    done = audits.audit(tables=(table,))
    assert audits.states("found", "in_log", "in_table", "missing_table", "duplicated") == [
        (0, "Complete", 4, 0, 4, 0, 0),
        (20, "Missing", 2, 2, 1, 1, 0),
    ]
    assert done.missing == 1


def test_time_and_server_from_fields_and_several_topics(audits: Audits) -> None:
    """Two topics, one of them without reports; time and server come from the records' fields."""
    loads = audits.loads
    other = Audits(Loads(loads.spark, loads.bootstrap, audits.folder / "other"), audits.folder)
    audits.send(5, created="2024-01-01T00:31:00Z", host="a")
    audits.send(500, created=str(int((START + 32 * MINUTE).timestamp() * 1000)), host="a", partition=1)
    audits.send(5, created="no time", host="b")
    other.send(5)
    audits.report(30, 3, "a")
    audits.load("some", (0, 0, 1))
    done = audits.audit(
        time="created",
        server=Server(field="host"),
        topics=(audits.topic, other.topic),
        tables=(audits.table(),),
    )
    rows = {(row["topic"], row["server"]): row for row in audits.rows()}
    assert rows.keys() == {(audits.topic, "a"), (audits.topic, "b"), (other.topic, "")}
    first = rows[audits.topic, "a"]
    assert (first["window_start"], first["missing_log"], first["missing_table"]) == (
        START + 30 * MINUTE,
        1,
        1,
    )
    assert first["lateness_s"] == (500 - 40) * 60
    assert rows[audits.topic, "b"]["window_start"] == START
    assert rows[other.topic, ""]["missing_table"] == 1
    assert (done.rows, done.missing) == (3, 4)


def test_the_report_has_plots_and_figures_and_says_what_it_leaves_out(
    audits: Audits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "BARS", 4)
    monkeypatch.setattr(page, "ROWS", 2)
    monkeypatch.setattr(page, "SERVERS", 2)
    for minute, server in ((0, "<web>"), (40, "web-2"), (50, "web-3")):
        audits.send(minute, server, count=1000)
        audits.report(minute, 1001, server)
    path = audits.folder / "reports" / "report.html"
    audits.audit(server=Server(header="server"), report=str(path), output=None)
    text = path.read_text()
    assert "3 records are missing" in text
    assert '<div class="card"><span>reported by producers</span><b>3,003</b></div>' in text
    assert '<div class="card"><span>missing</span><b class="bad">3</b></div>' in text
    assert "in the tables" not in text
    assert text.count('<div class="window">') == 2
    told = "reported by producers <b>1,001</b> · in the log <b>1,000</b> · missing <b>1</b></small>"
    assert text.count(told) == 2
    assert "2 of 3 rows, those with the most missing records first" in text
    assert "2 of 3 servers" in text
    assert "&lt;web&gt;" in text
    assert "<web>" not in text
    assert "a bar is 2 windows" in text
    assert not re.search(r"(src|href)=", text), "it needs nothing beside it"
    assert "width=device-width" in text
    (plot,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    notes = [note.text for note in ET.fromstring(plot).iterfind(".//{*}g/{*}title")]
    assert notes == [
        "2024-01-01 00:00: 1,000 complete, 1 missing",
        "2024-01-01 00:20: no records",
        "2024-01-01 00:40: 2,000 complete, 2 missing",
    ]
    bars = ET.fromstring(plot).findall(".//{*}rect")
    assert [bar.get("fill") for bar in bars] == [page.BLUE, page.RED] * 2
    assert min(float(bar.get("height") or 0) for bar in bars) > 2, "one record of a thousand is visible"


def test_counts_of_our_own_client_agree_with_the_topic(audits: Audits) -> None:
    """Two producers of one server: one reports each window at its end, and later a late record of an ended window."""
    now = START.timestamp() + 5 * 60
    reports: list[bytes] = []

    def send(report: bytes) -> None:
        reports.append(report)
        audits.producer.produce(audits.reports, report)

    first, second = (Counts(send, server="web-1", clock=lambda: now) for _ in range(2))

    def produce(counts: Counts, minute: int, number: int) -> None:
        at = int((START + minute * MINUTE).timestamp() * 1000)
        for _ in range(number):
            audits.producer.produce(
                audits.topic, b"{}", headers={"server": "web-1"}, timestamp=at, on_delivery=counts.delivered
            )
        assert audits.producer.flush(30) == 0

    produce(first, 1, 7)
    produce(second, 9, 5)
    assert (first.report(), len(reports)) == (0, 0), "its window has not ended"
    now += 10 * 60
    produce(first, 11, 3)
    assert len(reports) == 1, "the first record after the window's end reports it"
    produce(first, 2, 1)
    assert first.report() == 1
    audits.raw_report(reports[0])  # sent twice
    assert (first.close(), second.close(), first.close()) == (1, 1, 0)
    assert audits.producer.flush(30) == 0
    audits.audit(server=Server(header="server"))
    assert audits.states("produced", "in_log") == [(0, "Complete", 13, 13), (10, "Complete", 3, 3)]


def test_a_report_that_is_not_sent_stays_to_be_sent() -> None:
    sent: list[bytes] = []

    def send(report: bytes) -> None:
        if not sent:
            sent.append(b"")
            raise BufferError("the queue is full")
        sent.append(report)

    counts = Counts(send, window_s=60, clock=lambda: 0)
    counts.add("flights", 61_000, 2)
    with pytest.raises(BufferError):
        counts.close()
    assert counts.close() == 1
    report = json.loads(sent[1])
    assert (report["windowStart"], report["windowSeconds"], report["count"]) == (
        "1970-01-01T00:01:00Z",
        60,
        2,
    )
    with pytest.raises(BadInput, match="window_s: 0 is not allowed"):
        Counts(send, window_s=0)


def test_nothing_to_count(audits: Audits) -> None:
    done = audits.audit(report=str(audits.folder / "report.html"))
    assert (done.rows, done.missing, done.produced) == (0, 0, None)
    assert "There are no records in this time." in (audits.folder / "report.html").read_text()


def test_an_audit_that_cannot_be_is_one_line(audits: Audits) -> None:
    def said(**given: Any) -> str:
        with pytest.raises(BadRun) as caught:
            audits.audit(**given)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "topics: nope is not there" in said(topics=("nope",))
    assert "reports: nope is not there" in said(reports="nope")
    for format in ("Parquet", "Delta"):
        assert "tables[0]: " in said(tables=(Output(str(audits.folder / "nope"), format=format),))
    iceberg = Output(str(audits.folder / "nope"), format="Iceberg", table=ICEBERG_TABLE)
    assert "tables[1]: " in said(tables=(iceberg, iceberg)).replace("tables[0]", "tables[1]")
    audits.loads.spark.range(3).write.parquet(str(audits.folder / "numbers"))
    assert "has no column _topic: only tables that loads have written" in said(
        tables=(Output(str(audits.folder / "numbers")),)
    )


def test_a_file_that_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"name": "audit", "bootstrap": "127.0.0.1:9", "topics": ["flights"], "reports": "audits"}
    path = tmp_path / "audit.json"
    table = {"format": "Delta", "path": "/lake/flights"}
    path.write_text(json.dumps(good | {"tables": [table], "last": "2 days", "server": {"header": "host"}}))
    assert read_audit(path).tables[0].format == "Delta"
    for change, words in (
        ({"window": "0 minutes"}, 'window: "0 minutes" is not allowed: "30 seconds"'),
        ({"window": 10}, "window: 10 is not allowed"),
        ({"grace": "an hour"}, 'grace: "an hour" is not allowed'),
        ({"reports": None}, "reports or tables: one of them is needed"),
        ({"reports": "flights"}, "reports: flights is not allowed: it is one of topics"),
        ({"topics": ["a", "a"]}, "topics: a topic is listed twice"),
        ({"last": "1 days", "from": "2024-01-01T00:00:00Z"}, "last: not allowed with from or until"),
        ({"from": "2024-01-02T00:00:00Z", "until": "2024-01-02T00:00:00Z"}, "until: 2024-01-02"),
        ({"server": {}}, "server: write either header or field"),
        ({"server": {"field": "a b"}}, 'server.field: "a b" is not allowed: a JSON field'),
        ({"tables": [{"path": "lake"}]}, 'tables[0].path: "lake" is not allowed: an absolute path'),
        (
            {"tables": [table | {"table": "a.b"}]},
            "tables[0].table is not allowed with tables[0].format Delta",
        ),
        ({"output": table | {"mode": "Replace"}}, "output.mode: Replace is not allowed"),
        ({"report": "a.html"}, 'report: "a.html" is not allowed: an absolute path of a file'),
        ({"maxMissing": -1}, "maxMissing: -1 is not allowed"),
    ):
        path.write_text(json.dumps(good | change))
        assert main([str(path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert words in line
