"""Produce: append record batches to partitions.

Each partition succeeds or fails by itself. `acks` is 0 for no response (an error closes the connection, because nothing
else could report it), 1 for a response once the records are as safe as the topic's flush policy promises, -1 for one
once every in-sync replica has them; there must be at least `min.insync.replicas`.

The records are views of the receive buffer: they are written before this returns, which is why the handler is a
plain function and may be pipelined. If they must wait (see `Partition.append`), they are copied.

Only coordinators write to internal topics. Kafka excepts requests whose client id is `__admin_client`; Millstream
does not, because any client can call itself that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import time

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

from ..log.append_info import AppendInfo
from ..log.append_origin import CLIENT, AppendOrigin
from ..log.validator import RecordsRefusedError
from ..network.handlers import Answer, CloseConnection, RequestContext, handler
from ..network.produce_runs import Run
from ..replication.partition import Partition
from ..replication.purgatory import DelayedProduce
from ..replication.replicas import Replicas
from ..replication.transactional_appends import (
    Refused,
    RequestingProducer,
    TransactionalAppends,
    transactional_header,
)
from ..runtime.stats import Stats
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..topic_rules.internal_topics import check_not_internal, is_internal

WRITE, TOPIC = AclOperation.WRITE, ResourceType.TOPIC
TRANSACTION = AppendOrigin.TRANSACTION
NONE_REFUSED: Refused = {}
ACKS = (-1, 0, 1)
ATTRIBUTES = 22
"""Position of the low byte of a batch's attributes, which has its codec."""


def handle_run(
    replicas: Replicas,
    authorizer: Authorizer,
    stats: Stats,
    transactional: TransactionalAppends,
    context: RequestContext,
    request: ProduceRequest,
    run: Run,
) -> list[Answer] | None:
    """The answers to a run of requests, which are appended together; None if they must be handled one by one."""
    acks = request.acks
    (topic,) = request.topic_data
    (data,) = topic.partition_data
    index = data.index
    by_id = context.version >= produce.IDS_SINCE
    name = _name_by_id(replicas, topic) if by_id else topic.name
    replica = replicas.partitions.get((name, index))
    if (
        replica is None
        or (by_id and replica.topic_id != topic.topic_id)
        or acks not in ACKS
        or request.transactional_id is not None
        or context.version < produce.ZSTD_SINCE
        or is_internal(name)
        or (authorizer.is_enabled and not authorizer.permits(context.session, WRITE, TOPIC, name))
    ):
        return None
    now_ms = int(time() * 1000)
    all_appended = replica.append_run(
        run.batches, run.counts, now_ms, acks=acks, timeout_ms=request.timeout_ms
    )
    if all_appended is None:
        return None
    return [_answer(topic, name, index, appended, acks, stats) for appended in all_appended]


def _name_by_id(replicas: Replicas, topic: TopicProduceData) -> str:
    """The name of the topic with this id; empty if there is none."""
    record = replicas.metadata.topics_by_id.get(topic.topic_id)
    return "" if record is None else record.name


def _answer(
    topic: TopicProduceData,
    name: str,
    index: int,
    appended: AppendInfo | DelayedProduce,
    acks: int,
    stats: Stats,
) -> Answer:
    """The answer to a request with one partition."""
    if isinstance(appended, AppendInfo):
        answer = _appended(index, appended, stats)
        return ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, [answer])]) if acks else None
    waiting = WaitingProduce(stats, acks)
    answer = PartitionProduceResponse(index, 0, -1)
    waiting.response = ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, [answer])])
    waiting.add(name, answer, appended)
    return waiting.done


@handler(
    produce.API,
    pipelined=True,
    run=handle_run,
    rights=[
        Right(WRITE, TOPIC, "each topic"),
        Right(WRITE, ResourceType.TRANSACTIONAL_ID, "the transactional id"),
    ],
)
def handle(
    replicas: Replicas,
    authorizer: Authorizer,
    stats: Stats,
    transactional: TransactionalAppends,
    context: RequestContext,
    request: ProduceRequest,
) -> Answer:
    if request.transactional_id is not None:
        return _with_transactional_id(
            replicas, authorizer, stats, transactional, context, request, request.transactional_id
        )
    return _append(replicas, authorizer, stats, context, request, CLIENT)


