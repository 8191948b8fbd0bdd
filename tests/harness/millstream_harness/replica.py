"""Replicas of one broker without a cluster: the test plays coordination, the other brokers and the clock."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.config.config import BrokerConfig, Listener
from millstream_broker.coordination import BrokerRecord, ClusterState, Conflict, PartitionRecord, TopicRecord
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDir
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_broker.metadata.cache import Metadata
from millstream_broker.metadata.effective_configs import EffectiveConfigs
from millstream_broker.replication.alter_partition import AlterPartitionManager
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.fetch_session import Answer, FetchSettings
from millstream_broker.replication.fetch_sessions import Sessions
from millstream_broker.replication.manager import ReplicaManager
from millstream_broker.replication.replicas import Replicas
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_broker.runtime.stats import Stats
from millstream_broker.runtime.steps import to_the_end
from millstream_broker.security.acl.authorizer import Authorizer
from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.clients import FetchingClient
from millstream_harness.virtual_time import turns
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.errors import BrokerError, ConnectFailed, ConnectionLost
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

US, THEM, OTHERS = 1, 2, 3
"""Broker ids: the one under test, the one it replicates with, and one more."""
REPLICAS = (US, THEM, OTHERS)
NOW_MS = 1_700_000_000_000
"""Time of the records and of their appends."""


class Clock:
    """A loop's clock that moves only when the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and run the timers that are due."""
        await self.reach(self.now + seconds)

    async def reach(self, time: float) -> None:
        await turns()
        self.now = time
        await turns()

    async def is_awaited(self, time: float) -> None:
        """Return once a timer is set for this time. After work in a thread, a number of turns does not tell."""
        loop: Any = asyncio.get_running_loop()
        while not any(abs(one.when() - time) < 1e-6 for one in loop._scheduled):  # noqa: ASYNC110
            await asyncio.sleep(0)


class Waiter:
    """A `FetchWaiter` that records its calls: the number of new bytes, or `committed`."""

    def __init__(self) -> None:
        self.told: list[int | str] = []

    def advanced(self, size: int) -> None:
        self.told.append(size)

    def committed(self) -> None:
        self.told.append("committed")


# Records


def batch(*values: str, offset: int = 0, epoch: int = 0, producer_id: int = -1) -> memoryview:
    """Records as a leader's log has them."""
    records = [Record(None, value.encode(), NOW_MS) for value in values]
    sequence = -1 if producer_id < 0 else 0
    data = build_batch(
        records,
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=sequence,
        base_sequence=sequence,
    )
    return memoryview(bytearray(data))


class PlayedHome:
    """A log directory whose log starts the test commits."""

    def __init__(self) -> None:
        self.rolled: set[Log] = set()
        self.moved: set[Log] = set()
        self.errors: list[OSError] = []
        """What disks report; the next commits fail with `refusals`."""
        self.refusals: list[OSError] = []
        self.commits = 0

    def fail(self, error: OSError) -> None:
        self.errors.append(error)

    def check(self, error: OSError) -> None:
        self.errors.append(error)

    def checkpoint(self) -> None:
        pass

    def commit_starts(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.commits += 1
        while self.moved:
            log = self.moved.pop()
            log.start_is_durable(log.log_start_offset)


def open_log(folder: Path, *batches: memoryview, home: PlayedHome | None = None) -> Log:
    log = Log.open(folder, LogConfig(), clean=True, home=home)
    for one in batches:
        log.append_as_follower(one, now_ms=NOW_MS)
    return log


def fetched(
    index: int = 0, records: memoryview | None = None, high_watermark: int = 0, **more: Any
) -> PartitionData:
    """A leader's response for a partition."""
    return PartitionData(
        index, high_watermark=high_watermark, records=memoryview(b"") if records is None else records, **more
    )


def response(*partitions: PartitionData, session_id: int = 7, topic: str = "t") -> FetchResponse:
    told = [FetchableTopicResponse(topic, partitions=list(partitions))] if partitions else []
    return FetchResponse(session_id=session_id, responses=told)


def asked(request: FetchRequest) -> dict[tuple[str, int], FetchPartition]:
    return {(topic.topic, one.partition): one for topic in request.topics for one in topic.partitions}


def answered(sessions: Sessions, request: FetchRequest, client: FetchingClient, version: int) -> Answer:
    """The whole response of `Sessions.answer`, in one turn of the loop."""
    return to_the_end(sessions.answer(request, *client, version))


# The other brokers


class PlayedConnection:
    """`client.connection.Connection` to a broker that the test plays."""

    host, port = "leader", 9092

    def __init__(self, peers: PlayedPeers, broker: BrokerRecord) -> None:
        self._peers = peers
        self.broker_id = broker.broker_id
        self._waiting: set[asyncio.Future[Any]] = set()
        self.is_closed = False

    async def call(self, api: Api[Any, Any], version: int | None, request: Any) -> Any:
        if self.is_closed:
            raise ConnectionLost(self.host, self.port, "closed")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        self._peers.calls.append(Call(self, api, version, request, answer))
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    def abandon(self) -> None:
        self.is_closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ConnectionLost(self.host, self.port, "the connection was closed here"))

    async def close(self) -> None:
        self.abandon()


@dataclass
class Call:
    """A request without a response yet."""

    connection: PlayedConnection
    api: Api[Any, Any]
    version: int | None
    request: Any
    waiting: asyncio.Future[Any]

    def answer(self, response: Any) -> None:
        self.waiting.set_result(response)

    def fail(self, error: Exception) -> None:
        self.waiting.set_exception(error)


