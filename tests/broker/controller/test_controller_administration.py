"""The controller's response to administrators and timers: shutdowns, elections, reassignments."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from millstream_broker.controller import queries
from millstream_broker.controller.messages import (
    Abandoned,
    AnswerCaller,
    AssignmentWritten,
    ElectionRequested,
    ElectionType,
    ReassignmentRequested,
    Settings,
    SettingsChanged,
    ShutdownRequested,
    StopReplicas,
    Tick,
    WriteAssignment,
    WriteStates,
)
from millstream_broker.coordination import PartitionRecord
from millstream_broker.coordination.controllership import ConfigsChanged, DeletionsRequested, TopicsChanged
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, of, topic
from millstream_kafka.protocol.errors import ApiError, ErrorCode

# Shutdowns


def test_a_controlled_shutdown() -> None:
    controller = Controller(topic("t", (1, 2, 3), (2, 1)), topic("alone", (1,)), topic("left", (1, 3)))
    controller.in_sync("left", 0, 1)
    seen = controller.handle(ShutdownRequested("caller", 1, 1))
    (reply,) = of(AnswerCaller, seen)
    assert reply.result == [("left", 0)], "what others might lead if they were in sync"
    assert controller.record("t", 0).leader == 2
    assert controller.record("t", 1).isr == (2,)
    stops = of(StopReplicas, seen)
    assert {(one.broker, one.delete, *one.partitions) for one in stops} == {
        (1, False, ("t", 0)),
        (1, False, ("t", 1)),
    }
    assert 1 in {one.broker_id for one in controller.machine.announced_brokers()}, "it still leads"
    controller.in_sync("left", 0, 1, 3)
    assert controller.record("left").leader == 3
    new = topic("new", (1, 3), version=-1)
    controller.handle(TopicsChanged({"new": new}, frozenset({*controller.machine.topics, "new"})))
    assert (controller.record("new").leader, controller.record("new").isr) == (3, (3,))
    controller.handle(TopicsChanged({}, frozenset(set(controller.machine.topics) - {"alone"})))
    assert 1 not in {one.broker_id for one in controller.machine.announced_brokers()}
    assert controller.reply(ShutdownRequested("again", 1, 1)) == []
    controller.restart(1)
    assert not controller.machine.leaving


def test_a_shutdown_waits_for_the_partitions_that_have_the_broker_in_their_isr() -> None:
    controller = Controller(topic("t", (2, 3, 1)))
    controller.in_sync("t", 0, 2, 3)
    controller.is_slow = True
    assert of(WriteStates, controller.live(1, 2))
    assert controller.reply(ShutdownRequested("not in the ISR", 1, 1)) == []
    assert not of(AnswerCaller, controller.handle(ShutdownRequested("the leader", 2, 1)))
    (reply,) = of(AnswerCaller, controller.write())
    assert reply.caller == "the leader"


def test_who_is_not_there_cannot_shut_down() -> None:
    controller = Controller(topic("t", (1, 2)), brokers=(1, 2))
    unknown = controller.reply(ShutdownRequested("caller", 3, 1))
    assert (unknown.code, unknown.message) == (
        ErrorCode.BROKER_NOT_AVAILABLE,
        "Broker 3 is not registered.",
    )
    stale = controller.reply(ShutdownRequested("caller", 1, 0))
    assert (stale.code, stale.message) == (
        ErrorCode.STALE_BROKER_EPOCH,
        "Broker 1 has registered again since.",
    )
    assert not controller.machine.leaving


def test_only_who_shuts_down_is_stopped_when_it_leaves_an_isr() -> None:
    controller = Controller(topic("t", (2, 1, 3)))
    controller.handle(ShutdownRequested("caller", 1, 1))
    assert controller.record("t").isr == (2, 3)
    assert not of(StopReplicas, controller.in_sync("t", 0, 2))


def test_a_topic_that_is_being_deleted_does_not_hold_up_a_shutdown() -> None:
    """The deletion may wait long for another broker, and nobody uses the topic."""
    controller = Controller(topic("t", (1, 2)))
    controller.silent = {1, 2, 3}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert controller.reply(ShutdownRequested("caller", 1, 1)) == []
    assert [one.broker_id for one in controller.machine.announced_brokers()] == [2, 3]


# Elections


def test_preferred_leaders_by_request() -> None:
    controller = Controller(topic("t", (1, 2), (2, 1), (1, 3)))
    controller.live(2, 3)
    controller.live(1, 2, 3)
    controller.in_sync("t", 0, 2, 1)
    keys = [("t", 0), ("t", 1), ("t", 2), ("t", 9), ("u", 0)]
    result = controller.reply(ElectionRequested("caller", ElectionType.PREFERRED, keys))
    assert {key: error and error.code for key, error in result.items()} == {
        ("t", 0): None,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert result["u", 0].message == "No such topic as u"
    assert result["t", 2].message == "The preferred leader 1 of t-2 is not alive or not in the ISR."
    assert result["t", 9].message == "No such partition as t-9"
    assert controller.record("t", 0).leader == 1
    everything = controller.reply(ElectionRequested("all", ElectionType.PREFERRED, None))
    assert set(everything) == {("t", 2)}, "those that needed one"


def test_unclean_elections_by_request() -> None:
    controller = Controller(topic("t", (1, 2), (3,), (1,)))
    controller.in_sync("t", 0, 1)
    controller.live(2, 3)
    assert controller.record("t", 0).leader == -1
    keys = [("t", 0), ("t", 1), ("t", 2)]
    result = controller.reply(ElectionRequested("caller", ElectionType.UNCLEAN, keys))
    assert {key: error and error.code for key, error in result.items()} == {
        ("t", 0): None,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
    assert result["t", 2].message == "No replica of t-2 is alive."
    assert controller.record("t", 0).isr == (2,)


@pytest.mark.parametrize("how", ["topic", "cluster"])
def test_unclean_elections_by_configuration(how: str) -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.in_sync("t", 0, 1)
    controller.live(2, 3)
    assert controller.record("t").leader == -1
    if how == "topic":
        controller.handle(ConfigsChanged({"t": {"unclean.leader.election.enable": "true"}}, {}))
    else:
        controller.handle(SettingsChanged(Settings(unclean_election=True)))
    assert controller.record("t").leader == 2


def test_an_election_that_finds_its_topic_deleted() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(2, 3)
    controller.is_slow = True
    controller.live(1, 2, 3)
    controller.in_sync("t", 0, 2, 1)
    assert not of(
        AnswerCaller, controller.handle(ElectionRequested("caller", ElectionType.PREFERRED, [("t", 0)]))
    )
    (reply,) = of(AnswerCaller, controller.handle(TopicsChanged({}, frozenset())))
    error = reply.result["t", 0]
    assert (error.code, error.message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "The topic was deleted meanwhile.",
    )


def test_nothing_is_elected_or_moved_in_a_topic_that_is_being_deleted() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.silent = {1, 2, 3}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    for kind in ElectionType:
        elected = controller.reply(ElectionRequested("caller", kind, [("t", 0)]))
        assert elected["t", 0].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    moving = controller.reply(ReassignmentRequested("caller", {("t", 0): (2, 3)}))
    assert moving["t", 0].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert moving["t", 0].message == "Unable to find a topic named t."


def led_by_two(settings: Settings) -> Controller:
    """Ten partitions that broker 2 leads; broker 1 is preferred, in sync and able to lead."""
    partitions = (PartitionRecord((1, 2), 2, 0, (2, 1), 0, 1),) * 10
    return Controller(replace(topic("t"), partitions=partitions), settings=settings)


def test_preferred_leaders_by_time() -> None:
    controller = led_by_two(Settings(imbalance_check_s=60.0))
    assert to_the_end(queries.count(controller.machine))[1] == 10
    assert not controller.handle(Tick(0.0)), "a new controller waits for brokers to come"
    assert not controller.handle(Tick(59.0))
    controller.handle(Tick(60.0))
    assert {controller.record("t", index).leader for index in range(10)} == {1}
    assert to_the_end(queries.count(controller.machine))[1] == 0


def test_preferred_leaders_are_looked_for_again_after_each_interval() -> None:
    controller = led_by_two(Settings(imbalance_check_s=60.0))
    controller.handle(Tick(100.0))
    controller.handle(Tick(170.0))
    controller.live(2, 3)
    controller.live(1, 2, 3)
    for index in range(10):
        controller.in_sync("t", index, 2, 1)
    assert not controller.handle(Tick(229.0))
    assert of(WriteStates, controller.handle(Tick(230.0)))


def test_preferred_leaders_are_left_alone_where_that_is_configured() -> None:
    controller = led_by_two(Settings(imbalance_check_s=60.0, auto_rebalance=False))
    for now in (0.0, 60.0, 120.0):
        assert not controller.handle(Tick(now))


# Reassignments


def moved(controller: Controller, key: tuple[str, int], *to: int) -> ApiError | None:
    result: dict[tuple[str, int], ApiError | None] = controller.reply(
        ReassignmentRequested("caller", {key: to or None})
    )
    return result[key]


def test_a_partition_moves() -> None:
    controller = Controller(topic("t", (1, 2)), brokers=(1, 2, 3, 4))
    assert moved(controller, ("t", 0), 3, 4) is None
    record = controller.record("t")
    assert (record.replicas, record.adding, record.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert record.leader_epoch == 1, "a log that is deleted late is not one that is made now"
    assert set(to_the_end(queries.reassignments(controller.machine, None))) == {("t", 0)}
    controller.in_sync("t", 0, 1, 2, 3)
    assert controller.record("t").adding, "4 is not in sync yet"
    assert controller.record("t").leader == 1, "nobody stops leading before that"
    seen = controller.in_sync("t", 0, 1, 2, 3, 4)
    record = controller.record("t")
    assert (record.replicas, record.adding, record.removing) == ((3, 4), (), ())
    assert (record.leader, record.isr) == (3, (3, 4))
    assert {one.broker for one in of(StopReplicas, seen)} == {1, 2}
    assert not to_the_end(queries.reassignments(controller.machine, None))


def test_a_replica_that_is_added_comes_into_sync_before_the_move_is_over() -> None:
    controller = Controller(topic("t", (1, 2)))
    moved(controller, ("t", 0), 1, 2, 3)
    assert controller.record("t").adding == (3,)
    controller.in_sync("t", 0, 1, 2, 3)
    assert controller.record("t") == PartitionRecord((1, 2, 3), 1, 1, (1, 2, 3), 2, 2)


def test_a_broker_moves_back_only_after_the_isr_has_lost_it() -> None:
    """It may have deleted its log, so it must not be in sync with an empty one, nor lead."""
    controller = Controller(topic("t", (2, 3, 1)))
    controller.is_slow = True
    controller.handle(ReassignmentRequested("away", {("t", 0): (2, 3)}))
    controller.write()
    seen = controller.write()
    assert of(StopReplicas, seen), "broker 1 deletes its log"
    (shrink,) = of(WriteStates, controller.waiting)
    assert shrink.states["t", 0].isr == (2, 3)
    controller.handle(ReassignmentRequested("back", {("t", 0): (1, 2, 3)}))
    while others := [one for one in controller.waiting if one is not shrink]:
        controller.waiting = others
        controller.write()
    assert controller.record("t").replicas == (2, 3), "broker 1 has to wait"
    controller.waiting = [shrink]
    while controller.waiting:
        controller.write()
    record = controller.record("t")
    assert (record.replicas, record.adding, record.isr) == ((1, 2, 3), (1,), (2, 3))


def test_a_broker_that_is_away_deletes_its_log_when_it_is_back() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(2, 3)
    moved(controller, ("t", 0), 2, 3)
    controller.in_sync("t", 0, 2, 3)
    assert controller.record("t").replicas == (2, 3)
    assert controller.record("t").removing == (1,)
    assert not to_the_end(queries.reassignments(controller.machine, None)), (
        "it is done as far as anybody can tell"
    )
    (stop,) = of(StopReplicas, controller.live(1, 2, 3))
    assert (stop.broker, stop.delete) == (1, True)
    assert controller.record("t").removing == ()


def test_a_move_goes_on_under_another_controller() -> None:
    record = PartitionRecord((3, 1, 2), 1, 4, (1, 2, 3), 9, 1, adding=(3,), removing=(1,))
    controller = Controller(replace(topic("t", (1,)), partitions=(record,)))
    assert (controller.record("t").replicas, controller.record("t").removing) == ((3, 2), ())
    assert controller.record("t").leader == 3


def test_a_move_is_cancelled() -> None:
    controller = Controller(topic("t", (1, 2)))
    error = moved(controller, ("t", 0))
    assert error is not None
    assert error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    moved(controller, ("t", 0), 2, 3)
    seen = controller.handle(ReassignmentRequested("cancel", {("t", 0): None}))
    assert of(AnswerCaller, seen)[0].result == {("t", 0): None}
    record = controller.record("t")
    assert (record.replicas, record.adding, record.removing) == ((2, 1), (), ()), "in the order of KIP-455"
    assert {one.broker for one in of(StopReplicas, seen)} == {3}


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ((2, 1, 1), "includes the broker 1 more than once"),
        ((1, 9), "includes broker 9, but no such broker is registered"),
        ((), "includes an empty replica list"),
    ],
)
def test_moves_that_cannot_be(to: tuple[int, ...], said: str) -> None:
    controller = Controller(topic("t", (1, 2)))
    result = controller.reply(ReassignmentRequested("caller", {("t", 0): to, ("t", 7): (1,)}))
    assert result["t", 0].code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert said in result["t", 0].message
    assert result["t", 7].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_replica_that_is_away_may_stay_but_not_come() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(2, 3)
    assert moved(controller, ("t", 0), 3, 1) is None
    refused = moved(controller, ("t", 0), 3, 4)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_move_no_longer_waits_for_a_replica_that_stays_and_dies() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.in_sync("t", 0, 1)
    moved(controller, ("t", 0), 3, 2)
    controller.in_sync("t", 0, 1, 3)
    assert controller.record("t").adding == (3,), "2 is not in sync"
    controller.live(1, 3)
    assert controller.record("t").replicas == (3, 2)


def test_a_move_that_is_changed_while_it_is_written_is_answered_after_the_change() -> None:
    controller = Controller(topic("t", (1, 2)), brokers=(1, 2, 3, 4))
    controller.is_slow = True
    assert not of(AnswerCaller, controller.handle(ReassignmentRequested("first", {("t", 0): (2, 3)})))
    assert not of(AnswerCaller, controller.handle(ReassignmentRequested("second", {("t", 0): (2, 4)})))
    assert not of(AnswerCaller, controller.write())
    assert {one.caller for one in of(AnswerCaller, controller.write())} == {"first", "second"}
    assert controller.record("t").replicas == (2, 4, 3, 1)


def test_no_state_is_decided_on_while_the_assignment_is_written() -> None:
    controller = Controller(topic("t", (1, 2)), topic("u", (1, 2)))
    controller.is_slow = True
    controller.handle(ReassignmentRequested("caller", {("t", 0): (2, 3)}))
    (write,) = of(WriteStates, controller.live(2, 3))
    assert set(write.states) == {("u", 0)}
    (write,) = of(WriteStates, controller.write())
    assert set(write.states) == {("t", 0)}


def test_a_move_of_a_topic_that_is_gone_by_then_changes_nothing() -> None:
    """The same holds for a new topic of that name."""
    old = topic("t", (1, 2))
    controller = Controller(old)
    controller.is_slow = True
    controller.handle(ReassignmentRequested("caller", {("t", 0): (2, 3)}))
    (reply,) = of(AnswerCaller, controller.handle(TopicsChanged({}, frozenset())))
    assert reply.caller == "caller"
    assert not controller.handle(AssignmentWritten(old))

    controller = Controller(old)
    controller.is_slow = True
    controller.handle(ReassignmentRequested("caller", {("t", 0): (2, 3)}))
    new = replace(topic("t", (3, 1)), topic_id=uuid.uuid4())
    controller.handle(TopicsChanged({"t": new}, frozenset({"t"})))
    controller.write()
    assert controller.record("t").replicas == (3, 1)


def test_moves_are_listed_by_partition() -> None:
    controller = Controller(topic("t", (1, 2), (1, 2), (1, 2)))
    controller.silent = {1}
    for index in (0, 1):
        moved(controller, ("t", index), 2, 3)
    assert set(to_the_end(queries.reassignments(controller.machine, None))) == {("t", 0), ("t", 1)}
    asked = [("t", 1), ("t", 2), ("t", 9), ("unknown", 0)]
    assert set(to_the_end(queries.reassignments(controller.machine, asked))) == {("t", 1)}


def test_who_does_not_wait_any_longer_is_not_answered() -> None:
    controller = Controller(topic("t", (1, 2)))
    out = controller.decide(ReassignmentRequested("gone", {("t", 0): (2, 3)}))
    (write,) = of(WriteAssignment, out)
    controller.decide(Abandoned("gone"))
    assert not of(AnswerCaller, controller.handle(AssignmentWritten(write.topic)))
