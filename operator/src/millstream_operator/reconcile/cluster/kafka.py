"""Cluster: requests to its brokers, to move replicas as brokers come and go, and to change live configuration."""

from __future__ import annotations

from collections.abc import Collection

from ...kafka.admin import KafkaAdmin
from ...kafka.records import AdminError, BrokersState, PartitionReplicas, Reassignments, StrayLog
from ...models import Cluster
from ...models.conditions import ConditionType, Reason
from ...models.problem import Problem
from ...models.words import count_of
from ...resources.broker_config import dynamic_config
from ...state.context import Brokers
from .plan import Findings, live_config
from .scaling import confirm_scaling, plan_scaling, plan_spreading


class View:
    """The brokers' responses, each requested once and on demand; None while no broker responds."""

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
        """All partitions, with their minimum ISR."""
        if self._partitions is None and self.admin is not None:
            try:
                self._partitions = self.admin.replicas(min_isr=True)
            except AdminError as error:
                self._failed(error)
        return self._partitions

    def reassigning(self) -> Reassignments:
        """Call this before ``partitions``: see ``placement.arrived``."""
        if self._reassigning is None and self.admin is not None:
            try:
                self._reassigning = self.admin.reassigning()
            except AdminError as error:
                self._failed(error)
        return self._reassigning or {}

    def held(self, brokers: Collection[int]) -> dict[int, int] | None:
        """The number of replicas on each of these brokers, as the broker itself reports it."""
        if self.admin is not None and brokers:
            try:
                return self.admin.held(brokers)
            except AdminError as error:
                self._failed(error)
        return None if brokers else {}

    def strays(self) -> list[StrayLog] | None:
        """The strays of all brokers."""
        if self.admin is not None:
            try:
                return self.admin.strays()
            except AdminError as error:
                self._failed(error)
        return None

    def _failed(self, error: AdminError) -> None:
        self.failure = str(error)
        self.admin = None


def cluster_id_of(services: Brokers, cluster: Cluster, ready: int) -> str | None:
    """The id of the Cluster's Kafka cluster; None until a broker has responded. ``ready``: how many may respond."""
    if cluster.status.cluster_id or not ready:
        return cluster.status.cluster_id
    try:
        return services.brokers_of(cluster).cluster_id()
    except AdminError:
        return None  # ready a moment ago: the next reconcile decides


def scale(cluster: Cluster, current: int | None, view: View, findings: Findings) -> int:
    """Move replicas off brokers that leave or are gone; returns the number of brokers to run for now."""
    desired = cluster.spec.brokers.replicas
    if current is None or max(current, desired) == 1:
        return desired
    moving, partitions, brokers = view.reassigning(), view.partitions(), view.brokers()
    alive = brokers.racks if brokers is not None else {}
    scaling = plan_scaling(desired, current, partitions, moving, alive)
    if scaling.replicas < current:  # the metadata may be an old broker's
        scaling = confirm_scaling(scaling, current, view.held(alive.keys() & set(range(desired, current))))
    findings.problem = scaling.problem
    if scaling.moves and view.admin is not None:
        refused = view.admin.reassign(scaling.moves)
        for (topic, partition), no in sorted(refused.items())[:1]:
            findings.problem = Problem(
                Reason.SCALE_DOWN_REFUSED, f"{topic}-{partition} cannot leave its broker: {no}"
            )
    if scaling.progress:
        findings.busy = True
        findings.conditions.append((ConditionType.REBALANCING, True, Reason.DRAINING, scaling.progress))
    return scaling.replicas


def spread(cluster: Cluster, view: View, findings: Findings) -> None:
    """Move replicas to brokers that have none yet, if the Cluster's spec enables it."""
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
        findings.busy = True
        words = f"{count_of(count, 'partition')} {'is' if count == 1 else 'are'} being moved"
        findings.conditions.append((ConditionType.REBALANCING, True, Reason.SPREADING, words))


def configure_live(cluster: Cluster, view: View, findings: Findings) -> bool:
    """Set configuration that brokers accept at run time; reset keys that this resource had set and no longer names.

    Returns False if they refuse it: then their files must not contain it either, or the next broker to start would
    fail.
    """
    wanted = dynamic_config(cluster)
    if view.admin is None or not (wanted or cluster.status.config_keys):
        return True
    try:
        there = view.admin.brokers_config()
        change = live_config(cluster, there)
        refused = view.admin.change_brokers_config(change) if change.set or change.reset else None
    except AdminError:
        findings.busy = True  # the next reconcile will
        return True
    if refused is None:
        findings.config_keys = tuple(sorted(wanted)) or None
        return True
    findings.problem = Problem(Reason.INVALID_CONFIG, f"spec.config: {refused}; the brokers are unchanged")
    return False
