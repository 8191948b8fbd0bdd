"""The ZooKeeper servers of a Cluster that runs its own: their objects, and one restart at a time.

Their StatefulSet is updated OnDelete, like that of the brokers: Kubernetes would restart a server even while another
one is down, and one server of three has no quorum. So a server is restarted only while all others are ready. Servers
that serve nobody are restarted unconditionally, since the change may repair them: one that has ended, and any one
while no server is ready. A server that is briefly not ready, during a leader election, is neither.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...kubernetes.client import Manifest
from ...models import Cluster
from ...models.conditions import Reason
from ...models.problem import Problem
from ...models.roll import Roll, RollingPod
from ...resources import zookeeper
from ...resources.owned import RELEASE, SPEC_HASH, selector
from ...state.context import ClusterParts, Warn
from ..common.objects import ensure
from ..common.refused_pods import why_no_pods
from ..common.volumes import class_needs_owner
from .objects import claim_size_of, find_stateful_set, grow, restart
from .plan import StatefulSet, is_rolling, is_seen, is_settled, ready_replicas, rolling_pods
from .rolling import TEMPLATE_CHANGED, restart_reasons, wait_for_all
from .stateful_pods import template_annotations

CONNECT_TIMEOUT_S = 2.0
WHAT = "ZooKeeper servers"
REVISION = "controller-revision-hash"  # a pod's label: the revision of its StatefulSet


def quorum(servers: int) -> int:
    """The number of servers in a quorum."""
    return servers // 2 + 1


def plan_roll(servers: Sequence[RollingPod], wanted: int) -> Roll:
    """The next step; ``wanted`` is the desired number of servers.

    Without a quorum the plan waits, even if no server needs a restart.
    """
    stale = [server for server in servers if server.reasons]
    down = [server for server in servers if not server.ready]
    missing = wanted - len(servers) + len(down)
    for server in down:
        if server.reasons and (not server.running or missing in (1, wanted)):
            return Roll(server, remaining=len(stale))
    if missing and (stale or missing > wanted - quorum(wanted)):
        wait = wait_for_all(servers, wanted, WHAT)
        return replace(wait, is_usual=bool(stale) and missing == 1, remaining=len(stale), is_end=False)
    return Roll(stale[0], remaining=len(stale)) if stale else Roll()


def server_pods(live: StatefulSet, pods: Iterable[Manifest]) -> list[RollingPod]:
    """The servers' pods, for the plan of a rolling restart. The StatefulSet's status must be up to date."""
    revision = (live.get("status") or {}).get("updateRevision")
    wanted = template_annotations(live)

    def reasons(server: int, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        if (metadata.get("labels") or {}).get(REVISION) == revision:
            return ()
        return restart_reasons(server, metadata.get("annotations") or {}, wanted) or (TEMPLATE_CHANGED,)

    return rolling_pods(live, pods, reasons)


def roll_ensemble(services: ClusterParts, cluster: Cluster, live: StatefulSet) -> Roll:
    """Restart the next stale server, if one may be restarted now; returns the action taken or the wait."""
    if is_settled(live):
        return Roll()
    if not is_seen(live):
        return Roll(
            blocked="waiting for Kubernetes to see the change of the ZooKeeper servers", is_usual=True
        )
    ours = selector(cluster, zookeeper.COMPONENT)
    servers = server_pods(live, services.kube.list("v1", "Pod", cluster.namespace, ours))
    roll = plan_roll(servers, live["spec"]["replicas"])
    restart(services, cluster, roll)
    if not roll.words and is_rolling(cluster):
        wanted = live["spec"]["replicas"]
        return wait_for_all([server for server in servers if server.number <= wanted], wanted, WHAT)
    return roll


def apply_ensemble(
    services: ClusterParts, cluster: Cluster, warn: Warn, may_upgrade: Callable[[], bool] = lambda: True
) -> StatefulSet | None:
    """Apply the ZooKeeper servers, and return their StatefulSet; None if the Cluster does not run its own.

    Servers from an earlier release of the operator stay unchanged until they may be upgraded; without a quorum they do
    not wait.
    """
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
    """Whether the only changes are those of another release, or the login, and an upgrade must wait.

    An ensemble without a quorum has nothing to lose, and the upgrade may repair it.
    """
    said = live["metadata"].get("annotations") or {}
    same_spec = said.get(SPEC_HASH) in (None, wanted["metadata"]["annotations"][SPEC_HASH])
    if (said.get(RELEASE) == release and _has_login(live) == _has_login(wanted)) or not same_spec:
        return False
    ready, servers = ready_replicas(live), wanted["spec"]["replicas"]
    return ready >= quorum(servers) and not (ready >= servers and may_upgrade())


def _has_login(servers: StatefulSet) -> bool:
    return zookeeper.LOGIN in template_annotations(servers)


def why_no_zookeeper(services: ClusterParts, cluster: Cluster, live: StatefulSet | None) -> Problem | None:
    """Why brokers cannot reach their ZooKeeper, if they wait for it.

    ``live`` is its servers' StatefulSet, if the Cluster runs its own.
    """
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
