"""A stream's messages in lists: what they hold, and when they count as processed."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import millstream
from millstream.errors import BadInput
from millstream.groups import committed_offsets
from millstream_harness.scenario import unique
from millstream_harness.streams import connect, fill

pytestmark = pytest.mark.soak


def taken(batches: Any, messages: int) -> list[list[millstream.Message]]:
    """Lists until they hold this many messages."""
    found: list[list[millstream.Message]] = []
    for batch in batches:
        found.append(batch)
        if sum(map(len, found)) >= messages:
            break
    return found


@pytest.mark.parametrize("maximum", [1, 7, 256, 10_000])
def test_batches_hold_each_message_once_and_in_order(
    cluster: millstream.Cluster, topic: str, maximum: int
) -> None:
    fill(cluster, topic, (100, 50, 50))
    with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        found = taken(stream.batches(maximum), 200)
    assert all(1 <= len(batch) <= maximum for batch in found)
    messages = [message for batch in found for message in batch]
    for partition, count in enumerate((100, 50, 50)):
        values = [message.value for message in messages if message.partition == partition]
        assert values == [f"{partition}-{number}" for number in range(count)]


async def test_batches_of_a_task(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (20, 20, 20))
    async with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        found: list[millstream.Message] = []
        async for batch in stream.batches(16):
            assert 1 <= len(batch) <= 16
            found += batch
            if len(found) == 60:
                break
    assert len({(message.partition, message.offset) for message in found}) == 60


def test_larger_batches_than_the_streams_own(cluster: millstream.Cluster, topic: str) -> None:
    """A list has what librdkafka has fetched, however little that is: the topic is read until it has fetched more."""
    fill(cluster, topic, (3000,))
    with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for _ in range(100):
            if max(map(len, taken(stream.batches(1000), 3000))) > 256:
                break
            stream.seek("earliest")
        else:
            pytest.fail("no batch had more than 256 messages")


def test_batch_in_hand_is_not_processed(cluster: millstream.Cluster, topic: str) -> None:
    """Whoever closes the connector meanwhile commits the lists before it."""
    fill(cluster, topic, (10_000,))
    group = unique("group")
    connector = connect(cluster, group, commit_interval_s=86_400)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    batches = iter(stream.batches(4))
    expected = 0
    for batch in batches:
        assert batch[0].offset == expected
        expected += len(batch)
        if len(batch) > 1 and batch[0].offset > 0:  # the first fetch of all may bring one message
            break
    connector.close()
    assert committed_offsets(cluster, group)[topic, 0] == batch[0].offset
    assert next(batches, None) is None


def test_commit_covers_the_batch_in_hand(cluster: millstream.Cluster, topic: str) -> None:
    fill(cluster, topic, (10,))
    group = unique("group")
    with connect(cluster, group, commit="manual") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        batch = next(iter(stream.batches(4)))
        stream.commit()
        assert committed_offsets(cluster, group)[topic, 0] == batch[-1].offset + 1


def test_messages_one_by_one_after_a_batch(cluster: millstream.Cluster, topic: str) -> None:
    """Whoever takes the next message, or the next list, has processed what went before."""
    fill(cluster, topic, (10,))
    group = unique("group")
    connector = connect(cluster, group, commit_interval_s=86_400)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    batch = next(iter(stream.batches(3)))
    offsets = [message.offset for message in islice(stream, 4)]
    assert offsets == list(range(len(batch), len(batch) + 4))
    connector.close()
    assert committed_offsets(cluster, group)[topic, 0] == offsets[-1]


@pytest.mark.parametrize("maximum", [0, 10_001, True, 1.5, "7", None])
def test_sizes_that_are_not_allowed(cluster: millstream.Cluster, topic: str, maximum: Any) -> None:
    with connect(cluster) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with pytest.raises(BadInput, match=r"maximum: .* is not allowed: write a number from 1 to 10,000"):
            stream.batches(maximum)
