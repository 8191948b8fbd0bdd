"""This broker's part in its cluster, of which it may be the only member: who it is there, its controllership, and how
it goes.

The cluster's tree is in ZooKeeper, or, for a broker by itself, in a file of the first log directory. Nothing else
differs: a broker by itself wins every election of a controller, and tells itself what it is to do.

A broker says of itself whether it is *unclean*: it cannot vouch for its logs (`generations`), or a log directory is
missing. The id of its first log directory (`directory.id` in meta.properties, KIP-858) tells its own earlier
incarnation from another broker that has the same id.

Before it stops, it asks the controller to have others lead (`controlled.shutdown.enable`): again and again while there
are partitions that a replica which stays cannot lead yet, `controlled.shutdown.max.retries` times at most. Then it goes
on answering for a moment, so that clients are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import supervision
from .coordination import BrokerRecord, ClusterState
from .coordination.coordination import Coordination
from .coordination.stores.ensemble import Ensemble
from .coordination.stores.file import FILE_NAME, FileStore
from .coordination.takeover import find_old, take_over
from .forwarding import ask_controller
from .inter_broker import InterBroker
from .liveness import Watches
from .own_connection import Caller, OwnConnection
from .protocol import controlled_shutdown
from .protocol.controlled_shutdown import ControlledShutdownRequest
from .protocol.errors import ApiError, ErrorCode
from .topic_logs import adopted

if TYPE_CHECKING:
    from .broker import Broker
    from .controller.driver import ControllerDriver
    from .controller.store import ControllerStore
    from .log.manager import Found
    from .protocol.update_metadata import UpdateMetadataRequest

SHUTDOWN_S = 10.0
"""How long one attempt at a controlled shutdown may take."""
BEGIN_S = 5.0
"""How long a controller's start may wait for what there is to be decided first."""
NO_CONTROLLER_PAUSE_S = 0.2
GIVE_UP_PAUSE_S = 5.0
"""Until the controller has moved them, partitions go on failing: that is no reason to ask again."""
LINGER_S = 0.3
"""So long clients are still answered that somebody else leads now, when that is so. A client that is told asks at once
who; one that only sees its connection go may let a second pass first (librdkafka). It is longer than the pause before
a request is sent again, by default 0.1 s in most clients."""

log = logging.getLogger(__name__)


