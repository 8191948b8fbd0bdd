"""Images of this operator's version for its pods, and the rights of Spark's drivers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from .. import __version__
from .volumes import UserIds, VolumeOwnership


@dataclass(frozen=True, slots=True)
class Images:
    """The images that belong to this operator's version, and how pods run them."""

    broker: str = f"millstream/broker:{__version__}"
    spark: str = f"millstream/spark:{__version__}"
    spark_allowed: tuple[str, ...] = ()
    """Other images that BatchLoads may name; an entry that ends with * matches all images with that prefix."""
    zookeeper: str = "zookeeper:3.9"
    pull_policy: str = "IfNotPresent"
    user_ids: UserIds = UserIds.FIXED
    mirror_log_format: str = "plain"
    broker_log_format: str = "plain"
    services_are_ipv6: bool = False
    """Whether a Service has an IPv6 address unless it says otherwise."""

    def release(self, volume_ownership: VolumeOwnership = VolumeOwnership.AUTO) -> str:
        """Identifies the settings that a release of the operator gives every Cluster."""
        given = [self.broker, self.zookeeper, self.pull_policy, self.user_ids, volume_ownership]
        if self.broker_log_format != "plain":
            given.append(self.broker_log_format)
        return f"{__version__}-{hashlib.sha256(' '.join(given).encode()).hexdigest()[:8]}"


class SparkRole(NamedTuple):
    """The rights of Spark's drivers in a load's namespace: a Role of that namespace, or a ClusterRole."""

    kind: str = "ClusterRole"
    name: str = "millstream-spark"
