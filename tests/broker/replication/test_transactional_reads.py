"""Reads of committed records: where they end, which transactions are aborted, and what ends a wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker
from millstream_broker.replication.markers import append_marker
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.clients import request_context
from millstream_harness.in_process import connected, create, running
from millstream_harness.transactions import finish, write
from millstream_harness.wire import fetch_request
from millstream_kafka.batch import iter_batches
from millstream_kafka.protocol import describe_producers, fetch, list_offsets
from millstream_kafka.protocol.describe_producers import DescribeProducersRequest, TopicRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import AbortedTransaction, FetchResponse, PartitionData
from millstream_kafka.protocol.list_offsets import (
    LATEST,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

TEN_MINUTES_MS = 600_000
ALL, COMMITTED = 0, 1


def handled(broker: Broker, api: Any, version: int, request: Any) -> Any:
    return to_the_end(broker.handlers[api.key].handle(request_context(version), request))


def poll(broker: Broker, offset: int, isolation: int, **limits: int) -> Any:
    request = fetch_request("t", offset, **limits)
    request.isolation_level = isolation
    return handled(broker, fetch.API, 12, request)


def fetched(broker: Broker, offset: int = 0, isolation: int = COMMITTED, **limits: int) -> PartitionData:
    response = poll(broker, offset, isolation, **limits)
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions[0]


def offsets(data: PartitionData) -> list[int]:
    """The base offsets of the batches."""
    records = data.records
    assert records is not None
    return [header.base_offset for _, header in iter_batches(records.read() if records else b"")]  # type: ignore[union-attr]


async def latest(broker: Broker, isolation: int, timestamp: int = LATEST) -> int:
    wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])
    response = handled(broker, list_offsets.API, 7, ListOffsetsRequest(-1, isolation, [wanted]))
    if not isinstance(response, list_offsets.ListOffsetsResponse):
        response = await response
    (partition,) = response.topics[0].partitions
    assert partition.error_code == 0
    return partition.offset


async def test_read_ends_at_the_first_open_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        write(partition, 1)
        write(partition, 2)
        await finish(partition, 1, committed=True)
        data = fetched(broker)
        assert (data.high_watermark, data.last_stable_offset, data.aborted_transactions) == (3, 1, [])
        assert offsets(data) == [0]
        data = fetched(broker, isolation=ALL)
        assert (data.last_stable_offset, data.aborted_transactions) == (1, None)
        assert offsets(data) == [0, 1, 2]
        assert offsets(fetched(broker, 1)) == []
        await finish(partition, 2, committed=False)
        data = fetched(broker)
        assert offsets(data) == [0, 1, 2, 3]
        assert data.aborted_transactions == [AbortedTransaction(2, 1)]
        assert data.last_stable_offset == 4


async def test_response_has_the_aborted_transactions_of_its_range(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        for sequence in range(3):
            write(partition, 1, sequence)  # at 0, 2, 4
            await finish(partition, 1, committed=False)
        one = fetched(broker, max_bytes=1)
        assert (offsets(one), one.aborted_transactions) == ([0], [AbortedTransaction(1, 0)])
        rest = fetched(broker, 2)
        assert rest.aborted_transactions == [AbortedTransaction(1, 2), AbortedTransaction(1, 4)]
        end = fetched(broker, 6)
        assert (offsets(end), end.aborted_transactions) == ([], [])


async def test_listed_offsets_follow_the_isolation_level(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        write(partition, 1)
        await finish(partition, 1, committed=True)
        write(partition, 1, 1, timestamp=int(time.time() * 1000) + 60_000)
        assert [await latest(broker, isolation) for isolation in (ALL, COMMITTED)] == [3, 2]
        assert [await latest(broker, isolation, 0) for isolation in (ALL, COMMITTED)] == [0, 0]
        assert [await latest(broker, isolation, MAX_TIMESTAMP) for isolation in (ALL, COMMITTED)] == [2, -1]


async def test_wait_for_committed_records_ends_with_the_marker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        waiting = poll(broker, 0, COMMITTED, wait_ms=TEN_MINUTES_MS)
        other = poll(broker, 0, ALL, wait_ms=TEN_MINUTES_MS)
        for sequence in range(3):
            write(partition, 1, sequence)
            for _ in range(5):
                await asyncio.sleep(0)
        assert (waiting.done(), other.done()) == (False, True)
        await finish(partition, 1, committed=True)
        response = await asyncio.wait_for(waiting, 60)
        assert offsets(response.responses[0].partitions[0]) == [0, 1, 2, 3]


async def test_wait_behind_an_open_transaction_ends_whatever_min_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        write(partition, 1, value="x" * 1000)
        waiting = poll(broker, 0, COMMITTED, wait_ms=TEN_MINUTES_MS, min_bytes=1000)
        await finish(partition, 1, committed=True)
        response = await asyncio.wait_for(waiting, 60)
        assert offsets(response.responses[0].partitions[0]) == [0, 1]


async def test_min_bytes_counts_committed_records(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        await finish(partition, 1, committed=True)
        waiting = poll(broker, 1, COMMITTED, wait_ms=TEN_MINUTES_MS, min_bytes=200)
        for done in (False, False, True):  # a marker has 78 bytes
            await finish(partition, 1, committed=True)
            for _ in range(5):
                await asyncio.sleep(0)
            assert waiting.done() == done


async def test_deleted_records_of_an_open_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        write(partition, 1, count=4)
        if (moved := partition.delete_records_before(3, TEN_MINUTES_MS)) is not None:
            await moved
        data = fetched(broker, 3)
        assert (data.log_start_offset, data.last_stable_offset, offsets(data)) == (3, 3, [])
        await finish(partition, 1, committed=False)
        data = fetched(broker, 3)
        assert (offsets(data), data.aborted_transactions) == ([0, 4], [AbortedTransaction(1, 0)])


async def test_marker_of_a_fenced_coordinator_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        await append_marker(partition, 1, 5, 7, committed=True, transaction_version=2)
        for epoch, coordinator, version, code in [
            (5, 6, 1, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
            (4, 7, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        ]:
            with pytest.raises(ApiError) as error:
                await append_marker(
                    partition, 1, epoch, coordinator, committed=True, transaction_version=version
                )
            assert error.value.code is code
        write(partition, 1, epoch=5)
        with pytest.raises(ApiError) as error:
            await append_marker(partition, 1, 5, 7, committed=True, transaction_version=2)
        assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert partition.high_watermark == 2


async def test_producers_show_their_open_transactions(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        await append_marker(partition, 1, 0, 7, committed=True, transaction_version=1)
        write(partition, 1)
        request = DescribeProducersRequest([TopicRequest("t", [0])])
        response = handled(broker, describe_producers.API, 0, request)
        (producer,) = response.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.coordinator_epoch, producer.current_txn_start_offset) == (
            1,
            7,
            1,
        )
