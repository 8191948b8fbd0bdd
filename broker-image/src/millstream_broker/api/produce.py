"""Produce: append record batches to partitions.

Each partition succeeds or fails by itself. `acks`: 0 no response (an error closes the connection, as nothing else
would tell), 1 an answer when the records are as safe as the topic's flush policy promises, -1 when every replica in
sync has them, of which there must be `min.insync.replicas`.

The records are views of the receive buffer: they are written before this returns, which is why the handler is a
plain function and may be pipelined. Where they have to wait (see `Partition.append`), they are copied.

Internal topics are written by coordinators only. Kafka excepts requests whose client id is `__admin_client`; Millstream
does not, as any client can call itself that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import time
from typing import TYPE_CHECKING

from ..acknowledgements import repeated
from ..internal_topics import check_not_internal
from ..log.admission import RecordsRefusedError
from ..log.compression import Compression
from ..log.log import AppendInfo
from ..partition import Appended
from ..protocol import produce
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from . import Answer, CloseConnection, RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

Wait = tuple[PartitionProduceResponse, str, Awaitable[Appended | None]]
"""The answer for a partition, its topic, and what it waits for: to be appended, or to be safe."""
ATTRIBUTES = 22
"""Where the low byte of a batch's attributes stands, which has its codec."""


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
                if context.version < produce.ZSTD_SINCE:
                    _check_codec(data)
                partitions.append(_append(broker, name, data, request, now_ms, waits))
            except ApiError as error:
                broker.stats.records_refused += 1
                if not request.acks:
                    raise CloseConnection(f"Produce with acks=0 to {name}-{data.index}: {error}") from None
                partitions.append(_failed(data.index, error))
        topics.append(TopicProduceResponse(name, partitions))
    response = ProduceResponse(topics)
    if waits:
        return _when_done(response, waits, request.acks, broker)
    return response if request.acks else None


def _check_codec(data: PartitionProduceData) -> None:
    """Who writes zstd says so by the version: readers of older ones cannot decompress it (KIP-110)."""
    records = data.records
    if (
        isinstance(records, memoryview)
        and len(records) > ATTRIBUTES
        and records[ATTRIBUTES] & 7 == Compression.ZSTD
    ):
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd is allowed from version {produce.ZSTD_SINCE} of Produce on",
        )


def _append(
    broker: Broker,
    topic: str,
    data: PartitionProduceData,
    request: ProduceRequest,
    now_ms: int,
    waits: list[Wait],
) -> PartitionProduceResponse:
    check_not_internal(topic)
    try:
        partition = broker.partition(topic, data.index)
    except ApiError:
        if (known := _appended_before(broker, topic, data, request, waits)) is not None:
            return known
        raise
    if not isinstance(data.records, memoryview):
        raise ApiError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
    appended = partition.append(data.records, now_ms, acks=request.acks, timeout_ms=request.timeout_ms)
    response = PartitionProduceResponse(data.index, base_offset=-1)
    if isinstance(appended, asyncio.Future):
        waits.append((response, topic, appended))
        return response
    _fill(response, appended.info, broker)
    if appended.safe is not None:
        waits.append((response, topic, appended.safe))
    return response


def _appended_before(
    broker: Broker, topic: str, data: PartitionProduceData, request: ProduceRequest, waits: list[Wait]
) -> PartitionProduceResponse | None:
    """For a client that asks again, of a broker which led when it did first (see `acknowledgements`)."""
    follower = broker.replicas.followers.get((topic, data.index))
    if follower is None or request.acks != -1 or not isinstance(data.records, memoryview):
        return None
    if (info := repeated(follower.log, data.records)) is None:
        return None
    response = PartitionProduceResponse(data.index)
    _fill(response, info, broker)
    if (waiting := follower.acknowledged(info, request.timeout_ms)) is not None:
        waits.append((response, topic, waiting))
    return response


def _fill(response: PartitionProduceResponse, info: AppendInfo, broker: Broker) -> None:
    if not info.duplicate:
        broker.stats.records_in += info.last_offset - info.first_offset + 1
    response.base_offset, response.log_append_time_ms = info.first_offset, info.log_append_time
    response.log_start_offset = info.log_start_offset


async def _when_done(
    response: ProduceResponse, waits: list[Wait], acks: int, broker: Broker
) -> ProduceResponse | None:
    """The response when all is done. The request is not here any more, for it holds the frame that it came in."""
    refused: CloseConnection | None = None
    for answer, topic, waiting in waits:
        try:
            appended = await waiting
            if appended is not None:
                _fill(answer, appended.info, broker)
                if appended.safe is not None:
                    await appended.safe
        except ApiError as error:
            broker.stats.records_refused += 1
            if not acks:
                refused = CloseConnection(f"Produce with acks=0 to {topic}-{answer.index}: {error}")
            if answer.base_offset >= 0:
                # It is appended, and not safe: as in Kafka, the offset is told all the same.
                answer.error_code = error.code
            else:
                _fail(answer, error)
    if refused is not None:
        raise refused
    return response if acks else None


def _failed(index: int, error: ApiError) -> PartitionProduceResponse:
    response = PartitionProduceResponse(index)
    _fail(response, error)
    return response


def _fail(response: PartitionProduceResponse, error: ApiError) -> None:
    response.error_code, response.error_message, response.base_offset = error.code, error.message, -1
    if isinstance(error, RecordsRefusedError):
        response.record_errors = [BatchIndexAndErrorMessage(*one) for one in error.records]
