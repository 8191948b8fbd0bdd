"""Fetch: read record batches, waiting up to `max_wait_ms` while there is less than `min_bytes`.

- Partitions are read in the order asked for, until `max_bytes` (or `fetch.max.bytes`) is reached. A batch is never
  cut: the first one in the response goes out even if it alone is larger than the limits (KIP-74), so that a consumer
  always gets on, and an offset inside a batch returns the batch.
- An error in any partition is answered at once.
- No poll outlasts `connections.max.idle.ms`: whether its client is still there may show only when it is answered.
- Fetch sessions (KIP-227) are declined: the response says session 0, and a client that names a session gets
  FETCH_SESSION_ID_NOT_FOUND, upon which it sends all its partitions.
- Followers, which name their replica, are answered by `replication.serving`.
- There being no transactions, the last stable offset is the high watermark.

Records are not read here: the response refers to ranges of segment files, which the server sends with sendfile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..delayed_fetch import DelayedFetch
from ..partition import Partition
from ..protocol import fetch
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ..replication.serving import current_leader
from . import Answer, RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

READ_COMMITTED = 1
WITHOUT_SESSION, NEW_SESSION = -1, 0
"""Session epochs; a new session is declined by answering with session id 0 (KIP-227)."""


@handler(fetch.API, ends_with_connection=True)
def handle(broker: Broker, context: RequestContext, request: FetchRequest) -> Answer:
    if request.replica_id >= 0:
        return broker.replicas.sessions.answer(request, context.authenticator)
    if request.session_epoch not in (WITHOUT_SESSION, NEW_SESSION):
        raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    reading = Reading(broker, request)
    if (
        reading.failed
        or not reading.partitions
        or request.max_wait_ms <= 0
        or reading.size >= request.min_bytes
    ):
        return reading.response
    return _delayed(broker, request, reading)


def _delayed(broker: Broker, request: FetchRequest, reading: Reading) -> asyncio.Future[FetchResponse]:
    wait_s = min(request.max_wait_ms / 1000, broker.server.max_idle_s)
    delayed = DelayedFetch(
        request.min_bytes - reading.size, wait_s, lambda: Reading(broker, request).response
    )
    partitions = reading.partitions
    for partition in partitions:
        partition.waiters.add(delayed)

    def leave(_: asyncio.Future[FetchResponse]) -> None:
        for partition in partitions:
            partition.waiters.discard(delayed)

    delayed.response.add_done_callback(leave)
    return delayed.response


class Reading:
    """One look at all the partitions of a request."""

    __slots__ = ("failed", "partitions", "response", "size")

    def __init__(self, broker: Broker, request: FetchRequest) -> None:
        self.size = 0
        self.failed = False
        self.partitions: list[Partition] = []
        limit = min(request.max_bytes, broker.max_fetch_bytes)
        aborted: list[fetch.AbortedTransaction] | None = (
            [] if request.isolation_level == READ_COMMITTED else None
        )
        topics = []
        for topic in request.topics:
            read = []
            for asked in topic.partitions:
                try:
                    data = self._read(broker, topic.topic, asked, limit)
                except ApiError as error:
                    self.failed = True
                    data = PartitionData(asked.partition, error.code, -1, records=b"")
                    data.current_leader = current_leader(broker, topic.topic, asked.partition, error.code)
                data.aborted_transactions = (
                    [] if data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else aborted
                )
                read.append(data)
            topics.append(FetchableTopicResponse(topic.topic, read))
        self.response = FetchResponse(responses=topics)

    def _read(self, broker: Broker, topic: str, asked: FetchPartition, limit: int) -> PartitionData:
        partition = broker.partition(topic, asked.partition)
        if asked.current_leader_epoch >= 0:
            partition.check_epoch(asked.current_leader_epoch)
        self.partitions.append(partition)
        room = min(asked.partition_max_bytes, limit - self.size)
        found = partition.read(asked.fetch_offset, max(room, 0), min_one=not self.size)
        if found is not None:
            self.size += len(found)
        return PartitionData(
            asked.partition,
            0,
            partition.high_watermark,
            partition.high_watermark,
            partition.log.log_start_offset,
            records=b"" if found is None else found,
        )
