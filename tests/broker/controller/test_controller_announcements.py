"""What the controller tells brokers, and asks them for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.controller import deletion
from millstream_broker.controller.announcements import Announcements
from millstream_broker.controller.messages import AskLogEnds, Push, StopReplicas
from millstream_broker.controller.partitions import Notes
from millstream_broker.controller.recovery import Recovery
from millstream_broker.coordination import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, topic
from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE

RECORD = PartitionRecord((1, 2), 1, 3, (1, 2), 7)


def test_a_forgotten_topic_is_not_announced() -> None:
    announcements = Announcements()
    topics = {name: topic(name, (1, 2)) for name in ("t", "u")}
    for name in topics:
        announcements.push((name, 0))
    announcements.forget("t")
    assert pushed(announcements, topics) == [("u", 0)]
    for name in topics:
        announcements.push((name, 0))
    assert pushed(announcements, topics, "t") == [("u", 0)], "nor is one that is being deleted"


def pushed(announcements: Announcements, topics: Mapping[str, TopicRecord], *deletions: str) -> list[Any]:
    (push,) = to_the_end(announcements.take(topics, deletions, (1, 2)))
    assert isinstance(push, Push)
    return list(push.partitions or ())


@pytest.mark.parametrize("notes", [{"restarted": {1}}, {"forgetful": {1}}, {"doubted": True}, {}])
def test_a_partition_that_was_not_announced_is_announced_later(notes: dict[str, Any]) -> None:
    machine = Controller(topic("t", (1, 2))).machine
    machine._announce_again(("t", 0), Notes(**notes))
    found = to_the_end(machine._announcements.take(machine.topics, (), (1, 2)))
    assert bool(found) == bool(notes)


def test_one_partition_announces_the_deletion_of_its_topic() -> None:
    keys = [("t", index) for index in range(3)]
    begun = deletion.begin(deletion.Deletion("t"), (1,), keys, dict.fromkeys(keys, RECORD))
    push, stop = to_the_end(begun)
    assert push == Push((1,), keys[:1])
    assert stop == StopReplicas(1, dict.fromkeys(keys, EPOCH_DURING_DELETE), True)


@pytest.mark.parametrize("is_doubted", [False, True])
def test_brokers_without_a_replica_are_asked_only_after_a_restored_store(is_doubted: bool) -> None:
    record = replace(RECORD, leader=NO_LEADER, suspects=(1, 2), doubted=is_doubted)
    brokers = {number: BrokerRecord(number, (), None, 1) for number in (1, 2, 3)}
    asked = list(Recovery().look(("t", 0), record, brokers))
    assert asked == [AskLogEnds(number, (("t", 0),)) for number in ((1, 2, 3) if is_doubted else (1, 2))]
