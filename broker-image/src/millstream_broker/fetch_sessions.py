"""Fetch sessions (KIP-227): what consumers and followers read by, whether the session lasts or is for one request.

A session knows the partitions that a client fetches. Each request names those whose offset changed and those to forget,
each response has those that have something new: records, an error, a high watermark or a log start that the client does
not know. Partitions tell their sessions when something happens to them, so the cost of a request is that of what
happened, not of the partitions. A request without a session is answered by one that ends with the response.

- Partitions are read in turn until `max_bytes` (or `fetch.max.bytes`) is reached. A batch is never cut: the first one
  in the response goes out even if it alone is larger than the limits (KIP-74), so that a client always gets on, and an
  offset inside a batch returns the batch. What found no room is first the next time.
- While there is less than `min_bytes` the response waits, on the partitions and not on a timer: each partition is
  watched from the step that reads it until something happens to it, so nothing can pass a session by.
- An error in any partition is answered at once. No wait outlasts `connections.max.idle.ms`: whether its client is still
  there may show only when it is answered.

A consumer reads up to the high watermark. Its session belongs to nobody: who names its id and its next epoch continues
it. There are `max.incremental.fetch.session.cache.slots` of them. One that was not used for EVICTION_MS makes room for
any other, one that is older than that for a larger one; else a client is told session 0, and goes without.

A follower reads up to the end of the log. What it asks for tells how far it is (`Partition.fetched`), unless the logs
turn out to part, which is then the answer (`divergence`). Its session belongs to a broker in one incarnation, over one
connection that has proven to be that broker's (`inter_broker`). That broker's next connection begins a new session,
which ends its old one; nobody else can. There is one for each broker.
"""

from __future__ import annotations

import random
from asyncio import Future
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from .coordination import BrokerRecord
from .delayed_fetch import DelayedFetch
from .inter_broker import Authenticator, Peer
from .partition import FetchWaiter, Partition
from .protocol.errors import ApiError, ErrorCode
from .protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    next_session_epoch,
)
from .replication.divergence import diverging_epoch

if TYPE_CHECKING:
    from .broker import Broker

TopicPartition = tuple[str, int]
Answer = FetchResponse | Future[FetchResponse]
FULL, SESSIONLESS = 0, -1
"""Session epochs of requests that name all their partitions."""
CONSUMER = -1
"""Its replica id; others below 0 are debuggers of Kafka's, which read as consumers do."""
READ_COMMITTED = 1
EVICTION_MS = 120_000


class Fetched:
    """A partition as one client fetches it."""

    __slots__ = ("asked", "is_new", "key", "partition", "sent", "session")

    def __init__(self, key: TopicPartition, asked: FetchPartition) -> None:
        self.key = key
        self.asked = asked
        self.is_new = True
        """The offset is new to us."""
        self.partition: Partition | None = None
        """Where it was read last: as long as that is the same, it is the same topic and leadership."""
        self.sent: tuple[int, int] | None = None
        """High watermark and log start that the client knows."""
        self.session: Session | None = None
        """Who is told what happens to the partition; None: it is not watched."""

    def advanced(self, size: int) -> None:
        """There are so many more bytes to read, or something else happened to the partition (size 0)."""
        if self.session is not None:
            self.session.advanced(self, size)

    def committed(self) -> None:
        """There is something to tell with the next response."""
        if self.session is not None:
            self.session.has_news(self)

    def watch(self, session: Session) -> None:
        if self.partition is not None:
            self.session = session
            session.waiters_of(self.partition).add(self)

    def leave(self) -> None:
        """Watch the partition no more."""
        if self.session is not None and self.partition is not None:
            self.session.waiters_of(self.partition).discard(self)
            self.session = None


