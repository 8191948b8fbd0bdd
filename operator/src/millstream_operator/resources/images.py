"""What the pods of this operator's version run: images, and what Spark's drivers may do."""

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
    """Others that BatchLoads may name; an entry that ends with * stands for all that begin so."""
    zookeeper: str = "zookeeper:3.9"
    pull_policy: str = "IfNotPresent"
    user_ids: UserIds = UserIds.FIXED
    mirror_log_format: str = "plain"
    broker_log_format: str = "plain"

    def release(self, volume_ownership: VolumeOwnership = VolumeOwnership.AUTO) -> str:
        """Names what a release of the operator, with its settings, gives every Cluster."""
        given = [self.broker, self.zookeeper, self.pull_policy, self.user_ids, volume_ownership]
        if self.broker_log_format != "plain":
            given.append(self.broker_log_format)
        return f"{__version__}-{hashlib.sha256(' '.join(given).encode()).hexdigest()[:8]}"


class SparkRole(NamedTuple):
    """What Spark's drivers may do in the namespace of a load: a Role of that namespace, or a ClusterRole."""

    kind: str = "ClusterRole"
    name: str = "millstream-spark"
