"""The controller's machine, event by event: its writes, messages to brokers, and responses."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.controller.channels import update_request
from millstream_broker.controller.deletion import Deletion
from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    AcceptBroker,
    AskLogEnds,
    BrokerAccepted,
    ElectionRequested,
    ElectionType,
    LogEnds,
    Push,
    ReassignmentRequested,
    RefuseDeletion,
    RemoveTopic,
    Settings,
    StatesWritten,
    Stopped,
    StopReplicas,
    WriteStates,
)
from millstream_broker.coordination import BrokerRecord, PartitionRecord
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Image,
    StatesChanged,
    TopicsChanged,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, of, topic
from millstream_kafka.protocol.update_metadata import LEADER_DURING_DELETE

HELD_BACK = (-1, -1)
"""Leader and version sent instead of a state that is being written: brokers learn only that the partition exists."""


def told(controller: Controller, *keys: tuple[str, int]) -> list[tuple[int, int]]:
    """Leader and version of these partitions, as sent to brokers."""
    request = to_the_end(update_request(1, 1, controller.machine, keys))
    return [(one.leader, one.zk_version) for topic in request.topic_states for one in topic.partition_states]


# Topics


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
    assert to_the_end(controller.machine.count())[1] == 1
    controller.silent = {1, 2, 3}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert to_the_end(controller.machine.count())[1] == 0
    assert not of(Push, controller.in_sync("t", 0, 2))
    assert not of(WriteStates, controller.live(2))
    assert to_the_end(controller.machine.count())[0] == 0


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
    assert to_the_end(controller.machine.count()) == (0, 0, 0)
    controller.live(2)
    assert to_the_end(controller.machine.count()) == (1, 2, 0)


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


# Brokers


def test_a_broker_that_comes_is_told_everything_and_the_others_of_it() -> None:
    controller = Controller(topic("t", (1, 2)), brokers=())
    assert controller.live(1)[0] == Push((1,), None)
    controller = Controller(brokers=(1,))
    assert controller.live(1, 2) == [Push((2,), None), Push((1,), ())]
    assert not controller.live(1, 2), "that is known"
    assert controller.live(1) == [Push((1,), ())]
    assert not controller.live(), "nobody is left to be told"


def test_a_registration_that_changes_within_its_session_is_told_to_all() -> None:
    controller = Controller(brokers=(1, 2))
    registered = {**controller.brokers(), 2: replace(controller.brokers()[2], rack="a")}
    assert controller.handle(BrokersChanged(registered)) == [Push((1, 2), ())]


def test_who_is_accepted_is_known_to_be_before_the_registration_says_so() -> None:
    controller = Controller(topic("t", (1, 2)))
    (accept,) = of(AcceptBroker, controller.restart(1, unclean=True))
    assert not controller.handle(BrokerAccepted(accept.broker))
    controller.unclean = set()
    assert not controller.handle(BrokersChanged(controller.brokers()))


def test_an_acceptance_is_of_one_incarnation() -> None:
    controller = Controller(topic("t", (1, 2)))
    (accept,) = of(AcceptBroker, controller.restart(1, unclean=True))
    controller.restart(1, unclean=True)
    assert not controller.handle(BrokerAccepted(accept.broker))
    assert controller.machine.brokers[1].unclean
    gone = controller.machine.brokers[1]
    controller.live(2, 3)
    assert not controller.handle(BrokerAccepted(gone))
    assert 1 not in controller.machine.brokers


def test_who_restarts_between_two_looks_was_away() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    controller.restart(1)
    record = controller.record("t")
    assert (record.leader, record.leader_epoch, record.isr) == (2, 1, (2, 3))


def test_who_lost_its_memory_is_accepted_when_it_is_out_of_the_isrs() -> None:
    controller = Controller(topic("t", (1, 2, 3), (3, 1)))
    seen = controller.restart(1, unclean=True)
    assert controller.record("t", 0).isr == (2, 3)
    assert controller.record("t", 1).isr == (3,)
    (accept,) = of(AcceptBroker, seen)
    assert accept.broker.broker_id == 1
    assert seen.index(accept) > max(seen.index(one) for one in of(WriteStates, seen))


def all_suspects(*partitions: tuple[int, ...]) -> tuple[Controller, list[Any]]:
    """All brokers died at once and return one by one, unclean; also the machine's output for the last one."""
    controller = Controller(topic("t", *partitions))
    controller.live()
    seen: list[Any] = []
    for broker in (2, 3, 1):
        seen = controller.restart(broker, unclean=True)
        (accept,) = of(AcceptBroker, seen)
        assert accept.broker.broker_id == broker, "it does not wait for the others"
    return controller, seen


