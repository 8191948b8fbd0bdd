"""Transactions of a cluster, for administrators: which there are, and which hang in a log (KIP-664).

A transaction *hangs* if it is open in a partition's log, while the coordinator of transactions knows of no transaction
of its producer in this partition: nobody will end it, and readers of committed records get nothing beyond its start.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import KafkaError

from millstream.addresses import host_port
from millstream.administering.brokers import call, run
from millstream.connection import Cluster
from millstream.errors import BadInput, Failed
from millstream_kafka.client import ClusterClient, UnsupportedApi
from millstream_kafka.protocol import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    write_txn_markers,
)
from millstream_kafka.protocol import (
    list_transactions as listing,
)
from millstream_kafka.protocol.api import Api, Req, Res
from millstream_kafka.protocol.describe_producers import DescribeProducersRequest, TopicRequest
from millstream_kafka.protocol.describe_transactions import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
)
from millstream_kafka.protocol.errors import COORDINATOR_ERRORS, ErrorCode
from millstream_kafka.protocol.find_coordinator import FindCoordinatorRequest
from millstream_kafka.protocol.list_transactions import ListTransactionsRequest, TransactionState
from millstream_kafka.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

LONGEST_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms."""
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
OF_TRANSACTION: Final = 1
"""The key type of a transactional id in FindCoordinator."""
TRIES_S: Final = 0.5
PATIENCE_S: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id; ``broker`` coordinates it."""

    transactional_id: str
    broker: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """A transactional id. ``started_ms`` is None without a transaction.

    ``partitions`` are those of the transaction; while it ends, those that have no marker yet.
    """

    transactional_id: str
    broker: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction in the log of a partition that ``broker`` leads, from ``start_offset`` on.

    ``last_ms`` is the timestamp of its last records.
    """

    topic: str
    partition: int
    broker: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int


def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    older_than_ms: int | None = None,
    pattern: str = "",
) -> list[Transaction]:
    """The transactional ids that running brokers coordinate, by name, those that match each filter.

    ``pattern`` is a regular expression that matches a whole id. Unreachable; BadInput; Failed names a broker.
    """
    for state in states:
        if state not in STATES:
            raise BadInput(f'states: there is no state "{state}"', f"write {', '.join(STATES)}")
    age_ms = -1 if older_than_ms is None else older_than_ms
    request = ListTransactionsRequest(list(states), list(producer_ids), age_ms, pattern or None)
    since = 2 if pattern else 1 if older_than_ms is not None else 0
    return run(cluster, lambda client: _transactions(client, request, since))


async def _transactions(
    client: ClusterClient, request: ListTransactionsRequest, since: int = 0
) -> list[Transaction]:
    async def of_broker(broker: int) -> tuple[int, list[TransactionState]]:
        response = await _call(client, broker, listing.API, request, since)
        return response.error_code, response.transaction_states

    found: list[Transaction] = []
    for broker in client.brokers:
        code, there = await _patiently(partial(of_broker, broker), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,))
        if code:
            raise Failed(f"broker {broker} cannot list its transactional ids", _why(code))
        found += [
            Transaction(each.transactional_id, broker, each.producer_id, each.transaction_state)
            for each in there
        ]
    return sorted(found, key=lambda each: (each.transactional_id, each.broker))


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDetails:
    """A transactional id, as its coordinator knows it. Unreachable; Failed, also for an unknown id."""
    return run(cluster, lambda client: _details(client, transactional_id))


async def _details(client: ClusterClient, transactional_id: str) -> TransactionDetails:
    code, details = await _patiently(partial(_described, client, transactional_id), COORDINATOR_ERRORS)
    if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise Failed(
            f'there is no transactional id "{transactional_id}"',
            "see millstream transaction list; an id that is not used for transactional.id.expiration.ms is forgotten",
        )
    if code or details is None:
        raise Failed(f"transactional id {transactional_id} cannot be described", _why(code))
    return details


async def _described(client: ClusterClient, transactional_id: str) -> tuple[int, TransactionDetails | None]:
    found = await _call(
        client,
        min(client.brokers),
        find_coordinator.API,
        FindCoordinatorRequest(transactional_id, OF_TRANSACTION, [transactional_id]),
    )
    coordinator = next(iter(found.coordinators), found)  # versions before 4 look up one id
    if coordinator.error_code:
        return coordinator.error_code, None
    broker = coordinator.node_id
    response = await _call(
        client, broker, describe_transactions.API, DescribeTransactionsRequest([transactional_id])
    )
    for state in response.transaction_states:
        return state.error_code, _details_of(broker, state)
    return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None


