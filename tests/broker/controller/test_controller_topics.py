"""The controller's machine: topics that come, grow and are deleted."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

import pytest

from millstream_broker.controller import queries
from millstream_broker.controller.deletion import Deletion
from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    Push,
    ReassignmentRequested,
    RefuseDeletion,
    RemoveTopic,
    Stopped,
    StopReplicas,
    WriteStates,
)
from millstream_broker.coordination import PartitionRecord
from millstream_broker.coordination.controllership import (
    ConfigsChanged,
    DeletionsRequested,
    TopicsChanged,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, of, told, topic
from millstream_kafka.protocol.update_metadata import LEADER_DURING_DELETE


def test_a_new_topic_is_led_and_told_of_as_a_whole() -> None:
    controller = Controller()
    new = topic("t", (1, 2), (4, 5), version=-1)
    seen = controller.handle(TopicsChanged({"t": new}, frozenset({"t"})))
    (push,) = of(Push, seen)
    assert set(push.brokers) == {1, 2, 3}
    assert set(push.partitions or ()) == {("t", 0), ("t", 1)}
    assert told(controller, ("t", 0), ("t", 1)) == [(1, 0), (-1, -1)]
    controller.live(1, 2, 3, 5)
    assert controller.record("t", 1).leader == 5, "as soon as one of its brokers lives"


def test_brokers_are_told_of_each_of_many_new_topics_once() -> None:
    """States are written a few hundred at a time, but a topic's together: no broker sees a topic half led."""
    controller = Controller()
    new = {f"t{n}": topic(f"t{n}", *((1, 2, 3),) * 3, version=-1) for n in range(150)}
    seen = controller.handle(TopicsChanged(new, frozenset(new)))
    told_of = [key for push in of(Push, seen) for key in push.partitions or ()]
    assert len(of(WriteStates, seen)) > 1
    assert sorted(told_of) == sorted((name, index) for name in new for index in range(3))


def test_after_that_a_topic_is_told_of_as_it_changes_and_grows() -> None:
    controller = Controller()
    partitions = ((4, 5), (1, 2), (2, 1))
    controller.handle(TopicsChanged({"t": topic("t", *partitions, version=-1)}, frozenset({"t"})))
    (push,) = of(Push, controller.in_sync("t", 1, 1))
    assert set(push.partitions or ()) == {("t", 1)}
    grown = topic("t", *partitions, (4, 5), (1, 2), version=-1)
    (push,) = of(Push, controller.handle(TopicsChanged({"t": grown}, frozenset({"t"}))))
    assert set(push.partitions or ()) == {("t", 3), ("t", 4)}


def test_the_first_partition_is_told_of_though_nobody_leads_it() -> None:
    controller = Controller()
    new = topic("t", (4, 5), (1, 2), version=-1)
    (push,) = of(Push, controller.handle(TopicsChanged({"t": new}, frozenset({"t"}))))
    assert set(push.partitions or ()) == {("t", 0), ("t", 1)}


def test_configurations_of_unknown_topics_do_not_matter() -> None:
    assert not Controller().handle(ConfigsChanged({"unknown": {"min.insync.replicas": "2"}}, {}))


def test_a_topic_that_goes_takes_what_is_written_of_it_along() -> None:
    controller = Controller(topic("gone", (1, 2)), topic("kept", (1, 2)))
    controller.is_slow = True
    controller.live(2, 3)
    controller.handle(TopicsChanged({}, frozenset({"kept"})))
    controller.write()
    assert set(controller.machine.records) == {("kept", 0)}
    assert controller.record("kept").leader == 2


def test_partitions_are_added() -> None:
    controller = Controller(topic("t", (1, 2)))
    before = controller.record("t", 0)
    grown = topic("t", (1, 2), (2, 3), version=-1)
    controller.handle(TopicsChanged({"t": grown}, frozenset({"t"})))
    assert controller.record("t", 0) is before
    assert controller.record("t", 1).leader == 2


def test_a_deletion_waits_for_a_broker_that_is_away() -> None:
    controller = Controller(topic("t", (1, 2), (2, 3)), topic("kept", (1, 2)))
    controller.live(1, 3)
    seen = controller.handle(DeletionsRequested(frozenset({"t", "unknown"})))
    assert of(RefuseDeletion, seen) == [RefuseDeletion(frozenset({"unknown"}))]
    assert {one.broker for one in of(StopReplicas, seen)} == {1, 3}
    assert not of(RemoveTopic, seen)
    assert told(controller, ("t", 0))[0][0] == LEADER_DURING_DELETE
    seen = controller.live(1, 2, 3)
    assert {one.broker for one in of(StopReplicas, seen)} == {2}
    assert of(RemoveTopic, seen) == [RemoveTopic("t")]
    assert set(controller.machine.topics) == {"kept"}
    assert set(controller.machine.records) == {("kept", 0)}


def test_a_topic_is_deleted_that_is_told_of_after_the_request() -> None:
    controller = Controller()
    assert of(RefuseDeletion, controller.handle(DeletionsRequested(frozenset({"t"}))))
    new = topic("t", (1, 2), version=-1)
    assert of(RemoveTopic, controller.handle(TopicsChanged({"t": new}, frozenset({"t"}))))
    again = replace(new, topic_id=uuid.uuid4())
    assert not of(RemoveTopic, controller.handle(TopicsChanged({"t": again}, frozenset({"t"}))))
    assert controller.record("t").leader == 1


