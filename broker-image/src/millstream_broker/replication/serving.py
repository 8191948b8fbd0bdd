"""What a leader answers its followers: Fetch requests that name a replica.

A follower reads up to the end of the log. What it asks for tells how far it is (`Partition.fetched`), unless the logs
turn out to part, which is then the answer (`divergence`). Records go out by sendfile, as to consumers.

Fetch sessions (KIP-227) are for followers only. A session knows the partitions a follower fetches; each request names
those whose offset changed, each response has those that have something new: records, an error, a high watermark or a
log start that the follower does not know. Partitions tell their sessions when something happens to them, so the cost of
a request is that of what happened, not of the partitions.

A session belongs to a broker in one incarnation, over one connection that has proven to be that broker's
(`inter_broker`). That broker's next connection begins a new session, which ends its old one; nobody else can. There is
one session for each broker, and in it partitions that this broker leads and that one has a replica of: for anything
else there is an error in the response, and nothing is kept. So a follower names a partition again after an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..coordination import BrokerRecord
from ..delayed_fetch import DelayedFetch
from ..inter_broker import Authenticator, Peer
from ..partition import Partition
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    next_session_epoch,
)
from .divergence import diverging_epoch

if TYPE_CHECKING:
    from ..broker import Broker

TopicPartition = tuple[str, int]
FULL = 0
SESSIONLESS = -1


class Fetched:
    """A partition as one follower fetches it."""

    __slots__ = ("asked", "is_new", "key", "partition", "sent", "session")

    def __init__(self, session: Session, key: TopicPartition, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.partition: Partition | None = None
        self.sent: tuple[int, int] | None = None
        """High watermark and log start that the follower knows."""
        self.ask(asked)

    def ask(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.is_new = True
        """The follower's offset is new to us."""

    def advanced(self, size: int) -> None:
        """The partition's log has grown, or something else happened to it."""
        self.session.advanced(self, size)

    def committed(self) -> None:
        self.session.has_news(self)

    def attach(self, partition: Partition | None) -> None:
        if partition is not self.partition:
            if self.partition is not None:
                self.partition.followers.discard(self)
            if partition is not None:
                partition.followers.add(self)
            self.partition = partition


