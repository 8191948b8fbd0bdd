"""Writes Kubernetes Events: what changed in a status (event_rules.py), within a budget (event_budget.py)."""

from __future__ import annotations

import logging

from ..kubernetes.client import KubeError
from ..models.event import Event
from ..models.keys import Key
from .context import Statuses

logger = logging.getLogger(__name__)


def record(services: Statuses, key: Key, uid: str, event: Event) -> None:
    """Write an Event about a resource. If Kubernetes refuses it, the Event is lost."""
    metrics = services.metrics
    if not services.events.allows(key, event.type):
        metrics.events_dropped.inc()
        return
    try:
        services.kube.record_event(key, uid, event, services.now())
    except KubeError as error:
        metrics.events_dropped.inc()
        logger.warning("cannot record the Event for %s: %s: %s", key, event.message, error)
    else:
        metrics.events.labels(event.type, event.reason).inc()
