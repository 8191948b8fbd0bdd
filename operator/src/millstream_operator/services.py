"""What reconciling works with: the Kubernetes API, what the watches saw, brokers, images, the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from .event_budget import Budget
from .kafka_admin import AdminPool
from .kube import Kube
from .lag_age import OffsetTimes
from .metrics import Metrics
from .models import Cluster
from .pace import Pace
from .resources.cluster import bootstrap_of
from .resources.images import Images, SparkRole
from .resources.volumes import VolumeOwnership
from .store import Store
from .turns import Turns


def now_utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Services:
    kube: Kube
    store: Store = field(default_factory=Store)
    admins: AdminPool = field(default_factory=AdminPool)
    offset_times: dict[str, OffsetTimes] = field(default_factory=dict)
    """What is known about the age of records, by the address of their Cluster."""
    load_times: dict[str, OffsetTimes] = field(default_factory=dict)
    """The same for BatchLoads, each by its uid: their looks run beside one another."""
    no_policies: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Clusters without NetworkPolicies, by address: the uid and generation at which they were looked for."""
    pace: Pace | None = field(default_factory=Pace)
    """How often a status is written for a number alone; None: as often as it changes."""
    turns: Turns = field(default_factory=Turns)
    metrics: Metrics = field(default_factory=Metrics)
    events: Budget = field(default_factory=Budget)
    images: Images = field(default_factory=Images)
    spark_role: SparkRole = field(default_factory=SparkRole)
    volume_ownership: VolumeOwnership = VolumeOwnership.AUTO
    # Where its own pod is, for NetworkPolicies; None outside Kubernetes.
    operator_namespace: str | None = None
    now: Callable[[], datetime] = now_utc
    acts_in: Callable[[str], bool] = lambda namespace: True
    """Whether this release acts in a namespace (see claims.py). Raises KubeError where that cannot be known."""
    # Where the operator itself reaches a Cluster's brokers; elsewhere than clients when it runs outside Kubernetes.
    address_of: Callable[[Cluster], str] = bootstrap_of

    @property
    def release(self) -> str:
        """Names what this operator gives every Cluster."""
        return self.images.release(self.volume_ownership)

    def obey(self, fence: Callable[[], None]) -> None:
        """Have ``fence`` called before each write, to Kubernetes and to brokers; it raises where none may be."""
        self.kube.fence = self.admins.fence = fence

    def forget_brokers(self, address: str) -> None:
        """The Cluster there is gone."""
        self.admins.forget(address)
        self.offset_times.pop(address, None)
        self.no_policies.pop(address, None)
