"""User: all those of one Cluster are reconciled together."""

from __future__ import annotations

from ..manager.controller import Controller
from ..models import User
from ..reconcile.common.reference import cluster_key
from ..reconcile.user.apply import reconcile_users

CONTROLLER = Controller(
    User,
    reconcile_users,
    group_of=lambda user: cluster_key(user.namespace, user.spec.cluster_ref),
    batch=200,
    early=30.0,  # they share the requests of a reconcile
)
