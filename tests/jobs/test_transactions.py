"""Jobs count what is committed: markers and aborted records are no losses, and an open transaction ends a range."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from millstream_harness import spark_publications as publications
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.spark_loads import PY4J, Loads, read_table
from millstream_harness.spark_publications import Topic
from millstream_harness.transactional_writer import TransactionalWriter
from millstream_jobs import positions, publication, sending
from millstream_jobs.audit import audit
from millstream_jobs.audits.file import Audit
from millstream_jobs.brokers import Brokers
from millstream_jobs.files import PosixFiles
from millstream_jobs.publish import publish
from millstream_jobs.publish_file import read_publish
from millstream_jobs.rewind import Rewind, rewind
from millstream_jobs.run import Output
from millstream_jobs.stream import Stream, stream
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
VALUE = Value(schema="n INT")
START = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
START_MS = int(START.timestamp() * 1000)


def numbers(*values: int) -> list[bytes]:
    return [json.dumps({"n": value}).encode() for value in values]


@pytest.fixture
def writer(loads: Loads) -> TransactionalWriter:
    """The writer of a topic of one partition: 0 and 1 are committed, 2 is aborted, and 3 is committed.

    The offsets are 0 and 1, 3, 5, and those of the markers, 2, 4 and 6.
    """
    loads.publish([])
    writer = TransactionalWriter(loads.bootstrap, loads.topic)
    for some, ends in (((0, 1), writer.commit), ((2,), writer.abort), ((3,), writer.commit)):
        writer.begin(*numbers(*some), timestamp=START_MS)
        ends()
    return writer


def loaded(loads: Loads) -> list[int]:
    return [row["n"] for row in loads.rows()]


def test_load_reads_what_is_committed(loads: Loads, writer: TransactionalWriter) -> None:
    assert loads.load((0, 0, 7), value=VALUE).rows == 3
    assert loaded(loads) == [0, 1, 3]


@pytest.mark.parametrize("aborted", [1, 30])
def test_load_of_aborted_records_alone(loads: Loads, writer: TransactionalWriter, aborted: int) -> None:
    for _ in range(aborted):
        writer.begin(*numbers(4))
        writer.abort()
    assert loads.load((0, 7, 7 + 2 * aborted), value=VALUE).rows == 0


def test_rewind_ends_before_open_transaction(loads: Loads, writer: TransactionalWriter) -> None:
    writer.begin(*numbers(4), timestamp=START_MS)
    wanted = Rewind("rewind", loads.bootstrap, (loads.topic,), START, Output(str(loads.path)), value=VALUE)
    assert rewind(loads.spark, wanted).rows == 3
    assert loaded(loads) == [0, 1, 3]
    writer.commit()


def test_stream_stops_before_open_transaction_and_loads_it_later(
    loads: Loads, writer: TransactionalWriter, tmp_path: Path
) -> None:
    wanted = Stream(
        name="numbers",
        bootstrap=loads.bootstrap,
        topics=(loads.topic,),
        checkpoint=str(tmp_path / "checkpoint"),
        output=Output(str(loads.path)),
        value=VALUE,
    )
    writer.begin(*numbers(4))
    assert stream(loads.spark, wanted).rows == 3
    writer.commit()
    assert stream(loads.spark, wanted).rows == 1
    writer.begin(*numbers(5))
    writer.abort()
    assert stream(loads.spark, wanted).rows == 0
    assert loaded(loads) == [0, 1, 3, 4]


def test_audit_counts_what_is_committed(loads: Loads, writer: TransactionalWriter, tmp_path: Path) -> None:
    loads.load((0, 0, 7), value=VALUE)
    writer.begin(*numbers(4, 5), timestamp=START_MS)
    wanted = Audit(
        "audit",
        loads.bootstrap,
        topics=(loads.topic,),
        output=Output(str(tmp_path / "audits")),
        tables=(Output(str(loads.path)),),
    )
    audit(loads.spark, wanted)
    writer.commit()
    audit(loads.spark, wanted)
    rows = sorted(read_table("Parquet", tmp_path / "audits").to_pylist(), key=lambda row: row["audited_at"])
    found = [tuple(row[name] for name in ("in_log", "in_table", "missing", "state")) for row in rows]
    assert found == [(3, 3, 0, "Complete"), (5, 3, 2, "Missing")]


def test_times_end_where_an_open_transaction_begins(loads: Loads, writer: TransactionalWriter) -> None:
    later = int(time.time() * 1000) + 60_000  # markers have the time of the broker
    writer.begin(*numbers(4), timestamp=later)
    since = dt.datetime.fromtimestamp(later / 1000, dt.UTC)
    (found,) = positions.between(Brokers(loads.bootstrap), [loads.topic], since, None)
    assert (found.first, found.until) == (7, 7)
    writer.commit()
    (found,) = positions.between(Brokers(loads.bootstrap), [loads.topic], since, None)
    assert (found.first, found.until) == (7, 9)


def test_publication_waits_for_a_transaction_of_others_before_its_rows(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after it has sent the rows. Until the other producer ends, nobody knows whether they count."""
    topic = Topic(shared_broker)
    settings: dict[str, Any] = publications.publication(topic, tmp_path, 60)
    (tmp_path / "publish.json").write_text(json.dumps(settings))
    wanted = read_publish(tmp_path / "publish.json")
    other = TransactionalWriter(topic.bootstrap, topic.name)
    other.begin(b'{"id": -1}')
    plan, _ = publication.make(spark, wanted, PosixFiles(wanted.staging))
    transactions = sending.send(spark, wanted, plan, publication.staged(spark, wanted, plan))
    sending.check(spark, wanted, plan, transactions)
    sending.check(spark, wanted, plan, {})  # counts them, row by row
    target = plan.targets[0]
    part = TopicPartition(topic.name, target.partition)
    assert target.start == 1, "behind the other's"

    def last_row(sleep: Callable[[float], None]) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", sleep)
            return sending._last_row(wanted.brokers, part, target.start, wanted.name)

    monkeypatch.setattr(sending, "OTHERS_S", -1.0)
    with pytest.raises(sending.SendingError, match="another producer has been open since offset 0"):
        last_row(time.sleep)
    monkeypatch.setattr(sending, "OTHERS_S", 3600.0)
    aborts = iter([other.abort])
    pause = time.sleep
    assert last_row(lambda seconds: next(aborts, lambda: pause(seconds))()) == target.rows - 1
    assert publish(spark, wanted).rows == 60
    assert topic.ids() == list(range(60))
