"""The broker's fetch sessions (KIP-227), and their owners (see `fetch_session`).

A consumer's session belongs to the principal that began it: any connection of that principal that names its id and
next epoch continues it. There are `max.incremental.fetch.session.cache.slots` of them. A session unused for
EVICTION_MS makes room for any other, and one that is older than that for a larger one; otherwise the client gets
session 0, and does without. All consumers' sessions together have at most MOST_PARTITIONS: a client that would exceed
them gets session 0, too, and a session that would grow beyond them ends.

A follower's session belongs to a broker in one incarnation, over one connection that has authenticated as that broker's
(`FollowerKey`). That broker's next connection begins a new session, which ends its old one; nobody else can. There is
one for each broker.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    API,
    IDS_SINCE,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    next_session_epoch,
)
from millstream_process import supervision

from ..coordination import BrokerRecord
from ..runtime.slices import begin, finish
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.session import ClientSession, PeerBroker
from .alter_partition import AlterPartitionManager
from .fetch_rights import FetchRights
from .fetch_session import FULL, SESSIONLESS, Answer, FetchSettings, Session
from .replicas import Replicas

EVICTION_MS = 120_000
MOST_PARTITIONS = 500_000
"""Limit of partitions in all consumers' sessions together; each takes some 400 bytes."""
RIGHTS_S = 0.5
"""How soon a waiting response reports that its client may not read a topic any more."""
RACKS_SINCE = 11
"""Only leaders serve consumers that use older versions."""


class FollowerKey(NamedTuple):
    """To whom a follower's session belongs: one incarnation of a broker, over one connection."""

    peer: PeerBroker
    connection_id: int


class FollowerSession(Session):
    """The session of a follower."""

    __slots__ = ("key",)

    def __init__(
        self,
        replicas: Replicas,
        alter_partition: AlterPartitionManager,
        settings: FetchSettings,
        key: FollowerKey,
        *,
        by_id: bool = False,
    ) -> None:
        super().__init__(replicas, alter_partition, settings, key.peer.broker_id, by_id=by_id)
        self.key = key


