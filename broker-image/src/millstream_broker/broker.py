"""The broker as a whole: assembles its parts, runs and stops them. Only `startup` and the command import it.

Stop: close connections, finish groups, close the logs.

A log directory that fails (KIP-112) takes its partitions offline and leaves the others alone. Without any directory, or
without the directory that holds the cluster's tree, the broker cannot continue: `failure` reports this and the process
ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import fields
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeVar

from millstream_process import supervision
from millstream_process.loop import stalls

from .administration.configs import ConfigAdministrator
from .administration.producer_ids import ProducerIds
from .administration.topics import TopicAdministrator
from .api import parts
from .api.marker_writes import MarkerWrites
from .background import background
from .cluster.cluster import Cluster
from .cluster.controllership import Controllership
from .cluster.forwarding import Forwarding
from .cluster.generations import Generations
from .cluster.lost_data import LostData
from .cluster.own_connection import OwnConnection
from .config.addresses import Addresses
from .config.config import BrokerConfig
from .config.config_keys import ALLOWS_WITHOUT_ACL, AUTHORIZER, SUPER_USERS
from .config.config_types import principals_of
from .controller.reach import Caller
from .coordination import BrokerRecord, ClusterState, CoordinationError
from .coordination.coordination import Coordination
from .coordination.stores.file import FILE_NAME as COORDINATION
from .coordinator.internal_topic import BrokerInternalTopic
from .groups.driver import GroupDriver
from .groups.messages import GroupConfig
from .log.directory import LogDir
from .log.manager import LogManager
from .log.timestamp_lookups import LookUps
from .metadata.effective_configs import EffectiveConfigs
from .metadata.encoded_topics import EncodedTopics
from .network.handlers import Bound, Handlers
from .network.server import Listening, Server
from .observability.metrics import Metrics
from .observability.probes import Probes
from .replication.alter_partition import AlterPartitionManager
from .replication.append_queue import AppendQueue
from .replication.fetch_session import FetchSettings
from .replication.fetch_sessions import Sessions
from .replication.manager import ReplicaManager
from .replication.replicas import Replicas
from .replication.selector import RACK_AWARE
from .replication.transactional_appends import TransactionalAppends
from .runtime.request_memory import RequestMemory
from .runtime.stats import Stats
from .security.acl.authorizer import AclAuthorizer, Authorizer
from .security.audit.opening import audit_trail
from .security.audit.trail import AuditTrail
from .security.mechanisms.inter_broker import BrokerAuthenticator, InterBroker
from .security.mechanisms.listeners import mechanisms_of
from .security.quotas.connection_rates import BROKER, ConnectionRates
from .security.quotas.quotas import Quotas
from .security.quotas.rates import Windows
from .security.quotas.stored import follow
from .security.scram_credentials import ScramCredentials
from .topic_rules.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, InternalFactors
from .transactions.driver import TransactionDriver
from .transactions.markers import TransactionMarkerSender
from .transactions.messages import TransactionConfig
from .transactions.peers import Peers
from .transactions.verifier import CoordinatorVerifier

if TYPE_CHECKING:
    from .security.tls.certificates import Certificates

T = TypeVar("T")
S = TypeVar("S", GroupConfig, TransactionConfig)

log = logging.getLogger(__name__)


class StartError(Exception):
    """The broker cannot start; the message says why, in one line."""


class Failure:
    """Set with the reason once the broker cannot continue and must be stopped."""

    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def fail(self, why: str) -> None:
        """Later reasons are ignored."""
        if not self.reason.done():
            self.reason.set_result(why)

    async def run_or_fail(self, work: Coroutine[Any, Any, T]) -> T:
        """Result of a part of the start. Raises StartError once the broker has failed, and whatever the work raises."""
        working = await supervision.ended(work, stopped=self.reason)
        if self.reason.done():
            raise StartError(self.reason.result())
        return working.result()


class Broker:
    """One broker's parts, assembled once it has joined its cluster.

    Handlers take parts of it (`api.parts`).
    """

    def __init__(
        self,
        config: BrokerConfig,
        addresses: Addresses,
        bound: list[Listening],
        configs: EffectiveConfigs,
        logs: LogManager,
        coordination: Coordination,
        generations: Generations,
        state: ClusterState,
        probes: Probes,
        failure: Failure,
        factors: InternalFactors,
        certificates: Certificates | None,
    ) -> None:
        """`state` is the cluster when this broker joined.

        `certificates` are those of the listeners with TLS, if there are any.
        """
        broker_id = config.integer("broker.id")
        self.config = config
        self.configs = configs
        self.logs = logs
        self.coordination = coordination
        self.inter_broker_listener = addresses.inter_broker
        self.failure = failure.reason
        self.stats = Stats()
        self.audit_trail = audit_trail(config, (listener for listener, _ in bound))
        self.authorizer = _authorizer(config, coordination, self.audit_trail)
        self.quotas = _quotas(config, coordination)
        self.replicas = Replicas(broker_id, state)
        served: dict[int, Bound] = {}
        self.handlers: Handlers = served
        self._generations = generations
        self._probes = probes
        self._tasks: list[asyncio.Task[None]] = []
        self.request_memory = memory = RequestMemory(config.integer("queued.max.request.bytes"))
        self._lost_data = LostData(coordination)
        self._certificates = certificates
        encrypted = {} if certificates is None else certificates.by_listener
        peers = InterBroker(
            broker_id,
            self.inter_broker_listener,
            coordination.secret,
            lambda: coordination.broker_epoch,
            encrypted,
        )

        # Administration
        self.topic_administrator = TopicAdministrator(config, configs, self.replicas, coordination)
        self.config_administrator = ConfigAdministrator(
            config, configs, self.replicas, coordination, certificates
        )
        self.producer_ids = ProducerIds()
        self.scram_credentials = ScramCredentials(coordination)
        offsets = BrokerInternalTopic(
            OFFSETS_TOPIC,
            self.replicas,
            self.topic_administrator,
            timeout_ms=config.integer("offsets.commit.timeout.ms"),
            factor=factors.offsets,
            factor_key="offsets.topic.replication.factor",
        )
        self.groups = GroupDriver(_settings_of(GroupConfig, config), offsets, self.replicas.topic_id)

        async def reach(broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
            if broker.broker_id == broker_id:
                return OwnConnection(self.handlers, self.inter_broker_listener, broker_id, broker.epoch)
            return await peers.connect(broker, client_id, timeout_s=timeout_s)

        transaction_log = BrokerInternalTopic(
            TRANSACTIONS_TOPIC,
            self.replicas,
            self.topic_administrator,
            timeout_ms=config.integer("request.timeout.ms"),
            factor=factors.transactions,
            factor_key="transaction.state.log.replication.factor",
        )
        coordinating = Peers(reach, f"transactions-of-{broker_id}")
        self.transactions = TransactionDriver(
            _settings_of(TransactionConfig, config),
            transaction_log,
            self.producer_ids,
            TransactionMarkerSender(self.replicas, coordinating),
        )
        self.transaction_verifier = CoordinatorVerifier(self.replicas, self.transactions, coordinating)
        self.marker_writes = MarkerWrites(self.groups, self.replicas)

        # Reading and writing
        self._append_queue = AppendQueue(memory, failure.fail)
        self.transactional_appends = TransactionalAppends(memory, self.transaction_verifier)
        self.look_ups = LookUps()
        self._alter_partition = AlterPartitionManager(
            self.replicas,
            coordination,
            self.stats,
            config.integer("replica.lag.time.max.ms") / 1000,
            lambda partition, stored: logs.states.note(
                partition.topic, partition.topic_id, partition.index, stored.leader_epoch, stored.version
            ),
        )
        self.fetch_sessions = Sessions(
            self.replicas, self._alter_partition, _fetch_settings(config), self.authorizer
        )
        self.replica_manager = ReplicaManager(
            self.replicas,
            logs,
            config,
            configs,
            peers=peers,
            sessions=self.fetch_sessions,
            append_queue=self._append_queue,
            coordinators={OFFSETS_TOPIC: self.groups, TRANSACTIONS_TOPIC: self.transactions},
            unwritable=self._lost_data.cannot_write,
            raise_epoch=self._alter_partition.raise_epoch,
        )
        self.encoded_topics = EncodedTopics(
            broker_id, lambda: self.replicas.metadata, lambda: frozenset(self.replicas.unopened)
        )

        # Membership in the cluster
        self.forwarding = Forwarding(self.replicas, peers)
        self.controllership = Controllership(broker_id, config, reach, factors)
        self.cluster = Cluster(
            config,
            coordination,
            peers,
            logs,
            self.replicas,
            self.replica_manager,
            self.controllership,
            self.forwarding,
            generations,
        )

        # Requests of clients
        served.update(parts.bind(self, self.audit_trail))
        mechanisms = mechanisms_of(
            config,
            [listener for listener, _ in bound],
            self.inter_broker_listener,
            self.scram_credentials,
            coordination.secret,
            BrokerAuthenticator(coordination.secret, broker_id),
        )
        self.server = Server(
            config,
            bound,
            self.handlers,
            self.stats,
            memory,
            logs.read_failed,
            mechanisms,
            self.quotas,
            self._connection_rates(bound),
            encrypted,
            self.audit_trail,
        )
        self._stalls = stalls()
        self._metrics = Metrics(
            self.stats,
            self._stalls,
            self.server.connections,
            memory,
            self.replicas,
            logs,
            self.groups,
            self.transactions,
            self.controllership,
            coordination,
            self.quotas,
            self.audit_trail,
            certificates.states if certificates is not None else tuple,
        )

    def _connection_rates(self, bound: list[Listening]) -> ConnectionRates:
        config = self.config

        def limit_of(listener: str | None) -> int:
            of_listener = config if listener is BROKER else config.of_listener(listener)
            return of_listener.integer("max.connection.creation.rate")

        protected = self.inter_broker_listener if len(bound) > 1 else None
        return ConnectionRates(self.quotas, _windows(config, "quota.window"), limit_of, protected)

    def watch_directories(self, failure: Failure, needed: Path | None) -> None:
        """Handle a failed log directory: its data is lost; without the `needed` one, or any, the broker fails."""
        loop, logs = asyncio.get_running_loop(), self.logs

        def lost(home: LogDir) -> None:
            self.replica_manager.lose(
                logs.forget_directory(home), f"its log directory is offline: {home.path}"
            )
            self._lost_data.directory_failed()
            why = None
            if home.path == needed:
                why = f"It has {COORDINATION}: the broker cannot start without it"
            elif not logs.dirs:
                why = "No log directory is left"
            if why is not None:
                reason = logs.offline[home.path]
                failure.fail(f"{reason} {why}, so the broker ends. Start it again when the disk is in order.")

        def failed(home: LogDir) -> None:
            loop.call_soon_threadsafe(lost, home)

        logs.watch(failed)

    async def run(self) -> None:
        """Return once clients are served."""
        await self.replica_manager.follow()
        self._tasks += background.start(
            self.config,
            self.logs,
            self.replicas,
            self.replica_manager,
            self._alter_partition,
            self._generations,
            self.settle_strays,
        )
        if self._certificates is not None:
            self._tasks.append(supervision.keep("certificates", self._certificates.watch))
        self.server.start(self.cluster.updated)
        await self.cluster.begun()
        await self.settle_strays()
        self.server.open()
        self._stalls.are_named = True
        self._probes.ready(self._metrics)

    async def settle_strays(self) -> None:
        """Make strays of the logs that fit no topic in coordination, if it can be read; remove outdated ones."""
        try:
            await self.replica_manager.settle_strays(self.coordination.stored_topics)
        except CoordinationError as error:
            log.warning("cannot look for strays yet: %s", error)
        retention_ms = self.config.integer("log.stray.retention.ms")
        await asyncio.to_thread(self.logs.remove_outdated_strays, retention_ms, int(time() * 1000))

    async def drain(self, stop_now: asyncio.Event) -> None:
        """Serve for another `shutdown.drain.ms`, not ready, so that load balancers send no more clients here.

        Ends early if the broker fails, or when `stop_now` is set.
        """
        self._probes.stopping()
        stopping_now = asyncio.create_task(stop_now.wait())
        ends: set[asyncio.Future[Any]] = {stopping_now, self.failure}
        seconds = self.config.integer("shutdown.drain.ms") / 1000
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopping_now.cancel()

    async def stop(self) -> None:
        """Stop cleanly; everything that was acknowledged is in the logs."""
        self._probes.stopping()
        await self.cluster.hand_over()
        self.server.close()
        await self.server.finish()
        await self._generations.stop()
        await self.cluster.leave()  # the cluster need not wait for the remaining steps
        await self.transactions.close()
        await self.marker_writes.close()
        await self.groups.close()
        await self._append_queue.close()
        await self._end()
        await asyncio.to_thread(self.logs.close)
        await self._probes.server.close()

    async def abandon(self) -> None:
        """End without a clean stop, as after a start that failed half-way; the logs keep what they have."""
        self.server.close()
        await self.server.finish()
        await self.transactions.close()
        await self.marker_writes.close()
        await self.groups.close()
        await self._append_queue.close()
        await self._end()
        await self.cluster.leave()
        self.logs.unlock()
        await self._probes.server.close()

    async def _end(self) -> None:
        if self.audit_trail.log is not None:
            await self.audit_trail.log.close()
        self.look_ups.close()
        await supervision.cancel(self._tasks)
        await self._alter_partition.close()
        await self.replica_manager.close()


def _quotas(config: BrokerConfig, coordination: Coordination) -> Quotas:
    windows, of_mutations = _windows(config, "quota.window"), _windows(config, "controller.quota.window")
    quotas = Quotas(windows, of_mutations, lambda: int(monotonic() * 1000))
    follow(quotas, coordination)
    return quotas


def _windows(config: BrokerConfig, keys: str) -> Windows:
    return Windows(config.integer(f"{keys}.num"), config.integer(f"{keys}.size.seconds") * 1000)


def _fetch_settings(config: BrokerConfig) -> FetchSettings:
    return FetchSettings(
        max_bytes=config.integer("fetch.max.bytes"),
        max_wait_s=config.integer("connections.max.idle.ms") / 1000,
        max_sessions=config.integer("max.incremental.fetch.session.cache.slots"),
        selects_by_rack=config["replica.selector.class"] == RACK_AWARE,
    )


def _authorizer(config: BrokerConfig, coordination: Coordination, trail: AuditTrail) -> Authorizer:
    """The authoriser, with the access rules of now and of every change."""
    if not config.text(AUTHORIZER):
        return Authorizer()
    authorizer = AclAuthorizer(
        principals_of(config.text(SUPER_USERS)),
        allows_without_acl=config.flag(ALLOWS_WITHOUT_ACL),
        trail=trail,
    )
    authorizer.replace_all(coordination.acls.rules)
    authorizer.report_lock_out()
    coordination.acls.on_changed, coordination.acls.on_loaded = authorizer.replace, authorizer.replace_all
    return authorizer


def _settings_of(kind: type[S], config: BrokerConfig) -> S:
    """A coordinator's settings: fields named as the keys of the configuration."""
    names: Mapping[str, str] = {each.name: each.name.replace("_", ".") for each in fields(kind)}
    return kind(**{name: config.integer(key) for name, key in names.items()})
