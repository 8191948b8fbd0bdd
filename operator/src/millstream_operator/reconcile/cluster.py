"""Cluster: its Kubernetes objects, how its brokers are, and what has to be done to them one after the other.

A look goes this way; each step writes only what differs, and what cannot be done yet is said and tried again:

    fewer or more brokers                          replicas move first, or after (scaling.py)
    configuration that brokers take live           is set on them
    ZooKeeper, listeners, configuration, brokers   the objects (cluster_objects.py)
    restarts                                       one broker at a time, as partitions allow (rolling.py)

A spec that cannot be is refused before anything is touched: brokers that run go on as they are. So they do while the
Cluster is paused by its annotation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..conditions import ConditionType, Reason
from ..kafka_admin import (
    AdminError,
    BrokersState,
    ConfigChange,
    KafkaAdmin,
    PartitionReplicas,
    Reassignments,
)
from ..models import BrokerCount, Cluster, ClusterStatus
from ..resources import cluster as build
from ..resources.broker_config import RESERVED_CONFIG, dynamic_config
from ..resources.owned import selector
from ..services import Services
from ..status import write_status
from .cluster_objects import (
    StatefulSet,
    apply_brokers,
    apply_ensemble,
    apply_listeners,
    listener_status,
    live_brokers,
    ready_replicas,
    why_no_zookeeper,
)
from .pods import trouble_of
from .report import PAUSED, Problem, conditions_with, is_paused, tell
from .rolling import BrokerPod, Roll, plan_roll, restart_reasons, unreachable_minimums
from .scaling import plan_scaling, plan_spreading

logger = logging.getLogger(__name__)

READY_INTERVAL_S = 60.0
WAITING_INTERVAL_S = 5.0

Said = tuple[ConditionType, bool | None, Reason, str]


@dataclass(slots=True)
class Look:
    """What one look found out, for the status. What a step leaves as it is stays as the status has it."""

    ready: int = 0
    problem: Problem | None = None
    conditions: list[Said] = field(default_factory=list)
    warnings: list[tuple[Reason, str]] = field(default_factory=list)
    config_keys: tuple[str, ...] | None = None
    busy: bool = False
    """Something is under way that has to be looked at again soon."""

    def warn(self, reason: Reason, words: str) -> None:
        self.warnings.append((reason, words))


def refusal(cluster: Cluster) -> Problem | None:
    """Why a Cluster cannot be as its spec says, for what the schema cannot tell."""
    if reserved := sorted(RESERVED_CONFIG.intersection(cluster.spec.config)):
        return Problem(
            Reason.INVALID_CONFIG,
            f"spec.config[{reserved[0]}]: not allowed: the operator decides "
            f"{', '.join(sorted(RESERVED_CONFIG))}; nothing was changed",
        )
    return None


def reconcile_cluster(services: Services, cluster: Cluster) -> float:
    """One look at one Cluster; returns seconds until the next."""
    if cluster.metadata.deletion_timestamp is not None:
        return READY_INTERVAL_S  # its objects go with it
    desired = cluster.spec.brokers.replicas
    live = live_brokers(services, cluster)
    look = Look(ready=ready_replicas(live), config_keys=cluster.status.config_keys)
    if is_paused(cluster):
        look.conditions.append(PAUSED)
        return _report(services, cluster, look, _pods(services, cluster), {})
    if (problem := refusal(cluster)) is not None:
        look.problem = problem
        return _report(services, cluster, look, (), {})
    admin = services.admins.at(services.address_of(cluster))
    current = live["spec"].get("replicas") if live else None
    view = View(admin) if look.ready else View(None)
    replicas = scale(cluster, current, view, look)
    if not configure_live(cluster, view, look):
        return _report(services, cluster, look, _pods(services, cluster), {})
    apply_ensemble(services, cluster, look.warn)
    found = apply_listeners(services, cluster, replicas)
    addresses = {key: address for key, address in found.items() if address is not None}
    if missing := sorted(
        f"{listener} of broker {broker}" for listener, broker in found.keys() - addresses.keys()
    ):
        look.problem = Problem(
            Reason.LISTENERS_PENDING,
            f"waiting for the address of {', '.join(missing)}; brokers are as they were",
        )
        return _report(services, cluster, look, _pods(services, cluster), addresses)
    live = apply_brokers(services, cluster, live, replicas, addresses, look.warn)
    look.ready = ready_replicas(live)
    pods = _pods(services, cluster)
    if look.ready < desired and look.problem is None:
        look.problem = why_no_zookeeper(services, cluster) or why_not_ready(pods, look.ready, desired)
    _roll(services, cluster, live, pods, view, look)
    if not look.busy and look.problem is None:
        spread(cluster, view, look)
    look.busy = look.busy or bool(view.failure)
    return _report(services, cluster, look, pods, addresses)


class View:
    """What the brokers say, asked when it is needed and once; None as long as none answers."""

    def __init__(self, admin: KafkaAdmin | None) -> None:
        self.admin = admin
        self.failure = ""
        self._brokers: BrokersState | None = None
        self._partitions: list[PartitionReplicas] | None = None
        self._reassigning: Reassignments | None = None

    def brokers(self) -> BrokersState | None:
        if self._brokers is None and self.admin is not None:
            try:
                self._brokers = self.admin.brokers()
            except AdminError as error:
                self._failed(error)
        return self._brokers

    def partitions(self) -> list[PartitionReplicas] | None:
        """All partitions there are, with their minimum ISR."""
        if self._partitions is None and self.admin is not None:
            try:
                self._partitions = self.admin.replicas(min_isr=True)
            except AdminError as error:
                self._failed(error)
        return self._partitions

    def reassigning(self) -> Reassignments:
        """To be asked before ``partitions``: see ``placement.arrived``."""
        if self._reassigning is None and self.admin is not None:
            try:
                self._reassigning = self.admin.reassigning()
            except AdminError as error:
                self._failed(error)
        return self._reassigning or {}

    def _failed(self, error: AdminError) -> None:
        self.failure = str(error)
        self.admin = None


def scale(cluster: Cluster, current: int | None, view: View, look: Look) -> int:
    """Bring replicas away from brokers that shall go, or are gone; returns how many brokers there are to be for now."""
    desired = cluster.spec.brokers.replicas
    if current is None or max(current, desired) == 1:
        return desired
    moving, partitions, brokers = view.reassigning(), view.partitions(), view.brokers()
    alive = brokers.racks if brokers is not None else {}
    scaling = plan_scaling(desired, current, partitions, moving, alive)
    look.problem = scaling.problem
    if scaling.moves and view.admin is not None:
        refused = view.admin.reassign(scaling.moves)
        for (topic, partition), no in sorted(refused.items())[:1]:
            look.problem = Problem(
                Reason.SCALE_DOWN_REFUSED, f"{topic}-{partition} cannot leave its broker: {no}"
            )
    if scaling.progress:
        look.busy = True
        look.conditions.append((ConditionType.REBALANCING, True, Reason.DRAINING, scaling.progress))
    return scaling.replicas


def spread(cluster: Cluster, view: View, look: Look) -> None:
    """Bring replicas to brokers that have none yet, where the Cluster asks for it."""
    if cluster.spec.rebalance != "Automatic" or cluster.spec.brokers.replicas == 1:
        return
    moving, brokers, partitions = view.reassigning(), view.brokers(), view.partitions()
    wanted = range(cluster.spec.brokers.replicas)  # not one that is about to leave
    if brokers is None or partitions is None or not brokers.racks.keys() >= set(wanted):
        return
    racks = {broker: rack for broker, rack in brokers.racks.items() if rack}
    moves = plan_spreading(wanted, partitions, moving, racks)
    if moves and view.admin is not None:
        view.admin.reassign(moves)
    if count := len(moves) or len(moving):
        look.busy = True
        words = f"{count} partitions are being moved"
        look.conditions.append((ConditionType.REBALANCING, True, Reason.SPREADING, words))


def configure_live(cluster: Cluster, view: View, look: Look) -> bool:
    """Set what brokers take while they run; reset what this resource had set and no longer names. False when they
    refuse it: then their files are not to have it either, or the next one that starts would fail."""
    wanted = dynamic_config(cluster)
    mine = set(cluster.status.config_keys or ())
    if view.admin is None or not (wanted or mine):
        return True
    try:
        there = view.admin.brokers_config()
        change = ConfigChange(
            {key: value for key, value in wanted.items() if there.get(key) != value},
            tuple(sorted(key for key in mine if key not in wanted and key in there)),
        )
        refused = view.admin.change_brokers_config(change) if change.set or change.reset else None
    except AdminError:
        look.busy = True  # the next look will
        return True
    if refused is None:
        look.config_keys = tuple(sorted(wanted)) or None
        return True
    look.problem = Problem(Reason.INVALID_CONFIG, f"spec.config: {refused}; brokers are as they were")
    return False


def _roll(
    services: Services,
    cluster: Cluster,
    live: StatefulSet,
    pods: Sequence[Mapping[str, Any]],
    view: View,
    look: Look,
) -> None:
    brokers = broker_pods(live, pods)
    if not any(pod.reasons for pod in brokers):
        return
    partitions = view.partitions()
    roll = plan_roll(brokers, live["spec"]["replicas"], partitions, view.brokers())
    if roll.restart is not None:
        logger.info("Cluster %s: restarting %s: %s", cluster.name, roll.restart.name, roll.restart.reasons)
        services.kube.delete("v1", "Pod", cluster.namespace, roll.restart.name)
        for reason in roll.restart.reasons:
            tell(services, cluster, reason, f"restarting {roll.restart.name}")
    look.busy = True
    look.conditions.append(_rolling(roll))
    if partitions is not None and (topics := unreachable_minimums(partitions)):
        words = (
            f"min.insync.replicas of {', '.join(topics[:3])} needs every replica: while a broker restarts, "
            "acks=all waits; lower it or raise replicationFactor"
        )
        look.warn(Reason.MINIMUM_ISR, words)


def broker_pods(live: StatefulSet, pods: Sequence[Mapping[str, Any]]) -> list[BrokerPod]:
    """The pods as the plan of a roll needs them."""
    wanted = live["spec"]["template"]["metadata"].get("annotations") or {}
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        base, _, number = metadata["name"].rpartition("-")
        if base != live["metadata"]["name"] or not number.isdecimal():
            continue  # somebody else's, with our labels
        broker = int(number)
        going = bool(metadata.get("deletionTimestamp"))
        status = pod.get("status") or {}
        ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        )
        containers = status.get("containerStatuses") or ()
        running = not containers or any("running" in (one.get("state") or {}) for one in containers)
        reasons = () if going else restart_reasons(broker, metadata.get("annotations") or {}, wanted)
        found.append(BrokerPod(broker, metadata["name"], ready and not going, reasons, running))
    return sorted(found, key=lambda pod: pod.broker)


def why_not_ready(pods: Sequence[Mapping[str, Any]], ready: int, desired: int) -> Problem:
    """What the brokers' pods say."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        if trouble := trouble_of(pod):
            return Problem(Reason.BROKER_FAILED if trouble.ended else Reason.BROKERS_STARTING, trouble.words)
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return Problem(
                    Reason.BROKERS_STARTING, f"{name}: {condition.get('message', 'not scheduled')}"
                )
    return Problem(Reason.BROKERS_STARTING, f"{ready} of {desired} brokers are ready")


