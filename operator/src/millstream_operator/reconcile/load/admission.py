"""Whether a BatchLoad may run now, and what its next run loads: the same rules wherever its runs are started.

What a place where runs are started does not allow is the launcher's to say: see `limits` for Kubernetes.
"""

from __future__ import annotations

from ...models import BatchLoad, BatchLoadStatus, Cluster
from ...models.conditions import Reason
from ...models.load_run import in_flight
from ...models.problem import Problem
from ...state.context import LoadParts
from ..common.reference import find_cluster
from . import plan as runs
from .columns import check_columns
from .offsets import check_topics, find_ends
from .tables import check_table


def admit(services: LoadParts, load: BatchLoad) -> Cluster | Problem:
    """The Cluster of a load whose runs may start in its present form, or why none may.

    Checked before a run begins, and again before anything is started, since the spec may have changed in between.
    """
    refused = services.launcher.refusal(services, load)
    problem = refused or check_columns(load) or check_table(services.store, load)
    return problem or find_cluster(services, load.namespace, load.spec.cluster_ref)


def begin(
    services: LoadParts, load: BatchLoad, cause: runs.Cause
) -> BatchLoadStatus | Problem | runs.Waiting:
    """The status with the requested run and its offsets."""
    cluster = admit(services, load)
    if isinstance(cluster, Problem):
        return cluster
    rerun = load.spec.rerun if cause.trigger is runs.Trigger.RERUN else None
    partitions = find_ends(services.brokers_of(cluster), load, rerun)
    if isinstance(partitions, Problem):
        return partitions
    begun = runs.begin(load, cause, partitions, services.now(), services.nonce())
    if isinstance(begun, BatchLoadStatus) and in_flight(begun):
        return services.launcher.missing(load) or begun
    return begun


def scheduled_problem(services: LoadParts, load: BatchLoad) -> Problem | None:
    """Why the next run of the schedule could not begin, if that is known before its time."""
    if load.spec.schedule is None or load.spec.schedule.suspend:
        return None
    cluster = admit(services, load)
    if isinstance(cluster, Problem):
        return None if cluster.reason is Reason.RECONCILE_PAUSED else cluster
    return check_topics(services.brokers_of(cluster), load)
