"""Transactions on a broker: every API from a client's request to the markers in the logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream_broker.api.add_partitions_to_txn import AT_ONCE
from millstream_broker.broker import Broker
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.producer_state import LATE_BUFFER_MS
from millstream_broker.topic_rules.internal_topics import TRANSACTIONS_TOPIC
from millstream_harness.group_drivers import PATIENCE_S, until
from millstream_harness.in_process import connected, create, running
from millstream_harness.transactions import write
from millstream_kafka.batch import Record, build_batch, read_header
from millstream_kafka.client.connection import Connection
from millstream_kafka.control_batch import EndTransactionMarker, read_marker
from millstream_kafka.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
    offset_fetch,
    txn_offset_commit,
    write_txn_markers,
)
from millstream_kafka.protocol.errors import ErrorCode

CONFIG = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
TRANSACTION = 1
Producer = tuple[int, int]
NONE = ErrorCode.NONE


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, CONFIG) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Connection]:
    async with connected(broker) as client:
        await create(client, "t", 2)
        request = find_coordinator.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["id"])
        (found,) = (await client.call(find_coordinator.API, 6, request)).coordinators
        assert (found.error_code, found.node_id) == (0, 1)
        yield client


async def started(client: Connection, transactional_id: str = "id") -> Producer:
    request = init_producer_id.InitProducerIdRequest(transactional_id, 60_000)
    response = await client.call(init_producer_id.API, 5, request)
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


async def added(
    client: Connection, producer: Producer, *partitions: int, topic: str = "t"
) -> list[ErrorCode]:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(topic, list(partitions))]
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        transactional_id="id", producer_id=producer[0], producer_epoch=producer[1], topics=topics
    )
    (found,) = (await client.call(add_partitions_to_txn.API, 3, request)).results_by_topic
    return [ErrorCode.of(each.partition_error_code) for each in found.results_by_partition]


async def ended(client: Connection, producer: Producer, *, committed: bool, version: int = 5) -> Producer:
    request = end_txn.EndTxnRequest("id", *producer, committed)
    response = await client.call(end_txn.API, version, request)
    assert response.error_code == 0, ErrorCode.of(response.error_code)
    return response.producer_id, response.producer_epoch


async def state(client: Connection) -> describe_transactions.DescribedTransactionState:
    request = describe_transactions.DescribeTransactionsRequest(["id"])
    (found,) = (await client.call(describe_transactions.API, 0, request)).transaction_states
    return found


async def completed(client: Connection) -> str:
    """The state once nothing is being written."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = (await state(client)).transaction_state
            if not found.startswith("Prepare"):
                return found


def markers(broker: Broker, topic: str, index: int) -> list[tuple[int, int, EndTransactionMarker | None]]:
    log = broker.replicas.partition(topic, index).log
    found = []
    for batch in log.batches_from(0):
        header = read_header(batch)
        if header.is_control:
            found.append((header.producer_id, header.producer_epoch, read_marker(batch)))
    return found


async def test_a_transaction_ends_although_its_record_has_become_too_large(
    broker: Broker, client: Connection
) -> None:
    """Max.message.bytes was lowered, or the record of the end is a few bytes larger than the one before."""
    producer = await started(client)
    assert await added(client, producer, 0) == [NONE]
    internal = [log for log in broker.logs if log.directory.name.startswith(TRANSACTIONS_TOPIC)]
    assert len(internal) == 2
    for log in internal:
        log.reconfigure(replace(log.config, max_message_bytes=70))
    assert await added(client, producer, 1) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    producer = await ended(client, producer, committed=True)
    assert await completed(client) == "CompleteCommit"
    assert len(markers(broker, "t", 0)) == 1
    assert await added(client, producer, 1) == [ErrorCode.UNKNOWN_SERVER_ERROR]


@pytest.mark.parametrize("committed", [True, False])
async def test_end_of_a_transaction_writes_markers_with_the_raised_epoch(
    broker: Broker, client: Connection, committed: bool
) -> None:
    producer = await started(client)
    assert await added(client, producer, 0, 1) == [NONE, NONE]
    described = await state(client)
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert [(each.topic, each.partitions) for each in described.topics] == [("t", [0, 1])]
    raised = await ended(client, producer, committed=committed)
    assert raised == (producer[0], producer[1] + 1)
    assert await completed(client) == ("CompleteCommit" if committed else "CompleteAbort")
    epoch = broker.replicas.partition("__transaction_state", broker.transactions.partition_of("id")).record
    marker = EndTransactionMarker(committed, epoch.leader_epoch)
    for index in (0, 1):
        assert markers(broker, "t", index) == [(*raised, marker)]


