"""Fetches from one leader for all its followed partitions: one connection, one request at a time.

The requests use a fetch session (KIP-227): after the first one, a request carries only partitions whose offset changed,
and a response only those with news, so following a thousand idle partitions costs two short messages each
`replica.fetch.wait.max.ms`. `_unsent` holds partitions that are new to the session or must be requested again; a
partition that failed leaves the session and returns after `replica.fetch.backoff.ms`.

A partition added during a long poll does not wait for its end: if the response does not come at once, a new connection
replaces this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from time import perf_counter

from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import BrokerError, ConnectionLost
from millstream_kafka.protocol import fetch, list_offsets
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    next_session_epoch,
)
from millstream_kafka.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream_kafka.topic_partition import TopicPartition, by_topic
from millstream_process import supervision

from ..config.config import BrokerConfig
from ..coordination import BrokerRecord
from ..security.mechanisms.inter_broker import InterBroker
from .follower import Follower, Outcome
from .throttle import Throttle

CLIENT_ID = "millstream-follower"
VERSION = 12
TURN_S = 0.003
"""Longest time one response may hold the event loop."""
LEAST_PAUSE_S = 0.02
"""A throttled replica fetches at once if its wait would be shorter."""
PATIENCE_S = 0.01
"""How long to wait for a request in flight if there is more to fetch."""
FIRST_BACKOFF_S = 0.01
LATEST, EARLIEST = -1, -2

log = logging.getLogger(__name__)


class Fetcher:
    """All calls are made on the loop."""

    def __init__(
        self,
        peers: InterBroker,
        leader_id: int,
        config: BrokerConfig,
        leader: Callable[[], BrokerRecord | None],
        throttle: Throttle,
    ) -> None:
        """`leader` returns the leader's present registration, None without one."""
        self._throttle = throttle
        self.leader_id = leader_id
        self._peers = peers
        self._broker_id = peers.broker_id
        self._config = config
        self._leader = leader
        self._epoch = -1
        """This broker's epoch when it connected."""
        self._leaders_epoch = -1
        """The leader's epoch at that time."""
        self._followers: dict[TopicPartition, Follower] = {}
        self._unsent: dict[TopicPartition, None] = {}
        self._forgotten: set[TopicPartition] = set()
        self._moved: set[TopicPartition] = set()
        """Partitions whose log start has moved here, which the leader does not know yet."""
        self._later: dict[TopicPartition, float] = {}
        """Partitions that failed or are throttled, and the times of their next attempts."""
        self._session = (0, 0)
        """Id and epoch of the next request; (0, 0) begins a session."""
        self._more = asyncio.Event()
        """Set while there are partitions to fetch for."""
        self._connection: Connection | None = None
        self._polled: Connection | None = None
        """The request that waits for its response."""
        self._given_up = False
        self._nudge = asyncio.Event()
        """Set when a retry is worthwhile."""
        self._reachable = True
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    def start(self) -> None:
        self._task = supervision.keep("fetcher", self._run, pause_s=self._longest_pause_s())

    async def close(self) -> None:
        if self._task is not None:
            await supervision.cancel([self._task])

    def add(self, follower: Follower) -> None:
        """Follow this partition from now on, or request it again after a change."""
        key = follower.key
        self._followers[key] = follower
        self._later.pop(key, None)
        self._forgotten.discard(key)
        self._unsent[key] = None
        self._ask_more()

    def remove(self, key: TopicPartition) -> None:
        """Stop following the partition; later responses for it have no effect."""
        if self._followers.pop(key, None) is not None:
            self._leave_out(key)

    def wake(self) -> None:
        """The cluster changed: retry failed partitions.

        A leader that has registered again responds to no earlier request. If its machine is lost, nothing reports that.
        """
        self._nudge.set()
        if self._connection is not None and not self._is_current:
            self._given_up = True
            self._connection.abandon()
        if self._later:
            self._take_back(float("inf"))
            self._ask_more()

    def _ask_more(self) -> None:
        """Keep the request in flight from waiting long."""
        self._more.set()
        if self._polled is not None and not self._given_up:
            self._given_up = True
            asyncio.get_running_loop().call_later(PATIENCE_S, self._give_up, self._polled, self._session)

    def _give_up(self, connection: Connection, session: tuple[int, int]) -> None:
        if connection is self._polled and session == self._session:
            connection.abandon()

    def _leave_out(self, key: TopicPartition) -> None:
        self._unsent.pop(key, None)
        self._later.pop(key, None)
        self._forgotten.add(key)

    # One request after another

    async def _run(self) -> None:
        while True:
            connection = None
            try:
                self._connection = connection = await self._connect()
                while self._is_current:
                    await self._fetch(connection)
            except BrokerError as error:
                if self._given_up:
                    self._given_up = False
                else:
                    self._say_unreachable(error)
                    await self._pause()
            except Exception as error:
                supervision.failed("fetcher", error, f", from broker {self.leader_id}, retrying")
                await self._pause()
            finally:
                self._connection = None
                if connection is not None:
                    await connection.close()

    @property
    def _is_current(self) -> bool:
        """Whether the connection is between the two brokers' present registrations."""
        leader = self._leader()
        return self._epoch == self._peers.epoch() and (leader is None or leader.epoch == self._leaders_epoch)

    async def _pause(self) -> None:
        self._nudge.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._longest_pause_s()):
                await self._nudge.wait()

    def _say_unreachable(self, error: BrokerError) -> None:
        level = logging.WARNING if self._reachable else logging.DEBUG
        log.log(level, "cannot fetch from broker %d: %s", self.leader_id, error)
        self._reachable = False

    async def _connect(self) -> Connection:
        while (leader := self._leader()) is None:
            await self._pause()
        limit = self._config.integer("replica.fetch.response.max.bytes")
        self._epoch, self._leaders_epoch = self._peers.epoch(), leader.epoch
        connection = await self._peers.connect(
            leader,
            f"{CLIENT_ID}-{self._broker_id}",
            timeout_s=self._config.integer("replica.socket.timeout.ms") / 1000,
            max_response_bytes=max(2 * limit, 128 << 20),
        )
        if not self._reachable:
            log.info("fetching from broker %d again", self.leader_id)
            self._reachable = True
        self._begin_session()
        return connection

    def _begin_session(self) -> None:
        """The first request of a session names all partitions."""
        self._session = (0, 0)
        self._forgotten.clear()
        self._unsent = {key: None for key in self._followers if key not in self._later}

    async def _fetch(self, connection: Connection) -> None:
        """Send one request, and apply the response."""
        if not self._followers:
            self._more.clear()
            await self._more.wait()
        now = asyncio.get_running_loop().time()
        self._take_back(now)
        if self._moved:
            self._report_starts()
        request = self._request([self._followers[key] for key in self._unsent], now)
        self._unsent.clear()
        self._forgotten.clear()
        self._polled, self._given_up = connection, False
        try:
            response = await connection.call(fetch.API, VERSION, request)
        finally:
            self._polled = None
        if response.error_code in (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ):
            self._begin_session()
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            raise ConnectionLost(connection.host, connection.port, "this broker has registered again since")
        if response.error_code:
            log.warning(
                "broker %d answers a fetch with %s", self.leader_id, ErrorCode.of(response.error_code).name
            )
            await self._pause()
            self._begin_session()
            return
        self._session = response.session_id, next_session_epoch(self._session[1])
        await self._take(connection, response)
        if not response.session_id:
            self._begin_session()

    def _take_back(self, now: float) -> None:
        for key in [key for key, at in self._later.items() if at <= now]:
            del self._later[key]
            self._forgotten.discard(key)
            self._unsent[key] = None

    def _report_starts(self) -> None:
        """Request again the partitions whose log start is durable by now."""
        owing = {
            key: moved for key in self._moved if (moved := self._followers.get(key)) and moved.owes_start
        }
        self._moved = {*owing}
        for key, follower in owing.items():
            if follower.may_report_start and key not in self._later:
                self._unsent[key] = None

    def _request(self, followers: list[Follower], now: float) -> FetchRequest:
        config = self._config
        most = config.integer("replica.fetch.max.bytes")
        topics: dict[str, FetchTopic] = {}
        for follower in followers:
            topic = topics.setdefault(follower.topic, FetchTopic(follower.topic, partitions=[]))
            is_slow = self._is_throttled(follower)
            topic.partitions.append(follower.request(self._throttle.most(most) if is_slow else most))
        wait_ms = config.integer("replica.fetch.wait.max.ms")
        if self._later:
            wait_ms = min(wait_ms, int((min(self._later.values()) - now) * 1000) + 1)
        return FetchRequest(
            replica_id=self._broker_id,
            max_wait_ms=wait_ms,
            min_bytes=config.integer("replica.fetch.min.bytes"),
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            session_id=self._session[0],
            session_epoch=self._session[1],
            topics=list(topics.values()),
            forgotten_topics_data=[
                ForgottenTopic(name, partitions=indexes)
                for name, indexes in by_topic(self._forgotten).items()
            ],
        )

    async def _take(self, connection: Connection, response: FetchResponse) -> None:
        over = perf_counter() + TURN_S
        has_records, committing = False, []
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic, data.partition_index
                follower = self._followers.get(key)
                if follower is None or not self._is_answer_for(follower):
                    continue
                outcome: Outcome | None = follower.answered(data)
                if outcome is Outcome.OUT_OF_RANGE:
                    outcome = await self._find_range(connection, follower)
                if outcome is Outcome.TRUNCATING:
                    assert follower.truncation is not None
                    outcome = await asyncio.shield(follower.truncation)
                    if not self._is_answer_for(follower):
                        continue
                if follower.owes_start:
                    self._moved.add(key)
                    if follower.committing is not None:
                        committing.append(follower.committing)
                has_records = has_records or bool(data.records)
                if outcome is Outcome.GOES_ON and (until := self._held_back(follower, data)) is not None:
                    self._leave_out(key)
                    self._later[key] = until
                elif outcome is Outcome.GOES_ON:
                    self._unsent[key] = None
                elif outcome is Outcome.FAILED:
                    self._leave_out(key)
                    self._later[key] = asyncio.get_running_loop().time() + self._backoff_s(follower.failures)
                if perf_counter() > over:
                    await asyncio.sleep(0)
                    over = perf_counter() + TURN_S
        if committing and not has_records:  # the next request can report them; otherwise it comes soon anyway
            await asyncio.wait(committing, timeout=PATIENCE_S)

    def _is_throttled(self, follower: Follower) -> bool:
        return follower.is_throttled and self._broker_id not in follower.record.isr

    def _held_back(self, follower: Follower, data: PartitionData) -> float | None:
        """The time when a throttled replica may fetch again; None if at once."""
        if not data.records or not self._is_throttled(follower):
            return None
        now = asyncio.get_running_loop().time()
        until = self._throttle.took(len(data.records), now)
        return until if until > now + LEAST_PAUSE_S else None

    def _backoff_s(self, failures: int) -> float:
        """The pause after this many failures; short at first, because the leader may not know yet that it leads."""
        return min(self._longest_pause_s(), FIRST_BACKOFF_S * 2.0 ** min(failures, 20))

    def _longest_pause_s(self) -> float:
        return max(self._config.integer("replica.fetch.backoff.ms"), 1) / 1000

    async def _find_range(self, connection: Connection, follower: Follower) -> Outcome | None:
        """Ask the leader for the start and end of its log, and continue within; None if no longer needed."""
        found = []
        for timestamp in (EARLIEST, LATEST):
            requested = ListOffsetsPartition(follower.index, follower.record.leader_epoch, timestamp)
            request = ListOffsetsRequest(
                self._broker_id, topics=[ListOffsetsTopic(follower.topic, [requested])]
            )
            response = await connection.call(list_offsets.API, None, request)
            if not self._is_answer_for(follower):
                return None
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                return follower.answered(PartitionData(follower.index, answer.error_code))
            found.append(answer.offset)
        return follower.begin_within(*found)

    def _is_answer_for(self, follower: Follower) -> bool:
        """Whether an answer is for it; not if it was removed or added anew after the request."""
        return self._followers.get(follower.key) is follower and follower.key not in self._unsent
