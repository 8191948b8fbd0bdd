"""Streams of two topics, created by one call: each kind of coordination divides both topics evenly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import millstream
from millstream.topics import create_topic
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.scenario import unique
from millstream_harness.streams import WAYS, connect, fill, options_for

pytestmark = pytest.mark.soak

EACH = 30
"""Number of messages in each partition."""
Read = tuple[str, int, int, int]
"""The topic of a message, the number of its stream, its partition and offset."""


@pytest.fixture
def cluster(brokers: ClusterProcesses) -> millstream.Cluster:
    return millstream.Cluster(brokers.bootstrap)


class Topics:
    """Flights, with eight partitions for four streams, and weather, with four partitions for two streams."""

    def __init__(self, cluster: millstream.Cluster) -> None:
        self.cluster = cluster
        self.flights, self.weather = unique("flights"), unique("weather")
        self.partitions = {self.flights: 8, self.weather: 4}
        self.wanted = {self.flights: 4, self.weather: 2}
        for topic, count in self.partitions.items():
            create_topic(cluster, topic, partitions=count)

    def fill(self) -> None:
        for topic, count in self.partitions.items():
            fill(self.cluster, topic, [EACH] * count)

    def are_divided(self, streams: dict[str, list[millstream.MessageStream]], each: int) -> bool:
        """Whether each stream has this many partitions of its own topic, and together they have all."""
        return all(
            [len(stream.partitions) for stream in streams[topic]] == [each] * len(streams[topic])
            and sorted(number for stream in streams[topic] for number in stream.partitions)
            == list(range(self.partitions[topic]))
            for topic in self.wanted
        )

    def owned(self, streams: dict[str, list[millstream.MessageStream]]) -> list[Read]:
        """All messages, each with the stream that owns its partition now."""
        return sorted(
            (topic, number, partition, offset)
            for topic, found in streams.items()
            for number, stream in enumerate(found)
            for partition in stream.partitions
            for offset in range(EACH)
        )


@pytest.fixture
def topics(cluster: millstream.Cluster) -> Topics:
    return Topics(cluster)


@contextmanager
def read_by_threads(streams: dict[str, list[millstream.MessageStream]]) -> Iterator[list[Read]]:
    """Reads each stream in a thread of its own during the block; yields the messages that they have read."""
    seen: list[Read] = []

    def read(number: int, stream: millstream.MessageStream) -> None:
        for message in stream:
            seen.append((message.topic, number, message.partition, message.offset))  # noqa: PERF401 - it grows

    threads = [
        threading.Thread(target=read, args=one) for found in streams.values() for one in enumerate(found)
    ]
    for thread in threads:
        thread.start()
    yield seen
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_read_two_topics(
    brokers: ClusterProcesses, cluster: millstream.Cluster, topics: Topics, way: str
) -> None:
    group, options = unique("group"), options_for(way, brokers)
    connector = connect(cluster, group, **options)
    streams = connector.create_message_streams(topics.wanted)
    assert {topic: len(found) for topic, found in streams.items()} == topics.wanted
    with read_by_threads(streams) as seen, connector:
        until(lambda: topics.are_divided(streams, 2), "each stream has two partitions")
        owned = topics.owned(streams)
        topics.fill()
        until(lambda: len(seen) >= 12 * EACH, "all is read")
        connector.commit()
    assert sorted(seen) == owned
    fill(cluster, topics.weather, [1, 0, 0, 0])
    fill(cluster, topics.flights, [0, 0, 0, 1])
    connector = connect(cluster, group, **options)
    with (
        read_by_threads(connector.create_message_streams({topics.flights: 1, topics.weather: 1})) as seen,
        connector,
    ):
        until(lambda: len(seen) == 2, "what is new is read")
    assert sorted(seen) == sorted([(topics.flights, 0, 3, EACH), (topics.weather, 0, 0, EACH)])


@pytest.mark.parametrize("way", WAYS)
async def test_tasks_that_read_two_topics(
    brokers: ClusterProcesses, cluster: millstream.Cluster, topics: Topics, way: str
) -> None:
    seen: list[Read] = []
    connector = await asyncio.to_thread(connect, cluster, **options_for(way, brokers))
    streams = await asyncio.to_thread(connector.create_message_streams, topics.wanted)

    async def read(number: int, stream: millstream.MessageStream) -> None:
        async for message in stream:
            seen.append((message.topic, number, message.partition, message.offset))  # noqa: PERF401 - it grows

    tasks = [asyncio.create_task(read(*one)) for found in streams.values() for one in enumerate(found)]
    await asyncio.to_thread(until, lambda: topics.are_divided(streams, 2), "each stream has two partitions")
    owned = topics.owned(streams)
    await asyncio.to_thread(topics.fill)
    await asyncio.to_thread(until, lambda: len(seen) >= 12 * EACH, "all is read")
    await asyncio.to_thread(connector.close)
    await asyncio.gather(*tasks)
    assert sorted(seen) == owned


@pytest.mark.parametrize("way", WAYS)
def test_two_connectors_share_two_topics(
    brokers: ClusterProcesses, cluster: millstream.Cluster, topics: Topics, way: str
) -> None:
    """The second one gets half of each topic; when it closes, the first one has all partitions again."""
    group, options = unique("group"), options_for(way, brokers)
    one, two = connect(cluster, group, **options), connect(cluster, group, **options)
    first, second = one.create_message_streams(topics.wanted), two.create_message_streams(topics.wanted)
    both = {topic: first[topic] + second[topic] for topic in topics.wanted}
    with read_by_threads(both), one, two:
        until(lambda: topics.are_divided(both, 1), "each of twelve streams has one partition")
        two.close()
        until(lambda: topics.are_divided(first, 2), "each of six streams has two partitions")
