"""Which partition each client chooses for a key, and what the pages say about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

import millstream
from millstream.records import consume
from millstream.topics import create_topic
from millstream_harness.command import millstream as command
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[2] / "docs"
KEYS = ("EWR", "JFK", "UA")


async def of_aiokafka(bootstrap: str, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for key in KEYS:
            await producer.send_and_wait(topic, b"", key=key.encode())


def of_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    for key in KEYS:
        producer.send(topic, b"", key=key.encode()).get(10)
    producer.close()


def of_confluent_kafka(**config: str) -> Callable[[str, str], None]:
    def produce(bootstrap: str, topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **config})
        for key in KEYS:
            producer.produce(topic, key=key)
        assert producer.flush(10) == 0

    return produce


def of_the_library(bootstrap: str, topic: str) -> None:
    with millstream.Producer(bootstrap) as producer:
        for key in KEYS:
            producer.send(topic, b"", key=key)


def of_the_command(bootstrap: str, topic: str) -> None:
    lines = "".join(f"{key}:\n" for key in KEYS).encode()
    ended = command("produce", topic, "--key-separator", ":", bootstrap=bootstrap, stdin=lines)
    assert ended.returncode == 0, ended.stderr


async def test_pages_say_where_each_client_puts_a_key(shared_broker: InProcessBroker) -> None:
    bootstrap = shared_broker.bootstrap
    cluster = millstream.Cluster(bootstrap)

    async def partitions(produce: Callable[[str, str], object]) -> list[int]:
        topic = unique("keys")
        create_topic(cluster, topic, partitions=6)
        running = produce(bootstrap, topic)
        if running is not None:
            await running  # type: ignore[misc]
        found = {record.key: record.partition for record in consume(cluster, topic)}
        return [found[key.encode()] for key in KEYS]

    murmur2 = await partitions(of_the_library)
    for produce in (
        of_the_command,
        of_aiokafka,
        of_kafka_python,
        of_confluent_kafka(partitioner="murmur2_random"),
    ):
        assert await partitions(produce) == murmur2
    crc32 = await partitions(of_confluent_kafka())

    rows = re.findall(r"^\|.*\| (\d) \| (\d) \| (\d) \|", (DOCS / "how-to/connect.md").read_text(), re.M)
    assert [[int(one) for one in row] for row in rows] == [murmur2, crc32, murmur2]
    rows = re.findall(r"^\| `(\w+)` \| (\d) \| (\d) \|$", (DOCS / "client/producing.md").read_text(), re.M)
    assert [(key, int(ours), int(others)) for key, ours, others in rows] == list(
        zip(KEYS, murmur2, crc32, strict=True)
    )
