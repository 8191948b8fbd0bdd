"""A producer's stamps and `millstream audit report`: losses, duplicates and late records."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

import millstream
from millstream.audits import AuditTally
from millstream.errors import BadInput, NotDelivered, UnknownTopic
from millstream.records import consume
from millstream.topics import create_topic, delete_topics
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.CompletedProcess[bytes]]
WINDOW_MS = 600_000
START_MS = 1_700_000_400_000 - 1_700_000_400_000 % WINDOW_MS


@pytest.fixture
def reports(shared_broker: InProcessBroker) -> str:
    name = unique("audits")
    create_topic(millstream.Cluster(shared_broker.bootstrap), name, partitions=1)
    return name


def send(
    broker: InProcessBroker, topic: str, reports: str, server: str, windows: int = 2, each: int = 50
) -> None:
    """Send this many records in each window to one partition."""
    audit = millstream.Audit(topic=reports, server=server)
    with millstream.Producer(broker.bootstrap, audit=audit) as producer:
        for number in range(windows * each):
            at = START_MS + number // each * WINDOW_MS + number % each
            producer.send(topic, b"%d" % number, partition=0, timestamp=at, headers={"own": b"1"})


def report(run: Run, topic: str, reports: str) -> Any:
    return json.loads(run("audit", "report", topic, "--reports", reports, "-o", "json").stdout)


def test_all_that_was_produced_was_received(
    run: Run, shared_broker: InProcessBroker, topic: str, reports: str
) -> None:
    for server in ("web-1", "web-2"):
        send(shared_broker, topic, reports, server)
    found = report(run, topic, reports)
    assert [(row["server"], row["produced"], row["received"], row["missing"]) for row in found["rows"]] == [
        ("web-1", 50, 50, 0), ("web-2", 50, 50, 0), ("web-1", 50, 50, 0), ("web-2", 50, 50, 0),
    ]  # fmt: skip
    assert (found["gaps"], found["badReports"], found["unstamped"]) == ([], 0, 0)
    (record, *_) = consume(millstream.Cluster(shared_broker.bootstrap), topic)
    headers = dict(record.headers)
    assert (headers["own"], headers["server"]) == (b"1", b"web-1")
    assert (headers["audit"] or b"").endswith(b":0:%d" % START_MS)
    table = run("audit", "report", topic, "--reports", reports).stdout.decode()
    assert "PRODUCED" in table


def test_a_loss_is_located(run: Run, shared_broker: InProcessBroker, topic: str, reports: str) -> None:
    """A copy of the topic lacks six records, repeats one and has one late; the report covers the copy."""
    copy = unique("copy")
    create_topic(millstream.Cluster(shared_broker.bootstrap), copy, partitions=1)
    send(shared_broker, topic, reports, "web-1")
    cluster = millstream.Cluster(shared_broker.bootstrap)
    records = list(consume(cluster, topic))
    told = [json.loads(one.value or b"") for one in consume(cluster, reports)]
    copier = KafkaProducer({"bootstrap.servers": shared_broker.bootstrap})
    kept = [*records[1:20], *records[26:], records[30], records[0]]
    for record in kept:
        copier.produce(
            copy, record.value, partition=0, headers=list(record.headers), timestamp=record.timestamp
        )
    for one in told:
        copier.produce(reports, json.dumps({**one, "topic": copy}))
    copier.produce(reports, b"{")
    copier.produce(copy, b"by another producer", partition=0)
    assert copier.flush(20) == 0
    found = report(run, copy, reports)
    one, two = found["rows"]
    assert {key: one[key] for key in ("produced", "received", "missing", "duplicated", "late")} == {
        "produced": 50, "received": 44, "missing": 6, "duplicated": 1, "late": 1,
    }  # fmt: skip
    assert (two["produced"], two["received"], two["missing"]) == (50, 50, 0)
    (gap,) = found["gaps"]
    assert (gap["topic"], gap["server"], gap["first"], gap["last"], gap["after"]) == (
        copy,
        "web-1",
        20,
        25,
        [0, 18],
    )
    assert (found["badReports"], found["unstamped"]) == (1, 1)
    said = run("audit", "report", copy, "--reports", reports).stdout.decode()
    where = f"missing: {copy}, server web-1, producer {gap['producer']}"
    assert f"{where}, number 20 to 25, after {copy}-0 offset 18" in said


def test_late_records_and_reports_that_come_twice() -> None:
    tally = AuditTally(["t"], 600)

    def stamp(number: int, at_ms: int) -> list[tuple[str, bytes]]:
        return [("server", b"s"), ("audit", b"p:%d:%d" % (number, at_ms))]

    tally.record("t", 0, 0, stamp(0, START_MS))
    tally.record("t", 0, 1, stamp(1, START_MS + 2 * WINDOW_MS))
    tally.record("t", 0, 2, stamp(2, START_MS + 1))
    tally.record("t", 1, 0, stamp(3, START_MS + 2))  # another partition has its own order
    told = {
        "topic": "t",
        "windowStart": "2023-11-14T22:20:00Z",
        "windowSeconds": 600,
        "server": "s",
        "producer": "p",
    }
    for count in (9, 3):  # the later one corrects
        tally.report(json.dumps({**told, "count": count}).encode())
    tally.report(json.dumps({**told, "windowSeconds": 6000, "count": 1}).encode())
    first, _ = tally.rows()
    assert (first.produced, first.received, first.missing, first.late) == (3, 3, 0, 1)
    assert tally.bad_reports == 1
    for data in (None, b"[]", b"7", b'{"topic": ["t"]}', b'{"topic":"t","windowStart":"x"}'):
        tally.report(data)
    assert tally.bad_reports == 6
    for headers in ([("audit", b"\xff")], [("audit", b"p:x:1")], [("audit", None)], []):
        tally.record("t", 0, 3, headers)
    assert tally.unstamped == 4


def test_an_audit_without_a_topic_fails_at_once(shared_broker: InProcessBroker) -> None:
    audit = millstream.Audit(topic="no-audits", server="web-1")
    with pytest.raises(
        UnknownTopic, match='audit: there is no topic "no-audits": create it, or name another'
    ):
        millstream.Producer(shared_broker.bootstrap, audit=audit)


def test_records_get_their_reports_after_the_topic_of_the_audit_was_deleted(
    start_broker: Callable[..., InProcessBroker],
) -> None:
    """librdkafka then fails reports at once, in the delivery callbacks of records and in the polling thread."""
    cluster = millstream.Cluster(start_broker({"auto.create.topics.enable": "false"}).bootstrap)
    for name in ("orders", "audits"):
        create_topic(cluster, name, partitions=1)
    audit = millstream.Audit(topic="audits", server="web-1", window_s=1)
    config = {"topic.metadata.propagation.max.ms": 0, "topic.metadata.refresh.interval.ms": 100}
    with millstream.Producer(cluster, audit=audit, config=config) as producer:
        delete_topics(cluster, ["audits"])
        refused = ""
        while "of audits (keys none): Unable to produce" not in refused:
            assert producer.submit("orders", b"x").result(20).topic == "orders"
            try:
                producer.flush()
            except NotDelivered as error:
                refused = str(error)
        assert producer.submit("orders", b"x").result(20).topic == "orders"
        with contextlib.suppress(NotDelivered):
            producer.close()


def test_a_callback_that_fails_does_not_end_reports(shared_broker: InProcessBroker, topic: str) -> None:
    called = threading.Event()

    def statistics(_: str) -> None:
        if not called.is_set():
            called.set()
            raise RuntimeError("of the caller")

    config = {"statistics.interval.ms": 50, "stats_cb": statistics}
    with millstream.Producer(shared_broker.bootstrap, config=config) as producer:
        assert called.wait(20)
        assert producer.submit(topic, b"x").result(20).topic == topic


def test_an_audit_that_is_not_whole() -> None:
    with pytest.raises(BadInput, match="audit: topic and server are required"):
        millstream.Audit(topic="audits", server="")
    with pytest.raises(BadInput, match="window: 0 is not allowed"):
        AuditTally(["t"], 0)
