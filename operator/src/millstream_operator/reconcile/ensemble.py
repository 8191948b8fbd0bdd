"""The ZooKeeper servers of a Cluster that brings its own: their objects, and one restart at a time.

Their StatefulSet is updated OnDelete, like that of the brokers: Kubernetes would restart a server also while another
one is down, and three servers without two serve nobody. So a server is restarted only while all others are ready.
Those that serve nobody anyway are restarted without this question, since the change may mend them: one that has ended,
and any as long as no server is ready. One that is not ready for a moment, because a leader is elected, is neither.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..conditions import ConditionType, Reason
from ..kube import Manifest
from ..models import Cluster
from ..resources import zookeeper
from ..resources.owned import RELEASE, SPEC_HASH, selector
from ..services import Services
from .cluster import Said, StatefulSet, is_settled, ready_replicas
from .cluster_objects import Warn, claim_size_of, find_stateful_set, grow
from .objects import ensure
from .pods import is_ready, may_run
from .problem import Problem
from .refused_pods import why_no_pods
from .volumes import class_needs_owner

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
REVISION = "controller-revision-hash"  # a pod's label: the revision of its StatefulSet


class Server(NamedTuple):
    """A server's pod. ``stale``: has it yet to be restarted? ``running``: may its process live? ``uid``: names this
    pod, and none after it."""

    name: str
    uid: str
    ready: bool
    stale: bool
    running: bool = True


class Roll(NamedTuple):
    """What to do now: restart a server, or wait for what ``blocked`` says, or neither when all is done. ``remaining``:
    how many servers have yet to be restarted."""

    restart: Server | None = None
    blocked: str = ""
    remaining: int = 0

    @property
    def words(self) -> str:
        """What is done or waited for; "" when all is done."""
        if self.restart is None:
            return self.blocked
        return f"restarting {self.restart.name}; {self.remaining} to go"

    @property
    def said(self) -> Said:
        reason = Reason.RESTARTING if self.restart is not None else Reason.RESTART_BLOCKED
        return ConditionType.ROLLING_UPDATE, True, reason, self.words


def quorum(servers: int) -> int:
    """How many of an ensemble's servers have to serve."""
    return servers // 2 + 1


def plan_roll(servers: Sequence[Server], wanted: int) -> Roll:
    """The next step; ``wanted``: how many servers there are to be. Without a quorum there is something to wait for,
    though no server has to be restarted."""
    stale = [server for server in servers if server.stale]
    down = [server for server in servers if not server.ready]
    missing = wanted - len(servers) + len(down)
    for server in down:
        if server.stale and (not server.running or missing in (1, wanted)):
            return Roll(server, remaining=len(stale))
    if missing and (stale or missing > wanted - quorum(wanted)):
        names = ", ".join(server.name for server in down) or f"{len(servers)} of {wanted} pods are there"
        return Roll(blocked=f"waiting for ZooKeeper servers to be ready: {names}", remaining=len(stale))
    return Roll(stale[0], remaining=len(stale)) if stale else Roll()


def servers_of(live: StatefulSet, pods: Iterable[Manifest]) -> list[Server]:
    """The pods of an ensemble's StatefulSet whose status is up to date."""
    revision, name = (live.get("status") or {}).get("updateRevision"), live["metadata"]["name"]
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        if metadata["name"].rpartition("-")[0] != name:
            continue  # somebody else's, with our labels
        going = "deletionTimestamp" in metadata
        stale = not going and (metadata.get("labels") or {}).get(REVISION) != revision
        found.append(
            Server(metadata["name"], metadata["uid"], is_ready(pod) and not going, stale, may_run(pod))
        )
    return sorted(found)