class Session:
    """The partitions that one client fetches. Each is watched, or due to be looked at, or both."""

    __slots__ = (
        "_aborted",
        "_broker",
        "_delayed",
        "_due",
        "_fetched",
        "_watches",
        "created",
        "epoch",
        "is_follower",
        "replica_id",
        "session_id",
        "used",
    )

    epoch: int
    """Of the next request."""
    created: float
    used: float

    def __init__(self, broker: Broker, replica_id: int = CONSUMER) -> None:
        """For one request; see `identify`."""
        self.session_id = 0
        self.replica_id = replica_id
        self.is_follower = replica_id >= 0
        self._broker = broker
        self._aborted: list[AbortedTransaction] | None = None
        self._watches = False
        """Whether partitions are watched: not for one request that does not wait."""
        self._fetched: dict[TopicPartition, Fetched] = {}
        self._due: dict[Fetched, None] = {}
        """Those to look at for the next response, in the order in which something happened to them."""
        self._delayed: DelayedFetch | None = None
        """The request that waits: one at most."""

    @property
    def size(self) -> int:
        return len(self._fetched)

    @property
    def is_over(self) -> bool:
        """Whether a consumer has forgotten all its partitions."""
        return not self._fetched and not self.is_follower and self.epoch > 1

    def identify(self, session_id: int) -> None:
        """From now on it lasts, by this id."""
        self.session_id, self._watches, self.epoch = session_id, True, 1
        self.created = self.used = monotonic()

    def close(self) -> None:
        for one in self._fetched.values():
            one.leave()
        self._fetched.clear()
        self._due.clear()
        if self._delayed is not None:
            self._delayed.over()

    def waiters_of(self, partition: Partition) -> set[FetchWaiter]:
        return partition.followers if self.is_follower else partition.waiters

    # What happens

    def advanced(self, one: Fetched, size: int) -> None:
        self._due[one] = None
        if self._delayed is not None:
            self._delayed.advanced(size)
        else:  # it will be read: until then nothing more has to be known
            one.leave()

    def has_news(self, one: Fetched) -> None:
        self._due[one] = None

    # Requests

    def answer(self, request: FetchRequest) -> Answer:
        """The response, which waits for records if there are none. An earlier request that still waits is answered."""
        if self._delayed is not None:
            self._delayed.over()
        self._take(request)
        limit = min(request.max_bytes, self._broker.max_fetch_bytes)
        response, size, urgent = self._read(limit)
        if (
            urgent
            or size >= request.min_bytes
            or request.max_wait_ms <= 0
            or not (self._fetched or self.is_follower)
        ):
            return response
        wait_s = min(request.max_wait_ms / 1000, self._broker.server.max_idle_s)
        if not self._watches:
            self._watches = True
            for one in self._fetched.values():
                one.watch(self)

        def read() -> FetchResponse:
            more, _, _ = self._read(limit)
            return _joined(response, more)

        self._delayed = delayed = DelayedFetch(request.min_bytes - size, wait_s, read)
        delayed.response.add_done_callback(lambda _: self._waited(delayed))
        return delayed.response

    def _take(self, request: FetchRequest) -> None:
        """Note what a request says about the partitions."""
        self._aborted = [] if request.isolation_level == READ_COMMITTED or self.is_follower else None
        fetched, due = self._fetched, self._due
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                if (gone := fetched.pop((forgotten.topic, index), None)) is not None:
                    gone.leave()
                    due.pop(gone, None)
        for topic in request.topics:
            name = topic.topic
            for asked in topic.partitions:
                key = name, asked.partition
                if key in fetched:
                    one = fetched[key]
                    one.asked, one.is_new = asked, True
                else:
                    one = fetched[key] = Fetched(key, asked)
                due[one] = None

    def _waited(self, delayed: DelayedFetch) -> None:
        if self._delayed is delayed:
            self._delayed = None

    def _read(self, limit: int) -> tuple[FetchResponse, int, bool]:
        """What there is to say; how many bytes of records; whether it must be said at once."""
        topics: dict[str, FetchableTopicResponse] = {}
        size, urgent = 0, False
        again = []
        due, self._due = self._due, {}
        for one in due:
            try:
                data = self._read_one(one, limit - size, first=not size)
            except ApiError as error:
                data, urgent = self._failed(one, error), True
            if data is None:
                continue
            if data.records:
                size += len(data.records)
                again.append(one)
            if data.diverging_epoch is not None:
                urgent = True
            name = one.key[0]
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchableTopicResponse(name, [])
            topic.partitions.append(data)
        for one in again:  # until the client gets on; behind those that found no room
            self._due[one] = None
        return FetchResponse(0, 0, self.session_id, list(topics.values())), size, urgent

    def _read_one(self, one: Fetched, room: int, *, first: bool) -> PartitionData | None:
        """None when there is nothing new. Raises ApiError."""
        asked = one.asked
        broker = self._broker
        partition = broker.partitions.get(one.key) or broker.partition(*one.key)
        if one.partition is None:
            one.partition = partition
        elif partition is not one.partition:
            one.leave()
            one.partition, one.sent, one.is_new = partition, None, True
        log, offset = partition.log, asked.fetch_offset
        if asked.current_leader_epoch >= 0 or self.is_follower:
            partition.check_epoch(asked.current_leader_epoch)
        if self.is_follower:
            upper = log.log_end_offset
            if one.is_new and (parted := self._place(one, partition)) is not None:
                return parted
        else:
            upper = partition.high_watermark if self._aborted is None else partition.last_stable_offset
        if self._watches:
            one.watch(self)
        if room > asked.partition_max_bytes:
            room = asked.partition_max_bytes
        found = log.read(offset, room if room > 0 else 0, upper=upper, min_one=first)
        known = partition.high_watermark, log.log_start_offset
        if found is None and offset < upper:  # there was no room
            self._due[one] = None
        if found is None and known == one.sent:
            return None
        one.sent = known
        return PartitionData(
            asked.partition,
            0,
            known[0],
            partition.last_stable_offset,
            known[1],
            None,
            None,
            None,
            self._aborted,
            -1,
            b"" if found is None else found,
        )

    def _place(self, one: Fetched, partition: Partition) -> PartitionData | None:
        """Note how far a follower is; where its log parts from ours that is the answer. Raises ApiError."""
        asked, log, isr = one.asked, partition.log, partition.isr
        partition.check_online()
        if isr is None or self.replica_id not in isr.followers:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if asked.current_leader_epoch < 0
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        offset = asked.fetch_offset
        if offset < log.log_start_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        parted = diverging_epoch(log.epochs, log.log_end_offset, offset, asked.last_fetched_epoch)
        if parted is not None:
            one.sent = None
            self._due[one] = None
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
        self._broker.replicas.membership.fetched(partition, self.replica_id, offset, asked.log_start_offset)
        return None

    def _failed(self, one: Fetched, error: ApiError) -> PartitionData:
        """Said with each response until the client forgets the partition, or all is well again."""
        one.leave()
        one.sent = None
        self._due[one] = None
        name, index = one.key
        is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return PartitionData(
            index,
            error.code,
            -1,
            current_leader=current_leader(self._broker, name, index, error.code),
            aborted_transactions=[] if is_unknown else self._aborted,
            records=b"",
        )


