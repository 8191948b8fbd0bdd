"""Whether a controller's request to stop a replica may delete its log."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_broker.coordination import TopicRecord
from millstream_broker.metadata.cache import Metadata
from millstream_broker.replication.stops import Stop, must_keep
from millstream_harness.replica import US, led_by, state, topic
from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE

ID = uuid.UUID(int=7)
COMPARED = replace(led_by(US), compared=5)


def record(partitions: int = 1, topic_id: uuid.UUID = ID) -> TopicRecord:
    return replace(topic("t"), partitions=(COMPARED,) * partitions, topic_id=topic_id)


@pytest.mark.parametrize(
    ("topics", "compared"),
    [([record()], 5), ([record(0)], -1), ([record(topic_id=uuid.UUID(int=8))], -1), ([], -1)],
    ids=["known", "fewer partitions", "made anew", "deleted"],
)
def test_the_comparison_of_logs_that_counts_is_that_of_the_stopped_topic(
    topics: list[TopicRecord], compared: int
) -> None:
    asked: list[int] = []
    logs: Any = SimpleNamespace(get=lambda name, index: SimpleNamespace(is_suspect=asked.append))
    must_keep(Stop("t", 0, 1, True, ID), logs, Metadata(state(*topics)))
    assert asked == [compared]
    assert not must_keep(Stop("t", 0, EPOCH_DURING_DELETE, True, ID), logs, Metadata(state(*topics)))
    assert asked == [compared]