def log_ends(controller: Controller, broker: int, epoch: int, end: int) -> list[Any]:
    return controller.handle(LogEnds(broker, controller.epochs[broker], {("t", 0): (epoch, end)}))


def test_of_suspects_the_one_with_the_most_complete_log_leads() -> None:
    controller, seen = all_suspects((1, 2, 3))
    assert sorted((one.broker, tuple(one.partitions)) for one in of(AskLogEnds, seen)) == [
        (broker, (("t", 0),)) for broker in (1, 2, 3)
    ]
    assert (controller.record("t").leader, controller.record("t").isr) == (-1, (1, 2, 3))
    assert not of(WriteStates, log_ends(controller, 1, 4, 900))
    assert not of(WriteStates, log_ends(controller, 3, 5, 80))
    epoch = controller.record("t").leader_epoch
    log_ends(controller, 2, 5, 100)
    record = controller.record("t")
    assert (record.leader, record.isr, record.suspects) == (2, (2,), ())
    assert record.leader_epoch == epoch + 1
    assert not log_ends(controller, 3, 9, 900), "it is decided"


# A store restored from an older copy


def arrive(controller: Controller, *ahead: int, live: tuple[int, ...] = ()) -> list[Any]:
    """These brokers register, ahead of the store; `live` are the others."""
    for one in ahead:
        controller.epochs[one] = controller.epochs.get(one, 0) + 10
    controller.epochs = {one: controller.epochs[one] for one in {*ahead, *live}}
    brokers = {
        one: replace(broker, ahead=5 if one in ahead else 0) for one, broker in controller.brokers().items()
    }
    return controller.handle(BrokersChanged(brokers))


def ends_of(controller: Controller, broker: int, **ends: tuple[int, int]) -> list[Any]:
    return controller.handle(
        LogEnds(broker, controller.epochs[broker], {(name, 0): end for name, end in ends.items()})
    )


NO_LOG = (-1, -1)


def test_a_store_that_is_older_is_not_believed_about_any_partition() -> None:
    """Nobody leads until every live broker was asked; the most complete log leads, in an epoch above all others."""
    controller = Controller(topic("t", (1, 2, 3)), topic("u", (3, 2, 1)), settings=Settings(min_isr=2))
    seen = arrive(controller, 1, live=(2, 3))
    records = [controller.record(name) for name in "tu"]
    assert [(one.leader, one.doubted, one.suspects) for one in records] == [
        (-1, True, (1, 2, 3)),
        (-1, True, (3, 2, 1)),
    ]
    assert [one.leader_epoch for one in records] == [6, 6]
    assert {(one.broker, key) for one in of(AskLogEnds, seen) for key in one.partitions} == {
        (broker, (name, 0)) for broker in (1, 2, 3) for name in "tu"
    }
    (accept,) = of(AcceptBroker, seen)
    assert seen.index(accept) > max(seen.index(one) for one in of(WriteStates, seen))
    ends_of(controller, 1, t=(4, 200), u=(4, 100))
    ends_of(controller, 3, t=(4, 300), u=(9, 50))
    assert [controller.record(name).leader for name in "tu"] == [-1, -1]
    ends_of(controller, 2, t=(5, 100), u=(9, 50))
    records = [controller.record(name) for name in "tu"]
    assert [(one.leader, one.isr, one.doubted, one.suspects) for one in records] == [
        (2, (2,), False, ()),
        (3, (3,), False, ()),
    ]
    assert [one.leader_epoch for one in records] == [7, 10]