def _joined(first: FetchResponse, second: FetchResponse) -> FetchResponse:
    """Two responses of a session as one; the second is newer."""
    if not first.responses:
        return second
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


class FollowerSession(Session):
    """Of one incarnation of a broker, over one connection."""

    __slots__ = ("follower", "peer")

    def __init__(self, broker: Broker, follower: Authenticator, peer: Peer) -> None:
        super().__init__(broker, peer.broker_id)
        self.follower = follower
        """Of the connection."""
        self.peer = peer


class Sessions:
    """The fetch sessions of this broker's clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_replica: dict[int, FollowerSession] = {}
        self._consumers: dict[int, Session] = {}
        """By their ids, the one that was used last at the end."""

    def __len__(self) -> int:
        return len(self._by_replica) + len(self._consumers)

    def answer(self, request: FetchRequest, client: Authenticator) -> Answer:
        """Raises ApiError for the request as a whole. Each partition is refused where the replica is made up."""
        if request.replica_id >= 0:
            if client.peer is None or client.peer.broker_id != request.replica_id:
                return _refused(request)
            session = self._of_follower(request, client, client.peer)
        else:
            session = self._of_consumer(request)
        answer = session.answer(request)
        if not session.session_id:
            if not isinstance(answer, FetchResponse):
                answer.add_done_callback(lambda _: session.close())
        elif isinstance(answer, FetchResponse) and session.is_over:
            self._end(session.session_id)
            answer.session_id = 0
        return answer

    # Followers

    def _of_follower(self, request: FetchRequest, follower: Authenticator, peer: Peer) -> Session:
        known = self._by_replica.get(peer.broker_id)
        self._check_epoch(peer, known)
        if request.session_id:
            if known is None or known.session_id != request.session_id or known.follower is not follower:
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            _next(known, request)
            return known
        if request.session_epoch != FULL:
            return FollowerSession(self._broker, follower, peer)
        if known is not None:
            known.close()
        session = FollowerSession(self._broker, follower, peer)
        session.identify(random.randint(1, 0x7FFFFFFF))
        self._by_replica[peer.broker_id] = session
        return session

    def _check_epoch(self, peer: Peer, session: FollowerSession | None) -> None:
        """Raises ApiError for an earlier incarnation of a broker. A later one may be known to itself first."""
        known = self._broker.metadata.brokers.get(peer.broker_id)
        if (known is not None and peer.broker_epoch < known.epoch) or (
            session is not None and peer.broker_epoch < session.peer.broker_epoch
        ):
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    def forget(self, alive: Mapping[int, BrokerRecord]) -> None:
        """Followers that are gone, or have registered again since, fetch no more."""
        for replica, session in list(self._by_replica.items()):
            known = alive.get(replica)
            if known is None or session.peer.broker_epoch < known.epoch:
                self._by_replica.pop(replica).close()

    # Consumers

    def _of_consumer(self, request: FetchRequest) -> Session:
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (FULL, SESSIONLESS):
            if session_id:
                self._end(session_id)
            session = Session(self._broker)
            if epoch == FULL:
                self._begin(session, sum(len(topic.partitions) for topic in request.topics))
            return session
        found = self._consumers.get(session_id)
        if found is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        _next(found, request)
        found.used = monotonic()
        self._consumers[session_id] = self._consumers.pop(session_id)
        return found

    def _begin(self, session: Session, size: int) -> None:
        """Give the session an id, if there is room or one that has to make room."""
        now = monotonic()
        slots = self._broker.config.integer("max.incremental.fetch.session.cache.slots")
        if len(self._consumers) >= slots:
            if (evicted := self._evictable(size, now)) is None:
                return
            self._end(evicted)
        session_id = 0
        while not session_id or session_id in self._consumers:
            session_id = random.randint(1, 0x7FFFFFFF)
        session.identify(session_id)
        self._consumers[session_id] = session

    def _evictable(self, size: int, now: float) -> int | None:
        """Kafka's rules (KIP-227): the one unused for longest; else the smallest of the old ones, if it is smaller."""
        before = now - EVICTION_MS / 1000
        oldest = next(iter(self._consumers.values()), None)
        if oldest is None:
            return None
        if oldest.used < before:
            return oldest.session_id
        old = [session for session in self._consumers.values() if session.created < before]
        smallest = min(old, key=lambda session: session.size, default=None)
        return None if smallest is None or smallest.size >= size else smallest.session_id

    def _end(self, session_id: int) -> None:
        if (session := self._consumers.pop(session_id, None)) is not None:
            session.close()


def _next(session: Session, request: FetchRequest) -> None:
    """Raises ApiError INVALID_FETCH_SESSION_EPOCH."""
    if session.epoch != request.session_epoch:
        raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    session.epoch = next_session_epoch(session.epoch)


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
