"""The controller's machine, event by event: what it writes, tells and answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from millstream_broker.controller.channels import update_request
from millstream_broker.controller.deletion import Deletion
from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    Abandoned,
    AcceptBroker,
    AskLogEnds,
    AssignmentWritten,
    ElectionRequested,
    ElectionType,
    LogEnds,
    Push,
    ReassignmentRequested,
    RefuseDeletion,
    RemoveTopic,
    Reply,
    Settings,
    SettingsChanged,
    ShutdownRequested,
    StatesWritten,
    Stopped,
    StopReplicas,
    Tick,
    TopicRemoved,
    WriteAssignment,
    WriteStates,
)
from millstream_broker.controller.store import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Image,
    StatesChanged,
    TopicsChanged,
)
from millstream_broker.coordination import BrokerRecord, PartitionRecord, TopicRecord
from millstream_broker.protocol.errors import ApiError, ErrorCode
from millstream_broker.protocol.update_metadata import LEADER_DURING_DELETE

T = TypeVar("T")
HELD_BACK = (-1, -1)
"""Leader and version of a partition of which a broker is told only that there is one, lest clients miss it."""


def topic(name: str, *replicas: tuple[int, ...], version: int = 0) -> TopicRecord:
    """Led by the first replicas, all in sync; without states for version -1."""
    partitions = tuple(
        PartitionRecord(one, -1, -1, (), -1)
        if version < 0
        else PartitionRecord(one, one[0], 0, one, version, 1)
        for one in replicas
    )
    return TopicRecord(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), partitions)


class Controller:
    """A machine with a store that does at once what it says, and brokers that delete what they are told to."""

    def __init__(
        self,
        *topics: TopicRecord,
        brokers: Iterable[int] = (1, 2, 3),
        settings: Settings | None = None,
        deletions: Iterable[str] = (),
    ) -> None:
        self.machine = ControllerMachine(2, settings or Settings())
        self.epochs = dict.fromkeys(brokers, 1)
        self.unclean: set[int] = set()
        self.silent: set[int] = set()
        """Brokers that do not answer StopReplica."""
        self.seen: list[Any] = []
        image = Image(self.brokers(), {one.name: one for one in topics}, frozenset(deletions))
        self._do(self.machine.start(image))

    def brokers(self) -> dict[int, BrokerRecord]:
        return {
            number: BrokerRecord(number, (), None, epoch, number in self.unclean)
            for number, epoch in self.epochs.items()
        }

    def handle(self, event: Any) -> list[Any]:
        """All that comes of it."""
        self.seen = []
        self._do(self.machine.handle(event))
        return self.seen

    def live(self, *brokers: int) -> list[Any]:
        self.epochs = {number: self.epochs.get(number, 1) for number in brokers}
        return self.handle(BrokersChanged(self.brokers()))

    def restart(self, broker: int, *, unclean: bool = False) -> list[Any]:
        self.epochs[broker] = self.epochs.get(broker, 0) + 10
        self.unclean = {broker} if unclean else set()
        return self.handle(BrokersChanged(self.brokers()))

    def _do(self, instructions: Iterable[Any]) -> None:
        for one in instructions:
            self.seen.append(one)
            if isinstance(one, WriteStates):
                stored = {key: replace(each, version=each.version + 1) for key, each in one.states.items()}
                self._do(self.machine.handle(StatesWritten(one.states, stored)))
            elif isinstance(one, WriteAssignment):
                self._do(self.machine.handle(AssignmentWritten(one.topic)))
            elif isinstance(one, RemoveTopic):
                self._do(self.machine.handle(TopicRemoved(one.name)))
            elif isinstance(one, StopReplicas) and one.delete and one.broker not in self.silent:
                self._do(self.machine.handle(Stopped(one.broker, self.epochs[one.broker], one.partitions)))

    def record(self, name: str, index: int = 0) -> PartitionRecord:
        return self.machine.records[name, index]

    def in_sync(self, name: str, index: int, *isr: int) -> list[Any]:
        """The leader writes an ISR."""
        record = self.record(name, index)
        return self.handle(
            StatesChanged({(name, index): replace(record, isr=isr, version=record.version + 1)})
        )

    def reply(self, event: Any) -> Any:
        (reply,) = of(Reply, self.handle(event))
        return reply.result


def of(kind: type[T], seen: Iterable[Any]) -> list[T]:
    return [one for one in seen if isinstance(one, kind)]


def told(controller: Controller, *keys: tuple[str, int]) -> list[tuple[int, int]]:
    """Leader and version of these partitions, as brokers are told them."""
    request = update_request(1, 1, controller.machine, keys)
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
    """Not once for each event; and a broker's answer about many topics is taken apart once."""
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


