"""Sends the markers that end transactions to the leaders of their partitions, in batches, until each has its own.

A partition without a leader, an answer that it is led elsewhere, or no answer at all: its markers are sent again after
a pause, to whoever leads it then; so they are after any error that does not say that they are needless. A partition
whose topic no longer exists needs none. Nothing is sent for a partition of __transaction_state that another broker
leads by now: its new coordinator sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import write_txn_markers
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from millstream_kafka.topic_partition import TopicPartition, by_topic
from millstream_process import supervision

from ..replication.replicas import Replicas
from .messages import Markers
from .peers import Peers

VERSION = 2
AT_ONCE = 500
"""Markers in one request."""
RETRY_S = 0.1
ABSENT_TRIES = 50
"""How often a topic that this broker does not know is tried: its image of the cluster may be old."""

NEEDLESS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.POLICY_VIOLATION})
"""The partition needs no marker: the producer has a higher epoch there, so the transaction is over; or it is a mirror's
read-only replica, which takes its records, and so its markers, from the source."""
EXPECTED = frozenset(
    {
        *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        *(ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        *(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT),
    }
)
"""Errors that end by themselves. After any other one, too, the marker is sent again, because without it the transaction
stays open there; but then the log has a line."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Sending:
    """The markers of one transaction that are not written yet."""

    markers: Markers
    left: set[TopicPartition]
    is_over: bool = False
    absent: dict[TopicPartition, int] = field(default_factory=dict)
    """How often a partition was not found."""
    told: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    """The error of a partition that the log has had a line about."""


Item = tuple[_Sending, TopicPartition]