def test_an_old_isr_waits_for_enough_replicas() -> None:
    """Each acknowledged record was on two of three replicas: two are enough, one is not."""
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(3)
    arrive(controller, 3)
    ends_of(controller, 3, t=(4, 100))
    assert controller.record("t").leader == -1
    arrive(controller, 1, live=(3,))
    ends_of(controller, 1, t=(4, 200))
    assert (controller.record("t").leader, controller.record("t").isr) == (1, (1,))


@pytest.mark.parametrize("how", ["request", "configuration"])
def test_an_unclean_election_does_not_wait(how: str) -> None:
    settings = Settings(min_isr=2, unclean_election=how == "configuration")
    controller = Controller(topic("t", (1, 2, 3)), settings=settings)
    controller.live(3)
    arrive(controller, 3)
    ends_of(controller, 3, t=(4, 100))
    if how == "request":
        assert controller.record("t").leader == -1
        reply = controller.reply(ElectionRequested("caller", ElectionType.UNCLEAN, [("t", 0)]))
        assert reply == {("t", 0): None}
    assert (controller.record("t").leader, controller.record("t").doubted) == (3, False)


def test_a_partition_that_has_moved_since_is_led_where_its_log_is() -> None:
    """In the old store it is at broker 1, which has deleted it; broker 3 becomes a replica, and leads."""
    controller = Controller(topic("t", (1,)))
    controller.live(1, 2)
    arrive(controller, 1, live=(2,))
    ends_of(controller, 1, t=NO_LOG)
    ends_of(controller, 2, t=NO_LOG)
    assert controller.record("t").leader == -1, "it may be at a broker that is down"
    arrive(controller, 3, live=(1, 2))
    seen = ends_of(controller, 3, t=(4, 200))
    record = controller.record("t")
    assert (record.replicas, record.leader, record.isr) == ((1, 3), 3, (3,))
    assert not of(StopReplicas, seen)


def test_a_partition_without_any_log_is_led_once_all_brokers_live() -> None:
    """Its topic was deleted since, or its logs were never created."""
    controller = Controller(topic("t", (1, 2)), topic("none", (2, 1), version=-1), brokers=(1, 2))
    controller.live(1)
    arrive(controller, 1)
    ends_of(controller, 1, t=NO_LOG, none=NO_LOG)
    assert [controller.record(name).leader for name in ("t", "none")] == [-1, -1]
    arrive(controller, 2, live=(1,))
    ends_of(controller, 2, t=NO_LOG, none=NO_LOG)
    assert [controller.record(name).leader for name in ("t", "none")] == [1, 2]


def test_a_broker_that_arrives_after_the_comparison_changes_nothing() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(1, 2)
    arrive(controller, 1, 2)
    ends_of(controller, 1, t=(4, 200))
    ends_of(controller, 2, t=(4, 100))
    before = controller.record("t")
    assert before.leader == 1
    seen = arrive(controller, 3, live=(1, 2))
    assert controller.record("t") == before
    assert [one.broker.broker_id for one in of(AcceptBroker, seen)] == [3]


def test_a_broker_that_is_ahead_makes_its_followers_of_an_old_state_wait() -> None:
    """Broker 3, which the old ISR has, led before another one showed that the store is old."""
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(3)
    assert controller.record("t").leader == 3
    seen = arrive(controller, 1, live=(3,))
    assert controller.record("t").leader == -1
    assert {one.broker for one in of(AskLogEnds, seen)} == {1, 3}
    ends_of(controller, 3, t=(1, 100))
    ends_of(controller, 1, t=(7, 200))
    assert (controller.record("t").leader, controller.record("t").leader_epoch) == (1, 8)


