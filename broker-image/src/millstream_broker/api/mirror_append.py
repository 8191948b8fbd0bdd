"""MirrorAppend: append a source's batches, unchanged, to a mirror's replica of its topic.

Each partition succeeds or fails by itself. The batches are views of the receive buffer: they are written before this
returns, so requests may be pipelined. The response waits until all in-sync replicas have them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import time

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.mirror_source import MirrorSource
from millstream_kafka.protocol import mirror_append
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorPartition,
    MirrorPartitionResponse,
    MirrorTopicResponse,
)

from ..network.handlers import Answer, RequestContext, handler
from ..replication.partition import Partition
from ..replication.purgatory import DelayedProduce
from ..replication.replicas import Replicas
from ..runtime.stats import Stats
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right, on_cluster


def _refused(request: MirrorAppendRequest, error: ApiError) -> MirrorAppendResponse:
    return MirrorAppendResponse(
        [
            MirrorTopicResponse(
                topic.name,
                [MirrorPartitionResponse(data.index, error.code, error.message) for data in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@handler(
    mirror_append.API,
    pipelined=True,
    rights=[
        on_cluster(AclOperation.CLUSTER_ACTION),
        Right(AclOperation.WRITE, ResourceType.TOPIC, "each topic"),
    ],
    refused=_refused,
)
def handle(
    replicas: Replicas,
    authorizer: Authorizer,
    stats: Stats,
    context: RequestContext,
    request: MirrorAppendRequest,
) -> Answer:
    now_ms = int(time() * 1000)
    waiting: WaitingMirrorAppend | None = None
    topics = []
    for topic in request.topics:
        source = str(MirrorSource(request.source_cluster_id, topic.source_topic_id))
        answers = []
        for data in topic.partitions:
            answer = MirrorPartitionResponse(data.index, 0)
            answers.append(answer)
            try:
                authorizer.check(context.session, AclOperation.WRITE, ResourceType.TOPIC, topic.name)
                partition = replicas.partition(topic.name, data.index)
            except ApiError as error:
                answer.error_code, answer.error_message = error.code, error.message
                continue
            delayed = _append(partition, source, data, answer, now_ms, request.timeout_ms)
            if delayed is None:
                _describe(partition, answer)
            else:
                info = delayed.info
                assert info is not None
                stats.records_in += info.last_offset - info.first_offset + 1
                waiting = waiting or WaitingMirrorAppend()
                waiting.add(partition, answer, delayed)
        topics.append(MirrorTopicResponse(topic.name, answers))
    response = MirrorAppendResponse(topics)
    if waiting is None:
        return response
    waiting.response = response
    return waiting.done


def _append(
    partition: Partition,
    source: str,
    data: MirrorPartition,
    answer: MirrorPartitionResponse,
    now_ms: int,
    timeout_ms: int,
) -> DelayedProduce | None:
    records = data.records
    batches = records if isinstance(records, memoryview) else None
    try:
        partition.check_online()
        if data.from_offset < 0:
            partition.check_source(source)
            answer.last_header = partition.log.last_header()
            return None
        return partition.append_mirrored(
            source, batches, data.from_offset, data.log_start_offset, now_ms, timeout_ms
        )
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
        return None


def _describe(partition: Partition, answer: MirrorPartitionResponse) -> None:
    log = partition.log
    answer.log_start_offset, answer.log_end_offset = log.log_start_offset, log.log_end_offset
    answer.last_epoch = log.epochs.latest


class WaitingMirrorAppend:
    """A response that waits for its partitions. It does not keep the request, which refers to the received frame."""

    __slots__ = ("_missing", "done", "response")
    response: MirrorAppendResponse

    def __init__(self) -> None:
        self._missing = 0
        self.done: asyncio.Future[MirrorAppendResponse] = asyncio.get_running_loop().create_future()

    def add(self, partition: Partition, answer: MirrorPartitionResponse, delayed: DelayedProduce) -> None:
        self._missing += 1
        delayed.then(partial(self._ended, partition, answer, delayed))

    def _ended(self, partition: Partition, answer: MirrorPartitionResponse, delayed: DelayedProduce) -> None:
        _describe(partition, answer)
        if delayed.error is not None:
            answer.error_code, answer.error_message = delayed.error.code, delayed.error.message
        self._missing -= 1
        if not self._missing and not self.done.done():  # a stop may have cancelled it
            self.done.set_result(self.response)
