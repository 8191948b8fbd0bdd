"""Deleting with `deletionPolicy: Delete`: a resource stays until its data is deleted, however long that takes.

Brokers may be down, or a group may have members. The resource's condition says what it waits for, and an Event says so
once. A user who would rather keep the data sets an annotation to give up.

The resource does not wait if that might never end: the Cluster is gone, it no longer allows the resource's
namespace, or the data belongs to an older resource. Then the resource is removed, the data stays, and an Event on the
resource says so. If the Cluster exists, it gets the same Event, because the resource is soon gone, and a terminating
namespace accepts no more Events. A Cluster that is being deleted is used as long as it exists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...models import Cluster, ConsumerGroup, ManifestError, Topic, User
from ...models.conditions import ConditionType, Reason
from ...models.event import EventType
from ...models.problem import Problem
from ...state.cache import key_for
from ...state.context import Statuses
from ...state.status import FINALIZER, hold_finalizer, release_finalizer
from .reference import cluster_key
from .report import report_problem, tell

logger = logging.getLogger(__name__)

SKIPPED = "DeletionSkipped"
SKIP_ANNOTATION = "millstream.dev/skip-deletion"
WAITING_INTERVAL_S = 5.0
GONE_INTERVAL_S = 30.0


def needs_cleanup(resource: Topic | ConsumerGroup | User) -> bool:
    """Whether a resource that is being deleted has data to delete first."""
    return _holds(resource) and not _gives_up(resource)


def wait(services: Statuses, resource: Topic | ConsumerGroup | User, what: str, why: str) -> float:
    """Keep the resource until ``what`` can be deleted."""
    waited = any(
        condition.type == ConditionType.READY and condition.reason == Reason.DELETING
        for condition in resource.status.conditions or ()
    )
    words = f"waiting to delete {what}: {why}; set annotation {SKIP_ANNOTATION}=true to give up"
    if not waited:
        tell(services, resource, "WaitingForDeletion", words, EventType.WARNING)
    return report_problem(services, resource, Problem(Reason.DELETING, words), WAITING_INTERVAL_S)


def release_resource(
    services: Statuses, resource: Topic | ConsumerGroup | User, what: str, why: str = ""
) -> float:
    """Release the resource. ``why`` is the reason its data was not deleted, if it should have been."""
    if _holds(resource):
        if _gives_up(resource):
            why = f"annotation {SKIP_ANNOTATION}"
        if why:
            words = f"{what} is not deleted: {why}"
            logger.warning("%s: %s", key_for(resource), words)
            tell(services, resource, SKIPPED, words, EventType.WARNING)
            if (cluster := _cluster_of(services, resource)) is not None:
                words = (
                    f"{resource.KIND} {resource.name} of namespace {resource.namespace} is deleted; {words}"
                )
                tell(services, cluster, SKIPPED, words, EventType.WARNING)
    hold_finalizer(services, resource, False)
    return GONE_INTERVAL_S


def end_without(
    services: Statuses, resource: Topic | ConsumerGroup | User, what: str, problem: Problem
) -> float:
    """Handle the deletion of a resource that cannot use its Cluster or the name it claims."""
    if problem.reason in (Reason.CLUSTER_NOT_READY, Reason.OTHER_RELEASE) and needs_cleanup(resource):
        return wait(services, resource, what, problem.message)
    return release_resource(services, resource, what, problem.message)


def held_back(raw: Mapping[str, Any]) -> bool:
    """Whether a resource, valid or not, is being deleted and our finalizer keeps it."""
    metadata = raw["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FINALIZER in (metadata.get("finalizers") or ())


def gives_up(raw: Mapping[str, Any]) -> bool:
    """Whether the user has given up deleting the data."""
    return (raw["metadata"].get("annotations") or {}).get(SKIP_ANNOTATION) == "true"


def release_invalid_resource(services: Statuses, raw: Mapping[str, Any], why: str) -> float:
    """Release an invalid resource."""
    metadata = raw["metadata"]
    words = f"annotation {SKIP_ANNOTATION}: none of its data is deleted, because it is invalid: {why}"
    logger.warning("%s %s/%s: %s", raw["kind"], metadata["namespace"], metadata["name"], words)
    release_finalizer(services.kube, dict(raw))
    return GONE_INTERVAL_S


def _holds(resource: Topic | ConsumerGroup | User) -> bool:
    return FINALIZER in resource.metadata.finalizers and resource.spec.deletion_policy == "Delete"


def _cluster_of(services: Statuses, resource: Topic | ConsumerGroup | User) -> Cluster | None:
    key = cluster_key(resource.namespace, resource.spec.cluster_ref)
    try:
        return services.store.get(Cluster, key.namespace, key.name)
    except ManifestError:
        return None


def _gives_up(resource: Topic | ConsumerGroup | User) -> bool:
    return resource.metadata.annotations.get(SKIP_ANNOTATION) == "true"