def test_a_new_controller_continues_the_comparison() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    arrive(controller, 1, live=(2, 3))
    again = ControllerMachine(3, Settings(min_isr=2))
    stored = replace(topic("t"), partitions=(controller.record("t"),))
    out = to_the_end(again.start(Image(controller.brokers(), {"t": stored}, frozenset())))
    assert sorted(one.broker for one in of(AskLogEnds, out)) == [1, 2, 3]
    assert again.records["t", 0].leader == -1


# Suspects


def test_a_wiped_replica_does_not_lead_where_one_that_left_the_isr_has_more() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(1)
    assert controller.record("t").isr == (1,)
    controller.live(1, 2)
    seen = controller.restart(1, unclean=True)
    assert sorted(one.broker for one in of(AskLogEnds, seen)) == [1, 2]
    assert controller.record("t").leader == -1
    log_ends(controller, 1, -1, 0)
    log_ends(controller, 2, 0, 197)
    assert (controller.record("t").leader, controller.record("t").isr) == (2, (2,))


def test_a_suspect_that_goes_is_not_waited_for_and_one_that_restarts_is_asked_again() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    log_ends(controller, 3, 5, 80)
    seen = controller.restart(3)
    assert [one.broker for one in of(AskLogEnds, seen)] == [3]
    controller.handle(LogEnds(3, 1, {("t", 0): (5, 80)}))
    assert controller.record("t").leader == -1, "that was of an earlier incarnation"
    log_ends(controller, 3, 5, 70)
    controller.live(1, 3)
    assert controller.record("t").leader == 3


def test_what_a_suspect_said_counts_while_it_lives_on() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    log_ends(controller, 2, 5, 100)
    controller.live(1, 3)
    controller.restart(3)
    controller.handle(LogEnds(3, 10, {("t", 0): (5, 80)}))
    assert controller.record("t").leader == -1, "that was of an earlier incarnation"
    log_ends(controller, 3, 3, 70)
    assert controller.record("t").leader == 1, "the best log is away"


def test_a_new_controller_asks_suspects_anew() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    again = ControllerMachine(3, Settings())
    image = Image(
        controller.brokers(),
        {"t": replace(topic("t"), partitions=(controller.record("t"),))},
        frozenset(),
    )
    out = to_the_end(again.start(image))
    assert sorted(one.broker for one in of(AskLogEnds, out)) == [1, 2, 3]


def test_a_member_that_vouches_ends_the_search() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    controller.live()
    controller.restart(2, unclean=True)
    controller.restart(1, unclean=True)
    assert (controller.record("t").isr, controller.record("t").suspects) == ((3,), (1, 2))
    assert not of(AskLogEnds, controller.restart(3))
    assert (controller.record("t").leader, controller.record("t").suspects) == (3, ())


def test_an_administrator_elects_a_suspect() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live()
    controller.restart(2, unclean=True)
    assert controller.record("t").leader == -1
    answer = controller.reply(ElectionRequested("caller", ElectionType.UNCLEAN, [("t", 0)]))
    assert answer == {("t", 0): None}
    assert (controller.record("t").leader, controller.record("t").suspects) == (2, ())


def test_what_is_deleted_is_not_asked_for() -> None:
    controller, _ = all_suspects((1, 2, 3))
    controller.silent = {1, 2, 3}
    assert controller.machine.is_undecided(("t", 0))
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert not controller.machine.is_undecided(("t", 0))
    assert not of(WriteStates, log_ends(controller, 1, 4, 900))
    assert not of(AskLogEnds, controller.restart(2, unclean=True))


def test_nobody_is_told_that_a_leader_without_memory_leads() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.epochs[1] = 9
    controller.unclean = {1}
    out = controller.decide(BrokersChanged(controller.brokers()))
    assert told(controller, ("t", 0)) == [HELD_BACK], "the new leader is not stored yet"
    (write,) = of(WriteStates, out)
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.decide(StatesWritten(write.states, stored))
    assert told(controller, ("t", 0)) == [(2, 1)]


