"""Message streams with a real broker: messages, who gets them, and the memory that they take."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import millstream
from millstream.errors import Closed, PoisonedMessage
from millstream.groups import committed_offsets, describe_group
from millstream.topics import create_topic
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import until
from millstream_harness.process import resident_mb
from millstream_harness.scenario import unique
from millstream_harness.streams import STRATEGIES, connect, fill

pytestmark = pytest.mark.soak


def test_a_message_has_all_that_it_was_sent_with(cluster: millstream.Cluster, topic: str) -> None:
    with millstream.Producer(cluster) as producer:
        producer.send(
            topic,
            "value",
            "key",
            partition=1,
            headers=[("a", b"1"), ("a", None)],
            timestamp=1_700_000_000_000,
        )
    with connect(cluster, value_deserializer=millstream.Text()) as connector:
        ((stream,),) = connector.create_message_streams({topic: 1}).values()
        message = next(iter(stream))
        assert (message.topic, message.partition, message.offset) == (topic, 1, 0)
        assert (message.key, message.value, message.raw_value) == (b"key", "value", b"value")
        assert (message.timestamp, message.headers) == (1_700_000_000_000, (("a", b"1"), ("a", None)))
        assert message.position == (topic, 1, 1)
        assert repr(message) == f"<Message {topic}-1 at offset 0>"
        assert stream.partitions == (0, 1, 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_messages_are_divided_among_streams(cluster: millstream.Cluster, topic: str, strategy: str) -> None:
    with connect(cluster, strategy=strategy) as connector:
        streams = connector.create_message_streams({topic: 3})[topic]
        seen: list[list[millstream.Message]] = [[], [], []]

        def read(number: int) -> None:
            for message in streams[number]:
                seen[number].append(message)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: sorted(stream.partitions for stream in streams) == [(0,), (1,), (2,)], "each has one")
        fill(cluster, topic, (50, 50, 50))
        until(lambda: sum(map(len, seen)) == 150, "all is read")
        owners = [stream.partitions for stream in streams]
    for thread in threads:
        thread.join()
    assert [tuple({message.partition for message in own}) for own in seen] == owners
    for own in seen:
        assert [message.offset for message in own] == list(range(50))


async def test_async_streams(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (20, 20, 20))
    connector = connect(cluster)
    one, two = connector.create_message_streams({topic: 2})[topic]
    values: list[str] = []
    everything = asyncio.Event()

    async def read(stream: millstream.MessageStream) -> None:
        async for message in stream:
            values.append(message.value)
            if len(set(values)) == 60:
                everything.set()

    tasks = [asyncio.create_task(read(stream)) for stream in (one, two)]
    await asyncio.wait_for(everything.wait(), 60)
    await asyncio.to_thread(connector.close)
    await asyncio.gather(*tasks)  # the streams end


async def test_a_connector_in_an_async_block(cluster: millstream.Cluster, topic: str) -> None:
    """At its end it leaves the group, and commits as a blocking one does; meanwhile the event loop runs."""
    fill(cluster, topic, (10,))
    group = unique("group")
    async with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        async for message in stream:
            if message.offset == 9:
                break
    assert committed_offsets(cluster, group)[topic, 0] == 9
    assert describe_group(cluster, group).members == ()
    with pytest.raises(Closed):
        stream.commit()


async def test_an_async_stream_that_is_cancelled_loses_nothing(
    cluster: millstream.Cluster, topic: str
) -> None:
    with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        values: list[str] = []

        async def read(most: int) -> None:
            async for message in stream:
                values.append(message.value)
                if len(values) == most:
                    return

        task = asyncio.create_task(read(30))
        await asyncio.to_thread(until, lambda: stream.partitions, "partitions are assigned")
        task.cancel()
        await asyncio.to_thread(fill, cluster, topic, (30,))
        await asyncio.wait_for(read(30), 60)
    assert values == [f"0-{number}" for number in range(30)]


def test_a_poisoned_message_is_named_and_can_be_skipped(cluster: millstream.Cluster, topic: str) -> None:
    with millstream.Producer(cluster) as producer:
        for value in (b"1", b"{", b"3", None):
            producer.send(topic, value, b"\xff", partition=0)
    with connect(
        cluster, value_deserializer=millstream.Json(), key_deserializer=millstream.Text()
    ) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        read: list[Any] = []
        while len(read) < 4:
            try:
                for message in stream:
                    read.append(message.value)
                    if len(read) == 4:
                        break
            except PoisonedMessage as poisoned:
                read.append(poisoned)
        assert [read[0], *read[2:]] == [1, 3, None]
        error = read[1]
        assert (error.topic, error.partition, error.offset, error.field, error.data) == (
            topic,
            0,
            1,
            "value",
            b"{",
        )
        assert str(error).startswith(
            f"{topic}-0 at offset 1: the value (1 bytes) cannot be deserialized: JSONDecodeError: "
        )
        with pytest.raises(PoisonedMessage, match="the key"):
            _ = message.key


def test_memory_is_bounded_when_the_consumer_is_slow(
    start_broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker_process()
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "large", partitions=4)
    with millstream.Producer(cluster) as producer:
        for number in range(4 * 1000):
            producer.send("large", b"x" * 50_000, partition=number % 4)  # 200 MB
    before = resident_mb(os.getpid())
    with connect(cluster, max_buffered_bytes=4_000_000, value_deserializer=None) as connector:
        (stream,) = connector.create_message_streams({"large": 1})["large"]
        messages = iter(stream)
        next(messages)
        most = 0.0
        for _ in range(20):
            time.sleep(0.05)
            most = max(most, resident_mb(os.getpid()))
            next(messages)
        assert most - before < 100
        for number, _ in enumerate(messages, start=22):
            if number == 4000:
                break
