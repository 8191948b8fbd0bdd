"""The brokers of a Cluster on Kubernetes: a StatefulSet and what belongs to it. Each step writes only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...models import Cluster, ListenerStatus
from ...models.conditions import Reason
from ...models.problem import NewCondition, Problem
from ...models.roll import Roll, RollingPod
from ...resources.certificates import names_of_brokers
from ...resources.cluster import bootstrap_of
from ...resources.listeners import external_listeners
from ...resources.owned import selector
from ...state.context import ClusterParts, Warn
from ..common.pod_users import remove_unused_users
from ..common.refused_pods import why_no_pods
from . import certificates, ensemble, platform, unstated, zookeeper_login
from .objects import (
    apply_brokers,
    apply_listeners,
    apply_network_policies,
    live_brokers,
    node_addresses,
    restart,
)
from .plan import (
    NOWHERE,
    broker_pods,
    held_for_upgrade,
    is_settled,
    is_whole,
    listener_status,
    ready_replicas,
    why_not_outside,
    why_not_ready,
)
from .upgrades import Upgrade

PLAINTEXT = (
    "spec.listeners: {} carries records in plain text, and anyone who reaches it can administer the cluster: set "
    "allowPlaintext: true where you trust the network, or remove it"
)


class StatefulSets:
    """Brokers as pods."""

    def open(self, services: ClusterParts, cluster: Cluster) -> PodBrokers:
        return PodBrokers(services, cluster)


class PodBrokers:
    rebalances = True

    def __init__(self, services: ClusterParts, cluster: Cluster) -> None:
        """Raises NotOurs."""
        self.services = services
        self.stored = cluster
        self.live = live_brokers(services, cluster)
        self.cluster = unstated.known(cluster, self.live, services.new_clusters).completed
        self.ready = ready_replicas(self.live)
        self.current: int | None = self.live["spec"].get("replicas") if self.live else None
        self.servers = Roll()
        self.outside = NOWHERE
        self.listed: Sequence[Mapping[str, Any]] = ()
        self.upgrade: Upgrade | None = None
        self.ensemble: Mapping[str, Any] | None = None

    def conditions(self) -> Sequence[NewCondition]:
        return unstated.open_listeners(self.cluster)

    def refusal(self) -> Problem | None:
        return None

    def stage(self, warn: Warn) -> Problem | None:
        staged = unstated.record(self.services, self.stored, self.live)
        if not isinstance(staged, Problem):
            cluster = staged.completed
            staged = platform.stage(self.services, cluster, self.live, lambda: self._list(cluster), warn)
        if not isinstance(staged, Problem):
            self.cluster = staged
            staged = zookeeper_login.stage(self.services, staged, self.live, warn)
        if isinstance(staged, Problem):
            return staged
        self.cluster = staged
        return None

    def prepare(self, replicas: int, warn: Warn) -> Problem | None:
        services, cluster = self.services, self.cluster
        self.upgrade = Upgrade(services, cluster, self.ready >= cluster.spec.brokers.replicas)
        self.ensemble = ensemble.apply_ensemble(services, cluster, warn, self.upgrade.may)
        if self.ensemble is not None:
            self.servers = ensemble.roll_ensemble(services, cluster, self.ensemble)
        apply_network_policies(services, cluster)
        self.outside = apply_listeners(services, cluster, replicas)
        listeners = external_listeners(cluster)
        if plain := [each.name for each in listeners if not (each.allow_plaintext or each.is_encrypted)]:
            warn(Reason.PLAINTEXT_LISTENER, PLAINTEXT.format(", ".join(plain)))
        self.listed = self._list(cluster)
        return why_not_outside(self.outside)

    def names(self, replicas: int) -> Mapping[int, frozenset[str]]:
        nodes = node_addresses(self.services, self.cluster, self.listed)
        found = self.outside
        return names_of_brokers(self.cluster, range(replicas), found.known, found.bootstraps, nodes)

    def endpoints(self) -> Mapping[int, Sequence[tuple[str, int]]]:
        return certificates.endpoints_of(self.cluster, self.listed)

    def run(self, replicas: int, warn: Warn) -> Problem | None:
        services, cluster = self.services, self.cluster
        self.live = apply_brokers(services, cluster, self.live, replicas, self.outside.known, warn)
        self.current = self.live["spec"]["replicas"]
        self.ready, desired = ready_replicas(self.live), cluster.spec.brokers.replicas
        self.listed = self._list(cluster)
        if self.ready >= desired:
            return None
        return (
            ensemble.why_no_zookeeper(services, cluster, self.ensemble)
            or why_no_pods(services, self.live)
            or why_not_ready(self.listed, self.ready, desired)
        )

    def pods(self) -> Sequence[RollingPod]:
        assert self.live is not None
        assert self.upgrade is not None
        return held_for_upgrade(broker_pods(self.live, self.listed), self.upgrade.may, self._serves)

    def restart(self, roll: Roll) -> Problem | None:
        restart(self.services, self.cluster, roll)
        return None

    def end(self) -> tuple[NewCondition | None, bool]:
        assert self.upgrade is not None
        desired = self.cluster.spec.brokers.replicas
        self.upgrade.end(
            self._serves
            and self.live is not None
            and self.ready >= desired
            and is_whole(broker_pods(self.live, self.listed), desired)
        )
        return self.upgrade.said, self.upgrade.said is not None and self.upgrade.goes_on

    def maintain(self) -> bool:
        continues = platform.rotate(self.services, self.cluster)
        if self.cluster.status.platform is not None:
            remove_unused_users(self.services, self.cluster, self.services.brokers_of(self.cluster))
        return continues

    def addresses(self) -> tuple[str | None, tuple[ListenerStatus, ...] | None]:
        hosts = {
            int(pod["metadata"]["name"].rpartition("-")[2]): pod["status"]["hostIP"]
            for pod in self.listed
            if (pod.get("status") or {}).get("hostIP")
        }
        return bootstrap_of(self.cluster), listener_status(self.cluster, self.outside, hosts) or None

    @property
    def _serves(self) -> bool:
        return self.ensemble is None or is_settled(self.ensemble)

    def _list(self, cluster: Cluster) -> Sequence[Mapping[str, Any]]:
        return self.services.kube.list("v1", "Pod", cluster.namespace, selector(cluster))
