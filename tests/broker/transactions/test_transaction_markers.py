"""Markers reach the leader of each partition, however often it changes or does not answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from millstream_broker.controller.reach import Caller
from millstream_broker.coordination import BrokerRecord, ClusterState, PartitionRecord, TopicRecord
from millstream_broker.replication.replicas import Replicas
from millstream_broker.transactions.markers import ABSENT_TRIES, RETRY_S, TransactionMarkerSender
from millstream_broker.transactions.messages import Markers
from millstream_broker.transactions.peers import Peers
from millstream_harness.virtual_time import virtual_time
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from millstream_kafka.topic_partition import TopicPartition

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
NO_LEADER = -1


def topic(name: str, *leaders: int) -> TopicRecord:
    records = tuple(PartitionRecord((1, 2), leader, 0, (1, 2)) for leader in leaders)
    return TopicRecord(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), records)


class Surroundings:
    """Brokers 1 and 2, which answer as they are told; `wait` lets time pass."""

    def __init__(self, *topics: TopicRecord) -> None:
        brokers = {number: BrokerRecord(number, (), epoch=number) for number in (1, 2)}
        state = ClusterState("c", brokers, {each.name: each for each in topics}, 1)
        self.replicas = Replicas(1, state)
        self.errors: dict[tuple[int, str, int], ErrorCode] = {}
        """By broker and partition."""
        self.down: set[int] = set()
        self.connections = 0
        self.received: list[tuple[int, list[TopicPartition]]] = []
        self.written: list[TopicPartition] = []
        self.sender = TransactionMarkerSender(self.replicas, Peers(self.reach, "test"))
        self.sender.report_to(self.note)

    def note(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        self.written += sorted(partitions)

    async def reach(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        self.connections += 1
        return cast(Caller, Answering(self, broker.broker_id))

    def change(self, *topics: TopicRecord, brokers: Iterable[int] = (1, 2)) -> None:
        image = self.replicas.latest_image
        known = {number: BrokerRecord(number, (), epoch=number) for number in brokers}
        self.replicas.receive_image(
            replace(image, topics={each.name: each for each in topics}, brokers=known)
        )

    def send(self, *partitions: TopicPartition, log_partition: int = 0, producer_id: int = 5) -> None:
        markers = Markers("id", log_partition, producer_id, 1, 3, True, 2, frozenset(partitions))
        self.sender.send(markers)

    async def wait(self, retries: float = 1.5) -> None:
        await asyncio.sleep(RETRY_S * retries)


class Answering:
    """A connection to a broker."""

    def __init__(self, around: Surroundings, broker: int) -> None:
        self.around = around
        self.broker = broker
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    async def call(self, api: Any, version: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if self.broker in self.around.down:
            raise BrokerError("host", 1, "it is down")
        results = []
        for marker in request.markers:
            assert (marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result) == (
                1,
                3,
                True,
            )
            where = [(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
            self.around.received.append((self.broker, sorted(where)))
            topics = [
                WritableTxnMarkerTopicResult(
                    name,
                    [
                        WritableTxnMarkerPartitionResult(
                            index, self.around.errors.get((self.broker, name, index), ErrorCode.NONE)
                        )
                    ],
                )
                for name, index in where
            ]
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        return WriteTxnMarkersResponse(results)


@virtual_time
async def test_each_leader_gets_its_markers_in_one_request() -> None:
    around = Surroundings(topic("a", 1, 2), topic("b", 1))
    around.send(A0, A1, B0)
    await around.wait()
    assert sorted(around.received) == [(1, [A0, B0]), (2, [A1])]
    assert sorted(around.written) == [A0, A1, B0]
    around.send(A0, producer_id=6)
    await around.wait()
    assert around.connections == 2, "connections are kept"


@virtual_time
async def test_markers_follow_a_partition_to_its_new_leader() -> None:
    around = Surroundings(topic("a", 1))
    around.errors[1, "a", 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    around.send(A0)
    await around.wait()
    assert not around.written
    around.change(topic("a", 2))
    await around.wait()
    assert around.written == [A0]
    assert around.received[-1] == (2, [A0])


@virtual_time
async def test_partition_that_refuses_delays_no_other() -> None:
    around = Surroundings(topic("a", *[1] * 9), topic("b", *[1] * 9))
    around.errors[1, "a", 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    around.errors[1, "b", 0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    around.send(*[(name, index) for name in "ab" for index in range(9)])
    await around.wait(0.5)
    assert sorted(around.written) == [(name, index) for name in "ab" for index in range(1, 9)]


@virtual_time
async def test_partition_that_is_absent_is_waited_for() -> None:
    around = Surroundings()
    around.send(A0)
    await around.wait(ABSENT_TRIES - 0.5)
    assert not around.written
    await around.wait(1)
    assert around.written == [A0]


@virtual_time
async def test_nothing_is_sent_after_the_end() -> None:
    around = Surroundings(topic("a", 1))
    await around.sender.close()
    around.send(A0)
    await around.wait()
    assert not around.received


@virtual_time
async def test_markers_wait_for_a_leader_and_for_a_broker_that_is_down() -> None:
    around = Surroundings(topic("a", NO_LEADER), topic("b", 2))
    around.down.add(2)
    around.send(A0, B0)
    await around.wait(5)
    assert not around.written
    around.change(topic("a", 1), topic("b", 2))
    await around.wait()
    assert around.written == [A0]
    around.down.clear()
    await around.wait()
    assert around.written == [A0, B0]


@virtual_time
async def test_a_broker_that_is_down_is_told_once_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    around = Surroundings(topic("a", 1))
    line = "cannot send transaction markers to broker 1, retrying: host:1: it is down"
    for producer in (5, 6):
        around.down.add(1)
        around.send(A0, producer_id=producer)
        await around.wait(5)
        around.down.clear()
        await around.wait()
        assert around.written == [A0] * (producer - 4)
        assert caplog.messages == [line] * (producer - 4)


@virtual_time
async def test_a_partition_that_stays_unknown_needs_no_marker() -> None:
    around = Surroundings(topic("a", 1))
    around.send(A0, A1, B0)
    await around.wait(ABSENT_TRIES / 2)
    assert around.written == [A0], "this broker may only be late to know it"
    await around.wait(ABSENT_TRIES)
    assert around.written == [A0, A1, B0]


@virtual_time
async def test_a_deleted_topic_needs_no_marker_and_one_that_is_there_again_does() -> None:
    around = Surroundings(topic("a", NO_LEADER), topic("b", NO_LEADER), topic("c", NO_LEADER))
    around.send(A0, A1, B0, ("c", 0))
    around.change(topic("b", NO_LEADER), topic("c", NO_LEADER))
    around.sender.topics_deleted({"a", "b"})
    assert around.written == [A0, A1], "nobody waits until they have stayed unknown"
    around.change(topic("b", 2), topic("c", 1))
    await around.wait()
    assert sorted(around.received) == [(1, [("c", 0)]), (2, [B0])]
    assert sorted(around.written) == [A0, A1, B0, ("c", 0)]


NEEDS_NONE = [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.POLICY_VIOLATION]
"""A higher epoch of the producer; a mirror's read-only replica."""
ENDS_THE_SENDING = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


