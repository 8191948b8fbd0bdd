"""ConsumerGroup: all those of one Cluster are reconciled together."""

from __future__ import annotations

from ..controller import Controller
from ..models import ConsumerGroup
from ..reconcile.group_kafka import reconcile_groups
from ..reconcile.reference import cluster_key

CONTROLLER = Controller(
    ConsumerGroup,
    reconcile_groups,
    group_of=lambda group: cluster_key(group.namespace, group.spec.cluster_ref),
    batch=200,
)
