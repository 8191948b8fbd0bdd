"""The controller's requests to brokers: recipients, order, content, and brokers that do not respond."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from millstream_broker.config.config import Listener
from millstream_broker.controller import channels
from millstream_broker.controller.channels import Channels, log_ends, update_request
from millstream_broker.controller.messages import AskLogEnds, LogEnds, Push, Stopped, StopReplicas
from millstream_broker.coordination import BrokerRecord, PartitionRecord
from millstream_broker.coordination.controllership import BrokersChanged, DeletionsRequested
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, topic
from millstream_harness.controller_surroundings import Peers
from millstream_harness.virtual_time import turns, virtual_time
from millstream_kafka.client.errors import RequestTimedOut
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.protocol.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from millstream_kafka.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

MOVED_AWAY = PartitionRecord((2, 3), 2, 4, (2, 3), 9, 1, removing=(1,))
"""Broker 1 still has a log to delete."""
UNDECIDED = PartitionRecord((1, 2), -1, 4, (1, 2), 9, 1, suspects=(1, 2))


@dataclass
class Told:
    """A controller's channels, and the responses that they passed on."""

    controller: Controller
    peers: Peers = field(default_factory=Peers)
    answered: list[Any] = field(default_factory=list)
    deposed: int = 0
    rest: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.rest.set()
        self.channels = Channels(
            self.peers.broker_id,
            self.peers.connect,
            self.controller.machine,
            self._rest,
            self.answered.append,
            self._depose,
        )

    async def _rest(self) -> None:
        """Wait until no event is being handled, as the test decides."""
        await self.rest.wait()

    def _depose(self) -> None:
        self.deposed += 1

    def push(self, broker: int, *partitions: tuple[str, int]) -> None:
        self.channels.push(Push((broker,), partitions))


@asynccontextmanager
async def telling(*records: PartitionRecord, brokers: tuple[int, ...] = (1, 2, 3)) -> AsyncIterator[Told]:
    """Topic t with these partitions; by default one, led by broker 1 and followed by 2."""
    partitions = records or (PartitionRecord((1, 2), 1, 0, (1, 2), 0, 1),)
    controller = Controller(brokers=brokers)
    controller.silent = set(brokers)
    machine = controller.machine
    machine.topics["t"] = replace(topic("t"), partitions=partitions)
    for index, record in enumerate(partitions):
        machine.partitions.add(("t", index), record)
    machine.partitions.dirty.clear()
    told = Told(controller)
    yield told
    await told.channels.close()


def said(request: UpdateMetadataRequest) -> set[tuple[str, int]]:
    return {
        (one.topic_name, each.partition_index)
        for one in request.topic_states
        for each in one.partition_states
    }


# Recipients


@virtual_time
async def test_brokers_are_told_on_one_connection_each() -> None:
    async with telling() as told:
        told.channels.push(Push((1, 3, 7), [("t", 0)]))
        await turns()
        told.push(1)
        await turns()
        assert told.peers.connects == [(1, "controller-9", 30.0, 0.0), (3, "controller-9", 30.0, 0.0)]
        assert [(one.broker, one.version) for one in told.peers.asked] == [(1, 7), (3, 7), (1, 7)]
        first, again = told.peers.of(1)
        assert said(first) == {("t", 0)}
        assert said(again) == set(), "only who lives"
        assert {one.id for one in again.live_brokers} == {1, 2, 3}
        for unknown in (StopReplicas(7, {("t", 0): 1}, True), AskLogEnds(7, [("t", 0)])):
            (told.channels.stop if isinstance(unknown, StopReplicas) else told.channels.ask)(unknown)
        await turns()
        assert not told.peers.of(7)


@virtual_time
async def test_a_lost_connection_is_made_anew() -> None:
    async with telling() as told:
        told.push(1)
        await turns()
        told.peers.connections[0].is_closed = True
        told.push(1)
        await turns()
        assert len(told.peers.connects) == len(told.peers.of(1)) == 2


@virtual_time
async def test_a_broker_that_is_new_is_told_of_all_partitions() -> None:
    async with telling(MOVED_AWAY, MOVED_AWAY) as told:
        told.channels.push(Push((1,), None))
        await turns()
        assert [said(one) for one in told.peers.of(1)] == [{("t", 0), ("t", 1)}]