class Sessions:
    """The fetch sessions of this broker's clients."""

    def __init__(
        self,
        replicas: Replicas,
        alter_partition: AlterPartitionManager,
        settings: FetchSettings,
        authorizer: Authorizer,
    ) -> None:
        self._authorizer = authorizer.of_api(API.name)
        authorizer.on_change(self._rights_changed)
        self._waiting: set[Session] = set()
        """Consumers whose response waits, if there are rules of access."""
        self._rights_timer: asyncio.TimerHandle | None = None
        self._replicas = replicas
        self._alter_partition = alter_partition
        self._settings = settings
        self._by_replica: dict[int, FollowerSession] = {}
        self._consumers: dict[int, Session] = {}
        """By id; the last used one is at the end."""
        self._partitions = 0
        """Number of partitions in consumers' sessions."""

    def __len__(self) -> int:
        return len(self._by_replica) + len(self._consumers)

    def answer(
        self, request: FetchRequest, client: ClientSession, connection_id: int, version: int
    ) -> Steps[Answer]:
        """Raises ApiError for the request as a whole. For a forged replica, each partition is refused."""
        if request.replica_id >= 0:
            peer = client.peer_broker
            if peer is None or peer.broker_id != request.replica_id:
                return _refused(request)
            session = self._of_follower(request, FollowerKey(peer, connection_id), version >= IDS_SINCE)
        else:
            session = self._of_consumer(request, version, client.principal)
            if self._authorizer.is_enabled:
                session.authorize(FetchRights.now(self._authorizer, client))
        try:
            answer = yield from session.answer(request)
        except BaseException:  # aborted, for example by a disconnect: the session state is unknown
            self._drop(session)
            raise
        if self._consumers.get(session.session_id) is session:
            self._count(session, session.size)
        if self._authorizer.is_enabled and not isinstance(answer, FetchResponse):
            self._waiting.add(session)
            answer.add_done_callback(lambda _: self._waiting.discard(session))
        if not session.session_id:
            if not isinstance(answer, FetchResponse):
                answer.add_done_callback(lambda _: _end_later(session))
            elif session.watches:
                yield from session.closed()
        elif isinstance(answer, FetchResponse) and session.is_over:
            self._end(session.session_id)
            answer.session_id = 0
        return answer

    def take_back(self, response: FetchResponse) -> Steps[None]:
        """A consumer's response is not sent: its session has to send the news in it again."""
        if (session := self._consumers.get(response.session_id)) is None:
            return
        for topic in response.responses:
            for data in topic.partitions:
                session.take_back(topic.topic_id if session.by_id else topic.topic, data)
                yield

    def _rights_changed(self) -> None:
        """Rules have changed: check waiting responses, once for several changes."""
        if self._rights_timer is None:
            self._rights_timer = asyncio.get_running_loop().call_later(RIGHTS_S, self._check_rights)

    def _check_rights(self) -> None:
        self._rights_timer = None
        supervision.run("rights of waiting fetches", finish(self._checked()))

    def _checked(self) -> Steps[None]:
        for session in list(self._waiting):
            yield from session.rights_changed()

    # Followers

    def _of_follower(self, request: FetchRequest, key: FollowerKey, by_id: bool) -> Session:
        parts = self._replicas, self._alter_partition, self._settings, key
        broker_id = key.peer.broker_id
        known = self._by_replica.get(broker_id)
        self._check_epoch(key.peer, known)
        if request.session_id:
            if known is None or known.session_id != request.session_id or known.key != key:
                raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            _next(known, request, by_id)
            return known
        if request.session_epoch != FULL:
            return FollowerSession(*parts, by_id=by_id)
        if known is not None:
            known.close()
        session = FollowerSession(*parts, by_id=by_id)
        session.identify(self._new_id(), monotonic())
        self._by_replica[broker_id] = session
        return session

    def _check_epoch(self, peer: PeerBroker, session: FollowerSession | None) -> None:
        """Raises ApiError for an earlier incarnation of a broker. A later one may be known only to itself at first."""
        known = self._replicas.metadata.brokers.get(peer.broker_id)
        if (known is not None and peer.broker_epoch < known.epoch) or (
            session is not None and peer.broker_epoch < session.key.peer.broker_epoch
        ):
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    def forget(self, alive: Mapping[int, BrokerRecord]) -> None:
        """Drop the sessions of followers that have left, or have registered again since."""
        for replica, session in list(self._by_replica.items()):
            known = alive.get(replica)
            if known is None or session.key.peer.broker_epoch < known.epoch:
                self._by_replica.pop(replica).close()

    # Consumers

    def _of_consumer(self, request: FetchRequest, version: int, principal: str) -> Session:
        session_id, epoch, by_id = request.session_id, request.session_epoch, version >= IDS_SINCE
        found = self._consumers.get(session_id)
        if found is not None and found.principal != principal:
            found = None
        if epoch in (FULL, SESSIONLESS):
            if found is not None:
                self._end(session_id)
            session = Session(
                self._replicas,
                self._alter_partition,
                self._settings,
                reads_followers=version >= RACKS_SINCE,
                by_id=by_id,
                principal=principal,
            )
            if epoch == FULL:
                self._begin(session, _size(request))
            return session
        if found is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        _next(found, request, by_id)
        if self._partitions + _size(request) > MOST_PARTITIONS:
            self._end(session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._count(found, found.size + _size(request))
        found.used = monotonic()
        self._consumers[session_id] = self._consumers.pop(session_id)
        return found

    def _begin(self, session: Session, size: int) -> None:
        """Give the session an id, if there is room or an evictable session."""
        now = monotonic()
        if not self._has_room(size) and (evicted := self._evictable(size, now)) is not None:
            self._end(evicted)
        if not self._has_room(size):
            return
        session.identify(self._new_id(), now)
        self._consumers[session.session_id] = session
        self._count(session, size)

    def _new_id(self) -> int:
        while (session_id := 1 + secrets.randbelow(0x7FFFFFFF)) in self._consumers:
            pass
        return session_id

    def _has_room(self, size: int) -> bool:
        return (
            len(self._consumers) < self._settings.max_sessions and self._partitions + size <= MOST_PARTITIONS
        )

    def _evictable(self, size: int, now: float) -> int | None:
        """Kafka's rules (KIP-227): the least recently used one; else the smallest of the old ones, if it is smaller."""
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
            self._count(session, 0)
            session.close()

    def _drop(self, session: Session) -> None:
        if self._consumers.get(session.session_id) is session:
            self._end(session.session_id)
        elif self._by_replica.get(session.replica_id) is session:
            del self._by_replica[session.replica_id]
        session.close()

    def _count(self, session: Session, partitions: int) -> None:
        self._partitions += partitions - session.counted
        session.counted = partitions


def _size(request: FetchRequest) -> int:
    return sum(len(topic.partitions) for topic in request.topics)


def _next(session: Session, request: FetchRequest, by_id: bool) -> None:
    """Raises ApiError INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""
    if session.epoch != request.session_epoch or session.is_busy:
        raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.by_id != by_id:
        raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    session.epoch = next_session_epoch(session.epoch)


def _refused(request: FetchRequest) -> FetchResponse:
    """The response to an unauthorised replica, as in Kafka."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic.topic,
                topic.topic_id,
                [
                    PartitionData(partition.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, records=b"")
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_later(session: Session) -> None:
    """End the session later, in slices if it has many partitions."""
    closing = session.closed()
    if begin(closing) is None:
        supervision.run("fetch sessions", finish(closing))
