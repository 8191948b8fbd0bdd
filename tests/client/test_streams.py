"""Message streams with a real broker: messages, commits, start positions, and endings."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import millstream
from millstream.consuming import stream as module
from millstream.errors import BadInput, Closed, NotOwned, PoisonedMessage, UnknownTopic, Unreachable
from millstream.groups import committed_offsets, describe_group
from millstream.topics import create_topic, delete_topics
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import until
from millstream_harness.process import resident_mb
from millstream_harness.scenario import unique

StartBroker = Callable[..., BrokerProcess]
STRATEGIES = ("cooperative-sticky", "range", "roundrobin")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millstream.Cluster]:
    """A broker whose groups do not wait for more members."""
    config = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("streams"), config) as broker:
        yield millstream.Cluster(broker.bootstrap)


@pytest.fixture
def topic(cluster: millstream.Cluster) -> str:
    """A new topic of three partitions."""
    name = unique("streams")
    create_topic(cluster, name, partitions=3)
    return name


def fill(cluster: millstream.Cluster, topic: str, counts: Iterable[int], size: int = 0) -> None:
    """Produce this many records "PARTITION-NUMBER" to each partition, one second apart, from 2023 on."""
    with millstream.Producer(cluster) as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                value = f"{partition}-{number}".ljust(size)
                producer.send(
                    topic,
                    value,
                    partition=partition,
                    timestamp=1_700_000_000_000 + number * 1000,
                    headers={"n": b"1"},
                )


def connect(cluster: millstream.Cluster, group: str = "", **options: Any) -> millstream.Connector:
    return millstream.connect(
        cluster, group=group or unique("group"), **{"value_deserializer": bytes.decode, **options}
    )


def delete_before(cluster: millstream.Cluster, topic: str, offset: int) -> None:
    """Move the log start of partition 0 to this offset, as retention does."""
    at = TopicPartition(topic, 0, offset)
    assert cluster.admin.delete_records([at])[at].result().low_watermark == offset


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


def test_a_message_is_committed_once_the_next_one_is_taken(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (10,))
    group = unique("group")
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        taken = list(islice(stream, 4))
        assert taken[-1].value == "0-3"
    assert committed_offsets(cluster, group)[topic, 0] == 3
    assert describe_group(cluster, group).members == ()
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert next(iter(stream)).value == "0-3"
        stream.commit()
        assert committed_offsets(cluster, group)[topic, 0] == 4


def test_commits_follow_while_messages_are_taken(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (200,))
    group = unique("group")
    with connect(cluster, group, commit_interval_s=0.01) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for message in stream:
            committed = committed_offsets(cluster, group).get((topic, 0), 0)
            assert committed <= message.offset
            if committed > 2 or message.offset == 199:
                break
            time.sleep(0.3)
    assert 2 < committed < 199


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_processed_is_committed_when_partitions_go(
    cluster: millstream.Cluster, topic: str, strategy: str
) -> None:
    """The new owner continues after the old owner's message in hand, although no commit was due."""
    fill(cluster, topic, (10, 10, 10))
    group = unique("group")
    options: dict[str, Any] = {"strategy": strategy, "commit_interval_s": 86_400}
    with connect(cluster, group, **options) as one, connect(cluster, group, **options) as two:
        (first,) = one.create_message_streams({topic: 1})[topic]
        messages = iter(first)
        taken = list(islice(messages, 30))
        fill(cluster, topic, (3000, 3000, 3000))
        (second,) = two.create_message_streams({topic: 1})[topic]
        seen: list[millstream.Message] = []
        thread = threading.Thread(target=lambda: seen.extend(islice(second, 1)))
        thread.start()
        while thread.is_alive():
            taken.append(next(messages))
            time.sleep(0.001)
        thread.join()
        (message,) = seen
        old = [one.offset for one in taken if one.partition == message.partition]
        assert message.offset in (old[-1], old[-1] + 1)