@dataclass
class PlayedPeers:
    """`InterBroker`: every broker accepts connections unless `refusal` is set, and the test responds for it."""

    broker_id: int = US
    present_epoch: int = 0
    refusal: BrokerError | None = None
    connections: list[tuple[BrokerRecord, str, Mapping[str, Any]]] = field(default_factory=list)
    """Attempted connections: broker, client id, limits."""
    calls: list[Call] = field(default_factory=list)

    def epoch(self) -> int:
        return self.present_epoch

    def refuse(self) -> None:
        self.refusal = ConnectFailed("leader", 9092, "Connection refused")

    async def connect(self, broker: BrokerRecord, client_id: str, **limits: Any) -> PlayedConnection:
        self.connections.append((broker, client_id, limits))
        if self.refusal is not None:
            raise self.refusal
        return PlayedConnection(self, broker)

    async def asked(self) -> Call:
        """The pending request."""
        await turns()
        assert len(self.calls) == 1, f"{len(self.calls)} requests"
        return self.calls.pop()

    async def is_asked_nothing(self) -> bool:
        await turns()
        return not self.calls


# Coordination


def broker_record(broker_id: int, epoch: int = 0) -> BrokerRecord:
    return BrokerRecord(
        broker_id, (Listener("PLAINTEXT", "127.0.0.1", 9000 + broker_id, "PLAINTEXT"),), epoch=epoch
    )


def led_by(
    leader: int, *replicas: int, epoch: int = 0, isr: tuple[int, ...] | None = None
) -> PartitionRecord:
    """A partition's record; by default its replicas are brokers 1 and 2, both in sync."""
    replicas = replicas or (US, THEM)
    return PartitionRecord(replicas, leader, epoch, replicas if isr is None else isr)


def topic(name: str = "t", *partitions: PartitionRecord, **config: str) -> TopicRecord:
    overrides = {key.replace("_", "."): value for key, value in config.items()}
    return TopicRecord(name, uuid.uuid4(), partitions or (led_by(US),), overrides)


def state(*topics: TopicRecord, alive: Collection[int] = REPLICAS, **more: Any) -> ClusterState:
    brokers = {one: broker_record(one) for one in alive}
    return ClusterState("cluster", brokers, {one.name: one for one in topics}, US, **more)


class PlayedCoordination:
    """Stores writes; each partition's record only if its version matches."""

    cluster_id = "cluster"
    broker_epoch = 0

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], PartitionRecord] = {}
        self.failure: Exception | None = None
        self.has_lost_data = False

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        if self.failure is not None:
            raise self.failure
        known = self.records.get((name, index))
        if known is not None and known.version != record.version:
            raise Conflict(f"{name}-{index} was changed meanwhile")
        self.records[name, index] = written = replace(record, version=record.version + 1)
        return written

    def lost_data(self) -> None:
        self.has_lost_data = True


class PlayedGroups:
    """Records the calls to the group coordinator."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def set_partition_count(self, count: int) -> None:
        self.told.append(("has partitions", count))

    def on_election(self, partition: int, leader_epoch: int) -> None:
        self.told.append(("lead", partition))

    def on_resignation(self, partition: int) -> None:
        self.told.append(("resign", partition))

    def on_topics_deleted(self, deleted: Mapping[str, uuid.UUID]) -> None:
        self.told.append(("forget", dict(deleted)))


class Replicating:
    """Broker 1 of a cluster, with open logs. It applies the state of `told`; nothing else happens."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        settings = BrokerConfig(
            {
                "broker.id": str(US),
                "log.dirs": str(folder),
                "zookeeper.connect": "nowhere:2181",
                **(config or {}),
            }
        )
        self.peers = PlayedPeers()
        self.coordination = PlayedCoordination()
        self.groups = PlayedGroups()
        self.stats = Stats()
        self.configs = EffectiveConfigs(settings, US)
        self.logs = LogManager(settings.strings("log.dirs"))
        self.logs.lock()
        self.logs.identify(US, self.coordination.cluster_id)
        self.logs.start()
        self.logs.watch(self._directory_failed)
        self.replicas = Replicas(US, state())
        self.replicas.metadata = Metadata(state())
        max_lag_s = settings.integer("replica.lag.time.max.ms") / 1000
        self.alter_partition = AlterPartitionManager(self.replicas, self.coordination, self.stats, max_lag_s)
        limits = FetchSettings(settings.integer("fetch.max.bytes"), 600.0, 1000, selects_by_rack=False)
        self.sessions = Sessions(self.replicas, self.alter_partition, limits, Authorizer())
        peers: Any = self.peers
        self.manager = ReplicaManager(
            self.replicas,
            self.logs,
            settings,
            self.configs,
            peers=peers,
            sessions=self.sessions,
            append_queue=AppendQueue(RequestMemory(1 << 20)),
            coordinators={OFFSETS_TOPIC: self.groups},
            unwritable=self.coordination.lost_data,
            raise_epoch=self.alter_partition.raise_epoch,
        )

    def limit(self, **changed: Any) -> None:
        """Set the limits of fetch responses; see `FetchSettings`."""
        self.sessions._settings = self.sessions._settings._replace(**changed)

    def _directory_failed(self, home: LogDir) -> None:
        self.manager.lose(self.logs.forget_directory(home), f"its log directory is offline: {home.path}")

    async def told(self, state: ClusterState) -> None:
        """Apply this state of the cluster, as coordination would report it."""
        self.replicas.receive_image(state)
        await self.manager.follow()

    async def settled(self) -> None:
        """Wait until the broker's background work is done."""
        while tasks := self.manager._removals:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        await self.alter_partition.close()
        await self.manager.close()
        self.logs.close()


@contextlib.asynccontextmanager
async def replicating(folder: Path, config: Mapping[str, str] | None = None) -> AsyncIterator[Replicating]:
    found = Replicating(folder, config)
    try:
        yield found
    finally:
        await found.close()
