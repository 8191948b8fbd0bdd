"""Cluster: reconciled one by one; a change of its StatefulSets wakes it."""

from __future__ import annotations

from ..manager.controller import OwnedResource, one_by_one
from ..models import Cluster
from ..reconcile.cluster.apply import reconcile_cluster

CONTROLLER = one_by_one(Cluster, reconcile_cluster, owned=(OwnedResource("apps", "v1", "statefulsets"),))