def test_a_leader_is_told_of_while_the_state_of_its_follower_is_written() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.is_slow = True
    assert of(WriteStates, controller.restart(2))
    assert told(controller, ("t", 0)) == [(1, 0)]


def test_what_could_not_be_told_for_a_while_is_told_in_the_end() -> None:
    """The notification of a write may arrive before its response."""
    controller = Controller(topic("t", (1, 2)))
    (write,) = of(WriteStates, controller.decide(BrokersChanged({1: BrokerRecord(1, (), None, 7)})))
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.decide(StatesChanged(stored))
    assert told(controller, ("t", 0)) == [HELD_BACK]
    (push,) = of(Push, controller.decide(StatesWritten(write.states, stored)))
    assert set(push.partitions or ()) == {("t", 0)}
    assert told(controller, ("t", 0)) == [(1, 1)]


def test_a_conflict_is_decided_on_again() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    out = controller.decide(BrokersChanged({one: BrokerRecord(one, (), None, 1) for one in (2, 3)}))
    (write,) = of(WriteStates, out)
    by_leader = replace(controller.record("t"), isr=(1, 3), version=1)
    (again,) = of(WriteStates, controller.decide(StatesWritten(write.states, {("t", 0): by_leader})))
    (wanted,) = again.states.values()
    assert (wanted.leader, wanted.isr, wanted.version) == (3, (3,), 1)


def test_partitions_without_a_leader_are_written_first() -> None:
    controller = Controller(topic("a", (2, 1)), topic("b", (1, 2)), topic("c", (2, 1)))
    first, second = of(WriteStates, controller.live(2, 3))
    assert set(first.states) == {("b", 0)}
    assert set(second.states) == {("a", 0), ("c", 0)}


def test_a_state_that_is_known_is_not_news() -> None:
    controller = Controller(topic("t", (1, 2)))
    for record in (controller.record("t"), replace(controller.record("t"), isr=(1,), version=-1)):
        assert not controller.handle(StatesChanged({("t", 0): record}))


def test_an_answer_about_some_partitions_says_nothing_of_the_others() -> None:
    """Reading goes on past partitions that were not requested or that the store does not know."""
    controller = Controller(topic("t", (1, 2), (1, 2)))
    controller.is_slow = True
    (write,) = of(WriteStates, controller.live(2, 3))
    unknown = {("unknown", 0): controller.record("t", 0)}
    stored = {("t", 1): replace(write.states["t", 1], version=1)}
    asked = {**unknown, ("t", 0): write.states["t", 0], ("t", 1): write.states["t", 1]}
    (again,) = of(WriteStates, controller.handle(StatesWritten(asked, {**unknown, **stored})))
    assert set(again.states) == {("t", 0)}
    assert controller.record("t", 1).leader == 2


# Duration


def fail_over(partitions: int) -> float:
    """The processor's time until each partition of a dead leader has another one."""
    replicas = [tuple((index + place) % 3 + 1 for place in range(3)) for index in range(partitions // 10)]
    topics = [topic(f"t{number}", *replicas) for number in range(10)]
    begun = time.process_time()
    controller = Controller(*topics, brokers=(2, 3))
    assert to_the_end(controller.machine.count())[0] == 0
    return time.process_time() - begun


def test_failing_over_takes_a_few_hundred_calls_for_each_partition() -> None:
    """So ten thousand partitions take well under two seconds: half a second where a call takes 0.2 µs."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fail_over(1000)
    finally:
        sys.setprofile(before)
    assert calls < 500 * 1000


def test_failing_over_ten_times_as_many_partitions_takes_about_ten_times_as_long() -> None:
    few, many = (min(fail_over(count) for _ in range(3)) for count in (1000, 10_000))
    assert many < 30 * few
