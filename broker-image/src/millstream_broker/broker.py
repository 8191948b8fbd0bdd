"""The broker as a whole: puts the parts together, starts and stops them, and follows what coordination says.

Start: bind the listeners (a port in use is found before anything is touched), lock and open the logs, join the
cluster, open what is missing, accept connections. Stop: close connections, finish groups, close the logs.

`follow` makes this broker what coordination's state says it is: it opens the logs of new partitions and lets go of
those of deleted topics. `metadata` is replaced only after that, so no client is sent to a partition that is not open
yet. Changes are followed one at a time, and always to the newest state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from . import api, background
from .admissions import Admissions
from .config import BrokerConfig, ConfigError, Listener, Source, TopicConfig, parse_address, parse_listeners
from .coordination import BrokerRecord, ClusterState, CoordinationError, PartitionRecord, TopicRecord
from .coordination.embedded import FILE_NAME as COORDINATION
from .coordination.embedded import EmbeddedCoordination
from .groups.driver import GroupDriver
from .groups.messages import GroupConfig
from .http import HttpServer, Response
from .log.config import LogConfig
from .log.files import FileCache
from .log.manager import Found, LogDirError, LogManager
from .metadata import Metadata
from .metrics import Stats
from .offsets_topic import OFFSETS_TOPIC, BrokerOffsetsTopic, offsets_topic_config
from .partition import Partition
from .producer_ids import ProducerIds
from .protocol.errors import ApiError, ErrorCode
from .server import Server

OPEN_FILES = 1024
"""The most segment and index files that are kept open; a quarter of what the system allows, where that is less."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The broker cannot start; the text says why, in one line."""


