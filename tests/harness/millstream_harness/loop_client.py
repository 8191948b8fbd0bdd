"""Calls of a cluster by coroutines of the same loop, with brokers' own client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream_harness.wire import fetch_request, produce_request, record
from millstream_kafka.batch import build_batch, iter_batches, read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import create_topics, fetch, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

PAUSE_S = 0.05


async def create(client: ClusterClient, topic: str, partitions: int = 1, replicas: int = 3) -> None:
    wanted = create_topics.CreatableTopic(topic, partitions, replicas, [], [])
    request = create_topics.CreateTopicsRequest([wanted], 30_000)
    answer = await client.call_controller(create_topics.API, request)
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


async def write(
    client: ClusterClient, topic: str, values: Sequence[str], partition: int = 0, timeout_s: float = 60.0
) -> int:
    """Append with acks=all, trying until it succeeds; returns the base offset. Values may be there twice then."""
    request = produce_request(
        topic, build_batch([record(value) for value in values]), partition=partition, acks=-1
    )
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                answer = await client.call_leader(topic, partition, produce.BY_NAME, request)
                (found,) = answer.responses[0].partition_responses
                if not found.error_code:
                    return found.base_offset
                client.forget_leaders(topic)
            except (BrokerError, ApiError):
                pass
            await asyncio.sleep(PAUSE_S)


async def read(client: ClusterClient, topic: str, partition: int = 0) -> list[str]:
    """Every value up to the high watermark."""
    values: list[str] = []
    offset = 0
    while True:
        leader = await client.connection(await client.leader(topic, partition))
        answer = await leader.call(fetch.API, 12, fetch_request(topic, offset, partition))
        (found,) = answer.responses[0].partitions
        assert found.error_code == 0, ErrorCode.of(found.error_code)
        assert isinstance(found.records, bytes | bytearray | memoryview)
        records = bytes(found.records)
        for position, header in iter_batches(records):
            batch = records[position : position + header.size]
            values += [bytes(one.value or b"").decode() for one in read_records(batch)]
            offset = header.last_offset + 1
        if offset >= found.high_watermark:
            return values
