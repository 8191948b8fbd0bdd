"""Cluster: what one reconcile finds, its consequences, and the status; pure.

An invalid spec is refused before anything is changed: running brokers continue as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from ...kafka.records import ConfigChange, StrayLog
from ...models import BrokerCount, Cluster, ClusterStatus, ListenerStatus
from ...models.addresses import host_port
from ...models.conditions import ConditionType, Reason
from ...models.config_values import changed
from ...models.problem import NewCondition, Problem, conditions_with
from ...models.roll import Roll, RollingPod
from ...resources import cluster as build
from ...resources.broker_config import (
    AUTHORIZATION,
    RESERVED_CONFIG,
    ZOOKEEPER_ACLS,
    ZOOKEEPER_LOGIN,
    ZOOKEEPER_TLS,
    dynamic_config,
)
from ...resources.certificates import trust_secret
from ...resources.listeners import (
    Address,
    Addresses,
    bootstrap_addresses,
    broker_host,
    external_listeners,
    shared_address,
)
from ..common import strays
from ..common.pods import is_ready, may_run, trouble_of, unscheduled
from .rolling import UPGRADE, restart_reasons

StatefulSet = Mapping[str, Any]


@dataclass(slots=True)
class Findings:
    """What one reconcile finds, for the status. Values that no step sets stay as they are in the status."""

    ready: int = 0
    problem: Problem | None = None
    conditions: list[NewCondition] = field(default_factory=list)
    warnings: list[tuple[Reason, str]] = field(default_factory=list)
    config_keys: tuple[str, ...] | None = None
    strays: Sequence[StrayLog] | None = None
    """None if no broker has answered."""
    busy: bool = False
    """Something is in progress: reconcile again soon."""

    def warn(self, reason: Reason, words: str) -> None:
        self.warnings.append((reason, words))


def refusal(cluster: Cluster) -> Problem | None:
    """Why a spec is not valid, for rules that the schema cannot express."""
    if reserved := sorted(RESERVED_CONFIG.intersection(cluster.spec.config)):
        return Problem(
            Reason.INVALID_CONFIG,
            f"spec.config[{reserved[0]}]: not allowed: the operator decides "
            f"{', '.join(sorted(RESERVED_CONFIG))}; nothing was changed",
        )
    if cluster.spec.authorization is not None and (twice := cluster.spec.config.keys() & {*AUTHORIZATION}):
        return Problem(
            Reason.INVALID_CONFIG,
            f"spec.config[{min(twice)}]: not allowed with spec.authorization, which decides it; nothing was changed",
        )
    return _twice_zookeeper(cluster)


def _twice_zookeeper(cluster: Cluster) -> Problem | None:
    """Whether the configuration has what `spec.zookeeper` decides."""
    zookeeper, decided = cluster.spec.zookeeper, dict[str, str]()
    if zookeeper is None:
        return None
    if zookeeper.replicas is not None:
        why = "spec.zookeeper.replicas: the operator decides how brokers log in to an ensemble that it runs"
        decided = dict.fromkeys((ZOOKEEPER_LOGIN, ZOOKEEPER_ACLS), why)
    if zookeeper.authentication is not None:
        decided[ZOOKEEPER_LOGIN] = "spec.zookeeper.authentication, which decides it"
    if zookeeper.tls is not None:
        decided |= dict.fromkeys(ZOOKEEPER_TLS, "spec.zookeeper.tls, which decides it")
    given = sorted(cluster.spec.config.keys() & decided.keys())
    if not given:
        return None
    words = f"spec.config[{given[0]}]: not allowed with {decided[given[0]]}; nothing was changed"
    return Problem(Reason.INVALID_CONFIG, words)


class Outside(NamedTuple):
    """Addresses for clients outside Kubernetes; None if not known yet.

    ``brokers`` are by listener and broker, ``bootstraps`` by listener.
    """

    brokers: Mapping[tuple[str, int], Address | None]
    bootstraps: Mapping[str, Address | None]

    @property
    def known(self) -> Addresses:
        return {key: address for key, address in self.brokers.items() if address is not None}


NOWHERE = Outside({}, {})
"""Of a reconcile that does not get as far as the listeners."""


def why_not_outside(found: Outside) -> Problem | None:
    """Why brokers cannot advertise addresses to clients outside Kubernetes."""
    if missing := sorted(
        f"{listener} of broker {broker}" for listener, broker in found.brokers.keys() - found.known.keys()
    ):
        return Problem(
            Reason.LISTENERS_PENDING,
            f"waiting for the address of {', '.join(missing)}; the brokers are unchanged",
        )
    if words := shared_address(found.known):
        return Problem(Reason.INVALID_SPEC, f"spec.listeners: {words}; the brokers are unchanged")
    return None


def live_config(cluster: Cluster, there: Mapping[str, str]) -> ConfigChange:
    """The change that brings the running brokers' configuration to the spec.

    It resets keys that this resource had set and no longer names.
    """
    wanted = dynamic_config(cluster)
    mine = set(cluster.status.config_keys or ())
    return ConfigChange(
        changed(wanted, there),
        tuple(sorted(key for key in mine if key not in wanted and key in there)),
    )


def ready_replicas(stateful_set: StatefulSet | None) -> int:
    """The number of ready pods."""
    return 0 if stateful_set is None else int((stateful_set.get("status") or {}).get("readyReplicas") or 0)


def is_seen(stateful_set: StatefulSet) -> bool:
    """Whether the status covers the newest change of the spec."""
    status = stateful_set.get("status") or {}
    return bool(status.get("observedGeneration") == stateful_set["metadata"].get("generation"))


def is_settled(stateful_set: StatefulSet) -> bool:
    """Whether all pods are up to date and ready."""
    status, wanted = stateful_set.get("status") or {}, int(stateful_set["spec"]["replicas"])
    return is_seen(stateful_set) and status.get("updatedReplicas") == wanted == ready_replicas(stateful_set)


def held_for_upgrade(
    pods: Sequence[RollingPod], may_upgrade: Callable[[], bool], ensemble: bool
) -> list[RollingPod]:
    """The pods, without the restart reasons that must wait for the Cluster's upgrade.

    A pod that is not ready waits for nothing: an upgrade may repair it. ``may_upgrade``: whether an upgrade may
    continue now. ``ensemble``: whether ZooKeeper's servers are upgraded and ready.
    """

    def waits(pod: RollingPod) -> bool:
        return pod.ready and pod.reasons == (UPGRADE,) and not (may_upgrade() and ensemble)

    return [replace(pod, reasons=()) if waits(pod) else pod for pod in pods]


def is_whole(pods: Sequence[RollingPod], desired: int) -> bool:
    """Whether all brokers are ready and none is stopping: ``readyReplicas`` counts a stopping one until it ends."""
    return len(pods) >= desired and all(pod.ready for pod in pods)


def broker_pods(live: StatefulSet, pods: Iterable[Mapping[str, Any]]) -> list[RollingPod]:
    """The brokers' pods, for the plan of a rolling restart."""
    wanted = live["spec"]["template"]["metadata"].get("annotations") or {}

    def reasons(broker: int, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        return restart_reasons(broker, metadata.get("annotations") or {}, wanted)

    return rolling_pods(live, pods, reasons)


def rolling_pods(
    live: StatefulSet,
    pods: Iterable[Mapping[str, Any]],
    reasons_of: Callable[[int, Mapping[str, Any]], tuple[str, ...]],
) -> list[RollingPod]:
    """The pods of a StatefulSet, ordered by number.

    ``reasons_of`` returns why the pod with this number and metadata must restart. A pod that is being deleted is not
    ready, and has no reason left.
    """
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        base, _, number = metadata["name"].rpartition("-")
        if base != live["metadata"]["name"] or not number.isdecimal():
            continue  # another owner's, with our labels
        going = bool(metadata.get("deletionTimestamp"))
        found.append(
            RollingPod(
                int(number),
                metadata["name"],
                is_ready(pod) and not going,
                () if going else reasons_of(int(number), metadata),
                may_run(pod),
                metadata["uid"],
            )
        )
    return sorted(found, key=lambda pod: pod.number)


def why_not_ready(pods: Sequence[Mapping[str, Any]], ready: int, desired: int) -> Problem:
    """Why brokers are not ready, from their pods."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if trouble := trouble_of(pod):
            return Problem(Reason.BROKER_FAILED, trouble.words)
        if waiting := unscheduled(pod):
            return Problem(Reason.BROKERS_STARTING, waiting)
    return Problem(Reason.BROKERS_STARTING, f"{ready} of {desired} brokers are ready")


def status_of(
    cluster: Cluster,
    findings: Findings,
    bootstrap: str | None,
    listeners: tuple[ListenerStatus, ...] | None,
    cluster_id: str | None,
    now: datetime,
) -> ClusterStatus:
    """The resource's status after a findings, with the addresses that its brokers have."""
    desired = cluster.spec.brokers.replicas
    transient = (
        ConditionType.ROLLING_UPDATE,
        ConditionType.UPGRADING,
        ConditionType.REBALANCING,
        ConditionType.WARNING,
        ConditionType.OPEN_LISTENERS,
        *(() if cluster.spec.is_encrypted else (ConditionType.CERTIFICATES_READY,)),
    )
    said = [ready_condition(findings.problem, findings.ready, desired), *findings.conditions]
    if findings.warnings:
        words = "; ".join(dict.fromkeys(text for _, text in findings.warnings))
        said.append((ConditionType.WARNING, True, findings.warnings[0][0], words))
    if (of_strays := strays.condition(findings.strays)) is not None:
        said.append(of_strays)
    gone = tuple(kind for kind in transient if kind not in {one[0] for one in said})
    gone += strays.outdated(findings.strays)
    return ClusterStatus(
        observed_generation=cluster.metadata.generation,
        cluster_id=cluster_id,
        brokers=BrokerCount(desired=desired, ready=findings.ready),
        bootstrap=bootstrap,
        platform=cluster.status.platform,
        listeners=listeners,
        config_keys=findings.config_keys,
        conditions=conditions_with(cluster, *said, now=now, without=gone),
    )


def listener_status(
    cluster: Cluster, outside: Outside, hosts: Mapping[int, str]
) -> tuple[ListenerStatus, ...]:
    """The listeners of the status, external ones first; addresses that are not known now stay as they were.

    ``hosts``: the address of each broker's node.
    """
    before = {one.name: one for one in cluster.status.listeners or ()}
    if outside is NOWHERE:
        return tuple(before.values())
    found = []
    for listener in external_listeners(cluster):
        brokers = []
        for broker in range(cluster.spec.brokers.replicas):
            address = outside.known.get((listener.name, broker))
            if address is not None and (host := address.host or hosts.get(broker)):
                brokers.append(host_port(host, address.port))
        nodes = [host for _, host in sorted(hosts.items())]
        if where := bootstrap_addresses(listener, outside.bootstraps[listener.name], nodes, brokers):
            status = ListenerStatus(
                name=listener.name,
                protocol=listener.protocol,
                ca_secret=trust_secret(cluster) if listener.is_encrypted else None,
                bootstrap=where,
                addresses=tuple(brokers) or None,
            )
            found.append(status)
        elif listener.name in before:
            found.append(before[listener.name])
    if not (inside := cluster.spec.internal).is_open:
        status = ListenerStatus(
            name=inside.name,
            protocol=inside.protocol,
            ca_secret=trust_secret(cluster) if inside.is_encrypted else None,
            bootstrap=build.bootstrap_of(cluster),
            addresses=tuple(
                host_port(broker_host(cluster, broker), inside.port)
                for broker in range(cluster.spec.brokers.replicas)
            ),
        )
        found.append(status)
    return tuple(found)


def ready_condition(problem: Problem | None, ready: int, desired: int) -> NewCondition:
    """``Ready`` of a Cluster, wherever its brokers run."""
    if problem is None and ready < desired:
        problem = Problem(Reason.BROKERS_STARTING, f"{ready} of {desired} brokers are ready")
    if problem is not None:
        return ConditionType.READY, False, problem.reason, problem.message
    words = "the broker is ready" if desired == 1 else f"all {desired} brokers are ready"
    return ConditionType.READY, True, Reason.ALL_BROKERS_READY, words


def kept_roll(cluster: Cluster) -> list[NewCondition]:
    """The condition ``RollingUpdate`` that the Cluster has; none if its pods were not being restarted."""
    return [
        (ConditionType.ROLLING_UPDATE, True, Reason(condition.reason), condition.message)
        for condition in cluster.status.conditions or ()
        if condition.type == ConditionType.ROLLING_UPDATE
    ]


def is_rolling(cluster: Cluster) -> bool:
    """Whether pods were being restarted at the last reconcile."""
    return bool(kept_roll(cluster))


def rolling_condition(roll: Roll) -> NewCondition:
    goes_on = roll.restart is not None or roll.is_usual or roll.is_end
    reason = Reason.RESTARTING if goes_on else Reason.RESTART_BLOCKED
    return ConditionType.ROLLING_UPDATE, True, reason, roll.words
