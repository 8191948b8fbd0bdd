"""Messages that cannot be deserialized, in blocking and async streams, with each kind of coordination.

The error names the message, the stream continues after it, and commits pass it only when the next message is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

import millstream
from millstream.errors import PoisonedMessage
from millstream.groups import committed_offsets
from millstream.topics import create_topic
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.scenario import unique
from millstream_harness.streams import connect, options_for
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.soak

VALUES = (b"1", b"{", b"3", None, b"\xff", b"6", b"[", b"]", b"9")
GOOD = [1, 3, None, 6, 9]
POISONED = [1, 4, 6, 7]
"""Their offsets."""


@pytest.fixture(scope="module")
def brokers(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("brokers"), 1, zookeeper=shared_zookeeper) as cluster:
        yield cluster


class Poisoned:
    """A topic with VALUES in its partition 1, and a group that reads them as JSON."""

    def __init__(self, brokers: ClusterProcesses, way: str) -> None:
        self.brokers, self.way = brokers, way
        self.cluster = millstream.Cluster(brokers.bootstrap)
        self.topic, self.group = unique("poisoned"), unique("group")
        create_topic(self.cluster, self.topic, partitions=2)
        with millstream.Producer(self.cluster) as producer:
            for value in VALUES:
                producer.send(self.topic, value, b"key", partition=1)

    def stream(self, **options: Any) -> tuple[millstream.Connector, millstream.MessageStream]:
        options = {"value_deserializer": millstream.Json(), **options_for(self.way, self.brokers), **options}
        connector = connect(self.cluster, self.group, **options)
        (stream,) = connector.create_message_streams({self.topic: 1})[self.topic]
        return connector, stream

    def committed(self) -> int:
        if self.way != "zookeeper":
            return committed_offsets(self.cluster, self.group)[self.topic, 1]
        tree = KazooClient(self.brokers.connect)
        tree.start()
        try:
            return int(tree.get(f"/consumers/{self.group}/offsets/{self.topic}/1")[0])
        finally:
            tree.stop()
            tree.close()


@pytest.fixture(params=["cooperative-sticky", "range", "zookeeper"])
def poisoned(request: pytest.FixtureRequest, brokers: ClusterProcesses) -> Poisoned:
    return Poisoned(brokers, request.param)


def names_it(error: PoisonedMessage, topic: str, offset: int) -> bool:
    value = VALUES[offset] or b""
    return (
        (error.topic, error.partition, error.offset, error.field) == (topic, 1, offset, "value")
        and error.data == value
        and str(error).startswith(
            f"{topic}-1 at offset {offset}: the value ({len(value)} bytes) cannot be deserialized: "
        )
        and str(error).endswith(": take the next message to skip it")
    )


def test_a_loop_that_catches_them_continues(poisoned: Poisoned) -> None:
    """The key and the bytes of such a message can also be read."""
    connector, stream = poisoned.stream()
    read, errors, raw = [], [], []
    with connector:
        for message in stream:
            try:
                read.append(message.value)
            except PoisonedMessage as error:
                errors.append(error)
                raw.append((message.key, message.raw_value, message.offset))
            if message.offset == 8:
                break
    assert read == GOOD
    assert [names_it(error, poisoned.topic, at) for error, at in zip(errors, POISONED, strict=True)] == [
        True
    ] * 4
    assert raw == [(b"key", VALUES[at], at) for at in POISONED]
    assert poisoned.committed() == 8  # the last message was being processed


async def test_an_async_loop_that_catches_them_continues(poisoned: Poisoned) -> None:
    connector, stream = await asyncio.to_thread(poisoned.stream)
    read, errors = [], []
    async for message in stream:
        try:
            read.append(message.value)
        except PoisonedMessage as error:
            errors.append(error)
        if message.offset == 8:
            break
    await asyncio.to_thread(connector.close)
    assert read == GOOD
    assert [names_it(error, poisoned.topic, at) for error, at in zip(errors, POISONED, strict=True)] == [
        True
    ] * 4
    assert poisoned.committed() == 8


def test_a_loop_that_they_end_can_be_started_again(poisoned: Poisoned) -> None:
    connector, stream = poisoned.stream()
    read: list[Any] = []
    errors: list[PoisonedMessage] = []

    def loop() -> None:
        for message in stream:
            read.append(message.value)
            if message.offset == 8:
                return

    with connector:
        for _ in POISONED:
            with pytest.raises(PoisonedMessage) as ended:
                loop()
            errors.append(ended.value)
        loop()
    assert read == GOOD
    assert [names_it(error, poisoned.topic, at) for error, at in zip(errors, POISONED, strict=True)] == [
        True
    ] * 4


async def test_an_async_loop_that_they_end_can_be_started_again(poisoned: Poisoned) -> None:
    connector, stream = await asyncio.to_thread(poisoned.stream)
    read: list[Any] = []
    errors: list[PoisonedMessage] = []

    async def loop() -> None:
        async for message in stream:
            read.append(message.value)
            if message.offset == 8:
                return

    for _ in POISONED:
        with pytest.raises(PoisonedMessage) as ended:
            await loop()
        errors.append(ended.value)
    await loop()
    await asyncio.to_thread(connector.close)
    assert read == GOOD
    assert [names_it(error, poisoned.topic, at) for error, at in zip(errors, POISONED, strict=True)] == [
        True
    ] * 4


def test_a_program_that_ends_at_one_gets_it_again(poisoned: Poisoned) -> None:
    """It is not committed, because nobody has processed it; it is once the next message is taken."""

    def program() -> int:
        connector, stream = poisoned.stream()
        with connector:
            for message in stream:
                assert message.value
        return 0

    for _ in range(2):
        with pytest.raises(PoisonedMessage) as ended:
            program()
        assert ended.value.offset == 1
        assert poisoned.committed() == 1
    connector, stream = poisoned.stream()
    with connector:
        messages = iter(stream)
        assert [next(messages).offset, next(messages).offset] == [1, 2]
    assert poisoned.committed() == 2


def test_a_program_that_commits_by_itself_can_commit_past_one(poisoned: Poisoned) -> None:
    connector, stream = poisoned.stream(commit="manual")
    with connector:
        for message in stream:
            try:
                assert message.value
            except PoisonedMessage:
                stream.commit(message.position)
                break
    assert poisoned.committed() == 2
    connector, stream = poisoned.stream(commit="manual")
    with connector:
        assert next(iter(stream)).value == 3


def test_a_key_that_cannot_be_deserialized(poisoned: Poisoned) -> None:
    connector, stream = poisoned.stream(key_deserializer=millstream.Json())
    with connector:
        message = next(iter(stream))
        assert message.value == 1
        with pytest.raises(
            PoisonedMessage, match=rf"{poisoned.topic}-1 at offset 0: the key \(3 bytes\)"
        ) as said:
            _ = message.key
    assert (said.value.field, said.value.data) == ("key", b"key")