class TransactionMarkerSender:
    """`messages.MarkerSender`. All calls are made on the loop."""

    def __init__(self, replicas: Replicas, peers: Peers) -> None:
        self._replicas = replicas
        self._peers = peers
        self._written: Callable[[Markers, Iterable[TopicPartition]], None] = lambda markers, partitions: None
        self._sendings: dict[int, set[_Sending]] = {}
        """By partition of __transaction_state."""
        self._queues: dict[int, deque[Item]] = {}
        """By leader."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._silent: set[int] = set()
        """Leaders that the last request could not be sent to: the log says it once."""
        self._is_closed = False

    def report_to(self, written: Callable[[Markers, Iterable[TopicPartition]], None]) -> None:
        """Call this with partitions that have their markers, or need none."""
        self._written = written

    def send(self, markers: Markers) -> None:
        sending = _Sending(markers, set(markers.partitions))
        self._sendings.setdefault(markers.log_partition, set()).add(sending)
        self._route(sending, markers.partitions)

    def forget(self, log_partition: int) -> None:
        for sending in self._sendings.pop(log_partition, ()):
            sending.is_over = True

    def topics_deleted(self, names: Collection[str]) -> None:
        """These topics were deleted: partitions that are gone need no markers.

        A topic that has been created again may have the transaction, too, and gets its markers.
        """
        for sending in [each for of_partition in self._sendings.values() for each in of_partition]:
            gone = [where for where in sending.left if where[0] in names and self._leader(where) is None]
            if gone:
                self._done(sending, gone)

    async def close(self) -> None:
        self._is_closed = True
        await supervision.cancel(self._tasks.values())
        await self._peers.close()

    def _route(self, sending: _Sending, partitions: Collection[TopicPartition]) -> None:
        """Queue the markers for the leaders of these partitions."""
        if sending.is_over or self._is_closed:
            return
        absent: list[TopicPartition] = []
        later: list[TopicPartition] = []
        for where in partitions:
            leader = self._leader(where)
            if leader is None:
                tries = sending.absent[where] = sending.absent.get(where, 0) + 1
                (absent if tries > ABSENT_TRIES else later).append(where)
            elif leader not in self._replicas.latest_image.brokers:
                later.append(where)
            else:
                self._queues.setdefault(leader, deque()).append((sending, where))
                if leader not in self._tasks:
                    self._tasks[leader] = supervision.keep(
                        "transaction markers", partial(self._drain, leader)
                    )
        if absent:
            self._done(sending, absent)
        self._retry(sending, later)

    def _leader(self, where: TopicPartition) -> int | None:
        """The broker that leads a partition, -1 if none does; None if there is no such partition."""
        topic = self._replicas.latest_image.topics.get(where[0])
        if topic is None or where[1] >= len(topic.partitions):
            return None
        return topic.partitions[where[1]].leader

    def _retry(self, sending: _Sending, partitions: Collection[TopicPartition]) -> None:
        if partitions and not self._is_closed:
            asyncio.get_running_loop().call_later(RETRY_S, self._route, sending, partitions)

    def _done(self, sending: _Sending, partitions: Collection[TopicPartition]) -> None:
        if sending.is_over:
            return
        sending.left.difference_update(partitions)
        if not sending.left:
            sending.is_over = True
            self._sendings[sending.markers.log_partition].discard(sending)
        self._written(sending.markers, partitions)

    async def _drain(self, leader: int) -> None:
        queue = self._queues[leader]
        while queue:
            some = [queue.popleft() for _ in range(min(len(queue), AT_ONCE))]
            by_sending: dict[_Sending, list[TopicPartition]] = {}
            for sending, where in some:
                if not sending.is_over:
                    by_sending.setdefault(sending, []).append(where)
            if not by_sending:
                continue
            response = await self._request(leader, by_sending)
            for (sending, partitions), errors in zip(
                by_sending.items(), _errors(response, by_sending), strict=True
            ):
                self._judge(sending, partitions, errors)
        del self._tasks[leader]

    async def _request(
        self, leader: int, by_sending: dict[_Sending, list[TopicPartition]]
    ) -> WriteTxnMarkersResponse | None:
        """None without an answer."""
        broker = self._replicas.latest_image.brokers.get(leader)
        if broker is None:
            return None
        request = WriteTxnMarkersRequest(
            [_marker(sending.markers, partitions) for sending, partitions in by_sending.items()]
        )
        try:
            response = await self._peers.call(broker, write_txn_markers.API, VERSION, request)
        except BrokerError as error:
            if leader not in self._silent:
                self._silent.add(leader)
                log.warning("cannot send transaction markers to broker %d, retrying: %s", leader, error)
            return None
        self._silent.discard(leader)
        return response

    def _judge(
        self, sending: _Sending, partitions: list[TopicPartition], errors: dict[TopicPartition, ErrorCode]
    ) -> None:
        done, again = [], []
        for where in partitions:
            error = errors.get(where, ErrorCode.REQUEST_TIMED_OUT)
            if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                log.warning(
                    "%s-%d: refuses the marker of %r: a newer coordinator has written to it",
                    *where,
                    sending.markers.transactional_id,
                )
            elif not error:
                done.append(where)
            elif error in NEEDLESS:
                log.warning(
                    "%s-%d: needs no marker of %r: %s", *where, sending.markers.transactional_id, error.name
                )
                done.append(where)
            else:
                again.append(where)
                if error not in EXPECTED and sending.told.get(where) is not error:
                    sending.told[where] = error
                    log.warning(
                        "%s-%d: cannot write the marker of %r, retrying: %s",
                        *where,
                        sending.markers.transactional_id,
                        error.name,
                    )
        if done:
            self._done(sending, done)
        self._retry(sending, again)


def _marker(markers: Markers, partitions: Iterable[TopicPartition]) -> WritableTxnMarker:
    return WritableTxnMarker(
        markers.producer_id,
        markers.producer_epoch,
        markers.commits,
        [WritableTxnMarkerTopic(name, indexes) for name, indexes in by_topic(partitions).items()],
        markers.coordinator_epoch,
        markers.transaction_version,
    )


def _errors(
    response: WriteTxnMarkersResponse | None, by_sending: dict[_Sending, list[TopicPartition]]
) -> list[dict[TopicPartition, ErrorCode]]:
    """The errors of each transaction, in order; a producer id is in a request once."""
    if response is None:
        return [{} for _ in by_sending]
    by_producer = {
        result.producer_id: {
            (topic.name, each.partition_index): ErrorCode.of(each.error_code)
            for topic in result.topics
            for each in topic.partitions
        }
        for result in response.markers
    }
    return [by_producer.get(sending.markers.producer_id, {}) for sending in by_sending]