def _append(
    replicas: Replicas,
    authorizer: Authorizer,
    stats: Stats,
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin,
    refused: Refused = NONE_REFUSED,
) -> Answer:
    acks, timeout_ms = request.acks, request.timeout_ms
    is_old = context.version < produce.ZSTD_SINCE
    by_id = context.version >= produce.IDS_SINCE
    now_ms = int(time() * 1000)
    waiting: WaitingProduce | None = None
    topics = []
    for topic in request.topic_data:
        name = _name_by_id(replicas, topic) if by_id else topic.name
        may_write = (
            not authorizer.is_enabled or not name or authorizer.allows(context.session, WRITE, TOPIC, name)
        )
        answers = []
        for data in topic.partition_data:
            index, records = data.index, data.records
            try:
                if by_id and not name:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                if not may_write:
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if acks not in ACKS:
                    raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
                if is_old:
                    _check_codec(data)
                check_not_internal(name)
                replica = replicas.partitions.get((name, index)) or replicas.get((name, index))
                if by_id and replica.topic_id != topic.topic_id:
                    raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
                if not isinstance(records, memoryview):
                    raise ApiError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
                if refused and (name, index) in refused:
                    raise refused[name, index]
                appended = replica.append(records, now_ms, acks=acks, timeout_ms=timeout_ms, origin=origin)
            except ApiError as error:
                answers.append(_refused(PartitionProduceResponse(index, 0, -1), error, stats))
                if not acks:
                    raise _unanswered(name, index, error) from None
                continue
            if isinstance(appended, AppendInfo):
                answers.append(_appended(index, appended, stats))
            else:
                answers.append(PartitionProduceResponse(index, 0, -1))
                waiting = waiting or WaitingProduce(stats, acks)
                waiting.add(name, answers[-1], appended)
        topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    response = ProduceResponse(topics)
    if waiting is not None:
        waiting.response = response
        return waiting.done
    return response if acks else None


