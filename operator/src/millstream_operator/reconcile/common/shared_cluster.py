"""Resources of one Cluster that are reconciled together: reports those with a problem, and returns the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...models import Cluster, ConsumerGroup, Topic, User
from ...models.keys import Key
from ...models.problem import Problem
from ...state.cache import key_for
from ...state.context import Statuses
from .deletion import end_without
from .reference import find_cluster
from .report import report_problem

PROBLEM_INTERVAL_S = 30.0

ResourceT = TypeVar("ResourceT", Topic, ConsumerGroup, User)


@dataclass(slots=True)
class Sorted(Generic[ResourceT]):
    cluster: Cluster | None = None
    """None if there is nothing to reconcile."""
    wanted: list[ResourceT] = field(default_factory=list)
    deleted: list[ResourceT] = field(default_factory=list)
    again: dict[Key, float] = field(default_factory=dict)
    """Seconds until the next reconcile of those with a problem."""


def partition_by_readiness(
    services: Statuses,
    resources: Sequence[ResourceT],
    conflict: Callable[[Statuses, ResourceT, Cluster], Problem | None],
    title: Callable[[ResourceT], str],
) -> Sorted[ResourceT]:
    """Their Cluster, which of them to reconcile in it, and which are being deleted. Reports the others' problems."""
    found: Sorted[ResourceT] = Sorted()
    for resource in resources:
        is_deleted = resource.metadata.deletion_timestamp is not None
        reference = resource.spec.cluster_ref
        cluster = find_cluster(services, resource.namespace, reference, to_delete=is_deleted)
        problem = cluster if isinstance(cluster, Problem) else conflict(services, resource, cluster)
        if isinstance(cluster, Cluster):
            found.cluster = cluster
        if problem is None:
            (found.deleted if is_deleted else found.wanted).append(resource)
        elif is_deleted:
            found.again[key_for(resource)] = end_without(services, resource, title(resource), problem)
        else:
            found.again[key_for(resource)] = report_problem(services, resource, problem, PROBLEM_INTERVAL_S)
    return found