@pytest.mark.parametrize("error", NEEDS_NONE, ids=lambda error: error.name)
@virtual_time
async def test_a_partition_may_need_no_marker(error: ErrorCode) -> None:
    around = Surroundings(topic("a", 1))
    around.errors[1, "a", 0] = error
    around.send(A0)
    await around.wait()
    assert around.written == [A0]


@virtual_time
async def test_a_marker_is_sent_again_after_any_other_error() -> None:
    """A partition that is said to need none would keep the transaction open, and hold back its readers for ever."""
    others = [error for error in ErrorCode if error and error not in {*NEEDS_NONE, *ENDS_THE_SENDING}]
    around = Surroundings(topic("a", *[1] * len(others)))
    around.errors = {(1, "a", index): error for index, error in enumerate(others)}
    around.send(*[("a", index) for index in range(len(others))])
    await around.wait()
    assert not around.written
    around.errors.clear()
    await around.wait()
    assert around.written == [("a", index) for index in range(len(others))]


@virtual_time
async def test_an_error_that_does_not_end_by_itself_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    around = Surroundings(topic("a", 1, 1))
    around.errors[1, "a", 0] = ErrorCode.INVALID_RECORD
    around.errors[1, "a", 1] = ErrorCode.NOT_ENOUGH_REPLICAS
    around.send(A0, A1)
    await around.wait(5)
    assert caplog.messages == ["a-0: cannot write the marker of 'id', retrying: INVALID_RECORD"]


@virtual_time
async def test_a_newer_coordinator_ends_the_sending() -> None:
    around = Surroundings(topic("a", 1))
    around.errors[1, "a", 0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    around.send(A0)
    await around.wait(5)
    assert not around.written
    assert len(around.received) == 1


@virtual_time
async def test_nothing_is_sent_for_a_partition_that_another_broker_leads() -> None:
    around = Surroundings(topic("a", NO_LEADER))
    around.send(A0, log_partition=0)
    around.send(A0, log_partition=1, producer_id=6)
    around.sender.forget(0)
    around.change(topic("a", 1))
    await around.wait()
    assert around.received == [(1, [A0])]


@virtual_time
async def test_a_broker_that_registered_again_gets_a_new_connection() -> None:
    around = Surroundings(topic("a", 1))
    around.send(A0)
    await around.wait()
    image = around.replicas.latest_image
    again = {number: replace(record, epoch=record.epoch + 10) for number, record in image.brokers.items()}
    around.replicas.receive_image(replace(image, brokers=again))
    around.send(A0, producer_id=6)
    await around.wait()
    assert around.connections == 2
    await around.sender.close()
