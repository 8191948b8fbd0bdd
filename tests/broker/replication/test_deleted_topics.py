"""Which topics are gone between two states that a broker followed: told by ids, for a name may have stayed."""

from __future__ import annotations

import uuid
from dataclasses import replace

from millstream_broker.coordination import ClusterState, PartitionRecord, TopicRecord
from millstream_broker.replication.manager import _deleted

PARTITION = PartitionRecord((1,), 1, 0, (1,))


def topic(name: str) -> TopicRecord:
    return TopicRecord(name, uuid.uuid4(), (PARTITION,))


def state(*topics: TopicRecord) -> ClusterState:
    return ClusterState("cluster", {}, {one.name: one for one in topics}, 1)


def test_topics_that_are_gone_and_those_made_anew_between_two_updates() -> None:
    kept, changed, gone, anew = map(topic, ("kept", "changed", "gone", "anew"))
    before = state(kept, changed, gone, anew)
    after = state(kept, replace(changed, config={"retention.ms": "1"}), topic("anew"), topic("new"))
    assert _deleted(before, after) == {"gone": gone.topic_id, "anew": anew.topic_id}
    assert _deleted(state(), after) == {}, "what a broker knows first tells of no deletion"
