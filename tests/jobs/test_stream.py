"""Structured Streaming loads each record once, whatever the checkpoint remembers; read without Spark."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, SCHEMA, Loads, without_bytes
from millstream_jobs import checkpoint, completeness
from millstream_jobs import load as job
from millstream_jobs.checkpoint import CheckpointError, ranges
from millstream_jobs.files import PosixFiles
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.outputs import OutputError
from millstream_jobs.run import BadRun, Output, Result
from millstream_jobs.stream import Stream, main, stream
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'
TWO_DOCUMENTS = RECORD + b"\n" + RECORD


class Streams:
    def __init__(self, loads: Loads, format: str) -> None:
        self.loads, self.format = loads, format
        self.checkpoint = loads.path.parent / "checkpoint"

    def stream(self, **more: Any) -> Stream:
        table = ICEBERG_TABLE if self.format == "Iceberg" else ""
        return Stream(
            name="flights",
            bootstrap=self.loads.bootstrap,
            topics=(self.loads.topic,),
            checkpoint=str(self.checkpoint),
            output=Output(str(self.loads.path), format=self.format, table=table, partition_by=("date",)),  # type: ignore[arg-type]
            value=Value(schema=SCHEMA),
            **more,
        )

    def start(self, **more: Any) -> Result:
        return stream(self.loads.spark, self.stream(**more))

    def produce(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.loads.bootstrap})
        for _ in range(records):
            producer.produce(self.loads.topic, RECORD, partition=0)
        assert producer.flush(30) == 0

    def offsets(self) -> list[tuple[int, int]]:
        return [(row["_partition"], row["_offset"]) for row in self.loads.rows(self.format)]


@pytest.fixture(params=["Parquet", "Delta", "Iceberg"])
def streams(
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> Streams:
    return Streams(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def test_each_record_is_loaded_once_by_whichever_start(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One start dies before its batch is in the table, the next before the checkpoint knows; then that is lost."""
    streams.loads.publish([(None, RECORD)] * 3 + [(None, TWO_DOCUMENTS)], [(None, RECORD)])
    assert without_bytes(streams.start()) == Result("Succeeded", rows=5, corrupt_records=1)
    whole = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert streams.offsets() == whole

    streams.produce(2)

    def dies(*_: Any) -> Result:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(job, "load", dies)
        with pytest.raises(OSError, match="killed"):
            streams.start()
    streams.produce(1)  # not in the batch that has begun
    assert streams.start().rows == 3
    whole = [(0, offset) for offset in range(7)] + [(1, 0)]
    assert streams.offsets() == whole

    commits = [path for path in (streams.checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    streams.start()
    assert streams.offsets() == whole
    assert streams.start() == Result("Succeeded", bytes_=0), "nothing is left"

    shutil.rmtree(streams.checkpoint)
    with pytest.raises(OutputError, match="run named flights-00000000 is published there with other offsets"):
        streams.start()
    assert streams.offsets() == whole


def test_records_are_read_once_and_by_the_load(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    """Spark's own micro-batches carry offsets and read no records."""
    streams = Streams(Loads(spark, shared_broker.bootstrap, tmp_path), "Parquet")
    streams.loads.publish([(None, RECORD)] * 20, [(None, RECORD)] * 2)
    ended = threading.Event()
    told: list[dict[str, Any]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            told.append(json.loads(event.progress.json))

        def onQueryTerminated(self, event: Any) -> None:
            ended.set()

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        assert streams.start(max_records_per_batch=11).rows == 22
        assert ended.wait(200)
    finally:
        spark.streams.removeListener(listener)
    ends = [one["sources"][0]["endOffset"][streams.loads.topic] for one in told]
    assert {"0": 20, "1": 2} in ends
    assert len(ends) >= 2
    assert sum(one["numInputRows"] for one in told) == 0


def test_a_topic_that_is_created_again_ends_the_stream(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    streams = Streams(Loads(spark, shared_broker.bootstrap, tmp_path), "Parquet")
    topic = streams.loads.topic
    streams.loads.publish([(None, RECORD)] * 3)
    assert streams.start().rows == 3
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    streams.loads.publish([(None, RECORD)] * 5)
    with pytest.raises(CheckpointError, match=f"topics: {topic} was deleted and created again: take another"):
        streams.start()
    assert streams.offsets() == [(0, 0), (0, 1), (0, 2)]


def test_a_topic_that_is_created_again_during_a_batch_ends_the_stream(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(Loads(spark, shared_broker.bootstrap, tmp_path), "Delta")
    topic = streams.loads.topic
    streams.loads.publish([(None, RECORD)] * 3)
    check = completeness.check

    def check_and_replace(*given: Any) -> tuple[int, int]:
        found = check(*given)
        admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
        admin.delete_topics([topic])[topic].result(30)
        streams.loads.publish([(None, RECORD)] * 5)
        return found

    monkeypatch.setattr(completeness, "check", check_and_replace)
    with pytest.raises(TopicReplaced, match=f"topics: {topic} was deleted and created again"):
        streams.start()
    assert streams.offsets() == []


def test_with_an_interval_it_goes_on_until_it_is_stopped(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    streams = Streams(Loads(spark, shared_broker.bootstrap, tmp_path), "Parquet")
    streams.loads.publish([(None, RECORD)] * 5)
    results: list[Result] = []
    given = {"interval": "1 seconds", "max_records_per_batch": 3}
    running = InheritableThread(target=lambda: results.append(streams.start(**given)))
    running.start()

    def runs() -> int:
        return len(list(streams.loads.path.glob("load_run=*")))

    try:
        eventually(runs, lambda count: count >= 2, "five records in two batches", 120)
        streams.produce(1)
        eventually(runs, lambda count: count >= 3, "one more", 120)
    finally:
        for query in spark.streams.active:
            query.stop()
        running.join()
    assert [without_bytes(result) for result in results] == [Result("Succeeded", rows=6)]
    assert streams.offsets() == [(0, offset) for offset in range(6)]


def spark_writes(root: Path, **contents: str) -> PosixFiles:
    """Write a checkpoint's files of offsets: Spark's headers, then these contents."""
    for name, content in contents.items():
        path = root / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = "\0v1\n" if name == "sources_0_0" else 'v1\n{"batchWatermarkMs":0}\n'
        path.write_text(begin + content)
    return PosixFiles(str(root))


def test_offsets_of_a_batch_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    files = spark_writes(
        tmp_path,
        sources_0_0='{"t":{"0":5,"1":0}}',
        offsets_0='{"t":{"1":0,"0":9}}',
        offsets_1='{"t":{"0":9,"1":4,"2":7},"u":{"0":1}}',
        offsets_2='{"t":{"0":9,"1":4,"2":7},"u":{"0":1}}',
    )
    assert [str(part) for part in ranges(files, 0)] == ["t-0 5 to 9"]
    assert [str(part) for part in ranges(files, 1)] == ["t-1 0 to 4", "t-2 0 to 7", "u-0 0 to 1"]
    assert ranges(files, 2) == ()


def test_ids_that_an_older_release_wrote_are_known(tmp_path: Path) -> None:
    """The older release wrote ids as librdkafka does."""
    files = PosixFiles(str(tmp_path))
    files.replace(checkpoint.TOPICS, json.dumps({"t": "ab+/" * 5 + "AA"}).encode())
    checkpoint.check_topics(files, {"t": "ab-_" * 5 + "AA"})
    with pytest.raises(checkpoint.TopicReplaced, match="topics: t was deleted and created again"):
        checkpoint.check_topics(files, {"t": "ab-_" * 5 + "AQ"})


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ('{"t":{"1":4}}', "topics: t-0 is gone: the topic was deleted, or taken out of topics: take another"),
        ('{"t":{"0":8}}', "topics: t-0 ends at offset 8, but was loaded up to 9: take another name"),
        ("-", "checkpoint: offsets/1 there has no offsets in Spark's format v1"),
        ('{"t":7}', "checkpoint: offsets/1 there has no offsets in Spark's format v1"),
        (None, "checkpoint: offsets/1 there is missing"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path: Path, offsets: str | None, said: str) -> None:
    files = spark_writes(tmp_path, offsets_0='{"t":{"0":9}}')
    if offsets is not None:
        spark_writes(tmp_path, offsets_1=offsets)
    with pytest.raises(CheckpointError) as caught:
        ranges(files, 1)
    assert str(caught.value).startswith(said)


def test_a_stream_that_cannot_be_is_one_line(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = Streams(Loads(spark, shared_broker.bootstrap, tmp_path), "Parquet")
    with pytest.raises(BadRun, match=f"topics: {streams.loads.topic} is not there"):
        streams.start()
    path = tmp_path / "stream.json"
    given = {
        "name": "s",
        "bootstrap": "h:1",
        "topics": ["t"],
        "checkpoint": "/c",
        "output": {"path": "/lake"},
    }
    path.write_text(json.dumps({**given, "interval": "often"}))
    assert main([str(path)]) == 2
    assert 'interval: "often" is not allowed: a time such as "60 seconds"' in capsys.readouterr().err
