"""Publishing tables into topics: a consumer reads each row once, in its place."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Row, SparkSession

from millstream_harness import spark_publications as publications
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.spark_loads import PY4J
from millstream_harness.spark_publications import PARTITIONS, Topic
from millstream_jobs import positions, publication, sending
from millstream_jobs.brokers import Brokers
from millstream_jobs.files import PosixFiles
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.publish import publish
from millstream_jobs.publish_file import Content, Publish, Source, read_publish
from millstream_jobs.run import BadRun, Result

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings(PY4J),
]
ROWS = 3000


@pytest.fixture
def topic(shared_broker: InProcessBroker) -> Topic:
    return Topic(shared_broker)


@pytest.fixture
def wanted(topic: Topic, tmp_path: Path) -> dict[str, Any]:
    return publications.publication(topic, tmp_path, ROWS)


def read(wanted: dict[str, Any], folder: Path) -> Publish:
    (folder / "publish.json").write_text(json.dumps(wanted))
    return read_publish(folder / "publish.json")


def test_rows_become_records_with_key_headers_and_time(
    spark: SparkSession, topic: Topic, wanted: dict[str, Any], tmp_path: Path
) -> None:
    """Keys go to the same partitions as with a Java client; librdkafka's murmur2 confirms it."""
    record = {
        "key": "carrier",
        "value": "to_json(struct(id))",
        "headers": {"origin": "upper(carrier)"},
        "timestamp": "timestamp_seconds(1700000000 + id)",
    }
    query = "SELECT * FROM source WHERE id < 200 ORDER BY id"
    settings = {**wanted, "record": record, "source": {**wanted["source"], "query": query}}
    assert publish(spark, read(settings, tmp_path)) == Result("Succeeded", rows=200)
    assert topic.ids() == list(range(200))
    parts: dict[bytes, int] = {}
    for message in topic.messages():
        number = json.loads(message.value() or b"")["id"]
        headers = dict(message.headers() or ())
        assert message.key() == f"carrier {number % 50}".encode()
        assert headers["origin"] == f"CARRIER {number % 50}".encode()
        assert headers[sending.PUBLICATION] == b"delays"
        assert message.timestamp()[1] == (1_700_000_000 + number) * 1000
        parts[message.key() or b""] = message.partition() or 0
    for partition in range(PARTITIONS):
        numbers = [json.loads(m.value() or b"")["id"] for m in topic.messages() if m.partition() == partition]
        assert numbers == sorted(numbers), "the query's order"
    other = Producer({"bootstrap.servers": topic.bootstrap, "partitioner": "murmur2"})
    placed: dict[bytes, int] = {}
    for key in parts:
        other.produce(topic.name, b"", key, on_delivery=lambda _, m: placed.update({m.key(): m.partition()}))
    assert other.flush(30) == 0
    assert placed == parts


def test_a_publication_that_was_begun_goes_on_behind_its_last_row(
    spark: SparkSession, topic: Topic, wanted: dict[str, Any], tmp_path: Path
) -> None:
    """Other producers' records lie between. The query orders its rows at random, so the staged rows must count."""
    source = {**wanted["source"], "query": "SELECT * FROM source ORDER BY rand()"}
    half = read({**wanted, "source": source, "partitioner": "RoundRobin"}, tmp_path)
    files = PosixFiles(half.staging)
    plan, others = publication.make(spark, half, files)
    assert not others
    assert publication.make(spark, half, files) == (plan, True), "the first one decides"
    rows = publication.staged(spark, half, plan).where("number < 10 * (target + 1)")
    sending.send(spark, half, plan, rows)
    assert len(topic.ids()) == 60
    for number in range(ROWS, ROWS + 3):
        topic.produce(json.dumps({"id": number}).encode(), number % PARTITIONS)
    assert publish(spark, half).rows == ROWS
    assert topic.ids() == list(range(ROWS + 3))
    assert publish(spark, half).rows == ROWS, "told again, not done again"
    assert topic.ids() == list(range(ROWS + 3))
    other = read({**wanted, "partitioner": "CRC32"}, tmp_path)
    with pytest.raises(BadRun, match="delays is a publication of other content"):
        publish(spark, other)


def test_a_row_that_another_program_sent_too_is_told(
    spark: SparkSession, topic: Topic, wanted: dict[str, Any], tmp_path: Path
) -> None:
    given = read({**wanted, "partitioner": "RoundRobin"}, tmp_path)
    plan, _ = publication.make(spark, given, PosixFiles(given.staging))
    transactions = sending.send(spark, given, plan, publication.staged(spark, given, plan))
    assert transactions == dict.fromkeys(range(PARTITIONS), 1)
    sending.check(spark, given, plan, transactions)
    topic.produce(b"", 1, headers=[(sending.PUBLICATION, b"delays"), (sending.ROW, b"7")])
    with pytest.raises(sending.SendingError, match=r"-1: 1 rows are there more than once, the first is .* 7"):
        sending.check(spark, given, plan, transactions)