def test_a_thousand_deletions_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per event; and each broker's response about many topics is processed once."""
    names = [f"t{number}" for number in range(1000)]
    controller = Controller(*(topic(name, (1, 2), (2, 1), (1, 2)) for name in names), brokers=(1, 2))
    controller.silent = {1, 2}
    looked_at, told_of = 0, 0
    keys, stopped = ControllerMachine._keys, Deletion.stopped

    def counted_keys(machine: ControllerMachine, name: str) -> list[tuple[str, int]]:
        nonlocal looked_at
        looked_at += 1
        return keys(machine, name)

    def counted_stopped(deletion: Deletion, broker: int, partitions: Collection[tuple[str, int]]) -> None:
        nonlocal told_of
        told_of += len(partitions)
        stopped(deletion, broker, partitions)

    monkeypatch.setattr(ControllerMachine, "_keys", counted_keys)
    monkeypatch.setattr(Deletion, "stopped", counted_stopped)
    controller.handle(DeletionsRequested(frozenset(names)))
    partitions = [(name, index) for name in names for index in range(3)]
    for broker in (1, 2):
        for at in range(0, len(partitions), 300):
            controller.handle(Stopped(broker, 1, partitions[at : at + 300]))
    assert not controller.machine.topics
    assert told_of == 2 * len(partitions)
    assert looked_at <= 5 * len(names)


def test_a_deletion_survives_the_controller() -> None:
    controller = Controller(topic("t", (1, 2)), deletions=["t"])
    assert "t" not in controller.machine.topics


def test_a_broker_that_lists_a_deleted_topic_holds_it_up_until_it_is_gone() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.silent = {3}
    seen = controller.handle(DeletionsRequested(frozenset({"t"})))
    assert not of(RemoveTopic, seen)
    assert of(RemoveTopic, controller.live(1, 2))


def test_a_deletion_waits_for_what_is_being_written_and_holds_up_no_other() -> None:
    controller = Controller(topic("moved", (1, 2)), topic("led", (3, 2)), topic("calm", (1, 2)))
    controller.is_slow = True
    controller.handle(ReassignmentRequested("caller", {("moved", 0): (2, 1)}))
    controller.live(1, 2)
    assert not of(StopReplicas, controller.handle(DeletionsRequested(frozenset({"moved", "led"}))))
    seen = controller.handle(DeletionsRequested(frozenset({"moved", "led", "calm"})))
    assert {tuple(one.partitions) for one in of(StopReplicas, seen)} == {(("calm", 0),)}
    seen = controller.write()
    assert {tuple(one.partitions) for one in of(StopReplicas, seen)} == {(("moved", 0),), (("led", 0),)}


def test_what_is_being_deleted_is_told_of_once_and_decided_on_and_counted_no_more() -> None:
    led_by_two = PartitionRecord((1, 2), 2, 4, (1, 2), 9, 1)
    controller = Controller(replace(topic("t"), partitions=(led_by_two, replace(led_by_two, leader=1))))
    assert to_the_end(queries.count(controller.machine))[1] == 1
    controller.silent = {1, 2, 3}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert to_the_end(queries.count(controller.machine))[1] == 0
    assert not of(Push, controller.in_sync("t", 0, 2))
    assert not of(WriteStates, controller.live(2))
    assert to_the_end(queries.count(controller.machine))[0] == 0


def test_a_removal_that_is_done_is_of_the_topic_of_that_time() -> None:
    old = topic("t", (1, 2))
    new = replace(old, topic_id=uuid.uuid4())
    for present in ({}, {"t": new}):
        controller = Controller(old)
        controller.is_slow = True
        assert of(RemoveTopic, controller.handle(DeletionsRequested(frozenset({"t"}))))
        controller.handle(TopicsChanged(present, frozenset(present)))
        controller.silent = {1, 2, 3}
        if present:
            controller.handle(DeletionsRequested(frozenset({"t"})))
        assert not controller.write()
        assert controller.machine.topics == present


def test_partitions_are_counted_that_nobody_or_another_than_the_preferred_replica_leads() -> None:
    controller = Controller(topic("t", (1, 2), (2, 1), (3,)))
    assert to_the_end(queries.count(controller.machine)) == (0, 0, 0)
    controller.live(2)
    assert to_the_end(queries.count(controller.machine)) == (1, 2, 0)


def test_of_a_deleted_topic_only_the_partitions_in_question_are_to_be_deleted() -> None:
    controller = Controller(topic("t", (1, 2), (2, 1)), topic("u", (1, 2)))
    controller.silent = {1, 2}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert controller.machine.to_delete(1, {("t", 1), ("u", 0)}) == {("t", 1): -2}
    assert controller.machine.to_delete(1, {("u", 0)}) == {}
    assert controller.machine.to_delete(1) == {("t", 0): -2, ("t", 1): -2}


def test_a_broker_that_has_deleted_its_log_has_nothing_to_delete_while_others_have() -> None:
    """A reassignment had removed its replica before the topic was deleted."""
    moved = PartitionRecord((2, 3), 2, 4, (2, 3), 9, 1, removing=(1,))
    controller = Controller(replace(topic("t"), partitions=(moved,)), brokers=(2, 3))
    controller.silent = {1, 2, 3}
    controller.live(1, 2, 3)
    assert controller.machine.to_delete(1) == {("t", 0): 4}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert controller.machine.to_delete(1) == {("t", 0): -2}
    assert not controller.handle(Stopped(1, 1, [("t", 0)]))
    assert controller.machine.to_delete(1) == {}
    assert controller.machine.to_delete(2) == {("t", 0): -2}


def test_a_broker_that_has_deleted_what_nobody_knows_any_more_is_not_minded() -> None:
    assert not Controller(topic("t", (1, 2))).handle(Stopped(1, 1, [("unknown", 0)]))
