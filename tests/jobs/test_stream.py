"""Loads by Structured Streaming: each record once, whatever the checkpoint remembers; readers are not Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from millstream_harness.broker import BrokerProcess
from millstream_harness.scenario import eventually
from millstream_harness.spark_loads import ICEBERG_TABLE, PY4J, SCHEMA, Loads, without_bytes
from millstream_jobs import load as job
from millstream_jobs.outputs import OutputError
from millstream_jobs.run import BadRun, Output, Result
from millstream_jobs.stream import Stream, main, stream
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of pyiceberg and deltalake
]
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'


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
    request: pytest.FixtureRequest, spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path
) -> Streams:
    return Streams(Loads(spark, shared_broker.bootstrap, tmp_path), request.param)


def test_each_record_is_loaded_once_by_whichever_start(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before a batch is in the table, then after it, but before the checkpoint knows; then that is lost."""
    streams.loads.publish([(None, RECORD)] * 3 + [(None, b"?")], [(None, RECORD)])
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
    streams.produce(1)  # which the batch that was begun does not have
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


def test_with_an_interval_it_goes_on_until_it_is_stopped(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path
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


def test_a_stream_that_cannot_be_is_one_line(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
