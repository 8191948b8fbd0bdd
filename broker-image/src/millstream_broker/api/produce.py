"""Produce: append record batches to partitions.

Each partition succeeds or fails by itself. `acks`: 0 no response (an error closes the connection, as nothing else
would tell), 1 and -1 an answer when the records are as safe as the topic's flush policy promises; -1 asks for
`min.insync.replicas` in sync besides.

The records are views of the receive buffer: they are written before this returns, which is why the handler is a
plain function and may be pipelined.
"""

from __future__ import annotations

import asyncio
from time import time
from typing import TYPE_CHECKING

from ..protocol import produce
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from . import Answer, CloseConnection, RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

Wait = tuple[PartitionProduceResponse, "asyncio.Future[None]"]


@handler(produce.API, pipelined=True)
def handle(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    if request.acks not in (-1, 0, 1):
        raise_for = ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
    elif request.transactional_id is not None:
        raise_for = ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported"
        )
    else:
        raise_for = None
    now_ms = int(time() * 1000)
    waits: list[Wait] = []
    topics = []
    for topic in request.topic_data:
        name = topic.name
        partitions = []
        for data in topic.partition_data:
            try:
                if raise_for is not None:
                    raise raise_for
                partitions.append(_append(broker, name, data, request.acks, now_ms, waits))
            except ApiError as error:
                broker.stats.records_refused += 1
                if not request.acks:
                    raise CloseConnection(f"Produce with acks=0 to {name}-{data.index}: {error}") from None
                partitions.append(_failed(data.index, error))
        topics.append(TopicProduceResponse(name, partitions))
    if not request.acks:
        return None
    response = ProduceResponse(topics)
    return _when_safe(response, waits) if waits else response


def _append(
    broker: Broker, topic: str, data: PartitionProduceData, acks: int, now_ms: int, waits: list[Wait]
) -> PartitionProduceResponse:
    partition = broker.partition(topic, data.index)
    if acks == -1 and len(partition.record.isr) < partition.min_insync_replicas:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The size of the current ISR for partition {partition} is insufficient to satisfy the min.isr "
            f"requirement of {partition.min_insync_replicas}",
        )
    if not isinstance(data.records, memoryview):
        raise ApiError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
    info = partition.append(data.records, now_ms)
    if not info.duplicate:
        broker.stats.records_in += info.last_offset - info.first_offset + 1
    response = PartitionProduceResponse(
        data.index, 0, info.first_offset, info.log_append_time, info.log_start_offset
    )
    if acks and (waiting := partition.acknowledged(info)) is not None:
        waits.append((response, waiting))
    return response


async def _when_safe(response: ProduceResponse, waits: list[Wait]) -> ProduceResponse:
    for partition, waiting in waits:
        try:
            await waiting
        except ApiError as error:
            partition.error_code, partition.error_message = error.code, error.message
            partition.base_offset = -1
    return response


def _failed(index: int, error: ApiError) -> PartitionProduceResponse:
    return PartitionProduceResponse(index, error.code, -1, error_message=error.message)
