"""Questions to the coordinators of transactions share requests, and each gets its own answer."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

from millstream_broker.controller.reach import Caller
from millstream_broker.coordination import BrokerRecord, ClusterState, PartitionRecord, TopicRecord
from millstream_broker.replication.replicas import Metadata, Replicas
from millstream_broker.topic_rules.internal_topics import TRANSACTIONS_TOPIC
from millstream_broker.transactions.driver import TransactionDriver
from millstream_broker.transactions.peers import Peers
from millstream_broker.transactions.verifier import CoordinatorVerifier
from millstream_harness.virtual_time import virtual_time
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

A0, A1 = ("a", 0), ("a", 1)
NO_LEADER = -1
NONE = ErrorCode.NONE
Received = tuple[int, list[str]]


class Coordinators:
    """Brokers 1 and 2 coordinate partitions 0 and 1; an id is a partition's number and a letter."""

    def __init__(self, *leaders: int) -> None:
        brokers = {number: BrokerRecord(number, (), epoch=number) for number in (1, 2)}
        records = tuple(PartitionRecord((1, 2), leader, 0, (1, 2)) for leader in leaders)
        topic = TopicRecord(TRANSACTIONS_TOPIC, uuid.uuid5(uuid.NAMESPACE_DNS, "t"), records)
        state = ClusterState("c", brokers, {topic.name: topic}, 1)
        replicas = Replicas(1, state)
        replicas.metadata = Metadata(state, replicas.metadata)
        self.received: list[Received] = []
        self.errors: dict[str, ErrorCode] = {}
        self.holds: dict[int, asyncio.Event] = {}
        self.is_down = False
        self.verifier = CoordinatorVerifier(
            replicas, cast(TransactionDriver, self), Peers(self.reach, "test")
        )

    def partition_of(self, transactional_id: str) -> int:
        return int(transactional_id[0])

    async def reach(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        return cast(Caller, Answering(self, broker.broker_id))

    async def ask(
        self, transactional_id: str, *partitions: TopicPartition, add: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        return await self.verifier.verify(transactional_id, 7, 0, partitions, add=add)


class Answering:
    """A connection to a broker."""

    is_closed = False

    def __init__(self, around: Coordinators, broker: int) -> None:
        self.around, self.broker = around, broker

    async def close(self) -> None:
        pass

    async def call(
        self, api: Any, version: int, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        around = self.around
        around.received.append((self.broker, [each.transactional_id for each in request.transactions]))
        if around.is_down:
            raise BrokerError("host", 1, "it is down")
        results = []
        for each in request.transactions:
            error = around.errors.get(each.transactional_id, NONE)
            topics = [
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    [AddPartitionsToTxnPartitionResult(index, error) for index in topic.partitions],
                )
                for topic in each.topics
            ]
            results.append(AddPartitionsToTxnResult(each.transactional_id, topics))
        if (held := around.holds.get(self.broker)) is not None:
            await held.wait()
        return AddPartitionsToTxnResponse(results_by_transaction=results)


@virtual_time
async def test_questions_of_a_turn_are_one_request_for_each_partition_of_the_coordinators() -> None:
    around = Coordinators(1, 2)
    around.errors["0y"] = ErrorCode.TRANSACTION_ABORTABLE
    asked = (around.ask("0x", A0, A1), around.ask("0y", A0), around.ask("1x", A1), around.ask("0z", A1))
    assert await asyncio.gather(*asked) == [
        {A0: NONE, A1: NONE},
        {A0: ErrorCode.TRANSACTION_ABORTABLE},
        {A1: NONE},
        {A1: NONE},
    ]
    assert around.received == [(1, ["0x", "0y", "0z"]), (2, ["1x"])]
    assert await around.ask("0x", A0) == {A0: NONE}
    assert around.received[2:] == [(1, ["0x"])], "nobody waits for later ones"


@virtual_time
async def test_two_questions_about_one_transactional_id_are_two_requests() -> None:
    around = Coordinators(1)
    answers = await asyncio.gather(around.ask("0x", A0), around.ask("0x", A1, add=True), around.ask("0y", A0))
    assert answers == [{A0: NONE}, {A1: NONE}, {A0: NONE}]
    assert around.received == [(1, ["0x"]), (1, ["0x", "0y"])]


@virtual_time
async def test_a_coordinator_that_is_slow_holds_up_nobody_elses_questions() -> None:
    around = Coordinators(1, 2)
    around.holds[1] = asyncio.Event()
    slow = asyncio.ensure_future(around.ask("0x", A0))
    assert await around.ask("1x", A0) == {A0: NONE}
    again = asyncio.ensure_future(around.ask("0y", A0))
    await asyncio.sleep(0.1)
    assert sorted(around.received) == [(1, ["0x"]), (1, ["0y"]), (2, ["1x"])]
    slow.cancel()  # the other one's answer is not lost with it
    around.holds[1].set()
    assert await again == {A0: NONE}


@virtual_time
async def test_without_an_answer_all_questions_get_the_error() -> None:
    around = Coordinators(1, NO_LEADER)
    around.is_down = True
    assert await asyncio.gather(around.ask("0x", A0), around.ask("0y", A1)) == [
        {A0: ErrorCode.NETWORK_EXCEPTION},
        {A1: ErrorCode.NETWORK_EXCEPTION},
    ]
    assert await around.ask("1x", A0) == {A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}


@virtual_time
async def test_a_producer_that_is_fenced_gets_the_error_of_produce() -> None:
    around = Coordinators(1)
    around.errors["0x"] = ErrorCode.PRODUCER_FENCED
    assert await around.ask("0x", A0) == {A0: ErrorCode.INVALID_PRODUCER_EPOCH}