# Brokers


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
    """All brokers went at once, and come back one after the other, each unclean; with what came of the last one."""
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


def test_a_new_controller_asks_suspects_anew() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    again = ControllerMachine(3, Settings())
    out = again.start(
        Image(
            controller.brokers(),
            {"t": replace(topic("t"), partitions=(controller.record("t"),))},
            frozenset(),
        )
    )
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
    assert controller.machine.is_undecided(("t", 0))
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert not controller.machine.is_undecided(("t", 0))
    assert not of(WriteStates, log_ends(controller, 1, 4, 900))


def test_nobody_is_told_that_a_leader_without_memory_leads() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.epochs[1] = 9
    controller.unclean = {1}
    out = controller.machine.handle(BrokersChanged(controller.brokers()))
    assert told(controller, ("t", 0)) == [HELD_BACK], "the new leader is not stored yet"
    (write,) = of(WriteStates, out)
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.machine.handle(StatesWritten(write.states, stored))
    assert told(controller, ("t", 0)) == [(2, 1)]


def test_what_could_not_be_told_for_a_while_is_told_in_the_end() -> None:
    """The leaders' notes may be read before the answer to the write comes."""
    controller = Controller(topic("t", (1, 2)))
    (write,) = of(WriteStates, controller.machine.handle(BrokersChanged({1: BrokerRecord(1, (), None, 7)})))
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.machine.handle(StatesChanged(stored))
    assert told(controller, ("t", 0)) == [HELD_BACK]
    (push,) = of(Push, controller.machine.handle(StatesWritten(write.states, stored)))
    assert push.partitions == {("t", 0)}
    assert told(controller, ("t", 0)) == [(1, 1)]


def test_a_conflict_is_decided_on_again() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    out = controller.machine.handle(BrokersChanged({one: BrokerRecord(one, (), None, 1) for one in (2, 3)}))
    (write,) = of(WriteStates, out)
    by_leader = replace(controller.record("t"), isr=(1, 3), version=1)
    (again,) = of(WriteStates, controller.machine.handle(StatesWritten(write.states, {("t", 0): by_leader})))
    (wanted,) = again.states.values()
    assert (wanted.leader, wanted.isr, wanted.version) == (3, (3,), 1)


def test_a_controlled_shutdown() -> None:
    controller = Controller(topic("t", (1, 2, 3), (2, 1)), topic("alone", (1,)), topic("left", (1, 3)))
    controller.in_sync("left", 0, 1)
    seen = controller.handle(ShutdownRequested("caller", 1, 1))
    (reply,) = of(Reply, seen)
    assert reply.result == [("left", 0)], "what others might lead if they were in sync"
    assert controller.record("t", 0).leader == 2
    assert controller.record("t", 1).isr == (2,)
    stops = of(StopReplicas, seen)
    assert {(one.broker, one.delete, *one.partitions) for one in stops} == {
        (1, False, ("t", 0)),
        (1, False, ("t", 1)),
    }
    assert 1 in {one.broker_id for one in controller.machine.told_brokers()}, "it still leads"
    controller.in_sync("left", 0, 1, 3)
    assert controller.record("left").leader == 3
    new = topic("new", (1, 3), version=-1)
    controller.handle(TopicsChanged({"new": new}, frozenset({*controller.machine.topics, "new"})))
    assert (controller.record("new").leader, controller.record("new").isr) == (3, (3,))
    controller.handle(TopicsChanged({}, frozenset(set(controller.machine.topics) - {"alone"})))
    assert 1 not in {one.broker_id for one in controller.machine.told_brokers()}
    assert controller.reply(ShutdownRequested("again", 1, 1)) == []
    stale = controller.reply(ShutdownRequested("stale", 1, 0))
    assert isinstance(stale, ApiError)
    assert stale.code is ErrorCode.STALE_BROKER_EPOCH
    controller.restart(1)
    assert not controller.machine.leaving


