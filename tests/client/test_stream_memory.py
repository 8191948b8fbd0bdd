"""A slow consumer of a large topic: its memory depends on `max_buffered_bytes`, not on what is in the topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millstream
from millstream.topics import create_topic
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.slow_reader import read_slowly
from millstream_harness.streams import options_for
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

PARTITIONS = 4
TOPIC_MB = 320
BUFFERED_MB = 8
FETCH_MB = PARTITIONS * 1.05
"""One fetch response: `fetch.message.max.bytes` of each partition."""
SMALL, LARGE = 1_000, 800_000


@pytest.fixture(scope="module")
def brokers(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    """With a topic of small and one of large messages."""
    with ClusterProcesses(tmp_path_factory.mktemp("brokers"), 1, zookeeper=shared_zookeeper) as cluster:
        for size in (SMALL, LARGE):
            create_topic(millstream.Cluster(cluster.bootstrap), f"slow-{size}", partitions=PARTITIONS)
            with millstream.Producer(cluster.bootstrap) as producer:
                for number in range(TOPIC_MB * 1_000_000 // size):
                    producer.send(f"slow-{size}", b"x" * size, partition=number % PARTITIONS)
        yield cluster


@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("way", "how"), [("cooperative-sticky", "blocking"), ("zookeeper", "blocking"), ("range", "async")]
)
def test_a_slow_consumer_keeps_its_memory(brokers: ClusterProcesses, way: str, how: str, size: int) -> None:
    """The queue may be full twice: once in librdkafka, and once in the batch that the stream hands out."""
    messages = TOPIC_MB * 1_000_000 // size
    options = {**options_for(way, brokers), "max_buffered_bytes": BUFFERED_MB * 1_000_000}
    found = read_slowly(brokers.bootstrap, f"slow-{size}", messages, BUFFERED_MB, how, options)
    assert found["seen"] == [messages // PARTITIONS] * PARTITIONS
    assert found["slow"] > BUFFERED_MB, "it never had a full queue"
    most_mb = 2 * (BUFFERED_MB + FETCH_MB)
    assert max(found["slow"], found["fast"]) < 1.5 * most_mb + 10, (
        found
    )  # the allocator's share, and Python's