def task_of(topic: Topic) -> sending.Task:
    ids = "millstream-publication-delays-5f3a-"
    starts = dict.fromkeys(range(PARTITIONS), 0)
    return sending.Task("delays", Brokers(topic.bootstrap), topic.name, starts, None, "none", ids)


def rows(begin: int, end: int) -> Iterator[Row]:
    for number in range(begin, end):
        value = json.dumps({"id": number}).encode()
        yield Row(number=number, key=None, value=value, headers=[], timestamp=0)


def test_a_driver_that_lives_on_is_fenced(topic: Topic) -> None:
    """Of its open transaction no row counts, and it sends no more; the other sends all that are left."""
    part = TopicPartition(topic.name, 1)

    def taken_over() -> Iterator[Row]:
        yield from rows(0, 10)
        with positions.consumer(Brokers(topic.bootstrap), positions.READ_UNCOMMITTED) as consumer:
            until(lambda: consumer.get_watermark_offsets(part, 30)[1] == 10, "ten rows are in the log")
        assert sending._send_partition(task_of(topic), 1, rows(0, 20)) == 1
        yield from rows(10, 20)

    with pytest.raises(sending.SendingError, match="another driver of delays has taken over"):
        sending._send_partition(task_of(topic), 1, taken_over())
    assert topic.ids() == list(range(20))
    assert sending._send_partition(task_of(topic), 1, rows(0, 20)) == 0, "all are there"


def test_rows_of_a_task_that_fails_are_not_there(topic: Topic) -> None:
    """A record that is too large ends it. Its transaction is aborted: nobody waits for its time-out."""

    def too_large() -> Iterator[Row]:
        yield from rows(0, 10)
        yield Row(number=10, key=None, value=bytes(2_000_000), headers=[], timestamp=0)

    sent = sending._outcome(task_of(topic), 1, too_large())
    assert "too large" in sent.error
    assert topic.ids() == []
    assert sending._outcome(task_of(topic), 1, rows(0, 11)) == sending.Sent(1, 1)
    assert topic.ids() == list(range(11))


def test_a_long_task_commits_now_and_then(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one goes on behind the last committed row."""
    monkeypatch.setattr(sending, "COMMIT_S", 0.0)
    assert sending._send_partition(task_of(topic), 1, rows(0, 3)) == 3

    def lost() -> Iterator[Row]:
        yield from rows(0, 5)
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        sending._send_partition(task_of(topic), 1, lost())
    assert topic.ids() == list(range(5))
    assert sending._send_partition(task_of(topic), 1, rows(0, 7)) == 2
    assert topic.ids() == list(range(7))


def test_a_topic_that_is_created_again_gets_none_of_the_rows(
    spark: SparkSession, topic: Topic, wanted: dict[str, Any], tmp_path: Path
) -> None:
    given = read({**wanted, "partitioner": "RoundRobin"}, tmp_path)
    plan, _ = publication.make(spark, given, PosixFiles(given.staging))
    rows = publication.staged(spark, given, plan).where("number < 10")
    sending.send(spark, given, plan, rows)
    assert len(topic.ids()) == 30
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(30)
    admin.create_topics([NewTopic(topic.name, PARTITIONS, 1)])[topic.name].result(10)
    topic.produce(b'{"id": 0}', 0)
    with pytest.raises(
        TopicReplaced, match=f"topic: {topic.name} was deleted and created again: .*another name"
    ):
        publish(spark, given)
    assert topic.ids() == [0]


def test_a_rate_is_kept(spark: SparkSession, wanted: dict[str, Any], tmp_path: Path) -> None:
    query = "SELECT * FROM source WHERE id < 200"
    given = {**wanted, "maxRecordsPerSecond": 100, "source": {**wanted["source"], "query": query}}
    began = time.monotonic()
    assert publish(spark, read(given, tmp_path)).rows == 200
    assert time.monotonic() - began > 1.9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": Source("/none", "Delta")}, "source or record: "),
        ({"record": Content(key="nope")}, "source or record: .*nope"),
        ({"record": Content(partition="7")}, "record.partition: 7 is not allowed: .* has partitions 0 to 2"),
        ({"topic": "none"}, "none is not there"),
    ],
)
def test_what_cannot_be_published_is_one_line(
    spark: SparkSession, wanted: dict[str, Any], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    given = read(wanted, tmp_path)
    bad = Publish(**{name: getattr(given, name) for name in given.__struct_fields__} | change)
    with pytest.raises(BadRun, match=said) as caught:
        publish(spark, bad)
    assert "\n" not in str(caught.value)