async def test_older_producers_keep_their_epoch(broker: Broker, client: Connection) -> None:
    producer = await started(client)
    await added(client, producer, 0)
    assert await ended(client, producer, committed=True, version=4) == (-1, -1)
    assert await completed(client) == "CompleteCommit"
    ((producer_id, epoch, _),) = markers(broker, "t", 0)
    assert (producer_id, epoch) == producer


async def test_partitions_are_added_all_or_none(client: Connection) -> None:
    producer = await started(client)
    unknown, refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert await added(client, producer, 0, 2) == [refused, unknown]
    assert await added(client, producer, 0, topic="none") == [unknown]
    assert await added(client, producer, 0, topic="__consumer_offsets") != [NONE]
    assert (await state(client)).transaction_state == "Empty"
    assert await added(client, (producer[0], producer[1] + 1), 0) == [ErrorCode.PRODUCER_FENCED]


async def test_each_transaction_of_a_request_gets_its_answer(client: Connection) -> None:
    """However many are handled at once."""
    names = [f"id-{number}" for number in range(AT_ONCE + 1)]
    producers = [await started(client, name) for name in names]
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0, 1])]
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        [
            *(add_partitions_to_txn.AddPartitionsToTxnTransaction(name, *producer, False, topics)
              for name, producer in zip(names, producers, strict=True)),
            add_partitions_to_txn.AddPartitionsToTxnTransaction("id-0", *producers[0], True, topics),
            add_partitions_to_txn.AddPartitionsToTxnTransaction("none", 7, 0, False, topics),
        ]
    )  # fmt: skip
    results = (await client.call(add_partitions_to_txn.API, 5, request)).results_by_transaction
    assert [
        (result.transactional_id, [each.partition_error_code for each in topic.results_by_partition])
        for result in results
        for topic in result.topic_results
    ] == [
        *((name, [0, 0]) for name in (*names, "id-0")),
        ("none", [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2),
    ]


async def test_transactions_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as broker, connected(broker) as client:
        await create(client, "t", 1)
        request = find_coordinator.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["id"])
        await client.call(find_coordinator.API, 6, request)
        producer = await started(client)
        await added(client, producer, 0)
    async with running(tmp_path, CONFIG) as broker, connected(broker) as client:
        await until(lambda: not broker.transactions.loading)
        assert (await state(client)).transaction_state == "Ongoing"
        await ended(client, producer, committed=True)
        assert await completed(client) == "CompleteCommit"
        ((_, _, marker),) = markers(broker, "t", 0)
        assert marker is not None
        assert marker.committed


async def committed_offset(client: Connection, *, stable: bool) -> tuple[int, ErrorCode]:
    topics = [offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=[0])]
    group = offset_fetch.OffsetFetchRequestGroup("g", topics=topics)
    request = offset_fetch.OffsetFetchRequest(groups=[group], require_stable=stable)
    (found,) = (await client.call(offset_fetch.BY_NAME, 9, request)).groups
    (partition,) = found.topics[0].partitions
    return partition.committed_offset, ErrorCode.of(partition.error_code)