class Broker:
    """One broker. Everything is public to the handlers in `api`."""

    server: Server
    metadata: Metadata
    groups: GroupDriver
    coordination: EmbeddedCoordination
    producer_ids: ProducerIds

    def __init__(self, config: BrokerConfig) -> None:
        if config.text("zookeeper.connect"):
            raise ConfigError(
                f"zookeeper.connect={config.text('zookeeper.connect')}: clusters on ZooKeeper are not supported yet:"
                " leave it out, and the broker coordinates itself"
            )
        self.config = config
        self.broker_id = config.integer("broker.id")
        self.listeners = parse_listeners(config, "listeners")
        self.advertised = parse_listeners(config, "advertised.listeners")
        _check_listeners(config, self.listeners, self.advertised)
        self.http_address = parse_address("http.listener", config.text("http.listener"))
        dirs = config.strings("log.dirs") if config.is_set("log.dirs") else [config.text("log.dir")]
        self.log_dirs = [Path(path).absolute() for path in dirs]
        self.max_fetch_bytes = config.integer("fetch.max.bytes")
        self.stats = Stats()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.unopened: dict[tuple[str, int], str] = {}
        """Partitions that should be here and are not, and why."""
        self._lost: dict[tuple[str, int], uuid.UUID] = {}
        """Those among them that are in a log directory which is offline, with their topics' ids."""
        self.logs = LogManager(self.log_dirs, config_of=self._log_config_of, files=FileCache(_open_files()))
        self.admissions = Admissions(self)
        self.http = HttpServer(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        )
        self._wanted: ClusterState
        self._following = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = False

    # Start and stop

    async def start(self) -> str:
        """Start, and return the line that says so; raises StartError, and has then undone what it did."""
        try:
            return await self._start()
        except (StartError, ConfigError, LogDirError, CoordinationError) as error:
            await self._abandon()
            raise StartError(str(error)) from None
        except ApiError as error:
            await self._abandon()
            raise StartError(error.message) from None

    async def _start(self) -> str:
        api.load()
        self.server = Server(self)
        bound = [self._bind(listener) for listener in self.listeners]
        http_port = await self._start_http()
        self.logs.lock()
        if (reason := self.logs.offline.get(self.log_dirs[0])) is not None:
            raise StartError(
                f"{reason} It is the first of log.dirs and has {COORDINATION}: nothing goes without."
            )
        self.coordination = EmbeddedCoordination(self.log_dirs[0], self.logs.cluster_id)
        self.logs.identify(self.broker_id, self.coordination.cluster_id)
        found = await asyncio.to_thread(self.logs.start)
        if self.coordination.is_new and found:
            adopted = list(adopt(found, self.broker_id))
            log.warning(
                "coordination.json is missing: going on with the %d topics whose logs are here", len(adopted)
            )
            self.coordination.adopt(adopted)
        record = BrokerRecord(
            self.broker_id, tuple(self._advertised(bound)), cast(str | None, self.config["broker.rack"])
        )
        self._wanted = await self.coordination.join(record)
        self.coordination.changes = self._changed
        self.producer_ids = ProducerIds(self.coordination)
        self.groups = GroupDriver(_group_config(self.config), BrokerOffsetsTopic(self))
        self.metadata = Metadata(replace(self._wanted, topics={}))
        self._check_strays(found)
        if self.logs.offline:
            self._find_lost()
        await self.follow()
        self.groups.start()
        for work in background.work_of(self):
            self._spawn(work)
        self.server.start(bound)
        self._ready = True
        http = f"{self.http_address[0]}:{http_port}"
        where = ",".join(str(listener) for listener in record.listeners)
        return f"ready: broker.id={self.broker_id} listeners={where} http={http} cluster.id={self.metadata.cluster_id}"

    def _bind(self, listener: Listener) -> Listener:
        try:
            return self.server.bind(listener)
        except OSError as error:
            raise StartError(f"listeners={listener}: cannot listen there: {error.strerror}") from None

    async def _start_http(self) -> int:
        host, port = self.http_address
        try:
            return await self.http.start(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartError(f"http.listener={host}:{port}: cannot listen there: {reason}") from None

    def _advertised(self, bound: list[Listener]) -> list[Listener]:
        """Where clients are told to go: port 0 stands for the port that was bound, any address for this host."""
        by_name = {listener.name: listener for listener in self.advertised}
        told = []
        for listener in bound:
            one = by_name.get(listener.name, listener)
            host = socket.gethostname() if one.host in ("", "0.0.0.0", "::") else one.host
            told.append(replace(one, host=host, port=one.port or listener.port))
        return told

    async def stop(self) -> None:
        """Stop in order; everything that was acknowledged is in the logs."""
        self._ready = False
        self.server.close()
        await self.groups.close()
        await self.admissions.close()
        await self._end_tasks()
        await self.coordination.leave()
        await asyncio.to_thread(self.logs.close)
        await self.http.close()

    async def _abandon(self) -> None:
        """Undo a start that failed half-way; the logs are as they were found."""
        await self._end_tasks()
        if hasattr(self, "server"):
            self.server.close()
        await self.http.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What handlers ask

    def partition(self, topic: str, index: int) -> Partition:
        """Raises ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            if (reason := self.unopened.get((topic, index))) is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def is_offline(self, topic: str, index: int) -> bool:
        partition = self.partitions.get((topic, index))
        return (topic, index) in self.unopened if partition is None else partition.log.offline is not None

    def offline_partitions(self) -> int:
        return len(self.unopened) + sum(one.log.offline is not None for one in self.partitions.values())

    # Following coordination

    def _changed(self, state: ClusterState) -> None:
        self._wanted = state

    async def follow(self) -> None:
        """Return when this broker does what coordination's present state says."""
        async with self._following:
            state = self._wanted
            before = self.metadata.state
            if state is before:
                return
            self._follow_configs(state, before)
            gone = [one for one in self.partitions.values() if _id_of(state, one.topic) != one.topic_id]
            self._let_go(gone)
            new = []
            for topic in state.topics.values():
                if (
                    before.topics.get(topic.name) is not topic
                    or state.broker_configs is not before.broker_configs
                ):
                    new += self._follow_topic(topic, state)
            self.unopened = {key: why for key, why in self.unopened.items() if key[0] in state.topics}
            await self._bring_up(new)
            self.metadata = Metadata(state)
        if gone:
            self.groups.forget_topics({one.topic for one in gone})
        if gone or state.deleting:
            self._spawn(self._finish_deletions(list(state.deleting)))

    def _follow_configs(self, state: ClusterState, before: ClusterState) -> None:
        if state.broker_configs is before.broker_configs and before.topics:
            return
        self.config.set_dynamic(Source.DYNAMIC_CLUSTER, state.broker_configs.get(None, {}))
        self.config.set_dynamic(Source.DYNAMIC_BROKER, state.broker_configs.get(self.broker_id, {}))

    def _let_go(self, gone: list[Partition]) -> None:
        for partition in gone:
            del self.partitions[partition.topic, partition.index]
            partition.release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self.logs.delete(partition.topic, partition.index)

    def _follow_topic(self, topic: TopicRecord, state: ClusterState) -> list[tuple[TopicRecord, int]]:
        """Bring a topic's partitions here up to date; returns those that have to be opened."""
        new = []
        config = self._topic_config(topic)
        for index, record in enumerate(topic.partitions):
            if self.broker_id not in record.replicas:
                continue
            partition = self.partitions.get((topic.name, index))
            if partition is None:
                new.append((topic, index))
            else:
                partition.record = record
                partition.log.config = log_config(config, self.config)
                partition.configure(config)
        return new

    async def open_missing(self) -> None:
        """Try again to open what could not be opened: there may be space now."""
        async with self._following:
            topics = self.metadata.topics
            missing = [(topics[name], index) for name, index in self.unopened if name in topics]
            await self._bring_up([one for one in missing if not self._is_lost(*one)])
            for topic, index in missing:
                if topic.name == OFFSETS_TOPIC and (topic.name, index) in self.partitions:
                    self.groups.lead(index)

    async def _bring_up(self, new: list[tuple[TopicRecord, int]]) -> None:
        """Open or create the logs of these partitions; those where it fails are offline."""
        failed = await asyncio.to_thread(self._open, new) if new else {}
        for topic, index in new:
            key = topic.name, index
            if (reason := failed.get(key)) is not None:
                if self.unopened.get(key) != reason:
                    log.error("%s-%d is offline: %s", *key, reason)
                self.unopened[key] = reason
                continue
            self.unopened.pop(key, None)
            opened = cast(Any, self.logs.get(*key))
            self.partitions[key] = Partition(topic, index, opened, self._topic_config(topic))

    def _open(self, new: list[tuple[TopicRecord, int]]) -> dict[tuple[str, int], str]:
        """In a thread; returns why which could not be opened."""
        failed = {}
        for topic, index in new:
            try:
                if self._is_lost(topic, index):
                    raise LogDirError(
                        f"its log directory is offline: {', '.join(map(str, self.logs.offline))}"
                    )
                opened = self.logs.get_or_create(topic.name, index, topic.topic_id)
            except LogDirError as error:
                failed[topic.name, index] = str(error)
                continue
            opened.config = log_config(self._topic_config(topic), self.config)
        return failed

    def _find_lost(self) -> None:
        """Partitions that are not in the directories we have must be in those we have not: never made anew."""
        for topic in self._wanted.topics.values():
            for index, record in enumerate(topic.partitions):
                if self.broker_id in record.replicas and self.logs.get(topic.name, index) is None:
                    self._lost[topic.name, index] = topic.topic_id

    def _is_lost(self, topic: TopicRecord, index: int) -> bool:
        return self._lost.get((topic.name, index)) == topic.topic_id

    async def _finish_deletions(self, deleting: list[uuid.UUID]) -> None:
        await asyncio.to_thread(self.logs.remove_deleted)
        for topic_id in deleting:
            try:
                await self.coordination.topic_removed(topic_id)
            except CoordinationError as error:
                log.error("a deleted topic stays noted: %s", error)

    def _check_strays(self, found: list[Found]) -> None:
        """Logs that were found and belong to no topic: finish deletions, leave others alone."""
        for one in found:
            topic = self._wanted.topics.get(one.topic)
            if topic is not None and one.topic_id in (None, topic.topic_id):
                continue
            if topic is not None or one.topic_id in self._wanted.deleting:
                self.logs.delete(one.topic, one.partition)
            else:
                log.warning("the log %s-%d belongs to no topic: left alone", one.topic, one.partition)

    def _topic_config(self, topic: TopicRecord) -> TopicConfig:
        return TopicConfig(self.config, topic.config)

    def _log_config_of(self, topic: str) -> LogConfig:
        """For logs that are opened at start, before the cluster is joined."""
        stored = self.coordination.stored_topics().get(topic)
        return log_config(TopicConfig(self.config, stored.config if stored else {}), self.config)

    # HTTP

    def _healthz(self) -> Response:
        return Response(b"ok\n")

    def _readyz(self) -> Response:
        return Response(b"ready\n") if self._ready else Response(b"starting\n", 503)

    async def _metrics(self) -> Response:
        if not self._ready:
            return Response(b"starting\n", 503)
        from .metrics import exposition

        return Response(exposition(self), content_type="text/plain; version=0.0.4; charset=utf-8")


def _open_files() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILES if allowed == resource.RLIM_INFINITY else max(16, min(OPEN_FILES, allowed // 4))


def _id_of(state: ClusterState, topic: str) -> uuid.UUID | None:
    record = state.topics.get(topic)
    return None if record is None else record.topic_id


def _check_listeners(config: BrokerConfig, listeners: list[Listener], advertised: list[Listener]) -> None:
    names = {listener.name for listener in listeners}
    if not names:
        raise ConfigError("listeners=: expected at least one, as in PLAINTEXT://127.0.0.1:9092")
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(f"advertised.listeners={listener}: {listener.name} is not among `listeners`")
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                f"advertised.listeners={listener}: expected an address that clients can connect to"
            )
    inter_broker = config["inter.broker.listener.name"]
    if inter_broker is not None and inter_broker not in names:
        raise ConfigError(
            f"inter.broker.listener.name={inter_broker}: expected one of {', '.join(sorted(names))}"
        )


def adopt(found: list[Found], broker_id: int) -> list[TopicRecord]:
    """The topics that the logs in the folders belong to."""
    topics: dict[str, tuple[uuid.UUID, int]] = {}
    for one in found:
        topic_id, count = topics.get(one.topic, (one.topic_id or uuid.uuid4(), 0))
        topics[one.topic] = (topic_id, max(count, one.partition + 1))
    partition = PartitionRecord((broker_id,), broker_id, 0, (broker_id,))
    return [
        TopicRecord(
            name, topic_id, (partition,) * count, offsets_topic_config() if name == OFFSETS_TOPIC else {}
        )
        for name, (topic_id, count) in topics.items()
    ]


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """What a topic's configuration says to its logs."""
    cleanup_policy = ",".join(cast(list[str], topic["cleanup.policy"]))
    segment_ms = topic.integer("segment.ms")
    if "compact" in cleanup_policy:  # an active segment is not compacted
        segment_ms = min(segment_ms, topic.integer("max.compaction.lag.ms"))
    return LogConfig(
        segment_bytes=topic.integer("segment.bytes"),
        segment_ms=segment_ms,
        index_interval_bytes=topic.integer("index.interval.bytes"),
        index_size_max_bytes=topic.integer("segment.index.bytes"),
        retention_ms=topic.integer("retention.ms"),
        retention_bytes=topic.integer("retention.bytes"),
        max_message_bytes=topic.integer("max.message.bytes"),
        flush_messages=topic.integer("flush.messages"),
        flush_ms=topic.integer("flush.ms"),
        cleanup_policy=cleanup_policy,
        compression_type=cast(str, topic["compression.type"]),
        message_timestamp_type=cast(str, topic["message.timestamp.type"]),
        message_timestamp_before_max_ms=topic.integer("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=topic.integer("message.timestamp.after.max.ms"),
        delete_retention_ms=topic.integer("delete.retention.ms"),
        min_compaction_lag_ms=topic.integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=topic.integer("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=cast(float, topic["min.cleanable.dirty.ratio"]),
        producer_id_expiration_ms=broker.integer("producer.id.expiration.ms"),
    )


def _group_config(config: BrokerConfig) -> GroupConfig:
    names: Mapping[str, str] = {name: name.replace("_", ".") for name in GroupConfig.__dataclass_fields__}
    return GroupConfig(**{name: config.integer(key) for name, key in names.items()})
