"""ListOffsets: the offset for a timestamp.

-1: the end (the high watermark, with read_committed the last stable offset; for a follower the end of the log),
-2: the start, -3: the record with the largest timestamp (v7, KIP-734). Nothing is tiered: -4 (v8) is the start; -5 (v9)
and -6 (v11) have no offset. Another negative number, or one of a newer version, is UNSUPPORTED_VERSION. A timestamp
finds the earliest record that is not older. If there is none, offset and timestamp are -1. A replica id counts only if
the connection has authenticated as that broker.

A broker that sends the debugging replica id (-2) gets the log end of any replica, and the epoch of its last record,
even if the log is not served or a stray; KAFKA_STORAGE_ERROR if there is no log of that topic id here. Controllers use
this (`controller.recovery`, `controller.comparison`).

A new leader's high watermark may lag its predecessor's: until its followers have reported theirs, it responds with
OFFSET_NOT_AVAILABLE (v5, KIP-207; LEADER_NOT_AVAILABLE before).

A look-up by time may have to read the end of every segment's time index, and decompress a batch: it runs in a thread
(`look_ups`), which only gets the log. Everything else runs on the loop, and waits for the look-ups of its request.
Those take the thread for TURN_S at a time, so that a request with thousands does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from time import monotonic
from typing import Any, NamedTuple

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import list_offsets
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_offsets import (
    DEBUGGING_REPLICA_ID,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millstream_kafka.topic_partition import TopicPartition

from ..log.log import Log
from ..log.manager import LogManager
from ..log.strays import Stray, Strays, log_end
from ..log.timestamp_lookups import Check, LookUps
from ..network.handlers import RequestContext, handler
from ..replication.fetch_session import READ_COMMITTED
from ..replication.partition import Partition
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

log = logging.getLogger(__name__)

SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that may carry each negative timestamp."""
NEVER = 1 << 15
STARTS = (EARLIEST, EARLIEST_LOCAL)
NOTHING_TIERED = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
OFFSET_NOT_AVAILABLE_SINCE = 5
TURN_S = 0.02


class LookUp(NamedTuple):
    """A look-up that runs in a thread."""

    found: ListOffsetsPartitionResponse
    log: Log
    timestamp: int
    limit: int
    """The end of what the client may read."""

    def run(self, check: Check) -> None:
        """Blocking. ``check`` raises to end it."""
        try:
            if self.timestamp == MAX_TIMESTAMP:
                record = self.log.max_timestamp(check)
            else:
                record = self.log.offset_for_timestamp(self.timestamp, check)
        except ApiError as error:
            self.found.error_code = error.code
            return
        if record is not None and record[1] < self.limit:
            self.found.timestamp, self.found.offset, self.found.leader_epoch = record


class StrayEnd(NamedTuple):
    """The end of a stray, which a thread reads."""

    found: ListOffsetsPartitionResponse
    strays: Strays
    stray: Stray

    def read(self) -> None:
        """Blocking."""
        try:
            end = self.strays.end(self.stray)
        except OSError as error:
            log.error("%s: cannot be read: %s", self.stray.path, error)
            return
        if end > (
            self.found.leader_epoch,
            self.found.offset,
        ):  # of several strays, the most complete one counts
            self.found.leader_epoch, self.found.offset = end
            self.found.error_code = ErrorCode.NONE


@handler(
    list_offsets.API,
    ends_with_connection=True,
    rights=[Right(AclOperation.DESCRIBE, ResourceType.TOPIC, "each topic")],
)
def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    logs: LogManager,
    look_ups: LookUps,
    context: RequestContext,
    request: ListOffsetsRequest,
) -> Steps[Any]:
    wanted: list[LookUp] = []
    strays: list[StrayEnd] = []
    response = yield from _answer(authorizer, replicas, logs, context, request, wanted, strays)
    if strays:
        return _with_strays(response, strays)
    return _looked_up(response, look_ups, deque(wanted)) if wanted else response


async def _with_strays(response: ListOffsetsResponse, strays: list[StrayEnd]) -> ListOffsetsResponse:
    """For a controller, which asks for nothing else in the same request."""
    for stray in strays:
        await asyncio.to_thread(stray.read)
    return response


