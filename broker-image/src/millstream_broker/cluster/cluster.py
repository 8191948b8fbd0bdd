"""This broker's membership in its cluster, perhaps as the only member: updates from the controller, and leaving.

A broker registers as *unclean* if it cannot vouch for its logs (`generations`), or a log is missing. The id
of its first log directory (`directory.id` in meta.properties, KIP-858) tells its own earlier incarnation from another
broker with the same id.

Before it stops, the controller moves its leaderships away (`controlled.shutdown.enable`). It repeats its request
while remaining replicas cannot lead some partitions yet, at most `controlled.shutdown.max.retries` times. Then it keeps
responding for a moment, so that clients learn the new leaders.
"""

from __future__ import annotations

import asyncio
import logging

from millstream_kafka.protocol import controlled_shutdown
from millstream_kafka.protocol.controlled_shutdown import ControlledShutdownRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest
from millstream_process import supervision

from ..config.config import BrokerConfig
from ..coordination import BrokerRecord, ClusterState
from ..coordination.coordination import Coordination
from ..log.manager import LogManager
from ..replication.manager import ReplicaManager
from ..replication.replicas import Replicas
from ..security.mechanisms.inter_broker import InterBroker
from .controllership import Controllership
from .forwarding import Forwarding
from .generations import Generations
from .liveness import Watches

SHUTDOWN_S = 10.0
"""How long one attempt at a controlled shutdown may take."""
BEGIN_S = 5.0
"""How long a controller's start may wait for its first decisions."""
NO_CONTROLLER_PAUSE_S = 0.2
LINGER_S = 0.3
"""How long to keep responding that another broker leads. On that response clients look up the new leader at once; after
a closed connection they may wait a second first (librdkafka). Longer than the retry backoff, which is 0.1 s in most
clients."""

log = logging.getLogger(__name__)


class Cluster:
    """All is called on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        coordination: Coordination,
        peers: InterBroker,
        logs: LogManager,
        replicas: Replicas,
        manager: ReplicaManager,
        controllership: Controllership,
        forwarding: Forwarding,
        generations: Generations,
    ) -> None:
        """From now on `coordination` reports changes to it."""
        self._config = config
        self._coordination = coordination
        self._logs = logs
        self._replicas = replicas
        self._manager = manager
        self._controllership = controllership
        self._forwarding = forwarding
        self._generations = generations
        self._watches = Watches(peers, coordination.process_ended)
        self._accepting = supervision.Tasks()
        self.updated = asyncio.Event()
        """Set once this broker has applied a controller's first update."""
        self._has_begun = False
        coordination.on_elected = controllership.elected
        coordination.on_deposed = controllership.deposed
        coordination.on_accepted = self._accepted
        coordination.on_older = generations.leap
        coordination.changes = self._changed

    # Updates

    def _accepted(self) -> None:
        async def rise() -> None:
            try:
                await self._generations.accepted()
            except ApiError as error:
                log.warning("cannot raise the generations of the log directories yet: %s", error)

        self._accepting.add(supervision.run("generations", rise()))

    def _changed(self, state: ClusterState) -> None:
        """Apply a change of the cluster by any broker."""
        self._watches.watch(self._watched(state))
        self._manager.changed(state)

    def _watched(self, state: ClusterState) -> list[BrokerRecord]:
        """The brokers that this one watches: the controller; or, if this is the controller, all others."""
        if state.controller_id == self._replicas.broker_id:
            return [
                broker for broker in state.brokers.values() if broker.broker_id != self._replicas.broker_id
            ]
        return [broker for broker in state.brokers.values() if broker.broker_id == state.controller_id]

    async def update(self, request: UpdateMetadataRequest) -> None:
        """Apply an update from the controller; raises ApiError."""
        await self._coordination.update(request)
        if not self._has_begun and self._logs.offline and not self._logs.inventory.is_known:
            self._manager.lost.find()
        await self._manager.follow()
        self.updated.set()

    async def begun(self) -> None:
        """Return once this broker has applied its first update and, as the controller, has elected the first
        leaders."""
        await self.updated.wait()
        if self._controllership.controller is not None:
            await self._controllership.controller.settled(BEGIN_S)
        self._has_begun = True

    # Leaving

    async def hand_over(self) -> None:
        """Move this broker's leaderships to others as far as possible; afterwards it does not register again."""
        await self._hand_over()
        self._coordination.withdraw()

    async def _hand_over(self) -> None:
        is_alone = self._replicas.metadata.brokers.keys() <= {self._replicas.broker_id}
        if is_alone or not self._config.flag("controlled.shutdown.enable"):
            return
        led = bool(self._replicas.partitions)
        pause_s = self._config.integer("controlled.shutdown.retry.backoff.ms") / 1000
        deadline = asyncio.get_running_loop().time() + SHUTDOWN_S
        attempts = self._config.integer("controlled.shutdown.max.retries") + 1
        while attempts:
            try:
                remaining = await self._ask_to_stop()
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or asyncio.get_running_loop().time() > deadline:
                    log.warning("stopping without moving leadership to other brokers: %s", error)
                    return
                await asyncio.sleep(NO_CONTROLLER_PAUSE_S)
                continue
            if not remaining:
                if led:
                    await asyncio.sleep(LINGER_S)
                return
            attempts -= 1
            log.info("%d partitions have no other replica that may lead them yet", remaining)
            if attempts:
                await asyncio.sleep(pause_s)

    async def _ask_to_stop(self) -> int:
        """The number of partitions that other replicas may lead but cannot lead yet; raises ApiError."""
        broker_id, epoch = self._replicas.broker_id, self._coordination.broker_epoch
        if not self._coordination.is_connected:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "ZooKeeper cannot be reached")
        if (controller := self._controllership.controller) is not None:
            return len(await controller.controlled_shutdown(broker_id, epoch, SHUTDOWN_S))
        request = ControlledShutdownRequest(broker_id, epoch)
        answer = await self._forwarding.ask_controller(controlled_shutdown.API, 3, request, SHUTDOWN_S)
        if answer.error_code:
            raise ApiError(ErrorCode.of(answer.error_code))
        return len(answer.remaining_partitions)

    async def leave(self) -> None:
        """Leave the cluster within a deadline, even if ZooKeeper is down."""
        await self._watches.close()
        await self._coordination.leave()
        await self._controllership.ended()
        await self._accepting.cancel()
