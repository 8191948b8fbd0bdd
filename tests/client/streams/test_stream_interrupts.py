"""Ctrl-C in a message stream: it may repeat a message, and loses none."""

from __future__ import annotations

import inspect
import sys
from itertools import islice, pairwise
from typing import Any

import pytest

import millstream
from millstream.consuming import stream as module
from millstream.groups import committed_offsets
from millstream_harness.scenario import unique
from millstream_harness.streams import connect, fill

pytestmark = pytest.mark.soak


def interrupt_a_poll(stream: millstream.MessageStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the stream once, when librdkafka has just returned messages: to a fetch, or among its calls back."""
    poll = stream._poll

    def interrupted(most: int, timeout_s: float) -> list[Any]:
        if poll(most, timeout_s):
            monkeypatch.undo()
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(stream, "_poll", interrupted)


def test_an_interrupt_before_messages_are_in_the_batch_loses_none(
    cluster: millstream.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives after librdkafka returned the messages and before the stream stores them."""
    fill(cluster, topic, (10,))
    group = unique("group")
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        interrupt_a_poll(stream, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
    assert committed_offsets(cluster, group).get((topic, 0), 0) == 0
    with connect(cluster, group) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        interrupt_a_poll(stream, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            next(iter(stream))
        assert [message.offset for message in islice(stream, 10)] == list(range(10))


def test_an_interrupt_at_any_line_of_the_stream_loses_nothing(
    cluster: millstream.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message takes a fetch of its own, which is interrupted one line later than the one before.

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