@virtual_time
async def test_what_waits_for_an_incarnation_of_a_broker_ends_with_it() -> None:
    async with telling() as told:
        told.peers.silent = {1}
        told.push(1, ("t", 0))
        await turns()
        told.controller.restart(1)
        told.push(1)
        told.push(2)
        await turns()
        assert told.peers.open() == [1, 2]
        assert [(one.broker, one.epoch) for one in told.peers.asked] == [(1, 1), (1, 11), (2, 1)]
        assert [one.broker_epoch for one in told.peers.of(1)] == [1, 11]
        assert said(told.peers.of(1)[1]) == set()
        told.controller.live(2, 3)
        told.channels.tidy()
        await turns()
        assert told.peers.open() == [2]
        told.push(1)
        await turns()
        assert len(told.peers.of(1)) == 2


@virtual_time
async def test_closing_ends_all_connections_and_nothing_is_told_any_more() -> None:
    async with telling() as told:
        told.peers.silent = {1}
        told.push(1)
        told.push(2)
        await turns()
        await told.channels.close()
        assert told.peers.open() == []
        assert await told.channels.acknowledged(1.0)
        assert len(told.peers.asked) == 2


@virtual_time
async def test_whether_all_have_been_told() -> None:
    async with telling() as told:
        assert await told.channels.acknowledged(1.0), "nothing waits"
        told.peers.silent = {2}
        told.push(1)
        assert await told.channels.acknowledged(1.0)
        told.push(2)
        assert not await told.channels.acknowledged(1.0)
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        told.peers.wake()
        assert await told.channels.acknowledged(1.0)
        told.channels.end()
        told.channels.stop(StopReplicas(2, {("t", 0): 1}, False))
        assert await told.channels.acknowledged(1.0) is False


# Order


@virtual_time
async def test_metadata_goes_first_then_what_is_to_be_stopped_then_questions() -> None:
    async with telling(MOVED_AWAY, UNDECIDED) as told:
        told.channels.ask(AskLogEnds(1, [("t", 1)]))
        told.channels.stop(StopReplicas(1, {("t", 0): 4}, True))
        told.push(1)
        await turns()
        assert [one.version for one in told.peers.asked] == [7, 3, 4]
        assert [type(one) for one in told.peers.of(1)] == [
            UpdateMetadataRequest,
            StopReplicaRequest,
            ListOffsetsRequest,
        ]
        assert [type(one) for one in told.answered] == [Stopped, LogEnds]


@virtual_time
async def test_what_changes_while_a_broker_is_told_is_told_afterwards() -> None:
    async with telling(MOVED_AWAY, MOVED_AWAY) as told:
        told.peers.silent = {1}
        told.push(1, ("t", 0))
        await turns()
        told.push(1, ("t", 1))
        told.peers.wake()
        assert await told.channels.acknowledged(10.0)
        assert [said(one) for one in told.peers.of(1)] == [{("t", 0)}, {("t", 1)}]


@virtual_time
async def test_more_than_a_request_may_have_goes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_PARTITIONS", 2)
    async with telling(*[MOVED_AWAY] * 4, *[UNDECIDED] * 3) as told:
        told.channels.push(Push((1,), None))
        told.channels.stop(StopReplicas(1, {("t", index): 4 for index in range(4)}, True))
        told.channels.stop(StopReplicas(1, {("t", index): 4 for index in range(7)}, False))
        told.channels.ask(AskLogEnds(1, [("t", index) for index in (4, 5, 6)]))
        await turns(100)
        updates = [one for one in told.peers.of(1) if isinstance(one, UpdateMetadataRequest)]
        assert [len(said(one)) for one in updates] == [2, 2, 2, 1]
        assert set().union(*map(said, updates)) == {("t", index) for index in range(7)}
        stops = [one for one in told.peers.of(1) if isinstance(one, StopReplicaRequest)]
        assert [[len(each.partition_states) for each in one.topic_states] for one in stops] == [[4], [3]]
        done = [key for one in told.answered if isinstance(one, Stopped) for key in one.partitions]
        assert sorted(done) == [("t", index) for index in range(4)]
        ends = [set(one.ends) for one in told.answered if isinstance(one, LogEnds)]
        assert [len(one) for one in ends] == [2, 1]