@pytest.mark.parametrize("version", [4, 5])
async def test_offsets_of_a_transaction_count_when_it_is_committed(
    broker: Broker, client: Connection, version: int
) -> None:
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
    await client.call(find_coordinator.API, 6, request)
    producer = await started(client)
    topics = [
        txn_offset_commit.TxnOffsetCommitRequestTopic(
            "t", [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 7)]
        )
    ]
    commit = txn_offset_commit.TxnOffsetCommitRequest("id", "g", *producer, topics=topics)

    async def error() -> ErrorCode:
        response = await client.call(txn_offset_commit.API, version, commit)
        return ErrorCode.of(response.topics[0].partitions[0].error_code)

    if version < txn_offset_commit.ADDS_SINCE:
        assert await error() is ErrorCode.TRANSACTION_ABORTABLE
        addition = add_offsets_to_txn.AddOffsetsToTxnRequest("id", *producer, "g")
        assert (await client.call(add_offsets_to_txn.API, 4, addition)).error_code == 0
    assert await error() is NONE
    assert await committed_offset(client, stable=False) == (-1, NONE)
    assert await committed_offset(client, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    await ended(client, producer, committed=True)
    assert await completed(client) == "CompleteCommit"
    assert await committed_offset(client, stable=True) == (7, NONE)
    assert await error() is ErrorCode.INVALID_PRODUCER_EPOCH  # of a transaction that has ended
    log = broker.replicas.partition("__consumer_offsets", broker.groups.partition_of("g")).log
    headers = [read_header(batch) for batch in log.batches_from(0)]
    assert [each.base_sequence for each in headers if each.is_transactional] == [0, -1]  # a batch, a marker


async def listed(client: Connection, **filters: object) -> list[str]:
    request = list_transactions.ListTransactionsRequest(**filters)  # type: ignore[arg-type]
    response = await client.call(list_transactions.API, 2, request)
    assert response.error_code == 0
    return [each.transactional_id for each in response.transaction_states]


async def test_transactional_ids_are_listed_by_each_filter(client: Connection) -> None:
    producer_id, _ = await started(client)
    assert await listed(client) == ["id"]
    assert await listed(client, state_filters=["Empty"]) == ["id"]
    assert await listed(client, state_filters=["Ongoing"]) == []
    assert await listed(client, state_filters=["Typo"]) == []
    assert await listed(client, producer_id_filters=[producer_id]) == ["id"]
    assert await listed(client, producer_id_filters=[producer_id + 1]) == []
    assert await listed(client, duration_filter=10_000) == ["id"]  # without a transaction it is endless
    assert await listed(client, transactional_id_pattern="i.") == ["id"]
    assert await listed(client, transactional_id_pattern="i") == []
    request = list_transactions.ListTransactionsRequest(transactional_id_pattern="(")
    response = await client.call(list_transactions.API, 2, request)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_an_administrator_ends_a_transaction_in_a_log(broker: Broker, client: Connection) -> None:
    topics = [write_txn_markers.WritableTxnMarkerTopic("t", [0, 9])]
    marker = write_txn_markers.WritableTxnMarker(77, 3, False, topics, 5, 0)
    request = write_txn_markers.WriteTxnMarkersRequest([marker])
    (found,) = (await client.call(write_txn_markers.API, 1, request)).markers
    errors = [ErrorCode.of(each.error_code) for each in found.topics[0].partitions]
    assert errors == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert markers(broker, "t", 0) == [(77, 3, EndTransactionMarker(False, 5))]


async def samples(broker: Broker) -> dict[tuple[str, ...], float]:
    page = (await broker._metrics.text()).decode()
    families = text_string_to_metric_families(page)
    return {(each.name, *each.labels.values()): each.value for found in families for each in found.samples}


async def test_metrics_show_a_transaction_that_nobody_ends(broker: Broker, client: Connection) -> None:
    ids, oldest = "millstream_transactional_ids", ("millstream_oldest_transaction_seconds",)
    opened = ("millstream_open_transactions",)
    late = ("millstream_partitions_with_late_transactions",)
    producer = await started(client)
    found = await samples(broker)
    assert (found[ids, "Empty"], found[oldest], found[opened], found[late]) == (1, 0, 0, 0)
    await added(client, producer, 0, 1)
    partitions = [broker.replicas.partition("t", index) for index in (0, 1)]
    for partition in partitions:
        write(partition, producer[0])
    longest_ms = broker.config.integer("transaction.max.timeout.ms") + LATE_BUFFER_MS
    partitions[0].log.producers.by_id[producer[0]].last_seen_ms -= longest_ms + 1
    partitions[1].log.producers.by_id[producer[0]].last_seen_ms -= longest_ms - 60_000
    await until(lambda: time.time_ns() // 1_000_000 > (broker.transactions.all()[0][1].start_timestamp))
    found = await samples(broker)
    assert (found[ids, "Ongoing"], found[opened], found[late]) == (1, 2, 1)
    assert 0 < found[oldest] < 60
    assert (ids, "Empty") not in found
    await ended(client, producer, committed=False)
    assert await completed(client) == "CompleteAbort"
    found = await samples(broker)
    assert (found[ids, "CompleteAbort"], found[oldest], found[opened], found[late]) == (1, 0, 0, 0)


async def test_metrics_count_what_a_coordinator_cannot_read(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as broker, connected(broker) as client:
        request = find_coordinator.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["id"])
        await client.call(find_coordinator.API, 6, request)
        partition = broker.replicas.partition("__transaction_state", 0)
        batch = build_batch([Record(b"\x00\x09", b"", 0)])
        partition.append(memoryview(bytearray(batch)), 0, acks=1, origin=AppendOrigin.COORDINATOR)
    async with running(tmp_path, CONFIG) as broker:
        await until(lambda: not broker.transactions.loading)
        found = await samples(broker)
        assert found["millstream_transaction_partitions_loading",] == 0
        assert found["millstream_transaction_records_unreadable_total",] == 1