def _with_transactional_id(
    replicas: Replicas,
    authorizer: Authorizer,
    stats: Stats,
    transactional: TransactionalAppends,
    context: RequestContext,
    request: ProduceRequest,
    transactional_id: str,
) -> Answer:
    """The answer to a request of a producer with a transactional id.

    The id matters only if records are transactional, as in Kafka. The producer must have the right to use it, and all
    records must be of one producer id and epoch.
    """

    def append(request: ProduceRequest, origin: AppendOrigin, refused: Refused = NONE_REFUSED) -> Answer:
        return _append(replicas, authorizer, stats, context, request, origin, refused)

    headers = [
        header
        for topic in request.topic_data
        for data in topic.partition_data
        if (header := transactional_header(data.records)) is not None
    ]
    if not headers:
        return append(request, CLIENT)
    if authorizer.is_enabled and not authorizer.allows(
        context.session, WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        error = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return _all_refused(request, error, stats)
    producers = {(header.producer_id, header.producer_epoch) for header in headers}
    if len(producers) > 1:
        error = ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
        return _all_refused(request, error, stats)
    (producer,) = producers

    def unverified(request: ProduceRequest) -> dict[Partition, int]:
        return _unverified(replicas, authorizer, context, request)

    if not transactional.is_waiting(transactional_id, producer[0]) and not unverified(request):
        return append(request, TRANSACTION)
    copied = _copied(request)
    sizes = (len(data.records or b"") for topic in copied.topic_data for data in topic.partition_data)
    return transactional.in_turn(
        RequestingProducer(transactional_id, *producer, context.version),
        lambda: unverified(copied),
        lambda refused: append(copied, TRANSACTION, refused),
        sum(sizes),
    )


def _unverified(
    replicas: Replicas, authorizer: Authorizer, context: RequestContext, request: ProduceRequest
) -> dict[Partition, int]:
    """The led partitions in which the producer has no open transaction, and the first sequences of its records.

    Partitions that are refused for other reasons do not count.
    """
    found: dict[Partition, int] = {}
    for topic in request.topic_data:
        name = _name_by_id(replicas, topic) if context.version >= produce.IDS_SINCE else topic.name
        if (
            not name
            or is_internal(name)
            or request.acks not in ACKS
            or (authorizer.is_enabled and not authorizer.permits(context.session, WRITE, TOPIC, name))
        ):
            continue
        for data in topic.partition_data:
            partition = replicas.partitions.get((name, data.index))
            header = transactional_header(data.records)
            if (
                partition is not None
                and header is not None
                and not partition.log.producers.is_open(header.producer_id, header.producer_epoch)
            ):
                found[partition] = header.base_sequence
    return found


def _copied(request: ProduceRequest) -> ProduceRequest:
    """The request with records of its own: those of the received frame must not be kept."""
    topics = [
        TopicProduceData(
            topic.name,
            topic.topic_id,
            [
                PartitionProduceData(
                    data.index,
                    memoryview(bytearray(data.records))
                    if isinstance(data.records, memoryview)
                    else data.records,
                )
                for data in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, topics)


def _all_refused(request: ProduceRequest, error: ApiError, stats: Stats) -> Answer:
    topics = []
    for topic in request.topic_data:
        answers = [
            _refused(PartitionProduceResponse(data.index, 0, -1), error, stats)
            for data in topic.partition_data
        ]
        topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
        if not request.acks and answers:
            raise _unanswered(topic.name, answers[0].index, error)
    return ProduceResponse(topics) if request.acks else None


def _appended(index: int, info: AppendInfo, stats: Stats) -> PartitionProduceResponse:
    """The response for records that are as safe as requested."""
    first, last, append_time, start, duplicate = info
    if not duplicate:
        stats.records_in += last - first + 1
    return PartitionProduceResponse(index, 0, first, append_time, start)


def _check_codec(data: PartitionProduceData) -> None:
    """A producer of zstd must use a version that allows it: older clients cannot decompress zstd (KIP-110)."""
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


def _refused(answer: PartitionProduceResponse, error: ApiError, stats: Stats) -> PartitionProduceResponse:
    stats.records_refused += 1
    answer.error_code = error.code
    if answer.base_offset < 0:  # otherwise appended but not safe: clients get the offset, as from Kafka
        answer.error_message = error.message
        if isinstance(error, RecordsRefusedError):
            answer.record_errors = [BatchIndexAndErrorMessage(*record) for record in error.records]
    return answer


def _unanswered(topic: str, index: int, error: ApiError) -> CloseConnection:
    return CloseConnection(f"Produce with acks=0 to {topic}-{index}: {error}")


class WaitingProduce:
    """A response that waits for its partitions. It does not keep the request, which refers to the received frame."""

    __slots__ = ("_acks", "_closing", "_missing", "_stats", "done", "response")
    response: ProduceResponse

    def __init__(self, stats: Stats, acks: int) -> None:
        self._stats = stats
        self._acks = acks
        self._missing = 0
        self._closing: CloseConnection | None = None
        self.done: asyncio.Future[ProduceResponse | None] = asyncio.get_running_loop().create_future()

    def add(self, topic: str, answer: PartitionProduceResponse, delayed: DelayedProduce) -> None:
        self._missing += 1
        delayed.then(partial(self._ended, topic, answer, delayed))

    def _ended(self, topic: str, answer: PartitionProduceResponse, delayed: DelayedProduce) -> None:
        info, error = delayed.info, delayed.error
        if info is not None:
            answer.base_offset, answer.log_append_time_ms = info.first_offset, info.log_append_time
            answer.log_start_offset = info.log_start_offset
            if not info.duplicate:
                self._stats.records_in += info.last_offset - info.first_offset + 1
        if error is not None:
            _refused(answer, error, self._stats)
            if not self._acks:
                self._closing = _unanswered(topic, answer.index, error)
        self._missing -= 1
        if not self._missing and not self.done.done():  # a stop may have cancelled it
            if self._closing is not None:
                self.done.set_exception(self._closing)
            else:
                self.done.set_result(self.response if self._acks else None)