def _report(
    services: Services,
    cluster: Cluster,
    look: Look,
    pods: Sequence[Mapping[str, Any]],
    addresses: Mapping[Any, Any],
) -> float:
    desired = cluster.spec.brokers.replicas
    hosts = {
        int(pod["metadata"]["name"].rpartition("-")[2]): pod["status"]["hostIP"]
        for pod in pods
        if (pod.get("status") or {}).get("hostIP")
    }
    external = any(listener.type != "Internal" for listener in cluster.spec.listeners)
    transient = (
        ConditionType.ROLLING_UPDATE,
        ConditionType.REBALANCING,
        ConditionType.PAUSED,
        ConditionType.WARNING,
    )
    said = [_ready_condition(look, desired), *look.conditions]
    if look.warnings:
        words = "; ".join(dict.fromkeys(text for _, text in look.warnings))
        said.append((ConditionType.WARNING, True, look.warnings[0][0], words))
    gone = tuple(kind for kind in transient if kind not in {one[0] for one in said})
    status = ClusterStatus(
        observed_generation=cluster.metadata.generation,
        cluster_id=_cluster_id(services, cluster, look.ready),
        brokers=BrokerCount(desired=desired, ready=look.ready),
        bootstrap=build.bootstrap_of(cluster),
        listeners=(listener_status(addresses, hosts, desired) or cluster.status.listeners)
        if external
        else None,
        config_keys=look.config_keys,
        conditions=conditions_with(cluster, *said, now=services.now(), without=gone),
    )
    write_status(services, cluster, status)
    settled = look.problem is None and not look.busy and status.cluster_id
    return READY_INTERVAL_S if settled else WAITING_INTERVAL_S


