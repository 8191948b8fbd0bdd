"""Topic: all those of one Cluster are reconciled together."""

from __future__ import annotations

from ..manager.controller import Controller
from ..models import Topic
from ..reconcile.common.reference import cluster_key
from ..reconcile.topic.apply import reconcile_topics

CONTROLLER = Controller(
    Topic,
    reconcile_topics,
    group_of=lambda topic: cluster_key(topic.namespace, topic.spec.cluster_ref),
    batch=200,
    early=5.0,  # they share the requests of a reconcile
)
