"""Upgrades brokers and ZooKeeper servers from an earlier release of the operator to this one.

A new release of the operator has other images, which changes every Cluster at once. Restarts for this reason alone are
held back: Clusters are upgraded one after the other, each within its maintenance windows, and a Cluster keeps its turn
until all its brokers are ready again. So a broken image stops at the first Cluster. A user's change is not held back,
and includes the upgrade; nor are brokers that are not ready and ZooKeeper servers without a quorum, which the upgrade
may repair. A Cluster that cannot be worked on (deleted, paused, refused, another release's) gives its turn back.

Each StatefulSet and each pod names the release that made it (``RELEASE``).
"""

from __future__ import annotations

from datetime import datetime

from ...models import Cluster
from ...models.conditions import ConditionType, Reason, rfc3339
from ...models.maintenance import next_window
from ...models.problem import NewCondition
from ...state.cache import key_for
from ...state.context import ClusterParts


class Upgrade:
    """The upgrade of one Cluster, for one reconcile."""

    def __init__(self, services: ClusterParts, cluster: Cluster, ready: bool) -> None:
        """``ready``: whether all brokers are ready."""
        self._services, self._cluster, self._ready = services, cluster, ready
        self.said: NewCondition | None = None
        self._may: bool | None = None
        self._waits = False

    @property
    def goes_on(self) -> bool:
        """Whether this reconcile has found a pod of an earlier release that may be restarted."""
        return self._may is True

    def may(self) -> bool:
        """Whether a pod of an earlier release may be restarted now."""
        if self._may is None:
            self._may, reason, words = self._decide()
            self.said = (ConditionType.UPGRADING, self._may, reason, words)
        return self._may

    def end(self, ready: bool) -> None:
        """End the reconcile. A Cluster keeps its turn while its upgrade continues, or until it is ``ready`` again. Its
        status records this, for an operator that restarts."""
        queue, store, key = self._services.upgrade_queue, self._services.store, key_for(self._cluster)
        if ready and not self._may and not self._waits:
            queue.leave(store, key)
        elif self.said is None and queue.has(store, key):
            words = "the upgrade ends when all brokers and ZooKeeper servers are ready again"
            self.said = (ConditionType.UPGRADING, True, Reason.UPGRADING, words)

    def _decide(self) -> tuple[bool, Reason, str]:
        cluster, store = self._cluster, self._services.store
        if (closed := waits_for_window(cluster, self._services.now())) is not None:
            return False, Reason.OUTSIDE_MAINTENANCE_WINDOW, closed
        if not self._ready and not self._services.upgrade_queue.has(store, key_for(cluster)):
            words = "the upgrade waits until all brokers are ready"
            return False, Reason.BROKERS_STARTING, words
        holder = self._services.upgrade_queue.ask(store, key_for(cluster))
        if holder != key_for(cluster):
            self._waits = True
            words = f"the upgrade waits for that of Cluster {holder.namespace}/{holder.name}"
            return False, Reason.WAITING_FOR_CLUSTER, words
        return True, Reason.UPGRADING, "brokers are brought to the operator's release, one at a time"


def waits_for_window(cluster: Cluster, now: datetime) -> str | None:
    """How long a Cluster must wait for its upgrade, in words; None if it may be upgraded now."""
    if cluster.spec.maintenance is None:
        return None
    start, end = next_window(cluster.spec.maintenance.windows, now)
    if start <= now:
        return None
    return (
        f"the upgrade waits for the maintenance window from {rfc3339(start)} to {rfc3339(end)}; to begin now: "
        f"kubectl --namespace {cluster.namespace} rollout restart statefulset/{cluster.name}-brokers"
    )