def _ready_condition(look: Look, desired: int) -> Said:
    if look.problem is not None:
        return ConditionType.READY, False, look.problem.reason, look.problem.message
    if look.ready < desired:
        return (
            ConditionType.READY,
            False,
            Reason.BROKERS_STARTING,
            f"{look.ready} of {desired} brokers are ready",
        )
    words = "the broker is ready" if desired == 1 else f"all {desired} brokers are ready"
    return ConditionType.READY, True, Reason.ALL_BROKERS_READY, words


def _rolling(roll: Roll) -> Said:
    if roll.restart is not None:
        words = f"restarting {roll.restart.name} ({', '.join(roll.restart.reasons)}); {roll.remaining} to go"
        return ConditionType.ROLLING_UPDATE, True, Reason.RESTARTING, words
    return ConditionType.ROLLING_UPDATE, True, Reason.RESTART_BLOCKED, roll.blocked


def _pods(services: Services, cluster: Cluster) -> list[dict[str, Any]]:
    return services.kube.list("v1", "Pod", cluster.namespace, selector(cluster))


def _cluster_id(services: Services, cluster: Cluster, ready: int) -> str | None:
    if cluster.status.cluster_id or not ready:
        return cluster.status.cluster_id
    try:
        return services.admins.at(services.address_of(cluster)).cluster_id()
    except AdminError:
        return None  # ready a moment ago: the next look will tell