def roll_ensemble(services: Services, cluster: Cluster) -> Roll:
    """Restart the next server that has to be, if one may be now; what was done, or is waited for."""
    live = find_stateful_set(services, cluster, zookeeper.name_of(cluster))
    if live is None:
        return Roll()
    if live["metadata"].get("generation") != (live.get("status") or {}).get("observedGeneration"):
        return Roll(blocked="waiting for Kubernetes to see the change of the ZooKeeper servers")
    ours = selector(cluster, zookeeper.COMPONENT)
    servers = servers_of(live, services.kube.list("v1", "Pod", cluster.namespace, ours))
    roll = plan_roll(servers, live["spec"]["replicas"])
    if roll.restart is not None:
        logger.info("Cluster %s: %s", cluster.name, roll.words)
        services.kube.delete("v1", "Pod", cluster.namespace, roll.restart.name, uid=roll.restart.uid)
    return roll


def apply_ensemble(
    services: Services, cluster: Cluster, warn: Warn, may_upgrade: Callable[[], bool] = lambda: True
) -> bool:
    """The ZooKeeper servers, where the Cluster brings its own; are all as they should be? Those that an earlier release
    of the operator made stay so until they may be upgraded; without a quorum they wait for nothing."""
    if cluster.spec.zookeeper is None or cluster.spec.zookeeper.replicas is None:
        return True
    name = zookeeper.name_of(cluster)
    live = find_stateful_set(services, cluster, name)
    manifests = zookeeper.objects(
        cluster,
        image=services.images.zookeeper,
        pull_policy=services.images.pull_policy,
        claim_size=claim_size_of(live),
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
        user_ids=services.images.user_ids,
        release=services.release,
    )
    for manifest in manifests:
        if manifest["kind"] == "StatefulSet":
            said = (live["metadata"].get("annotations") or {}) if live is not None else {}
            made_by = said.get(RELEASE)
            same_spec = said.get(SPEC_HASH) in (None, manifest["metadata"]["annotations"][SPEC_HASH])
            # one without a quorum has nothing to lose, and the upgrade may mend it
            ready, wanted = ready_replicas(live), cluster.spec.zookeeper.replicas
            serves = ready >= quorum(wanted)
            is_upgrade = live is not None and made_by != services.release and serves and same_spec
            if is_upgrade and not (ready >= wanted and may_upgrade()):
                continue
            live = ensure(services.kube, manifest)
        else:
            ensure(services.kube, manifest)
    size = cluster.spec.zookeeper.storage.size
    for server in range(1, cluster.spec.zookeeper.replicas + 1):
        grow(services, cluster, zookeeper.COMPONENT, f"data-{name}-{server}", size, warn)
    return live is not None and is_settled(live)


def why_no_zookeeper(services: Services, cluster: Cluster) -> Problem | None:
    """Why brokers cannot find their ZooKeeper, where that is what they wait for."""
    wanted = cluster.spec.zookeeper
    if wanted is None:
        return None
    if wanted.replicas is not None:
        live = find_stateful_set(services, cluster, zookeeper.name_of(cluster))
        ready, needed = ready_replicas(live), quorum(wanted.replicas)
        if ready >= needed:
            return None
        if problem := why_no_pods(services, live):
            return problem
        words = f"{ready} of {wanted.replicas} servers are ready, and {needed} are needed"
    else:
        servers = zookeeper.connect_of(cluster).partition("/")[0]
        if any(map(_listens, servers.split(","))):
            return None
        words = f"no server answers at {servers}"
    return Problem(Reason.ZOOKEEPER_NOT_READY, f"the brokers wait for ZooKeeper: {words}")


def _listens(server: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        socket.create_connection(server_address(server), CONNECT_TIMEOUT_S).close()
        return True
    return False


def server_address(server: str) -> tuple[str, int]:
    """HOST or HOST:PORT of ``zookeeper.connect``; an IPv6 address is in brackets. Raises ValueError."""
    host, _, port = server.strip().rpartition(":")
    return (host.strip("[]"), int(port)) if host else (port, zookeeper.CLIENT_PORT)
