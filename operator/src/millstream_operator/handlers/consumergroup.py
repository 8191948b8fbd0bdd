"""ConsumerGroup: all those of one Cluster are reconciled together; a change of a workload's Deployment wakes it."""

from __future__ import annotations

from ..manager.controller import Controller, OwnedResource
from ..models import ConsumerGroup
from ..reconcile.common.reference import cluster_key
from ..reconcile.group.apply import reconcile_groups

CONTROLLER = Controller(
    ConsumerGroup,
    reconcile_groups,
    group_of=lambda group: cluster_key(group.namespace, group.spec.cluster_ref),
    batch=500,
    early=2.5,  # a reconcile costs the brokers the same for any number of groups
    owned=(OwnedResource("apps", "v1", "deployments"),),
)
