"""The ZooKeeper servers of a Cluster that brings its own: their objects, and one restart at a time.

Their StatefulSet is updated OnDelete, like that of the brokers: Kubernetes would restart a server also while another
one is down, and three servers without two serve nobody. So a server is restarted only while all others are ready.
Those that serve nobody anyway are restarted without this question, since the change may mend them: one that has ended,
and any as long as no server is ready. One that is not ready for a moment, because a leader is elected, is neither.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..conditions import Reason
from ..kube import Manifest
from ..models import Cluster
from ..resources import zookeeper
from ..resources.owned import RELEASE, SPEC_HASH, selector
from ..services import Services
from .cluster import StatefulSet, is_seen, is_settled, ready_replicas, rolling_pods
from .cluster_objects import Warn, claim_size_of, find_stateful_set, grow, restart
from .objects import ensure
from .problem import Problem
from .refused_pods import why_no_pods
from .rolling import TEMPLATE_CHANGED, Roll, RollingPod, restart_reasons
from .volumes import class_needs_owner

CONNECT_TIMEOUT_S = 2.0
REVISION = "controller-revision-hash"  # a pod's label: the revision of its StatefulSet


def quorum(servers: int) -> int:
    """How many of an ensemble's servers have to serve."""
    return servers // 2 + 1


def plan_roll(servers: Sequence[RollingPod], wanted: int) -> Roll:
    """The next step; ``wanted``: how many servers there are to be. Without a quorum there is something to wait for,
    though no server has to be restarted."""
    stale = [server for server in servers if server.reasons]
    down = [server for server in servers if not server.ready]
    missing = wanted - len(servers) + len(down)
    for server in down:
        if server.reasons and (not server.running or missing in (1, wanted)):
            return Roll(server, remaining=len(stale))
    if missing and (stale or missing > wanted - quorum(wanted)):
        names = ", ".join(server.name for server in down) or f"{len(servers)} of {wanted} pods are there"
        return Roll(blocked=f"waiting for ZooKeeper servers to be ready: {names}", remaining=len(stale))
    return Roll(stale[0], remaining=len(stale)) if stale else Roll()


def server_pods(live: StatefulSet, pods: Iterable[Manifest]) -> list[RollingPod]:
    """The servers' pods as the plan of a roll needs them; of a StatefulSet whose status is up to date."""
    revision = (live.get("status") or {}).get("updateRevision")
    wanted = live["spec"]["template"]["metadata"].get("annotations") or {}

    def reasons(server: int, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        if (metadata.get("labels") or {}).get(REVISION) == revision:
            return ()
        return restart_reasons(server, metadata.get("annotations") or {}, wanted) or (TEMPLATE_CHANGED,)

    return rolling_pods(live, pods, reasons)


def roll_ensemble(services: Services, cluster: Cluster, live: StatefulSet) -> Roll:
    """Restart the next server that has to be, if one may be now; what was done, or is waited for."""
    if is_settled(live):
        return Roll()
    if not is_seen(live):
        return Roll(blocked="waiting for Kubernetes to see the change of the ZooKeeper servers")
    ours = selector(cluster, zookeeper.COMPONENT)
    servers = server_pods(live, services.kube.list("v1", "Pod", cluster.namespace, ours))
    roll = plan_roll(servers, live["spec"]["replicas"])
    restart(services, cluster, roll)
    return roll


def apply_ensemble(
    services: Services, cluster: Cluster, warn: Warn, may_upgrade: Callable[[], bool] = lambda: True
) -> StatefulSet | None:
    """The ZooKeeper servers, where the Cluster brings its own. Those that an earlier release of the operator made stay
    so until they may be upgraded; without a quorum they wait for nothing."""
    if cluster.spec.zookeeper is None or cluster.spec.zookeeper.replicas is None:
        return None
    name = zookeeper.name_of(cluster)
    live = find_stateful_set(services, cluster, name)
    *others, servers = zookeeper.objects(
        cluster,
        image=services.images.zookeeper,
        pull_policy=services.images.pull_policy,
        claim_size=claim_size_of(live),
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
        user_ids=services.images.user_ids,
        release=services.release,
    )
    for manifest in others:
        ensure(services.kube, manifest)
    if live is None or not _waits_for_upgrade(live, servers, services.release, may_upgrade):
        live = ensure(services.kube, servers)
    size = cluster.spec.zookeeper.storage.size
    for server in range(1, cluster.spec.zookeeper.replicas + 1):
        grow(services, cluster, zookeeper.COMPONENT, f"data-{name}-{server}", size, warn)
    return live


def _waits_for_upgrade(
    live: StatefulSet, wanted: Manifest, release: str, may_upgrade: Callable[[], bool]
) -> bool:
    """Is all that would change what another release makes otherwise, and is this not the time for it? One without a
    quorum has nothing to lose, and the upgrade may mend it."""
    said = live["metadata"].get("annotations") or {}
    same_spec = said.get(SPEC_HASH) in (None, wanted["metadata"]["annotations"][SPEC_HASH])
    if said.get(RELEASE) == release or not same_spec:
        return False
    ready, servers = ready_replicas(live), wanted["spec"]["replicas"]
    return ready >= quorum(servers) and not (ready >= servers and may_upgrade())


def why_no_zookeeper(services: Services, cluster: Cluster, live: StatefulSet | None) -> Problem | None:
    """Why brokers cannot find their ZooKeeper, where that is what they wait for. ``live``: its servers, where the
    Cluster brings its own."""
    wanted = cluster.spec.zookeeper
    if wanted is None:
        return None
    if wanted.replicas is not None:
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
