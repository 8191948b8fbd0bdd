"""Message streams with a real broker: what is committed, where they start, and how they seek."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import millstream
from millstream.errors import BadInput, Closed, NotOwned
from millstream.groups import committed_offsets, describe_group
from millstream_harness.scenario import unique
from millstream_harness.streams import STRATEGIES, connect, fill

pytestmark = pytest.mark.process


def delete_before(cluster: millstream.Cluster, topic: str, offset: int) -> None:
    """Move the log start of partition 0 to this offset, as retention does."""
    at = TopicPartition(topic, 0, offset)
    assert cluster.admin.delete_records([at])[at].result().low_watermark == offset


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


@contextmanager
def fed(cluster: millstream.Cluster, topic: str) -> Iterator[None]:
    """Produces messages to each partition during the block."""
    enough = threading.Event()

    def feed() -> None:
        while not enough.wait(0.2):
            fill(cluster, topic, (50, 50, 50))

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        enough.set()
        feeder.join()


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
        (second,) = two.create_message_streams({topic: 1})[topic]
        seen: list[millstream.Message] = []
        thread = threading.Thread(target=lambda: seen.extend(islice(second, 1)))
        thread.start()
        with fed(cluster, topic):  # however long the second one takes to join, there is more to read
            while thread.is_alive():
                taken.append(next(messages))
                time.sleep(0.001)
        thread.join()
        (message,) = seen
        old = [one.offset for one in taken if one.partition == message.partition]
        assert message.offset in (old[-1], old[-1] + 1)


@pytest.mark.parametrize("by", ["position", "message"])
def test_the_caller_commits(cluster: millstream.Cluster, topic: str, by: str) -> None:
    fill(cluster, topic, (10, 10))
    group = unique("group")
    with connect(cluster, group, commit="manual", strategy="range") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        messages = iter(stream)
        first = next(messages)
        stream.commit(first.position if by == "position" else first)
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
