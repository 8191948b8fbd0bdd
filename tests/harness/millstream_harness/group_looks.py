"""Reconciles of ConsumerGroups with a real broker, while Kubernetes is in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from millstream_kafka.client import Security
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.pools import AdminPool
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.state.context import now_utc

from .in_memory import in_memory, stored
from .manifests import cluster

KIND = "ConsumerGroup"


class OneAdmin(AdminPool):
    """The same admin for every address."""

    def __init__(self, admin: KafkaAdmin) -> None:
        super().__init__()
        self.admin = admin

    def at(self, bootstrap: str, security: Security | None = None) -> KafkaAdmin:
        return self.admin


class Looks:
    """An operator that looks at groups of Cluster default, whose brokers ``admin`` reaches. ``later`` advances its
    clock."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self.later = timedelta()
        self.found = in_memory(stored(cluster("default")))
        self.services = self.found.services
        object.__setattr__(self.services, "admins", OneAdmin(admin))
        object.__setattr__(self.services, "now", self._now)
        self.services.metrics.show(self.services.store)

    def look(self, manifest: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
        """Reconcile groups together, once; returns the status of the first. Later calls know earlier statuses."""
        names = [one["metadata"]["name"] for one in (manifest, *others)]
        for name, one in zip(names, (manifest, *others), strict=True):
            if (KIND, name) not in self.found.kube.objects:
                self.found.kube.put(one)
                self.services.store.put(one)
        groups = [decode_as(ConsumerGroup, self.found.kube.objects[KIND, name]) for name in names]
        reconcile_groups(self.services, groups)
        return self.found.status(KIND, names[0])

    def condition(self, name: str, which: str = "Ready") -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        found = self.found.condition(KIND, name, which)
        assert found is not None, which
        return found

    def metric(self, metric: str, name: str) -> float | None:
        """A metric of a group, as a scrape finds it."""
        registry = self.services.metrics.registry
        return registry.get_sample_value(metric, {"namespace": "ns", "name": name})

    def _now(self) -> datetime:
        return now_utc() + self.later