def test_a_broker_hears_of_internal_topics_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group coordinator must know all other topics: it takes unknown ones for deleted."""
    monkeypatch.setattr(channels, "MAX_PARTITIONS", 3)
    waiting = [("__consumer_offsets", 0), ("__consumer_offsets", 1), *((name, 0) for name in "abcd")]
    requests = []
    while waiting:
        request = channels._some(waiting)
        requests.append({name for name, _ in request})
        waiting = [key for key in waiting if key not in request]
    assert requests == [{"a", "b", "c"}, {"d", "__consumer_offsets"}], "a request is followed as a whole"


# Brokers that do not respond


@virtual_time
async def test_a_broker_that_is_away_is_tried_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, channels.__name__)
    async with telling() as told:
        told.peers.away = {1}
        told.push(1, ("t", 0))
        await asyncio.sleep(4.0)
        times = [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55]
        assert [at for *_, at in told.peers.connects] == times
        text = "cannot send metadata to broker 1: broker-1:9092: no route to host"
        assert [one.getMessage() for one in caplog.records] == [text] * len(times)
        assert [one.levelno for one in caplog.records] == [logging.INFO] + [logging.DEBUG] * (len(times) - 1)
        told.peers.away = set()
        assert await told.channels.acknowledged(10.0)
        assert said(told.peers.of(1)[0]) == {("t", 0)}
        caplog.clear()
        told.peers.away = {1}
        told.peers.connections[0].is_closed = True
        told.push(1)
        await asyncio.sleep(0.1)
        *_, before, last = told.peers.connects
        assert last[-1] - before[-1] == pytest.approx(0.05), "it begins anew"
        assert [one.levelno for one in caplog.records] == [logging.INFO, logging.DEBUG]


@virtual_time
async def test_what_is_not_answered_is_repeated_on_another_connection() -> None:
    lost = RequestTimedOut("broker-1", 9092, "no response")
    async with telling(MOVED_AWAY, UNDECIDED) as told:
        told.push(1, ("t", 0))
        told.peers.scripts[1] += [lost, None, lost, None, lost]
        assert await told.channels.acknowledged(10.0)
        told.channels.stop(StopReplicas(1, {("t", 0): 4}, True))
        assert await told.channels.acknowledged(10.0)
        told.channels.ask(AskLogEnds(1, [("t", 1)]))
        assert await told.channels.acknowledged(10.0)
        first, again, *others = told.peers.of(1)
        assert said(first) == said(again) == {("t", 0)}
        assert others[0] == others[1]
        assert others[2] == others[3]
        assert len(others) == 4
        assert len(told.peers.connects) == 4
        assert len(told.peers.open()) == 1
        assert [type(one) for one in told.answered] == [Stopped, LogEnds]


@virtual_time
async def test_a_refused_request_is_repeated_and_a_newer_controller_ends_this_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, channels.__name__)
    async with telling() as told:
        told.peers.scripts[1].append(UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH))
        told.push(1, ("t", 0))
        assert await told.channels.acknowledged(10.0)
        assert told.deposed == 0
        assert [said(one) for one in told.peers.of(1)] == [{("t", 0)}] * 2
        told.peers.scripts[1].append(UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH))
        told.push(1, ("t", 0))
        assert await told.channels.acknowledged(10.0)
        assert told.deposed == 1
        told.peers.scripts[1].append(StopReplicaResponse(ErrorCode.STALE_CONTROLLER_EPOCH, []))
        told.channels.stop(StopReplicas(1, {("t", 0): 4}, False))
        assert await told.channels.acknowledged(10.0)
        assert told.deposed == 2
        assert [one.getMessage() for one in caplog.records] == [
            f"cannot send metadata to broker 1: broker-1:9092: it answered {name}"
            for name in ("STALE_BROKER_EPOCH", "STALE_CONTROLLER_EPOCH", "STALE_CONTROLLER_EPOCH")
        ]


# Replicas to stop


@virtual_time
async def test_a_broker_deletes_what_it_has_still_to_delete_and_stops_the_rest() -> None:
    kept = replace(MOVED_AWAY, replicas=(2, 1), removing=())
    async with telling(MOVED_AWAY, kept, kept) as told:
        told.channels.stop(StopReplicas(1, {("t", 0): 1, ("t", 1): 1, ("gone", 0): 1}, True))
        told.channels.stop(StopReplicas(1, {("t", 0): 2, ("t", 2): 5}, False))
        await turns()
        (request,) = told.peers.of(1)
        assert request == StopReplicaRequest(
            9,
            2,
            1,
            [
                StopReplicaTopicState(
                    "t",
                    [StopReplicaPartitionState(0, 4, True), StopReplicaPartitionState(2, 5, False)],
                    uuid.uuid5(uuid.NAMESPACE_DNS, "t"),
                )
            ],
        )
        assert told.answered == [Stopped(1, 1, [("t", 0)])]


@virtual_time
async def test_a_broker_only_stops_replicas_and_nobody_is_told_of_that() -> None:
    async with telling() as told:
        told.channels.stop(StopReplicas(1, {("t", 0): 5}, False))
        await turns()
        assert len(told.peers.of(1)) == 1
        assert not told.answered


@virtual_time
async def test_a_replica_that_is_to_be_stopped_again_meanwhile_is_stopped_again() -> None:
    async with telling() as told:
        told.peers.silent = {1}
        told.channels.stop(StopReplicas(1, {("t", 0): 5}, False))
        await turns()
        told.channels.stop(StopReplicas(1, {("t", 0): 6}, False))
        told.peers.wake()
        assert await told.channels.acknowledged(10.0)
        assert [one.topic_states[0].partition_states[0].leader_epoch for one in told.peers.of(1)] == [5, 6]


@virtual_time
async def test_nothing_is_sent_when_nothing_is_to_be_deleted_any_more() -> None:
    async with telling(MOVED_AWAY) as told:
        told.channels.stop(StopReplicas(2, {("t", 0): 4}, True))
        told.channels.stop(StopReplicas(1, {("gone", 0): 4}, True))
        assert await told.channels.acknowledged(1.0)
        assert not told.peers.asked


@virtual_time
async def test_a_log_that_cannot_be_deleted_is_tried_again_and_the_others_are_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, channels.__name__)
    codes = [
        ErrorCode.NONE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    async with telling(*[MOVED_AWAY] * 4) as told:
        told.peers.scripts[1].append(
            StopReplicaResponse(
                0, [StopReplicaPartitionError("t", index, code) for index, code in enumerate(codes)]
            )
        )
        told.channels.stop(StopReplicas(1, {("t", index): 4 for index in range(4)}, True))
        assert await told.channels.acknowledged(10.0)
        first, second = told.answered
        assert set(first.partitions) == {("t", 0), ("t", 2), ("t", 3)}
        assert set(second.partitions) == {("t", 1)}
        (record,) = caplog.records
        assert record.getMessage() == (
            "cannot send metadata to broker 1: broker-1:9092: "
            "1 replicas, t-1 among them, are not deleted: KAFKA_STORAGE_ERROR"
        )


# Log ends


@virtual_time
async def test_a_broker_is_asked_where_its_logs_end() -> None:
    async with telling(UNDECIDED, MOVED_AWAY) as told:
        told.peers.scripts[2].append(
            ListOffsetsResponse(
                0, [ListOffsetsTopicResponse("t", [ListOffsetsPartitionResponse(0, 0, -1, 70, 4)])]
            )
        )
        told.channels.ask(AskLogEnds(2, [("t", 0), ("t", 1), ("gone", 0)]))
        assert await told.channels.acknowledged(1.0)
        asked = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]
        assert told.peers.of(2) == [ListOffsetsRequest(-2, 0, asked)]
        assert told.answered == [LogEnds(2, 1, {("t", 0): (4, 70)})]


@virtual_time
async def test_nobody_is_asked_about_what_is_decided() -> None:
    async with telling(MOVED_AWAY) as told:
        told.channels.ask(AskLogEnds(2, [("t", 0)]))
        assert await told.channels.acknowledged(1.0)
        assert not told.peers.asked


@virtual_time
async def test_a_broker_that_does_not_know_yet_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, channels.__name__)
    unknown = ListOffsetsPartitionResponse(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    async with telling(UNDECIDED) as told:
        told.peers.scripts[1].append(ListOffsetsResponse(0, [ListOffsetsTopicResponse("t", [unknown])]))
        told.channels.ask(AskLogEnds(1, [("t", 0)]))
        assert await told.channels.acknowledged(10.0)
        assert len(told.peers.of(1)) == 2
        assert told.answered[-1] == LogEnds(1, 1, {("t", 0): (0, 0)})
        (record,) = caplog.records
        assert record.getMessage().endswith("it does not know where logs end yet")


def test_a_log_that_cannot_be_used_has_no_end() -> None:
    answers = [
        ListOffsetsPartitionResponse(0, 0, -1, 70, 4),
        ListOffsetsPartitionResponse(1, ErrorCode.KAFKA_STORAGE_ERROR),
        ListOffsetsPartitionResponse(2, ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    answer = ListOffsetsResponse(0, [ListOffsetsTopicResponse("t", answers)])
    assert log_ends(answer) == {("t", 0): (4, 70), ("t", 1): (-1, -1)}


# Metadata sent to brokers


def states(controller: Controller, *keys: tuple[str, int]) -> list[UpdateMetadataPartitionState]:
    request = to_the_end(update_request(9, 3, controller.machine, keys))
    return [one for topic in request.topic_states for one in topic.partition_states]


def test_a_partition_is_told_of_with_its_replicas_that_are_away() -> None:
    controller = Controller(topic("t", (1, 2, 3)), brokers=(1, 2))
    assert states(controller, ("gone", 0), ("t", 0)) == [
        UpdateMetadataPartitionState(0, 2, 1, 0, [1, 2], 1, [1, 2, 3], [3], [])
    ]


def test_of_a_partition_that_is_being_changed_only_its_being_there_is_told() -> None:
    controller = Controller(topic("t", (1, 2)), topic("new", (8, 9), version=-1))
    controller.decide(BrokersChanged({1: BrokerRecord(1, (), None, 7)}))
    assert states(controller, ("t", 0), ("new", 0)) == [
        UpdateMetadataPartitionState(0, -1, -1, -1, [], -1, [], [], []),
        UpdateMetadataPartitionState(0, 0, -1, -1, [], -1, [8, 9], [8, 9], []),
    ]


def test_nobody_leads_a_topic_that_is_being_deleted() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.silent = {1, 2, 3}
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert [one.leader for one in states(controller, ("t", 0))] == [LEADER_DURING_DELETE]


def test_brokers_are_told_of_with_their_listeners() -> None:
    protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "of a later release")
    listeners = tuple(
        Listener(f"L{number}", "host", 9000 + number, name) for number, name in enumerate(protocols)
    )
    controller = Controller(brokers=())
    controller.handle(BrokersChanged({4: BrokerRecord(4, listeners, "a rack", 12)}))
    request = to_the_end(update_request(9, 3, controller.machine, []))
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (9, 2, 3)
    endpoints = [
        UpdateMetadataEndpoint(9000 + number, "host", f"L{number}", code)
        for number, code in enumerate((0, 1, 2, 3, 0))
    ]
    assert request.live_brokers == [UpdateMetadataBroker(4, endpoints, "a rack", 12)]


@virtual_time
async def test_nothing_is_said_while_an_event_is_being_handled() -> None:
    async with telling() as told:
        told.rest.clear()
        told.push(1, ("t", 0))
        await turns()
        assert told.peers.open() == [1]
        assert not told.peers.asked
        told.rest.set()
        await turns()
        (request,) = told.peers.of(1)
        assert said(request) == {("t", 0)}


def test_a_topic_that_is_made_anew_while_a_request_is_made_is_not_told_of_as_the_old_one() -> None:
    controller = Controller(topic("t", (1, 2), (1, 2)), topic("u", (1, 2)))
    machine = controller.machine
    steps = update_request(9, 3, machine, [("t", 0), ("u", 0), ("t", 1)])
    for _ in range(2):
        next(steps)
    machine.topics["t"] = replace(machine.topics["t"], topic_id=ZERO_UUID)
    request = to_the_end(steps)
    assert said(request) == {("t", 1), ("u", 0)}
    (of_t,) = [one for one in request.topic_states if one.topic_name == "t"]
    assert of_t.topic_id == ZERO_UUID


def test_who_lives_is_never_older_than_what_is_said_of_partitions() -> None:
    controller = Controller(topic("t", (1, 2), (1, 2)), brokers=(1, 2))
    steps = update_request(9, 3, controller.machine, [("t", 0), ("t", 1)])
    for _ in range(2):
        next(steps)
    controller.restart(1)
    request = to_the_end(steps)
    assert {one.id: one.epoch for one in request.live_brokers} == {1: 11, 2: 1}
    ((first, second),) = [one.partition_states for one in request.topic_states]
    assert (first.leader, second.leader) == (1, 2), "the one is as it was, and is told of again"
