"""Starts a broker, or leaves nothing behind. Only the command imports this module.

Bind the listeners (a port in use is found before anything is touched), lock and open the logs, join the cluster, open
what is missing, accept connections.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from millstream_kafka.protocol.errors import ApiError
from millstream_process.listening import host_port, why_not

from . import api
from .broker import Broker, Failure, StartError
from .cluster import joining
from .cluster.generations import Generations
from .config.addresses import Addresses, is_prepared
from .config.config import BrokerConfig, Listener
from .config.config_types import ConfigError
from .coordination import OVERRIDE, BrokerRecord, ClusterState, CoordinationError
from .coordination.coordination import Coordination
from .log.config import LogConfig
from .log.directory import LogDirError
from .log.files import FileCache
from .log.manager import LogManager
from .metadata.effective_configs import EffectiveConfigs
from .metadata.topic_logs import log_config
from .network.server import Listening, bind
from .observability.probes import Probes
from .security.mechanisms.listeners import check_files
from .topic_rules.internal_topics import ONE_REPLICA, InternalFactors

OPEN_FILES = 1024
"""Most segment and index files to keep open; a quarter of the system's limit, if that is less."""

if TYPE_CHECKING:
    from .security.tls.certificates import Certificates


async def start(config: BrokerConfig, open_shared: joining.OpenStore | None = None) -> tuple[Broker, str]:
    """Start a broker; returns it with the log line that says it serves. Raises ConfigError, StartError, after undoing
    everything.

    `open_shared` opens the cluster's store, instead of ZooKeeper as configured.
    """
    addresses = Addresses(config)
    certificates = await asyncio.to_thread(_certificates, config, addresses)
    await asyncio.to_thread(check_files, config, addresses.listeners)
    if open_shared is None:
        open_shared = joining.shared_store(config)
    is_single = open_shared is None
    configs = EffectiveConfigs(config, config.integer("broker.id"))
    logs = LogManager(_log_dirs(config), files=FileCache(_open_files()))
    api.load()
    async with AsyncExitStack() as undoing:
        try:
            bound = []
            for listener in addresses.listeners:
                bound.append(_bind(listener))
                undoing.callback(bound[-1][1].close)
            probes, failure = Probes(), Failure()
            undoing.push_async_callback(probes.server.close)
            http_port = await _serve_probes(probes, addresses)
            logs.lock()
            undoing.callback(logs.unlock)
            coordination = await failure.run_or_fail(joining.connect(open_shared, config, logs, failure.fail))
            undoing.push_async_callback(coordination.leave)
            joined = _join(config, addresses, bound, configs, logs, coordination, adopts=is_single)
            generations, state, record = await failure.run_or_fail(joined)
            broker = Broker(
                config,
                addresses,
                bound,
                configs,
                logs,
                coordination,
                generations,
                state,
                probes,
                failure,
                ONE_REPLICA if is_single else _internal_factors(config),
                certificates,
            )
            undoing.push_async_callback(broker.abandon)
            broker.watch_directories(failure, needed=logs.tree_in)
            await failure.run_or_fail(broker.run())
        except (ConfigError, LogDirError, CoordinationError) as error:
            raise StartError(str(error)) from None
        except ApiError as error:
            raise StartError(error.message) from None
        undoing.pop_all()
    listening = ",".join(str(listener) for listener in record.listeners)
    return broker, (
        f"ready: broker.id={record.broker_id} listeners={listening} http={host_port(addresses.http[0], http_port)}"
        f" cluster.id={coordination.cluster_id}"
    )


async def _join(
    config: BrokerConfig,
    addresses: Addresses,
    bound: list[Listening],
    configs: EffectiveConfigs,
    logs: LogManager,
    coordination: Coordination,
    *,
    adopts: bool,
) -> tuple[Generations, ClusterState, BrokerRecord]:
    """Open the logs and join the cluster with them. `adopts`: a new tree takes over the topics of these logs."""
    broker_id = config.integer("broker.id")

    def config_of(topic: str) -> LogConfig:
        """Configuration for opening a log, from the stored settings of its topic."""
        return log_config(configs.of_stored(coordination.stored_config(topic)), config)

    logs.identify(broker_id, coordination.cluster_id, moves=config.flag(OVERRIDE))
    logs.config_of = config_of
    generations = Generations(broker_id, logs, coordination)
    await generations.load()
    found = await asyncio.to_thread(logs.start, generations.known)
    await generations.judge()
    await generations.compare()
    if adopts:
        await joining.adopt(coordination, found, logs, broker_id)
    for _ in range(2):
        await generations.rise()
    record = BrokerRecord(
        broker_id,
        addresses.advertised(listener for listener, _ in bound),
        cast(str | None, config["broker.rack"]) or None,
        directory=generations.directory,
        unclean=not generations.vouches,
        ahead=generations.ahead,
    )
    state = await coordination.join(record, takes_over=not generations.is_older_copy)
    return generations, state, record


def _certificates(config: BrokerConfig, addresses: Addresses) -> Certificates | None:
    """The certificates of the listeners with TLS, None without any. Blocking. Raises ConfigError."""
    has_tls = any(listener.is_encrypted for listener in addresses.listeners)
    if not has_tls and not is_prepared(config, addresses.inter_broker):
        return None
    from .security.tls.certificates import Certificates  # its libraries take memory

    return Certificates(config, addresses.listeners, addresses.inter_broker)


def _bind(listener: Listener) -> Listening:
    try:
        return bind(listener)
    except OSError as error:
        raise _cannot_listen("listeners", listener, replace(listener, port=0), error) from None


async def _serve_probes(probes: Probes, addresses: Addresses) -> int:
    host, port = addresses.http
    try:
        return await probes.server.start(host, port)
    except OSError as error:
        raise _cannot_listen("http.listener", host_port(host, port), host_port(host, 0), error) from None


def _cannot_listen(key: str, value: object, free: object, error: OSError) -> StartError:
    hint = (
        f" --override {key}={free} takes any free port."
        if error.errno in (errno.EADDRINUSE, errno.EACCES)
        else ""
    )
    return StartError(f"{key}={value}: cannot listen there: {why_not(error)}{hint}")


def _log_dirs(config: BrokerConfig) -> list[Path]:
    dirs = config.strings("log.dirs") if config.is_set("log.dirs") else [config.text("log.dir")]
    return [Path(path).absolute() for path in dirs]


def _open_files() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILES if allowed == resource.RLIM_INFINITY else max(16, min(OPEN_FILES, allowed // 4))


def _internal_factors(config: BrokerConfig) -> InternalFactors:
    return InternalFactors(
        config.integer("offsets.topic.replication.factor"),
        config.integer("transaction.state.log.replication.factor"),
    )