def _details_of(broker: int, state: DescribedTransactionState) -> TransactionDetails:
    return TransactionDetails(
        state.transactional_id,
        broker,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        sorted((data.topic, partition) for data in state.topics for partition in data.partitions),
    )


def open_transactions(
    cluster: Cluster, topic: str | None = None, partition: int | None = None
) -> list[OpenTransaction]:
    """The transactions open in the logs of all topics, or of one, or of one partition, by place.

    Partitions without a leader are left out. UnknownTopic; Unreachable; Failed names a broker or partition.
    """
    if topic is not None:
        cluster.partitions(topic)
    led: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for name, about in cluster.metadata().topics.items():
        for number, place in about.partitions.items():
            if topic in (None, name) and partition in (None, number) and place.leader >= 0:
                led[place.leader].setdefault(name, []).append(number)

    async def opened(client: ClusterClient) -> list[OpenTransaction]:
        return [
            each for broker, topics in sorted(led.items()) for each in await _open_at(client, broker, topics)
        ]

    return sorted(run(cluster, opened), key=lambda each: (each.topic, each.partition, each.start_offset))


async def _open_at(
    client: ClusterClient, broker: int, topics: Mapping[str, list[int]]
) -> list[OpenTransaction]:
    request = DescribeProducersRequest([TopicRequest(name, numbers) for name, numbers in topics.items()])
    response = await _call(client, broker, describe_producers.API, request)
    found = []
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                place = f"{topic.name}/{partition.partition_index}"
                raise Failed(f"the producers of {place} cannot be described", _why(partition.error_code))
            found += [
                OpenTransaction(
                    topic.name,
                    partition.partition_index,
                    broker,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                    producer.last_timestamp,
                )
                for producer in partition.active_producers
                if producer.current_txn_start_offset >= 0
            ]
    return found


def find_hanging(
    cluster: Cluster,
    topic: str | None = None,
    partition: int | None = None,
    longest_ms: int = LONGEST_MS,
) -> list[OpenTransaction]:
    """Those of ``open_transactions`` that hang, with no records for so long. Unreachable, UnknownTopic, Failed."""
    before_ms = time.time() * 1000 - longest_ms
    opened = [each for each in open_transactions(cluster, topic, partition) if each.last_ms <= before_ms]
    known = known_partitions(cluster, {each.producer_id for each in opened})
    return [each for each in opened if (each.topic, each.partition) not in known[each.producer_id]]


def known_partitions(
    cluster: Cluster, producer_ids: Collection[int]
) -> dict[int, dict[tuple[str, int], TransactionDetails]]:
    """By producer id: the partitions in which a coordinator will end its transaction."""
    known: dict[int, dict[tuple[str, int], TransactionDetails]] = {each: {} for each in producer_ids}

    async def look_up(client: ClusterClient) -> None:
        request = ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
        for each in await _transactions(client, request):
            details = await _details(client, each.transactional_id)
            known[each.producer_id].update(dict.fromkeys(details.partitions, details))

    if producer_ids:
        run(cluster, look_up)
    return known


def abort(cluster: Cluster, transaction: OpenTransaction) -> None:
    """Write the marker that aborts it in this partition. Unreachable; Failed."""
    marker = WritableTxnMarker(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(transaction.topic, [transaction.partition])],
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
    )
    response = run(
        cluster,
        lambda client: _call(
            client, transaction.broker, write_txn_markers.API, WriteTxnMarkersRequest([marker])
        ),
    )
    errors = [
        partition.error_code
        for result in response.markers
        for topic in result.topics
        for partition in topic.partitions
    ]
    if errors != [0]:
        place = f"{transaction.topic}/{transaction.partition}"
        raise Failed(
            f"the transaction at {place}, offset {transaction.start_offset} was not aborted",
            _why(errors[0] if errors else 0),
        )


async def _patiently(ask: Callable[[], Awaitable[tuple[int, T]]], passing: Collection[int]) -> tuple[int, T]:
    """The error and the answer; while it is one of these errors, ask again, for PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, answer = await ask()
        if code not in passing or time.monotonic() > deadline:
            return code, answer
        await asyncio.sleep(TRIES_S)


async def _call(client: ClusterClient, broker: int, api: Api[Req, Res], request: Req, since: int = 0) -> Res:
    try:
        return await call(client, broker, api, request, since=since)
    except UnsupportedApi:
        where = f"broker {broker} at {host_port(*client.brokers[broker])}"
        raise Failed(f"{where} is too old for this", "upgrade it, or leave out filters") from None


def _why(code: int) -> str:
    return str(KafkaError(code).str()) if code else "its answer names nothing"
