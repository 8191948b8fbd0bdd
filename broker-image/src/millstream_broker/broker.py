"""The broker as a whole: puts the parts together, starts and stops them, and follows what coordination says.

Start: bind the listeners (a port in use is found before anything is touched), lock and open the logs, join the
cluster, open what is missing, accept connections. Stop: close connections, finish groups, close the logs.

A log directory that fails (KIP-112) takes its partitions offline and leaves the others alone. Without any, or without
the one that has the cluster's tree, the broker is of no use: `failure` says so and the process ends.

What it leads and follows is the `replicas`' business (`replication.manager`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from . import api, background
from .admissions import Admissions
from .cluster import Cluster
from .config import BrokerConfig, Listener, parse_address, parse_listeners
from .config_types import ConfigError
from .coordination import BrokerRecord, CoordinationError
from .coordination.coordination import Coordination
from .coordination.stores.ensemble import parse_connect
from .coordination.stores.file import FILE_NAME as COORDINATION
from .effective_configs import EffectiveConfigs
from .encoded_topics import EncodedTopics
from .generations import Generations
from .groups.driver import GroupDriver
from .groups.messages import GroupConfig
from .http import HttpServer, Response
from .log.config import LogConfig
from .log.directory import LogDir, LogDirError
from .log.files import FileCache
from .log.manager import LogManager
from .loop import stalls
from .metadata import Metadata
from .metrics import Stats, exposition
from .offsets_topic import BrokerOffsetsTopic
from .partition import Partition
from .producer_ids import ProducerIds
from .protocol.errors import ApiError, ErrorCode
from .replication.manager import ReplicaManager
from .replication.selector import RACK_AWARE
from .request_memory import RequestMemory
from .server import Server
from .topic_logs import log_config

if TYPE_CHECKING:
    from .controller.driver import ControllerDriver

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
    coordination: Coordination
    producer_ids: ProducerIds
    generations: Generations

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        connect = config.text("zookeeper.connect").strip()
        self.cluster = Cluster(self, parse_connect(connect) if connect else None)
        self.broker_id = config.integer("broker.id")
        self.configs = EffectiveConfigs(config, self.broker_id)
        self.listeners = parse_listeners(config, "listeners")
        self.advertised = parse_listeners(config, "advertised.listeners")
        _check_listeners(config, self.listeners, self.advertised)
        self.http_address = parse_address("http.listener", config.text("http.listener"))
        dirs = config.strings("log.dirs") if config.is_set("log.dirs") else [config.text("log.dir")]
        self.log_dirs = [Path(path).absolute() for path in dirs]
        self.max_fetch_bytes = config.integer("fetch.max.bytes")
        self.selects_by_rack = config["replica.selector.class"] == RACK_AWARE
        self.stats = Stats()
        self.stalls = stalls()
        self.replicas = ReplicaManager(self)
        self.partitions = self.replicas.partitions
        """What this broker leads: all that produces and fetches look at."""
        self.logs = LogManager(self.log_dirs, config_of=self._log_config_of, files=FileCache(_open_files()))
        self.request_memory = RequestMemory(config.integer("queued.max.request.bytes"))
        self.admissions = Admissions(self.request_memory, self.fail)
        self.encoded_topics = EncodedTopics(
            self.broker_id, lambda: self.metadata, lambda: frozenset(self.replicas.unopened)
        )
        self.http = HttpServer(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = False
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the broker cannot go on, once it cannot; then it wants to be stopped."""

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
        except asyncio.CancelledError:
            await self._abandon()
            raise

    async def _start(self) -> str:
        api.load()
        self.server = Server(self)
        bound = [self._bind(listener) for listener in self.listeners]
        http_port = await self._start_http()
        self.logs.lock()
        if self.cluster.needs_first_directory and (reason := self.logs.offline.get(self.log_dirs[0])):
            raise StartError(
                f"{reason} It is the first of log.dirs and has {COORDINATION}: nothing goes without."
            )
        self.coordination = await self.cluster.connect()
        self.logs.identify(self.broker_id, self.coordination.cluster_id)
        self.generations = Generations(self.broker_id, self.logs, self.coordination)
        await self.generations.load()
        found = await asyncio.to_thread(self.logs.start, self.generations.known)
        await self.generations.judge()
        await self.cluster.adopt(found)
        await self.generations.rise()
        record = BrokerRecord(
            self.broker_id,
            tuple(self._advertised(bound)),
            cast(str | None, self.config["broker.rack"]) or None,
            directory=self.generations.directory,
            unclean=not self.generations.vouches,
            ahead=self.generations.ahead,
        )
        self.replicas.wanted = await self.coordination.join(
            record, takes_over=not self.generations.is_older_copy
        )
        self.coordination.changes = self.cluster.changed
        self.producer_ids = ProducerIds(self.coordination)
        self.groups = GroupDriver(
            _group_config(self.config), BrokerOffsetsTopic(self), self.replicas.topic_id
        )
        self.metadata = Metadata(replace(self.replicas.wanted, brokers={}, topics={}))
        self._watch_directories()
        await self.follow()
        for task in background.start(self):
            self.own(task)
        self.server.start(bound, self.cluster.told)
        await self.cluster.begun()
        if self.controller is not None:  # then all that there is has been told
            self.replicas.report_strays()
        self.server.open()
        self._ready = True
        http = f"{self.http_address[0]}:{http_port}"
        where = ",".join(str(listener) for listener in record.listeners)
        return f"ready: broker.id={self.broker_id} listeners={where} http={http} cluster.id={self.metadata.cluster_id}"

    def _bind(self, listener: Listener) -> Listener:
        try:
            return self.server.bind(listener)
        except OSError as error:
            raise _cannot_listen("listeners", listener, replace(listener, port=0), error) from None

    async def _start_http(self) -> int:
        host, port = self.http_address
        try:
            return await self.http.start(host, port)
        except OSError as error:
            raise _cannot_listen("http.listener", f"{host}:{port}", f"{host}:0", error) from None

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
        await self.cluster.hand_over()
        self.server.close()
        await self.generations.stop()
        await self.cluster.leave()  # nobody has to wait for what remains to be done
        await self.groups.close()
        await self.admissions.close()
        await self._end_tasks()
        await self.replicas.close()
        await asyncio.to_thread(self.logs.close)
        await self.http.close()

    async def _abandon(self) -> None:
        """Undo a start that failed half-way; the logs are as they were found."""
        await self._end_tasks()
        await self.replicas.close()
        if hasattr(self, "server"):
            self.server.close()
        await self.cluster.leave()
        await self.http.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def own(self, task: asyncio.Task[None]) -> None:
        """Cancel it when the broker stops."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, why: str) -> None:
        """End the broker: it cannot go on."""
        if not self.failure.done():
            self.failure.set_result(why)

    # What handlers ask

    @property
    def controller(self) -> ControllerDriver | None:
        """Where this broker is the cluster's controller."""
        return self.cluster.controller

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers reach each other on: by default the first."""
        name = self.config["inter.broker.listener.name"]
        return name if isinstance(name, str) else self.listeners[0].name

    def partition(self, topic: str, index: int) -> Partition:
        """Raises ApiError NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise self.replicas.why_not_led(topic, index)
        return partition

    def is_offline(self, topic: str, index: int) -> bool:
        return self.replicas.is_offline((topic, index))

    async def follow(self) -> None:
        """Return when this broker does what coordination's present state says."""
        await self.replicas.follow()

    async def stop_replicas(
        self, stops: Iterable[tuple[str, int, int, bool]]
    ) -> dict[tuple[str, int], ErrorCode]:
        """See `ReplicaManager.stop_replicas`."""
        return await self.replicas.stop_replicas(stops)

    def _watch_directories(self) -> None:
        loop = asyncio.get_running_loop()

        def failed(home: LogDir) -> None:
            loop.call_soon_threadsafe(self._directory_failed, home)

        self.logs.watch(failed)

    def _directory_failed(self, home: LogDir) -> None:
        self.replicas.lose(self.logs.let_go(home), f"its log directory is offline: {home.path}")
        self.cluster.directory_failed()
        why = None
        if self.cluster.needs_first_directory and home.path == self.log_dirs[0]:
            why = f"It is the first of log.dirs and has {COORDINATION}: nothing goes without"
        elif not self.logs.dirs:
            why = "No log directory is left"
        if why is not None:
            reason = self.logs.offline[home.path]
            self.fail(f"{reason} {why}, so the broker ends. Start it again when the disk is in order.")

    def _log_config_of(self, topic: str) -> LogConfig:
        """For logs that are opened at start, before the cluster is joined."""
        stored = self.coordination.stored_topics().get(topic)
        return log_config(self.configs.of_stored(stored.config if stored else {}), self.config)

    # HTTP

    def _healthz(self) -> Response:
        return Response(b"ok\n")

    def _readyz(self) -> Response:
        return Response(b"ready\n") if self._ready else Response(b"starting\n", 503)

    async def _metrics(self) -> Response:
        if not self._ready:
            return Response(b"starting\n", 503)
        return Response(await exposition(self), content_type="text/plain; version=0.0.4; charset=utf-8")


def _cannot_listen(key: str, where: object, free: object, error: OSError) -> StartError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StartError(
        f"{key}={where}: cannot listen there: {reason}."
        f" Stop what does, or give another address; --override {key}={free} takes any free port."
    )


def _open_files() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILES if allowed == resource.RLIM_INFINITY else max(16, min(OPEN_FILES, allowed // 4))


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


def _group_config(config: BrokerConfig) -> GroupConfig:
    names: Mapping[str, str] = {name: name.replace("_", ".") for name in GroupConfig.__dataclass_fields__}
    return GroupConfig(**{name: config.integer(key) for name, key in names.items()})
