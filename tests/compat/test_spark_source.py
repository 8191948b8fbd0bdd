"""Spark's own Kafka source, batch and streaming, with each of its two ways to look up offsets.

`spark.sql.streaming.kafka.useDeprecatedOffsetFetching`: true uses a consumer (poll, seek, position), false
the admin client (ListOffsets).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from millstream_harness.scenario import BASE_TIMESTAMP_MS, unique
from millstream_harness.spark import as_configured, spark_session

PARTITIONS = 3
RECORDS = 90
"""Number of records at first, in turn to each partition, a second apart."""
# A Python thread has its own connection to Spark's JVM; py4j leaves closing it to the garbage collector.
GATEWAY = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings(GATEWAY),
]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with spark_session() as shared, as_configured(shared) as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


@pytest.fixture(params=["true", "false"], ids=["consumer-fetcher", "admin-fetcher"])
def spark(session: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    session.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", request.param)
    return session


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("spark")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    publish(bootstrap, name, range(RECORDS))
    return name


def publish(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": "true"})
    for number in numbers:
        producer.produce(
            topic,
            str(number).encode(),
            b"key-%d" % number,
            partition=number % PARTITIONS,
            timestamp=BASE_TIMESTAMP_MS + number * 1000,
            headers=[("number", str(number).encode())],
        )
    assert producer.flush(30) == 0


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select(frame.value.cast("string").alias("value")).collect())


def of(topic: str, values: Iterable[int]) -> str:
    """Spark's JSON: a value for each partition; -2 is earliest, -1 latest."""
    return json.dumps({topic: {str(partition): value for partition, value in enumerate(values)}})


class Source:
    def __init__(self, spark: SparkSession, bootstrap: str, topic: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}

    def batch(self, **options: Any) -> list[int]:
        return numbers(self._spark.read.format("kafka").options(**self._options, **options).load())

    def stream(self, folder: Path, **options: Any) -> list[int]:
        """Run once over the present records, from where the last run stopped; return everything written so far."""
        stream = self._spark.readStream.format("kafka").options(**self._options, **options).load()
        query = (
            stream.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "table"))
        )
        assert query.awaitTermination(200), "still running"
        return numbers(self._spark.read.schema("value STRING").parquet(str(folder / "table")))


@pytest.fixture
def source(spark: SparkSession, bootstrap: str, topic: str) -> Source:
    return Source(spark, bootstrap, topic)


def test_batch_by_offsets(source: Source, topic: str) -> None:
    assert source.batch() == list(range(RECORDS))
    assert source.batch(startingOffsets="earliest", endingOffsets="latest") == list(range(RECORDS))
    found = source.batch(startingOffsets=of(topic, (10, -2, 30)), endingOffsets=of(topic, (12, 5, -1)))
    assert found == sorted([30, 33, 1, 4, 7, 10, 13])


def test_batch_by_timestamps(source: Source, topic: str) -> None:
    at = [BASE_TIMESTAMP_MS + number * 1000 for number in (30, 60)]
    assert source.batch(startingTimestamp=str(at[0]), endingTimestamp=str(at[1])) == list(range(30, 60))
    found = source.batch(
        startingOffsetsByTimestamp=of(topic, (at[1], at[1] + 500, at[1] - 500)),
        endingOffsets="latest",
    )
    assert found == list(range(60, RECORDS))
    beyond = str(BASE_TIMESTAMP_MS + RECORDS * 1000)
    assert source.batch(startingTimestamp=str(at[1]), endingTimestamp=beyond) == list(range(60, RECORDS))
    assert source.batch(startingTimestamp=beyond, startingOffsetsByTimestampStrategy="latest") == []


def test_batch_has_all_columns(spark: SparkSession, bootstrap: str, topic: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribePattern": topic, "includeHeaders": "true"}
    rows = spark.read.format("kafka").options(**options).load().collect()
    for row in rows:
        number = int(row.value)
        assert (row.topic, row.partition, row.offset) == (topic, number % PARTITIONS, number // PARTITIONS)
        assert bytes(row.key) == b"key-%d" % number
        assert row.timestamp.timestamp() * 1000 == BASE_TIMESTAMP_MS + number * 1000
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("number", str(number).encode())]
    assert len(rows) == RECORDS


def test_stream_goes_on_from_its_checkpoint(
    source: Source, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    assert source.stream(tmp_path, **options) == list(range(RECORDS))
    publish(bootstrap, topic, range(RECORDS, RECORDS + 15))
    assert source.stream(tmp_path, **options) == list(range(RECORDS + 15))
    assert source.stream(tmp_path, **options) == list(range(RECORDS + 15))


def test_stream_from_a_timestamp_and_from_the_end(
    source: Source, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    start = str(BASE_TIMESTAMP_MS + 45 * 1000)
    assert source.stream(tmp_path / "time", startingTimestamp=start) == list(range(45, RECORDS))
    assert source.stream(tmp_path / "end", startingOffsets="latest") == []
    publish(bootstrap, topic, range(RECORDS, RECORDS + 6))
    assert source.stream(tmp_path / "end", startingOffsets="latest") == list(range(RECORDS, RECORDS + 6))
