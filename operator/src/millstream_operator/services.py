"""What reconciling works with: the Kubernetes API, what the watches saw, brokers, images, the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from . import __version__
from .kafka_admin import AdminPool
from .kube import Kube
from .models import Cluster
from .resources.cluster import bootstrap_of
from .resources.volumes import UserIds, VolumeOwnership
from .store import Store


@dataclass(frozen=True, slots=True)
class Images:
    """The images that belong to this operator's version, and how pods run them."""

    broker: str = f"millstream/broker:{__version__}"
    spark: str = f"millstream/spark:{__version__}"
    spark_allowed: tuple[str, ...] = ()
    """Others that BatchLoads may name; an entry that ends with * stands for all that begin so."""
    zookeeper: str = "zookeeper:3.9"
    pull_policy: str = "IfNotPresent"
    user_ids: UserIds = UserIds.FIXED


class SparkRole(NamedTuple):
    """What Spark's drivers may do in the namespace of a load: a Role of that namespace, or a ClusterRole."""

    kind: str = "ClusterRole"
    name: str = "millstream-spark"


def now_utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Services:
    kube: Kube
    store: Store = field(default_factory=Store)
    admins: AdminPool = field(default_factory=AdminPool)
    images: Images = field(default_factory=Images)
    spark_role: SparkRole = field(default_factory=SparkRole)
    volume_ownership: VolumeOwnership = VolumeOwnership.AUTO
    now: Callable[[], datetime] = now_utc
    # Where the operator itself reaches a Cluster's brokers; elsewhere than clients when it runs outside Kubernetes.
    address_of: Callable[[Cluster], str] = bootstrap_of