# Elections


def test_preferred_leaders_by_request() -> None:
    controller = Controller(topic("t", (1, 2), (2, 1), (1, 3)))
    controller.live(2, 3)
    controller.live(1, 2, 3)
    controller.in_sync("t", 0, 2, 1)
    keys = [("t", 0), ("t", 1), ("t", 2), ("t", 9)]
    result = controller.reply(ElectionRequested("caller", ElectionType.PREFERRED, keys))
    assert {key: error and error.code for key, error in result.items()} == {
        ("t", 0): None,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
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


def test_preferred_leaders_by_time() -> None:
    controller = Controller(topic("t", *[(1, 2)] * 10), settings=Settings(imbalance_check_s=60.0))
    controller.handle(Tick(100.0))
    controller.live(2, 3)
    controller.live(1, 2, 3)
    for index in range(10):
        controller.in_sync("t", index, 2, 1)
    assert not of(WriteStates, controller.handle(Tick(159.0)))
    controller.handle(Tick(160.0))
    assert {controller.record("t", index).leader for index in range(10)} == {1}
    assert controller.machine.not_preferred() == 0


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
    assert set(controller.machine.reassignments(None)) == {("t", 0)}
    controller.in_sync("t", 0, 1, 2, 3)
    assert controller.record("t").adding, "4 is not in sync yet"
    seen = controller.in_sync("t", 0, 1, 2, 3, 4)
    record = controller.record("t")
    assert (record.replicas, record.adding, record.removing) == ((3, 4), (), ())
    assert (record.leader, record.isr) == (3, (3, 4))
    assert {one.broker for one in of(StopReplicas, seen)} == {1, 2}
    assert not controller.machine.reassignments(None)


def test_a_broker_that_is_away_deletes_its_log_when_it_is_back() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(2, 3)
    moved(controller, ("t", 0), 2, 3)
    controller.in_sync("t", 0, 2, 3)
    assert controller.record("t").replicas == (2, 3)
    assert controller.record("t").removing == (1,)
    assert not controller.machine.reassignments(None), "it is done as far as anybody can tell"
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
    assert of(Reply, seen)[0].result == {("t", 0): None}
    record = controller.record("t")
    assert (record.replicas, record.adding, record.removing) == ((2, 1), (), ()), "in the order of KIP-455"
    assert {one.broker for one in of(StopReplicas, seen)} == {3}


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ((1, 1), "includes the broker 1 more than once"),
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


def test_who_does_not_wait_any_longer_is_not_answered() -> None:
    controller = Controller(topic("t", (1, 2)))
    out = controller.machine.handle(ReassignmentRequested("gone", {("t", 0): (2, 3)}))
    (write,) = of(WriteAssignment, out)
    controller.machine.handle(Abandoned("gone"))
    assert not of(Reply, controller.handle(AssignmentWritten(write.topic)))


# How long it takes


def test_failing_over_ten_thousand_partitions_takes_well_under_two_seconds() -> None:
    replicas = [tuple((index + place) % 3 + 1 for place in range(3)) for index in range(1000)]
    topics = [topic(f"t{number}", *replicas) for number in range(10)]
    begun = time.process_time()
    controller = Controller(*topics, brokers=(2, 3))
    assert controller.machine.leaderless() == 0
    assert time.process_time() - begun < 2.0