def test_an_interrupt_before_messages_are_in_the_batch_loses_none(
    cluster: millstream.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives after librdkafka returned the messages and before the stream stores them."""

    def interrupted(found: list[Any]) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    fill(cluster, topic, (10,))
    group = unique("group")
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        monkeypatch.setattr(stream, "_keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
    assert committed_offsets(cluster, group).get((topic, 0), 0) == 0
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        monkeypatch.setattr(stream, "_keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
        assert [message.offset for message in islice(stream, 10)] == list(range(10))


def test_an_interrupt_at_any_line_of_the_stream_loses_nothing(
    cluster: millstream.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message takes its own fetch, which is interrupted one line later than the previous one.

    An interrupt between librdkafka's queue and the batch may repeat a message.
    """
    monkeypatch.setattr(module, "BATCH", 1)
    fill(cluster, topic, (300,))
    locks = {
        number for number, line in enumerate(inspect.getsource(module).splitlines(), 1) if "with self.turns" in line
    }  # fmt: skip
    wanted, lines, interrupts = 0, 0, 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line" and frame.f_lineno not in locks:  # a lock is taken and released in one piece
            lines += 1
            if lines == wanted:
                raise KeyboardInterrupt
        return trace

    with connect(cluster, value_deserializer=None, commit_interval_s=0.01) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        offsets = [next(iter(stream)).offset]
        for wanted in range(1, 200):  # noqa: B007 - `trace` reads it
            lines = 0
            sys.settrace(trace)
            try:
                offsets.append(next(iter(stream)).offset)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.settrace(None)
        offsets += [message.offset for message in islice(stream, 10)]
    assert offsets[0] == 0
    assert all(after <= before + 1 for before, after in pairwise(offsets)), "a message is skipped"
    assert interrupts > 20


@pytest.mark.parametrize("noted", [False, True])
def test_an_interrupt_while_partitions_are_assigned_loses_none(
    cluster: millstream.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """Ctrl-C arrives in librdkafka's callback, before or after the stream records its partitions."""
    fill(cluster, topic, (10,))
    with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        take = stream.take

        def interrupted(partitions: Any) -> None:
            monkeypatch.undo()
            if noted:
                take(partitions)
            raise KeyboardInterrupt

        monkeypatch.setattr(stream, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
        assert [message.offset for message in islice(stream, 10)] == list(range(10))


def test_the_caller_commits(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (10, 10))
    group = unique("group")
    with connect(cluster, group, commit="manual", strategy="range") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        first = next(messages)
        stream.commit(first.position)
        assert committed_offsets(cluster, group)[topic, first.partition] == 1
        list(islice(messages, 5))
        with pytest.raises(
            NotOwned, match=f"this stream does not own {topic}-7: it owns 0, 1, 2 of {topic} now"
        ):
            stream.commit(millstream.Position(topic, 7, 1))
    assert committed_offsets(cluster, group)[topic, first.partition] == 1
    for late in (stream.commit, lambda: stream.seek(0), lambda: connector.create_message_streams({topic: 1})):
        with pytest.raises(Closed):
            late()
    assert list(stream) == []


def test_positions_of_the_caller_go_before_commits(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (10, 10))
    asked: list[Any] = []

    def positions(partitions: Any) -> dict[tuple[str, int], int]:
        asked.append(partitions)
        return {(topic, 0): 7}

    with connect(cluster, positions=positions) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        values = {message.value for message in islice(stream, 13)}
    assert values == {*(f"0-{n}" for n in range(7, 10)), *(f"1-{n}" for n in range(10))}
    assert asked == [[(topic, 0), (topic, 1), (topic, 2)]]


def test_seeking(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (100,))
    group = unique("group")
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        assert next(messages).offset == 0
        for target, offset in (
            (70, 70),
            ("earliest", 0),
            (datetime.fromtimestamp(1_700_000_042, UTC), 42),
            (5, 5),
        ):
            stream.seek(target)  # type: ignore[arg-type]
            assert [message.offset for message in islice(messages, 3)] == [offset, offset + 1, offset + 2]
        stream.seek("latest", 0)
        fill(cluster, topic, (1,))
        assert next(messages).offset == 100
        stream.seek(30)
        for wrong in (-1, "soon", datetime(2026, 1, 1), True, None):
            with pytest.raises(BadInput, match="seek: "):
                stream.seek(wrong)  # type: ignore[arg-type]
        with pytest.raises(NotOwned):
            stream.seek(0, partition=9)
    assert committed_offsets(cluster, group)[topic, 0] == 30  # a seek moves the position, too


@pytest.mark.parametrize(
    ("start", "offset"),
    [("earliest", 0), ("latest", 10), (datetime.fromtimestamp(1_700_000_004.5, UTC), 5)],
)
def test_where_to_start_without_a_commit(
    cluster: millstream.Cluster, topic: str, start: Any, offset: int
) -> None:
    fill(cluster, topic, (10,))
    with connect(cluster, start=start) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        values: list[int] = []
        thread = threading.Thread(target=lambda: values.append(next(iter(stream)).offset))
        thread.start()
        while not stream.partitions:
            time.sleep(0.01)
        fill(cluster, topic, (1,))
        thread.join(30)
    assert values == [offset]


@pytest.mark.parametrize("start", [datetime.fromtimestamp(1_700_000_004.5, UTC), "earliest"])
def test_a_commit_that_is_no_longer_in_the_log_counts_as_none(
    cluster: millstream.Cluster, topic: str, start: Any
) -> None:
    fill(cluster, topic, (10, 10))
    group = unique("group")
    with connect(cluster, group, commit="manual") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for _ in islice(stream, 20):
            pass
        stream.commit(millstream.Position(topic, 0, 1))
        stream.commit(millstream.Position(topic, 1, 8))
    delete_before(cluster, topic, 3)
    with connect(cluster, group, start=start) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        first = 3 if start == "earliest" else 5
        read = sorted(message.value for message in islice(stream, 10 - first + 2))
        assert read == [*(f"0-{number}" for number in range(first, 10)), "1-8", "1-9"]


def test_a_stream_with_a_time_skips_nothing_that_is_left_when_it_falls_behind(
    cluster: millstream.Cluster, topic: str
) -> None:
    fill(cluster, topic, (40,), size=900_000)
    with connect(cluster, start=datetime.fromtimestamp(0, UTC), max_buffered_bytes=1024) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        assert next(messages).offset == 0
        delete_before(cluster, topic, 39)
        assert any(message.offset == 39 for message in messages)


def test_where_it_starts_is_committed_before_the_first_message(
    cluster: millstream.Cluster, topic: str
) -> None:
    """Otherwise a second consumer would begin at a later end of the topic and skip the records in between."""
    group = unique("group")
    fill(cluster, topic, (10,))
    with connect(cluster, group, start="latest") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        thread = threading.Thread(target=lambda: list(stream))
        thread.start()
        while not stream.partitions:
            time.sleep(0.01)
    thread.join(30)
    fill(cluster, topic, (1,))
    with connect(cluster, group, start="latest") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert next(iter(stream)).offset == 10


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


def test_memory_is_bounded_when_the_consumer_is_slow(start_broker: StartBroker) -> None:
    broker = start_broker()
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


def test_topics_that_do_not_exist(cluster: millstream.Cluster, topic: str) -> None:
    with connect(cluster) as connector:
        with pytest.raises(UnknownTopic, match='there is no topic "no-such"'):
            connector.create_message_streams({topic: 1, "no-such": 1})
        for topics, said in (
            ({}, "topics: empty"),
            ({topic: 0}, f"topics: 0 streams of {topic} are not allowed: write a number from 1"),
            ({topic: True}, "topics: True streams"),
            ({topic: 1001}, "topics: more than 1,000 streams"),
        ):
            with pytest.raises(BadInput, match=said):
                connector.create_message_streams(topics)


def test_a_topic_that_is_deleted_while_it_is_read(cluster: millstream.Cluster) -> None:
    name = unique("deleted")
    create_topic(cluster, name, partitions=1)
    fill(cluster, name, (3,))
    with connect(cluster, config={"topic.metadata.refresh.interval.ms": 200}) as connector:
        (stream,) = connector.create_message_streams({name: 1})[name]
        messages = iter(stream)
        assert len(list(islice(messages, 3))) == 3
        assert delete_topics(cluster, [name]) == {name: ""}
        with pytest.raises(UnknownTopic, match=f'there is no topic "{name}" any more'):
            next(messages)


def test_no_broker_is_said_within_seconds() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="no broker at"):
            millstream.connect(f"127.0.0.1:{held.getsockname()[1]}", group="g")
    assert time.monotonic() - begun < 10


def test_brokers_that_go_away(start_broker: StartBroker) -> None:
    """The stream raises after its time limit, and closing does not wait for a missing coordinator."""
    broker = start_broker()
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "orders", partitions=1)
    fill(cluster, "orders", (3,))
    connector = connect(cluster, unreachable_timeout_s=1)
    (stream,) = connector.create_message_streams({"orders": 1})["orders"]
    messages = iter(stream)
    assert len(list(islice(messages, 3))) == 3
    broker.kill()
    with pytest.raises(
        Unreachable, match=r"no broker at .* has answered for 1 s: start one, then iterate again"
    ):
        next(messages)
    begun = time.monotonic()
    connector.close()
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("stop_s", [0.5, 1.0, 2.5])
def test_a_broker_that_is_paused(start_broker: StartBroker, stop_s: float) -> None:
    """Shorter than the session, as long, or longer: the stream is a member again, and nothing is skipped."""
    broker = start_broker({"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "orders", partitions=3)
    fill(cluster, "orders", (10, 10, 10))
    with connect(cluster, session_timeout_s=1, unreachable_timeout_s=1) as connector:
        (stream,) = connector.create_message_streams({"orders": 1})["orders"]
        seen = {message.position for message in islice(stream, 10)}
        broker.pause()
        time.sleep(stop_s)
        broker.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        fill(cluster, "orders", (10, 10, 10))
        while len(seen) < 60:
            with suppress(Unreachable):
                seen.add(next(iter(stream)).position)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": ""}, "group: '' is not allowed"),
        ({"group": "a/b"}, "group: 'a/b' is not allowed"),
        ({"coordination": "etcd"}, "coordination: 'etcd' is not allowed: write group, zookeeper"),
        ({"coordination": "zookeeper"}, "zookeeper: '' is not allowed with coordination='zookeeper'"),
        ({"zookeeper": "h:1"}, "zookeeper: 'h:1' is not allowed with coordination='group'"),
        (
            {"strategy": "fair"},
            "strategy: 'fair' is not allowed: write cooperative-sticky, range, roundrobin",
        ),
        ({"start": 7}, 'start: 7 is not allowed: write "earliest", "latest" or a datetime'),
        ({"start": datetime(2026, 1, 1)}, "start: 2026-01-01 00:00:00 has no time zone"),
        ({"session_timeout_s": 0}, "session_timeout_s: 0 is not allowed: write a number from 0.1 to 1,800"),
        (
            {"processing_timeout_s": 5},
            "processing_timeout_s: 5 is not allowed: write at least session_timeout_s (45)",
        ),
        ({"config": {"group.id": "g"}}, "config: group.id is not allowed there: use the option group"),
        ({"commits": 1}, "connect: got an unexpected keyword argument 'commits': see ConnectorSettings"),
        ({"value_deserializer": "json"}, "deserializer: 'json' is not allowed"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        millstream.connect("127.0.0.1:1", **{"group": "g", **options})
    assert str(refused.value).startswith(said)


def test_a_setting_that_librdkafka_does_not_know(cluster: millstream.Cluster, topic: str) -> None:
    with pytest.raises(BadInput, match=r'config: No such configuration property: "no\.such"'):
        connect(cluster, config={"no.such": 1}).create_message_streams({topic: 1})