async def _looked_up(
    response: ListOffsetsResponse, look_ups: LookUps, wanted: deque[LookUp]
) -> ListOffsetsResponse:
    def take_a_turn(check: Check) -> None:
        until = monotonic() + TURN_S
        while wanted and monotonic() < until:
            check()
            wanted.popleft().run(check)

    while wanted:
        await look_ups.run(take_a_turn)
    return response


def _answer(
    authorizer: Authorizer,
    replicas: Replicas,
    logs: LogManager,
    context: RequestContext,
    request: ListOffsetsRequest,
    look_ups: list[LookUp],
    strays: list[StrayEnd],
) -> Steps[ListOffsetsResponse]:
    peer = context.session.peer_broker
    is_replica = peer is not None and peer.broker_id == request.replica_id
    is_controller = peer is not None and request.replica_id == DEBUGGING_REPLICA_ID
    topics = []
    for topic in request.topics:
        partitions = []
        times = Counter(requested.partition_index for requested in topic.partitions)
        for requested in {requested.partition_index: requested for requested in topic.partitions}.values():
            yield
            try:
                authorizer.check(context.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
                if times[requested.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                if is_controller and requested.timestamp == LATEST:
                    partitions.append(
                        _log_end(replicas, logs, (topic.name, requested.partition_index), strays)
                    )
                    continue
                partition = replicas.partition(topic.name, requested.partition_index)
                partition.check_online()
                if requested.timestamp < 0 and context.version < SINCE.get(requested.timestamp, NEVER):
                    raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
                partition.check_epoch(requested.current_leader_epoch)
                if not is_replica and requested.timestamp not in STARTS and not partition.is_settled:
                    is_known = context.version >= OFFSET_NOT_AVAILABLE_SINCE
                    raise ApiError(
                        ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                limit = partition.high_watermark
                if request.isolation_level == READ_COMMITTED:
                    limit = partition.last_stable_offset
                end = partition.log.log_end_offset if is_replica else limit
                partitions.append(_find(partition, requested, look_ups, limit, end))
            except ApiError as error:
                partitions.append(ListOffsetsPartitionResponse(requested.partition_index, error.code))
        topics.append(ListOffsetsTopicResponse(topic.name, partitions))
    return ListOffsetsResponse(topics=topics)


def _log_end(
    replicas: Replicas, logs: LogManager, key: TopicPartition, strays: list[StrayEnd]
) -> ListOffsetsPartitionResponse:
    """The end of the log of that topic id here, with the epoch of its last record. Raises ApiError."""
    topic = replicas.metadata.topics.get(key[0])
    held = replicas.held(key)
    if held is None and (topic is None or topic.topic_id != replicas.topic_id(key[0])):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    found = logs.log_of(topic.topic_id, *key) if held is None and topic is not None else None
    if held is not None:
        found = held.log
    if found is not None:
        found.check_online()
        end = log_end(found)
        return ListOffsetsPartitionResponse(key[1], 0, -1, end.offset, end.epoch)
    answer = ListOffsetsPartitionResponse(key[1], ErrorCode.KAFKA_STORAGE_ERROR)
    if topic is not None:
        homes = {home.path for home in logs.dirs}
        strays += [
            StrayEnd(answer, logs.strays, stray) for stray in logs.strays.of(topic.topic_id, key[1], homes)
        ]
    return answer


def _find(
    partition: Partition, requested: ListOffsetsPartition, look_ups: list[LookUp], limit: int, end: int
) -> ListOffsetsPartitionResponse:
    """`limit` is the end of what the client may read, `end` its answer for the latest offset."""
    log, epoch = partition.log, partition.record.leader_epoch
    if requested.timestamp == LATEST:
        return ListOffsetsPartitionResponse(requested.partition_index, 0, -1, end, epoch)
    if requested.timestamp in NOTHING_TIERED:
        return ListOffsetsPartitionResponse(requested.partition_index, 0)
    if requested.timestamp in STARTS:
        return ListOffsetsPartitionResponse(requested.partition_index, 0, -1, log.log_start_offset, epoch)
    found = ListOffsetsPartitionResponse(requested.partition_index, 0)
    look_ups.append(LookUp(found, log, requested.timestamp, limit))
    return found