class Session:
    """The partitions that one follower fetches over one connection."""

    def __init__(self, broker: Broker, follower: Authenticator, peer: Peer, session_id: int) -> None:
        self.session_id = session_id
        self.follower = follower
        """Of the connection."""
        self.peer = peer
        self.epoch = 1
        """Of the next request."""
        self.replica_id = peer.broker_id
        self._broker = broker
        self._fetched: dict[TopicPartition, Fetched] = {}
        self._due: dict[Fetched, None] = {}
        """Those to look at for the next response, in the order in which something happened to them."""
        self._delayed: DelayedFetch | None = None
        """The request that waits: one at most."""

    def close(self) -> None:
        for one in self._fetched.values():
            one.attach(None)
        self._fetched.clear()
        self._due.clear()
        self._end_wait()

    # What happens

    def advanced(self, one: Fetched, size: int) -> None:
        self._due[one] = None
        if self._delayed is not None:
            self._delayed.advanced(size)

    def has_news(self, one: Fetched) -> None:
        self._due[one] = None

    def _end_wait(self) -> None:
        if self._delayed is not None:
            self._delayed.over()

    # Requests

    def take(self, request: FetchRequest) -> None:
        """Note what a request says about the partitions."""
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                if (gone := self._fetched.pop((forgotten.topic, index), None)) is not None:
                    gone.attach(None)
                    self._due.pop(gone, None)
        for topic in request.topics:
            for asked in topic.partitions:
                key = topic.topic, asked.partition
                one = self._fetched.get(key)
                if one is None:
                    one = self._fetched[key] = Fetched(self, key, asked)
                else:
                    one.ask(asked)
                self._due[one] = None

    def answer(self, request: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
        """The response, which waits for records if there are none. An earlier request that still waits is answered."""
        self._end_wait()
        limit = min(request.max_bytes, self._broker.max_fetch_bytes)
        response, size, urgent = self._read(limit)
        if urgent or size >= request.min_bytes or request.max_wait_ms <= 0:
            return response
        wait_s = min(request.max_wait_ms / 1000, self._broker.server.max_idle_s)

        def read() -> FetchResponse:
            more, _, _ = self._read(limit - size)
            return _joined(response, more)

        self._delayed = delayed = DelayedFetch(request.min_bytes - size, wait_s, read)
        delayed.response.add_done_callback(lambda _: self._waited(delayed))
        return delayed.response

    def _waited(self, delayed: DelayedFetch) -> None:
        if self._delayed is delayed:
            self._delayed = None

    def _read(self, limit: int) -> tuple[FetchResponse, int, bool]:
        """What there is to say; how many bytes of records; whether it must be said at once."""
        topics: dict[str, FetchableTopicResponse] = {}
        size, urgent = 0, False
        due, self._due = self._due, {}
        for one in due:
            try:
                data = self._read_one(one, limit - size, first=not size)
            except ApiError as error:
                one.attach(None)
                del self._fetched[one.key]
                data, urgent = self._failed(one, error), True
            if data is None:
                continue
            if data.records:
                size += len(data.records)
            urgent = urgent or data.diverging_epoch is not None
            topic = one.key[0]
            told = topics.get(topic)
            if told is None:
                told = topics[topic] = FetchableTopicResponse(topic, [])
            told.partitions.append(data)
        return FetchResponse(session_id=self.session_id, responses=list(topics.values())), size, urgent

    def _read_one(self, one: Fetched, room: int, *, first: bool) -> PartitionData | None:
        """None when there is nothing new. Raises ApiError."""
        asked = one.asked
        partition = self._broker.partition(*one.key)
        partition.check_online()
        partition.check_epoch(asked.current_leader_epoch)
        isr, log = partition.isr, partition.log
        if isr is None or self.replica_id not in isr.followers:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if asked.current_leader_epoch < 0
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        one.attach(partition)
        offset = asked.fetch_offset
        if one.is_new:
            if offset < log.log_start_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            parted = diverging_epoch(log.epochs, log.log_end_offset, offset, asked.last_fetched_epoch)
            if parted is not None:
                return PartitionData(
                    asked.partition,
                    0,
                    partition.high_watermark,
                    -1,
                    log.log_start_offset,
                    diverging_epoch=EpochEndOffset(*parted),
                    records=b"",
                )
            if offset > log.log_end_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            one.is_new = False
            self._broker.replicas.membership.fetched(
                partition, self.replica_id, offset, asked.log_start_offset
            )
        found = None
        if offset < log.log_end_offset:
            room = max(min(asked.partition_max_bytes, room), 0)
            found = log.read(offset, room, upper=log.log_end_offset, min_one=first)
            if found is None:  # there was no room: it is first the next time
                self._due[one] = None
                return None
        known = partition.high_watermark, log.log_start_offset
        if found is None and known == one.sent:
            return None
        one.sent = known
        return PartitionData(
            asked.partition, 0, known[0], known[0], known[1], records=b"" if found is None else found
        )

    def _failed(self, one: Fetched, error: ApiError) -> PartitionData:
        topic, index = one.key
        data = PartitionData(index, error.code, -1, records=b"")
        data.current_leader = current_leader(self._broker, topic, index, error.code)
        return data


def _joined(first: FetchResponse, second: FetchResponse) -> FetchResponse:
    """Two responses of a session as one; the second is newer."""
    topics = {topic.topic: topic for topic in first.responses}
    for newer in second.responses:
        if (older := topics.get(newer.topic)) is None:
            topics[newer.topic] = newer
        else:
            by_index = {data.partition_index: data for data in older.partitions}
            by_index.update((data.partition_index, data) for data in newer.partitions)
            older.partitions = list(by_index.values())
    first.responses = list(topics.values())
    return first


class Sessions:
    """The fetch sessions of this broker's followers: one for each."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_replica: dict[int, Session] = {}

    def answer(
        self, request: FetchRequest, follower: Authenticator
    ) -> FetchResponse | asyncio.Future[FetchResponse]:
        """Raises ApiError for the request as a whole. Each partition is refused where the replica is made up."""
        replica, peer = request.replica_id, follower.peer
        if peer is None or peer.broker_id != replica:
            return _refused(request)
        session = self._by_replica.get(replica)
        self._check_epoch(peer, session)
        if request.session_id:
            if (
                session is None
                or session.session_id != request.session_id
                or session.follower is not follower
            ):
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if session.epoch != request.session_epoch:
                raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session.epoch = next_session_epoch(session.epoch)
        elif request.session_epoch == FULL:
            if session is not None:
                session.close()
            session = Session(self._broker, follower, peer, random.randint(1, 0x7FFFFFFF))
            self._by_replica[replica] = session
        else:
            return self._without_session(request, follower, peer)
        session.take(request)
        return session.answer(request)

    def _check_epoch(self, peer: Peer, session: Session | None) -> None:
        """Raises ApiError for an earlier incarnation of a broker. A later one may be known to itself first."""
        known = self._broker.metadata.brokers.get(peer.broker_id)
        if (known is not None and peer.broker_epoch < known.epoch) or (
            session is not None and peer.broker_epoch < session.peer.broker_epoch
        ):
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    def _without_session(
        self, request: FetchRequest, follower: Authenticator, peer: Peer
    ) -> FetchResponse | asyncio.Future[FetchResponse]:
        passing = Session(self._broker, follower, peer, 0)
        passing.take(request)
        answer = passing.answer(request)
        if isinstance(answer, FetchResponse):
            passing.close()
        else:
            answer.add_done_callback(lambda _: passing.close())
        return answer

    def forget(self, alive: Mapping[int, BrokerRecord]) -> None:
        """Followers that are gone, or have registered again since, fetch no more."""
        for replica, session in list(self._by_replica.items()):
            known = alive.get(replica)
            if known is None or session.peer.broker_epoch < known.epoch:
                self._by_replica.pop(replica).close()


def _refused(request: FetchRequest) -> FetchResponse:
    """As Kafka answers a replica that is not authorised."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic.topic,
                [
                    PartitionData(one.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, records=b"")
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def current_leader(broker: Broker, topic: str, index: int, code: ErrorCode) -> LeaderIdAndEpoch | None:
    """Whom to ask instead, where that is what the error is about."""
    if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        return None
    record = broker.metadata.topics.get(topic)
    if record is None or index >= len(record.partitions):
        return None
    found = record.partitions[index]
    return LeaderIdAndEpoch(found.leader, found.leader_epoch)