class Cluster:
    """`Broker.cluster`. All is called on the loop."""

    coordination: Coordination

    def __init__(self, broker: Broker, ensemble: Ensemble | None) -> None:
        """`ensemble` None: the tree is in a file."""
        self._broker = broker
        self._ensemble = ensemble
        self._tasks: set[asyncio.Task[Any]] = set()
        self.told = asyncio.Event()
        """Set when this broker does what a controller has told it of the cluster for the first time."""
        self._has_begun = False
        self._gave_up_at = float("-inf")
        self.peers: InterBroker
        """How it reaches the other brokers; when it is connected."""
        self._watches: Watches
        self.controller: ControllerDriver | None = None
        """While this broker is the controller."""

    # Joining

    async def connect(self) -> Coordination:
        """Wait for ZooKeeper, however long; raises CoordinationError."""
        known = self._broker.logs.cluster_id
        if self._ensemble is None:
            self.coordination = await self._in_file(known)
        else:
            from .coordination.stores.zookeeper import ZooKeeperStore

            timeout_s = self._broker.config.integer("zookeeper.session.timeout.ms") / 1000
            self.coordination = Coordination(ZooKeeperStore(self._ensemble, timeout_s), known)
        self.coordination.on_elected = self._elected
        self.coordination.on_deposed = self._deposed
        self.coordination.on_accepted = self._accepted
        await self.coordination.connect()
        self.peers = InterBroker(
            self._broker.broker_id,
            self._broker.inter_broker_listener,
            self.coordination.secret,
            lambda: self.coordination.broker_epoch,
        )
        self._watches = Watches(self.peers, self.coordination.process_ended)
        return self.coordination

    async def _in_file(self, known_cluster_id: str | None) -> Coordination:
        home = self._broker.logs.dirs[0]
        old = find_old(home.path)
        nodes = FileStore(home.path / FILE_NAME)
        nodes.failed = home.check
        nodes.fatal = self._broker.fail
        nodes.start()
        if old is not None:
            await take_over(nodes, old, self._broker.broker_id)
            known_cluster_id = known_cluster_id or old.cluster_id
        return Coordination(nodes, known_cluster_id)

    async def adopt(self, found: Iterable[Found]) -> None:
        """Go on with topics whose logs are here though the file is not. Raises CoordinationError."""
        if self._ensemble is None:
            await self.coordination.adopt(lambda: adopted(found, self._broker.logs, self._broker.broker_id))

    @property
    def needs_first_directory(self) -> bool:
        """Whether the tree is in it."""
        return self._ensemble is None

    async def _reach(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        if broker.broker_id == self._broker.broker_id:
            return OwnConnection(self._broker, broker.epoch)
        return await self.peers.connect(broker, client_id, timeout_s=timeout_s)

    def directory_failed(self) -> None:
        """What was in there cannot be led any more."""
        if self.coordination.broker_epoch >= 0:
            self.coordination.lost_data()

    def _accepted(self) -> None:
        async def rise() -> None:
            try:
                await self._broker.generations.accepted()
            except ApiError as error:
                log.warning("the generations of the log directories rise later: %s", error)

        self._own(supervision.run("generations", rise()))

    def cannot_write(self) -> None:
        """A disk takes no records, being full perhaps: others had better lead, and this broker catch up when it can."""
        now = asyncio.get_running_loop().time()
        if now > self._gave_up_at + GIVE_UP_PAUSE_S:
            self._gave_up_at = now
            log.warning("records cannot be written: others are to lead what this broker leads")
            self.directory_failed()

    def changed(self, state: ClusterState) -> None:
        """`Coordination.changes`: whoever made the change, it is followed."""
        self._watches.watch(self._watched(state))
        self._broker.replicas.changed(state)

    def _watched(self, state: ClusterState) -> list[BrokerRecord]:
        """The brokers that this one watches: the controller; all others where this is the controller."""
        if state.controller_id == self._broker.broker_id:
            return [one for one in state.brokers.values() if one.broker_id != self._broker.broker_id]
        return [one for one in state.brokers.values() if one.broker_id == state.controller_id]

    async def update(self, request: UpdateMetadataRequest) -> None:
        """Do what the controller tells; raises ApiError."""
        await self.coordination.update(request)
        if not self._has_begun and self._broker.logs.offline:
            self._broker.replicas.find_lost()
        await self._broker.follow()
        self.told.set()

    async def begun(self) -> None:
        """Return when this broker does what it was told and, as the controller, has elected the first leaders."""
        await self.told.wait()
        if self.controller is not None:
            await self.controller.settled(BEGIN_S)
        self._has_begun = True

    # The controller

    def _elected(self, store: ControllerStore) -> None:
        from .controller.driver import ControllerDriver

        self.controller = ControllerDriver(self._broker.broker_id, self._reach, self._broker.config, store)
        self.controller.start()

    def _deposed(self) -> None:
        if self.controller is not None:
            driver, self.controller = self.controller, None
            self._own(supervision.run("controller's end", driver.stop()))

    def _own(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Leaving

    async def hand_over(self) -> None:
        """Have others lead what this broker leads, as far as they can; then it does not register again."""
        await self._hand_over()
        self.coordination.withdraw()

    async def _hand_over(self) -> None:
        broker = self._broker
        if not broker.config.flag("controlled.shutdown.enable") or broker.metadata.brokers.keys() <= {
            broker.broker_id
        }:
            return
        led = bool(broker.partitions)
        pause_s = broker.config.integer("controlled.shutdown.retry.backoff.ms") / 1000
        deadline = asyncio.get_running_loop().time() + SHUTDOWN_S
        attempts = broker.config.integer("controlled.shutdown.max.retries") + 1
        while attempts:
            try:
                remaining = await self._ask_to_stop()
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or asyncio.get_running_loop().time() > deadline:
                    log.warning("stopping without handing over what this broker leads: %s", error)
                    return
                await asyncio.sleep(NO_CONTROLLER_PAUSE_S)
                continue
            if not remaining:
                if led:
                    await asyncio.sleep(LINGER_S)
                return
            attempts -= 1
            log.info("%d partitions have nobody else to lead them yet", remaining)
            if attempts:
                await asyncio.sleep(pause_s)

    async def _ask_to_stop(self) -> int:
        """How many partitions others may lead, and cannot yet; raises ApiError."""
        broker_id, epoch = self._broker.broker_id, self.coordination.broker_epoch
        if not self.coordination.is_connected:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "ZooKeeper cannot be reached")
        if self.controller is not None:
            return len(await self.controller.controlled_shutdown(broker_id, epoch, SHUTDOWN_S))
        request = ControlledShutdownRequest(broker_id, epoch)
        answer = await ask_controller(self._broker, controlled_shutdown.API, 3, request, SHUTDOWN_S)
        if answer.error_code:
            raise ApiError(ErrorCode.of(answer.error_code))
        return len(answer.remaining_partitions)

    async def leave(self) -> None:
        """Within a deadline, though ZooKeeper is away."""
        if hasattr(self, "_watches"):
            await self._watches.close()
        if hasattr(self, "coordination"):
            await self.coordination.leave()
        await asyncio.gather(*self._tasks, return_exceptions=True)
